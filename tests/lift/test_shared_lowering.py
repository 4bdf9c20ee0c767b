"""What a program shares with the lowering of JAX's primitive objects, it shares when it is written back."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import untrace


def places(mask, n):
    (where,) = jnp.nonzero(mask, size=3)
    return jnp.remainder(n, 3) + where.sum()


MASK = jnp.array([True, False, True, True])


def test_functions_of_jax_are_lowered_once(tmp_path):
    # On JAX 0.12 `jnp.nonzero` is an object, whose lowering calls `jnp.remainder`, and that `jnp.where`.
    args = MASK, jnp.int32(7)
    found = untrace.decompile(places, style="exact")(*args)
    assert found.proof.level == "jaxpr"
    found.save(tmp_path / "places_module.py")
    scope: dict = {}
    exec(compile((tmp_path / "places_module.py").read_text(), "places_module.py", "exec"), scope)
    original, again = (jax.jit(f).lower(*args).as_text() for f in (places, scope["places"]))
    assert again.count("func.func") == original.count("func.func")


def test_style_exact_calls_nothing_of_jax_where_nothing_is_shared():
    found = untrace.decompile(lambda x: jnp.where(x > 0, x, jnp.remainder(x, 3.0)), style="exact")(jnp.ones(3))
    assert "jnp.where" not in found.source and "jnp.remainder" not in found.source
