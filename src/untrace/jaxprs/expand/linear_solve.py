"""Writes lineax's `linear_solve` as `jax.lax.custom_linear_solve`, where the two mean the same.

Both are a solve with an implicit derivative: x' = A^-1 (b' - A' x), and a transpose rule that
solves with A^T. lineax's rule (lineax/_solve.py, `_linear_solve_jvp`) has further terms for a
pseudoinverse, so only a square operator with a solver that assumes full rank is taken; the other
solves keep lineax's own rule (`derivatives.py`).

`custom_linear_solve` lowers to the equations of its `solve`, all of them, and is differentiable any
number of times, in both modes, and batched. What is lost: lineax checks every tangent solve for
success and raises; here only solves that were asked to (`throw=True`) and their transposes do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from untrace import jax_compat
from untrace.jaxprs.expand.expansion import Expansion


class _Index:
    """Stands for operand `index` in a pytree."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index


def linear_solve_of(eqn: Any, implementation: Any, plain: Expansion) -> Callable[..., list[Any]] | None:
    """A function of the equation's operands that is one `lax.custom_linear_solve`, or None where
    that is not the same.

    implementation: ClosedJaxpr of the solve. plain: expands what is inside the transposed solve.
    """
    if eqn.primitive.name != "linear_solve" or jax_compat.library_of(eqn.primitive) != "lineax":
        return None
    rule = jax_compat.transpose_rule(eqn.primitive)
    try:
        places = _arguments(eqn, [_Index(i) for i in range(len(eqn.invars))])
        _, _, vector, _, solver, _ = places
        moving = [leaf.index for leaf in jax.tree_util.tree_leaves(vector)]
        square = solver.assume_full_rank() and _is_square(eqn, moving)
        if rule is None or not square:
            return None
        function = _solver(eqn, implementation, rule, moving, jax.tree_util.tree_structure(vector), plain)
        closed = jax_compat.trace_on_avals(function, [v.aval for v in eqn.invars], eqn.ctx)
    except Exception:  # another version of lineax, or an operator that JAX cannot transpose: its own rule then
        return None
    return lambda *operands: jax_compat.evaluate_closed(closed, operands)


def _arguments(eqn: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
    """(operator, state, vector, options, solver, throw) with `operands` for arrays.

    Source: `filter_primitive_bind`, equinox/internal/_primitive.py: arrays are operands, the rest
    is in `static`.
    """
    missing = sys.modules["equinox.internal._primitive"]._missing_dynamic
    rest = iter(operands)
    leaves = [next(rest) if leaf is missing else leaf for leaf in eqn.params["static"]]
    return tuple(jax.tree_util.tree_unflatten(eqn.params["treedef"], leaves))


def _is_square(eqn: Any, moving: Sequence[int]) -> bool:
    """Whether solution and vector have the same shapes and dtypes, leaf by leaf."""
    vector = [(eqn.invars[i].aval.shape, eqn.invars[i].aval.dtype) for i in moving]
    solution = [(v.aval.shape, v.aval.dtype) for v in eqn.outvars[: len(moving)]]
    return bool(vector) and vector == solution


def _without_checks(closed: Any, primitive: Any) -> Any:
    """A transposed solve that does not raise, for a solve that was asked not to.

    JAX batches a solve and its transpose together, and the check of the transpose could not be
    batched. lineax's `throw` is the last argument.
    """
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    eqns = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is primitive and eqn.params["static"][-1] is True:
            eqn = eqn.replace(params={**eqn.params, "static": (*eqn.params["static"][:-1], False)})
        eqns.append(eqn)
    return jax_compat.rebuilt_jaxpr(closed, eqns, jaxpr.outvars)


def _solver(
    eqn: Any, implementation: Any, rule: Any, moving: Sequence[int], tree: Any, plain: Expansion
) -> Callable[..., list[Any]]:
    count, results = len(moving), len(eqn.outvars)
    fixed = [i for i in range(len(eqn.invars)) if i not in moving]

    def merged(others: Sequence[Any], vector: Sequence[Any]) -> list[Any]:
        full: list[Any] = [None] * len(eqn.invars)
        for i, value in [*zip(fixed, others, strict=True), *zip(moving, vector, strict=True)]:
            full[i] = value
        return full

    def transposed(*args: Any) -> list[Any]:
        operands = merged(args[: len(fixed)], [None] * count)
        cotangents = [*args[len(fixed) :], *[None] * (results - count)]
        return jax_compat.call_transpose_rule(rule, eqn, operands, cotangents)

    avals = [eqn.invars[i].aval for i in fixed]
    given = [jax_compat.core_cotangent(v.aval) for v in eqn.outvars[:count]]
    # Expanded here and now: a transposed solve has a transposed solve of its own, and so on for
    # ever.
    traced = jax_compat.trace_on_avals(transposed, [*avals, *given], eqn.ctx)
    if eqn.params["static"][-1] is False:
        traced = _without_checks(traced, eqn.primitive)
    back = plain.closed(traced)

    def linear_solve(*operands: Any) -> list[Any]:
        operator = _arguments(eqn, operands)[0]
        others = [operands[i] for i in fixed]
        if operator.in_size() != operator.out_size():
            raise ValueError("the operator is not square")

        # Under `checkpoint`, for else `custom_linear_solve` computes what the operator computes
        # from its own arrays alone outside of the solve (it transposes `matvec` there and then):
        # equations that the original does not have.
        @jax.checkpoint
        def matvec(vector: list[Any]) -> list[Any]:
            return jax.tree_util.tree_leaves(operator.mv(jax.tree_util.tree_unflatten(tree, vector)))

        def solve(_: Any, vector: list[Any]) -> tuple[list[Any], list[Any]]:
            outs = jax_compat.evaluate_closed(implementation, merged(others, vector))
            return outs[:count], outs[count:]

        def transpose_solve(_: Any, cotangent: list[Any]) -> tuple[list[Any], list[Any]]:
            # JAX wants the same extra results of both solves; nobody reads those of the transposed
            # one.
            extra = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in eqn.outvars[count:]]
            return jax_compat.evaluate_closed(back, [*others, *cotangent]), extra

        vector = [operands[i] for i in moving]
        found, extra = jax.lax.custom_linear_solve(matvec, vector, solve, transpose_solve, has_aux=True)
        return [*found, *extra]

    return linear_solve
