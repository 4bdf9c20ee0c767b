"""Rewrites of choices into calls of `jnp.where`, which broadcasts by itself."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from untrace import jax_compat
from untrace.ir.nodes import Slot
from untrace.lift.recognise.scalars import python_scalar
from untrace.lift.rewrite.arithmetic import choice_of_two, is_value, narrowed
from untrace.lift.rewrite.call_bodies import call_instead, library_call_instead, spliced
from untrace.lift.rewrite.simplify import Body, rewrite

Literal = jax_compat.LITERAL_TYPE


@rewrite("select_n")
def where_with_scalar(body: Body, eqn: Any) -> Any:
    if len(eqn.invars) != 3:
        return None
    which, no, yes = eqn.invars
    if type(which) is Literal or which.aval.dtype != bool:
        return None
    numbers = [body.scalar(no), body.scalar(yes)]
    if (numbers[0] is None) == (numbers[1] is None):
        return None
    literal = numbers[0] or numbers[1]
    bare = any(type(a) is Literal for a in (no, yes)) and not jnp.issubdtype(literal.aval.dtype, jnp.inexact)
    if bare and _is_below_zero(body, which):
        return None  # `x[i]` chooses between an index and a number
    number = python_scalar(literal.val, literal.aval)
    if number is None or isinstance(number, complex):
        return None
    other = yes if numbers[0] is not None else no
    wide = body.maker(other, "broadcast_in_dim")
    if wide is not None and which.aval.shape and type(wide.invars[0]) is not Literal and not wide.invars[0].aval.shape:
        other = wide.invars[0]  # one number, which `jnp.where` broadcasts
    else:
        which = _before_broadcast(body, which)
    if not jax_compat.is_shaped_array(other.aval) or jax_compat.varying_axes(other.aval):
        return None
    cases = (Slot(1), number) if numbers[0] is not None else (number, Slot(1))
    return library_call_instead(eqn, "jnp.where", (Slot(0), *cases), [which, other])


@rewrite("select_n")
def where_of_numbers(body: Body, eqn: Any) -> Any:
    """A choice between two floating-point numbers, such as those of the derivative of `jnp.maximum`."""
    literals = [body.scalar(v) for v in eqn.invars[:0:-1]]
    if len(literals) != 2 or None in literals:
        return None
    which, out = eqn.invars[0], eqn.outvars[0].aval
    if type(which) is Literal or which.aval.dtype != bool or which.aval.shape != out.shape:
        return None
    if not isinstance(out.dtype, np.dtype):
        return None
    numbers = [python_scalar(v.val, v.aval) for v in literals]
    if any(type(n) is not float for n in numbers) or jax_compat.varying_axes(which.aval):
        return None
    if not out.weak_type:  # the first says of which type the result is
        numbers[0] = out.dtype.type(numbers[0])
    return call_instead(eqn, lambda c: [jnp.where(c, *numbers)], [which])


@rewrite("select_n")
def where_of_arrays(body: Body, eqn: Any) -> Any:
    if len(eqn.invars) != 3 or any(type(v) is Literal for v in eqn.invars):
        return None
    which, no, yes = eqn.invars
    if which.aval.dtype != bool or not isinstance(yes.aval.dtype, np.dtype):
        return None
    if jnp.issubdtype(yes.aval.dtype, jnp.integer):
        # `x[i]` chooses between an index and the one that it means when negative.
        if _is_below_zero(body, which) or _is_index_of_numpy(body, *eqn.invars):
            return None
    if any(not jax_compat.is_shaped_array(v.aval) or jax_compat.varying_axes(v.aval) for v in eqn.invars):
        return None
    inputs = [_before_broadcast(body, v) for v in (which, yes, no)]
    if jnp.broadcast_shapes(*[v.aval.shape for v in inputs]) != tuple(eqn.outvars[0].aval.shape):
        return None
    return library_call_instead(eqn, "jnp.where", (Slot(0), Slot(1), Slot(2)), inputs)


def _is_below_zero(body: Body, which: Any) -> bool:
    less = body.maker(which, "lt")
    return less is not None and is_value(body.scalar(less.invars[1]), 0)


def _is_index_of_numpy(body: Body, which: Any, index: Any, wrapped: Any) -> bool:
    """Whether this is what `x[i]` does with an array of NumPy's: which indices are negative is known before the trace."""
    added = body.maker(wrapped, "add")
    return which not in body.made and added is not None and added.invars[0] is index and index not in body.made


def _before_broadcast(body: Body, atom: Any) -> Any:
    """What `atom` is broadcast from, where NumPy's rules would broadcast it in the same way."""
    for _ in range(4):
        wide = body.maker(atom, "broadcast_in_dim")
        if wide is None or len(wide.invars) != 1 or type(wide.invars[0]) is Literal:
            return atom
        source = wide.invars[0]
        rank, inner = len(atom.aval.shape), len(source.aval.shape)
        if tuple(map(int, wide.params["broadcast_dimensions"])) != tuple(range(rank - inner, rank)) or not inner:
            return narrowed(body, atom)
        atom = source
    return atom


@rewrite("div")
def share_of_a_choice(body: Body, eqn: Any) -> Any:
    """The derivative of `jnp.minimum`, 1 or 0 over 2 or 1 where both are equal, as one choice."""
    out = eqn.outvars[0].aval
    if any(type(v) is Literal for v in eqn.invars) or str(out.dtype) not in ("float32", "float64") or out.weak_type:
        return None
    above, below = (_choice(body, v) for v in eqn.invars)
    if above is None or below is None or not all(map(body.used_once, eqn.invars)):
        return None
    (which, *numbers), (equal, *parts) = above, below
    if numbers != [1.0, 0.0] or parts != [2.0, 1.0] or which.aval.shape != equal.aval.shape or not out.shape:
        return None

    def call(c: Any, e: Any) -> list[Any]:
        return [jnp.where(c, jnp.where(e, out.dtype.type(0.5), 1.0), 0.0)]

    return spliced(body, eqn, call, [which, equal])


def _choice(body: Body, atom: Any) -> tuple[Any, float, float] | None:
    """(what is asked, the number where it is so, the other) of a choice between two numbers."""
    found = choice_of_two(body, atom)
    if found is None or type(found[0]) is Literal:
        return None
    which, no, yes = found
    one, other = body.scalar(yes), body.scalar(no)
    if one is None or other is None or which.aval.dtype != bool:
        return None
    return which, float(np.asarray(one.val)), float(np.asarray(other.val))


@rewrite("add")
def choice_of_negative(body: Body, eqn: Any) -> Any:
    """`where(c, d, 0 - d)` for `where(c, d, 0) + -where(c, 0, d)`, the derivative of `jnp.abs` in `logsumexp`.

    `0 - d` is `0 + -d` also where d is zero, and `d + -0.0` is d.
    """
    out = eqn.outvars[0].aval
    negated = body.maker(eqn.invars[1], "neg") if type(eqn.invars[1]) is not Literal else None
    if negated is None or type(negated.invars[0]) is Literal or str(out.dtype) not in ("float32", "float64"):
        return None
    first, second = [_one_or_zero(body, v) for v in (eqn.invars[0], negated.invars[0])]
    if first is None or second is None or first[:2] != second[:2] or (first[2], second[2]) != (True, False):
        return None
    which, d, _ = first
    if tuple(d.aval.shape) != tuple(out.shape) or which.aval.shape != out.shape or d.aval.weak_type or out.weak_type:
        return None
    return spliced(body, eqn, lambda c, x: [jnp.where(c, x, 0.0 - x)], [which, d])


def _one_or_zero(body: Body, atom: Any) -> tuple[Any, Any, bool] | None:
    """(what is asked, an array, whether that is taken where it is so) of a choice between the array and 0.0."""
    found = choice_of_two(body, atom)
    if found is None or type(found[0]) is Literal:
        return None
    which, no, yes = found
    for array, other, positive in ((yes, no, True), (no, yes, False)):
        if type(array) is not Literal and is_value(body.scalar(other), 0.0):
            return which, array, positive
    return None


_CALLS = ("cond", "jit", "pjit")


@rewrite(*_CALLS, early=True)
def handed_on(body: Body, eqn: Any) -> Any:
    """What every branch gives as it was passed to it is that, and no result: JAX saves so for the backward pass what both
    branches need there. `lax.cond` takes it out itself, and `jax.jit` around it."""
    # What the author's jitted function gives back as it came is a part of what he has it return.
    places = _handed_on(eqn, False)
    found: dict[int, Any] = {}
    for i, (out, place) in enumerate(zip(eqn.outvars, places, strict=True)):
        if place is not None and body.may_be(out, eqn.invars[place]):
            found[i] = eqn.invars[place]
    kept = [i for i in range(len(eqn.outvars)) if i not in found]
    if not found or not kept:
        return None
    for i, operand in found.items():
        body.substitute[eqn.outvars[i]] = operand
    new = [
        jax_compat.rebuilt_jaxpr(closed, inner.eqns, [inner.outvars[i] for i in kept], kept=kept)
        for closed in _bodies(eqn)
        for inner, _ in [jax_compat.open_jaxpr(closed)]
    ]
    is_choice = eqn.primitive.name == "cond"
    return jax_compat.with_results(eqn, kept, {"branches": tuple(new)} if is_choice else {"jaxpr": new[0]})


def _handed_on(eqn: Any, chosen: bool) -> list[int | None]:
    """For each output of a choice or a call the operand that it is, since a choice hands that on; None where it is none.

    chosen: whether a choice did already.
    """
    is_choice = eqn.primitive.name == "cond"
    each = [_inputs_of(jax_compat.open_jaxpr(closed)[0], chosen or is_choice) for closed in _bodies(eqn)]
    first, *others = each
    alike = [place if all(o[i] == place for o in others) else None for i, place in enumerate(first)]
    return [None if place is None else place + is_choice for place in alike]


def _inputs_of(jaxpr: Any, chosen: bool) -> list[int | None]:
    """For each result of a jaxpr the input that it is, where choices hand it on; None where it is none."""
    places = {v: i for i, v in enumerate(jaxpr.invars)}
    wanted = {v for v in jaxpr.outvars if type(v) is not Literal and v not in places}
    given: dict[Any, Any] = {}  # what a choice or a call hands on -> the same before it
    if wanted:
        for eqn in reversed(jaxpr.eqns):
            if eqn.primitive.name in _CALLS and not wanted.isdisjoint(eqn.outvars):
                for out, place in zip(eqn.outvars, _handed_on(eqn, chosen), strict=True):
                    if place is not None and out in wanted and type(eqn.invars[place]) is not Literal:
                        given[out] = eqn.invars[place]
                        wanted.add(eqn.invars[place])
    found: list[int | None] = []
    for atom in jaxpr.outvars:
        known = chosen
        while type(atom) is not Literal and atom in given:
            atom, known = given[atom], True
        found.append(places.get(atom) if known and type(atom) is not Literal else None)
    return found


def _bodies(eqn: Any) -> Any:
    return eqn.params["branches"] if eqn.primitive.name == "cond" else [eqn.params["jaxpr"]]
