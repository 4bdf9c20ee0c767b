"""Derivative rules are part of a program: two programs that differ only there are different."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from untrace.jaxprs.equal.compare import compare, compare_jaxprs


def traced(f, *args):
    jax.clear_caches()
    return jax.make_jaxpr(lambda *xs: f(*xs))(*args)


def jvp_function(factor, primal=jnp.sin):
    @jax.custom_jvp
    def f(x, n):
        return primal(x) * n

    @f.defjvp
    def rule(primals, tangents):
        x, n = primals
        return f(x, n), tangents[0] * factor * jnp.cos(x)

    return f


def vjp_function(fwd_factor=2.0, bwd_factor=3.0):
    @jax.custom_vjp
    def f(x, y):
        return jnp.sin(x) * y

    def fwd(x, y):
        return f(x, y), (x, jnp.cos(x) * fwd_factor)

    def bwd(residuals, ct):
        x, c = residuals
        return ct * c * bwd_factor, ct * x

    f.defvjp(fwd, bwd)
    return f


def test_equal_rules_are_equal():
    for make in (jvp_function, vjp_function):

        def f(x, make=make):
            return make(2.0)(x, x) + make(2.0)(x, 3.0)

        first, second = traced(f, 1.0), traced(f, 1.0)
        result = compare(first, second)
        assert result.difference is None
        assert result.notes == ()


def test_jvp_rules_that_differ():
    first, second = (traced(lambda x, k=k: jvp_function(k)(x, 2), 1.0) for k in (2.0, 3.0))
    difference = compare_jaxprs(first, second)
    assert [e.primitive.name for e in difference.path] == ["custom_jvp_call", "mul"]
    assert "the jvp rule" in difference.why and "3.0" in difference.why


@pytest.mark.parametrize("factors, part", [((2.5, 3.0), "fwd"), ((2.0, 3.5), "bwd")])
def test_vjp_rules_that_differ(factors, part):
    first = traced(lambda x: vjp_function()(x, x), 1.0)
    second = traced(lambda x: vjp_function(*factors)(x, x), 1.0)
    difference = compare_jaxprs(first, second)
    assert [e.primitive.name for e in difference.path] == ["custom_vjp_call", "mul"]
    assert part in difference.why


def test_a_missing_rule_differs():
    def f(x):
        return jax.jit(lambda a: jnp.sin(a) * 2)(x)

    with_rule = traced(lambda x: jvp_function(1.0)(x, 2), 1.0)
    assert compare_jaxprs(with_rule, traced(f, 1.0)) is not None


def test_rules_inside_rules_are_compared():
    def make(factor):
        inner = jvp_function(factor)

        @jax.custom_jvp
        def outer(x):
            return jnp.exp(x)

        @outer.defjvp
        def rule(primals, tangents):
            (x,), (t,) = primals, tangents
            return outer(x), t * inner(x, 2.0)

        return outer

    first, same, other = (traced(make(k), 1.0) for k in (2.0, 2.0, 3.0))
    assert compare_jaxprs(first, same) is None
    difference = compare_jaxprs(first, other)
    assert [e.primitive.name for e in difference.path] == ["custom_jvp_call"] * 2 + ["mul"]


def test_zero_tangents_and_integer_inputs():
    def make(zero):
        @jax.custom_vjp
        def f(x, n, y):
            return x * n + y

        def bwd(n, ct):
            return ct * n, None, None if zero else ct

        f.defvjp(lambda x, n, y: (x * n + y, n), bwd)
        return lambda x, y: f(x, 3, y)

    first, same, other = (traced(make(z), 1.0, 2.0) for z in (False, False, True))
    assert compare_jaxprs(first, same) is None
    assert compare_jaxprs(first, other) is not None


def test_a_rule_that_cannot_be_traced_is_noted():
    def make():
        @jax.custom_jvp
        def f(x):
            return jnp.sin(x)

        @f.defjvp
        def rule(primals, tangents):
            raise RuntimeError("no rule today")

        return f

    result = compare(traced(make(), 1.0), traced(make(), 1.0))
    assert result.difference is None
    assert any("no rule today" in n for n in result.notes)
    assert compare_jaxprs(traced(make(), 1.0), traced(lambda x: jax.nn.relu(x), 1.0)) is not None


def test_a_rule_with_symbolic_zeros_is_noted():
    def make():
        @jax.custom_jvp
        def f(x, y):
            return x * y

        def rule(primals, tangents):
            x, y = primals
            return x * y, tangents[0] * y

        f.defjvp(rule, symbolic_zeros=True)
        return f

    result = compare(traced(make(), 1.0, 2.0), traced(make(), 1.0, 2.0))
    assert result.difference is None
    assert any("symbolic zeros" in n for n in result.notes)


def test_a_rule_used_often_is_traced_once(monkeypatch):
    from untrace import jax_compat

    def f(x):
        for _ in range(30):
            x = jax.nn.relu(x) + 1
        return x

    first, second = traced(f, 1.0), traced(f, 1.0)
    calls = []
    rule = jax_compat.custom_jvp_rule
    monkeypatch.setattr(jax_compat, "custom_jvp_rule", lambda e: calls.append(e) or rule(e))
    assert compare_jaxprs(first, second) is None
    # Once on either side, and once more where the first argument is weakly typed.
    assert len(calls) <= 4


def test_functions_passed_as_static_arguments_are_told_apart():
    def make(g):
        @jax.tree_util.Partial
        def call(x):
            return apply(g, x)

        return call

    def apply_impl(g, x):
        return g(x)

    apply = jax.custom_jvp(apply_impl, nondiff_argnums=(0,))
    apply.defjvp(lambda g, primals, tangents: (g(*primals), g(tangents[0]) * 2))

    def both(x):
        return make(jnp.sin)(x) + make(jnp.cos)(x)

    def same_twice(x):
        return make(jnp.sin)(x) + make(jnp.sin)(x)

    assert compare_jaxprs(traced(both, 1.0), traced(both, 1.0)) is None
    assert compare_jaxprs(traced(both, 1.0), traced(same_twice, 1.0)) is not None
