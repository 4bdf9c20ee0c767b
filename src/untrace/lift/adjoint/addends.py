"""Sums of cotangents that begin with zeros, so that one function serves all calls of a backward part.

    d_x = norm_bwd(d_y, d_x)                          d_x = norm_bwd(d_y, d_x)
    ...                                       ->      ...
    d_scaled = d_y * scale                            d_x = norm_bwd(d_y, jnp.zeros((4, 8)))
    d_x = d_scaled * inverse + var_vjp(...)[0]

JAX adds what an operation gives for its input to what the input's other uses gave. The last layer's input has no other
use, so that one addition is missing there, and its backward part is another function. Zero is added in its place; XLA
takes that out again, which the proof shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.ir.facts import Addend
from untrace.ir.nodes import Equation, Primitive, Value
from untrace.jaxprs.equal.comparer import Comparer
from untrace.lift.outline.activations import Call
from untrace.lift.outline.pieces import Piece, renamed, same_bodies
from untrace.provenance.sites import Provenance

_FEWEST = 6  # equations, below which a function says too little for it
_SUMS = ("add", "add_any")


def sums_outside(root: Call, equations: list[Equation]) -> list[Equation]:
    """The equations, with sums of what a backward part gives and of what others gave behind it, in the function around it;
    changes `root`, the calls in them.

    The first part that gives a cotangent of a value has nothing to add it to: with the sums outside, it is one of all.
    """
    if not _has_backward(root):
        return equations
    readers: dict[Any, list[int]] = {}
    makers = {o: at for at, e in enumerate(equations) for o in e.outputs if o is not None}
    for at, equation in enumerate(equations):
        for atom in equation.inputs:
            if type(atom) is Value:
                readers.setdefault(atom, []).append(at)
    changed = False

    def is_outside(at: int, inside: set[int]) -> bool:
        equation = equations[at]
        if not isinstance(equation.callee, Primitive) or equation.callee.name not in _SUMS:
            return False
        if any(reader in inside for reader in readers.get(equation.outputs[0], ())):
            return False
        own = [makers.get(a) in inside for a in equation.inputs if type(a) is Value]
        if len(own) != 2 or own[0] == own[1]:
            return False
        other = equation.inputs[own.index(False)]
        return sum(reader in inside for reader in readers[other]) == 1

    def visit(call: Call) -> tuple[set[int], list[int]]:
        """The equations inside, and those that go behind it."""
        nonlocal changed
        inside: set[int] = set()
        items: list[int | Call] = []
        for item in call.items:
            items.append(item)
            if isinstance(item, int):
                inside.add(item)
            else:
                inner, behind = visit(item)
                inside.update(inner)
                inside.update(behind)
                items.extend(behind)
        behind = []
        for item in reversed(items) if call.backward else ():
            if type(item) is int and is_outside(item, inside):
                behind.append(item)
                inside.remove(item)
        call.items = [i for i in items if i not in behind] if behind else items
        changed = changed or bool(behind)
        return inside, behind[::-1]

    visit(root)
    if not changed:
        return equations
    order: list[int] = []
    _renumber(root, order)
    return [equations[at] for at in order]


def _has_backward(call: Call) -> bool:
    return call.backward or any(not isinstance(i, int) and _has_backward(i) for i in call.items)


def _renumber(call: Call, order: list[int]) -> None:
    """Numbers the equations of a call as they stand in it now. order: gets the old numbers."""
    for place, item in enumerate(call.items):
        if isinstance(item, int):
            call.items[place] = len(order)
            order.append(item)
        else:
            _renumber(item, order)


def missing_addends(shapes: Sequence[Any], around: Mapping[Any, Any], provenance: Provenance) -> list[Addend]:
    """The sums that are missing in some of these backward parts beside those of other calls of the same function.

    around: by call the one that it stands in.
    """
    by_code: IdentityMap[CodeType, list[Any]] = IdentityMap()
    for shape in shapes:
        if len(shape.pieces[0].items) >= _FEWEST:
            by_code.setdefault(shape.pieces[0].call.callee.code, []).append(shape)
    comparer = Comparer()
    found: list[Addend] = []
    for several in by_code.values():
        for shape in several:
            size = len(shape.pieces[0].items)
            wholes = [s for s in several if len(s.pieces[0].items) == size + 1]
            for piece in shape.pieces if wholes else ():
                beside = _beside(around.get(piece), piece, provenance)
                addend = next((a for whole in wholes for a in _missing(whole.pieces[0], piece, comparer, beside)), None)
                if addend is not None:
                    found.append(addend)
    return found


def _beside(outer: Any, piece: Any, provenance: Provenance) -> tuple[Any, int] | None:
    """The equation before which zeros for a call are made, and how many of its frames are theirs; None for where the program
    begins."""
    first = piece.scan.equations[piece.start]
    caller, callee = piece.call.frame, piece.call.callee
    if outer is None or caller is None or not isinstance(first.callee, Primitive):
        return None
    frames = provenance.site(first.origin).frames
    for i in range(1, len(frames)):
        if frames[i].code is callee.code and frames[i - 1].code is caller.code:
            return first.origin, i
    return None


def _missing(whole: Any, part: Any, comparer: Comparer, beside: tuple[Any, int] | None) -> Iterator[Addend]:
    """What makes `part` a call like `whole`, where there is such a sum."""
    equations = whole.scan.equations
    read: dict[Value, int] = {}
    for item in whole.items:
        for atom in equations[item].inputs if type(item) is int else item.inputs:
            if type(atom) is Value:
                read[atom] = read.get(atom, 0) + 1
    for place, item in enumerate(whole.items):
        if type(item) is not int or not place or type(part.items[place - 1]) is not int:
            continue
        total = equations[item]
        if not isinstance(total.callee, Primitive) or total.callee.name not in _SUMS:
            continue
        outside = [type(a) is Value and a not in whole.numbers and read[a] == 1 for a in total.inputs]
        if sum(outside) != 1 or whole.numbers[total.outputs[0]] in whole.shape.results:
            continue
        inner = total.inputs[outside.index(False)]
        readers = _readers(whole, part, comparer, place, inner)
        before = part.scan.equations[part.items[place - 1]]
        if readers and isinstance(before.callee, Primitive):
            equation, operand = readers[0]
            yield Addend(
                before.origin,
                equation.invars[operand],
                total.origin,
                outside[0],
                tuple(readers),
                *(beside or (None, 0)),
            )


def _readers(whole: Any, part: Any, comparer: Comparer, place: int, inner: Any) -> list[tuple[Any, int]]:
    """(jaxpr equation of `part`, operand) for those that read the sum at `place` in `whole`; [] where the two differ in more
    than that sum, for which `inner` stands."""
    ours, theirs = whole.scan.equations, part.scan.equations
    total = ours[whole.items[place]].outputs[0]
    rest = Piece(whole.call)
    rest.items = [item for at, item in enumerate(whole.items) if at != place]
    if any(total in item.passed() for item in rest.items if type(item) is not int):
        return []
    summed = {item: renamed(ours[item], {total: inner}) for item in rest.items if type(item) is int}
    rest.number(summed, whole.first)
    if not same_bodies(comparer, rest, part, summed, theirs):
        return []
    found = [
        (theirs[b], operand)
        for a, b in zip(rest.items, part.items, strict=True)
        if type(a) is int
        for operand, atom in enumerate(ours[a].inputs)
        if atom is total
    ]
    return [(e.origin, n) for e, n in found] if all(isinstance(e.callee, Primitive) for e, _ in found) else []


def with_addends(closed: Any, addends: Sequence[Addend], padding: list[tuple[Any, int]]) -> Any:
    """A jaxpr with these sums; the same object where it holds none of their equations. padding: gets the equations of the
    zeros, with how many frames of their source are theirs."""
    after = {a.after: a for a in addends}
    beside: dict[JaxprEqn | None, list[Addend]] = {}
    for addend in addends:
        beside.setdefault(addend.beside, []).append(addend)
    changed = {(equation, operand): a for a in addends for equation, operand in a.readers}
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    own = set(jaxpr.eqns)
    eqns: list[Any] = []
    zeros: dict[Addend, JaxprEqn] = {}
    sums: dict[Addend | None, Any] = {}

    def make_zeros(equation: Any) -> None:
        for addend in beside.get(equation, ()):
            if addend.after in own:
                zeros[addend] = zero = jax_compat.zeros_equation(addend.variable, addend.like, equation)
                eqns.append(zero)
                padding.append((zero, addend.depth))

    make_zeros(None)
    for eqn in jaxpr.eqns:
        make_zeros(eqn)
        new = jax_compat.with_inner_jaxprs(eqn, lambda inner: with_addends(inner, addends, padding))
        invars = [sums.get(changed.get((eqn, n)), v) for n, v in enumerate(eqn.invars)]
        if any(a is not b for a, b in zip(invars, eqn.invars, strict=True)):
            new = new.replace(invars=invars)
        eqns.append(new)
        addend = after.get(eqn)
        if addend is not None:
            sums[addend] = total = jax_compat.fresh_variable(addend.variable)
            operands = [zeros[addend].outvars[0], addend.variable]
            eqns.append(
                addend.like.replace(
                    invars=operands if addend.first else operands[::-1], outvars=[total], source_info=eqn.source_info
                )
            )
    if len(eqns) == len(jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
        return closed
    return jax_compat.rebuilt_jaxpr(closed, eqns, jaxpr.outvars)
