"""`lax.associative_scan`, which JAX unrolls, comes back as one call with the author's function; or not at all."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import untrace
from untrace.capture.function import trace
from untrace.capture.jaxpr import Importer
from untrace.ir.check import check
from untrace.ir.evaluate import evaluate
from untrace.ir.nodes import Library, Program
from untrace.lift.prune import prune
from untrace.lift.recognise.associative import find_associative_scans

XS = jnp.linspace(0.5, 1.5, 60).reshape(20, 3)


def combine(earlier: Any, later: Any) -> Any:
    decay_earlier, state_earlier = earlier
    decay_later, state_later = later
    return decay_later * decay_earlier, decay_later * state_earlier + state_later


def recurrence(decays: Any, drive: Any) -> Any:
    _, states = lax.associative_scan(combine, (decays, drive))
    return jnp.tanh(states)


def written(function: Any, *args: Any, calls: int = 1, **options: Any) -> str:
    """The text of `function`, which has the same jaxpr or the same compiled program, and the same results."""
    d = untrace.decompile(function, **options)(*args)
    assert d.proof.at_least("hlo"), d.proof
    assert d.source.count("lax.associative_scan(") == calls, d.source
    assert jax.tree.all(jax.tree.map(jnp.array_equal, jax.jit(d.__call__)(*args), jax.jit(function)(*args)))
    return d.source


@pytest.mark.parametrize("length", [4, 5, 8, 20, 33])
def test_a_recurrence_is_a_call_with_the_authors_function(length: int) -> None:
    xs = jnp.linspace(0.5, 1.5, length * 3).reshape(length, 3)
    source = written(recurrence, xs, xs)
    assert "    def combine(earlier, later):\n        decay_earlier, state_earlier = earlier\n" in source
    assert "_, states = lax.associative_scan(combine, (decays, drive))" in source
    assert "pad(" not in source and "concatenate" not in source


def test_a_python_loop_of_calls_from_one_place() -> None:
    def layers(x: Any, drives: Any) -> Any:
        for drive in drives:
            _, x = lax.associative_scan(combine, (drive, x))
        return x

    written(layers, XS, [XS, XS + 1.0, XS - 1.0], calls=3)


def test_without_simplifications_it_is_the_same_jaxpr() -> None:
    d = untrace.decompile(recurrence, simplify=False)(XS, XS)
    assert d.proof.level == "jaxpr" and "lax.associative_scan(" in d.source


def test_reverse_other_axes_and_one_array() -> None:
    def suffix_maxima(x: Any) -> Any:
        return lax.associative_scan(jnp.maximum, x, reverse=True, axis=1)

    source = written(suffix_maxima, XS.reshape(3, 20))
    assert "reverse=True" in source and "axis=1" in source

    source = written(lambda x: lax.associative_scan(lambda a, b: a * b + a, x), XS)
    assert "lax.associative_scan(lambda a, b: a * b + a, x)" in source


def test_all_results_and_two_calls_stay_apart() -> None:
    def both(a: Any, b: Any) -> Any:
        decays, states = lax.associative_scan(combine, (a, b))
        again, more = lax.associative_scan(combine, (states, decays))
        return decays, more * again

    written(both, XS, XS, calls=2)


def test_what_a_function_closes_over_is_left_unrolled() -> None:
    def closed(x: Any, scale: Any) -> Any:
        return lax.associative_scan(lambda a, b: a + b * scale, x)

    written(closed, XS, jnp.float32(0.5), calls=0)

    # One matrix is multiplied otherwise than a batch of them.
    written(lambda x: lax.associative_scan(lambda a, b: b @ a, x), jnp.ones((6, 3, 3)), calls=0)


def test_a_function_that_says_shapes() -> None:
    def product(a: Any, b: Any) -> Any:
        return jax.nn.logsumexp(a[..., :, :, None] + b[..., None, :, :], axis=-2)

    def products(x: Any, reverse: bool = False) -> Any:
        combine = (lambda a, b: product(b, a)) if reverse else product
        return lax.associative_scan(combine, x, reverse=reverse)

    def smoothed(p: Any, likelihoods: Any) -> Any:
        elements = p + likelihoods[:, None, :]
        ahead = products(elements)[:, 0]
        return ahead + jax.nn.logsumexp(products(elements, reverse=True), axis=-1)

    def both(p: Any, likelihoods: Any) -> Any:
        return smoothed(p, likelihoods) + smoothed(2.0 * p, jnp.sin(likelihoods))

    # Functions around such calls are functions, those that differ in what combines are two.
    text = written(both, jnp.ones((3, 3)), XS, calls=2)
    assert text.count("def smoothed(") == 1 and "smoothed(2.0 * p, jnp.sin(likelihoods))" in text, text
    assert "def product(a, b):" in text, text

    def other(x: Any) -> Any:
        return lax.associative_scan(lambda a, b: a + jnp.broadcast_to(b[:, :1], b.shape), x)

    written(other, XS)


def test_a_gradient_and_a_value_from_inside_are_left_unrolled() -> None:
    written(jax.grad(lambda x: recurrence(x, x).sum()), XS, calls=0)


def test_short_scans_are_right_whether_or_not_they_are_a_call() -> None:
    for length in (1, 2, 3):
        xs = jnp.linspace(0.5, 1.5, length * 3).reshape(length, 3)
        d = untrace.decompile(recurrence)(xs, xs)
        assert d.proof.at_least("hlo")


def test_a_function_of_the_same_name_is_not_taken_for_it() -> None:
    def associative_scan(x: Any) -> Any:
        return x[0:-1:2] * x[1::2], x[2::2]

    written(associative_scan, XS, calls=0)


def test_the_pass_keeps_the_meaning_and_the_form_of_the_program() -> None:
    captured = trace(recurrence, (XS, XS), {})
    entry = Importer(None).program(captured.jaxpr, "recurrence")
    before = evaluate(entry, XS, XS)
    find_associative_scans(prune(Program(entry, None)))
    assert [e.callee.name for e in entry.equations if type(e.callee) is Library] == ["lax.associative_scan"]
    check(entry)
    assert jnp.array_equal(evaluate(entry, XS, XS)[0], before[0])
    refused = frozenset(captured.jaxpr.eqns)
    entry = Importer(None).program(captured.jaxpr, "recurrence")
    find_associative_scans(prune(Program(entry, None)), refused)
    assert not any(type(e.callee) is Library for e in entry.equations)
