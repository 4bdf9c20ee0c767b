"""The documents tell the truth: their output is what untrace writes, and their code runs."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def make_readme() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_readme", ROOT / "docs" / "make_readme.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(markdown: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", markdown, re.DOTALL | re.MULTILINE)


def test_what_is_shown_is_written_so_today(make_readme: ModuleType) -> None:
    made_with = re.search(r"· jax ([\d.]+) ·", README)
    assert made_with is not None
    fresh, _ = make_readme.run(make_readme.COMMAND)
    if made_with[1] != jax.__version__:
        # Another line of JAX traces another program: only that the README's is valid is tested,
        # by the test below.
        assert "def grad_loss(" in fresh
    else:
        today = make_readme.parts()
        del today["see"]  # its numbers are those of optimised code, which tests do not ask XLA for
        for name, text in today.items():
            assert make_readme.part(README, name) == text, f"{name}; run: python docs/make_readme.py"


def test_the_written_example_computes_the_gradient(make_readme: ModuleType) -> None:
    function, written = blocks(make_readme.part(README, "example"), "python")
    before: dict[str, object] = {}
    after: dict[str, object] = {}
    without_guard = "\n\n\ndef _checked(types, *values):\n    return values\n"  # the README leaves the helpers out
    exec(function, before)
    exec(written + without_guard, after)
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = ((4, 5), (5,), (3, 4), (3, 5))
    w, b, x, target = (jax.random.normal(key, s) for key, s in zip(keys, shapes, strict=True))
    expected = jax.jit(jax.grad(before["loss"]))((w, b), x, target)
    actual = jax.jit(after["grad_loss"])((w, b), x, target)
    for e, a in zip(expected, actual, strict=True):
        if f"from JAX {jax.__version__}." in written:
            np.testing.assert_array_equal(e, a)
        else:  # another line of JAX has another gradient of tanh, in the last bits
            np.testing.assert_allclose(e, a, rtol=1e-5, atol=1e-5)


def test_what_leaves_jax_is_what_is_written_today(make_readme: ModuleType) -> None:
    parts = make_readme.leave()
    assert set(parts) >= {"leave jax", "leave jax for numpy", "leave jax for c"}
    for name, text in parts.items():
        assert make_readme.part(README, name) == text, "run: python docs/make_readme.py"
    defined: list[dict[str, Any]] = [{}, {}]
    for part, module in zip(("leave jax", "leave jax for numpy"), defined, strict=True):
        exec(blocks(make_readme.part(README, part), "python")[0], module)
    original, text = (module["swing"](*map(np.float32, (2.0, 0.0, 0.02))) for module in defined)
    assert sorted(original) == sorted(text)
    for key in original:
        np.testing.assert_allclose(text[key], original[key], rtol=1e-4)


def test_the_code_in_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.findall(r"<!-- tested -->\n```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert len(code) == 3
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT / "examples"), *sys.path])
    for name in ("loss", "grad_loss"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    exec("".join(code), {"__name__": "readme"})
    said = capsys.readouterr().out
    # The derivative of tanh is a line shorter on one line of JAX.
    assert "same" in said and re.search(r"grad_loss: taken, (\d+) lines for \1\n", said)
    for name in ("loss", "grad_loss"):
        sys.modules.pop(name, None)


def test_every_link_in_the_documents_leads_to_a_file() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for document in documents:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_message_in_troubleshooting_is_a_message_of_untrace() -> None:
    texts = [
        _text(node)
        for file in (ROOT / "src" / "untrace").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant | ast.JoinedStr)
    ]
    document = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = document.split("## Tracing")[1].split("## Reading the output")[0]
    headings = re.findall(r"^### (.*)$", messages, re.MULTILINE)
    assert len(headings) > 25
    for heading in headings:
        assert any(heading in text for text in texts), heading


def _text(node: ast.expr) -> str:
    """A string of the source with `…` for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "…"
