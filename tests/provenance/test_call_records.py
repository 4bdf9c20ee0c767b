"""What the author's functions were called with, as it is seen while they are traced."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace
from untrace.provenance.call_records import CallRecords

pytestmark = pytest.mark.usefixtures("unguarded")

TREE = {"w": jnp.ones((3, 3)), "b": jnp.ones(3)}


def seen(function, *args):
    """{name of a function: what each of its calls had its traced arguments as}."""
    calls = CallRecords()
    with calls.noted():
        jaxpr = jax.make_jaxpr(lambda *given: function(*given))(*args)
    found = {}
    for eqn in jaxpr.eqns:
        for record in calls.around(eqn.source_info.traceback):
            every = [*record.variables.values(), *[a for several in record.makers.values() for a in several]]
            leaves = sorted({(a.root, *[step for _, step in a.steps]) for a in every})
            calls_of = found.setdefault(record.code.co_name, {})
            calls_of[record] = leaves
    return {name: list(calls_of.values()) for name, calls_of in found.items()}


def scaled(leaf, by=2.0):
    return jnp.sin(leaf) * by


def layer(params, x, *, gain=1.0):
    return jnp.tanh(x @ params["w"] + params["b"]) * gain


def test_arguments_are_seen_leaf_by_leaf():
    found = seen(lambda p, x: layer(p, layer(p, x), gain=x[0]), TREE, jnp.ones(3))
    leaves = [("params", "b"), ("params", "w"), ("x",)]
    assert found["layer"] == [leaves, [("gain",), *leaves]] or found["layer"] == [[("gain",), *leaves], leaves]


def test_each_turn_of_a_loop_is_a_call_of_its_own():
    assert len(seen(lambda x: [scaled(part) for part in x], [jnp.ones(2)] * 3)["scaled"]) == 3
    assert len(seen(lambda x: functools.reduce(lambda a, _: scaled(a), range(4), x), jnp.ones(2))["scaled"]) == 4
    assert len(seen(lambda p: jax.tree.map(scaled, p), TREE)["scaled"]) == 2


def test_mapped_and_differentiated_functions_are_seen():
    assert [("leaf",)] in seen(lambda x: jax.vmap(scaled)(x), jnp.ones(3))["scaled"]
    assert [("leaf",)] in seen(lambda x: jax.grad(lambda y: scaled(y).sum())(x), jnp.ones(3))["scaled"]


def test_an_argument_that_is_an_iterator_is_nothing_that_anyone_is_warned_of():
    def summed(parts):
        return sum(scaled(part) for part in parts)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "summed" in seen(lambda x: summed(iter([x, x + 1.0])), jnp.ones(2))


def test_a_class_whose_leaves_raise_is_left_alone():
    class Broken:
        pass

    def leaves(_):
        raise RuntimeError("no leaves")

    jax.tree_util.register_pytree_node(Broken, leaves, lambda *_: Broken())
    found = seen(lambda x: (lambda broken, y: jnp.sin(y))(Broken(), x), jnp.ones(2))
    assert [("y",)] in found["<lambda>"]


def test_under_the_check_for_leaked_tracers_nothing_is_looked_at():
    with jax.checking_leaks():
        assert seen(lambda p, x: layer(p, x), TREE, jnp.ones(3)) == {}


def test_the_user_s_line_stays_the_user_s():
    from untrace import jax_compat

    with CallRecords().noted():
        jaxpr = jax.make_jaxpr(lambda x: layer(TREE, x))(jnp.ones(3))
    assert all("test_call_records.py" in jax_compat.user_line(eqn) for eqn in jaxpr.eqns)


def test_an_array_that_a_call_is_passed_has_its_parameter_s_name():
    def weigh(x, w):
        return jnp.tanh(x @ w) / (1.0 + jnp.sum(x * x))

    def both(x):
        return weigh(x, jnp.arange(3.0)) + weigh(x, 2.0 * jnp.arange(3.0) + 1.0)

    source = untrace.decompile(both)(jnp.ones((2, 3))).source
    assert "def weigh(x, w):" in source, source


def test_what_jax_asks_is_put_back():
    from jax._src import source_info_util

    before = source_info_util.current
    with pytest.raises(ZeroDivisionError), CallRecords().noted():
        _ = 1 / 0
    assert source_info_util.current is before


def test_a_traced_value_that_jax_knows_to_be_a_number_is_no_variable():
    """JAX stands in for a value that is a number by the number itself, which cannot be a key."""
    from jax._src import core, source_info_util

    def with_number(x):
        number = core.trace_ctx.trace.to_jaxpr_tracer(np.float32(2.0), source_info_util.current())
        return scaled(x, number)

    assert seen(with_number, jnp.ones(2))["scaled"][0] in ([("leaf",)], [("by",), ("leaf",)])
