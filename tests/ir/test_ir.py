"""The intermediate representation: its invariant check, its evaluator, and sharing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from programs import double_a_result, program_of

import untrace
from untrace.capture.function import trace
from untrace.ir import nodes
from untrace.ir.check import MalformedProgram, check
from untrace.ir.evaluate import bound_again, evaluate
from untrace.ir.nodes import (
    Cond,
    Constant,
    Equation,
    Function,
    Literal,
    Primitive,
    Scan,
    Value,
    While,
    functions_called,
    functions_in,
    walk_functions,
)
from untrace.lift import lift
from untrace.module.interface.entry import entry_of as entry_of_program

X = jnp.array([0.5, -1.5, 2.5])


def entry_of(function: Callable[..., Any], *args: Any) -> Function:
    """The entry of the captured program."""
    return program_of(trace(function, args, {}), "f", None).entry


def loop(x: Any) -> Any:
    def body(c: Any, v: Any) -> Any:
        return lax.cond(v > 0, lambda a: (a * v, a), lambda a: (a + x.sum(), v), c)

    return lax.scan(body, jnp.float32(2), x)


@jax.custom_jvp
def cube(x: Any) -> Any:
    return x**3


cube.defjvp(lambda p, t: (cube(p[0]), 3 * p[0] ** 2 * t[0]))

TABLE = np.arange(3, dtype=np.float32) + 0.25
PROGRAMS: list[Callable[..., Any]] = [
    lambda x: (jnp.sin(x) * 2 + TABLE, x.sum()),
    loop,
    lambda x: lax.while_loop(lambda v: v[0] < 9, lambda v: v * 2 + 1, x),
    jax.grad(lambda x: jax.jit(cube)(x).sum()),
    lambda x: jax.checkpoint(jnp.sin)(x) + cube(x),
    lambda x: (3.0, x, jnp.float32(1)),
    jax.vmap(lambda v: jnp.where(v > 0, v, -v)),
]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_evaluator_means_what_the_program_means(number: int) -> None:
    """Bit for bit, jitted on both sides; the check holds for what was captured."""
    function = PROGRAMS[number]
    entry = entry_of(function, X)
    check(entry)
    got = jax.jit(lambda x: evaluate(entry, x))(X)
    expected = jax.tree.leaves(jax.jit(function)(X))
    assert len(got) == len(expected)
    for a, b in zip(expected, got, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_the_evaluator_wants_an_argument_for_every_parameter() -> None:
    with pytest.raises(ValueError):
        evaluate(entry_of(PROGRAMS[0], X))


def test_what_jax_shares_is_one_function() -> None:
    """A jitted function that is called three times is one Function, and one constant is one Constant."""
    inner = jax.jit(lambda v: v * TABLE)
    entry = entry_of(lambda x: inner(x) + inner(x * 2) + lax.map(inner, jnp.stack([x, x]))[0], X)
    bodies = [f for f in walk_functions(entry) if len(f.equations) == 1]
    calls = [f for e in entry.equations for f in functions_called(e)]
    assert len({id(f) for f in calls if f in bodies}) < len([f for f in calls if f in bodies])
    constants = {id(a): a for f in walk_functions(entry) for e in f.equations for a in e.inputs if type(a) is Constant}
    assert len({np.asarray(c.value).tobytes() for c in constants.values()}) == len(constants)


def test_callees_come_before_callers() -> None:
    order = walk_functions(entry_of(loop, X))
    assert order[-1].name == "f" and len(order) == len({id(f) for f in order}) > 3
    place = {id(f): i for i, f in enumerate(order)}
    for function in order:
        for equation in function.equations:
            for callee in functions_called(equation):
                assert place[id(callee)] < place[id(function)]


# ---------------------------------------------------------------- what the check refuses


def simple(name: str = "f") -> tuple[Function, Equation]:
    """`f(x) = sin(x)` and its equation."""
    aval = jax.core.ShapedArray((3,), np.dtype("float32"))
    x, y = Value(aval), Value(aval)
    equation = Equation(Primitive(lax.sin_p), [x], [y], {})
    return Function(name, [x], [equation], [y]), equation


def breaks(change: Callable[[Function, Equation], Any]) -> str:
    """The check's message for `f(x) = sin(x)` after a change."""
    function, equation = simple()
    check(function)
    change(function, equation)
    with pytest.raises(MalformedProgram) as caught:
        check(function)
    return str(caught.value)


def test_functions_in_a_named_tuple_are_walked() -> None:
    """The parts of a linear solver are one: `custom_linear_solve[jaxprs=LinearSolve(matvec=..., ...)]`."""

    def solved(b: Any) -> Any:
        return lax.custom_linear_solve(lambda v: 2.0 * v, b, lambda matvec, v: v / 2.0)

    entry = entry_of(solved, X)
    (equation,) = [e for e in entry.equations if e.callee.name == "custom_linear_solve"]
    inside = functions_in(equation.params["jaxprs"])
    assert inside
    assert {id(f) for f in inside} <= {id(f) for f in walk_functions(entry)}


def test_each_broken_invariant_is_named() -> None:
    """The function and the equation stand in the message."""

    def uses_later(function: Function, equation: Equation) -> None:
        equation.inputs = [equation.outputs[0]]

    def binds_twice(function: Function, equation: Equation) -> None:
        function.equations.append(Equation(equation.callee, function.params, equation.outputs, {}))

    def binds_its_parameter(function: Function, equation: Equation) -> None:
        equation.outputs = [function.params[0]]

    def returns_a_stranger(function: Function, equation: Equation) -> None:
        function.results = [Value(equation.outputs[0].aval)]

    def binds_a_literal(function: Function, equation: Equation) -> None:
        equation.outputs = [Literal(1.0, equation.outputs[0].aval)]

    def repeats_a_parameter(function: Function, equation: Equation) -> None:
        function.params = [function.params[0], function.params[0]]

    at = "equation `sin` of function 'f'"
    assert breaks(uses_later) == f"internal: {at} uses a variable that is not bound yet"
    assert breaks(binds_twice) == f"internal: {at} binds a variable a second time"
    assert breaks(binds_its_parameter) == f"internal: {at} binds a variable a second time"
    assert breaks(binds_a_literal) == f"internal: {at} binds a Literal, not a Value"
    head = "internal: the head or the result of function 'f'"
    assert breaks(returns_a_stranger) == f"{head} uses a variable that is not bound yet"
    assert breaks(repeats_a_parameter) == f"{head} binds a variable a second time"


def test_variables_of_one_function_mean_nothing_in_another() -> None:
    """A nested function is checked too; what it reads from outside must be a parameter."""
    inner, _ = simple("inner")
    outer, equation = simple("outer")
    equation.params = {"jaxpr": (inner, {"more": [inner]})}
    check(outer)
    inner.equations[0].inputs = [outer.params[0]]
    with pytest.raises(MalformedProgram, match="of function 'inner' uses a variable"):
        check(outer)


def test_a_dropped_result_binds_nothing() -> None:
    function, equation = simple()
    equation.outputs = [None]
    function.results = [function.params[0], Literal(1.0, None), Constant(TABLE, None)]
    check(function)


def layers(params: Any, x: Any) -> Any:
    @jax.checkpoint
    def block(h: Any, w: Any) -> Any:
        return jnp.tanh(h @ w) + jnp.sin(h) * h

    for w in params:
        x = block(x, w)
    return jnp.sum(lax.scan(lambda c, v: (jnp.cos(c) * v, c @ params[0]), x, jnp.ones(3))[1] ** 2)


@pytest.mark.parametrize("transform", [lambda f: f, jax.grad, jax.value_and_grad], ids=["forward", "grad", "both"])
def test_remembered_functions_are_those_that_are_called(
    transform: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known, remembered = nodes._walked_before, 0

    def walked_before(entry: Function) -> list[Function]:
        nonlocal remembered
        found = known(entry)
        if found:
            remembered += 1
            assert list(map(id, found)) == list(map(id, nodes._walk(entry)))
        return found

    monkeypatch.setattr(nodes, "_walked_before", walked_before)
    monkeypatch.setenv("UNTRACE_STRICT", "1")
    untrace.decompile(transform(layers))([jnp.eye(4)] * 3, jnp.ones((4, 4)))
    assert remembered


def test_functions_are_looked_for_again_where_the_equations_are_others() -> None:
    entry = entry_of(loop, X)
    before = walk_functions(entry)
    entry.equations = [e for e in entry.equations if e.callee.name != "scan"]
    assert len(before) > 1
    assert walk_functions(entry) == [entry]


# ---------------------------------------------------------------- loops and branches


def nested(w: Any, x: Any) -> Any:
    def turn(h: Any, v: Any) -> Any:
        h = lax.cond(v > 0, lambda h: jnp.tanh(h @ w + v), lambda h: h - v, h)
        return h, jax.nn.softmax(h)

    h, out = lax.scan(turn, x, x)
    return lax.while_loop(lambda s: jnp.sum(s**2) < 50.0, lambda s: 2.0 * s + x, h), jnp.sum(out * out)


LIFTED: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (nested, (jnp.eye(3) * 0.5, X)),
    (jax.grad(lambda w, x: nested(w, x)[1]), (jnp.eye(3) * 0.5, X)),
    (jax.vmap(nested, (None, 0)), (jnp.eye(3) * 0.5, jnp.stack([X, -X]))),
    (jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda v: jnp.sin(v) * v)(x) ** 2)), (X,)),
]


@pytest.mark.parametrize("number", range(len(LIFTED)))
def test_bodies_are_run_as_the_passes_have_left_them(number: int) -> None:
    function, args = LIFTED[number]
    captured = trace(function, args, {})
    program = program_of(captured, "f", entry_of_program(function, captured, args, {}, (), ()))
    lift(program)
    got = jax.jit(lambda *given: evaluate(program.entry, *given))(*args)
    for a, b in zip(jax.tree.leaves(jax.jit(function)(*args)), got, strict=True):
        assert np.allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [Scan, While, Cond])
def test_a_body_that_a_pass_broke_is_seen(kind: type) -> None:
    args = (jnp.eye(3) * 0.5, X)
    entry = entry_of(nested, *args)
    before = evaluate(entry, *args)
    loops = [e.callee for f in walk_functions(entry) for e in f.equations if type(e.callee) is kind]
    body = loops[0].bodies[-1]
    double_a_result(body)
    check(entry)
    after = evaluate(entry, *args)
    assert not all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(before, bound_again(entry, *args), strict=True))


def test_a_callee_says_what_its_operands_are() -> None:
    entry = entry_of(nested, jnp.eye(3), X)
    scan, loop = (next(e for e in entry.equations if type(e.callee) is kind) for kind in (Scan, While))
    assert len(scan.inputs) == len(scan.callee.body.params)
    assert len(scan.callee.body.results) == len(scan.outputs) and scan.callee.carries == 1
    assert loop.callee.consts == len(loop.inputs) - len(loop.outputs)
    assert list(scan.parameters) == [k for k in scan.origin.params if k in scan.parameters]
    assert "jaxpr" not in scan.params and scan.parameters["jaxpr"] is scan.callee.body
