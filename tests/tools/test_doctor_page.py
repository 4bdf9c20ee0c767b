"""The parts of docs/doctor.md that a program made say what the doctor says today."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import jax
import pytest


@pytest.mark.skipif(not jax.__version__.startswith("0.10"), reason="the page is made on the default line of JAX")
def test_the_page_is_up_to_date():
    script = Path(__file__).resolve().parents[2] / "docs" / "make_doctor.py"
    spec = importlib.util.spec_from_file_location("make_doctor", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text()
    assert module.written(page) == page
