"""Signatures around pytrees: defaults, static arguments, parameters of every kind."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from written_trees import LEAF, Written

from untrace.module.interface.signature import static_arguments

# ---------------------------------------------------------------- signatures


def sample(x: Any, n: int = 3, *, scale: float = 2.0, mode: str = "relu", act: Any = jnp.tanh):
    return x * scale


def test_what_the_trace_fixed_is_refused() -> None:
    written = Written(sample, (1.0,), out=LEAF)
    head = 'def written(x, n=3, *, scale=2.0, mode="relu", act=jnp.tanh):'
    assert head in written.text
    assert written(1.0) == written(1.0, 3, scale=2.0, mode="relu", act=jnp.tanh) == 1.0
    for wrong in ({"n": 4}, {"n": 3.0}, {"n": jnp.ones(2)}, {"scale": 1.0}, {"mode": "x"}):
        with pytest.raises(ValueError, match="when this was traced, and cannot be anything else"):
            written(1.0, **wrong)
    with pytest.raises(ValueError, match="'act' was tanh when this was traced"):
        written(1.0, act=jnp.sin)


def test_many_arguments_are_checked_in_one_loop() -> None:
    def fn(x: Any, given: int = 3, traced: float = 2.0, argument: bool = False, mode: Any = None) -> Any:
        return x * given * traced

    written = Written(fn, (1.0,), out=LEAF)
    assert written.text.count("raise ValueError(") == 1
    assert written(1.0) == written(1.0, 3, 2.0, False, None) == 1.0
    for wrong in ({"given": 3.0}, {"traced": jnp.ones(2)}, {"argument": 0}, {"argument": None}, {"mode": jnp.ones(2)}):
        with pytest.raises(
            ValueError, match=f"'{[*wrong][0]}' was .* when this was traced, and cannot be anything else"
        ):
            written(1.0, **wrong)


def test_a_default_without_source_can_only_be_left_out() -> None:
    def fn(x: Any, callback: Any = lambda x: x) -> Any:
        return x

    written = Written(fn, (1.0,), out=LEAF)
    assert "def written(x, callback=None):" in written.text
    with pytest.raises(ValueError, match="'callback' has the value .* leave it out"):
        written(1.0, lambda x: x)


def test_traced_defaults() -> None:
    written = Written(sample, (1.0,), {"scale": 4.0, "act": {"a": 1.0}})
    assert 'def written(x, n=3, *, scale=2.0, mode="relu", act):' in written.text
    with pytest.raises(TypeError, match="act"):
        written(1.0)


def test_a_required_argument_behind_a_default() -> None:
    def fn(x: Any, n: int = 3, y: Any = None) -> Any:
        return x

    written = Written(fn, (1.0,), {"y": 2.0}, out=(LEAF, LEAF))
    assert written(1.0, y=2.0) == written(1.0, 3, 2.0) == (1.0, 2.0)
    with pytest.raises(TypeError, match="the argument 'y' is missing"):
        written(1.0)


def test_none_is_part_of_the_program() -> None:
    def fn(x: Any, mask: Any) -> Any:
        return x

    written = Written(fn, (1.0, None), out=LEAF)
    assert written(1.0, None) == 1.0
    with pytest.raises(ValueError, match="'mask' was None when this was traced"):
        written(1.0, 2.0)


def test_static_arguments_are_checked() -> None:
    static = static_arguments(sample, (1.0, 5), 1)
    assert static == (frozenset({1}), frozenset({"n"}))
    assert static_arguments(sample, (1.0, 5), (), "n") == static
    assert static_arguments(sample, (1.0, 5), -1) == static
    assert static_arguments(sample, (1.0,), (), ("n",)) == (frozenset(), frozenset({"n"}))
    written = Written(sample, (1.0, 5), static=static, out=LEAF)
    assert len(written.signature.arguments) == 1
    assert written(1.0, 5) == 1.0
    with pytest.raises(ValueError, match="'n' was 5"):
        written(1.0)  # the original would run with 3


def test_a_static_function_without_source_is_said() -> None:
    written = Written(lambda f, x: None, (lambda: 1, 2.0), static=({0}, ()), out=LEAF)
    assert written(None, 3.0) == 3.0
    assert written.notes == ("the static argument 'f' is built in, and not checked",)
    assert "# f is as it was traced, whatever is passed for it." in written.text


def test_every_kind_of_parameter() -> None:
    def fn(a: Any, /, b: Any, *rest: Any, k: Any, **options: Any) -> Any:
        return a

    kwargs = {"k": 5.0, "z z": {"q": 7.0}, "b2": 6.0}
    written = Written(fn, (1.0, 2.0, 3.0, (4.0,)), kwargs, out=[LEAF] * 7)
    assert "def written(a, /, b, *rest, k, **options):" in written.text
    # The order of JAX: positional arguments, then keywords by name.
    assert written(1.0, 2.0, 3.0, (4.0,), **kwargs) == [1.0, 2.0, 3.0, 4.0, 6.0, 5.0, 7.0]
    with pytest.raises(TypeError, match="traced with 2 arguments in .rest"):
        written(1.0, 2.0, 3.0, **kwargs)
    with pytest.raises(TypeError, match="traced with these names in ..options: b2, z z"):
        written(1.0, 2.0, 3.0, (4.0,), k=5.0)


def test_parameters_that_hide_what_the_body_needs() -> None:
    def fn(jnp: Any, /, float: Any, *type: Any, len: Any = 1.0, _like: Any, **sorted: Any) -> Any:
        return jnp

    kwargs = {"len": 3.0, "_like": 5.0, "q": 4.0}
    written = Written(fn, (1.0, 2.0, (8.0,)), kwargs, out=[LEAF] * 6)
    assert "def written(jnp, /, float, *type, len=1.0, _like, **sorted):" in written.text
    assert written(1.0, 2.0, (8.0,), **kwargs) == [1.0, 2.0, 8.0, 5.0, 3.0, 4.0]


class Model:
    def method(self, x: Any, y: Any = 1) -> Any:
        return x

    def __call__(self, a: Any, b: Any) -> Any:
        return a


class Broken:
    @property
    def __signature__(self) -> Any:
        raise RuntimeError("no signature")

    def __call__(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    "fn, args, head",
    [
        (jax.jit(sample), (1.0,), 'x, n=3, *, scale=2.0, mode="relu", act=jnp.tanh'),
        (jax.grad(lambda w, x: w), (1.0, 2.0), "w, x"),
        (jax.vmap(lambda w, x: w), (1.0, 2.0), "w, x"),
        (functools.partial(sample, n=7), (1.0,), 'x, *, scale=2.0, mode="relu", act=jnp.tanh'),
        (functools.partial(lambda a, b: b, 1.0), (2.0,), "b"),
        (Model().method, (1.0,), "x, y=1"),
        (Model(), (1.0, 2.0), "a, b"),
        (jax.lax.add, (1.0, 2.0), "x, y"),
        (max, (1.0, 2.0), "x0, x1"),
        (Broken(), (1.0,), "x0"),
        (functools.wraps(sample)(lambda *args: args), (1.0,) * 4, "x0, x1, x2, x3"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_callables_of_all_kinds(fn: Any, args: Any, head: str) -> None:
    written = Written(fn, args, out=LEAF)
    assert f"def written({head}):" in written.text
    assert written(*args) == args[0]


def test_keywords_without_a_signature() -> None:
    written = Written(max, (1.0,), {"b": 2.0, "a": 3.0}, out=[LEAF] * 3)
    assert "def written(x0, *, a, b):" in written.text
    written = Written(max, (1.0,), {"not a name": 2.0}, out=[LEAF] * 2)
    assert written(1.0, **{"not a name": 2.0}) == [1.0, 2.0]
