"""Dataclasses as arguments and results of texts that have no JAX: by the names of their parts."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace

TARGETS = ["numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["mean", "cov"], meta_fields=["scale", "kind"])
@dataclasses.dataclass(frozen=True)
class Belief:
    mean: jax.Array
    cov: jax.Array
    scale: float = 2.0
    kind: str = "gauss"


@functools.partial(jax.tree_util.register_dataclass, data_fields=["low", "high"], meta_fields=[])
@dataclasses.dataclass
class Bounds:
    low: jax.Array
    high: jax.Array


B = Belief(np.arange(3, dtype=np.float32), np.eye(3, dtype=np.float32))
U = np.ones(3, np.float32)


def predict(b, u):
    return dataclasses.replace(b, mean=b.scale * b.mean + u, cov=b.scale**2 * b.cov + 0.1), jnp.trace(b.cov)


def energy(b):
    return b.scale * jnp.sum(b.mean @ b.cov @ b.mean)


def bounds(x, width):
    return Bounds(x - width, x + width)


def _same(text, function, *args):
    found, expected = text(*args), function(*args)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("function", "args"),
    [(predict, (B, U)), (jax.grad(energy), (B,)), (bounds, (U, np.float32(0.5)))],
    ids=["changed", "gradient", "new"],
)
def test_a_dataclass_is_taken_and_given(target, function, args):
    text = untrace.decompile(function)(*args).to(target)
    _same(text, function, *args)
    assert "import jax" not in text.source


@pytest.mark.parametrize("target", TARGETS)
def test_a_static_field_that_matters_is_checked_and_another_is_not(target):
    text = untrace.decompile(predict)(B, U).to(target)
    other = dataclasses.replace(B, kind="student")
    _same(text, predict, other, U)
    assert text(other, U)[0].kind == "student"
    with pytest.raises(TypeError, match="this was written for b: "):
        text(dataclasses.replace(B, scale=3.0), U)
    with pytest.raises(TypeError, match="this was written for b: "):
        text(dataclasses.replace(B, cov=B.cov[:2]), U)


def test_the_text_needs_no_jax(tmp_path):
    """With a class of the reader's own, which has the same fields, and with none where one is made."""
    untrace.decompile(predict)(B, U).to("numpy").save(tmp_path / "predict.py")
    untrace.decompile(bounds)(U, np.float32(0.5)).to("numpy").save(tmp_path / "bounds.py")
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "import dataclasses, numpy as np\n"
        "from predict import predict\nfrom bounds import bounds\n"
        "Belief = dataclasses.make_dataclass('Belief', ['mean', 'cov', 'scale', 'kind'])\n"
        "b, trace = predict(Belief(np.arange(3.0), np.eye(3), 2.0, 'own'), np.ones(3))\n"
        "assert type(b) is Belief and b.kind == 'own' and b.mean.tolist() == [1, 3, 5] and trace == 3\n"
        "assert bounds(np.float32([1, 2]), 0.5).high.tolist() == [1.5, 2.5]\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


@pytest.mark.parametrize("target", TARGETS)
def test_what_has_parts_without_names_is_refused(target):
    @jax.tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, one, other):
            self.both = one, other

        def tree_flatten(self):
            return self.both, None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    with pytest.raises(untrace.UnsupportedPrimitiveError, match="only JAX knows how to take apart"):
        untrace.decompile(lambda p: p.both[0] + 1.0)(Pair(U, U)).to(target)


def test_a_name_of_a_part_is_no_code():
    @dataclasses.dataclass
    class Odd:
        value: object

    name = "value=1) or print('code') or (x"
    key = jax.tree_util.GetAttrKey(name)

    def flatten(node):
        return [(key, node.value)], None

    def unflatten(_, children):
        made = Odd(children[0])
        vars(made)[name] = made.value
        return made

    jax.tree_util.register_pytree_with_keys(Odd, flatten, unflatten)
    odd = unflatten(None, [U])
    with pytest.raises(untrace.UnsupportedPrimitiveError):
        untrace.decompile(lambda odd: jax.tree.map(lambda x: x + 1.0, odd))(odd).to("numpy")
