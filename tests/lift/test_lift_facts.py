"""What is known of library functions without a trace must be what a trace says."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import jax.scipy
import pytest
from jax import lax

import untrace
from untrace import jax_compat
from untrace.ir.nodes import Slot, Value
from untrace.lift.recognise import beforehand, library, signatures
from untrace.lift.recognise.engine import Matcher
from untrace.lift.recognise.patterns import _trace

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
    # What does not say it is none of them, and is not tried as one (`lift/recognise/idioms/linalg.py`).
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


@pytest.mark.parametrize("spec", ["ij,kj->ik", "ij,kj->ki", "bij,bkj->bik", "bijh,bkjh->bhik"])
def test_einsum_transposes_no_operand(spec: str) -> None:
    # So a product with one is none of its (`lift/recognise/idioms/written.py`).
    letters, _, _ = spec.partition("->")
    args = [jax.ShapeDtypeStruct(tuple("bijkh".index(c) + 2 for c in part), "float32") for part in letters.split(",")]
    traced = jax.make_jaxpr(lambda a, b: jnp.einsum(spec, a, b))(*args)
    eqns = list(jax_compat.equations_in(traced))
    made = {v for e in eqns if e.primitive.name == "transpose" for v in e.outvars}
    assert all(made.isdisjoint(e.invars) for e in eqns if e.primitive.name == "dot_general")


def _programs():
    def attend(params, x):
        q, k, v = (jnp.einsum("ld,de->le", x, w) for w in params["qkv"])
        weights = jax.nn.softmax(q @ k.T / 2.0, axis=-1)
        h = jax.nn.gelu(weights @ v, approximate=False) + jnp.mean(x, axis=0)
        h = jnp.where(h > 0, h, jnp.take(params["table"], jnp.arange(5) % 3, axis=0))
        return jax.nn.silu(h).sum()

    def solve(a, b):
        factor = jax.scipy.linalg.cholesky(a @ a.T + jnp.eye(4), lower=True)
        return jnp.sum(jax.scipy.linalg.cho_solve((factor, True), b)) + jnp.linalg.norm(b, axis=0).max()

    def move(state, xs):
        def step(x, y):
            return lax.cond(y > 0, lambda z: z * 2, lambda z: z - 1, x), jnp.cross(x, x + y)

        return lax.fori_loop(0, 3, lambda i, s: s + i, state), lax.scan(step, state, xs)

    def count(x, ids, repeats):
        sums = jax.ops.segment_sum(x, ids, 3)
        return sums[ids] - x.var(axis=-1, keepdims=True), jnp.repeat(ids, repeats, total_repeat_length=8)

    f32, i32 = jnp.float32, jnp.int32
    square = jnp.ones((4, 4), f32)
    params = {"qkv": [square] * 3, "table": jnp.ones((3, 4), f32)}
    return {
        "attend": (jax.value_and_grad(attend), (params, jnp.ones((5, 4), f32))),
        "solve": (jax.grad(solve), (square, jnp.ones((4, 2), f32))),
        "move": (move, (jnp.ones(3, f32), jnp.ones(7, f32))),
        "count": (jax.vmap(count), (jnp.ones((2, 6, 4), f32), jnp.zeros((2, 6), i32), jnp.ones((2, 6), i32))),
    }


@pytest.mark.parametrize("name", ["attend", "solve", "move", "count"])
def test_what_is_refused_without_a_trace_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = []
    try_guess = Matcher.try_guess

    def tried(m, guess, anchor):
        anchors = guess.anchors or (anchor,)
        if not beforehand.is_possible(guess.path, guess.args, guess.kwargs, anchors):
            refused.append(guess.path)
            with monkeypatch.context() as patch:
                patch.setattr(beforehand, "is_possible", lambda *about: True)
                found = m._pattern(guess, anchors)
            assert found is None or m.lay_over(found[3], found[2], anchors) is None
        return try_guess(m, guess, anchor)

    monkeypatch.setattr(Matcher, "try_guess", tried)
    monkeypatch.setenv("UNTRACE_STRICT", "1")
    f, args = _programs()[name]
    assert untrace.decompile(f)(*args).proof.at_least("bits")
    assert refused


def test_the_words_of_a_module_are_all_its_functions() -> None:
    for module in library._MODULES:
        head, _, rest = module.partition(".")
        whole = f"{library._ROOTS[head].__name__}.{rest}" if rest else library._ROOTS[head].__name__
        words = library._words_of(whole)
        functions = [
            n for n, f in vars(importlib.import_module(whole)).items() if callable(f) and not isinstance(f, type)
        ]
        assert words is None or words.issuperset([n for n in functions if not n.startswith("_")])


@pytest.mark.parametrize(
    "path, args, kwargs",
    [
        ("jax.nn.silu", 4, {}), ("lax.cond", 3, {}), ("lax.fori_loop", 4, {}), ("jnp.eye", 1, {}), ("jnp.mean", 1, {"dim": 0}),
        ("jax.nn.gelu", 2, {}), ("jnp.tensordot", 1, {}), ("lax.scan", 2, {}),
    ],
)  # fmt: skip
def test_what_no_function_takes(path, args, kwargs) -> None:
    atoms = [Value(a) for a in _avals(*[X] * args)]
    assert not beforehand.takes(library.facts(path), atoms, kwargs)
    assert _trace(path, tuple(Slot(i) for i in range(args)), kwargs, _avals(*[X] * args)) is None


def test_a_guess_that_grows_with_a_size_is_not_traced_to_its_end():
    aval = jax.typeof(jnp.ones((4, 2015)))
    assert _trace("jnp.diff", (Slot(0),), {"n": 2}, [aval]) is not None
    assert _trace("jnp.diff", (Slot(0),), {"n": 2003}, [aval]) is None
