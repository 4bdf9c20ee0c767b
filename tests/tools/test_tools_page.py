"""docs/tools.md shows what the tools print, but for the last digits of numbers."""

import importlib.util
import re
from pathlib import Path

import jax
import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.skipif(not jax.__version__.startswith("0.10."), reason="the page is written on JAX 0.10")
def test_the_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("make_tools", DOCS / "make_tools.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert words(module.page()) == words((DOCS / "tools.md").read_text(encoding="utf-8"))


def words(page):
    """The page without numbers, bars and what is told by them."""
    lines = [
        re.sub(r"[▁-█]+| +\d+: \d+", "", re.sub(r"-?\d+(\.\d+)?(e[-+]\d+)?|equal", "#", line))
        for line in page.split("\n")
    ]
    return [" ".join(line.split()) for line in lines]
