"""Numbers that a loop's body closes over, and parameters that all calls give the same number, each in words of its own."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

import untrace


class Config(NamedTuple):
    epsilon: float = 0.1
    rate: float = 0.5


CONFIG = Config(epsilon=0.25)
STEP = 0.125


def softened(x, epsilon):
    return -epsilon * jnp.log(jnp.exp(-x / epsilon).sum())


def shifted(x, by):
    return jnp.tanh(x + by) + by * x


def apart(x, by):
    return jnp.sin(x + by) - by * jnp.cos(x)


def again(x, by, times):
    return x if times == 0 else again(jnp.tanh(x * by), by, times - 1)


def closing_over(x, config):
    epsilon, by = config.epsilon, STEP

    def update(i, x):
        return x * epsilon + softened(x, epsilon) * by

    return jax.lax.fori_loop(0, 3, update, x)


def in_a_while(x, config):
    rate = config.rate

    def unfinished(state):
        return (state[0] < 4) & (state[1].sum() > rate)

    return jax.lax.while_loop(unfinished, lambda state: (state[0] + 1, state[1] * rate), (0, x))[1]


def in_words_of_its_own(x, config):
    by = config.rate

    def turn(x, _):
        return shifted(x, by), shifted(x, config.rate).sum()

    return jax.lax.scan(turn, x, None, length=3), shifted(x, by=by)


def of_several_numbers(x, config):
    by = config.rate
    return apart(x, by) + apart(x, config.epsilon)


def of_itself(x, config):
    return again(x, config.rate, 3)


def text_of(function):
    d = untrace.decompile(functools.partial(function, config=CONFIG))(jnp.arange(3.0))
    assert d.proof.level == "jaxpr", d.proof
    return d.source.split("\n\n\ndef _")[0]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (closing_over, ["CONFIG_EPSILON = 0.25", "STEP = 0.125", "x * CONFIG_EPSILON", "-CONFIG_EPSILON *", "* STEP"]),
        (in_a_while, ["CONFIG_RATE = 0.5", "> CONFIG_RATE", "* CONFIG_RATE"]),
        (in_words_of_its_own, ["jnp.tanh(x + CONFIG_RATE)", "CONFIG_RATE * x"]),
    ],
)
def test_an_edit_of_the_number_is_an_edit_of_all(function, expected):
    text = text_of(function)
    assert all(part in text for part in expected), text
    body = text.split("\n\n\n", 1)[1]  # what follows the constants
    assert not any(digits in body for digits in ("0.25", "0.125", "0.5")), text


def test_calls_with_several_numbers_have_no_name_in_common():
    text = text_of(of_several_numbers)
    assert "def apart(x, by)" in text or text.count("jnp.sin(") == 2, text


def test_a_function_that_calls_itself_comes_to_an_end():
    assert "jnp.tanh(" in text_of(of_itself)


class Model(NamedTuple):
    width: int = 12
    heads: int = 3

    @property
    def head_width(self):
        return self.width // self.heads


class Cloud(NamedTuple):
    particles: jax.Array
    weights: jax.Array

    @property
    def count(self):
        """How many there are."""
        return self.particles.shape[0]

    @property
    def rate(self):
        return self.particles.shape[0] / 4


MODEL, COUNT = Model(), 16


def in_heads(x):
    return x.reshape(-1, MODEL.heads, MODEL.head_width) / jnp.sqrt(MODEL.head_width)


def thinned(cloud, level):
    place = jnp.searchsorted(jnp.cumsum(cloud.weights), level)
    return cloud.particles[jnp.minimum(place, cloud.count - 1)] * cloud.rate / cloud.particles.shape[0]


def scaled(params, x):
    return x @ params["w"] / jnp.sqrt(params["w"].shape[0])


def drawn(key, x):
    cloud = Cloud(jax.random.normal(key, (COUNT,)), jnp.full((COUNT,), 1 / COUNT))
    return thinned(cloud, x[0]), scaled({"w": cloud.particles[:, None]}, cloud.weights) + x


def test_sizes_of_parts_and_what_properties_give_are_said():
    d = untrace.decompile(in_heads)(jnp.ones((2, 12)))
    assert "x.reshape(-1, MODEL_HEADS, MODEL_HEAD_WIDTH)" in d.source, d.source
    assert "jnp.sqrt(MODEL_HEAD_WIDTH)" in d.source, d.source
    d = untrace.decompile(drawn)(jax.random.key(0), jnp.arange(5.0))
    assert "cloud.particles.shape[0] - 1)" in d.source and "cloud.particles.shape[0] / 4" in d.source, d.source
    body = d.source.split("\n\n\ndef _")[0].split("\n\n\n", 1)[1]
    assert "15" not in body and "4.0" not in body, d.source
    assert d.proof.at_least("hlo")
