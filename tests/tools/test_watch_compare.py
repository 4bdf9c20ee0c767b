"""Two runs beside each other, and runs as files."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import untrace
from untrace.tools.compare import significant_bits
from untrace.tools.watched import Watched

QUICK = {"sizes": "fixed"}


def f(x):
    a = jnp.sin(x)
    b = a * 3.0

    def turn(c, _):
        c = jnp.cos(c)
        return c, None

    c, _ = lax.scan(turn, b, length=3)
    d = c + b
    return d


X = jnp.linspace(0.1, 1.0, 7)


@pytest.fixture(scope="module")
def text():
    return untrace.decompile(f, guard=False, **QUICK)(X)


@pytest.fixture(scope="module")
def run(text):
    return untrace.watch(text)(X)


def edited(text, old, new):
    assert old in text.source
    return dataclasses.replace(text, source=text.source.replace(old, new), _module=None)


def test_a_run_is_equal_to_itself(text, run):
    comparison = run.compare(untrace.watch(text)(X))
    assert comparison and comparison.first is None
    assert str(comparison) == f"no statement differs: {len(run)} compared, {len(run)} of them equal in every bit"


def test_the_statement_that_was_edited_is_named(text, run):
    other = untrace.watch(edited(text, "jnp.cos(c)", "jnp.cos(c) * 1.001"))(X)
    first = run.compare(other).first
    assert first.left.turns == ((0, 3),) and "jnp.cos(c)" in first.left.statement
    assert first.bits == pytest.approx(-math.log2(0.001), abs=0.1)
    assert not run.compare(other)
    said = str(run.compare(other))
    assert said.startswith(f"the first statement that differs: {first.left.statement}\n")
    assert "d   f, line" in said


def test_significant_bits_that_are_asked_for(text, run):
    other = untrace.watch(edited(text, "jnp.sin(x)", "jnp.sin(x) * 1.001"))(X)
    assert run.compare(other, bits=20).first.left.name == "a"
    assert run.compare(other, bits=5).first is None


def test_dtypes_are_compared_in_the_bits_of_the_less_precise(text, run):
    half = untrace.watch(f, **QUICK)(X.astype(jnp.bfloat16))
    comparison = run.compare(half)
    assert len(comparison.pairs) == len(run)
    by_name = {p.left.name: p for p in comparison.pairs if not p.left.turns}
    assert not by_name["x"].differs and 7.5 < by_name["x"].bits < 12
    assert any(p.bits < 8 for p in comparison.pairs) == (comparison.first is not None)


def test_what_only_one_run_has(text, run):
    more = untrace.watch(edited(text, "    d = c + b\n", "    e = c * 1.0\n    d = e + b\n"))(X)
    comparison = run.compare(more)
    assert comparison.first is None and not comparison
    assert [r.name for r in comparison.alone[1]] == ["e"]
    assert "only the second run has 1: f: e" in str(comparison)


def test_values_that_were_not_kept(text, run):
    other = untrace.watch(text, keep=0)(X + 1)
    first = run.compare(other).first
    assert first.bits is None and "not kept" in str(first)
    assert run.compare(untrace.watch(text, keep=0)(X))  # by their bits all the same


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(-300, 100))
def test_bits_follow_the_deviation(bits, scale):
    a = np.array([1.0, 0.5, -1.0]) * 2.0**scale
    b = a.copy()
    b[1] += 2.0 ** (scale - bits)
    assert significant_bits(a, b) == (bits, 2.0 ** (scale - bits))


@pytest.mark.parametrize(
    ("a", "b", "bits"),
    [
        ([1.0, math.nan], [1.0, math.nan], math.inf), ([1.0, math.nan], [1.0, 2.0], 0.0), ([math.inf], [-math.inf], 0.0),
        ([0.0], [1.0], 0.0), ([True], [False], 0.0), ([2**60], [2**60 + 1], 53.0), ([], [], math.inf), ([1j], [1j], math.inf),
    ],
)  # fmt: skip
def test_bits_of_what_is_special(a, b, bits):
    assert significant_bits(np.array(a), np.array(b))[0] == bits


# ---------------------------------------------------------------- files


def test_a_run_is_read_back(tmp_path):
    def g(key, x):
        k, _ = jax.random.split(key)
        half = x.astype(jnp.bfloat16) * 2
        flag = half > 1
        return k, flag, half.astype(jnp.float32) + 1j

    watched = untrace.watch(g, **QUICK)(jax.random.key(0), X)
    path = watched.save(tmp_path / "run.npz")
    again = untrace.load_run(path)
    assert type(again) is Watched and again.result is None
    assert again.records() == watched.records()
    for one, other in zip(watched, again, strict=True):
        assert one.value.dtype == other.value.dtype and one.value.tobytes() == other.value.tobytes()
    assert watched.compare(again)
    assert list(again.lines()) == list(watched.lines())
    with pytest.raises(untrace.OutputExistsError, match="overwrite=True"):
        watched.save(path)
    watched.save(path, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


def test_refused_files(tmp_path, run):
    with pytest.raises(untrace.OptionError, match=r"saved as an \.npz"):
        run.save(tmp_path / "run.txt")
    with pytest.raises(untrace.OptionError, match="no folder"):
        run.save(tmp_path / "none" / "run.npz")
    with pytest.raises(untrace.OptionError, match="there is no file"):
        untrace.load_run(tmp_path / "run.npz")
    (tmp_path / "text.npz").write_text("cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(untrace.OptionError, match="no run"):
        untrace.load_run(tmp_path / "text.npz")
    np.savez(tmp_path / "other.npz", records=np.frombuffer(json.dumps({"format": "x"}).encode(), np.uint8))
    with pytest.raises(untrace.OptionError, match="no run that this version"):
        untrace.load_run(tmp_path / "other.npz")


def test_turns_that_were_left_out_and_nothing_in_common_are_said(tmp_path):
    def total(x, last):
        def step(c, i):
            return jnp.where(i == last, c + 1.0, c * 0.5), None

        y, _ = lax.scan(step, x, jnp.arange(9))
        return y * 2.0

    one, other = [untrace.watch(total, turns=2)(jnp.ones(3), last) for last in (20, 5)]
    found = str(one.compare(other))
    assert "the first statement that differs" in found and "turns= takes more" in found
    one.save(tmp_path / "run.npz")
    again = untrace.load_run(tmp_path / "run.npz")
    assert again.notes == one.notes and "turns= takes more" in str(again.compare(other))
    alone = untrace.watch(total, only="y")(jnp.ones(3), 20).compare(untrace.watch(lambda x: x + 1.0)(jnp.ones(3)))
    assert not alone and "nothing was compared" in str(alone)
    with pytest.raises(untrace.OptionError):
        one.compare(None)
