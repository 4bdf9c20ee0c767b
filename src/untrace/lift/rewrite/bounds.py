"""Rewrites of operations that change nothing for what they are given, and of questions that `jnp` has a word for."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace import jax_compat
from untrace.lift.rewrite.arithmetic import is_value
from untrace.lift.rewrite.simplify import Body, rewrite

Literal = jax_compat.LITERAL_TYPE


@rewrite("max", "min")
def least_bound(body: Body, eqn: Any) -> Any:
    """No number is below -inf, and NaN stays NaN: `jnp.max(x, initial=-jnp.inf)` of what is not empty."""
    bound = -np.inf if eqn.primitive.name == "max" else np.inf
    if not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
        return None
    for place in (0, 1):
        if is_value(body.scalar(eqn.invars[place]), bound):
            return eqn.invars[1 - place]
    return None


@rewrite("and")
def finite(body: Body, eqn: Any) -> Any:
    """`jnp.isfinite(x)` for `(x == x) & (x != jnp.inf) & (x != -jnp.inf)`."""
    if eqn.outvars[0].aval.dtype != bool:
        return None
    parts, todo = [], list(eqn.invars)
    while todo and len(parts) < 4:
        inner = body.maker(todo[0], "and")
        if inner is not None:
            todo[:1] = inner.invars
            continue
        parts.append(body.maker(todo.pop(0), "eq", "ne"))
    if len(parts) != 3 or None in parts or todo:
        return None
    x = parts[0].invars[0]
    if type(x) is Literal or not jnp.issubdtype(x.aval.dtype, jnp.floating):
        return None
    asked = set()
    for part in parts:
        if part.invars[0] is not x:
            return None
        if part.primitive is lax.eq_p:
            asked.add("number" if part.invars[1] is x else "")
        else:
            other = body.scalar(part.invars[1])
            asked.add("below" if is_value(other, np.inf) else "above" if is_value(other, -np.inf) else "")
    if asked != {"number", "below", "above"}:
        return None
    return eqn.replace(primitive=lax.is_finite_p, invars=[x], params={})


@rewrite("copy")
def copied(body: Body, eqn: Any) -> Any:
    """A copy inside a program is the array; one that only hands an argument on is the author's wish."""
    x = eqn.invars[0]
    if not jax_compat.is_shaped_array(x.aval):
        return None
    if eqn.outvars[0] in body.results and (type(x) is Literal or x not in body.made or x in body.results):
        return None
    return x


@rewrite("pow")
def first_power(body: Body, eqn: Any) -> Any:
    """x ** 1.0, as the derivative of `x**2.0` leaves it."""
    return eqn.invars[0] if is_value(body.scalar(eqn.invars[1]), 1.0) else None


@rewrite("add")
def square_and_zero(body: Body, eqn: Any) -> Any:
    """x**2 + 0.0 is x**2, for no square is -0.0: the length of a complex number whose imaginary part is zero."""
    for square, zero in (eqn.invars, eqn.invars[::-1]):
        if is_value(body.scalar(zero), 0.0) and _is_square(body, square):
            return square
    return None


def _is_square(body: Body, atom: Any) -> bool:
    made = body.maker(atom, "square", "integer_pow", "abs", "exp")
    return made is not None and (made.primitive.name != "integer_pow" or made.params["y"] in (2, 4))


@rewrite("empty2")
def empty(body: Body, eqn: Any) -> Any:
    """What one branch of a differentiated `cond` has in the place of what only another saves. JAX lowers it to zero."""
    aval = eqn.outvars[0].aval
    return jax_compat.literal(np.zeros((), aval.dtype)[()], aval) if isinstance(aval.dtype, np.dtype) else None


@rewrite("square")
def square_of_zero(body: Body, eqn: Any) -> Any:
    """Zeros are their squares, but for those of -0.0."""
    x = eqn.invars[0]
    return x if is_value(body.scalar(x), 0.0) else None
