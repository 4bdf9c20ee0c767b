"""What an editor is told of a text that was just written: the types of its functions, and the author's functions behind them."""

from __future__ import annotations

import ast
import collections
import linecache
import types
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace.capture.function import Captured
from untrace.prove.load import load_text
from untrace.prove.retrace import whole_call
from untrace.prove.source_map import SourceMap
from untrace.refine.functions import argument_names, places
from untrace.refine.sizes import TracedCall

_LONGEST = 400  # characters of a function's types


def traced_calls(captured: Captured) -> tuple[TracedCall, ...]:
    """The arguments at which a text was proven, as types: the example's first, then those of other sizes."""
    every = [captured] if captured.example is None else [captured.example, captured]
    return tuple(traced_call(c.args, c.kwargs, c.static) for c in every)


def traced_call(args: tuple[Any, ...], kwargs: Mapping[str, Any], static: Mapping[int | str, Any]) -> TracedCall:
    """A call of which only the types of the arrays are kept."""
    return *jax.tree.map(_as_type, (args, dict(kwargs))), dict(static)


def _as_type(leaf: Any) -> jax.ShapeDtypeStruct:
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) or hasattr(leaf, "weak_type") else jax_compat.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False)))


def argument_types(
    source: str, name: str, arrays: Mapping[str, np.ndarray], calls: Sequence[TracedCall]
) -> dict[str, str]:
    """What each function of a module is called with, "x: f32[8,3]; h: f32[16]", where the first of `calls` reaches it."""
    found: dict[str, str] = {}
    try:
        module = load_text(source, name, dict(arrays))
        for function, place in places(source).items():
            plain = vars(module).get(function)
            if isinstance(plain, types.FunctionType):
                setattr(module, function, _noted(plain, argument_names(place.node), function, found))
        args, kwargs, static = calls[0]
        jax.make_jaxpr(whole_call(getattr(module, name), static))(*args, **kwargs)
    except Exception:  # it is told what is known, and no more
        return found
    return found


def _noted(function: types.FunctionType, names: Sequence[str], word: str, found: dict[str, str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if word not in found:
            given = [*zip(names, args, strict=False), *kwargs.items()]
            found[word] = "; ".join(f"{name}: {_type_of(value)}" for name, value in given)[:_LONGEST]
        return function(*args, **kwargs)

    return call


def _type_of(value: Any) -> str:
    def of_leaf(leaf: Any) -> str:
        try:
            return str(jax_compat.typeof(leaf).str_short(short_dtypes=True))
        except Exception:  # what is no array
            return type(leaf).__name__

    return str(jax.tree.map(of_leaf, value)).replace("'", "")


def author_sources(source_map: SourceMap) -> dict[str, str]:
    """The source of the author's function that most of a function's equations come from, by the name of that in the text."""
    counts: dict[str, collections.Counter[tuple[str, int]]] = {}
    for entry in source_map:
        if entry.author is not None and entry.span is not None:
            line = _definition(entry.author.file, entry.author.line)
            if line:
                counts.setdefault(entry.span.function, collections.Counter())[entry.author.file, line] += 1
    return {name: _source(*counter.most_common(1)[0][0]) for name, counter in counts.items()}


def _definition(file: str, line: int) -> int:
    """The first line of the outermost function or class of the author's around a line; 0 where there is none."""
    for node in _parsed(file):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.lineno <= line <= (node.end_lineno or 0):
            return node.lineno
    return 0


def _source(file: str, line: int) -> str:
    for node in _parsed(file):
        if getattr(node, "lineno", 0) == line:
            lines = linecache.getlines(file)
            return "".join(lines[line - 1 : node.end_lineno])
    return ""


def _parsed(file: str) -> list[ast.stmt]:
    try:
        return ast.parse("".join(linecache.getlines(file))).body
    except (SyntaxError, ValueError, RecursionError):
        return []


def moved_lines(before: str, after: str, origins: Sequence[Any]) -> list[Any]:
    """What belongs to the lines of a text, for the lines of an edited one; "" of those that are new."""
    old, new = before.split("\n"), after.split("\n")
    moved: list[Any] = [""] * len(new)
    for block in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        for k in range(block.size):
            if block.a + k < len(origins):
                moved[block.b + k] = origins[block.a + k]
    return moved
