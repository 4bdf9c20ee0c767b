"""Structural comparison: what counts as the same program, and what does not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compared_programs import PROGRAMS, X, Y
from jax import lax
from work import lines_run

from untrace.jaxprs.equal.compare import compare, compare_jaxprs, count_equations
from untrace.jaxprs.equal.values import Values


def traced(f, *args):
    """A jaxpr of `f` that shares nothing with an earlier one."""
    jax.clear_caches()
    return jax.make_jaxpr(lambda *xs: f(*xs))(*args)


def assert_same(f, g, *args):
    difference = compare_jaxprs(traced(f, *args), traced(g, *args))
    assert difference is None, difference


def assert_differ(f, g, *args):
    difference = compare_jaxprs(traced(f, *args), traced(g, *args))
    assert difference is not None
    assert difference.why and "\n" not in difference.why
    return difference


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_a_program_equals_itself(f):
    first, second = traced(f, X, Y), traced(f, X, Y)
    result = compare(first, second)
    assert result, result.difference
    assert result.notes == ()
    assert result.equations == count_equations(first) > 0


def test_programs_differ_from_each_other():
    jaxprs = [traced(f, X, Y) for f in PROGRAMS]
    for i, first in enumerate(jaxprs):
        for j, second in enumerate(jaxprs):
            assert (compare_jaxprs(first, second) is None) == (i == j)


# ---------------------------------------------------------------- what may differ


def test_names_do_not_count():
    @jax.jit
    def one(a):
        return jnp.sin(a)

    @jax.jit
    def other(b):
        with jax.named_scope("scope"):
            return jnp.sin(b)

    assert_same(one, other, X)


def test_dead_code_does_not_count():
    def g(x, y):
        jnp.linalg.inv(x @ x.T)
        out = jnp.sin(x) + y
        jnp.cos(out)
        return out

    assert_same(lambda x, y: jnp.sin(x) + y, g, X, Y)


def test_dead_code_inside_control_flow_does_not_count():
    def f(x, y):
        def body(carry, a):
            return (carry[0] + a, carry[1] * 2), (carry[0], a * 3)

        (first, _), (outs, _) = lax.scan(body, (x[0], y[0]), x)
        return first, outs

    def g(x, y):
        return lax.scan(lambda carry, a: (carry + a, carry), x[0], x)

    assert_same(f, g, X, Y)


def test_the_order_of_independent_statements_does_not_count():
    def f(x, y):
        a, b = jnp.sin(x), jnp.cos(y)
        c = jnp.tanh(x)
        return a + b, c

    def g(x, y):
        c, b = jnp.tanh(x), jnp.cos(y)
        a = jnp.sin(x)
        return a + b, c

    assert_same(f, g, X, Y)


def test_equal_statements_in_another_order_find_their_partners():
    def f(x):
        a, b = jnp.sin(x), jnp.sin(x)
        return jnp.cos(a), jnp.tanh(b)

    def g(x):
        b, a = jnp.sin(x), jnp.sin(x)
        d = jnp.tanh(a)
        return jnp.cos(b), d

    assert_same(f, g, X)


def test_the_order_of_values_that_a_scan_closes_over_does_not_count():
    def f(x, y):
        w, v = jnp.sin(y[0]), jnp.cos(y[1])
        return lax.scan(lambda c, a: ((c + w) * v + a, c), x[0], x)

    def g(x, y):
        w, v = jnp.sin(y[0]), jnp.cos(y[1])

        def body(c, a):
            unused = c * v  # noqa: F841 - the first use decides about the order
            return (c + w) * v + a, c

        return lax.scan(body, x[0], x)

    first, second = traced(f, X, Y), traced(g, X, Y)

    def first_operand(jaxpr):
        (scan,) = [e for e in jaxpr.eqns if e.primitive.name == "scan"]
        (made,) = [e for e in jaxpr.eqns if scan.invars[0] in e.outvars]
        return made.primitive.name

    assert (first_operand(first), first_operand(second)) == ("sin", "cos")
    assert compare_jaxprs(first, second) is None


def test_the_order_of_what_a_scan_carries_counts_where_nobody_asks():
    def f(x):
        def step(carry, x):
            a, b, c = carry
            return (a + x, b + x.sum(), jnp.tanh(c)), x * a

        return jax.lax.scan(step, (jnp.zeros(2), 0.0, 1.0), x)

    def other(x, b=0.0, c=1.0):
        def step(carry, x):
            b, c, a = carry
            return (b + x.sum(), jnp.tanh(c), a + x), x * a

        (b, c, a), ys = jax.lax.scan(step, (b, c, jnp.zeros(2)), x)
        return (a, b, c), ys

    x = jnp.ones((3, 2))
    original = jax.make_jaxpr(f)(x)
    assert not compare(original, jax.make_jaxpr(other)(x))
    assert compare(original, jax.make_jaxpr(other)(x), carries=True).reordered
    assert not compare(original, jax.make_jaxpr(lambda x: other(x, 1.0, 0.0))(x), carries=True)

    def exchanged(x):
        (a, b, c), ys = other(x)
        return (a, c, b), ys

    assert not compare(original, jax.make_jaxpr(exchanged)(x), carries=True)


def test_exchanged_values_in_a_scan_do_count():
    def f(x, y):
        w, v = y[0], y[1]
        return lax.scan(lambda c, a: ((c + w) * v + a, c), x[0], x)

    def g(x, y):
        v, w = y[0], y[1]
        return lax.scan(lambda c, a: ((c + w) * v + a, c), x[0], x)

    assert_differ(f, g, X, Y)


def test_the_order_of_values_that_a_while_closes_over_does_not_count():
    def make(swap):
        def f(x, y):
            w, v, limit = jnp.sin(y[0]), jnp.cos(y[1]), jnp.exp(x.sum())

            def body(c):
                if swap:
                    c * v
                return (c + w) * v

            return lax.while_loop(lambda c: c.sum() < limit, body, x[0])

        return f

    assert_same(make(False), make(True), X, Y)


@pytest.mark.parametrize("kind", ["cond", "remat", "solver"])
def test_the_order_of_closed_over_values_does_not_count(kind):
    def make(swap):
        def f(x, y):
            w, v = jnp.sin(y[0]), jnp.cos(y[1])

            def body(c):
                if swap:
                    c * v
                return (c + w) * v

            if kind == "cond":
                return lax.cond(x[0, 0] > 0, body, jnp.tanh, x[0])
            if kind == "remat":
                return jax.checkpoint(body)(x[0])

            def matvec(c):
                if swap:
                    c * v
                return (c * w) * v

            return lax.custom_linear_solve(matvec, x[0], lambda _, b: b / w / v)

        return f

    assert_same(make(False), make(True), X, Y)


def test_a_scalar_constvar_equals_a_literal():
    original = traced(lambda x: x * np.float32(2.5), X)
    assert [e for e in original.eqns if any(type(v).__name__ == "Literal" for v in e.invars)]

    def g(x, c):
        return x * c

    open_jaxpr = traced(g, X, np.float32(2.5))
    closed = _with_constant(open_jaxpr, 1, np.float32(2.5))
    assert compare_jaxprs(original, closed) is None
    assert compare_jaxprs(closed, original) is None
    assert compare_jaxprs(original, _with_constant(open_jaxpr, 1, np.float32(2.0))) is not None


def _with_constant(closed, position, value):
    """`closed` with one input turned into a constant."""
    from jax.extend import core

    inner = closed.jaxpr
    invars = list(inner.invars)
    constvar = invars.pop(position)
    if core.Jaxpr is core.ClosedJaxpr:
        return inner.replace(constvars=[constvar], invars=invars, consts=[value])
    rest = (inner.outvars, inner.eqns, inner.effects, inner.debug_info)
    return core.ClosedJaxpr(core.Jaxpr([constvar], invars, *rest), [value])


# ---------------------------------------------------------------- what may not


@pytest.mark.parametrize(
    "f, g",
    [
        (lambda x: x * 2.0, lambda x: x * 3.0),
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (lambda x: x * 2.0, lambda x: 2.0 * x),
        (lambda x: x + np.float32(np.nan), lambda x: x + np.float32(1)),
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: x.astype(jnp.bfloat16), lambda x: x.astype(jnp.float16)),
        (lambda x: jnp.zeros((2, 3)) + x, lambda x: jnp.zeros((2, 3), jnp.int32) + x),
        (lambda x: (x, x), lambda x: (x,)),
        (lambda x: (x, x + 1), lambda x: (x + 1, x)),
        (lambda x: jnp.sin(x) + jnp.sin(x), lambda x: (lambda s: s + s)(jnp.sin(x))),
        (lambda x: lax.reduce_precision(x, 8, 7), lambda x: lax.reduce_precision(x, 8, 10)),
        (lambda x: jnp.sort(x, axis=0), lambda x: jnp.sort(x, axis=0, stable=False)),
        (lambda x: x @ x.T, lambda x: jnp.dot(x, x.T, precision="highest")),
        (lambda x: jax.jit(jnp.sin)(x), lambda x: jax.jit(jnp.cos)(x)),
        (lambda x: jax.jit(jnp.sin)(x), lambda x: jnp.sin(x)),
        (lambda x: jax.jit(jnp.sin, donate_argnums=0)(x * 1), lambda x: jax.jit(jnp.sin)(x * 1)),
        (lambda x: 1.0, lambda x: jnp.float32(1.0)),
        (jax.checkpoint(jnp.sin), jax.checkpoint(jnp.sin, prevent_cse=False)),
    ],
)
def test_other_programs_differ(f, g):
    assert_differ(f, g, X)
    assert_differ(g, f, X)


def test_remat_policies_are_compared():
    def make(policy):
        return lambda x: jax.checkpoint(lambda a: jnp.sin(a) @ a.T, policy=policy)(x)

    policies = jax.checkpoint_policies
    names = policies.save_only_these_names
    assert_same(make(names("a", "b")), make(names("a", "b")), X)
    assert_differ(make(names("a", "b")), make(names("a", "c")), X)
    assert_differ(make(policies.dots_saveable), make(policies.everything_saveable), X)
    both = policies.save_from_both_policies
    assert_same(
        make(both(names("a"), policies.dots_saveable)),
        make(both(names("a"), policies.dots_saveable)),
        X,
    )
    assert_differ(
        make(both(names("a"), policies.dots_saveable)),
        make(both(names("b"), policies.dots_saveable)),
        X,
    )


CONSTANTS = {
    "nan": np.array([np.nan, 1, 2], np.float32),
    "other nan": np.array([0x7FC00001, 0x3F800000, 0x40000000], np.uint32).view(np.float32),
    "minus nan": -np.array([np.nan, -1, -2], np.float32),
    "minus zero": np.array([-0.0, 1, 2], np.float32),
    "zero": np.array([0.0, 1, 2], np.float32),
    "sub-normal": np.array([1e-45, 1, 2], np.float32),
    "bfloat16": np.array([0.0, 1, 2], jnp.bfloat16),
    "integers": np.array([0, 1, 2], np.int32),
    "long": np.arange(3000, dtype=np.float32),
    "longer by one bit": np.nextafter(np.arange(3000, dtype=np.float32), np.float32(-1)),
}


def test_constants_are_compared_bit_for_bit():
    numpy = {k: traced(lambda x, c=c: jnp.sum(c) + x, 1.0) for k, c in CONSTANTS.items()}
    arrays = {k: jnp.asarray(c) for k, c in CONSTANTS.items()}
    jax_ = {k: traced(lambda x, c=c: jnp.sum(c) + x, 1.0) for k, c in arrays.items()}
    for first, a in numpy.items():
        for second, b in jax_.items():
            assert (compare_jaxprs(a, b) is None) == (first == second), (first, second)


def test_the_order_of_constants_does_not_count_their_values_do():
    def make(first, second, swap):
        c, d = np.full(3, first, np.float32), np.full(3, second, np.float32)

        def f(x):
            if swap:
                u = jnp.cos(d)
                return jnp.sin(c) + x, u
            return jnp.sin(c) + x, jnp.cos(d)

        return f

    assert_same(make(1, 2, False), make(1, 2, True), X)
    assert_differ(make(1, 2, False), make(2, 1, True), X)


def test_constant_keys_are_compared_by_data_and_implementation():
    def make(seed, impl=None):
        key = jax.random.key(seed, impl=impl)
        return lambda x: jax.random.normal(key, (3,)) + x

    assert_same(make(1), make(1), X)
    assert_differ(make(1), make(2), X)
    assert_differ(make(1), make(1, "rbg"), X)


def test_a_sharding_over_no_mesh_is_no_sharding():
    nowhere = jax.sharding.NamedSharding(jax.sharding.AbstractMesh((), ()), jax.sharding.PartitionSpec())
    values = Values(lambda left, right: False)
    assert values.same(nowhere, None) and values.same(None, nowhere)
    somewhere = jax.sharding.NamedSharding(jax.sharding.AbstractMesh((1,), ("x",)), jax.sharding.PartitionSpec())
    assert not values.same(somewhere, None) and not values.same(0, None) and not values.same(None, "")


def test_effects_keep_their_order():
    def f(x):
        jax.debug.print("a {}", x, ordered=True)
        jax.debug.print("b {}", x, ordered=True)
        return x + 1

    def g(x):
        jax.debug.print("b {}", x, ordered=True)
        jax.debug.print("a {}", x, ordered=True)
        return x + 1

    def h(x):
        y = x + 1
        jax.debug.print("a {}", x, ordered=True)
        jax.debug.print("b {}", x, ordered=True)
        return y

    assert_same(f, h, 1.0)
    assert_differ(f, g, 1.0)
    assert_differ(f, lambda x: x + 1, 1.0)
    assert_differ(lambda x: x + 1, f, 1.0)


def test_writes_to_refs_keep_their_order():
    def make(swap):
        def f(x):
            ref = jax.new_ref(x)
            if swap:
                ref[0] = ref[1] * 2
                ref[1] = x[1] * 3
            else:
                ref[1] = x[1] * 3
                ref[0] = ref[1] * 2
            return ref[...]

        return f

    assert_same(make(True), make(True), X)
    assert_differ(make(True), make(False), X)


def test_callbacks_are_taken_on_trust_and_noted():
    def make(g):
        spec = jax.ShapeDtypeStruct(X.shape, X.dtype)
        return lambda x: jax.pure_callback(g, spec, x) + 1

    result = compare(traced(make(np.sin), X), traced(make(lambda a: np.cos(a)), X))
    assert result.difference is None
    assert len(result.notes) == 1 and "pure_callback" in result.notes[0]


def test_numpy_integers_in_parameters_equal_python_ones():
    assert_same(
        lambda x: lax.broadcast_in_dim(x, (np.int64(4), 2, 3), (np.int64(1), np.int64(2))),
        lambda x: lax.broadcast_in_dim(x, (4, 2, 3), (1, 2)),
        X,
    )


def test_types_of_inputs_count():
    assert compare_jaxprs(traced(jnp.sin, 1.0), traced(jnp.sin, jnp.float32(1.0))) is not None


# ---------------------------------------------------------------- where they differ


def test_the_difference_names_the_equation():
    def f(x):
        return jnp.tanh(jnp.sum(jnp.sin(x), axis=0)) * 2

    def g(x):
        return jnp.tanh(jnp.max(jnp.sin(x), axis=0)) * 2

    difference = assert_differ(f, g, X)
    assert difference.path[-1].primitive.name == "reduce_sum"
    assert "reduce_sum" in difference.why


def test_a_literal_that_differs_is_said():
    difference = assert_differ(lambda x: jnp.sin(x) * 2.0, lambda x: jnp.sin(x) * 3.0, X)
    assert "operand 1" in difference.why and "2.0" in difference.why and "3.0" in difference.why
    assert [e.primitive.name for e in difference.path] == ["mul"]
    assert [e.primitive.name for e in difference.written_path] == ["mul"]


def test_a_parameter_that_differs_is_said():
    difference = assert_differ(lambda x: jnp.sum(x, 0).sum(), lambda x: jnp.sum(x, 1).sum(), X)
    assert "reduce_sum" in difference.why

    def make(reverse):
        return lambda x: lax.cumsum(x, 0, reverse=reverse)

    difference = assert_differ(make(True), make(False), X)
    assert "reverse of cumsum is True in the original and False as written" in difference.why


def test_a_type_that_differs_is_said():
    difference = assert_differ(lambda x: x.astype(jnp.int8), lambda x: x.astype(jnp.int16), X)
    assert "i8[2,3]" in difference.why and "i16[2,3]" in difference.why
    assert difference.path[-1].primitive.name == "convert_element_type"


def test_all_independent_differences_are_found():
    def make(*factors):
        def f(x, y):
            a = jnp.sin(x * factors[0])
            b = jnp.cos(y + factors[1])
            c = jnp.tanh(x - factors[2])
            return a @ b.T + c @ c.T

        return f

    difference = assert_differ(make(2.0, 3.0, 4.0), make(2.5, 3.0, 4.5), X, Y)
    assert [e.primitive.name for e in difference.all_differences] == ["mul", "sub"]
    assert difference.path == difference.all_paths[0]


def test_what_is_computed_twice_is_no_difference_of_what_takes_it():
    def original(x, y):
        a, b, c, d = jnp.sin(x), jnp.cos(x), jnp.cos(x), jnp.sin(x)
        return jnp.concatenate([a, c]), b * y, d * y, jnp.exp(y)

    def written(x, y):
        joined = jnp.concatenate([jnp.sin(x), jnp.cos(x)])
        d, b = jnp.sin(x), jnp.cos(x)
        return joined, b * y, d * y, jnp.log(y)

    difference = assert_differ(original, written, X, Y)
    assert "exp" in difference.why
    assert [path[0].primitive.name for path in difference.all_paths] == ["exp"]


def test_the_path_leads_into_control_flow():
    def make(factor):
        def f(x, y):
            def body(c, a):
                return lax.cond(c[0] > 0, lambda v: v * factor, lambda v: v, c) + a, c

            return lax.scan(body, x[0], x)

        return f

    difference = assert_differ(make(2.0), make(3.0), X, Y)
    assert [e.primitive.name for e in difference.path] == ["scan", "cond", "mul"]
    assert [e.primitive.name for e in difference.written_path] == ["scan", "cond", "mul"]


def test_outputs_that_differ_are_said():
    difference = assert_differ(lambda x: (x + 1, x + 2), lambda x: (x + 2, x + 1), X)
    assert difference.why.startswith("output 0 is another value")


# ---------------------------------------------------------------- size


def _straight_line(n):
    def f(x, y):
        for i in range(n // 4):
            x = lax.sin(lax.add(lax.mul(x, y), 0.5 + i))
            x = lax.reshape(x, (3, 2) if i % 2 else (2, 3))
            y = lax.reshape(y, x.shape)
        return x

    return f


def test_the_work_grows_with_the_size():
    def work(n):
        first, second = (jax.make_jaxpr(_straight_line(n))(X, Y) for _ in range(2))
        assert compare_jaxprs(first, second) is None
        return lines_run(lambda: compare_jaxprs(first, second))

    assert work(4000) < 10 * work(500)


def test_a_deep_chain_does_not_overflow_the_stack():
    def f(x, last):
        for _ in range(5000):
            x = lax.neg(x)
        return last(x)

    first = jax.make_jaxpr(lambda x: (f(x, lax.sin), lax.cos(x)))(X)
    second = jax.make_jaxpr(lambda x: (lax.cos(x), f(x, lax.sin))[::-1])(X)
    assert compare_jaxprs(first, second) is None
    third = jax.make_jaxpr(lambda x: (f(x, lax.tan), lax.cos(x)))(X)
    difference = compare_jaxprs(first, third)
    assert difference.path[-1].primitive.name == "sin"


def test_a_policy_is_the_same_wherever_it_was_defined():
    def inside(primitive, *_, **__):
        return primitive.name == "sin"

    def others(first, /, *_, **__):
        return first.name == "sin"

    def remat(policy):
        return jax.make_jaxpr(jax.checkpoint(jnp.sin, policy=policy))(1.0)

    assert not compare_jaxprs(remat(inside), remat(_policy_of_a_module))
    assert compare_jaxprs(remat(inside), remat(others))


def _policy_of_a_module(primitive, *_, **__):
    return primitive.name == "sin"
