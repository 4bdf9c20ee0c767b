"""Products of integers, for which no library has a fast kernel, are tried as calls of another library at few elements."""

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

    def noted(avals):
        found.append(max([a.size for a in avals]))
        return samples(avals)

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
