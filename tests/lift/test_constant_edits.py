"""An edit of a number of the author's module in the text is that edit in his source, wherever the number stands."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace

HEAD = """import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

K = {number}


"""
X = jnp.linspace(0.1, 2.0, 24).reshape(6, 4)

# What the author writes: (the number, another one, his functions). x: f32[6,4].
PROGRAMS: dict[str, tuple[str, str, str]] = {
    "table": ("0.9", "0.8", "C = {'a': K, 'b': 2.0}\n\n\ndef fn(x):\n    return C['a'] * x + K * C['b']"),
    "row": ("0.9", "0.8", "C = (K, 2.0)\n\n\ndef fn(x):\n    a, b = C\n    return a * x + b * jnp.sin(x) + C[0]"),
    "config": (
        "0.3",
        "0.7",
        "@dataclasses.dataclass(frozen=True)\nclass C:\n    a: float = K\n\n\nc = C()\n\n\ndef fn(x):\n    return x * c.a + K",
    ),
    "named_tuple": (
        "0.3",
        "0.7",
        "class C(NamedTuple):\n    a: float\n\n\nc = C(K)\n\n\ndef fn(x):\n    return x * c.a",
    ),
    "class_body": ("0.3", "0.7", "class C:\n    a = K\n\n\ndef fn(x):\n    return x * C.a + K"),
    "partial": (
        "0.9",
        "0.8",
        "def h(x, k):\n    return k * x\n\n\nf = functools.partial(h, k=K)\n\n\ndef fn(x):\n    return f(x) + K",
    ),
    "closure": (
        "0.9",
        "0.8",
        "def make(k):\n    def h(x):\n        return k * x\n\n    return h\n\n\nf = make(K)\n\n\ndef fn(x):\n    return f(x) + K",
    ),
    "square_root": ("4.0", "3.0", "def fn(x):\n    return x * K + jnp.sum(x) * math.sqrt(K)"),
    "logarithm": ("0.5", "0.2", "def fn(x):\n    return x * np.log(K) + K"),
    "larger": ("0.5", "0.2", "def fn(x):\n    return jnp.maximum(x, K) + max(K, 1e-8) * x"),
    "numpy_number": ("0.5", "0.2", "def fn(x):\n    return x * np.float32(K) + K"),
    "array_of_one": ("0.5", "0.2", "def fn(x):\n    return x * jnp.asarray(K) + K"),
    "filled": ("4.0", "3.0", "def fn(x):\n    return x * jnp.full(4, K) + K"),
    "filled_like": ("4.0", "3.0", "def fn(x):\n    return jnp.full_like(x, K) * x.sum() + K"),
    "filled_inside": ("-5.0", "-1.0", "def fn(x):\n    return jnp.concatenate([jnp.full((1, 4), K), x[:-1]]) + K"),
    "zeros_and": ("0.5", "0.2", "def fn(x):\n    return jnp.zeros(4) + K + x * K"),
    "ones_times": ("0.5", "0.2", "def fn(x):\n    return x * (jnp.ones(4) * K) + K"),
    "zero": (
        "0",
        "1",
        "def fn(x):\n    i = jnp.arange(6)\n    return (i - K) % 2 + (i == K), jnp.full(6, K, jnp.int32) + i",
    ),
    "steps_of_what_is_transposed": (
        "3",
        "4",
        "def fn(x):\n    y = x.T\n    for _ in range(K):\n        a = y @ y.T\n        y = 0.1 * a @ y + y\n    return y.T",
    ),
    "widths": ("1", "2", "def fn(x):\n    return jnp.pad(x, ((K, K), (0, 0))).sum(axis=0) * K"),
    "rest": ("2", "3", "def fn(x):\n    return x.reshape(K, -1).sum(1).sum() * K"),
    "first_carry": ("4.0", "3.0", "def fn(x):\n    return jax.lax.scan(lambda c, r: (c * K + r.sum(), c), K, x)"),
    "one_of_two_carries": (
        "1.0",
        "2.0",
        "def fn(x):\n    def step(c, r):\n        t, l = c\n        return (t + r.sum() * K, jnp.minimum(l, t)), None\n\n"
        "    return jax.lax.scan(step, (K, 1.0), x)[0]",
    ),
    "lower_bound": ("1", "2", "def fn(x):\n    return jax.lax.fori_loop(K, 5, lambda i, c: jnp.sin(c) + K, x)"),
    "list_in_a_loop": (
        "-5.0",
        "-1.0",
        "def fn(x):\n    def step(c, r):\n        return jnp.concatenate([jnp.array([K]), c[:-1]]) + r, None\n\n"
        "    return jax.lax.scan(step, jnp.full(4, K), x)[0]",
    ),
    "list_in_a_derivative": (
        "0.3",
        "0.7",
        "def h(r):\n    return jnp.sum(r * K) + jnp.sum(jnp.array([K, 0.0, 0.0, 1.0]) * r)\n\n\n"
        "def fn(x):\n    return jax.vmap(jax.grad(h))(x) + K",
    ),
    "times_a_ratio": (
        "0.5",
        "0.2",
        "def fn(x):\n    scale = max(1.0, x.shape[0] / x.shape[1]) ** 0.5\n    return x - K * scale * jnp.sin(x)",
    ),
}


# The same where sizes of the inputs follow, and others are the number's.
OF_SIZES: dict[str, tuple[str, str, str]] = {
    "own_size": (
        "3",
        "2",
        "def h(r):\n    t, n = r.shape\n    return r.mean(0) / t + jnp.sum(r) / (n * t**2) + jnp.arange(t) @ r / len(r)\n\n\n"
        "def fn(x):\n    def step(c, i):\n"
        "        return c + h(jax.lax.dynamic_slice(x, (i, 0), (K, x.shape[1]))), None\n\n"
        "    return jax.lax.scan(step, jnp.zeros(x.shape[1]), jnp.arange(x.shape[0] - K))[0]",
    ),
    "size_of_a_variable": (
        "2",
        "3",
        "def fn(x):\n    q = jax.lax.dynamic_slice_in_dim(x, 1, K)\n    return q / jnp.sqrt(q.shape[0]) + jnp.ones(q.shape[-2:])",
    ),
}


def module_of(name: str, text: str, folder: Path) -> Any:
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", [*PROGRAMS, *OF_SIZES])
def test_an_edit_of_the_number_is_the_edit_of_the_source(name: str, tmp_path: Path) -> None:
    number, other, functions = {**PROGRAMS, **OF_SIZES}[name]
    source = module_of(f"constant_{name}", HEAD.format(number=number) + functions + "\n", tmp_path)
    edited = module_of(f"constant_{name}_edited", HEAD.format(number=other) + functions + "\n", tmp_path)
    written = untrace.decompile(source.fn, sizes="infer" if name in OF_SIZES else "fixed")(X)
    _, text = saved(written, tmp_path)
    assert re.search(r"^K = ", text, re.M), text
    changed = re.sub(r"^K = .*$", f"K = {other}", text, flags=re.M)
    fn = module_of(f"constant_{name}_text", changed, tmp_path).fn
    for one, same in zip(jax.tree.leaves(fn(X)), jax.tree.leaves(edited.fn(X)), strict=True):
        np.testing.assert_allclose(one, same, rtol=1e-5, err_msg=changed)
