"""Verified lifting: groups of equations become calls of library functions, each proven by tracing the call.

An idiom looks at one equation (the *anchor*: the last of its group) and guesses a call. The call is traced on the
types of its inputs, and the jaxpr that JAX gives is laid over the equations that end at the anchor: where every
primitive, parameter, literal and input fits, and nothing else needs a value from inside, the group is replaced. So
a guess may be bold; a wrong one costs a trace (remembered) and changes nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace.ir.nodes import (
    Atom,
    Cond,
    Constant,
    Equation,
    Function,
    Library,
    Literal,
    Local,
    Primitive,
    Program,
    Slot,
    Value,
    callees,
)  # fmt: skip
from untrace.ir.passes import is_strict
from untrace.jaxprs.equal.closures import permuted_places
from untrace.jaxprs.equal.comparer import Comparer
from untrace.lift.naming import words
from untrace.lift.recognise import beforehand
from untrace.lift.recognise.patterns import MOST_PATTERNS, PATTERNS, NotAScalar, Pattern, pattern_of, template
from untrace.lift.rewrite.simplify import public_calls
from untrace.provenance.sites import Provenance, Site


@dataclass(slots=True)
class Guess:
    """A call that may be what the equations up to the anchor do. Arguments are atoms of the IR or plain values.

    `anchors`: where the call has several results that different equations compute, those equations, in that order.
    `words`: what results are called for which the author has no name.
    """

    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    anchors: Sequence[Equation] = ()
    words: Sequence[str] = ()


def templates(
    guess: Guess, inputs: list[Any], places: dict[Value | Constant, int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a guess as templates (`patterns.template`). Raises NotAScalar."""
    args = tuple([template(a, inputs, places) for a in guess.args])
    return args, {k: template(v, inputs, places) for k, v in guess.kwargs.items()}


Idiom = Callable[["Matcher", Equation], Iterator[Guess]]
IDIOMS: dict[str, list[Idiom]] = {}
LARGE: dict[str, list[Idiom]] = {}  # those of them whose calls may be three equations and more
# Tried at every equation, before and after those of its primitive.
FIRST: list[Idiom] = []
LAST: list[Idiom] = []


def idiom(*anchors: str, small: bool = False) -> Callable[[Idiom], Idiom]:
    """Registers an idiom for groups that end in one of these primitives; those registered first are tried first.

    small: whether its calls are an equation or two, whatever their arguments.
    """

    def register(function: Idiom) -> Idiom:
        for anchor in anchors:
            for idioms in (IDIOMS,) if small else (IDIOMS, LARGE):
                idioms.setdefault(anchor, []).append(function)
        return function

    return register


class Lifter:
    """Lifts the functions of one program. Patterns are remembered here, and with them every failed guess.

    `refused`: jaxpr equations that must stay as they are (a lift of them was proven wrong). `own`: names of
    primitives that have a user's rule, which goes before everything else. `any_size`: the text is to hold at other
    sizes of the inputs as well. `only`: idioms by primitive, in the place of all. `provenance`: the program's, where it
    has been read. `large`: whether calls that are an equation or two are of no interest. `without`: paths of calls that
    are not looked for.
    """

    def __init__(
        self,
        refused: frozenset[JaxprEqn] = frozenset(),
        own: Collection[str] = (),
        any_size: bool = False,
        only: Mapping[str, list[Idiom]] | None = None,
        provenance: Provenance | None = None,
        large: bool = False,
        without: Collection[str] = (),
    ):
        self.refused = refused
        self.without = without
        self.own = own
        self.any_size = any_size
        self.only = only
        self.large = large
        self.comparer = Comparer()
        self.provenance = Provenance() if provenance is None else provenance.shared()
        self.plain: dict[Any, tuple[Any, Pattern | None]] = {}  # of guesses whose arguments are a value or two
        self.patterns = PATTERNS.setdefault(jax_compat.trace_settings(), {})
        if len(self.patterns) > MOST_PATTERNS:
            self.patterns.clear()

    def lift(self, program: Program) -> Program:
        """Lifts callers before their callees: what is inside of a library's call is not written."""
        todo, seen = [program.entry], {program.entry}
        while todo:
            function = todo.pop()
            self.lift_function(function)
            for callee in callees(function):
                if callee not in seen:
                    seen.add(callee)
                    todo.append(callee)
        return program

    def lift_function(self, function: Function) -> None:
        matcher = Matcher(self, function)
        equations, consumed = matcher.equations, matcher.consumed
        find = (LARGE if self.large else IDIOMS if self.only is None else self.only).get
        first = FIRST if self.only is None else ()
        last = LAST if self.only is None else ()
        idioms: dict[str, tuple[Idiom, ...]] = {}
        for place in range(len(equations) - 1, -1, -1):
            equation = equations[place]
            callee = equation.callee
            kind = type(callee)
            if kind is Library or kind is Local or equation in consumed or not matcher.free(equation):
                continue
            known = idioms.get(callee.name)
            if known is None:
                known = idioms[callee.name] = (*first, *find(callee.name, ()), *last)
            matcher.lift(equation, known)
        matcher.finish(function)


class Matcher:
    """One function under the eyes of the idioms: who computes a value, who else needs it."""

    def __init__(self, lifter: Lifter, function: Function):
        self.lifter = lifter
        self.equations = function.equations
        self.uneven = function.facts.uneven
        self.consumed: set[Equation] = set()
        self.replaced: dict[Equation, Equation] = {}
        self.made: dict[Atom, Equation] = {}
        self.uses: dict[Any, int] = {}
        self._refused = lifter.refused
        uses = self.uses
        selectors = set()
        for equation in function.equations:
            for output in equation.outputs:
                if output is not None and type(equation.callee) is not Local:
                    self.made[output] = equation
            for atom in equation.inputs:
                uses[atom] = uses.get(atom, 0) + 1
            if type(equation.callee) is Cond:  # its rule reads off the selector what kind of branch it is
                selectors.add(equation.inputs[0])
        for atom in function.results:
            uses[atom] = uses.get(atom, 0) + 1
        self._selectors = selectors
        self._users: dict[Value, list[Equation]] | None = None
        self._positions: dict[Equation, int] = {}
        self._sites: list[Site | None] | None = None
        self._defined: dict[Any, int] = {}

    # ------------------------------------------------------------ what idioms may ask for

    def free(self, equation: Equation) -> bool:
        """Whether an equation may become part of a lift."""
        origin = equation.origin
        return (
            origin not in self._refused
            and equation.callee.name not in self.lifter.own
            and not origin.effects
            and not (self._selectors and any(o in self._selectors for o in equation.outputs))
        )

    def producer(self, atom: Any, *names: str) -> Equation | None:
        """The equation of a primitive of one of `names` that computes `atom` and that a lift may take in."""
        equation = self.made.get(atom)
        if equation is None or equation in self.consumed or equation.callee.name not in names:
            return None
        return equation

    def through(self, atom: Any, *names: str) -> Any:
        """The input of the single-input equation (of one of `names`) behind `atom`; None where there is none."""
        equation = self.producer(atom, *names)
        return None if equation is None or len(equation.inputs) != 1 else equation.inputs[0]

    def users(self, atom: Any) -> list[Equation]:
        """The equations that read `atom` and that no lift has taken in."""
        if self._users is None:
            self._users = {}
            for equation in self.equations:
                for operand in equation.inputs:
                    if type(operand) is Value:
                        self._users.setdefault(operand, []).append(equation)
        return [e for e in self._users.get(atom, ()) if e not in self.consumed]

    def is_used_outside(self, output: Any, group: Sequence[Equation]) -> bool:
        """Whether anything but the equations of `group` needs `output`."""
        inside = sum(a is output for e in group for a in e.inputs)
        return self.uses.get(output, 0) != inside

    def site(self, equation: Equation) -> Site:
        """Where the equation came from."""
        return self.lifter.provenance.site(equation.origin)

    def site_at(self, place: int) -> Site | None:
        """Where the equation at a place of the function came from; None where there is none, or that is not known."""
        if self._sites is None:
            site_of = self.lifter.provenance.site
            self._sites = [None if e.origin is None else site_of(e.origin) for e in self.equations]
        return self._sites[place] if 0 <= place < len(self._sites) else None

    def same_call(self, left: Equation, right: Equation) -> bool:
        """Whether one call of the author's may have made both equations: False only where provenance says so."""
        if left.origin is None or right.origin is None:
            return False
        one, other = self.site(left), self.site(right)
        return one.frames == other.frames and one.library == other.library or not one.frames or not other.frames

    def position(self, equation: Equation) -> int:
        """Where the equation stands in its function."""
        if not self._positions:
            self._positions = {e: i for i, e in enumerate(self.equations)}
        return self._positions[equation]

    def finish(self, function: Function) -> None:
        """Puts the calls that were found in the place of their equations."""
        if self.replaced:
            consumed, replaced = self.consumed, self.replaced
            function.equations = [replaced.get(e, e) for e in self.equations if e in replaced or e not in consumed]

    # ------------------------------------------------------------ proof of one guess

    def lift(self, equation: Equation, idioms: Sequence[Idiom]) -> bool:
        """Tries all guesses at what ends in an equation, until one is right. One that fails is none, but for who looks for
        faults of ours."""
        try:
            return any(self.try_guess(guess, equation) for idiom in idioms for guess in idiom(self, equation))
        except Exception:
            if is_strict():
                raise
            return False

    def try_guess(self, guess: Guess, anchor: Equation) -> bool:
        """Whether the guess is right; if it is, its equations are replaced."""
        anchors = guess.anchors or (anchor,)
        if self.lifter.large and guess.path in _SMALL or guess.path in self.lifter.without:
            return False
        found = self._pattern(guess, anchors)
        if found is None:
            return False
        args, kwargs, inputs, pattern = found
        group = self.lay_over(pattern, inputs, anchors)
        if group is None:
            return False
        place = anchors[0] if len(anchors) == 1 else min(anchors, key=self.position)
        if len(anchors) > 1 and not self.before(inputs, place):
            return False
        self._replace(guess.path, args, kwargs, inputs, group, anchors, place)
        for output, word in zip(anchor.outputs, guess.words, strict=False):
            if output is not None and not output.named:
                output.hint = word
        return True

    def _pattern(
        self, guess: Guess, anchors: Sequence[Equation]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Any], Pattern] | None:
        """The arguments of a guess as templates, the atoms in their Slots, and what the call traces to, where it does."""
        args, inputs, key, pattern = guess.args, list[Any](), None, None
        if 0 < len(args) < 3 and type(args[0]) is Value and type(args[-1]) is Value and not guess.kwargs:  # most
            one, other = args[0], args[-1]
            key = guess.path, len(args), one is other, one.aval, other.aval
            known = self.lifter.plain.get(key)
            if known is not None:
                args, pattern = known
                return None if pattern is None else (args, {}, [one] if one is other else [one, other], pattern)
        if not beforehand.is_possible(guess.path, guess.args, guess.kwargs, anchors):
            return None
        try:
            args, kwargs = templates(guess, inputs, {})
            pattern = pattern_of(self.lifter.patterns, guess.path, args, kwargs, inputs)
        except NotAScalar:
            return None
        if key is not None:
            self.lifter.plain[key] = args, pattern
        return None if pattern is None else (args, kwargs, inputs, pattern)

    def before(self, inputs: Sequence[Any], place: Equation) -> bool:
        """Whether the inputs are there before `place`, where a call with results of several equations is to stand."""
        position = self.position(place)
        if not self._defined:
            self._defined = {o: i for i, e in enumerate(self.equations) for o in e.outputs if o is not None}
        return all(self._defined.get(a, -1) < position for a in inputs)

    def lay_over(self, pattern: Pattern, inputs: list[Any], anchors: Sequence[Equation]) -> list[Equation] | None:
        """The equations that a pattern's stand for, or None."""
        outputs: Sequence[Any] = anchors[0].outputs if len(anchors) == 1 else [o for e in anchors for o in e.outputs]
        if len(pattern.outvars) != len(outputs):
            return None
        if pattern.size == 1 and len(outputs) == len(anchors) == 1:
            eqn = next(iter(pattern.made_by.values()))[0]
            if pattern.outvars[0] is eqn.outvars[0] and all(
                [type(v) is not jax_compat.LITERAL_TYPE and v in pattern.inputs for v in eqn.invars]
            ):
                return self._lay_over_one(eqn, pattern.inputs, inputs, outputs[0])
        comparer = self.lifter.comparer
        matched: dict[JaxprEqn, Equation] = {}  # equation of the pattern -> ours
        taken: set[Equation] = set()
        made, consumed = self.made, self.consumed
        todo = [(var, out) for var, out in zip(pattern.outvars, outputs, strict=True) if out is not None]
        while todo:
            var, atom = todo.pop()
            if type(var) is jax_compat.LITERAL_TYPE:
                if type(atom) is not Literal or not is_same_literal(var, atom):
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
            if ours is None or ours in consumed or index >= len(ours.outputs) or ours.outputs[index] is not atom:
                return None
            known = matched.get(eqn)
            if known is not None:
                if known is not ours:
                    return None
                continue
            operands = self._operands(eqn, ours) if ours not in taken else None
            if operands is None:
                return None
            matched[eqn] = ours
            taken.add(ours)
            todo.extend(operands)
        if not matched:
            return None
        group = list(matched.values())
        if len(group) > 1 or len(anchors) > 1:
            if any(e not in taken for e in anchors):
                return None
            if not all(self.free(e) for e in group) or not self._closed(group, anchors, inputs):
                return None
        return group

    def _lay_over_one(
        self, eqn: Any, places: Mapping[Any, int], inputs: Sequence[Any], output: Any
    ) -> list[Equation] | None:
        """The same for the one equation of a pattern, which reads nothing but the inputs of that."""
        ours = self.made.get(output)
        if ours is None or ours in self.consumed or ours.outputs[0] is not output:
            return None
        operands = self._operands(eqn, ours)
        if operands is None:
            return None
        for var, atom in operands:
            if inputs[places[var]] is not atom:
                return None
        return [ours]

    def _operands(self, eqn: Any, ours: Equation) -> list[tuple[Any, Any]] | None:
        """Which operands of two equations must be the same for these to be; None where they are not whatever those are."""
        origin, comparer = ours.origin, self.lifter.comparer
        if eqn.primitive is not origin.primitive or len(eqn.outvars) != len(origin.outvars):
            return None
        for a, b in zip(eqn.outvars, origin.outvars, strict=True):
            if a.aval is not b.aval and not is_same_type(a.aval, b.aval):
                return None
        if len(eqn.invars) == len(ours.inputs):
            if not eqn.params and not origin.params or comparer.differing_param(eqn, origin) is None:
                return list(zip(eqn.invars, ours.inputs, strict=True))
        places = permuted_places(comparer, eqn, origin) if len(origin.invars) == len(ours.inputs) else None
        return None if places is None else [(eqn.invars[i], ours.inputs[j]) for i, j in places]

    def _closed(self, group: list[Equation], anchors: Sequence[Equation], inputs: Sequence[Any]) -> bool:
        """Whether nothing outside the group needs a value from inside, but for the anchors' results, nor the call itself: of
        `x.astype(f32) * x.astype(f32)` only one conversion could be left to the product."""
        inside: dict[Any, int] = {}
        for equation in group:
            for atom in equation.inputs:
                inside[atom] = inside.get(atom, 0) + 1
        for equation in group:
            if any(equation is a for a in anchors):
                continue
            for output in equation.outputs:
                if output is None:
                    continue
                if self.uses.get(output, 0) != inside.get(output, 0) or any(a is output for a in inputs):
                    return False
        return True

    def _replace(
        self,
        path: str,
        args: Any,
        kwargs: Any,
        inputs: list[Any],
        group: list[Equation],
        anchors: Sequence[Equation],
        place: Equation,
    ) -> None:
        uses = self.uses
        for equation in group:
            self.consumed.add(equation)
            for atom in equation.inputs:
                uses[atom] -= 1
        for atom in inputs:
            uses[atom] = uses.get(atom, 0) + 1
        body_equations = group if len(group) == 1 else self._from(group)
        outputs = [o for e in anchors for o in e.outputs]
        results: list[Any] = outputs
        if None in outputs:  # the body computes them all the same
            whole = {e: with_all_outputs(e) for e in anchors}
            body_equations = [whole.get(e, e) for e in body_equations]
            results = [o for e in anchors for o in whole[e].outputs]
        body = Function(path, inputs, body_equations, results)
        lifted = Equation(Library(path, args, kwargs, body), inputs, outputs, {}, place.origin)
        if len(outputs) == 1 and outputs[0] is not None and not outputs[0].named:
            outputs[0].hint = words.after_lift(outputs[0].hint, path.rpartition(".")[2], outputs[0].aval)
        self.replaced[place] = lifted
        for output in outputs:
            if output is not None:
                self.made[output] = lifted

    def _from(self, group: list[Equation]) -> list[Equation]:
        """The group in program order: inputs before uses."""
        order: list[Equation] = []
        seen: set[Equation] = set()
        members = {e for e in group}
        stack = [(e, False) for e in group]
        while stack:
            equation, done = stack.pop()
            if done:
                order.append(equation)
                continue
            if equation in seen:
                continue
            seen.add(equation)
            stack.append((equation, True))
            for atom in reversed(equation.inputs):
                before = self.made.get(atom)
                if before is not None and before in members:
                    stack.append((before, False))
        return order


# Of the operators only an index may be many equations.
_SMALL = frozenset(
    [f"operator.{name}" for name in operator.__all__ if name != "getitem"]
    + ["jnp.einsum", "attribute.T", "method.astype"]
)


def is_same_type(left: Any, right: Any) -> bool:
    """Shape, dtype and weak type agree; axes over which a value varies (in `shard_map`) are not the call's business."""
    return (
        getattr(left, "shape", None) == getattr(right, "shape", None)
        and getattr(left, "dtype", None) == getattr(right, "dtype", None)
        and getattr(left, "weak_type", None) == getattr(right, "weak_type", None)
        and type(left) is type(right)
    )


def with_all_outputs(equation: Equation) -> Equation:
    pairs = zip(equation.outputs, equation.origin.outvars, strict=True)
    outputs = [Value(var.aval) if output is None else output for output, var in pairs]
    return Equation(equation.callee, equation.inputs, outputs, equation.params, equation.origin)


def is_same_literal(var: Any, atom: Literal) -> bool:
    from untrace.jaxprs.equal.values import same_constant

    return same_constant(var.val, var.aval, atom.value, atom.aval)


LARGE_BODY = 3  # equations; a call of fewer gives way to another form


@public_calls
def is_public_call(eqn: Any, provenance: Provenance | None = None) -> bool:
    """Whether a jaxpr's equation is, as it stands, a call of a public function that an idiom knows."""
    inputs = [Literal(v.val, v.aval) if type(v) is jax_compat.LITERAL_TYPE else Value(v.aval) for v in eqn.invars]
    outputs = [None if type(v) is jax_compat.DROP_TYPE else Value(v.aval) for v in eqn.outvars]
    params = [v for v in inputs if type(v) is Value]
    equation = Equation(Primitive(eqn.primitive), inputs, outputs, eqn.params, eqn)
    function = Function("call", params, [equation], [o for o in outputs if o is not None])
    Lifter(provenance=provenance).lift_function(function)
    callee = function.equations[0].callee
    if type(callee) is not Library:
        return False
    return not _has_typed_number(callee) or len(jax_compat.open_jaxpr(eqn.params["jaxpr"])[0].eqns) > LARGE_BODY


def _has_typed_number(callee: Library) -> bool:
    """Whether a number among arrays has a type of its own, as no author writes it: another form may do without."""
    kinds = {type(a) for a in callee.args}
    return any(issubclass(k, np.generic) for k in kinds) and any(type(a) is Slot for a in callee.args[1:])
