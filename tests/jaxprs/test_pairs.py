"""Which equation is which of two programs that are the same, or nearly."""

import jax
import jax.numpy as jnp
from jax import lax

from untrace import jax_compat
from untrace.jaxprs.equal.pairs import paired_equations


def paired(first, second, *args):
    """(the primitives around it, its own) of each equation that has a partner, and whether they are of one primitive."""
    a, b = jax.make_jaxpr(first)(*args), jax.make_jaxpr(second)(*args)
    names = {path: ea.primitive.name for path, ea, _ in paired_equations(a, b)}
    assert all(ea.primitive is eb.primitive for _, ea, eb in paired_equations(a, b))
    return sorted(".".join(names[path[:n]] for n in range(1, len(path) + 1, 2)) for path in names)


def test_what_differs_inside_of_a_call_leaves_the_rest_paired():
    def first(x):
        inner = jax.jit(lambda x: jnp.sin(x) * 2.0 + jnp.cos(x))
        return inner(x) - jnp.exp(x)

    def second(x):
        inner = jax.jit(lambda x: jnp.sin(x) * 2.0 + jnp.tanh(x))
        return inner(x) - jnp.exp(x)

    assert paired(first, second, 1.0) == ["exp", "jit", "jit.add", "jit.mul", "jit.sin", "sub"]


def test_so_does_what_differs_in_a_loop():
    def looped(last):
        return lambda x: lax.fori_loop(0, 3, lambda i, x: last(jnp.sin(x)) + x, x) * 2.0

    found = paired(looped(jnp.cos), looped(jnp.tanh), 1.0)
    assert {"scan", "mul"} <= set(found) and "scan.cos" not in found
    assert "scan.add" in found


def test_calls_of_other_types_are_no_partners():
    first = lambda x: jnp.sum(jax.jit(lambda x: jnp.stack([x, x]))(x))  # noqa: E731
    second = lambda x: jnp.sum(jax.jit(lambda x: jnp.stack([x, x, x]))(x))  # noqa: E731
    assert "jit" not in paired(first, second, jnp.float32(1.0))


def test_pairs_of_equal_programs_are_all_of_them():
    def program(x):
        return lax.cond(x > 0, lambda x: jax.jit(jnp.sin)(x), lambda x: x * 2.0, x)

    def equations(jaxpr):
        eqns = jax_compat.open_jaxpr(jaxpr)[0].eqns
        return len(eqns) + sum(equations(inner) for e in eqns for inner in jax_compat.jaxprs_in(e))

    assert len(paired(program, program, 1.0)) == equations(jax.make_jaxpr(program)(1.0))
