"""Sparse matrices of `jax.experimental.sparse`: what a BCOO does, put together from its arrays again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from untrace.ir.nodes import Equation
from untrace.lift.recognise.engine import Guess, Matcher, idiom


def _flags(info: Any) -> dict[str, bool]:
    return {name: True for name in ("indices_sorted", "unique_indices") if getattr(info, name)}


@idiom("bcoo_dot_general")
def _product(m: Matcher, equation: Equation) -> Iterator[Guess]:
    data, indices, x = equation.inputs
    params = equation.origin.params
    info = params["lhs_spinfo"]
    shape = tuple(int(n) for n in info.shape)
    yield Guess("sparse.matmul", (data, indices, shape, x), _flags(info))
    numbers = {"dimension_numbers": params["dimension_numbers"]}
    if params["preferred_element_type"] is not None:
        numbers["preferred_element_type"] = params["preferred_element_type"]
    yield Guess("sparse.bcoo_dot_general", (data, indices, shape, x), {**_flags(info), **numbers})


@idiom("bcoo_todense")
def _dense(m: Matcher, equation: Equation) -> Iterator[Guess]:
    data, indices = equation.inputs
    info = equation.origin.params["spinfo"]
    shape = tuple(int(n) for n in info.shape)
    yield Guess("sparse.todense", (data, indices, shape), _flags(info))
