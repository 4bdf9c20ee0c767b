"""Primitives of other libraries become plain JAX, and stay the same program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir import ir, passmanager

from untrace import jax_compat
from untrace.jaxprs.expand.expand import Expander, expand_library_primitives
from untrace.jaxprs.expand.hi_primitives import hi_primitive_call

X = np.array([1.0, 2.0, 4.0], np.float32)


# ---------------------------------------------------------------- a library of our own


def _primitive(name: str, function: Callable[..., Any], several: bool = False) -> Any:
    """A primitive as a library makes it: an `impl` and a lowering that traces it."""
    made = jex_core.Primitive(name)
    made.multiple_results = several
    made.def_impl(function)
    made.def_abstract_eval(lambda x, **params: [x, x] if several else x)
    mlir.register_lowering(made, mlir.lower_fun(function, multiple_results=several))
    batching.primitive_batchers[made] = lambda args, dims, **p: (made.bind(*args, **p), dims[0])
    return made


def _halve(x: Any, *, by: float) -> Any:
    return jnp.where(x > 1, x / by, x * 2)


half_p = _primitive("half", _halve)
pair_p = _primitive("pair", lambda x: [x, jnp.sin(x) + x], several=True)
TABLE = np.arange(1.0, 4.0, dtype=np.float32)
table_p = _primitive("table", lambda x: x * jnp.asarray(TABLE))
OTHERS = np.arange(2.0, 5.0, dtype=np.float32)
weighed_p = _primitive("weighed", lambda x: x * jnp.asarray(TABLE))
ad.primitive_jvps[weighed_p] = lambda p, t: (p[0] * jnp.asarray(OTHERS), t[0] * jnp.asarray(OTHERS))
nested_p = _primitive("nested", lambda x: half_p.bind(pair_p.bind(x)[1], by=3.0))
ad.primitive_jvps[half_p] = lambda p, t, *, by: (half_p.bind(*p, by=by), jnp.full_like(t[0], 7.0))


def half(x: Any, by: float = 4.0) -> Any:
    return half_p.bind(x, by=by)


# ---------------------------------------------------------------- helpers


def primitives(closed: Any) -> Iterator[Any]:
    """Every equation of a jaxpr and of the jaxprs in it."""
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                if jax_compat.is_jaxpr(part):
                    yield from primitives(part)


def foreign(closed: Any) -> set[str]:
    found = {e.primitive for e in primitives(closed)}
    return {p.name for p in found if not jax_compat.is_jax_primitive(p)}


def stablehlo(closed: Any, *args: Any) -> str:
    """StableHLO without dead operations: JAX cannot remove them from inside a foreign primitive."""
    lowered = jax.jit(jex_core.jaxpr_as_fun(closed)).lower(*jax.tree.leaves(args))
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=False))
        passmanager.PassManager.parse("builtin.module(canonicalize,cse)").run(copy.operation)
        # A host callback is an address; two lowerings register two.
        return re.sub(r"\b\d{12,}\b", "POINTER", str(copy))


def as_function(closed: Any) -> Callable[..., Any]:
    return lambda *args: jex_core.jaxpr_as_fun(closed)(*args)[0]


def expanded(function: Callable[..., Any], *args: Any) -> tuple[Any, Any, tuple[str, ...]]:
    closed = jax.make_jaxpr(function)(*args)
    new, notes = expand_library_primitives(closed)
    assert not foreign(new)
    assert expand_library_primitives(new)[0] is new
    return closed, new, notes


# ---------------------------------------------------------------- plain programs


@pytest.mark.parametrize(
    "function",
    [
        jnp.sin,
        jax.jit(lambda x: jax.nn.relu(x) + 1),
        lambda x: lax.scan(lambda c, y: (c + y, c * y), 0.0, x),
        jax.grad(lambda x: lax.cond(x[0] > 0, jnp.sum, jnp.prod, x)),
        lambda x: jnp.linalg.inv(jnp.outer(x, x) + jnp.eye(3)),
        jax.vmap(lambda x: lax.while_loop(lambda v: v < 9, lambda v: v * 2, x)),
    ],
)
def test_plain_jax_is_the_very_same_object(function: Callable[..., Any]) -> None:
    closed = jax.make_jaxpr(function)(X)
    new, notes = expand_library_primitives(closed)
    assert new is closed
    assert notes == ()


@pytest.mark.parametrize(
    "function",
    [
        half,
        lambda x: pair_p.bind(x)[1] * pair_p.bind(x + 1)[0],
        nested_p.bind,
        table_p.bind,
        jax.jit(half),
        lambda x: lax.scan(lambda c, y: (half(c), pair_p.bind(y)[1]), x[0], x),
        lambda x: lax.while_loop(lambda v: half(v)[0] < 5, lambda v: half(v) * 3, x),
        lambda x: lax.cond(x[0] > 0, half, nested_p.bind, x),
        lambda x: lax.fori_loop(0, 3, lambda i, v: table_p.bind(v), x),
        jax.checkpoint(half),
        jax.vmap(half),
        lambda x: jnp.sum(jax.jit(nested_p.bind)(x)) + jax.jit(half)(x)[0],
        lambda x: half(half(x)),
    ],
)
def test_same_stablehlo_and_no_foreign_primitive(function: Callable[..., Any]) -> None:
    closed, new, notes = expanded(function, X)
    assert notes
    assert stablehlo(closed, X) == stablehlo(new, X)


def test_results_keep_their_types() -> None:
    closed, new, _ = expanded(half, 2.0)
    assert [v.aval for v in new.jaxpr.outvars] == [v.aval for v in closed.jaxpr.outvars]
    # The implementation's result is strong where the primitive said weak, and the other way round.
    strong = _primitive("strong", lambda x: jnp.asarray(x, jnp.float32))
    strong.def_abstract_eval(lambda x: x.update(weak_type=not x.weak_type))
    for value in (2.0, np.float32(2)):
        closed, new, _ = expanded(strong.bind, value)
        assert new.jaxpr.outvars[0].aval.weak_type == closed.jaxpr.outvars[0].aval.weak_type


def test_shared_jaxprs_stay_shared() -> None:
    inner = jax.jit(half)
    closed, new, _ = expanded(lambda x: inner(inner(x)), X)
    first, second = new.jaxpr.eqns
    assert closed.jaxpr.eqns[0].params["jaxpr"] is closed.jaxpr.eqns[1].params["jaxpr"]
    assert first.params["jaxpr"] is second.params["jaxpr"]


def test_untouched_parts_stay_the_same_objects() -> None:
    plain = jax.jit(lambda x: x * 2)
    closed, new, _ = expanded(lambda x: half(plain(x)), X)
    assert new.jaxpr.eqns[0] is closed.jaxpr.eqns[0]


def test_constants_in_a_body_without_constants() -> None:
    function = jax.checkpoint(table_p.bind)
    closed, new, _ = expanded(function, X)
    np.testing.assert_array_equal(as_function(new)(X), X * TABLE)
    grad = jax.grad(lambda x: as_function(new)(x).sum())(X)
    np.testing.assert_array_equal(grad, TABLE)


def test_an_expanded_equation_keeps_the_line_of_the_user() -> None:
    closed, new, _ = expanded(half, X)
    line = jax_compat.user_line(closed.jaxpr.eqns[0])
    assert "test_expand.py" in line
    assert {jax_compat.user_line(e) for e in new.jaxpr.eqns} == {line}


def test_keep_leaves_a_primitive_alone() -> None:
    closed = jax.make_jaxpr(lambda x: half(nested_p.bind(x)))(X)
    new, notes = expand_library_primitives(closed, keep={"half"})
    assert foreign(new) == {"half"}
    assert not any("`half`" in note for note in notes)


def test_a_primitive_without_any_code_stays_with_a_reason() -> None:
    bare = jex_core.Primitive("bare")
    bare.def_abstract_eval(lambda x: x)
    closed = jax.make_jaxpr(bare.bind)(X)
    new, notes = expand_library_primitives(closed)
    assert new is closed
    assert len(notes) == 1 and notes[0].startswith("the primitive `bare` could not be expanded: ")


def test_a_primitive_that_its_library_lets_jax_run_stays() -> None:
    opaque = jex_core.Primitive("opaque")
    opaque.def_abstract_eval(lambda x: x)
    opaque.def_impl(lambda x: jax.jit(opaque.bind)(x))  # noqa: PLW0108  (as JAX does it, but a function of the library)
    ad.primitive_jvps[opaque] = lambda p, t: (opaque.bind(*p), opaque.bind(*t))
    closed = jax.make_jaxpr(opaque.bind)(X)
    assert expand_library_primitives(closed) == (closed, ())


def test_a_primitive_that_is_made_of_itself_among_others_is_expanded() -> None:
    steps = _primitive("steps", lambda x, *, n: steps.bind(x + 1, n=n - 1) if n else x * 2)
    closed, notes = expand_library_primitives(jax.make_jaxpr(lambda x: steps.bind(x, n=2))(X))
    assert not foreign(closed) and notes
    np.testing.assert_array_equal(jex_core.jaxpr_as_fun(closed)(X)[0], (X + 2) * 2)


def test_notes_count_and_name_the_library() -> None:
    _, _, notes = expanded(lambda x: pair_p.bind(pair_p.bind(x)[0])[1], X)
    assert notes == ("test_expand's primitive `pair` (2 times) is written as its implementation",)


# ---------------------------------------------------------------- derivatives


def test_a_derivative_of_its_own_is_kept() -> None:
    closed, new, notes = expanded(half, X)
    assert "with its own derivative rule" in notes[0]
    value, tangent = jax.jvp(as_function(new), (X,), (X,))
    np.testing.assert_array_equal(tangent, [7, 7, 7])
    np.testing.assert_array_equal(value, as_function(closed)(X))


def test_a_rule_that_is_what_jax_does_anyway_is_not_kept() -> None:
    scaled = _primitive("scaled", lambda x: x * 3)
    ad.primitive_jvps[scaled] = lambda p, t: (scaled.bind(*p), scaled.bind(*t))
    _, new, _ = expanded(scaled.bind, X)
    assert [e.primitive.name for e in new.jaxpr.eqns] == ["mul"]


def test_an_expander_expands_parts_that_share() -> None:
    expander = Expander()
    closed = jax.make_jaxpr(jax.jit(half))(X)
    assert expander.closed(closed) is expander.closed(closed)
    assert len(expander.notes) == 1


# ---------------------------------------------------------------- equinox and lineax


def test_equinox_error_checks() -> None:
    eqx = pytest.importorskip("equinox")

    def function(x: Any) -> Any:
        return eqx.error_if(x, x > 100, "x is too large") * 2

    closed, new, notes = expanded(function, X)
    assert stablehlo(closed, X) == stablehlo(new, X)
    assert any(n.startswith("equinox's primitive `unvmap_any` is written") for n in notes)
    grad = jax.grad(lambda x: as_function(new)(x).sum())(X)
    np.testing.assert_array_equal(grad, [2, 2, 2])


def test_equinox_loop_with_buffers() -> None:
    pytest.importorskip("equinox")
    from equinox import internal as eqxi

    def function(x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, v, seen = carry
            return i + 1, v * 2, seen.at[i].set(v[0])

        start = (0, x, jnp.zeros(4))
        return eqxi.while_loop(lambda c: c[0] < 4, body, start, buffers=lambda c: c[2], kind="lax", max_steps=4)

    closed, new, _ = expanded(function, X)
    for a, b in zip(jex_core.jaxpr_as_fun(closed)(X), jex_core.jaxpr_as_fun(new)(X), strict=True):
        np.testing.assert_array_equal(a, b)


MATRIX = np.array([[3.0, 1.0, 0.0], [1.0, 4.0, 1.0], [0.5, 1.0, 5.0]], np.float32)


def _solve(solver: str) -> Callable[..., Any]:
    lx = pytest.importorskip("lineax")

    def function(matrix: Any, vector: Any) -> Any:
        operator = lx.MatrixLinearOperator(matrix)
        return lx.linear_solve(operator, vector, getattr(lx, solver)(), throw=False).value

    return function


@pytest.mark.parametrize("order", [0, 1, 2])
def test_square_solves_are_custom_linear_solves(order: int) -> None:
    function = _solve("LU")
    closed, new, notes = expanded(function, MATRIX, X)
    assert "custom_linear_solve" in {e.primitive.name for e in primitives(new)}
    assert any("in a `jax.lax.custom_linear_solve`" in n for n in notes)

    def derived(f: Callable[..., Any]) -> Callable[..., Any]:
        for _ in range(order):
            f = jax.grad(lambda a, b, f=f: jnp.sum(jnp.sin(f(a, b))))
        return jax.jit(f)

    theirs = derived(function)(MATRIX, X)
    ours = derived(as_function(new))(MATRIX, X)
    if order < 2:
        np.testing.assert_array_equal(ours, theirs)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


def test_solves_can_be_batched() -> None:
    function = _solve("LU")
    _, new, _ = expanded(function, MATRIX, X)
    batch = np.stack([X, X * 2])
    ours = jax.vmap(as_function(new), in_axes=(None, 0))(MATRIX, batch)
    theirs = jax.vmap(function, in_axes=(None, 0))(MATRIX, batch)
    np.testing.assert_array_equal(ours, theirs)


def test_a_check_is_one_condition_of_the_whole_batch() -> None:
    """JAX would turn it into a selection, run both branches, and so raise for every batch."""
    eqx = pytest.importorskip("equinox")
    _, new, _ = expanded(lambda x: eqx.error_if(x * 2, x > 100, "x is too large"), 1.0)
    function = jax.vmap(jax.vmap(as_function(new)))
    np.testing.assert_array_equal(function(X[None]), X[None] * 2)
    with pytest.raises(Exception, match="x is too large"):
        jax.block_until_ready(function(X[None] * 100))


@pytest.mark.parametrize("mapped", [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0)])
def test_selections_of_equinox_are_batched_as_it_does(mapped: tuple[int | None, ...]) -> None:
    """`select_if_vmap` ignores its condition unless that is mapped."""
    pytest.importorskip("equinox")
    from equinox.internal._loop.common import _select_if_vmap

    def function(pred: Any, x: Any, y: Any) -> Any:
        return _select_if_vmap(pred, jnp.sin(x), y * 3, makes_false_steps=False)

    whole = (np.array([True, False, True]), X, X + 10)
    one = (np.array(False), X[1], X[2])
    args = [w if m == 0 else o for w, o, m in zip(whole, one, mapped, strict=True)]
    _, new, _ = expanded(function, *one)

    def both(f: Callable[..., Any]) -> Any:
        tangent = lambda p, x, y: jax.jvp(lambda x, y: f(p, x, y), (x, y), (x, y))  # noqa: E731
        gradient = lambda p, x, y: jax.grad(lambda x, y: f(p, x, y) ** 2, (0, 1))(x, y)  # noqa: E731
        return [jax.vmap(g, in_axes=mapped)(*args) for g in (f, tangent, gradient)]

    jax.tree.map(np.testing.assert_array_equal, both(as_function(new)), both(function))


def test_least_squares_keeps_the_rule_of_lineax() -> None:
    function = _solve("SVD")
    tall = np.concatenate([MATRIX, MATRIX[:1] + 1])
    vector = np.array([1.0, 2.0, 3.0, 5.0], np.float32)
    closed, new, notes = expanded(function, tall, vector)
    assert any("`linear_solve` is written as its implementation with its own" in n for n in notes)

    def loss(f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda a, b: jnp.sum(jnp.sin(f(a, b))), argnums=(0, 1))

    theirs = loss(function)(tall, vector)
    ours = loss(as_function(new))(tall, vector)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- primitives that are objects


def _objects(function: Callable[..., Any], *args: Any) -> list[Any]:
    return [e for e in primitives(jax.make_jaxpr(function)(*args)) if jax_compat.hi_primitive(e)]


HAS_OBJECTS = bool(_objects(lambda x: jnp.nonzero(x, size=2), X))
objects_only = pytest.mark.skipif(not HAS_OBJECTS, reason="this JAX has no primitive objects")


def test_a_rule_that_differs_in_a_constant_alone_is_kept() -> None:
    """The text of a jaxpr names its constants, and does not say what they are."""
    closed, _ = expand_library_primitives(jax.make_jaxpr(weighed_p.bind)(X))
    assert np.array_equal(jax.grad(lambda x: as_function(closed)(x).sum())(X), OTHERS)


@objects_only
@pytest.mark.parametrize(
    ("function", "args", "path", "vmaps"),
    [
        (jnp.searchsorted, (X, X), "jnp.searchsorted.__wrapped__", ()),
        (jax.vmap(jnp.searchsorted), (X[None], X[None]), "jnp.searchsorted.__wrapped__", ((0, 0),)),
        (
            jax.vmap(jax.vmap(jnp.searchsorted, in_axes=(0, None))),
            (X[None, None], X[None]),
            "jnp.searchsorted.__wrapped__",
            ((0, 0), (0, None)),
        ),
        (lambda x: jnp.nonzero(x[None], size=2, fill_value=(1, 5)), (X,), "jnp.nonzero", ()),
        (jax.vmap(lambda x: jnp.nonzero(x, size=2)), (X[None],), "jnp.nonzero", ((0,),)),
        (lambda x: jnp.ldexp(x, 2), (X,), "jnp.ldexp.__wrapped__", ()),
        (jnp.frexp, (X,), "jnp.frexp.__wrapped__", ()),
    ],
)
def test_public_calls_of_primitive_objects(function: Callable[..., Any], args: Any, path: str, vmaps: Any) -> None:
    (eqn,) = _objects(function, *args)
    call = hi_primitive_call(eqn)
    assert call is not None
    assert (call.path, call.vmaps) == (path, vmaps)
    closed = jax.make_jaxpr(function)(*args)
    assert expand_library_primitives(closed)[0] is closed


@objects_only
def test_an_object_without_a_public_call_is_expanded() -> None:
    function = jax.vmap(lambda x, k: jnp.nonzero(x, size=2, fill_value=k))
    args = (X[None], np.array([2]))
    (eqn,) = _objects(function, *args)
    assert hi_primitive_call(eqn) is None
    closed, new, notes = expanded(function, *args)
    assert not _objects(jex_core.jaxpr_as_fun(new), *args)
    assert stablehlo(closed, *args) == stablehlo(new, *args)
