"""What is said of a text of another target, from running it beside the original."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from untrace.capture.jaxpr import Importer
from untrace.prove import execute
from untrace.prove.execute import checked
from untrace.prove.sample import distinct

NAMES = ("result[0]", "result[1]")


def original(x):
    return jnp.where(x > 0.5, jnp.inf, x), 0.0 * x


def proof_of(text):
    return checked(original, original, text, [np.float32(0.25)], NAMES)


def test_the_same_bits():
    assert proof_of(lambda x: (np.float32(np.inf) if x > 0.5 else x, np.float32(0.0) * x)).level == "bits"


def test_where_one_result_overflows_another_may_be_no_number():
    proof = proof_of(lambda x: (np.float32(np.inf) if x > 0.5 else x, np.float32(np.nan if x > 0.5 else 0.0) * x))
    assert proof.level == "close" and any("overflow" in note for note in proof.notes)


def test_another_number_where_nothing_overflows_is_refused():
    assert proof_of(lambda x: (np.float32(np.inf) if x > 0.5 else x, np.float32(1.0))).level == "unproven"
    assert proof_of(lambda x: (np.float32(np.inf) if x > 0.5 else x, np.float32(np.nan))).level == "unproven"


def test_integers_of_integers_are_the_same_on_edge_values_too():
    def wraps(x):
        return (x + jnp.int8(1), x)

    def saturates(x):
        return np.minimum(x.astype(np.int32) + 1, 127).astype(np.int8), x

    found = checked(wraps, wraps, saturates, [np.arange(40, dtype=np.int8)], NAMES)
    assert found.level == "unproven" and "sampled input" in found.detail


def test_where_another_rounding_leaves_no_digit_a_number_may_be_none():
    def singular(x):
        return (jnp.where(x == 1, 5.0, x), x)

    def otherwise(x):
        return (jnp.where(x == 1, 1e9, x), x)

    def text(x):
        return np.float32(np.nan if x == 1 else x), x

    assert checked(singular, otherwise, text, [np.float32(0.25)], NAMES).level == "close"
    assert checked(singular, singular, text, [np.float32(0.25)], NAMES).level == "unproven"


def test_an_order_that_is_left_open_is_compared_where_no_elements_are_equal():
    def program(key, value):
        return lax.sort((key, value), num_keys=1, is_stable=False)

    def backwards(key, value):  # of equal ones the last first
        order = np.lexsort((-np.arange(key.size), key))
        return key[order], value[order]

    def unsorted(key, value):
        return key, value

    key, value = np.zeros(6, np.int32), np.arange(6, dtype=np.int32)
    function = Importer(rules=False).function(jax.make_jaxpr(program)(key, value), "program")
    found = checked(program, program, backwards, [key, value], NAMES, function)
    assert found.level == "bits" and "open" in found.notes[0]
    assert checked(program, program, backwards, [key, value], NAMES).level == "unproven"
    assert checked(program, program, unsorted, [key, value], NAMES, function).level == "unproven"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16, np.int16])
def test_equal_numbers_become_others(dtype):
    """Of narrow floats too, which have few whole numbers; of a type that has not so many, nothing is made."""
    found = np.asarray(distinct(np.zeros((16, 256), dtype), np.random.default_rng(0)))
    assert found.dtype == dtype and np.unique(found).size == found.size
    assert np.array_equal(distinct(np.zeros(300, np.int8), np.random.default_rng(0)), np.zeros(300, np.int8))


def test_a_narrow_type_has_few_units_that_are_close():
    """1,024 units in the last place of float16 are all of the number: dividing by n - 1 was within them."""
    x = jnp.arange(16, dtype=jnp.float16)
    for dtype in (jnp.float16, jnp.bfloat16, jnp.float32):
        text = lambda x: [np.asarray((x.astype(np.float64).var(ddof=1)).astype(x.dtype))]  # noqa: E731
        found = checked(lambda x: [jnp.var(x)], lambda x: [jnp.var(x)], text, [x.astype(dtype)], NAMES[:1])
        assert found.level == "unproven"


def test_a_number_is_tried_where_it_is_no_place_in_an_array():
    def text(x, i):
        return [x[i]]

    for number in (jnp.int32(1), 1):
        found = checked(lambda x, i: [x[i]], lambda x, i: [x[i]], text, [jnp.arange(3.0), number], NAMES[:1])
        assert found.level == "unproven" and "out of bounds" in found.detail


def test_integers_that_float64_does_not_tell_apart_are_apart():
    large = np.array([2**53], np.int64)
    assert execute._distance(large, large) == (0.0, True)
    assert execute._distance(large, large + 1) == (1.0, False)
    assert not execute._explains(0.0, 1.0, np.dtype(np.int64))
