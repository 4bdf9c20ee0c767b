"""Functions under equinox's `filter_jit`, with the arguments that the author calls them with.

It gives `jax.jit` the arrays one by one, and how they make trees as a static argument. The function that JAX traces is one of
its own: `fun_wrapped(donated, kept, static)`, where the two dicts have `fun`, `first` and `rest` between them, and `static` has
the other leaves and the structure of each; it returns `(marker, result, static)`. Source: `_filter_jit_cache` in
equinox/_jit.py, `hashable_partition` in equinox/_compile_utils.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

_KEYS = ("fun", "first", "rest")


@dataclass(frozen=True, slots=True)
class FilteredCall:
    """What the author's function was called with: for each argument that holds arrays its name, the tree, with None for
    what is no array, and the places of its leaves among those that JAX was given. place: where the function is defined."""

    arguments: tuple[tuple[str, Any, tuple[int, ...]], ...]
    place: str | None


def filtered_call(positional: Sequence[Any]) -> FilteredCall | None:
    """The call behind the arguments of a function that was traced; None where `filter_jit` did not make it."""
    if len(positional) != 3 or type(positional[2]) is not tuple or len(positional[2]) != 3:
        return None
    dicts = positional[:2]
    if any(type(d) is not dict for d in dicts) or sorted(k for d in dicts for k in d) != sorted(_KEYS):
        return None
    trees: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    count = 0
    static = dict(zip(_KEYS, positional[2], strict=True))
    for each in dicts:
        for key in sorted(each):  # as JAX flattens a dict
            _, structure = static[key]
            order = []
            for leaf in each[key]:
                order.append(count if leaf is not None else None)
                count += leaf is not None
            trees[key] = jax.tree.unflatten(structure, each[key])
            numbers[key] = jax.tree.unflatten(structure, order)
    others, structure = static["fun"]
    function = jax.tree.unflatten(
        structure, [d if s is None else s for d, s in zip(_leaves(dicts), others, strict=True)]
    )
    (rest, keywords), (rest_numbers, keyword_numbers) = trees["rest"], numbers["rest"]
    names = _parameters(function)
    given = [(trees["first"], numbers["first"]), *zip(rest, rest_numbers, strict=True)]
    names += [f"{names[-1] if names else 'x'}_{i}" for i in range(len(given) - len(names))]
    found = [("model", trees["fun"], numbers["fun"])]
    found += [(name, tree, order) for name, (tree, order) in zip(names, given, strict=False)]
    found += [(name, keywords[name], keyword_numbers[name]) for name in keywords]
    arguments = [(name, tree, tuple(jax.tree.leaves(order))) for name, tree, order in found]
    return FilteredCall(tuple([a for a in arguments if a[2]]), _place(function))


def _leaves(dicts: Sequence[dict[str, Any]]) -> Sequence[Any]:
    return next(d["fun"] for d in dicts if "fun" in d)


def _parameters(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]
    except (TypeError, ValueError):
        return []


def _place(function: Any) -> str | None:
    """Where a function is defined, as JAX notes it."""
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    called = function if inspect.isfunction(function) else type(function).__call__
    code = getattr(called, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name} at {code.co_filename}:{code.co_firstlineno}" if code is not None else None
