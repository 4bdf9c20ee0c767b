"""What a written module says of itself: at which level it was proven, for which arguments, and at which sizes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from untrace import _typestrings
from untrace._errors import OptionError, TypeStringError
from untrace.prove.report import said_level
from untrace.refine.functions import argument_names, places
from untrace.refine.sizes import TracedCall

_SIZES = re.compile(r", at ([\w, ]+) = ([\d, ]+) and ([\d, ]+)$", re.MULTILINE)
_NAME = re.compile(r"[^\W\d]\w*")


def declared_level(source: str) -> str:
    """The level at which a module says that it was proven; "jaxpr", the strongest, where it doesn't say."""
    return said_level(ast.get_docstring(ast.parse(source)) or "") or "jaxpr"


def entry_name(source: str) -> str:
    """The function of a module that no other one of it calls. Raises OptionError where that is not one."""
    every = places(source)
    called = {n.id for place in every.values() for n in ast.walk(place.node) if isinstance(n, ast.Name)}
    found = [name for name in every if name not in called]
    if len(found) != 1:
        raise OptionError(
            f"which function is it that is called from outside? {', '.join(found or every) or 'There is none'}. Name it: FILE.py:FN."
        )
    return found[0]


def declared_calls(source: str, name: str) -> list[TracedCall]:
    """The arguments for which a module says that it was written, at each of the sizes at which it says that it was proven.

    Raises OptionError where the docstrings don't say so, or not in full.
    """
    every = places(source)
    if name not in every:
        raise OptionError(f"there is no function {name} in it; it has {', '.join(every)}.")
    node = every[name].node
    said = dict(_types(ast.get_docstring(node) or ""))
    missing = [p for p in argument_names(node) if p not in said]
    head = _SIZES.search(ast.get_docstring(ast.parse(source)) or "")
    if missing:
        raise OptionError(f"the docstring of {name} does not give the type of `{missing[0]}`: give ARGS, see --help.")
    sets: list[dict[str, str]] = [{}]
    if head is not None:
        words = head[1].split(", ")
        sets = [dict(zip(words, numbers.split(", "), strict=False)) for numbers in head.groups()[1:]]
    by_name = {p.arg for p in node.args.kwonlyargs}
    calls: list[TracedCall] = []
    for sizes in sets:
        try:
            values = {p: _typestrings.parse(_at(said[p], sizes)) for p in argument_names(node)}
        except TypeStringError as error:
            raise OptionError(
                f"the docstring of {name} does not give all types in full ({error}): give ARGS, see --help."
            ) from None
        positional = tuple(v for p, v in values.items() if p not in by_name)
        calls.append((positional, {p: v for p, v in values.items() if p in by_name}, {}))
    return calls


def _types(docstring: str) -> Iterator[tuple[str, str]]:
    """`params: {"w": f32[3]}; x, y: f32[n]` of a docstring, one by one."""
    found = re.search(r"^Args:(.*?)(?:^Returns:|\s\sReturns:|\Z)", docstring, re.MULTILINE | re.DOTALL)
    text = " ".join(found[1].split()).rstrip(".") if found else ""
    for part in text.split("; "):
        names, colon, kind = part.partition(": ")
        if colon:
            yield from ((name, kind) for name in names.split(", "))


def _at(kind: str, sizes: Mapping[str, str]) -> str:
    """A type with numbers in the place of its sizes' names."""

    def inside(match: re.Match[str]) -> str:
        return _NAME.sub(lambda word: sizes.get(word[0], word[0]), match[0])

    return re.sub(r"\[[^][{}'\"]*\]", inside, kind)
