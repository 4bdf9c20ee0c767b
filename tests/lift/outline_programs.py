"""Programs whose functions, pytrees and repetition come back."""

from __future__ import annotations

import jax
import jax.numpy as jnp

KEY = jax.random.key(0)


def dense(params, x):
    h = jnp.tanh(x @ params["w"] + params["b"])
    return h * jax.nn.sigmoid(h) + x


def layer(width=4, seed=0):
    return {"w": jax.random.normal(jax.random.key(seed), (width, width)), "b": jnp.ones(width)}


def norm(x, scale):
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centered = x - mean
    return centered * jax.lax.rsqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + 1e-5) * scale


class Attention:
    def __init__(self, heads):
        self.heads = heads

    def __call__(self, params, x):
        q, k, v = (self.project(params[n], x) for n in "qkv")
        weights = jax.nn.softmax(jnp.einsum("ihd,jhd->hij", q, k), axis=-1)
        return jnp.einsum("hij,jhd->ihd", weights, v).reshape(x.shape)

    def project(self, w, x):
        y = (x @ w).reshape(x.shape[0], self.heads, -1)
        return y * 2.0 - jnp.abs(y)


def two_calls(params, x):
    y = dense(params["first"], x)
    z = dense(params["second"], y * 3.0)
    return y + z


def nested(params, x):
    def block(p, x):
        h = norm(x, p["scale"])
        return x + dense(p["dense"], h)

    y = block(params["a"], x) + 1.0
    return block(params["b"], y).sum()


def many_layers(params, x):
    x = jnp.sin(x)
    for p in params["layers"]:
        x = dense(p, x)
    return x.sum()


def named_layers(params, x):
    for i in range(3):
        x = dense(params[f"layer_{i}"], x)
    return norm(x, 2.0)


def no_parameters(x):
    y = x + 1.0
    for _ in range(5):
        y = norm(y, 0.5)
    return y * x


def some_kept(params, x):
    kept = []
    for p in params:
        x = dense(p, x)
        kept.append(x)
    return kept


def in_a_scan(params, xs):
    def step(carry, x):
        carry = dense(params["cell"], carry + x)
        return carry, norm(carry, params["scale"])

    return jax.lax.scan(step, jnp.zeros(4), xs)


def attend(params, x):
    return x + Attention(2)(params["attention"], norm(x, params["scale"]))


def gradient(params, x):
    return jax.grad(lambda p: two_calls(p, x).sum())(params)


def two_results(x):
    def polar(z):
        radius = jnp.sqrt(z[0] ** 2 + z[1] ** 2)
        angle = jnp.arctan2(z[1], z[0])
        return radius * 2.0 + 1.0, angle - 0.5

    radius, angle = polar(x)
    shorter, other = polar(x * 0.5)
    return radius * shorter, angle + other


def effects(x):
    def report(v):
        jax.debug.print("{}", v)
        return jnp.sin(v) * 2.0 + jnp.cos(v) - 1.0

    return report(report(x) + 1.0)


TWO = {"first": layer(seed=1), "second": layer(seed=2)}
X = jax.random.normal(KEY, (3, 4))
PROGRAMS = {
    "two calls": (two_calls, (TWO, X)),
    "nested": (nested, ({n: {"scale": jnp.ones(4), "dense": layer(seed=i)} for i, n in enumerate("ab")}, X)),
    "many layers": (many_layers, ({"layers": [layer(seed=i) for i in range(6)]}, X)),
    "named layers": (named_layers, ({f"layer_{i}": layer(seed=i) for i in range(3)}, X)),
    "no parameters": (no_parameters, (X,)),
    "some kept": (some_kept, ([layer(seed=i) for i in range(3)], X)),
    "scan": (in_a_scan, ({"cell": layer(), "scale": jnp.ones(4)}, jnp.ones((7, 4)))),
    "methods": (attend, ({"attention": {n: jnp.eye(4) for n in "qkv"}, "scale": jnp.ones(4)}, X)),
    "gradient": (gradient, (TWO, X)),
    "two results": (two_results, (jnp.array([1.0, 2.0]),)),
    "effects": (effects, (jnp.float32(0.3),)),
    "vmap": (jax.vmap(two_calls, in_axes=(None, 0)), (TWO, X)),
    "value and grad": (jax.value_and_grad(many_layers), ({"layers": [layer(seed=i) for i in range(3)]}, X)),
}  # fmt: skip
