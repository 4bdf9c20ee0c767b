"""Values for arguments that are types."""

from __future__ import annotations

from typing import TypeVar

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
