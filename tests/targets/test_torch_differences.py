"""Each difference between JAX and PyTorch that docs/targets.md lists: it is one, and the text does what JAX does."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from differing import same
from jax import lax
from torch_differences import DIFFERENCES, Difference

import untrace
from untrace.targets.torch.rules.table import TORCH

torch = pytest.importorskip("torch")
from torch.utils import _pytree as trees  # noqa: E402

from untrace.targets.torch.tensors import array_of, tensor_of  # noqa: E402


def _arrays(tree: Any) -> list[np.ndarray]:
    return [array_of(x) for x in trees.tree_leaves(tree)]


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda d: d.name.replace(" ", "_"))
def test_a_difference(difference: Difference) -> None:
    wanted = [np.asarray(x) for x in jax.tree.leaves(jax.jit(difference.program)(*difference.args))]
    text = untrace.decompile(difference.program, target="torch", prove=False, sizes="fixed")(*difference.args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [array_of(x) for x in jax.tree.leaves(text(*difference.args))]
    assert same(found, wanted, close=True), text.source
    assert difference.written in text.source
    assert difference.fatal or _differs(difference, wanted)


def _differs(difference: Difference, wanted: list[np.ndarray]) -> bool:
    """Whether what one would write in PyTorch gives something else or raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plain = _arrays(difference.plain(torch, *map(tensor_of, difference.args)))
        except Exception:
            return True
    return not same(plain, wanted, close=True) or not same(plain, wanted, close=False)


def test_what_is_not_kept_is_as_the_page_says() -> None:
    """Of derivatives that PyTorch makes of the text."""

    def distance(x):
        return jnp.abs(x).sum()

    def rooted(x):
        return lax.cond(x > 0, jnp.sqrt, lambda x: 2 * x, x)

    def own(function: Any, x: Any) -> Any:
        text = untrace.decompile(function, target="torch")(x)
        return torch.func.grad(getattr(text.module, text.name))(tensor_of(x))

    zeros = np.zeros(2, "f4")
    assert own(distance, zeros).tolist() == [0, 0] and jax.grad(distance)(zeros).tolist() == [1, 1]
    assert bool(own(rooted, np.float32(0)).isnan()) and float(jax.grad(rooted)(np.float32(0))) == 2
    gradient = untrace.decompile(jax.grad(distance), target="torch")(zeros)
    assert gradient(zeros).tolist() == [1, 1]


def test_no_rule_swallows_a_parameter_that_it_does_not_know() -> None:
    """Only a loop has parameters that count its operands, and it asks for their names."""
    rules = {name: TORCH.find(name) for name in TORCH.names()}
    kinds = {
        name: [p.kind for p in inspect.signature(rule).parameters.values()] for name, rule in rules.items() if rule
    }
    assert [name for name, found in kinds.items() if inspect.Parameter.VAR_KEYWORD in found] == ["scan"]


def test_the_page_is_the_same_without_pytorch() -> None:
    page = str(Path(__file__).resolve().parents[2] / "docs" / "make_targets.py")
    program = f"""
import runpy, sys
sys.modules["torch"] = None
sys.argv = [{page!r}, "--check"]
runpy.run_path({page!r}, run_name="__main__")
"""
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
