"""Rewrites of loops: what JAX takes out of a loop, where it differentiates it, is computed in the loop again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.lift.rewrite.arithmetic import ELEMENTWISE, loop_constants
from untrace.lift.rewrite.common_subexpressions import author_chain, equation_key, literal_key
from untrace.lift.rewrite.simplify import Body, rewrite, same_aval
from untrace.provenance.sites import Provenance

Literal = jax_compat.LITERAL_TYPE
_MOST_STEPS = 8  # of what is computed in a loop again: `1.0 - jnp.eye(3)` has six


@rewrite("jit", "pjit", early=True)
def unread_number(body: Body, eqn: Any) -> Any:
    """What a jitted function gives that is a number, and that nobody reads, goes: equinox's `filter_jit` has it give one."""
    jaxpr, _ = jax_compat.open_jaxpr(eqn.params["jaxpr"])
    kept = [
        i
        for i, (out, inner) in enumerate(zip(eqn.outvars, jaxpr.outvars, strict=True))
        if type(inner) is not Literal or out in body.results or body.users(out)
    ]
    if len(kept) == len(eqn.outvars) or not kept:
        return None
    new = jax_compat.rebuilt_jaxpr(eqn.params["jaxpr"], jaxpr.eqns, [jaxpr.outvars[i] for i in kept], kept=kept)
    return jax_compat.with_results(eqn, kept, {"jaxpr": new})


@rewrite("scan")
def broadcasts_of_a_loop(body: Body, eqn: Any) -> Any:
    """`x @ w + b` in the loop, not with a `b` that was broadcast before it."""
    found = _broadcast_before(body, eqn, _broadcasts)
    if not found:
        return None

    def narrowed(wide: Any, param: Any) -> Any:
        kept = dict(zip(map(int, wide.params["broadcast_dimensions"]), wide.invars[0].aval.shape, strict=True))
        shape = tuple(kept.get(d, 1) for d in range(len(param.aval.shape)))
        return wide.replace(params={**wide.params, "shape": shape}, outvars=[jax_compat.fresh_variable(param, shape)])

    return moved_inside(eqn, found, narrowed)


def moved_inside(eqn: Any, found: Mapping[Any, Any], made: Callable[[Any, Any], Any]) -> Any:
    """A loop that computes what it was passed, for each equation that reads it. found: parameter -> the equation that makes
    its operand, of one operand itself. made(equation, parameter): the equation inside, which makes a new variable."""
    closed = eqn.params["jaxpr"]
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    fresh = {param: jax_compat.fresh_variable(step.invars[0]) for param, step in found.items()}
    eqns: list[Any] = []
    for inner in jaxpr.eqns:
        names: dict[Any, Any] = {}
        for param in dict.fromkeys(v for v in inner.invars if type(v) is not Literal and v in found):
            step = made(found[param], param).replace(invars=[fresh[param]], source_info=inner.source_info)
            names[param] = step.outvars[0]
            eqns.append(step)
        eqns.append(inner.replace(invars=jax_compat.substituted(inner.invars, names)) if names else inner)
    invars = [fresh.get(v, v) for v in jaxpr.invars]
    operands = [found[p].invars[0] if p in found else v for p, v in zip(jaxpr.invars, eqn.invars, strict=True)]
    new = jax_compat.rebuilt_jaxpr(closed, eqns, jaxpr.outvars, invars=invars)
    return eqn.replace(invars=operands, params={**eqn.params, "jaxpr": new})


@rewrite("scan", early=True)
def masks_of_a_loop(body: Body, eqn: Any) -> Any:
    """`jnp.where(mask, x, y)` in the loop, not with a `mask` that was broadcast before it."""
    found = _broadcast_before(body, eqn, _chooses_by)
    if not found:
        return None
    return moved_inside(eqn, found, lambda wide, param: wide.replace(outvars=[jax_compat.fresh_variable(param)]))


def _broadcast_before(body: Body, eqn: Any, accepts: Callable[[Any, Any], bool]) -> dict[Any, Any]:
    """Which constants of a loop are broadcast before it, by the equation that does it, where each equation that reads one
    is one that `accepts` takes."""
    jaxpr, _ = jax_compat.open_jaxpr(eqn.params["jaxpr"])
    found: dict[Any, Any] = {}
    for param, operand in loop_constants(eqn):
        wide = body.maker(operand, "broadcast_in_dim")
        if wide is None or len(wide.invars) != 1 or wide.params["sharding"] is not None:
            continue
        source = wide.invars[0]
        if type(source) is Literal or not source.aval.shape or jax_compat.varying_axes(source.aval):
            continue
        users = [e for e in jaxpr.eqns if any(v is param for v in e.invars)]
        if users and all(accepts(e, param) for e in users):
            found[param] = wide
    return found


def _chooses_by(eqn: Any, param: Any) -> bool:
    """Whether an equation is a choice by `param` alone: also what is left of `jnp.where`."""
    if eqn.primitive.name in ("jit", "pjit"):
        jaxpr, _ = jax_compat.open_jaxpr(eqn.params["jaxpr"])
        inside = [inner for v, inner in zip(eqn.invars, jaxpr.invars, strict=True) if v is param]
        return len(jaxpr.eqns) == len(inside) == 1 and _chooses_by(jaxpr.eqns[0], inside[0])
    return eqn.primitive.name == "select_n" and [v is param for v in eqn.invars] == [True, False, False]


@rewrite("scan", early=True)
def constants_of_a_loop(body: Body, eqn: Any) -> Any:
    """A number that a loop gets as a constant, or an array of it, stands in its body, and what it gets twice comes once.

    JAX takes them out of a loop that it differentiates. The constants stay where they are, unused: nothing that closes
    over them can tell.
    """
    count, _ = jax_compat.scan_counts(eqn)
    closed = eqn.params["jaxpr"]
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    results = {v for v in jaxpr.outvars if type(v) is not Literal}
    read = {v for inner in jaxpr.eqns for v in inner.invars if type(v) is not Literal}
    names: dict[Any, Any] = {}
    filled: dict[Any, Any] = {}  # parameter -> the equation that makes an array of one number for it
    first: dict[Any, Any] = {}
    operands = [_once(body, v, eqn) for v in eqn.invars[:count]]
    for param, operand in zip(jaxpr.invars[:count], operands, strict=True):
        if param not in read or param in results:
            continue
        if type(operand) is Literal:
            if not np.shape(operand.val) and same_aval(operand.aval, param.aval):
                names[param] = operand
        elif operand in first and same_aval(first[operand].aval, param.aval):
            names[param] = first[operand]
        else:
            first[operand] = param
            wide = body.maker(operand, "broadcast_in_dim")
            number = body.scalar(operand)
            plain = wide is not None and wide.params["sharding"] is None and same_aval(operand.aval, param.aval)
            if (
                plain
                and number is not None
                and all(_computes(body, e) for e in jaxpr.eqns if any(v is param for v in e.invars))
            ):
                filled[param] = wide.replace(invars=[number])
    if not names and not filled and all(a is b for a, b in zip(operands, eqn.invars, strict=False)):
        return None
    eqns: list[Any] = []
    for inner in jaxpr.eqns:
        invars = jax_compat.substituted(inner.invars, names)
        own: dict[Any, Any] = {}  # each equation has one of its own: it is a part of what that is a part of
        for param in dict.fromkeys(v for v in invars if type(v) is not Literal and v in filled):
            own[param] = jax_compat.fresh_variable(param)
            eqns.append(filled[param].replace(outvars=[own[param]], source_info=inner.source_info))
        eqns.append(_with_inputs(inner, jax_compat.substituted(invars, own)))
    new = jax_compat.rebuilt_jaxpr(closed, eqns, jaxpr.outvars)
    return eqn.replace(invars=[*operands, *eqn.invars[count:]], params={**eqn.params, "jaxpr": new})


def _once(body: Body, atom: Any, loop: Any) -> Any:
    """What stands for a constant of a loop: where the turn computes `0.5 * step` twice, JAX takes out both. What two
    calls in it compute stays with each, and what two loops do with each loop."""
    if type(atom) is not Literal and atom in body.of_turns:
        return body.of_turns[atom]
    made = body.made.get(atom) if type(atom) is not Literal else None
    if made is None or _depth_in_turn(body, made, loop) != 1:
        return atom
    key = _expression(body, atom)
    if key is None:
        return atom
    first = body.of_turns.setdefault((loop, key), atom)
    if first is not atom:
        body.of_turns[atom] = first  # in the loop's backward part too
    return first


def _expression(body: Body, atom: Any) -> Hashable | None:
    """Equal for values that are computed alike of the same; None where more than a few equations do it."""
    found: list[Hashable] = []
    todo = [atom]
    while todo:
        atom = todo.pop()
        made = body.made.get(atom) if type(atom) is not Literal else None
        key = atom if made is None else equation_key(made, ())
        if len(found) > _MOST_STEPS or key is None:
            return None
        which = 0 if made is None else next(i for i, v in enumerate(made.outvars) if v is atom)
        found.append(literal_key(atom) if type(atom) is Literal else (key, which))
        todo.extend(made.invars if made is not None else ())
    return tuple(found)


@rewrite("scan", early=True)
def computed_before_a_loop(body: Body, eqn: Any) -> Any:
    """`1.0 - jnp.eye(3)`, made of numbers only, stands in the loop where its author wrote it, not before it.

    JAX takes it out of a loop that it differentiates, once for each time that the turn computes it.
    """
    closed = eqn.params["jaxpr"]
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    read = {v for inner in jaxpr.eqns for v in inner.invars if type(v) is not Literal}
    found: dict[Any, list[Any]] = {}
    for param, operand in loop_constants(eqn):
        if type(operand) is not Literal and param in read and same_aval(param.aval, operand.aval):
            steps = _steps_from_numbers(body, operand)
            if len(steps) > 1 and _depth_in_turn(body, steps[-1], eqn):
                found[param] = steps
    if not found:
        return None
    simplifier = body.simplifier
    backward = body.in_backward_pass(eqn)
    names: dict[Any, Any] = {}
    before: dict[int, list[Any]] = {}  # what comes before an equation of the body, by its place there
    for place, inner in enumerate(jaxpr.eqns):
        for param in dict.fromkeys(v for v in inner.invars if type(v) is not Literal and v in found and v not in names):
            own: dict[Any, Any] = {}
            start = place if backward else _place_of(found[param][-1], place, jaxpr.eqns, simplifier.provenance)
            for step in found[param]:
                outs = [jax_compat.fresh_variable(v) for v in step.outvars]
                source = inner.source_info if backward else step.source_info
                new = step.replace(invars=jax_compat.substituted(step.invars, own), outvars=outs, source_info=source)
                if step in simplifier.kept:
                    simplifier.keep(new)
                before.setdefault(start, []).append(new)
                own.update(zip(step.outvars, outs, strict=True))
            names[param] = own[found[param][-1].outvars[0]]
    eqns: list[Any] = []
    for place, inner in enumerate(jaxpr.eqns):
        eqns += before.get(place, ())
        eqns.append(_with_inputs(inner, jax_compat.substituted(inner.invars, names)))
    closed = jax_compat.rebuilt_jaxpr(closed, eqns, jaxpr.outvars)
    return eqn.replace(params={**eqn.params, "jaxpr": closed})


def _place_of(eqn: Any, place: int, eqns: Sequence[Any], provenance: Provenance) -> int:
    """Where the author's function came to an equation, at `place` or before: calls are told apart by that order."""
    *around, (code, instruction) = author_chain(eqn, provenance)
    while place:
        chain = author_chain(eqns[place - 1], provenance)
        if len(chain) <= len(around) or chain[: len(around)] != tuple(around):
            break
        if chain[len(around)][0] != code or chain[len(around)][1] <= instruction:
            break
        place -= 1
    return place


def _steps_from_numbers(body: Body, atom: Any) -> list[Any]:
    """The equations that compute `atom` of nothing but numbers, in order; [] where there is more to it."""
    steps: dict[int, Any] = {}
    todo = [atom]
    while todo:
        made = body.made.get(todo.pop())
        if made is None or made.effects or len(made.outvars) != 1 or len(steps) == _MOST_STEPS:
            return []
        if jax_compat.jaxprs_in(made) and not _computes(body, made):
            return []
        steps[made] = made
        todo.extend(v for v in made.invars if type(v) is not Literal and body.made.get(v) not in steps)
    return [e for e in body.eqns if e in steps]


def _depth_in_turn(body: Body, eqn: Any, loop: Any) -> int:
    """How deep in the author's function for a turn of the loop an equation before it belongs: 1 for what that function
    does itself, 2 for what one does that it calls; 0 where it is none of the turn's."""
    provenance = body.simplifier.provenance
    chain, around = author_chain(eqn, provenance), author_chain(loop, provenance)
    if chain and around and chain[: len(around)] == around:
        return len(chain) - len(around)
    # The equations of a turn may know nothing of what is around it.
    jaxpr, _ = jax_compat.open_jaxpr(loop.params["jaxpr"])
    turn = {code for e in jaxpr.eqns for code, _ in author_chain(e, provenance)[:1]}
    return len(chain) if chain and chain[0][0] in turn - {code for code, _ in around} else 0


@rewrite("scan", early=True)
def carry_that_stays(body: Body, eqn: Any) -> Any:
    """What every turn of a loop hands on as it came is a constant of the loop, as `jax.lax.scan` has it.

    The gradient of a sum that a loop carries (a log-likelihood) comes to the backward loop so.
    """
    consts, carry = jax_compat.scan_counts(eqn)
    closed = eqn.params["jaxpr"]
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    params, init = jaxpr.invars[consts : consts + carry], eqn.invars[consts : consts + carry]
    stays = [
        n
        for n, (param, operand) in enumerate(zip(params, init, strict=True))
        if jaxpr.outvars[n] is param and same_aval(param.aval, operand.aval) and body.may_be(eqn.outvars[n], operand)
    ]
    if not stays or eqn.effects or eqn.params.get("linear") is not None:
        return None
    moves = [n for n in range(carry) if n not in stays]

    def ordered(given: Sequence[Any]) -> list[Any]:
        state = given[consts : consts + carry]
        return [*given[:consts], *[state[n] for n in stays], *[state[n] for n in moves], *given[consts + carry :]]

    def without(given: Sequence[Any]) -> list[Any]:
        return [v for n, v in enumerate(given) if n >= carry or n in moves]

    for n in stays:
        body.substitute[eqn.outvars[n]] = init[n]
    new = jax_compat.rebuilt_jaxpr(closed, jaxpr.eqns, without(jaxpr.outvars), invars=ordered(jaxpr.invars))
    outvars = without(eqn.outvars)
    counts = consts + len(stays), len(moves), len(jaxpr.invars) - consts - carry, len(outvars) - len(moves)
    params = jax_compat.recounted_scan({**eqn.params, "jaxpr": new}, *counts)
    return eqn.replace(invars=ordered(eqn.invars), outvars=outvars, params=params)


def _with_inputs(eqn: Any, invars: Sequence[Any]) -> Any:
    """The equation with these inputs; itself where they are its own, for parts of idioms are known by it."""
    same = all(a is b for a, b in zip(invars, eqn.invars, strict=True))
    return eqn if same else eqn.replace(invars=list(invars))


@rewrite("while", early=True)
def numbers_of_a_while(body: Body, eqn: Any) -> Any:
    """A number that a `while_loop` gets as a constant stands in its functions, which cannot close over it."""
    params = dict(eqn.params)
    first = 0
    for name, constants in (("cond_jaxpr", "cond_nconsts"), ("body_jaxpr", "body_nconsts")):
        closed = params[name]
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        count = params[constants]
        read = {v for inner in jaxpr.eqns for v in inner.invars if type(v) is not Literal}
        results = {v for v in jaxpr.outvars if type(v) is not Literal}
        names = {
            param: operand
            for param, operand in zip(jaxpr.invars[:count], eqn.invars[first : first + count], strict=True)
            if type(operand) is Literal and param in read - results and same_aval(param.aval, operand.aval)
        }
        first += count
        if names:
            eqns = [_with_inputs(e, jax_compat.substituted(e.invars, names)) for e in jaxpr.eqns]
            params[name] = jax_compat.rebuilt_jaxpr(closed, eqns, jaxpr.outvars)
    changed = any(params[name] is not eqn.params[name] for name in ("cond_jaxpr", "body_jaxpr"))
    return eqn.replace(params=params) if changed else None


def _computes(body: Body, eqn: Any) -> bool:
    """Whether an equation takes an array for what is in it: a loop, a call of the author's or an idiom keeps what it is given."""
    if eqn in body.simplifier.kept:
        return False
    if eqn.primitive.name in ("jit", "pjit"):
        return jax_compat.is_library_jaxpr(eqn.params["jaxpr"])
    return eqn.primitive.name in ELEMENTWISE or eqn.primitive.name == "select_n"


def _broadcasts(eqn: Any, atom: Any) -> bool:
    """Whether an operation would broadcast `atom` by itself: the other operand has the shape of the result."""
    if eqn.primitive.name not in ELEMENTWISE:
        return False
    shape = eqn.outvars[0].aval.shape
    return any(v is not atom and type(v) is not Literal and v.aval.shape == shape for v in eqn.invars)
