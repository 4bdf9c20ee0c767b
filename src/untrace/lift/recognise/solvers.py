"""`jax.scipy.sparse.linalg.cg` and `bicgstab`: the loops of a solver as the author's call of it.

JAX keeps a `custom_linear_solve`, with the product that the author gave (`matvec`) and the whole loop as its parts. Its
frames say which solver it is, and the loop shows with which tolerances and how many steps. The guess is traced with that
product, as any other, and laid over what is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace.ir.callees import callee_of, output_of
from untrace.ir.evaluate import bound_again
from untrace.ir.nodes import Equation, Function, Library, Literal, Program, Slot, While, walk_functions
from untrace.ir.passes import is_strict
from untrace.lift.naming.names import provenance_of
from untrace.lift.naming.words import clean
from untrace.lift.recognise.engine import Lifter, Matcher
from untrace.lift.recognise.integrators import is_integrator, lift_integrator
from untrace.lift.recognise.library import resolve
from untrace.lift.recognise.patterns import Pattern, as_pattern
from untrace.lift.recognise.scalars import python_scalar
from untrace.provenance.sites import targets
from untrace.provenance.whose import is_library_internal

_MODULE = "jax.scipy.sparse.linalg"
_NAMES = ("cg", "bicgstab")
_DEFAULTS = {"tol": 1e-5, "atol": 0.0}
_STEPS_PER_UNKNOWN = 10  # where the author says nothing of `maxiter`


def find_solvers(program: Program, refused: frozenset[JaxprEqn] = frozenset()) -> Program:
    """Makes one call of the equations of each iterative solver, where that is proven; in place."""
    lifter = None
    for function in walk_functions(program.entry):
        found = [(e, name) for e in function.equations for name in [_solver(e)] if name]
        integrators = [e for e in function.equations if is_integrator(e)]
        if not found and not integrators:
            continue
        lifter = lifter or Lifter(refused, program.facts.own, provenance=provenance_of(program))
        matcher = Matcher(lifter, function)
        for equation, name in found:
            _lift(matcher, equation, name)
        for equation in integrators:
            try:
                lift_integrator(matcher, equation)
            except Exception:  # of another JAX it may look otherwise
                if is_strict():
                    raise
        matcher.finish(function)
    return program


def _solver(equation: Equation) -> str | None:
    """The solver that an equation is the whole of, by the frames around it."""
    if equation.callee.name != "custom_linear_solve" or equation.origin is None:
        return None
    codes, _ = jax_compat.raw_frames(jax_compat.equation_source(equation.origin)[0])
    return next((c.co_name for c in codes if c.co_name in _NAMES and is_library_internal(c.co_filename)), None)


def _lift(m: Matcher, equation: Equation, name: str) -> bool:
    matvec, _, solve, _ = equation.params["jaxprs"]
    closed = equation.params["const_lengths"].matvec
    both = m.made.get(equation.inputs[-1])  # right-hand side and first guess are put on the device together
    if not m.free(equation) or both is None or both.callee.name != "device_put" or len(both.inputs) != 2:
        return False
    b, start = both.inputs
    zeros = m.producer(start, "broadcast_in_dim")
    given = [b] if zeros is not None and type(zeros.inputs[0]) is Literal else [b, start]
    inputs = [*equation.inputs[:closed], *given]
    kwargs = dict(_settings(solve))
    size = math.prod(b.aval.shape)
    path = f"{_MODULE}.{name}"
    if kwargs.get("maxiter") == _STEPS_PER_UNKNOWN * size:
        del kwargs["maxiter"]
    pattern = _traced(path, matvec, inputs, closed, kwargs)
    covered = m.lay_over(pattern, inputs, [equation]) if pattern is not None else None
    if covered is None:
        return False
    args = tuple([Slot(i) for i in range(closed, len(inputs))])
    m._replace(path, args, kwargs, inputs, covered, [equation], equation)
    callee = callee_of(m.replaced[equation], Library)
    callee.function, callee.closed = matvec, closed
    names = [t.name for t in targets(m.site(equation)) if t.strong and t.path == (0,)]
    if names:
        output = output_of(equation)
        output.hint, output.named = clean(names[0]), True
    return True


def _settings(solve: Function) -> Iterator[tuple[str, Any]]:
    """The tolerances, which are squared first, and the most steps, with which the loop compares its counter."""
    squared = [e.inputs[0] for e in solve.equations if e.callee.name in ("square", "integer_pow")]
    numbers = [python_scalar(a.value, a.aval) for a in squared if type(a) is Literal]
    for (name, default), number in zip(_DEFAULTS.items(), numbers, strict=False):
        if number != default:
            yield name, number
    for loop in solve.equations:
        if type(loop.callee) is While:
            for e in loop.callee.condition.equations:
                if e.callee.name == "lt" and type(e.inputs[1]) is Literal:
                    yield "maxiter", int(e.inputs[1].value)


def _traced(path: str, matvec: Function, inputs: list[Any], closed: int, kwargs: dict[str, Any]) -> Pattern | None:
    """What the call traces to, with `matvec` as its function."""
    solver: Any = resolve(path)

    def call(*arrays: Any) -> list[Any]:
        return [solver(lambda x: bound_again(matvec, *arrays[:closed], x)[0], *arrays[closed:], **kwargs)[0]]

    try:
        jaxpr, consts = jax_compat.traced_quickly(call, [jax_compat.plain_aval(a.aval) for a in inputs])
    except Exception:  # another kind of solve
        return None
    return as_pattern(jaxpr, consts)
