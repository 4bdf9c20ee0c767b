"""A traced function as the rules look at it: its equations where they are run, and the author's lines behind them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from untrace.capture.function import Captured
from untrace.ir.calls import function_run
from untrace.ir.evaluate import by_body
from untrace.ir.nodes import Atom, Cond, Equation, Function, Scan, Structured, Value, While, functions_called
from untrace.ir.types import Aval, Data
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance, Site
from untrace.python.types import array_type
from untrace.tools.authors import author_equation
from untrace.tools.lint.findings import LintFinding

_DEEPEST = 200


@dataclass(eq=False, slots=True)
class Scope:
    """A function where it is run. `equation`: what runs it, in the scope `outer`; both None of the whole program. `given`: what
    its parameters are there, as far as they are one value."""

    function: Function
    outer: Scope | None = None
    equation: Equation | None = None
    given: Mapping[Value, Atom] = field(default_factory=dict)
    _makers: dict[Value, Equation] | None = None

    @property
    def makers(self) -> Mapping[Value, Equation]:
        """The equations of the function, by what they give."""
        if self._makers is None:
            self._makers = {o: e for e in self.function.equations for o in e.outputs if o is not None}
        return self._makers

    def around(self) -> list[Equation]:
        """The calls, loops and branches around it, the outermost first."""
        found: list[Equation] = []
        scope: Scope | None = self
        while scope is not None and scope.equation is not None:
            found.append(scope.equation)
            scope = scope.outer
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Place:
    """An expression of the author's. `last`: the last of its lines."""

    file: str
    line: int
    last: int

    @property
    def source(self) -> str:
        return linecache.getline(self.file, self.line).strip()


@dataclass(eq=False, slots=True)
class Seen:
    """An equation in its scope. `site`: the author's call that it is in, or itself; `inner`: its own site, of a library's
    equation that of the library's line."""

    equation: Equation
    scope: Scope
    site: Site
    inner: Site

    @property
    def frame(self) -> Frame | None:
        """The author's frame, where he himself made it or called what did; None where a library's code stands between."""
        frame = self.site.frames[-1] if self.site.frames else None
        return None if frame is None or frame.library or not frame.line else frame


@dataclass(eq=False, slots=True)
class Linted:
    """What a rule looks at. `again`: the function traced once more; None where that failed. `leaves`: the arguments, in the
    program's order, `paths` what they are called."""

    captured: Captured
    program: Function
    again: Function | None
    leaves: Sequence[Data]
    paths: Sequence[str]
    provenance: Provenance = field(default_factory=Provenance)
    notes: list[str] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    lines: dict[tuple[str, int], int] = field(default_factory=dict)  # the last lines of what findings are about

    def __post_init__(self) -> None:
        self.seen = list(self._walked(Scope(self.program), set()))

    def _walked(self, scope: Scope, known: set[tuple[Function, Site]]) -> Iterator[Seen]:
        """The equations where they are run; those of a function once for each place of the author's that it is called from."""
        around = scope.around()
        for equation in scope.function.equations:
            inner = self.provenance.site(equation.origin)
            site = self.provenance.site(author_equation([*around, equation]).origin)
            yield Seen(equation, scope, site, inner)
            for body, given in bodies_run(equation):
                key = body, site
                if key not in known and len(around) < _DEEPEST:
                    known.add(key)
                    yield from self._walked(Scope(body, scope, equation, given), known)

    def finding(
        self, rule: str, place: Place | Frame, message: str, cost: Mapping[str, int], change: str
    ) -> LintFinding:
        if isinstance(place, Frame):
            place = place_of_frame(place)
        self.lines[place.file, place.line] = max(place.last, self.lines.get((place.file, place.line), 0))
        return LintFinding(rule, place.file, place.line, place.source, message, dict(cost), change)


def place_of_frame(frame: Frame) -> Place:
    return Place(frame.file, int(frame.line), int(frame.end_line or frame.line))


def bodies_run(equation: Equation) -> list[tuple[Function, Mapping[Value, Atom]]]:
    """The functions that an equation runs, and what their parameters are, as far as they are the same in every turn."""
    callee, inputs = equation.callee, equation.inputs
    if type(callee) is Scan:
        return [(callee.body, dict(zip(callee.body.params, inputs[: callee.consts], strict=False)))]
    if type(callee) is While:
        ours, consts = inputs[: callee.condition_consts], inputs[callee.condition_consts : callee.consts]
        return [
            (callee.condition, dict(zip(callee.condition.params, ours, strict=False))),
            (callee.body, dict(zip(callee.body.params, consts, strict=False))),
        ]
    if type(callee) is Cond:
        return [(branch, dict(zip(branch.params, inputs[1:], strict=True))) for branch in callee.branches]
    called = function_run(equation, inputs)
    if called is not None:
        return [(called[0], dict(zip(called[0].params, called[1], strict=True)))]
    functions = callee.bodies if isinstance(callee, Structured) else functions_called(equation)
    return [(function, {}) for function in functions if not _is_part_of_primitive(equation)]


def _is_part_of_primitive(equation: Equation) -> bool:
    """Whether the functions of an equation say how it combines two numbers, as those of `scatter` and `reduce` do."""
    return equation.callee.name.startswith(("scatter", "reduce", "cumulative", "sort", "argm"))


def resolved(atom: Atom, scope: Scope) -> tuple[Atom, Scope]:
    """What a value is outside of the functions that it was passed to."""
    while type(atom) is Value and scope.outer is not None and atom in scope.given:
        atom, scope = scope.given[atom], scope.outer
    return atom, scope


class Values:
    """What values are, where they depend on nothing but numbers of the program and what is `given`, and are no larger than
    `largest` elements. At most so many equations are computed."""

    def __init__(
        self, given: Callable[[Value], Data | None] = lambda value: None, largest: int = 1 << 16, most: int = 500
    ) -> None:
        self._given, self._largest, self._left = given, largest, most
        self._known: dict[tuple[Value, Scope], np.ndarray | None] = {}

    def of(self, atom: Atom, scope: Scope) -> np.ndarray | None:
        """The value of an operand; None where it is not known."""
        try:
            return self._of(atom, scope, 0)
        except Exception:  # what cannot be computed by itself is not known: a key, a collective
            return None

    def _of(self, atom: Atom, scope: Scope, depth: int) -> np.ndarray | None:
        atom, scope = resolved(atom, scope)
        if np.prod(atom.aval.shape) > self._largest or depth > _DEEPEST:
            return None
        if type(atom) is not Value:
            return np.asarray(atom.value, atom.aval.dtype)
        key = atom, scope
        if key not in self._known:
            self._known[key] = None
            given = self._given(atom)
            if given is not None:
                self._known[key] = np.asarray(given, atom.aval.dtype)
            elif (equation := scope.makers.get(atom)) is not None:
                self._compute(equation, scope, depth)
        return self._known[key]

    def _compute(self, equation: Equation, scope: Scope, depth: int) -> None:
        if equation.effects or type(equation.callee) in (Scan, While):
            return
        inputs = []
        for operand in equation.inputs:
            found = self._of(operand, scope, depth + 1)
            if found is None:
                return
            inputs.append(found)
        self._left -= 1
        if self._left >= 0:
            for value, out in zip(equation.outputs, by_body(equation, inputs), strict=True):
                if value is not None:
                    self._known[value, scope] = np.asarray(out)


def count_of(equation: Equation) -> int:
    """How many equations it is: those of the functions that it runs, where there are any."""
    return sum(count_in(body) for body, _ in bodies_run(equation)) or 1


def count_in(function: Function) -> int:
    """How many equations a function is, those of the functions that it calls each time."""
    counts: dict[Function, int] = {}

    def counted(f: Function) -> int:
        if f not in counts:
            counts[f] = sum(sum(counted(b) for b, _ in bodies_run(e)) or 1 for e in f.equations)
        return counts[f]

    return counted(function)


def bytes_of(aval: Aval) -> int:
    return int(np.prod(aval.shape)) * getattr(aval.dtype, "itemsize", 4)


def typed(aval: Aval) -> str:
    """A type as JAX prints it: `f32[3,4]`."""
    return array_type(aval).text


def call_at(frame: Frame) -> ast.Call | None:
    """The call that a frame is at."""
    node = frame.node
    return node if isinstance(node, ast.Call) else None
