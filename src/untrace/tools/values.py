"""The arguments of a function that is examined: values for those that are types, and names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from untrace._errors import OptionError
from untrace.prove.sample import CannotSample, is_concrete, sample_inputs

Tree = TypeVar("Tree")
Named = TypeVar("Named")


def with_values(args: Tree, kwargs: Named, seed: int) -> tuple[Tree, Named, bool]:
    """The arguments with drawn values in the place of `jax.ShapeDtypeStruct`s, and whether there were any.

    Raises OptionError for a type of which none can be drawn.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    if all(is_concrete(leaf) for leaf in leaves):
        return args, kwargs, False
    try:
        drawn = next(sample_inputs(leaves, samples=1, seed=seed))
    except CannotSample as error:
        raise OptionError(
            f"no values can be drawn for these arguments: {error}; give them as @file.py:function"
        ) from error
    return *jax.tree.unflatten(tree, drawn), True


def leaf_names(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    nums: frozenset[int],
    names: frozenset[str],
) -> list[str]:
    """What the arrays are called: `x`, `params['w']`."""
    try:
        positional = list(inspect.signature(function).parameters)
    except Exception:  # `__signature__` may be anything
        positional = []
    words = [positional[i] if i < len(positional) else f"arg{i}" for i in range(len(args))]
    named = [(words[i], x) for i, x in enumerate(args) if i not in nums]
    named += sorted((k, v) for k, v in kwargs.items() if k not in names)
    return [
        f"{word}{jax.tree_util.keystr(path)}" for word, x in named for path, _ in jax.tree_util.tree_leaves_with_path(x)
    ]
