"""Numbers of the author's module: written by its names, where the source says so."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from roundtrip import saved

import untrace

GRAVITY, STEP, SCALE, COUNT = 9.81, 0.01, 2.0, 3
LOW, HIGH = 0.5, 0.5
LENGTH = 3.5
CELLS = 7
WIDTH: float = LENGTH / CELLS
HALF = WIDTH / 2
TURN = 2 * math.pi
MOVED = LENGTH
MOVED = MOVED + 1
HUGE = 10**400
X = np.linspace(0.1, 1.0, 6, dtype=np.float32)


def fall(v: Any) -> Any:
    return v - STEP / 2 * (GRAVITY * v + 0.5 * -GRAVITY * v**2) / COUNT


def same_value(v: Any) -> Any:
    return jnp.sin(9.81 * v) * 2.0 + jnp.cos(GRAVITY * v)


def hidden(v: Any) -> Any:
    SCALE = 3.0  # noqa: N806
    return jnp.exp(v * SCALE) + inner(v)


def inner(GRAVITY: Any) -> Any:  # noqa: N803
    return jnp.tanh(GRAVITY * SCALE)


def scanned(v: Any) -> Any:
    return jax.lax.scan(lambda c, _: (c - STEP * jnp.sin(c), jnp.sum(c) / SCALE), v, length=4)


def source_of(fn: Any, folder: Path, **options: Any) -> str:
    """The text, which gives what the original does."""
    written = untrace.decompile(fn, guard=False, **options)(X)
    function, source = saved(written, folder)
    for one, other in zip(jax.tree.leaves(jax.jit(fn)(X)), jax.tree.leaves(jax.jit(function)(X)), strict=True):
        np.testing.assert_array_equal(one, other)
    return source


def test_an_expression_of_the_modules_numbers_is_written_as_it_stands(tmp_path: Path) -> None:
    source = source_of(fall, tmp_path)
    for line in ("GRAVITY = 9.81", "STEP = 0.01", "COUNT = 3"):
        assert f"\n{line}\n" in source, source
    assert "STEP / 2 * (GRAVITY * v + 0.5 * -GRAVITY * v**2)" in source and "/ COUNT" in source, source


def test_an_edit_of_the_number_is_the_edit_of_the_authors(tmp_path: Path) -> None:
    source = source_of(fall, tmp_path)
    names: dict[str, Any] = {}
    exec(source.replace("GRAVITY = 9.81", "GRAVITY = 1.62"), names)
    expected = X - STEP / 2 * (1.62 * X + 0.5 * -1.62 * X**2) / COUNT
    np.testing.assert_allclose(names["fall"](jnp.asarray(X)), expected, rtol=1e-6)


def test_a_number_that_happens_to_be_equal_has_no_name(tmp_path: Path) -> None:
    source = source_of(same_value, tmp_path)
    assert "9.81 * v" in source and "GRAVITY * v" in source and "SCALE" not in source, source


def test_a_variable_of_the_function_hides_the_modules_number(tmp_path: Path) -> None:
    source = source_of(hidden, tmp_path)
    assert "3.0" in source and re.search(r"tanh\(\w+ \* SCALE\)", source), source


def on_a_grid(v: Any) -> Any:
    return jnp.floor(v / WIDTH) + HALF * v - v * MOVED


def test_a_number_that_is_made_of_others_is_made_of_them(tmp_path: Path) -> None:
    source = source_of(on_a_grid, tmp_path)
    for line in ("LENGTH = 3.5", "CELLS = 7", "WIDTH = LENGTH / CELLS", "HALF = WIDTH / 2", "MOVED = 4.5"):
        assert f"\n{line}\n" in source, source
    names: dict[str, Any] = {}
    exec(source.replace("CELLS = 7", "CELLS = 14"), names)
    expected = np.floor(X / 0.25) + 0.125 * X - X * 4.5
    np.testing.assert_allclose(names["on_a_grid"](jnp.asarray(X)), expected, rtol=1e-6)


def turned(v: Any) -> Any:
    return jnp.sin(2 * np.pi * v) + jnp.cos(TURN * v) + jnp.log(v / math.e) - 3.1415927 * v


def test_pi_is_no_digits(tmp_path: Path) -> None:
    source = source_of(turned, tmp_path)
    assert "\nTURN = 2 * jnp.pi\n" in source and "TURN * v" in source, source
    assert "2 * jnp.pi * v" in source and "v / jnp.e" in source and "3.1415927 * v" in source, source
    assert "np.pi" in untrace.decompile(turned, target="numpy")(X).source


def clipped(v: Any) -> Any:
    return jnp.clip(v, STEP, SCALE) + jnp.clip(v, LOW, HIGH) + jax.nn.leaky_relu(v, HIGH)


def test_arguments_of_the_function_that_is_called(tmp_path: Path) -> None:
    source = source_of(clipped, tmp_path)
    assert "jnp.clip(v, STEP, SCALE)" in source and "jnp.clip(v, 0.5, 0.5)" in source, source
    assert "LOW" not in source, source


def test_in_loops_and_derivatives_too(tmp_path: Path) -> None:
    assert "STEP * jnp.sin(c)" in source_of(scanned, tmp_path)
    assert "GRAVITY *" in source_of(jax.grad(lambda v: jnp.tanh(GRAVITY * v).sum()), tmp_path)


def test_the_exact_style_has_numbers_only(tmp_path: Path) -> None:
    assert "GRAVITY" not in source_of(fall, tmp_path, style="exact")


def test_numpy_has_them_as_well() -> None:
    written = untrace.decompile(fall, target="numpy")(X)
    assert "GRAVITY = 9.81" in written.source
    np.testing.assert_allclose(written(X), jax.jit(fall)(X), rtol=1e-6)


def along_rows(f: Any) -> Any:
    return (jnp.roll(f, -1, 0) - jnp.roll(f, 1, 0)) / 2


def along_columns(f: Any) -> Any:
    return (jnp.roll(f, -1, 1) - jnp.roll(f, 1, 1)) / 2


def test_functions_with_two_names_stay_two() -> None:
    def curl(u: Any, v: Any) -> Any:
        return along_rows(v) - along_columns(u) + along_rows(u * v)

    source = untrace.decompile(curl)(*[jnp.outer(X, X)] * 2).source
    assert "along_rows(v) - along_columns(u) + along_rows(u * v)" in source, source


def test_numbers_larger_than_a_float_are_left_alone(tmp_path: Path) -> None:
    def scaled(v: Any) -> Any:
        return v * (HUGE / HUGE) + (v + SCALE * 1e300 / 1e300)

    assert "HUGE" not in source_of(scaled, tmp_path)


CLASSES, TURNS = 5, 4


def shaped(v: Any) -> Any:
    table = jnp.sin(v.reshape(COUNT, 2))
    hot = jax.nn.one_hot(jnp.arange(COUNT) % CLASSES, CLASSES)
    return table @ jnp.ones((2, 1)) + hot @ jnp.ones((CLASSES, 1))


def test_sizes_of_what_is_made_have_the_modules_names(tmp_path: Path) -> None:
    source = source_of(shaped, tmp_path)
    for part in ("v.reshape(COUNT, 2)", "jax.nn.one_hot(jnp.arange(COUNT) % CLASSES, CLASSES)"):
        assert part in source, source
    assert "CLASSES = 5\n" in source and "jnp.ones((CLASSES, 1))" in source, source


def test_a_size_that_only_some_of_a_call_s_numbers_are_named_for_has_digits(tmp_path: Path) -> None:
    def square(v: Any) -> Any:
        n = len("abc")
        return jnp.linalg.norm(v[:n]) * jnp.ones((n, COUNT))

    source = source_of(square, tmp_path)
    assert "COUNT" not in source and "(3, 3)" in source, source


def test_how_often_a_loop_turns(tmp_path: Path) -> None:
    def turned(v: Any) -> Any:
        v = jax.lax.fori_loop(0, TURNS, lambda i, s: jnp.sin(s) + i * STEP, v)
        return jax.lax.scan(lambda c, _: (jnp.cos(c), c.sum()), v, length=TURNS - 1)

    source = source_of(turned, tmp_path)
    assert "fori_loop(0, TURNS, " in source and "length=TURNS - 1" in source and "TURNS = 4\n" in source, source
    names: dict[str, Any] = {}
    exec(source.replace("TURNS = 4", "TURNS = 3"), names)
    assert names["turned"](jnp.asarray(X))[1].shape == (2,)


UNIT, RATE, OTHER_RATE, EQUAL_RATE = 1.0, 0.1, 0.3, 0.1


def kick(v: Any, force: Any, dt: Any) -> Any:
    return v + dt * force / UNIT


def leap(v: Any, dt: Any = STEP) -> Any:
    half = 0.5 * dt
    v = v - half * jnp.sin(v)
    return kick(kick(v, jnp.cos(v), 0.5 * STEP), jnp.cos(v), 0.5 * STEP)


def descend(p: Any, rate: Any) -> Any:
    return p - rate * jnp.sin(p)


def test_a_number_that_a_function_is_passed_is_what_its_calls_say(tmp_path: Path) -> None:
    source = source_of(leap, tmp_path)
    assert "v - 0.5 * STEP * jnp.sin(v)" in source and "v + 0.5 * STEP * force / UNIT" in source, source


def test_an_edit_of_a_number_is_the_edit_of_all_that_is_made_of_it(tmp_path: Path) -> None:
    source = source_of(leap, tmp_path)
    names: dict[str, Any] = {}
    exec(source.replace("STEP = 0.01", "STEP = 0.25").replace("UNIT = 1.0", "UNIT = 2.0"), names)

    def expected(v: Any) -> Any:
        v = v - 0.125 * jnp.sin(v)
        v, force = v + 0.125 * jnp.cos(v) / 2.0, jnp.cos(v)
        return v + 0.125 * force / 2.0

    np.testing.assert_allclose(names["leap"](X), expected(X), rtol=1e-6)


def test_calls_that_say_it_otherwise_share_digits_or_pass_their_words(tmp_path: Path) -> None:
    source = source_of(lambda v: descend(descend(v, RATE), EQUAL_RATE), tmp_path)
    assert "p - 0.1 * jnp.sin(p)" in source and "RATE" not in source, source
    (tmp_path / "other").mkdir()
    source = source_of(lambda v: descend(descend(v, RATE), OTHER_RATE), tmp_path / "other")
    assert "p - rate * jnp.sin(p)" in source and "RATE), OTHER_RATE)" in source, source


def test_what_is_made_of_a_size_has_the_size(tmp_path: Path) -> None:
    def smoothed(v: Any) -> Any:
        classes = jnp.tanh(jnp.ones((5, 6))).shape[0]
        return jnp.ones((5, 6)) * v + STEP / classes

    source = source_of(smoothed, tmp_path)
    assert "+ STEP / 5" in source, source


def test_arrays_that_are_lists_of_numbers_have_their_names(tmp_path: Path) -> None:
    def moved(v: Any) -> Any:
        transition = jnp.array([[1.0, STEP], [0.0, 2 * GRAVITY]])
        return transition @ v.reshape(2, 3)

    source = source_of(moved, tmp_path)
    assert "jnp.array([[1.0, STEP], [0.0, 2 * GRAVITY]], dtype=jnp.float32)" in source, source


@pytest.mark.parametrize("target", ["numpy", "c", *(["torch"] if importlib.util.find_spec("torch") else [])])
def test_other_targets_have_them_as_well(target: str) -> None:
    def moved(v: Any) -> Any:
        transition = jnp.array([[1.0, STEP], [0.0, 2 * GRAVITY]])
        return transition @ v.reshape(2, 3) + transition[0, 1]

    text = untrace.decompile(moved, target=target)(X)
    np.testing.assert_allclose(np.asarray(text(X)), moved(X), rtol=1e-6)
    if target != "c":
        assert "[[1.0, STEP], [0.0, 2 * GRAVITY]]" in text.source and "\nSTEP = 0.01\n" in text.source, text.source


@pytest.mark.parametrize("target", ["numpy", *(["torch"] if importlib.util.find_spec("torch") else [])])
def test_loops_of_other_targets_run_as_often_as_the_author_says(target: str) -> None:
    def summed(v: Any) -> Any:
        v, _ = jax.lax.scan(lambda c, _: (jnp.sin(c), None), v, length=CELLS)
        return jax.lax.fori_loop(COUNT, CELLS, lambda i, c: jnp.cos(c) * i, v)

    text = untrace.decompile(summed, target=target)(X)
    np.testing.assert_allclose(np.asarray(text(X)), summed(X), rtol=1e-5, atol=1e-5)
    assert "in range(CELLS):" in text.source and ".arange(COUNT, CELLS, dtype=" in text.source, text.source


def spun(x: Any, v: Any, dt: Any) -> Any:
    return x + dt * jnp.sin(v), v - dt / 2 * jnp.cos(x)


def test_what_stands_behind_a_spread_argument_is_the_last(tmp_path: Path) -> None:
    source = source_of(lambda v: spun(*(v, jnp.sin(v)), STEP), tmp_path)
    assert "+ STEP * jnp.sin(" in source and "- STEP / 2 * jnp.cos(" in source, source


def test_numbers_that_a_library_hands_on(tmp_path: Path) -> None:
    optax = pytest.importorskip("optax")

    def total(v: Any) -> Any:
        return optax.huber_loss(v, delta=STEP) + optax.smooth_labels(v[None], GRAVITY)[0]

    source = source_of(total, tmp_path)
    assert "jnp.minimum(abs_errors, STEP)" in source and "STEP * (abs_errors" in source, source
    assert "(1.0 - GRAVITY) *" in source and "GRAVITY / " in source, source
