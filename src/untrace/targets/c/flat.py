"""Functions without the calls of libraries in them, that compute each thing once.

C has no words for `jnp.var`: what it stands for is written. What several such bodies compute, and the several derivatives of
one function, is then in plain sight: a compiler finds it again within a loop at most.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from untrace.ir.calls import function_run
from untrace.ir.nodes import Atom, Constant, Equation, Function, Library, Literal, Local, Primitive, Structured, Value
from untrace.ir.types import Origin
from untrace.targets.c.rules.table import C
from untrace.targets.implementations import implementation

_SMALL = 2  # equations, of which a function would say less than they do


@dataclass(slots=True)
class Flat:
    """A function as it is written. `around`: of equations that stood in a call, those of the calls, the innermost first."""

    function: Function
    around: Mapping[Equation, Sequence[Origin]]


@dataclass(slots=True)
class _Flattening:
    equations: list[Equation] = field(default_factory=list)
    around: dict[Equation, Sequence[Origin]] = field(default_factory=dict)
    known: dict[Hashable, Equation] = field(default_factory=dict)

    def body(
        self, function: Function, env: dict[Value, Atom], outs: Mapping[Value, Value], calls: tuple[Origin, ...]
    ) -> list[Atom]:
        """The results of a function whose parameters are in `env`. outs: what is known of its results outside."""
        for equation in function.equations:
            self._equation(equation, env, outs, calls)
        return [_found(env, r) for r in function.results]

    def _equation(
        self, equation: Equation, env: dict[Value, Atom], outs: Mapping[Value, Value], calls: tuple[Origin, ...]
    ) -> None:
        inputs = [_found(env, a) for a in equation.inputs]
        run = _inside(equation, inputs)
        if run is not None:
            body, given = run
            named: dict[Value, Value] = {}
            for result, output in zip(body.results, equation.outputs, strict=True):
                if type(result) is Value and output is not None:
                    named[result] = outs.get(output, output)
            inner = dict[Value, Atom](zip(body.params, given, strict=True))
            results = self.body(body, inner, named, (equation.origin, *calls))
            for output, result in zip(equation.outputs, results, strict=True):
                if output is not None:
                    env[output] = result
            return
        key = _key(equation, inputs)
        same = self.known.get(key) if key is not None else None
        if same is None:
            outputs = [None if o is None else _copy(outs.get(o, o)) for o in equation.outputs]
            same = Equation(equation.callee, inputs, outputs, equation.params, equation.origin)
            self.equations.append(same)
            if calls:
                self.around[same] = calls
            if key is not None:
                self.known[key] = same
        made = list(same.outputs)
        for place, output in enumerate(equation.outputs):
            if output is None:
                continue
            one = made[place]
            if one is None:
                one = made[place] = _copy(outs.get(output, output))
                same.outputs = made
            _named(one, outs.get(output, output))
            env[output] = one


def flat(function: Function) -> Flat:
    """The function with what its library calls stand for in their place, and each computation once.

    Its parameters are the same, its other values are not. Loops, branches and the author's functions stay calls.
    """
    made = _Flattening()
    results = made.body(function, {p: p for p in function.params}, {}, ())
    found = Function(function.name, function.params, made.equations, results)
    return Flat(found, made.around)


def _inside(equation: Equation, inputs: Sequence[Atom]) -> tuple[Function, Sequence[Atom]] | None:
    """The function whose equations stand for this one, and what it takes; None where the equation stays."""
    callee = equation.callee
    if type(callee) is Library:
        return callee.body, inputs
    if type(callee) is Local:
        body = callee.body
        small = len(body.equations) <= _SMALL and all(type(e.callee) is Primitive for e in body.equations)
        return (body, inputs) if small else None
    run = function_run(equation, inputs)
    own = implementation(equation) if run is None and C.find(callee.name) is None else None
    return run if own is None else (own, inputs)


def _found(env: Mapping[Value, Atom], atom: Atom) -> Atom:
    return env[atom] if type(atom) is Value else atom


def _copy(value: Value) -> Value:
    made = Value(value.aval, value.hint)
    made.named = value.named
    return made


def _named(one: Value, other: Value) -> None:
    """The author's name for one of two that are the same is that of both."""
    if other.named and not one.named:
        one.hint, one.named = other.hint, True


def _key(equation: Equation, inputs: Sequence[Atom]) -> Hashable | None:
    """Equal for equations that compute the same; None where that is not known."""
    callee = equation.callee
    if equation.effects or isinstance(callee, Structured):
        return None
    if type(callee) is Local:
        what: Hashable = callee.body
    elif type(callee) is Primitive and callee.name != "convert_element_type":  # which costs less than memory
        what = callee.object
    else:
        return None
    key = what, tuple([_atom_key(a) for a in inputs]), tuple(sorted(equation.params.items()))
    try:
        hash(key)
    except TypeError:  # parameters that hold arrays or functions
        return None
    return key


def _atom_key(atom: Atom) -> Hashable:
    if type(atom) is Literal:
        return np.asarray(atom.value).tobytes(), str(atom.aval)
    assert type(atom) is Value or type(atom) is Constant
    return atom
