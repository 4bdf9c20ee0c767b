"""Rewrites of what a loop or call saves of a choice for the backward pass: the truth value, not the number made of it.

`lax.cond(p, ...)` chooses by the number 0 or 1 that it makes of `p`, and `lax.switch(i, ...)` by an `i` that it clamps. JAX
saves that number, by which no public function chooses: those would make another number of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.lift.rewrite.simplify import Body, alive, rewrite

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
    dropped: set[int] = set()
    for i in range(_counts(eqn)[1], len(outvars)):
        given = [made.get(r[i]) if type(r[i]) is not Literal else None for made, r in zip(makers, results, strict=True)]
        maker = next((e for e in given if e is not None), None)
        if maker is None or not _is_saved(body, outvars[i]):
            continue
        value = maker.invars[_place(maker)]
        if all(e is not None and e.invars[_place(e)] in _inputs(c) for e, c in zip(given, inside, strict=True)):
            operand = _passed(eqn, value)
            if operand is not None:  # then it need not be given back
                later.append(_selector(body, maker, operand, outvars[i], eqn))
                dropped.add(i)
            continue
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
    kept = [i for i in range(len(outvars)) if i not in dropped]
    if not later or not kept:
        return None
    body.following += later
    return _with_results(eqn, outvars, results, kept)


def _with_results(eqn: Any, outvars: Sequence[Any], results: Sequence[Sequence[Any]], kept: Sequence[int]) -> Any:
    """A loop, call or choice with other outputs, and results of its bodies, of which it has only some."""
    bodies = []
    for closed, given in zip(_inside(eqn), results, strict=True):
        given = [given[i] for i in kept]
        bodies.append(jax_compat.rebuilt_jaxpr(closed, alive(_equations(closed), given), given, kept=kept))
    new = _with_bodies(eqn.replace(outvars=outvars), bodies)
    if len(kept) == len(outvars):
        return new
    if eqn.primitive.name != "scan":
        return jax_compat.with_results(new, kept, {})
    consts, carry = _counts(eqn)
    counts = consts, carry, len(eqn.invars) - consts - carry, len(kept) - carry
    return new.replace(outvars=[outvars[i] for i in kept], params=jax_compat.recounted_scan(new.params, *counts))


def _counts(eqn: Any) -> tuple[int, int]:
    """(constants, carries) of a loop, which anything else has none of."""
    return jax_compat.scan_counts(eqn) if eqn.primitive.name == "scan" else (0, 0)


def _inputs(closed: Any) -> Sequence[Any]:
    return jax_compat.open_jaxpr(closed)[0].invars


def _equations(closed: Any) -> Sequence[Any]:
    return jax_compat.open_jaxpr(closed)[0].eqns


def _passed(eqn: Any, value: Any) -> Any:
    """What is passed to a loop as a stack, or to a call, for an input of its body; None for anything else."""
    if eqn.primitive.name == "cond":
        return None
    place = list(_inputs(eqn.params["jaxpr"])).index(value)
    operand = eqn.invars[place]
    return None if type(operand) is Literal or place < sum(_counts(eqn)) else operand


@rewrite("scan", "jit", "pjit", "cond", early=True)
def choice_made_again(body: Body, eqn: Any) -> Any:
    """A loop, call or branch that is passed what was saved of a choice makes the number of it where it chooses."""
    inside = _inside(eqn)
    results = [v for closed in inside for v in jax_compat.open_jaxpr(closed)[0].outvars if type(v) is not Literal]
    skipped = int(eqn.primitive.name == "cond")
    first, carry = _counts(eqn)
    found: dict[int, Any] = {}  # place of an operand -> the equation that makes it
    for i, operand in enumerate(eqn.invars[skipped:]):
        maker = None if type(operand) is Literal or first <= i < first + carry else body.made.get(operand)
        if maker is None or any(_inputs(closed)[i] in results for closed in inside):
            continue
        # Also one that JAX made before a loop, since it is the same in every turn.
        if maker in body.simplifier.selectors or _is_selector(maker) and any(_chooses_by(c, i) for c in inside):
            found[i] = maker
    if not found:
        return None
    operands = list(eqn.invars)
    for i, maker in found.items():
        operands[skipped + i] = maker.invars[_place(maker)]
    return _with_bodies(eqn, [_choosing_again(body, closed, found) for closed in inside]).replace(invars=operands)


def _chooses_by(closed: Any, place: int) -> bool:
    """Whether a jaxpr, or one in it, has a choice by the very number that it is passed."""
    param = _inputs(closed)[place]
    for eqn in _equations(closed):
        for i, atom in enumerate(eqn.invars):
            if atom is not param or eqn.primitive.name not in ("scan", "jit", "pjit", "cond"):
                continue
            skipped = int(eqn.primitive.name == "cond")
            if i < skipped or any(_chooses_by(inner, i - skipped) for inner in _inside(eqn)):
                return True
    return False


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
        and (makers[v] in body.simplifier.selectors or any(_same(makers[v], other) for other in chosen))
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
    if eqn.primitive.name not in ("convert_element_type", "clamp") or eqn.outvars[0].aval.dtype != np.int32:
        return False
    if eqn.primitive.name == "convert_element_type":
        return type(eqn.invars[0]) is not Literal and eqn.invars[0].aval.dtype == bool
    return [type(v) is Literal for v in eqn.invars] == [True, False, True]


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
    body.simplifier.selectors[new] = new
    return new
