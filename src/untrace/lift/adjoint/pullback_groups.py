"""Derivatives of library functions that JAX does not keep as calls (`jax.nn.softmax`): two groups of equations, one in the
forward and one in the backward pass, which have the place in the author's code and the function entered there in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

from untrace.ir.callees import output_of
from untrace.ir.nodes import Constant, Equation, Library, Literal, Primitive, Value
from untrace.lift.recognise import beforehand, library, signatures
from untrace.lift.recognise.engine import Guess, Matcher, templates
from untrace.lift.recognise.idioms.written import call_of, given_arguments
from untrace.lift.recognise.patterns import NotAScalar, pattern_of, template

# Fewer equations than the call alone would leave: it reads better what they compute.
_LEAST = 5
_MOST_INPUTS = 3
_MOST_PAIRED = 6  # of so many ends of backward parts two may be those of one call
# Primitives that compute nothing.
SHAPES = frozenset({"broadcast_in_dim", "reshape", "squeeze", "convert_element_type"})


@dataclass
class _Group:
    """What may be the derivative of one call: the last equation of the forward part, those of the backward part (one for
    each operand that it is the derivative for), all of them, what they read."""

    forward: Equation
    backward: tuple[Equation, ...]
    equations: list[Equation]
    inputs: list[Any]
    cotangent: Value


def lift_groups(m: Matcher, replace: Any) -> None:
    """Makes `jax.vjp` of the groups of equations in a function that are derivatives of library functions."""
    for group in list(_groups(m)):
        if any(e in m.consumed or not m.free(e) for e in group.equations):
            continue
        any(_try(m, guess, group, replace) for guess in _guesses(m, group))


def by_call(m: Matcher) -> Iterator[tuple[list[Equation], set[Equation]]]:
    """The equations that are left of each place where a library function is called, and the ids of the backward ones."""
    places: dict[Any, list[Equation]] = {}
    for equation in m.equations:
        if isinstance(equation.callee, Primitive) and equation.origin is not None and equation not in m.consumed:
            site = m.site(equation)
            if site.library is not None:
                places.setdefault((site.library, site.frames), []).append(equation)
    for equations in places.values():
        backward = {e for e in equations if m.site(e).phase == "backward"}
        if 0 < len(backward) < len(equations):
            yield equations, backward


def _groups(m: Matcher) -> Iterator[_Group]:
    for equations, backward in by_call(m):
        if len(equations) > _LEAST:
            yield from _groups_of(m, equations, backward)


def _groups_of(m: Matcher, equations: Sequence[Equation], backward: set[Equation]) -> Iterator[_Group]:
    """The groups among the equations of one place, which a loop of the author's may have passed several times."""
    members = {e for e in equations}
    forward = [e for e in equations if e not in backward]
    ends = [e for e in forward if len(e.outputs) == 1 and m.is_used_outside(e.outputs[0], equations)]
    single = []
    for last in equations:
        if last not in backward or len(last.outputs) != 1 or not m.is_used_outside(last.outputs[0], equations):
            continue
        single.extend((one,) for one in (last, *added_up(m, last, backward)))
    pairs = [a + b for a, b in combinations(single, 2) if a != b] if len(single) <= _MOST_PAIRED else []
    for lasts in (*pairs, *single):
        whole = list({e: e for last in lasts for e in behind(m, last, members)}.values())
        inputs, given = _read_by(m, whole, members, backward)
        if len(given) != 1 or not len(lasts) <= len(inputs) <= _MOST_INPUTS:
            continue
        for first in ends:
            alone = behind(m, first, members)
            both = {e for e in (*alone, *whole)}
            needed = [e for e in equations if e in both]
            read, others = _read_by(m, needed, members, backward)
            if _steps(needed) - _steps(alone) >= _LEAST and set(read) == set(inputs) and others == given:
                yield _Group(first, lasts, needed, read, given[0])


def _steps(equations: Sequence[Equation]) -> int:
    """How many equations compute something."""
    return sum(e.callee.name not in SHAPES for e in equations)


def added_up(m: Matcher, equation: Equation, backward: set[Equation]) -> list[Equation]:
    """Where an equation adds to what another use of the same array gave: the equation that makes its own part."""
    if equation.callee.name not in ("add_any", "add"):
        return []
    makers = [m.made.get(a) for a in equation.inputs if type(a) is Value]
    own = [e for e in makers if e is not None and e in backward and len(e.outputs) == 1]
    return own if len(own) == 1 else []


def behind(m: Matcher, equation: Equation, members: set[Equation]) -> list[Equation]:
    """An equation and those members that what it reads comes from."""
    found = {equation: equation}
    stack = [equation]
    while stack:
        for atom in stack.pop().inputs:
            maker = m.made.get(atom) if type(atom) is Value else None
            if maker is not None and maker in members and maker not in found:
                found[maker] = maker
                stack.append(maker)
    return list(found.values())


def _read_by(
    m: Matcher, equations: Sequence[Equation], members: set[Equation], backward: set[Equation]
) -> tuple[list[Any], list[Any]]:
    """(what the forward equations read from outside, what only the backward ones do)."""
    ours: dict[Any, None] = {}
    others: dict[Any, None] = {}
    for equation in sorted(equations, key=m.position):
        for atom in equation.inputs:
            if type(atom) is Value and m.made.get(atom) not in members:
                (others if equation in backward else ours)[atom] = None
    return list(ours), [a for a in others if a not in ours]


def _guesses(m: Matcher, group: _Group) -> Iterator[Guess]:
    call = call_of(m, group.forward)
    if call is None:
        return
    path, site = call
    facts = signatures.Facts(
        [e.origin for e in group.equations], [a.aval for a in group.inputs], [output_of(group.forward).aval]
    )
    given = given_arguments(path, site)
    for known in [given, {}] if given else [{}]:
        yield from signatures.guesses(path, group.inputs, facts, known)
    yield Guess(path, tuple(group.forward.inputs))  # numbers are among its arguments


def _try(m: Matcher, guess: Guess, group: _Group, replace: Any) -> bool:
    call = call_to_try(guess, [group.cotangent])
    if call is None:
        return False
    for lasts in permutations(group.backward):
        for varied in combinations(range(call.operands), len(lasts)):
            pattern = pattern_of(
                m.lifter.patterns, call.path, (varied, call.args, call.given), call.kwargs, call.inputs
            )
            if pattern is None:
                return False
            anchors = (group.forward, *lasts)
            found = m.lay_over(pattern, call.inputs, anchors)
            if found is None or not m.before(call.inputs[: call.operands], group.forward):
                continue
            parts = divided(m, found, group.cotangent)
            if group.forward in parts[0] and all(e in parts[1] for e in lasts):
                replace(m, call.callee(varied), call.inputs[: call.operands], [group.cotangent], parts, anchors)
                return True
    return False


@dataclass(slots=True)
class PulledCall:
    """`jax.vjp` of a guessed call, to be traced: its path, its arguments with slots for the inputs, of which the first
    `operands` are the call's own, and `given`, the cotangents."""

    path: str
    args: Any
    kwargs: dict[str, Any]
    inputs: list[Any]
    operands: int
    given: tuple[Any, ...]

    def callee(self, varied: Sequence[int]) -> Library:
        """The callee without its body, of the derivative for the operands `varied`."""
        none: Any = None  # until `pullbacks.replace` puts one there
        return Library(self.path, (tuple(varied), self.args), self.kwargs, none)


def call_to_try(guess: Guess, cotangents: Sequence[Any], defaults: bool = False) -> PulledCall | None:
    """The guess made ready; None where it needs a number that is none. cotangents: None for a result that is
    auxiliary. defaults: whether arguments that say what is meant without them stay."""
    known = library.facts(guess.path)
    if known.bare and len(cotangents) > 1 or not beforehand.takes(known, guess.args, guess.kwargs):
        return None
    inputs: list[Any] = []
    places: dict[Value | Constant, int] = {}
    try:
        args, kwargs = templates(guess, inputs, places)
    except NotAScalar:
        return None
    if not defaults:
        kwargs = {k: v for k, v in kwargs.items() if not is_default(guess.path, k, v)}
    operands = len(inputs)
    given = tuple([_typed(a) if type(a) is Literal else template(a, inputs, places) for a in cotangents])
    return PulledCall(f"vjp.{guess.path}", args, dict(kwargs), inputs, operands, given)


def _typed(literal: Literal) -> Any:
    """A cotangent that is a number: of the type of the result, as `jax.grad` gives it."""
    return literal.value if literal.aval.weak_type else literal.aval.dtype.type(literal.value)


def divided(m: Matcher, equations: list[Equation], cotangent: Value) -> tuple[list[Equation], list[Equation]]:
    """Equations in program order, those that need the cotangent apart."""
    after: set[Any] = {cotangent}
    parts: tuple[list[Equation], list[Equation]] = ([], [])
    for equation in sorted(equations, key=m.position):
        late = not after.isdisjoint(equation.inputs)
        parts[late].append(equation)
        after.update(equation.outputs if late else ())
    return parts


def is_default(path: str, name: str, value: Any) -> bool:
    """Whether an argument says what is meant without it: then the function may stand by its name alone."""
    if path.startswith("method."):
        return False
    signature = library.signature(path)
    known = None if signature is None else signature.parameters.get(name)
    return known is not None and type(known.default) is type(value) and known.default == value


def has_batches(eqn: Any) -> bool:
    """Whether it adds at other places in each of several arrays, which no `x.at[i].add(y)` says."""
    numbers = eqn.params.get("dimension_numbers")
    return eqn.primitive.name == "scatter-add" and bool(numbers.operand_batching_dims)
