"""Results that are the gradient of an argument, told by their place: a tree like that of an argument, or of a part of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import jax

from untrace.ir.nodes import Program, Value


def gradients_of(program: Program) -> dict[Value, Value]:
    """{a result of the program: the input at the same place in the first tree that is built like the one that it is
    returned in}. Which of these results are gradients is for the caller to know."""
    arguments = getattr(getattr(program.signature, "signature", None), "arguments", None)
    if arguments is None:
        return {}
    params, results = program.entry.params, program.entry.results
    known: dict[Hashable, int] = {}
    start = 0
    for argument in arguments:
        for node, first in _nodes(argument.example, start):
            known.setdefault(_kind(node, params, first), first)
        start += len(jax.tree.leaves(argument.example))
    example = program.signature.result
    if start != len(params) or len(jax.tree.leaves(example)) != len(results):
        return {}
    found: dict[Value, Value] = {}
    for node, first in _nodes(example, 0):
        place = known.get(_kind(node, results, first))
        if place is not None:
            for i in range(len(jax.tree.leaves(node))):
                result = results[first + i]
                if type(result) is Value:
                    found.setdefault(result, params[place + i])
    return found


def _nodes(tree: Any, start: int) -> Iterator[tuple[Any, int]]:
    """The parts of a tree that have several leaves, the larger ones first, with the place of their first leaf."""
    stack = [(tree, start)]
    while stack:
        node, first = stack.pop()
        count = len(jax.tree.leaves(node))
        if count < 2:
            continue
        yield node, first
        children = jax.tree.leaves(node, is_leaf=lambda x, node=node: x is not node)
        places = []
        for child in children:
            places.append((child, first))
            first += len(jax.tree.leaves(child))
        stack.extend(reversed(places))


def _kind(node: Any, values: Any, first: int) -> Hashable:
    """Equal for trees that are built alike of arrays of the same types."""
    structure = jax.tree.structure(node)
    avals = [getattr(v, "aval", None) for v in values[first : first + structure.num_leaves]]
    return structure, tuple([(getattr(a, "shape", None), getattr(a, "dtype", None)) for a in avals])
