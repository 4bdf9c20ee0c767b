"""A function that is called with a tree, and again with that tree of which some parts have changed, is one function."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace


class Body(NamedTuple):
    x: jax.Array
    v: jax.Array
    m: jax.Array


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x", "v", "m"], meta_fields=[])
@dataclasses.dataclass
class Point:
    x: jax.Array
    v: jax.Array
    m: jax.Array


def force(b):
    return -jnp.sin(b.x) / b.m


def force_of(b):
    return -jnp.sin(b["x"]) / b["m"]


def of_named(b, dt):
    half = b.v + dt * force(b)
    b = b._replace(x=b.x + dt * half)
    return b._replace(v=half + dt * force(b))


def of_data(b, dt):
    half = b.v + dt * force(b)
    b = dataclasses.replace(b, x=b.x + dt * half)
    return dataclasses.replace(b, v=half + dt * force(b))


def of_dict(b, dt):
    half = b["v"] + dt * force_of(b)
    b = {**b, "x": b["x"] + dt * half}
    return {**b, "v": half + dt * force_of(b)}


def of_others(b, dt):
    return force(b) + force(Body(b.x + dt * b.v, b.v, 2 * b.m))


def in_loop(b, dt):
    return jax.lax.scan(lambda b, _: (of_named(b, dt), b.x), b, None, length=5)


@pytest.mark.parametrize(
    ("fn", "made", "call"),
    [
        (of_named, Body, "force(b._replace(x=x))"),
        (of_data, Point, "force(dataclasses.replace(b, x=x))"),
        (of_dict, lambda x, v, m: {"x": x, "v": v, "m": m}, "force_of(dict(b, x=x))"),
        (of_others, Body, "force(b._replace(x="),
        (in_loop, Body, "force(b._replace(x=x))"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_it_is_called_with_what_changed(fn, made, call):
    args = made(*np.float32([[0.1, 0.2, 0.3], [1, 2, 3], [2, 3, 4]])), 0.1
    written = untrace.decompile(fn)(*args)
    assert call in written.source and written.source.count("jnp.sin") == 1
    for found, expected in zip(jax.tree.leaves(written(*args)), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
