"""Calls of another library are tried at few elements where many would take too long: products of integers, for which no
library has a fast kernel, and arrays with many axes whose sizes may all differ."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import untrace
from untrace.targets.eager import spelling


@pytest.fixture
def tried(monkeypatch):
    """The most elements of an operand in each trial."""
    found: list[int] = []
    samples = spelling._samples

    def noted(avals, *rest):
        found.append(max([a.size for a in avals]))
        return samples(avals, *rest)

    monkeypatch.setattr(spelling, "_samples", noted)
    monkeypatch.setattr(spelling, "_FOUND", {})
    return found


PRODUCTS = {
    "matmul": lambda x: x @ x,
    "einsum": lambda x: jnp.einsum("ij,kj->ik", x, x),
    "tensordot": lambda x: jnp.tensordot(x, x, 1),
    "with a number": lambda x: jnp.dot(x, x, preferred_element_type=jnp.int32),
}


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_products_of_integers_are_tried_at_few_elements(tried, product, kind):
    x = np.arange(25).reshape(5, 5).astype(kind)
    d = untrace.decompile(product, target="numpy")(x)
    assert "[5,5]" not in d.source
    assert tried and max(tried) < 10_000
    larger = np.arange(90_000).reshape(300, 300).astype(kind)
    np.testing.assert_array_equal(d(larger), product(jnp.asarray(larger)))


def test_products_of_floats_are_tried_at_many(tried):
    """Long sums of theirs are of other digits."""
    untrace.decompile(lambda x: x @ x, target="numpy")(np.ones((5, 5), np.float32))
    assert max(tried) > 1_000_000


MASKS = {
    "lowest": lambda x, kept: jnp.where(kept, x, jnp.finfo(x.dtype).min),
    "zero": lambda x, kept: jnp.where(kept, 0.0, x),
    "another": lambda x, kept: jnp.where(kept, x, jnp.tanh(x)),
}


@pytest.mark.parametrize("target", ["numpy", "torch"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_mask_of_four_axes_is_the_librarys_where(mask, target):
    """With its arguments in it, and no function around it that makes all of one shape."""
    pytest.importorskip("torch" if target == "torch" else "numpy")
    x, kept = np.linspace(-2, 2, 24, dtype=np.float32).reshape(1, 2, 3, 4), np.arange(12).reshape(1, 1, 3, 4) % 2 == 0
    d = untrace.decompile(mask, target=target)(x, kept)
    library = "np" if target == "numpy" else "torch"
    assert f"{library}.where(kept, " in d.source and "def where" not in d.source
    np.testing.assert_allclose(np.asarray(d(x, kept)), mask(x, kept), rtol=1e-6)


def test_a_call_that_speaks_of_a_size_is_not_tried_at_another():
    def program(x):
        return jnp.reshape(x, (x.shape[0], -1)), jnp.linspace(0.0, 1.0, x.shape[1]) + x.sum((0, 2, 3))

    x = np.ones((2, 3, 4, 5), np.float32)
    d = untrace.decompile(program, target="numpy")(x)
    for a, b in zip(d(x + 1), program(jnp.asarray(x + 1)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
