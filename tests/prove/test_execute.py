"""What is said of a text of another target, from running it beside the original."""

import jax.numpy as jnp
import numpy as np

from untrace.prove.execute import checked

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
