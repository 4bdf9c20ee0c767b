"""What is no array in a function's arguments: the activation of an equinox model, which JAX does not trace.

Such a part is taken out before the trace, None in its place, and put back inside; and the same for results that hold it.
The written entry does so too (`_beside` of `targets.jax.runtime`), and takes no other part there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax

from untrace import jax_compat

Way = tuple[Hashable, ...]  # keys and numbers of dicts, tuples and lists


class Around:
    """A function of arguments without such parts, which stands for one with them.

    `words`: what they are, in their order. `numbers`: whether Python's numbers in trees are some too. `back`: which parts of the
    result get those of which argument back, by the way there; known once it was called. `order`: the arguments as the function
    names its parameters, however they were passed.
    """

    def __init__(self, function: Callable[..., Any], given: Sequence[Any], numbers: bool, order: Sequence[int]):
        functools.update_wrapper(self, function)
        self.function, self.given, self.numbers = function, given, numbers
        self.order = order
        self.words = tuple([_word_of(part) for n in order for part in _fixed(given[n], numbers)])
        self.back: dict[Way, int] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        whole = [_filled(a, g) for a, g in zip([*args, *kwargs.values()], self.given, strict=True)]
        result = self.function(*whole[: len(args)], **dict(zip(kwargs, whole[len(args) :], strict=True)))
        self.back = dict(self._put_back(result, ()))
        return without(result, self.numbers) if self.back else result

    def without(self, tree: Any) -> Any:
        """A tree with None in the place of what is no array to this function."""
        return without(tree, self.numbers)

    def _put_back(self, part: Any, way: Way) -> Iterator[tuple[Way, int]]:
        fixed = _fixed(part, False)
        if not fixed:
            return
        taken_out = without(part, self.numbers)
        for number, argument in enumerate(self.given):
            if jax.tree.structure(taken_out) == jax.tree.structure(without(argument, self.numbers)):
                if all(a is b for a, b in zip(_fixed(argument, False), fixed, strict=True)):
                    yield way, list(self.order).index(number)
                    return
        parts = list(part.items() if type(part) is dict else enumerate(part) if isinstance(part, (tuple, list)) else ())
        if not parts or any(type(key) not in (str, int) for key, _ in parts):
            raise TypeError("it gives a tree that holds what is no array, and is none of its arguments")
        for key, each in parts:
            yield from self._put_back(each, (*way, key))


def around(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, object],
    static: tuple[Container[int], Container[str]],
    numbers: bool = False,
) -> tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, object]]:
    """(a function, arguments) without parts that are no arrays; the same where there are none. `static`: which arguments, by
    place and by name, are not traced."""
    fixed = [i in static[0] for i in range(len(args))] + [name in static[1] for name in kwargs]
    given = [None if f else g for f, g in zip(fixed, [*args, *kwargs.values()], strict=True)]
    if not any(_fixed(tree, numbers) for tree in given):
        return function, args, kwargs
    rest = [g if f else without(g, numbers) for f, g in zip(fixed, [*args, *kwargs.values()], strict=True)]
    return (
        Around(function, given, numbers, _order_of(function, args, kwargs)),
        tuple(rest[: len(args)]),
        dict(zip(kwargs, rest[len(args) :], strict=True)),
    )


def _order_of(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, object]) -> Sequence[int]:
    places = [*range(len(args))], {name: len(args) + n for n, name in enumerate(kwargs)}
    try:
        bound = inspect.signature(function).bind(*places[0], **places[1])
    except (TypeError, ValueError):  # it has no signature
        return range(len(args) + len(kwargs))
    return [*bound.args, *bound.kwargs.values()]


def without(tree: Any, numbers: bool) -> Any:
    """A tree with None in the place of what is no array."""
    if jax.tree.structure(tree) == jax.tree.structure(0):
        return tree
    return jax.tree.map(lambda leaf: leaf if _is_traced(leaf, numbers) else None, tree)


def _word_of(part):
    """What this is, the same in each process: a function by its name; one without a name, or an object, by what is in it."""
    import functools
    import hashlib
    import re

    def inside(value, depth=4):
        code = getattr(value, "__code__", value if hasattr(value, "co_code") else None)
        if code is not None and depth:
            parts = [*code.co_consts, *[c.cell_contents for c in getattr(value, "__closure__", None) or ()]]
            parts += [getattr(value, "__defaults__", None), getattr(value, "__self__", None)]
            return [code.co_code, code.co_names, *[inside(part, depth - 1) for part in parts]]
        if isinstance(value, functools.partial):
            return [inside(each, depth) for each in (value.func, *value.args, *value.keywords.items())]
        if hasattr(value, "tobytes"):
            return [str(value.dtype), value.shape, value.tobytes()]
        if hasattr(value, "__dict__") and not isinstance(value, type) and depth:
            return [type(value).__qualname__, *[(name, inside(own, depth - 1)) for name, own in vars(value).items()]]
        return repr(value)

    name = getattr(part, "__qualname__", None)
    told = re.sub(" at 0x[0-9a-f]+", "", repr(part) if name is None else f"{part.__module__}.{name}")
    if "<" not in told and getattr(part, "__self__", None) is None:
        return told
    whole = re.sub(" at 0x[0-9a-f]+", "", repr(inside(part)))
    return f"{told}#{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def _fixed(tree: Any, numbers: bool) -> list[Any]:
    if tree is None or jax.tree.structure(tree) == jax.tree.structure(0):
        return []
    return [leaf for leaf in jax.tree.leaves(tree) if not _is_traced(leaf, numbers)]


def _is_traced(leaf: Any, numbers: bool) -> bool:
    return jax_compat.is_traceable(leaf) and not (numbers and isinstance(leaf, (bool, int, float, complex)))


def _filled(tree: Any, whole: Any) -> Any:
    if whole is None or jax.tree.structure(whole) == jax.tree.structure(0):
        return tree
    return jax.tree.map(lambda new, old: old if new is None else new, tree, whole, is_leaf=_is_none)


def _is_none(leaf: Any) -> bool:
    return leaf is None
