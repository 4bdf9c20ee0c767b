"""`jax.experimental.ode.odeint`: the loops of the integrator as the author's call of it.

JAX keeps a jitted function, and in it the loops with the author's function where they call it. The first call, of the state
and the time that the integrator begins with, shows that function. The guess is traced with it, as any other, and laid over
what is there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace.ir.callees import callee_of
from untrace.ir.evaluate import bound_again
from untrace.ir.nodes import Equation, Function, Library, Literal, Scan, Slot, Value, While
from untrace.ir.signatures import MapSignature
from untrace.ir.structured import CustomRule
from untrace.lift.recognise.engine import Matcher
from untrace.lift.recognise.library import resolve
from untrace.lift.recognise.patterns import Pattern, as_pattern
from untrace.lift.recognise.scalars import python_scalar
from untrace.provenance.arguments import own_parameters
from untrace.provenance.frames import Frame

_JITTED = "_odeint_wrapper"
_PATH = "ode.odeint"
_TOLERANCE = 1.4e-8
_ARGUMENT = re.compile(r"args\[(\d+)\](.*)")
_STEP = re.compile(r"\['(\w+)'\]|\[(\d+)\]")


def is_integrator(equation: Equation) -> bool:
    """Whether an equation is a call of the integrator."""
    origin = equation.origin
    return (
        equation.callee.name in ("jit", "pjit")
        and origin is not None
        and origin.params.get("name") == _JITTED
        and jax_compat.is_library_jaxpr(origin.params["jaxpr"])
    )


def lift_integrator(m: Matcher, equation: Equation) -> bool:
    """Makes a call of `odeint` of the equation, where that is proven. States that are no single array stay."""
    body: Function = equation.params["jaxpr"]
    names = jax_compat.argument_names(body.jaxpr) or ()
    ruled = [e for e in body.equations if type(e.callee) is CustomRule]
    if not m.free(equation) or len(ruled) != 1 or len(names) != len(body.params) or list(names[:2]) != ["y0", "ts"]:
        return False
    inside = callee_of(ruled[0], CustomRule).function
    found = _Dynamics(m, inside, body.params[0].aval.shape).find()
    if found is None:
        return False
    run, state, time, result, frame = found
    own = [*own_parameters(frame), "y", "t"][: max(len(own_parameters(frame)), 2)]
    inner = dict(zip(ruled[0].inputs, inside.params, strict=True))
    given: dict[int, list[tuple[str, int]]] = {}  # of arguments that are passed on, the way to each leaf, and its place
    closed: list[int] = []
    for place, name in enumerate(names[2:], 2):
        match = _ARGUMENT.fullmatch(name)
        if match is None or body.params[place] not in inner:
            return False
        if int(match[1]) < len(own) - 2:
            given.setdefault(int(match[1]), []).append((match[2], place))
        else:
            closed.append(place)
    order = [place for leaves in given.values() for _, place in leaves]
    params = [inner[body.params[place]] for place in (*closed, *order)]
    state.hint, time.hint = own[:2]
    function = Function("", [*params[: len(closed)], state, time, *params[len(closed) :]], run, [result])
    name = frame.code.co_name
    function.facts = replace(function.facts, whole=name if name.isidentifier() else "")
    trees = [_tree([(way, body.params[place].aval) for way, place in leaves]) for leaves in given.values()]
    signature = MapSignature(((state.aval, time.aval, *trees), {}), result.aval, len(closed), "", tuple(own))
    inputs = [equation.inputs[place] for place in (*closed, 0, 1, *order)]
    kwargs = dict(_settings(inside, run))
    pattern = _traced(function, inputs, signature, kwargs)
    covered = m.lay_over(pattern, inputs, [equation]) if pattern is not None else None
    if covered is None:
        return False
    args = tuple([Slot(i) for i in range(len(closed), len(inputs))])
    m._replace(_PATH, args, kwargs, inputs, covered, [equation], equation)
    callee = callee_of(m.replaced[equation], Library)
    callee.function, callee.closed, callee.signature = function, len(closed), signature
    return True


def _tree(leaves: Sequence[tuple[str, Any]]) -> Any:
    """The dicts and tuples in which leaves stand, each with the way to it: `['w'][0]`; a tuple of them where that is no way."""
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    steps = [_STEP.match(way) for way, _ in leaves]
    if any(step is None for step in steps):
        return tuple([leaf for _, leaf in leaves])
    parts: dict[Any, list[tuple[str, Any]]] = {}
    for step, (way, leaf) in zip(steps, leaves, strict=True):
        assert step is not None
        parts.setdefault(step[1] if step[1] is not None else int(step[2]), []).append((way[step.end() :], leaf))
    if all(type(key) is str for key in parts):
        return {key: _tree(inside) for key, inside in parts.items()}
    return tuple([_tree(inside) for inside in parts.values()])


class _Dynamics:
    """The first call of the author's function in the integrator: of the state and the time that it begins with."""

    def __init__(self, m: Matcher, inside: Function, shape: tuple[int, ...]):
        self.m = m
        self.inside = inside
        self.shape = shape
        self.makers: dict[Any, Equation] = {o: e for e in inside.equations for o in e.outputs if o is not None}

    def find(self) -> tuple[list[Equation], Value, Value, Value, Frame] | None:
        """(its equations, its state, its time, what it gives, where it is); None where they do not stand apart."""
        loops = [e for e in self.inside.equations if type(e.callee) is Scan]
        if len(loops) != 1:
            return None
        flat, result, first = loops[0].inputs[callee_of(loops[0], Scan).consts :][:3]
        if len(self.shape) != 1:  # the integrator has it as a vector
            made = self.makers.get(result)
            if made is None or made.callee.name != "reshape" or made.inputs[0].aval.shape != self.shape:
                return None
            result = made.inputs[0]
        state: Any = Value(result.aval)
        time: Any = Value(first.aval)
        seen: set[Equation] = set()
        waiting = [result]
        while waiting:
            atom = waiting.pop()
            made = self.makers.get(atom) if type(atom) is Value else None
            if made is None:
                if atom is flat:
                    return None  # not as its author has it
            elif self._is_state(made, flat):
                state = atom
            elif self._is_time(made):
                time = atom
            elif made not in seen:
                seen.add(made)
                waiting += made.inputs
        run = [e for e in self.inside.equations if e in seen]
        frames = [f for e in run if e.origin is not None for f in self.m.site(e).frames[:1]]
        if type(result) is not Value or len({f.code for f in frames}) != 1:
            return None
        return run, state, time, result, frames[0]

    def _is_state(self, made: Equation, flat: Any) -> bool:
        """Whether an equation makes the author's array of the integrator's vector."""
        if made.callee.name == "reshape" and made.outputs[0] is not None and made.outputs[0].aval.shape == self.shape:
            made = self.makers.get(made.inputs[0], made)
        return made.callee.name == "split" and len(made.outputs) == 1 and made.inputs[0] is flat

    def _is_time(self, made: Equation) -> bool:
        """Whether an equation takes the first of the times."""
        row = self.makers.get(made.inputs[0]) if made.callee.name == "squeeze" else None
        return row is not None and row.callee.name == "slice" and row.inputs[0] in self.inside.params


def _settings(inside: Function, run: Collection[Equation]) -> Iterator[tuple[str, Any]]:
    """The tolerances, by which the first step is scaled, and the longest step and the most of them: where they are not JAX's
    own. run: what the author's function does."""
    equations = [e for e in inside.equations if e not in run]
    for name, primitive in (("rtol", "mul"), ("atol", "add")):
        scaled = [e for e in equations if e.callee.name == primitive and any(a.aval.shape for a in e.inputs)]
        numbers = [number for e in scaled for number in _numbers(e)]
        if numbers and np.float32(numbers[0]) != np.float32(_TOLERANCE):
            yield name, numbers[0]
    steps = [e for e in equations if e.callee.name in ("jit", "pjit") and e.origin.params["name"] == "clip"]
    for loop in (e.callee for s in equations if type(s.callee) is Scan for e in s.callee.body.equations):
        least = [e for e in loop.condition.equations if e.callee.name == "lt"] if type(loop) is While else []
        for name, bounded in (("mxstep", least), ("hmax", steps if least else [])):
            numbers = [number for e in bounded for number in _numbers(e)[:1] if number != np.inf]
            if numbers:
                yield name, numbers[0]


def _numbers(equation: Equation) -> list[Any]:
    numbers = [python_scalar(a.value, a.aval) for a in equation.inputs if type(a) is Literal]
    return [n for n in numbers if n is not None]


def _traced(
    function: Function, inputs: Sequence[Any], signature: MapSignature, kwargs: dict[str, Any]
) -> Pattern | None:
    """What the call traces to, with the author's function."""
    integrate: Any = resolve(_PATH)

    def call(*arrays: Any) -> list[Any]:
        held = arrays[: signature.closed]

        def dynamics(*args: Any) -> Any:
            return bound_again(function, *held, *jax.tree.leaves(args))[0]

        (start, times, *args), _ = jax.tree.unflatten(jax.tree.structure(signature.args), arrays[signature.closed :])
        return [integrate(dynamics, start, times, *args, **kwargs)]

    try:
        jaxpr, consts = jax_compat.traced_quickly(call, [jax_compat.plain_aval(a.aval) for a in inputs])
    except Exception:  # another integrator than this JAX has
        return None
    return as_pattern(jaxpr, consts)
