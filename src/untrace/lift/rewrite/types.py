"""Rewrites of weak types in loops: XLA knows none, and where they change JAX converts nothing.

A loop that begins at `0.0` carries a number of a weak type, which meets arrays in its turns, and then its gradient too.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from untrace import jax_compat
from untrace.lift.rewrite.arithmetic import ELEMENTWISE, loop_constants
from untrace.lift.rewrite.loops import moved_inside
from untrace.lift.rewrite.simplify import Body, rewrite, same_aval

Literal = jax_compat.LITERAL_TYPE
_CONVERT = "convert_element_type"
_ALIKE = frozenset((*ELEMENTWISE, *"add_any add_jaxvals neg select_n exp log tanh sin cos sqrt rsqrt abs".split()))


@rewrite("scan", early=True)
def types_of_constants(body: Body, eqn: Any) -> Any:
    """A constant of a loop that only gets a strong type gets it where it is read, as `step * x` gives it."""
    jaxpr, _ = jax_compat.open_jaxpr(eqn.params["jaxpr"])
    found: dict[Any, Any] = {}  # parameter -> the equation that gives its operand a strong type
    for param, operand in loop_constants(eqn):
        made = body.maker(operand, _CONVERT)
        if made is None or type(made.invars[0]) is Literal or not _is_strengthened(made):
            continue
        if all(e.primitive.name in ELEMENTWISE for e in jaxpr.eqns if any(v is param for v in e.invars)):
            found[param] = made
    if not found:
        return None
    return moved_inside(eqn, found, lambda made, param: made.replace(outvars=[jax_compat.fresh_variable(param)]))


def _is_strengthened(eqn: Any) -> bool:
    """Whether a conversion changes nothing but a weak type into a strong one."""
    x, out = eqn.invars[0].aval, eqn.outvars[0].aval
    return eqn.params["sharding"] is None and x.weak_type and same_aval(_strong(x), out)


@rewrite("scan", early=True)
def strong_loop(body: Body, eqn: Any) -> Any:
    """A loop that carries or stacks numbers of a weak type has strong ones, where nothing but such loops reads them.

    Only a derivative says such conversions: an author's `total + x` converts as it stands.
    """
    site = body.simplifier.provenance.site(eqn)
    if not site.differentiated and not body.in_backward_pass(eqn):
        return None
    count, carries = jax_compat.scan_counts(eqn)
    closed = eqn.params["jaxpr"]
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    weak = [v for v in jaxpr.invars[count:] if _is_weak(v)]
    given = [v for v in eqn.outvars if _is_weak(v) and type(v) is not jax_compat.DROP_TYPE]
    if not weak and not any(map(_is_weak, eqn.outvars)) or any(map(_is_weak, jaxpr.invars[:count])):
        return None
    if any(v in body.results or any(e.primitive.name != "scan" for e in body.users(v)) for v in given):
        return None
    operands = [_strengthened(v) if _is_weak(v) else v for v in eqn.invars]
    if any(v is None for v in operands):
        return None
    names: dict[Any, Any] = {v: _strong_variable(v) for v in weak}
    converted: dict[Any, Any] = {}  # (variable, type) -> it in that type
    eqns: list[Any] = []
    for inner in jaxpr.eqns:
        touched = [v for v in (*inner.invars, *inner.outvars) if _is_weak(v)]
        invars = [names.get(v, v) if type(v) is not Literal else _strengthened(v) for v in inner.invars]
        if inner.primitive.name == _CONVERT and touched:
            x, out = invars[0], inner.outvars[0]
            if type(x) is not Literal and same_aval(x.aval, _strong(out.aval)):
                names[out] = x
                continue
            params = {**inner.params, "weak_type": False}
            if type(x) is not Literal and converted.get((x, out.aval.dtype)) is not None:
                names[out] = converted[x, out.aval.dtype]
                continue
        elif touched and inner.primitive.name not in _ALIKE:
            return None
        else:
            params = inner.params
        if touched:
            outvars = [_strong_variable(v) for v in inner.outvars]
            names.update(zip(inner.outvars, outvars, strict=True))
            inner = inner.replace(invars=invars, outvars=outvars, params=params)
        elif any(a is not b for a, b in zip(invars, inner.invars, strict=True)):
            inner = inner.replace(invars=invars)
        eqns.append(inner)
        if inner.primitive.name == _CONVERT and type(inner.invars[0]) is not Literal:
            converted.setdefault((inner.invars[0], inner.outvars[0].aval.dtype), inner.outvars[0])
    outvars = [_strengthened(v) if type(v) is Literal else names.get(v, v) for v in jaxpr.outvars]
    new = jax_compat.rebuilt_jaxpr(closed, eqns, outvars, invars=[names.get(v, v) for v in jaxpr.invars])
    results = [_strong_variable(v) for v in eqn.outvars]
    body.substitute.update((old, new) for old, new in zip(eqn.outvars, results, strict=True) if old is not new)
    return eqn.replace(invars=operands, outvars=results, params={**eqn.params, "jaxpr": new})


def _is_weak(atom: Any) -> bool:
    return bool(getattr(atom.aval, "weak_type", False)) and jnp.issubdtype(atom.aval.dtype, jnp.floating)


def _strong(aval: Any) -> Any:
    return aval.update(weak_type=False)


def _strong_variable(variable: Any) -> Any:
    return type(variable)(_strong(variable.aval)) if _is_weak(variable) else variable


def _strengthened(atom: Any) -> Any:
    """A number of a strong type; None for a variable of a weak one."""
    if type(atom) is not Literal:
        return None
    if not _is_weak(atom) or np.shape(atom.val):
        return atom
    return jax_compat.literal(np.asarray(atom.val).astype(atom.aval.dtype)[()], _strong(atom.aval))
