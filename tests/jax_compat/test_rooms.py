"""What `jax_compat` says of JAX holds on the installed one: paths lead to what they are of, and a jaxpr that is built anew is
the same program."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from untrace import jax_compat

ALIASES = {
    "jnp": "jax.numpy",
    "lax": "jax.lax",
    "np": "numpy",
    "pl": "jax.experimental.pallas",
    "sparse": "jax.experimental.sparse",
}


def at(path: str) -> Any:
    """What stands at a dotted path, with the aliases of a written module."""
    head, *rest = path.split(".")
    module, names = importlib.import_module(ALIASES.get(head, head)), list(rest)
    while names:
        name = names.pop(0)
        if not hasattr(module, name):
            module = importlib.import_module(f"{module.__name__}.{name}")
        else:
            module = getattr(module, name)
    return module


@pytest.mark.parametrize("module", [jnp, lax, jax.nn, jax.random, jnp.linalg, jax.scipy.special])
def test_a_public_path_leads_to_the_very_object(module):
    found = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    paths = {name: jax_compat.public_path(value) for name, value in found.items()}
    known = {name: path for name, path in paths.items() if path is not None and "." in path}
    assert len(known) > len(found) / 2
    for name, path in known.items():
        assert at(path) is found[name], path


@given(st.lists(st.sampled_from(["sin", "add", "scan", "cond"]), min_size=1, max_size=6), st.data())
def test_a_jaxpr_that_is_built_anew_is_the_same_program(names, data):
    def program(x, y):
        for name in names:
            if name == "scan":
                y, _ = lax.scan(lambda c, row: (jnp.cos(c) + row.sum(), c), y, x[None])
            elif name == "cond":
                x = lax.cond(y > 0, jnp.sin, jnp.tanh, x)
            else:
                x = x + y if name == "add" else jnp.sin(x)
        return x, y, x * 2

    args = np.linspace(-1, 1, 4, dtype=np.float32), np.float32(0.5)
    closed = jax.make_jaxpr(program)(*args)
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    kept = data.draw(st.lists(st.sampled_from(range(3)), min_size=1, unique=True))
    again = jax_compat.rebuilt_jaxpr(closed, jaxpr.eqns, [jaxpr.outvars[i] for i in kept], kept=kept)
    before = jax.extend.core.jaxpr_as_fun(closed)(*args)
    after = jax.extend.core.jaxpr_as_fun(again)(*args)
    for place, value in zip(kept, after, strict=True):
        np.testing.assert_array_equal(value, before[place])
