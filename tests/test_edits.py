"""The edits of `bench/edits.py` are made in what means the same, wherever it is spelled otherwise, and nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"


@pytest.fixture
def rewrite(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that makes the edits."""
    monkeypatch.syspath_prepend(str(BENCH))
    from edits import _rewrite

    return _rewrite


def made(rewrite: ModuleType, source: str, pattern: str, by: str) -> tuple[str, int]:
    """What the expression becomes, and at how many places."""
    text, places = rewrite.edited(f"def f():\n    return {source}\n", rewrite.Replace(("f",), pattern, by))
    return ast.unparse(ast.parse(text).body[-1].body[0].value), places


@pytest.mark.parametrize(
    ("source", "pattern", "by", "expected"),
    [
        ("x % 4.0", "jnp.mod(A, 4)", "jnp.clip(A, 0, 4)", ("jnp.clip(x, 0, 4)", 1)),
        ("jnp.mod(x, 4)", "A % 4.0", "A", ("x", 1)),
        (
            "lax.scan(f, x, None, length=3)",
            "jax.lax.scan(A, B, length=3)",
            "lax.scan(A, B, length=5)",
            ("lax.scan(f, x, length=5)", 1),
        ),
        ("f(net.blocks)", 'A["blocks"]', "A[:1]", ("f(net.blocks[:1])", 1)),
        ("f(net['blocks'])", 'A["blocks"]', "A[:1]", ("f(net['blocks'][:1])", 1)),
        ("jnp.tanh(x[..., 1])", "jnp.tanh(A[B])", "jnp.sin(A[B])", ("jnp.sin(x[..., 1])", 1)),
        ("25 + f(25.0)", "25", "40", ("40 + f(40)", 2)),
    ],
)
def test_what_means_the_same_is_edited(
    rewrite: ModuleType, source: str, pattern: str, by: str, expected: tuple[str, int]
) -> None:
    assert made(rewrite, source, pattern, by) == expected


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        ("x % 3.0", "jnp.mod(A, 4.0)"),
        ("lax.scan(f, x, xs, length=3)", "jax.lax.scan(A, B, length=3)"),
        ("f(net.block)", 'A["blocks"]'),
        ("jnp.tanh(x[..., 1])", "jnp.tanh(A[0, 1])"),
        ("jnp.tanh(x)", "jnp.tanh(A[B])"),
    ],
)
def test_what_means_something_else_is_not(rewrite: ModuleType, source: str, pattern: str) -> None:
    with pytest.raises(rewrite.NoSuchPlace, match="in f"):
        made(rewrite, source, pattern, "A")


def test_the_table_has_the_edits_that_its_bench_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from edits import _forward, _table

    assert sum(len(p.edits) for p in _table.DIFFERENTIATED) == 30
    assert sum(len(p.edits) for p in _forward.FORWARD) == 20
    assert all(p.loss for p in _table.DIFFERENTIATED)
    assert not any(p.loss for p in _forward.FORWARD)
