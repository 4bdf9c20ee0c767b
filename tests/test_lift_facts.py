"""What is known of library functions without a trace must be what a trace says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from untrace import jax_compat
from untrace.ir.nodes import Slot, Value
from untrace.lift import library, signatures
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
    assert library.facts("lax.scan").plain[:1] == (0,)
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


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float32", "complex64"])
def test_products_of_jnp_say_of_which_type_they_are(dtype: str) -> None:
    # What does not say it is none of them, and is not tried as one (`lift/idioms/linalg.py`).
    x, y = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((2, 3), (3, 4)))
    for product in (jnp.matmul, jnp.dot, lambda a, b: jnp.einsum("ij,jk->ik", a, b)):
        found = [e for e in jax_compat.equations_in(jax.make_jaxpr(product)(x, y)) if e.primitive.name == "dot_general"]
        assert [e.params["preferred_element_type"] for e in found] == [dtype]


@pytest.mark.parametrize("spec", ["ij,ik->kj", "bij,bik->bkj", "ij,jkl->kli"])
def test_einsum_exchanges_its_operands_and_leaves_no_transpose(spec: str) -> None:
    letters, _, _ = spec.partition("->")
    args = [jax.ShapeDtypeStruct(tuple("bijkl".index(c) + 2 for c in part), "float32") for part in letters.split(",")]
    traced = jax.make_jaxpr(lambda a, b: jnp.einsum(spec, a, b))(*args)
    assert "transpose" not in [e.primitive.name for e in jax_compat.equations_in(traced)]


def test_reductions_that_have_another_shape_are_not_tried() -> None:
    x = jax.ShapeDtypeStruct((3, 4), "float32")
    eqns = jax.make_jaxpr(lambda a: a.sum(1))(x).jaxpr.eqns
    facts = signatures.Facts(eqns, [x], [e.outvars[0].aval for e in eqns])
    tried = [g.kwargs for g in signatures.guesses("jnp.sum", [Value(eqns[0].invars[0].aval)], facts)]
    assert {"axis": -1} in tried and {"axis": 1} in tried
    assert all(k.get("axis") in (-1, 1) and "keepdims" not in k for k in tried)
