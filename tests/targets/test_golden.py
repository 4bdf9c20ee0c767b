"""The gallery's programs in their written form: as it was accepted, proven, and run.

`python tests/accept.py` shows what changed and keeps it.
"""

from __future__ import annotations

import importlib.util

import accept
import jax
import numpy as np
import pytest

NEEDS = {
    "flax_linen_block": "flax", "flax_nnx_block": "flax", "equinox_mlp": "equinox", "diffrax_gradient": "diffrax",
    "optax_adamw_step": "optax",
}  # fmt: skip


@pytest.mark.parametrize("name", accept.names())
def test_the_written_form(name):
    library = NEEDS.get(name)
    if library is not None and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed (`pip install untrace[gallery]`)")
    found, function, args = accept.written(name)
    assert found.proof.at_least("bits"), found.proof
    ours, theirs = jax.jit(found)(*args), jax.jit(function)(*args)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    golden = accept.golden(name)
    assert golden, f"no golden file: python tests/accept.py {name}"
    # Another JAX or Flax has other equations, so its text is proven but not compared.
    now, then = accept.versions(), accept.accepted_versions()
    if all(now.get(n) == then.get(n) for n in ("jax", library) if n):
        assert found.source == golden, f"to review and keep the change: python tests/accept.py {name}"
