"""Small functions for `bench/lint.py`: for each rule some that have it, on the line marked `# <-`, and some that look alike."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback


@dataclass(frozen=True)
class Case:
    """`function` is linted on `args`. `has`: whether `rule` holds for the line that is marked in `marked`; else it must not."""

    rule: str
    has: bool
    function: Callable[..., Any]
    args: tuple[Any, ...]
    marked: Callable[..., Any]
    static: Sequence[int] = ()


CASES: list[Case] = []


def case(
    rule: str, has: bool, *args: Any, of: Callable[..., Any] = lambda f: f, static: Sequence[int] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append(Case(rule, has, of(function), args, function, static))
        return function

    return add


_X = jnp.linspace(-1.0, 1.0, 8)
_W = jnp.eye(8)
_HALF = _X.astype(jnp.bfloat16)
_TABLE = jnp.arange(300_000.0)
_SMALL = jnp.arange(1000.0)
_GRID = np.ones((1024, 512), np.float32)
_COUNTER = itertools.count()


def summed_gradient(function: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
    return jax.grad(lambda *args: jnp.sum(function(*args)), argnums)


# ---------------------------------------------------------------- unrolled-loop


@case("unrolled-loop", True, _X, _W)
def steps(x, w):
    for i in range(20):  # <-
        x = jnp.tanh(x @ w) + 0.1 * i
    return x


@case("unrolled-loop", True, [{"w": _W, "b": _X}] * 6, _X, of=summed_gradient)
def layers(params, x):
    for layer in params:  # <-
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x


@case("unrolled-loop", True, jnp.ones((16, 8)))
def rows(x):
    out = []
    for i in range(16):  # <-
        out.append(jnp.sum(jnp.sin(x[i])))
    return jnp.stack(out)


@case("unrolled-loop", True, _X)
def first_turn_is_another(x):
    total = 0.0
    for i in range(10):  # <-
        total = total + jnp.sum(jnp.cos(x * i))
    return total


@case("unrolled-loop", True, jnp.ones((16, 8)))
def listed(x):
    return jnp.stack([jnp.sum(jnp.sin(row)) for row in x])  # <-


@case("unrolled-loop", True, jnp.ones((16, 8)))
def summed(x):
    return sum(jnp.sum(jnp.sin(x[i])) for i in range(16))  # <-


@case("unrolled-loop", False, [_W, _W, _W], _X)
def three_listed(weights, x):
    return [jnp.tanh(jnp.sin(x @ w) @ w) for w in weights]


@case("unrolled-loop", False, _X, _W)
def three_turns(x, w):
    for i in range(3):
        x = jnp.tanh(x @ w) + 0.1 * i
    return x


@case("unrolled-loop", False, _X, _W)
def scanned(x, w):
    return lax.scan(lambda x, i: (jnp.tanh(x @ w) + 0.1 * i, None), x, jnp.arange(20.0))[0]


@case("unrolled-loop", False, [jnp.ones((8, 16)), jnp.ones((16, 32)), jnp.ones((32, 64)), jnp.ones((64, 4)), jnp.ones((4, 2))], _X)  # fmt: skip
def other_sizes(weights, x):
    for w in weights:
        x = jax.nn.relu(x @ w) + 1.0
    return x


@case("unrolled-loop", False, jnp.ones((3, 3, 3, 3, 3)))
def other_axes(x):
    for axis in range(5):
        x = jnp.flip(jnp.cumsum(x, axis=axis), axis=axis) - jnp.mean(x, axis=axis, keepdims=True)
    return x


@case("unrolled-loop", False, _X)
def nothing_traced(x):
    names = []
    for i in range(100):
        names.append(f"x{i}")
    return x * len(names)


# ---------------------------------------------------------------- large-constant


@case("large-constant", True, _X)
def table(x):
    return jnp.sum(x) + _TABLE  # <-


@case("large-constant", True, jnp.ones(512))
def numpy_array(x):
    return jnp.asarray(_GRID) @ x  # <-


@case("large-constant", True, jnp.ones(512))
def in_a_scan(x):
    def turn(x, _):
        return jnp.tanh((_GRID @ x)[:512]), None  # <-

    return lax.scan(turn, x, length=4)[0]


@case("large-constant", False, _X)
def small_table(x):
    return jnp.sum(x) + _SMALL


@case("large-constant", False, _TABLE, _X)
def passed(table, x):
    return jnp.sum(x) + table


@case("large-constant", False, _X)
def made_inside(x):
    return jnp.sum(x) + jnp.zeros((1024, 1024)) + jnp.arange(1024.0)


# ---------------------------------------------------------------- promotion


@case("promotion", True, _HALF)
def numpy_scalar(x):
    return x * np.float32(2.0)  # <-


@case("promotion", True, _HALF, _X)
def two_types(x, y):
    return x + y  # <-


@case("promotion", True, _HALF, _X)
def chosen(x, y):
    return jnp.where(x > 0, x, y)  # <-


@case("promotion", True, _HALF)
def new_ones(x):
    return jnp.maximum(x, jnp.ones(8))  # <-


@case("promotion", False, _HALF)
def plain_number(x):
    return x * 2.0 + 1


@case("promotion", False, _HALF, _X)
def converted(x, y):
    return x.astype(jnp.float32) + y, x + y.astype(jnp.bfloat16)


@case("promotion", False, _HALF)
def exact_inside(x):
    return jnp.mean(x), jnp.var(x), jax.nn.softmax(x), jnp.sum(x, dtype=jnp.float32), jax.nn.gelu(x), jnp.linalg.norm(x)


@case("promotion", False, jnp.arange(4), _X[:4])
def integers(n, x):
    return n * x, n / 2, n.sum() * x


# ---------------------------------------------------------------- weak-type


@case("weak-type", True, _X)
def mask(x):
    return jnp.where(x > 0, 1.0, 0.0)  # <-


@case("weak-type", True, {"step": jnp.int32(0), "x": _X})
def reset(state):
    return {"step": jnp.where(state["x"][0] > 0, 0, 1), "x": state["x"]}  # <-


@case("weak-type", True, _X)
def filled(x):
    return x, jnp.full(8, 0.5) * 2  # <-


@case("weak-type", False, _X)
def typed_mask(x):
    return jnp.where(x > 0, jnp.float32(1.0), 0.0)


@case("weak-type", False, _X)
def scaled(x):
    return 2.0 * x + 1


@case("weak-type", False, 2.0)
def of_a_number(x):
    return x * 2


# ---------------------------------------------------------------- unused-input


@case("unused-input", True, _X, jax.random.key(0))
def key_unused(x, key):  # <-
    return jnp.sin(x)


@case("unused-input", True, {"w": _W, "b": _X}, _X)
def bias_unused(params, x):  # <-
    return params["w"] @ x


@case("unused-input", True, _X, _X)
def result_dropped(x, y):  # <-
    _ = jnp.cos(y)
    return jnp.sin(x)


@case("unused-input", False, _X, _X)
def marked_unused(x, _carry):
    return jnp.sin(x)


@case("unused-input", False, _X, _X)
def for_its_shape(x, like):
    return jnp.sin(x).reshape(like.shape) + jnp.zeros_like(like)


@case("unused-input", False, {"count": jnp.int32(3), "mean": _X}, _X)
def state_replaced(state, x):
    return {"count": state["count"] + 1, "mean": x}


@case("unused-input", False, _X, of=summed_gradient)
def linear(x):
    return 3.0 * x


# ---------------------------------------------------------------- static-branch


@case("static-branch", True, _X, 30, static=(1,))
def every_tenth(x, step):
    if step % 10 == 0:  # <-
        x = x - jnp.mean(x)
    return x


@case("static-branch", True, _X, 0.5, static=(1,))
def by_rate(x, rate):
    return jnp.tanh(x) if rate > 0.1 else x  # <-


@case("static-branch", True, _X, True, static=(1,))
def training(x, train):
    if train:  # <-
        x = x * 0.9
    return x


@case("static-branch", False, _X, "relu", static=(1,))
def by_name(x, activation):
    if activation == "relu":
        return jax.nn.relu(x)
    return x


@case("static-branch", False, _X, None, static=(1,))
def maybe_mask(x, mask):
    return x if mask is None else x * mask


@case("static-branch", False, _X, 3, static=(1,))
def only_a_size(x, n):
    return x.reshape(-1, 2)[:n] * n


# ---------------------------------------------------------------- callback-in-loop


@case("callback-in-loop", True, _X)
def prints(x):
    def turn(x, _):
        jax.debug.print("x = {}", x[0])  # <-
        return jnp.sin(x), None

    return lax.scan(turn, x, length=100)[0]


@case("callback-in-loop", True, _X)
def looks_up(x):
    def turn(i, x):
        return jax.pure_callback(np.sort, jax.ShapeDtypeStruct(x.shape, x.dtype), x) * 0.5  # <-

    return lax.fori_loop(0, 50, turn, x)


@case("callback-in-loop", True, _X)
def logs(x):
    def turn(x):
        io_callback(lambda v: None, None, x)  # <-
        return x * 0.5

    return lax.while_loop(lambda x: jnp.max(x) > 0.01, turn, x)


@case("callback-in-loop", False, _X)
def prints_once(x):
    jax.debug.print("x = {}", x[0])
    return jnp.sin(x)


@case("callback-in-loop", False, _X)
def prints_now_and_then(x):
    def turn(x, i):
        lax.cond(i % 100 == 0, lambda: jax.debug.print("x = {}", x[0]), lambda: None)
        return jnp.sin(x), None

    return lax.scan(turn, x, jnp.arange(1000))[0]


@case("callback-in-loop", False, _X)
def three_times(x):
    def turn(x, _):
        jax.debug.print("x = {}", x[0])
        return jnp.sin(x), None

    return lax.scan(turn, x, length=3)[0]


# ---------------------------------------------------------------- gather-slice


@case("gather-slice", True, _X)
def first_ones(x):
    return x[jnp.arange(4)]  # <-


@case("gather-slice", True, jnp.ones((5, 8)))
def every_second(x):
    return jnp.take(x, jnp.array([0, 2, 4, 6]), axis=1)  # <-


@case("gather-slice", True, _X, jnp.int32(2))
def window(x, i):
    return x[i + jnp.arange(3)]  # <-


@case("gather-slice", False, _X, jnp.int32(2))
def single(x, i):
    return x[0], x[i], x[-1], x[2:5], x[::2]


@case("gather-slice", False, _X)
def some(x):
    return x[jnp.array([0, 1, 5])]


@case("gather-slice", False, _X, jnp.array([1, 2, 3]))
def given(x, i):
    return x[i], x[jnp.argsort(x)]


@case("gather-slice", False, _W)
def diagonal(x):
    return x[jnp.arange(8), jnp.arange(8)], jnp.roll(x, 1, axis=0), jnp.tril(x)


# ---------------------------------------------------------------- while-as-scan


@case("while-as-scan", True, _X)
def counted(x):
    return lax.while_loop(lambda s: s[0] < 10, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1]  # <-


@case("while-as-scan", True, _X)
def array_bound(x):
    return lax.fori_loop(0, jnp.asarray(10), lambda i, x: jnp.sin(x) + i, x)  # <-


@case("while-as-scan", True, _X)
def halved(x):
    def halve(state):
        rest, x = state
        return rest // 2, jnp.sin(x)

    return lax.while_loop(lambda s: s[0] > 0, halve, (1000, x))  # <-


@case("while-as-scan", False, _X)
def until_small(x):
    def goes_on(state):
        i, x = state
        return (i < 100) & (jnp.max(jnp.abs(x)) > 1e-3)

    return lax.while_loop(goes_on, lambda s: (s[0] + 1, s[1] * 0.5), (0, x))


@case("while-as-scan", False, _X, jnp.int32(4))
def traced_bound(x, n):
    return lax.fori_loop(0, n, lambda i, x: jnp.sin(x), x)


@case("while-as-scan", False, _X)
def fixed_bound(x):
    return lax.fori_loop(0, 10, lambda i, x: jnp.sin(x), x)


# ---------------------------------------------------------------- idle-checkpoint


@case(
    "idle-checkpoint", True, jnp.ones((512, 512)), jnp.ones(512), of=functools.partial(summed_gradient, argnums=(0, 1))
)
def sum_of_sines(w, x):
    return jax.checkpoint(lambda w, x: jnp.sum(jnp.sin(w @ x)))(w, x) ** 2  # <-


@case("idle-checkpoint", True, jnp.ones((256, 256)), of=summed_gradient)
def mean_of_rows(x):
    f = jax.checkpoint(lambda x: jnp.log(jnp.sum(x * 3.0, axis=1).mean()) ** 2)
    return f(x)  # <-


@case("idle-checkpoint", True, jnp.ones((256, 256)), jnp.ones(256), of=summed_gradient)
def quadratic(w, x):
    f = jax.checkpoint(lambda w, x: jnp.tanh(x @ (w @ x)))
    return f(w, x)  # <-


@case("idle-checkpoint", False, _W, _X, of=summed_gradient)
def layer(w, x):
    f = jax.checkpoint(lambda w, x: jnp.tanh(jnp.sin(x @ w) @ w))
    return f(w, f(w, x))


@case("idle-checkpoint", False, _X, of=summed_gradient)
def elementwise(x):
    return jax.checkpoint(lambda x: jnp.sin(jnp.exp(jnp.sin(x))))(x)


@case("idle-checkpoint", False, jnp.ones((512, 512)), jnp.ones(512))
def not_differentiated(w, x):
    return jax.checkpoint(lambda w, x: jnp.sum(jnp.sin(w @ x)))(w, x) ** 2


@case("idle-checkpoint", False, jnp.ones((6, 8, 8)), _X, of=summed_gradient)
def scanned_layers(ws, x):
    return lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(jnp.sin(x @ w) @ w), None)), x, ws)[0]


# ---------------------------------------------------------------- frozen-value


@case("frozen-value", True, _X)
def clock(x):
    now = time.time()  # <-
    return x + now


@case("frozen-value", True, _X)
def noise(x):
    return x + np.random.normal(size=8)  # <-


@case("frozen-value", True, _X)
def counter(x):
    return x * next(_COUNTER)  # <-


@case("frozen-value", False, _X, jax.random.key(0))
def keyed(x, key):
    return x + jax.random.normal(key, x.shape)


@case("frozen-value", False, _X)
def seeded(x):
    generator = np.random.default_rng(0)
    return x + generator.normal(size=8)


@case("frozen-value", False, _X)
def timed(x):
    start = time.perf_counter()
    y = jnp.sin(x)
    print(f"traced in {time.perf_counter() - start:.0f} s", end="\r")
    return y


# ---------------------------------------------------------------- out-of-bounds


@case("out-of-bounds", True, _X)
def behind_the_end(x):
    return x[8]  # <-


@case("out-of-bounds", True, _X, jnp.array([0, 3, 11]))
def given_indices(x, i):
    return x[i]  # <-


@case("out-of-bounds", True, _X)
def written(x):
    return x.at[jnp.array([1, 8])].add(1.0)  # <-


@case("out-of-bounds", True, _X)
def in_a_loop(x):
    def turn(total, i):
        return total + x[i + 1], None  # <-

    return lax.scan(turn, 0.0, jnp.arange(8))[0]


@case("out-of-bounds", True, _X, jnp.int32(6))
def window_at_the_end(x, i):
    return lax.dynamic_slice(x, (i,), (4,))  # <-


@case("out-of-bounds", False, _X, jnp.array([0, -8, 7]))
def inside(x, i):
    return x[i], x[-1], x[jnp.argmax(x)], x.at[i].set(0.0), lax.dynamic_slice(x, (4,), (4,))


@case("out-of-bounds", False, _X, jnp.array([0, 3, 11]))
def mode_given(x, i):
    return x.at[i].get(mode="fill", fill_value=0.0), x.at[i].set(1.0, mode="drop"), jnp.take(x, i, mode="clip")


@case("out-of-bounds", False, _X, jnp.array([0, 3, 11]))
def clipped(x, i):
    return x[jnp.clip(i, 0, 7)], x[i % 8]


@case("out-of-bounds", False, _X, jnp.array([0, 1, 1, 2, 2, 3, 9, 9]))
def segments(x, i):
    return jax.ops.segment_sum(x, i, 4), jnp.interp(x, _X, _X), jnp.searchsorted(x, x)
