"""The evaluator runs every callee by its body, as passes have left it: also what is mapped, differentiated, or has rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P
from programs import double_a_result, program_with_calls

from untrace.ir.check import MalformedProgram, check
from untrace.ir.evaluate import evaluate
from untrace.ir.nodes import (
    Equation,
    Function,
    Local,
    Program,
    TreeMap,
    functions_called,
    walk_functions,
)
from untrace.ir.structured import CustomRule, JvpRule, Pullback, Transformed, VjpRule
from untrace.lift import lift

X = jnp.array([0.5, -1.5, 2.5])
W = jnp.array([[0.5, -0.25, 0.125], [1.0, 0.5, -1.0], [0.25, 2.0, 0.75]])


@jax.custom_jvp
def soft(x: Any) -> Any:
    return jnp.log1p(jnp.exp(x)) * x


@soft.defjvp
def soft_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (x_dot,) = primals, tangents
    return soft(x), 3.0 * x_dot * jnp.cos(x)  # not what the function's own derivative is


@jax.custom_vjp
def clipped(x: Any, limit: Any) -> Any:
    return jnp.sin(x) * limit


def clipped_fwd(x: Any, limit: Any) -> Any:
    return clipped(x, limit), (x, jnp.cos(limit))


def clipped_bwd(saved: Any, d_out: Any) -> Any:
    x, factor = saved
    return jnp.clip(d_out * x, -0.5, 0.5) * factor, None


clipped.defvjp(clipped_fwd, clipped_bwd)


def loss(w: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ w + 0.5)
    return jnp.sum(soft(hidden) * clipped(hidden, 0.75) ** 2)


def step(w: Any, x: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(w, x)
    return value, w - 0.1 * grads


def steps(w: Any, x: Any) -> Any:
    """The derivative is inside a loop."""

    def turn(w: Any, v: Any) -> Any:
        value, grads = jax.value_and_grad(lambda w: loss(w, x * v))(w)
        return w - 0.1 * grads, value

    return lax.scan(turn, w, x)


def pulled(w: Any, x: Any) -> Any:
    y, pullback = jax.vjp(lambda w: jnp.tanh(x @ w) * jnp.exp(x), w)
    return y, pullback(y), lax.map(lambda v: pullback(v * y)[0], x)


def pushed(w: Any, x: Any) -> Any:
    y, y_dot = jax.jvp(lambda w: jnp.tanh(x @ w) * soft(x), (w,), (jnp.ones_like(w),))
    z, forwards = jax.linearize(lambda v: jnp.sin(v @ w) * v, x)
    return y, y_dot, z, forwards(y), forwards(z)


def jacobians(w: Any, x: Any) -> Any:
    def model(v: Any) -> Any:
        return jnp.tanh(v @ w) * jnp.cos(v)

    return jax.jacfwd(model)(x), jax.jacrev(model)(x), jax.hessian(lambda v: jnp.sum(model(v) ** 3))(x)


def transposed(w: Any, x: Any) -> Any:
    back = jax.linear_transpose(lambda v: jnp.cumsum(v @ w) * 2.0, x)
    return back(jnp.cos(x))


def mapped(w: Any, x: Any) -> Any:
    def one(v: Any, w: Any) -> Any:
        gate = lax.while_loop(lambda s: jnp.sum(s**2) < 9.0, lambda s: 2.0 * s + v, jnp.abs(v) + 1.0)
        return jnp.tanh(v @ w) * gate, jax.grad(lambda v: jnp.sum(jnp.sin(v @ w) * v))(v)

    return jax.vmap(one, (1, None), (0, 1))(w, w)


def marked(w: Any, x: Any) -> Any:
    @jax.checkpoint
    def block(h: Any, w: Any) -> Any:
        h = jnp.tanh(h @ w) + jnp.sin(h) * h
        return lax.cond(h[0] > 0, lambda h: h * 2.0, lambda h: jnp.cos(h), h)

    return jnp.sum(block(block(x, w), w.T) ** 2)


def evaluated_too(w: Any, x: Any) -> Any:
    """A function that is differentiated is called as well."""

    def cost(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w) * jnp.sin(x @ w) + jnp.cos(x) * x)

    grads = jax.grad(cost)(w, x)
    return cost(w - 0.1 * grads, x), grads


def trees(w: Any, x: Any) -> Any:
    """A whole step on a pytree: what is done to each leaf is one call, and so is the sum of their norms."""

    def cost(params: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]) ** 2) * params["scale"]

    params = {"w": w, "b": x, "scale": jnp.float32(0.5)}
    grads = jax.grad(cost)(params)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda p, g: p - 0.1 * g / norm, params, grads)


def flat_tree(w: Any, x: Any) -> Any:
    """Of a vector that is a tree again, not every leaf is read."""
    flat, unravel = ravel_pytree({"w": w, "b": x, "scale": jnp.cos(x)})
    moved = unravel(jnp.sin(flat) * flat)
    return moved["w"], moved["scale"]


def of_parts(w: Any, x: Any) -> Any:
    """Primitives with functions in their parameters."""

    @partial(lax.composite, name="own.scaled")
    def scaled(v: Any) -> Any:
        return 3.0 * jnp.sin(v)

    sharded = jax.shard_map(
        lambda v: lax.psum(jnp.exp(v) @ w, "d"), mesh=jax.make_mesh((1,), ("d",)), in_specs=P(), out_specs=P()
    )
    solved = lax.custom_linear_solve(lambda v: 2.0 * v, x, lambda matvec, b: b / 2.0 + 0.0 * matvec(b))
    linear = jax.custom_derivatives.linear_call(lambda r, v: r * v, lambda r, ct: r * ct, jnp.cos(x), x)
    return scaled(x), sharded(x), solved, linear


# (the program, how its derivatives are captured, the callees that it is to have)
PROGRAMS: list[tuple[Callable[..., Any], str, set[str]]] = [
    (loss, "called", {"custom_jvp_call", "custom_vjp_call"}),
    (step, "called", {"custom_jvp_call", "custom_vjp_call", "value_and_grad"}),
    (steps, "called", {"scan", "value_and_grad"}),
    (steps, "written", {"scan"}),
    (jax.grad(loss), "written", {"custom_jvp_call"}),
    (pulled, "called", {"vjp", "pullback", "scan"}),
    (pushed, "called", {"jvp", "linearize", "pushforward", "custom_jvp_call"}),
    (jacobians, "called", {"jacfwd", "jacrev", "hessian", "local call"}),
    (transposed, "called", {"linear_transpose", "pullback"}),
    (mapped, "called", {"vmap", "while", "value_and_grad"}),
    (marked, "called", {"checkpoint", "cond"}),
    (jax.grad(marked), "called", {"value_and_grad", "checkpoint"}),
    (jax.grad(marked), "written", {"checkpoint_vjp"}),
    (evaluated_too, "called", {"value_and_grad", "called"}),
    (trees, "called", {"value_and_grad", "tree map"}),
    (flat_tree, "written", {"tree ravel", "tree unravel"}),
    (of_parts, "written", {"composite", "shard_map", "custom_linear_solve", "linear_call"}),
]
TITLES = [f"{getattr(fn, '__name__', 'fn')}-{derivatives}" for fn, derivatives, _ in PROGRAMS]
# JAX's lines differ in what they call it.
_SAME = {"remat2": "checkpoint", "remat": "checkpoint"}


def lifted(number: int) -> Program:
    fn, derivatives, _ = PROGRAMS[number]
    program = program_with_calls(fn, (W, X), derivatives)
    lift(program)
    return program


def equations(entry: Function) -> list[Equation]:
    return [e for f in walk_functions(entry) for e in f.equations]


@pytest.mark.parametrize("number", range(len(PROGRAMS)), ids=TITLES)
def test_what_was_lifted_gives_what_the_original_gives(number: int) -> None:
    fn, _, kinds = PROGRAMS[number]
    program = lifted(number)
    check(program.entry)
    found = {_SAME.get(e.callee.name, e.callee.name) for e in equations(program.entry)}
    assert kinds <= found, found
    got = jax.jit(lambda *given: evaluate(program.entry, *given))(W, X)
    for a, b in zip(jax.tree.leaves(jax.jit(fn)(W, X)), got, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert np.allclose(a, b, rtol=1e-6, atol=1e-6)


# (the program, what is broken in it)
BROKEN = [
    (loss, "custom_jvp_call"), (loss, "custom_vjp_call"), (step, "value_and_grad"), (steps, "scan"), (pulled, "vjp"),
    (pushed, "jvp"), (pushed, "linearize"), (jacobians, "jacfwd"), (jacobians, "hessian"), (jacobians, "local call"),
    (transposed, "linear_transpose"), (mapped, "vmap"), (mapped, "while"), (marked, "checkpoint"), (marked, "cond"),
    (evaluated_too, "called"), (trees, "tree map"), (of_parts, "composite"), (of_parts, "shard_map"),
    (of_parts, "custom_linear_solve"), (of_parts, "linear_call"),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "name"), BROKEN, ids=[f"{fn.__name__}-{name}" for fn, name in BROKEN])
def test_a_lifted_body_that_is_wrong_is_seen(fn: Callable[..., Any], name: str) -> None:
    """Of every kind of callee: the evaluator runs the body that the lifts have left, not what was captured."""
    program = lifted(next(i for i, (other, _, _) in enumerate(PROGRAMS) if other is fn))
    before = evaluate(program.entry, W, X)
    equation = next(e for e in equations(program.entry) if _SAME.get(e.callee.name, e.callee.name) == name)
    callee = equation.callee
    if type(callee) is TreeMap:
        body = callee.turns[-1]
    elif type(callee) is Local:
        body = callee.body
    else:
        body = functions_called(equation)[-1 if name in ("while", "cond", "custom_linear_solve") else 0]
    double_a_result(body)
    check(program.entry)
    after = evaluate(program.entry, W, X)
    assert not all(np.allclose(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("fn", "name"), [b for b in BROKEN if b[1] != "linear_transpose" and b[0] not in (trees, of_parts)]
)
def test_the_check_knows_what_the_functions_of_a_callee_take(fn: Callable[..., Any], name: str) -> None:
    program = lifted(next(i for i, (other, _, _) in enumerate(PROGRAMS) if other is fn))
    equation = next(e for e in equations(program.entry) if _SAME.get(e.callee.name, e.callee.name) == name)
    check(program.entry)
    equation.inputs = equation.inputs[: -2 if name == "jvp" else -1]  # one is a tangent
    with pytest.raises(MalformedProgram, match="arguments"):
        check(program.entry)


@pytest.mark.parametrize("kind", [JvpRule, VjpRule])
def test_a_rule_that_is_wrong_is_seen_where_its_function_is_differentiated(kind: type) -> None:
    program = lifted(1)
    value, moved = evaluate(program.entry, W, X)
    rules = [e.callee.rule for e in equations(program.entry) if type(e.callee) is CustomRule]
    rule = next(r for r in rules if type(r) is kind)
    double_a_result(rule.function if type(rule) is JvpRule else rule.bwd)
    same, other = evaluate(program.entry, W, X)
    assert np.array_equal(value, same) or kind is JvpRule
    assert not np.allclose(moved, other, rtol=1e-3)


def test_a_rule_that_was_not_captured_is_that_of_the_original() -> None:
    """So that derivatives of what calls it are the author's."""
    captured = program_with_calls(loss, (W, X)).entry
    expected = jax.grad(loss)(W, X)
    assert np.allclose(jax.grad(lambda w: evaluate(captured, w, X)[0])(W), expected, rtol=1e-5)
    for equation in equations(captured):
        if type(equation.callee) is CustomRule:
            equation.callee.rule = None
    assert np.allclose(jax.grad(lambda w: evaluate(captured, w, X)[0])(W), expected, rtol=1e-5)


def test_what_a_pullback_holds_is_said() -> None:
    program = lifted(TITLES.index("pulled-called"))
    callees = [e.callee for e in equations(program.entry)]
    (made,) = [c for c in callees if type(c) is Transformed]
    pullbacks = [c for c in callees if type(c) is Pullback]
    assert len(pullbacks) == 2 and all(c.derivative is made.how for c in pullbacks)
    assert {tuple(aval.shape) for aval in made.held} >= {(3,)}
