"""A comparison is worth what it notices: every small change to a program must be seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core

from untrace import jax_compat
from untrace.jaxprs.equal.compare import compare_jaxprs
from untrace.jaxprs.equal.comparer import Side
from untrace.jaxprs.equal.diagnose import live_equations

X = jnp.arange(6.0).reshape(2, 3)

# Changing these changes no program: they are names, or must fit something else.
_LABELS = {"name"}


def replaced(closed: Any, eqns: list[Any]) -> Any:
    """`closed` with other equations."""
    if core.Jaxpr is core.ClosedJaxpr:
        return closed.replace(eqns=eqns)
    jaxpr, consts = jax_compat.open_jaxpr(closed)
    rest = (jaxpr.invars, jaxpr.outvars, eqns, jaxpr.effects, jaxpr.debug_info)
    new = core.Jaxpr(jaxpr.constvars, *rest)
    return core.ClosedJaxpr(new, list(consts)) if hasattr(closed, "consts") else new


def mutants(closed: Any) -> Iterator[tuple[str, Any]]:
    """Programs that differ from `closed` in one operand, literal or parameter of live equations."""
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    live = live_equations(Side.of(closed))
    for i, eqn in enumerate(jaxpr.eqns):
        if eqn not in live:
            continue
        name = eqn.primitive.name
        for what, new in [*_operands(eqn), *_parameters(eqn)]:
            yield f"{i}: {name} {what}", replaced(closed, _put(jaxpr.eqns, i, new))


def _operands(eqn: Any) -> Iterator[tuple[str, Any]]:
    for i, atom in enumerate(eqn.invars):
        dtype = getattr(atom.aval, "dtype", None)
        if type(atom) is core.Literal and isinstance(dtype, np.dtype) and atom.aval.shape == ():
            old = np.asarray(atom.val, dtype)
            new = ~old if dtype.kind == "b" else old + np.ones((), dtype)
            if old.tobytes() != new.tobytes():
                literal = core.Literal(new, atom.aval)
                yield f"literal {i}", eqn.replace(invars=_put(eqn.invars, i, literal))
    if len(eqn.invars) == 2:
        x, y = eqn.invars
        both_literal = type(x) is core.Literal and type(y) is core.Literal
        if x is not y and x.aval == y.aval and not both_literal:
            yield "operands swapped", eqn.replace(invars=[y, x])


def _parameters(eqn: Any) -> Iterator[tuple[str, Any]]:
    for key, value in eqn.params.items():
        if key in _LABELS:
            continue
        for what, new in _values(value):
            yield f"{key} {what}", eqn.replace(params={**eqn.params, key: new})


def _values(value: Any) -> Iterator[tuple[str, Any]]:
    if type(value) is bool:
        yield "negated", not value
    elif type(value) is int:
        yield "plus one", value + 1
    elif jax_compat.is_jaxpr(value):
        yield from mutants(value)
    elif type(value) is tuple:
        for i, item in enumerate(value):
            for what, new in _values(item):
                yield f"[{i}] {what}", tuple(_put(value, i, new))


def _put(items: Any, i: int, new: Any) -> list[Any]:
    return [*items[:i], new, *items[i + 1 :]]


def _control(x):
    def body(c, a):
        return lax.cond(c[0] > 1.0, lambda v: v * 2.0, lambda v: v - a, c), c @ a

    carry, ys = lax.scan(body, x[0], x, reverse=True)
    return lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c * 2.0 + x[1], carry), ys


def _gradient(x):
    return jax.grad(lambda a: (jax.nn.softmax(jnp.sin(a) @ a.T, axis=0) ** 3).sum())(x)


def _random(x):
    a, b = jax.random.split(jax.random.key(3))
    return jax.random.normal(a, (3,)) + jax.random.permutation(b, x[0])


def _shapes(x):
    padded = jnp.pad(x, ((1, 2), (0, 1)), constant_values=5.0)
    gathered = padded[jnp.array([0, 2]), 1:3]
    return jnp.sort(gathered, axis=1), x.at[1, :2].add(3.0), jnp.concatenate([x, x * 2.0], axis=1)


@pytest.mark.parametrize("f", [_control, _gradient, _random, _shapes], ids=lambda f: f.__name__)
def test_every_mutant_is_noticed(f):
    original = jax.make_jaxpr(f)(X)
    count = 0
    for what, mutant in mutants(original):
        count += 1
        difference = compare_jaxprs(original, mutant)
        assert difference is not None, what
        assert difference.path, what
    assert count > 15
