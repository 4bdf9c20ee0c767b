"""Rewrites of what a loop or call saves of a choice for the backward pass: the truth value, not the number made of it.

`lax.cond(p, ...)` chooses by the number 0 or 1 that it makes of `p`, and `lax.switch(i, ...)` by an `i` that it clamps. JAX
saves that number, by which no public function chooses: those would make another number of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.lift.simplify import Body, alive, rewrite

Literal = jax_compat.LITERAL_TYPE


@rewrite("scan", "jit", "pjit", "cond")
def saved_choice(body: Body, eqn: Any) -> Any:
    """A loop, call or branch whose choice is saved gives what the choice was made of; the number is made of it afterwards."""
    inside = _inside(eqn)
    results = [list(jax_compat.open_jaxpr(closed)[0].outvars) for closed in inside]
    makers = [_selectors_saved(body, closed) for closed in inside]
    if not any(makers):
        return None
    outvars = list(eqn.outvars)
    later: list[Any] = []
    for i in range(jax_compat.scan_counts(eqn)[1] if eqn.primitive.name == "scan" else 0, len(outvars)):
        given = [made.get(r[i]) if type(r[i]) is not Literal else None for made, r in zip(makers, results, strict=True)]
        maker = next((e for e in given if e is not None), None)
        if maker is None or not _is_saved(body, outvars[i]):
            continue
        value = maker.invars[_place(maker)]
        saved = [
            _number_like(r[i], value) if made is None else made.invars[_place(made)] if _alike(made, maker) else None
            for made, r in zip(given, results, strict=True)
        ]
        if None in saved:
            continue
        for r, atom in zip(results, saved, strict=True):
            r[i] = atom
        new = jax_compat.fresh_variable(outvars[i], typed=value)
        later.append(_selector(body, maker, new, outvars[i], eqn))
        outvars[i] = new
    if not later:
        return None
    body.following += later
    bodies = []
    for closed, r in zip(inside, results, strict=True):
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        bodies.append(jax_compat.rebuilt_jaxpr(closed, alive(jaxpr.eqns, r), r))
    return _with_bodies(eqn, bodies).replace(outvars=outvars)


@rewrite("scan", "jit", "pjit", "cond", early=True)
def choice_made_again(body: Body, eqn: Any) -> Any:
    """A loop, call or branch that is passed what was saved of a choice makes the number of it where it chooses."""
    inside = _inside(eqn)
    results = [v for closed in inside for v in jax_compat.open_jaxpr(closed)[0].outvars if type(v) is not Literal]
    skipped, last = int(eqn.primitive.name == "cond"), 0
    first = len(eqn.invars)
    if eqn.primitive.name == "scan":
        first, carry = jax_compat.scan_counts(eqn)
        last = first + carry
    found: dict[int, Any] = {}  # place of an operand -> the equation that makes it
    for i, operand in enumerate(eqn.invars[skipped:]):
        maker = None if type(operand) is Literal or first <= i < last else body.made.get(operand)
        params = [jax_compat.open_jaxpr(closed)[0].invars[i] for closed in inside]
        if maker is not None and id(maker) in body.simplifier.selectors and not any(p in results for p in params):
            found[i] = maker
    if not found:
        return None
    operands = list(eqn.invars)
    for i, maker in found.items():
        operands[skipped + i] = maker.invars[_place(maker)]
    return _with_bodies(eqn, [_choosing_again(body, closed, found) for closed in inside]).replace(invars=operands)


def _choosing_again(body: Body, closed: Any, found: Mapping[int, Any]) -> Any:
    """A jaxpr that is passed what numbers are made of, and makes them. found: {place of an input: what made it}."""
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    invars = list(jaxpr.invars)
    makers: dict[Any, Any] = {}  # parameter -> the equation that makes it in the body
    for i, maker in found.items():
        invars[i] = jax_compat.fresh_variable(jaxpr.invars[i], typed=maker.invars[_place(maker)])
        makers[jaxpr.invars[i]] = _selector(body, maker, invars[i], jaxpr.invars[i], maker)
    eqns: list[Any] = []
    for inner in jaxpr.eqns:
        for v in dict.fromkeys(v for v in inner.invars if type(v) is not Literal and v in makers):
            maker = makers.pop(v)
            eqns.append(_selector(body, maker, maker.invars[_place(maker)], v, inner))
        eqns.append(inner)
    return jax_compat.rebuilt_jaxpr(closed, eqns, jaxpr.outvars, invars=invars)


def _inside(eqn: Any) -> Sequence[Any]:
    return eqn.params["branches"] if eqn.primitive.name == "cond" else [eqn.params["jaxpr"]]


def _with_bodies(eqn: Any, bodies: Sequence[Any]) -> Any:
    params = {"branches": tuple(bodies)} if eqn.primitive.name == "cond" else {"jaxpr": bodies[0]}
    return eqn.replace(params={**eqn.params, **params})


def _selectors_saved(body: Body, closed: Any) -> dict[Any, Any]:
    """{result of a jaxpr: the equation that makes it}, of those by which it chooses, or has what is in it choose."""
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    makers = {e.outvars[0]: e for e in jaxpr.eqns if _is_selector(e)}
    chosen = [makers[v] for e in jaxpr.eqns if e.primitive.name == "cond" for v in e.invars[:1] if _is_in(v, makers)]
    return {
        v: makers[v]
        for v in jaxpr.outvars
        if _is_in(v, makers)
        and (id(makers[v]) in body.simplifier.selectors or any(_same(makers[v], other) for other in chosen))
    }


def _is_in(atom: Any, known: Mapping[Any, Any]) -> bool:
    return type(atom) is not Literal and atom in known


def _number_like(atom: Any, value: Any) -> Any:
    """The number 0 that a branch gives which does not choose, as one of the type of `value`; None for anything else."""
    if type(atom) is not Literal or np.shape(atom.val) or value.aval.shape:
        return None
    return jax_compat.literal(np.asarray(atom.val).astype(value.aval.dtype), value.aval)


def _is_selector(eqn: Any) -> bool:
    """Whether an equation makes of a value the number that a choice is made by."""
    if eqn.primitive.name == "convert_element_type":
        return type(eqn.invars[0]) is not Literal and eqn.invars[0].aval.dtype == bool
    return eqn.primitive.name == "clamp" and [type(v) is Literal for v in eqn.invars] == [True, False, True]


def _place(eqn: Any) -> int:
    """Which operand of such an equation is the value."""
    return 1 if eqn.primitive.name == "clamp" else 0


def _same(left: Any, right: Any) -> bool:
    """Whether two such equations make the same number."""
    return _alike(left, right) and left.invars[_place(left)] is right.invars[_place(right)]


def _alike(left: Any, right: Any) -> bool:
    """Whether they would make the same of the same value."""
    if left.primitive is not right.primitive or _numbers(left) != _numbers(right):
        return False
    values = left.invars[_place(left)].aval, right.invars[_place(right)].aval
    return bool(values[0] == values[1] and left.outvars[0].aval == right.outvars[0].aval)


def _numbers(eqn: Any) -> Sequence[int]:
    return [int(v.val) for v in eqn.invars if type(v) is Literal]


def _is_saved(body: Body, out: Any) -> bool:
    """Whether what a loop or call gives is read in the backward pass alone, or handed on to it."""
    users = body.users(out)
    if out in body.results and body.outermost:
        return False
    return all(e.primitive.name in ("scan", "jit", "pjit", "cond") and body.in_backward_pass(e) for e in users)


def _selector(body: Body, maker: Any, value: Any, out: Any, near: Any) -> Any:
    """The equation that makes `out` of `value` as `maker` does."""
    invars = [value if i == _place(maker) else v for i, v in enumerate(maker.invars)]
    new = maker.replace(invars=invars, outvars=[out], source_info=near.source_info)
    body.simplifier.selectors[id(new)] = new
    return new
