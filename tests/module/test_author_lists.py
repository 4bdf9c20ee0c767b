"""Loops of the author's over ranges and lists of numbers: the text has them again, and the lists by their names.

Each is edited too: the text with another list does what the source does with that.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

import untrace

SOURCE = """
import jax.numpy as jnp
import numpy as np

TURNS, INNER = 3, 2
HALF = 0.5
CX = (0, 1, 0, -1)
CY = (0, 0, 1, 0)
WEIGHTS = (4 / 9, 1 / 9, 1 / 9, 1 / 36)
WAYS = [(1, 0), (0, 1), (-1, 0)]
DILATIONS = (1, 2, 4)
COEFFICIENTS = [HALF, -1.25, 0.75, 1 - HALF]
KERNEL = ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), (0.7, 0.8, 0.9))
OFFSETS = (-1, 0, 1)
PLACES = [0, 1, 2]
CHANGED = [0.25, 0.5]
CHANGED.append(0.125)
DECAY = 0.9
VELOCITIES = np.array([[0, 0], [1, 0], [0, 1], [-1, 0]])
SHARES = np.array([4 / 9, 1 / 9, 1 / 9, 1 / 36], dtype=np.float32)


class Net:
    strides = (1, 2, 3)

    def __init__(self):
        self.scales = [0.5, 0.25, 0.125]

    def run(self, x):
        for d, s in zip(self.strides, self.scales):
            x = jnp.maximum(x, s * jnp.roll(x, d, axis=0))
        return x


NET = Net()


def from_one(x, ps):
    for i, p in enumerate(ps, 1):
        x = x * 0.5 + jnp.tanh(x @ p) * x[i]
    return x


def from_the_end(x, ps):
    for i, p in enumerate(ps):
        x = x * 0.5 + jnp.tanh(x @ p) * x[3 - i] + x[-i - 1]
    return x


def backwards(x, ps):
    for i in reversed(range(TURNS)):
        x = x + KERNEL[0][i] * jnp.tanh(x @ ps[i]) + x[i + 1]
    return x


def blurred(x, ps):
    total = jnp.zeros_like(x)
    for cx, cy, w in zip(CX, CY, WEIGHTS):
        total = total + w * jnp.roll(x, (cx, cy), axis=(0, 1))
    return total


def by_place(x, ps):
    total = jnp.zeros_like(x)
    for i in range(len(CX)):
        total = total + WEIGHTS[i] * jnp.roll(x[i], CX[i]) * CY[-i - 1]
    return total


def ways(x, ps):
    total = jnp.zeros_like(x)
    for d in WAYS:
        total = total + jnp.roll(x, d, axis=(0, 1))
    return total - 3 * x


def dilated(x, ps):
    for d, p in zip(DILATIONS, ps):
        left = jnp.pad(x, ((d, 0), (0, 0)))[: x.shape[0]]
        x = jnp.tanh(x @ p + left)
    return x


def polynomial(x, ps):
    r = jnp.zeros_like(x)
    for c in COEFFICIENTS:
        r = r * x + c
    return r


def stencil(x, ps):
    total = jnp.zeros_like(x)
    for dx in OFFSETS:
        for dy in OFFSETS:
            total = total + jnp.roll(x, (dx, dy), (0, 1))
    return total


def kernel(x, ps):
    total = jnp.zeros_like(x)
    for i in range(3):
        for j, dy in enumerate(OFFSETS):
            total = total + KERNEL[i][j] * jnp.roll(x, (i - 1, dy), (0, 1))
    return total


def substeps(x, ps):
    v = x[0]
    for i in range(TURNS):
        for j in range(INNER):
            v = v - 0.1 * jnp.sin(x) * (i + 1)
            x = x + x[i * INNER + j] * v
        v = v * DECAY**i
    return x, v


def collected(x, ps):
    found = []
    for p in ps:
        for s in CHANGED:
            x = jnp.tanh(x) * s
        found.append(x @ p)
    return x, found


def step(x, c, i):
    return x + c * jnp.sin(x) * DECAY**i


def called(x, ps):
    for i, c in enumerate(COEFFICIENTS):
        x = step(x, c, i)
    return x


def lattice(x, ps):
    total = jnp.zeros_like(x)
    for i in range(len(SHARES)):
        flow = VELOCITIES[i, 0] * x[0] + VELOCITIES[i, 1] * x[1]
        total = total + SHARES[i] * jnp.roll(x * flow, VELOCITIES[i], axis=(0, 1))
    return total


def streamed(x, ps):
    total = jnp.zeros_like(x)
    for (cx, cy), w in zip(VELOCITIES, SHARES):
        total = total + w * jnp.roll(x, (cx, cy), axis=(0, 1))
    return total


def of_an_object(x, ps):
    return NET.run(x)


def passed_both(x, ps):
    for i in range(TURNS):
        for j in range(INNER):
            x = step(x, 0.5, i + j + 1) * x[i] + x[j]
    return x


def ambiguous(x, ps):
    for i in range(TURNS):
        x = x + x[i] * PLACES[i]
    return x


def chosen(x, ps):
    for d in DILATIONS:
        if d > 0:
            x = x + jnp.roll(x, d, axis=0)
    return x


def triangular(x, ps):
    for i in range(TURNS):
        for j in range(i):
            x = x + x[i] * x[j]
    return x
"""

EDITS = [
    ("CX = (0, 1, 0, -1)", "CX = (0, 1, 2, -1)"),
    ("CY = (0, 0, 1, 0)", "CY = (0, 0, 1, 1, 2)"),
    ("CY = (0, 0, 1, 0)", "CY = (1, 0, 1, 2)"),
    ("WEIGHTS = (4 / 9, ", "WEIGHTS = (5 / 9, "),
    ("WAYS = [(1, 0), ", "WAYS = [(1, 0), (2, 1), "),
    ("DILATIONS = (1, 2, 4)", "DILATIONS = (1, 3)"),
    ("HALF = 0.5", "HALF = 0.25"),
    ("KERNEL = ((0.1, 0.2,", "KERNEL = ((0.1, 0.3,"),
    ("OFFSETS = (-1, 0, 1)", "OFFSETS = (-1, 1)"),
    ("TURNS = 3", "TURNS = 2"),
    ("INNER = 2", "INNER = 1"),
    ("PLACES = [0, 1, 2]", "PLACES = [0, 2, 2]"),
    ("DECAY = 0.9", "DECAY = 0.8"),
    ("VELOCITIES = np.array([[0, 0], [1, 0],", "VELOCITIES = np.array([[0, 2], [2, 1], [1, 0],"),
    ("SHARES = np.array([4 / 9, ", "SHARES = np.array([5 / 9, "),
]
X = np.random.default_rng(0).random((6, 6)).astype(np.float32)
PS = [np.random.default_rng(i).random((6, 6)).astype(np.float32) for i in range(3)]


def module_of(text: str, path: Path) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return module_of(SOURCE, tmp_path_factory.mktemp("author") / "lists_of_an_author.py")


def same(one: Any, other: Any) -> None:
    for found, wanted in zip(jax.tree.leaves(jax.jit(one)(X, PS)), jax.tree.leaves(jax.jit(other)(X, PS)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


LOOPS: dict[str, list[str]] = {
    "from_one": ["for i, p in enumerate(ps, 1):", "x[i]"],
    "from_the_end": ["for i, p in enumerate(ps):", "x[3 - i]", "x[-i - 1]"],
    "backwards": ["for i in reversed(range(TURNS)):", "KERNEL[0][i] * jnp.tanh(x @ ps[i])", "x[i + 1]"],
    "blurred": ["for cx, cy, w in zip(CX, CY, WEIGHTS):", "w * jnp.roll(x, (cx, cy), axis=(0, 1))"],
    "by_place": ["for i in range(len(CX)):", "WEIGHTS[i] * jnp.roll(x[i], CX[i], axis=0) * CY[-i - 1]"],
    "ways": ["for d in WAYS:", "jnp.roll(x, d, axis=(0, 1))", "WAYS = [(1, 0), (0, 1), (-1, 0)]"],
    "dilated": ["for d, p in zip(DILATIONS, ps):", "jnp.pad(x, ((d, 0), (0, 0)))[:x.shape[0]]"],
    "polynomial": ["for c in COEFFICIENTS:", "r * x + c", "COEFFICIENTS = [HALF, -1.25, 0.75, 1 - HALF]"],
    "stencil": ["for dx in OFFSETS:", "    for dy in OFFSETS:", "jnp.roll(x, (dx, dy), axis=(0, 1))"],
    "kernel": ["for i in range(3):", "    for j, dy in enumerate(OFFSETS):", "KERNEL[i][j] * jnp.roll(x, (i - 1, dy), axis=(0, 1))"],
    "substeps": ["for i in range(TURNS):", "    for j in range(INNER):", "x[i * INNER + j]", "* DECAY**i", "* (i + 1)"],
    "collected": ["CHANGED = [0.25, 0.5, 0.125]", "for p in ps:", "    for s in CHANGED:", "jnp.tanh(x) * s"],
    "called": ["for i, c in enumerate(COEFFICIENTS):", "step(x, c, i)", "c * jnp.sin(x) * DECAY**i"],
    "lattice": [
        "for i in range(len(SHARES)):", "SHARES[i] * jnp.roll(x * flow, VELOCITIES[i], axis=(0, 1))",
        "flow = VELOCITIES[i, 0] * x[0] + VELOCITIES[i, 1] * x[1]", "VELOCITIES = np.array([[0, 0], [1, 0], [0, 1], [-1, 0]])",
        "SHARES = np.array([4 / 9, 1 / 9, 1 / 9, 1 / 36], dtype=np.float32)",
    ],
    "streamed": ["for (cx, cy), w in zip(VELOCITIES, SHARES):", "w * jnp.roll(x, (cx, cy), axis=(0, 1))"],
    "of_an_object": ["for d, s in zip(NET_STRIDES, NET_SCALES):", "NET_STRIDES = (1, 2, 3)", "NET_SCALES = [0.5, 0.25, 0.125]"],
    "passed_both": ["for i in range(TURNS):", "    for j in range(INNER):", "step(x, i + j + 1) * x[i] + x[j]"],
    "ambiguous": [],
    "chosen": [],
    "triangular": [],
}  # fmt: skip


@pytest.mark.parametrize(("name", "lines"), LOOPS.items(), ids=list(LOOPS))
def test_the_loop_is_there_again(author: ModuleType, tmp_path: Path, name: str, lines: list[str]) -> None:
    """With the author's expressions for what differs from turn to turn; where it is not certain which these are, there is none."""
    written = untrace.decompile(getattr(author, name), guard=False)(X, PS)
    source = written.source
    assert written.proof.level == "jaxpr"
    assert all(line in source for line in lines) and source.count("for ") == sum("for " in line for line in lines), (
        source
    )
    same(getattr(module_of(source, tmp_path / f"text_{name}.py"), name), getattr(author, name))
    original = re.sub("TURNS, INNER = 3, 2", "TURNS = 3\nINNER = 2", SOURCE)
    for number, (old, new) in enumerate(EDITS):
        if old in source:
            text = module_of(source.replace(old, new), tmp_path / f"text_{name}_{number}.py")
            edited = module_of(original.replace(old, new), tmp_path / f"source_{name}_{number}.py")
            same(getattr(text, name), getattr(edited, name))
