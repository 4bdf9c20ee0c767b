"""What is known of library functions without a trace must be what a trace says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from untrace import jax_compat
from untrace.ir.nodes import Slot
from untrace.lift import library
from untrace.lift.patterns import _trace

X = jax.ShapeDtypeStruct((3, 4), jnp.float32)
CALLS = {
    "jnp.clip": (Slot(0), 0.0, 1.0),
    "jnp.tril": (Slot(0),),
    "jax.nn.silu": (Slot(0),),
    "jnp.linalg.norm": (Slot(0),),
    "jnp.argsort": (Slot(0),),
    "jax.nn.log_softmax": (Slot(0),),
    "jnp.square": (Slot(0),),
    "jnp.matmul": (Slot(0), Slot(1)),
    "jax.nn.relu": (Slot(0),),
    "jnp.mean": (Slot(0),),
    "jnp.take": (Slot(0), 1),
    "jax.nn.softmax": (Slot(0),),
}


def _avals(*structs):
    return [v.aval for v in jax_compat.open_jaxpr(jax.make_jaxpr(lambda *a: a)(*structs))[0].invars]


@pytest.mark.parametrize("path", sorted(CALLS))
def test_the_call_that_a_function_leaves(path):
    square = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    pattern = _trace(path, CALLS[path], {}, _avals(square, square)[: 2 if path == "jnp.matmul" else 1])
    assert pattern is not None
    eqns = {id(e): e for e, _ in pattern.made_by.values()}.values()
    known = library.facts(path)
    if known.call is not None:
        assert [e.params.get("name") for e in eqns] == [known.call]
        assert [e.primitive.name for e in eqns][0] in ("jit", "pjit")
    if known.bare:
        assert len(pattern.outvars) == 1


def test_calls_are_known_of_jitted_functions_only():
    assert library.facts("jnp.clip").call == "clip"
    assert library.facts("jnp.matmul").call is None  # leaves its equations
    assert library.facts("jax.nn.relu").call is None  # a custom derivative around the jitted function
    assert not library.facts("lax.scan").arrays
    assert library.facts("operator.add") == library.Facts()
    with jax.disable_jit():
        assert jax_compat.name_of_call(jnp.clip) is None


def test_a_quick_trace_is_the_trace():
    def f(x, i):
        return [jnp.clip(x, 0.0, 1.0)[i] * 2, jnp.zeros((2, 3)), jax.nn.softmax(x)]

    structs = (X, jax.ShapeDtypeStruct((), jnp.int32, weak_type=True))
    quick, consts = jax_compat.traced_quickly(f, _avals(*structs))
    slow, _ = jax_compat.open_jaxpr(jax.make_jaxpr(f)(*structs))
    assert str(quick) == str(slow)
    assert not consts
    assert [v.aval for v in quick.outvars] == [v.aval for v in slow.outvars]
