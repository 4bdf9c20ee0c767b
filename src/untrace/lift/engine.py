"""Verified lifting: groups of equations become calls of library functions, each proven by tracing the call.

An idiom looks at one equation (the *anchor*: the last of its group) and guesses a call. The call is traced on the
types of its inputs, and the jaxpr that JAX gives is laid over the equations that end at the anchor: where every
primitive, parameter, literal and input fits, and nothing else needs a value from inside, the group is replaced. So
a guess may be bold; a wrong one costs a trace (remembered) and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from untrace import jax_compat
from untrace.ir.nodes import Constant, Equation, Function, Library, Literal, Program, Slot, Value, walk_functions
from untrace.lift import library
from untrace.lift.scalars import python_scalar
from untrace.prove.compare import Comparer


@dataclass(slots=True)
class Guess:
    """A call that may be what the equations up to the anchor do. Arguments are atoms of the IR or plain values."""

    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


Idiom = Callable[["Matcher", Equation], Iterator[Guess]]
IDIOMS: dict[str, list[Idiom]] = {}


def idiom(*anchors: str) -> Callable[[Idiom], Idiom]:
    """Registers an idiom for groups that end in one of these primitives; those registered first are tried first."""

    def register(function: Idiom) -> Idiom:
        for anchor in anchors:
            IDIOMS.setdefault(anchor, []).append(function)
        return function

    return register


@dataclass(slots=True)
class Pattern:
    """What a call traces to: its equations, by the variables that they bind, and its inputs and outputs."""

    inputs: dict[Any, int]
    consts: dict[Any, Any]
    made_by: dict[Any, tuple[Any, int]]
    outvars: Sequence[Any]
    size: int


class Lifter:
    """Lifts the functions of one program. Patterns are remembered here, and with them every failed guess.

    `refused`: ids of jaxpr equations that must stay as they are (a lift of them was proven wrong).
    """

    def __init__(self, refused: Mapping[int, int] | frozenset[int] = frozenset()):
        self.refused = refused
        self.comparer = Comparer()
        self.patterns = _PATTERNS.setdefault(jax_compat.trace_settings(), {})
        if len(self.patterns) > _MOST_PATTERNS:
            self.patterns.clear()

    def lift(self, program: Program) -> Program:
        for function in walk_functions(program.entry):
            self.lift_function(function)
        return program

    def lift_function(self, function: Function) -> None:
        matcher = Matcher(self, function)
        equations = matcher.equations
        find = IDIOMS.get
        for place in range(len(equations) - 1, -1, -1):
            equation = equations[place]
            if id(equation) in matcher.consumed or type(equation.callee) is Library:
                continue
            idioms = find(equation.callee.name)
            if idioms is None or not matcher.free(equation):
                continue
            for guess_from in idioms:
                if any(matcher.try_guess(guess, equation) for guess in guess_from(matcher, equation)):
                    break
        if matcher.replaced:
            consumed, replaced = matcher.consumed, matcher.replaced
            function.equations = [
                replaced.get(id(e), e) for e in equations if id(e) in replaced or id(e) not in consumed
            ]


class Matcher:
    """One function under the eyes of the idioms: who computes a value, who else needs it."""

    def __init__(self, lifter: Lifter, function: Function):
        self.lifter = lifter
        self.equations = function.equations
        self.consumed: set[int] = set()
        self.replaced: dict[int, Equation] = {}
        self.made: dict[Value, Equation] = {}
        self.uses: dict[Any, int] = {}
        self._refused = lifter.refused
        uses = self.uses
        selectors = set()
        for equation in function.equations:
            for output in equation.outputs:
                if output is not None:
                    self.made[output] = equation
            for atom in equation.inputs:
                uses[atom] = uses.get(atom, 0) + 1
            if equation.callee.name == "cond":  # its rule reads off the selector what kind of branch it is
                selectors.add(equation.inputs[0])
        for atom in function.results:
            uses[atom] = uses.get(atom, 0) + 1
        self._selectors = selectors

    # ------------------------------------------------------------ what idioms may ask for

    def free(self, equation: Equation) -> bool:
        """Whether an equation may become part of a lift."""
        origin = equation.origin
        return (
            id(origin) not in self._refused
            and not origin.effects
            and not any(o in self._selectors for o in equation.outputs)
        )

    def producer(self, atom: Any, *names: str) -> Equation | None:
        """The equation of a primitive of one of `names` that computes `atom` and that a lift may take in."""
        equation = self.made.get(atom)
        if equation is None or id(equation) in self.consumed or equation.callee.name not in names:
            return None
        return equation

    def through(self, atom: Any, *names: str) -> Any:
        """The input of the single-input equation (of one of `names`) behind `atom`; None where there is none."""
        equation = self.producer(atom, *names)
        return None if equation is None or len(equation.inputs) != 1 else equation.inputs[0]

    # ------------------------------------------------------------ proof of one guess

    def try_guess(self, guess: Guess, anchor: Equation) -> bool:
        """Whether the guess is right; if it is, its equations are replaced."""
        inputs: list[Any] = []
        places: dict[int, int] = {}
        try:
            args = tuple([_template(a, inputs, places) for a in guess.args])
            kwargs = {k: _template(v, inputs, places) for k, v in guess.kwargs.items()}
        except _NotAScalar:
            return False
        pattern = _pattern(self.lifter.patterns, guess.path, args, kwargs, inputs)
        if pattern is None:
            return False
        group = self._lay_over(pattern, inputs, anchor)
        if group is None:
            return False
        self._replace(guess.path, args, kwargs, inputs, group, anchor)
        return True

    def _lay_over(self, pattern: Pattern, inputs: list[Any], anchor: Equation) -> list[Equation] | None:
        """The equations that a pattern's stand for, or None."""
        outputs = anchor.outputs
        if len(pattern.outvars) != len(outputs):
            return None
        comparer = self.lifter.comparer
        matched: dict[int, Any] = {}  # equation of the pattern -> ours
        taken: set[int] = set()
        made, consumed = self.made, self.consumed
        todo = [(var, out) for var, out in zip(pattern.outvars, outputs, strict=True) if out is not None]
        while todo:
            var, atom = todo.pop()
            if type(var) is jax_compat.LITERAL_TYPE:
                if type(atom) is not Literal or not _same_literal(var, atom):
                    return None
                continue
            place = pattern.inputs.get(var)
            if place is not None:
                if inputs[place] is not atom:
                    return None
                continue
            if var in pattern.consts:
                if type(atom) is not Constant or not comparer.values.same(pattern.consts[var], atom.value):
                    return None
                continue
            eqn, index = pattern.made_by[var]
            ours = made.get(atom) if type(atom) is Value else None
            if ours is None or id(ours) in consumed or ours.outputs[index] is not atom:
                return None
            known = matched.get(id(eqn))
            if known is not None:
                if known is not ours:
                    return None
                continue
            if id(ours) in taken or not self._same_equation(eqn, ours):
                return None
            matched[id(eqn)] = ours
            taken.add(id(ours))
            todo.extend(zip(eqn.invars, ours.inputs, strict=True))
        if not matched:
            return None
        group = list(matched.values())
        if len(group) > 1:
            if not all(self.free(e) for e in group) or not self._closed(group, anchor):
                return None
        return group

    def _same_equation(self, eqn: Any, ours: Equation) -> bool:
        origin = ours.origin
        if eqn.primitive is not origin.primitive or len(eqn.invars) != len(ours.inputs):
            return False
        if len(eqn.outvars) != len(origin.outvars):
            return False
        for a, b in zip(eqn.outvars, origin.outvars, strict=True):
            if a.aval is not b.aval and not _same_type(a.aval, b.aval):
                return False
        if not eqn.params and not origin.params:
            return True
        return self.lifter.comparer.differing_param(eqn, origin) is None

    def _closed(self, group: list[Equation], anchor: Equation) -> bool:
        """Whether nothing outside the group needs a value from inside, but for the anchor's results."""
        inside: dict[Any, int] = {}
        for equation in group:
            for atom in equation.inputs:
                inside[atom] = inside.get(atom, 0) + 1
        for equation in group:
            if equation is anchor:
                continue
            for output in equation.outputs:
                if output is not None and self.uses.get(output, 0) != inside.get(output, 0):
                    return False
        return True

    def _replace(
        self, path: str, args: Any, kwargs: Any, inputs: list[Any], group: list[Equation], anchor: Equation
    ) -> None:
        uses = self.uses
        for equation in group:
            self.consumed.add(id(equation))
            for atom in equation.inputs:
                uses[atom] -= 1
        for atom in inputs:
            uses[atom] = uses.get(atom, 0) + 1
        order = {id(e) for e in group}
        body_equations = group if len(group) == 1 else [e for e in self._from(group) if id(e) in order]
        body = Function(path, inputs, body_equations, [o for o in anchor.outputs if o is not None])
        lifted = Equation(Library(path, args, kwargs, body), inputs, anchor.outputs, {}, anchor.origin)
        self.replaced[id(anchor)] = lifted
        for output in anchor.outputs:
            if output is not None:
                self.made[output] = lifted

    def _from(self, group: list[Equation]) -> list[Equation]:
        """The group in program order: inputs before uses."""
        order: list[Equation] = []
        seen: set[int] = set()
        members = {id(e) for e in group}
        stack = [(group[0], False)]
        while stack:
            equation, done = stack.pop()
            if done:
                order.append(equation)
                continue
            if id(equation) in seen:
                continue
            seen.add(id(equation))
            stack.append((equation, True))
            for atom in reversed(equation.inputs):
                before = self.made.get(atom)
                if before is not None and id(before) in members:
                    stack.append((before, False))
        return order


def _same_type(left: Any, right: Any) -> bool:
    """Shape, dtype and weak type agree; axes over which a value varies (in `shard_map`) are not the call's business."""
    return (
        getattr(left, "shape", None) == getattr(right, "shape", None)
        and getattr(left, "dtype", None) == getattr(right, "dtype", None)
        and getattr(left, "weak_type", None) == getattr(right, "weak_type", None)
        and type(left) is type(right)
    )


def _same_literal(var: Any, atom: Literal) -> bool:
    from untrace.prove.values import same_constant

    return same_constant(var.val, var.aval, atom.value, atom.aval)


class _NotAScalar(Exception):
    pass


def _template(value: Any, inputs: list[Any], places: dict[int, int]) -> Any:
    """`value` with a Slot for each atom; literals become plain numbers."""
    kind = type(value)
    if kind is Value or kind is Constant:
        place = places.get(id(value))
        if place is None:
            place = places[id(value)] = len(inputs)
            inputs.append(value)
        return Slot(place)
    if kind is Literal:
        scalar = python_scalar(value.value, value.aval)
        if scalar is None:
            raise _NotAScalar
        return scalar
    if kind is tuple or kind is list:
        return kind([_template(v, inputs, places) for v in value])
    if kind is slice:
        parts = (value.start, value.stop, value.step)
        return slice(*[_template(v, inputs, places) for v in parts])
    return value


def fill(value: Any, inputs: Sequence[Any]) -> Any:
    """A template with its Slots replaced by `inputs`."""
    kind = type(value)
    if kind is Slot:
        return inputs[value.index]
    if kind is tuple or kind is list:
        return kind([fill(v, inputs) for v in value])
    if kind is slice:
        return slice(*[fill(v, inputs) for v in (value.start, value.stop, value.step)])
    return value


# By the settings of JAX under which they were traced.
_PATTERNS: dict[Any, dict[Any, Pattern | None]] = {}
_MOST_PATTERNS = 20_000


def _key(value: Any) -> Any:
    """A hashable stand-in for a template; 1, True and 1.0 differ, and so do 0.0 and -0.0."""
    kind = type(value)
    if kind is Slot:
        return value.index, Slot
    if kind is tuple or kind is list:
        return (kind, *[_key(v) for v in value])
    if kind is slice:
        return slice, _key(value.start), _key(value.stop), _key(value.step)
    return (kind, repr(value)) if kind is float or kind is complex else (kind, value)


def _pattern(
    patterns: dict[Any, Pattern | None], path: str, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Any]
) -> Pattern | None:
    key = (path, _key(args), *[(k, _key(v)) for k, v in kwargs.items()], *[a.aval for a in inputs])
    try:
        found = patterns.get(key, False)
    except TypeError:  # an argument that has no hash is no static argument of JAX either
        return None
    if found is False:
        found = patterns[key] = _trace(path, args, kwargs, [a.aval for a in inputs])
    return found  # type: ignore[return-value]


def _trace(path: str, args: tuple[Any, ...], kwargs: dict[str, Any], avals: list[Any]) -> Pattern | None:
    function = library.resolve(path)
    if function is None or not all(jax_compat.is_shaped_array(a) for a in avals):
        return None

    def call(*inputs: Any) -> Any:
        return function(*fill(args, inputs), **{k: fill(v, inputs) for k, v in kwargs.items()})

    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    try:
        closed = jax.make_jaxpr(call)(*structs)
    except Exception:  # a guess need not even be a legal call
        return None
    jaxpr, consts = jax_compat.open_jaxpr(closed)
    if not jaxpr.eqns:
        return None
    made_by = {out: (eqn, i) for eqn in jaxpr.eqns for i, out in enumerate(eqn.outvars)}
    inputs = {v: i for i, v in enumerate(jaxpr.invars)}
    return Pattern(inputs, dict(zip(jaxpr.constvars, consts, strict=True)), made_by, jaxpr.outvars, len(jaxpr.eqns))
