"""Keys: seeds, splits, and the raw ones (uint32 arrays), which JAX wraps and unwraps around everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from untrace.ir.nodes import Equation
from untrace.lift.recognise.engine import Guess, Matcher, idiom


@idiom("random_seed", small=True)
def _seed(m: Matcher, equation: Equation) -> Iterator[Guess]:
    yield Guess("jax.random.key", (equation.inputs[0],))
    yield Guess("jax.random.key", (equation.inputs[0],), {"impl": str(equation.origin.params["impl"].name)})


@idiom("random_wrap", small=True)
def _wrap(m: Matcher, equation: Equation) -> Iterator[Guess]:
    yield Guess("jax.random.wrap_key_data", (equation.inputs[0],))


@idiom("random_split", "random_fold_in")
def _split(m: Matcher, equation: Equation) -> Iterator[Guess]:
    yield from _of_key(m, equation, equation.inputs[0])


@idiom("random_unwrap")
def _unwrap(m: Matcher, equation: Equation) -> Iterator[Guess]:
    inside = m.producer(equation.inputs[0], "random_split", "random_fold_in", "random_seed")
    if inside is not None and inside.callee.name == "random_seed":
        yield Guess("jax.random.PRNGKey", (inside.inputs[0],))
    elif inside is not None:
        raw = m.through(inside.inputs[0], "random_wrap")
        if raw is not None:
            yield from _of_key(m, inside, raw)
    yield Guess("jax.random.key_data", (equation.inputs[0],))


def over_keys(key: Any, guess: Guess) -> Guess:
    """`guess`, mapped over the axis that `key` has where it is an array of keys."""
    rank = len(key.aval.shape)
    if not rank:
        return guess
    mapped = [i for i, a in enumerate(guess.args) if a is guess.args[0] or len(getattr(_aval(a), "shape", ())) == rank]
    return Guess("vmap." + guess.path, (tuple(mapped), *guess.args), guess.kwargs)


def _aval(value: Any) -> Any:
    return getattr(value, "aval", None)


def _of_key(m: Matcher, equation: Equation, key: Any) -> Iterator[Guess]:
    """Splits and folds of `key`, typed or raw; of each of several keys."""
    keys = equation.inputs[0]
    for guess in _of_one_key(m, equation, key):
        yield over_keys(keys, guess)


def _of_one_key(m: Matcher, equation: Equation, key: Any) -> Iterator[Guess]:
    if equation.callee.name == "random_fold_in":
        data = equation.inputs[1]
        before = m.through(data, "convert_element_type")
        for number in (data,) if before is None else (before, data):
            yield Guess("jax.random.fold_in", (key, number))
        return
    shape = tuple(int(n) for n in equation.origin.params["shape"])
    if shape == (2,):
        yield Guess("jax.random.split", (key,))
    yield Guess("jax.random.split", (key, shape[0] if len(shape) == 1 else shape))
