"""The functions of a written module as an editor gets them, and the module with another text in the place of one."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from untrace.python import helpers
from untrace.targets.jax import guard as _  # noqa: F401  its import registers what modules end with


class FunctionText(str):
    """The text of one function: a `str`, and what an editor may want to know beside it.

    `name`: the function's. `types`: of its arguments, "x: f32[8,3]; h: f32[16]", "" where it is not called while the
    program is traced. `callers`: the texts of the functions that call it. `author`: the source of the author's function that it
    was written from, "" where that is not known. `module`: the whole text that it stands in. `refused`: why this editor's earlier
    answers for it were.
    """

    name: str
    types: str
    callers: tuple[str, ...]
    author: str
    module: str
    refused: tuple[str, ...]

    def __new__(
        cls,
        text: str,
        name: str,
        types: str = "",
        callers: Sequence[str] = (),
        author: str = "",
        module: str = "",
        refused: Sequence[str] = (),
    ) -> FunctionText:
        made = super().__new__(cls, text)
        made.name, made.types, made.author, made.module = name, types, author, module
        made.callers, made.refused = tuple(callers), tuple(refused)
        return made

    def context(self) -> dict[str, object]:
        """What there is to know beside the text, for JSON."""
        return {
            "name": self.name, "types": self.types, "callers": list(self.callers), "author": self.author,
            "module": self.module, "refused": list(self.refused),
        }  # fmt: skip


Editor = Callable[[FunctionText], str | None]
"""Takes a function's text and gives another; None, or the same, for one that is to stay."""


@dataclass(frozen=True, slots=True)
class Place:
    """A function of a module: its node, and its lines, the first and the one behind the last, counted from 0."""

    node: ast.FunctionDef
    start: int
    end: int


def places(source: str) -> dict[str, Place]:
    """The functions of a module by name, without the helpers at its end."""
    text = helpers.parted(source)[0]
    found: dict[str, Place] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *[d.lineno for d in node.decorator_list]])
            assert node.end_lineno is not None
            found[node.name] = Place(node, first - 1, node.end_lineno)
    return found


def text_of(source: str, place: Place) -> str:
    return "\n".join(source.split("\n")[place.start : place.end])


def replaced(source: str, place: Place, text: str) -> str:
    lines = source.split("\n")
    return "\n".join([*lines[: place.start], *text.strip("\n").split("\n"), *lines[place.end :]])


def given(source: str, name: str, types: Mapping[str, str], author: str, refused: Sequence[str] = ()) -> FunctionText:
    """A function of a module, as the editor gets it."""
    every = places(source)
    callers = [
        text_of(source, place)
        for other, place in every.items()
        if other != name and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(place.node))
    ]
    return FunctionText(text_of(source, every[name]), name, types.get(name, ""), callers, author, source, refused)


def argument_names(node: ast.FunctionDef) -> list[str]:
    """All parameters of a function, in their order."""
    a = node.args
    every: list[Any] = [*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg]
    return [p.arg for p in every if p is not None]
