"""PyTorch's source with the JAX of each line beside it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from untrace._api import Decompiled
from untrace.torch.api import written_from_torch


def annotate_torch(module: Any, *, comments: str = "none", prove: bool = True) -> Callable[..., str]:
    """A function of the module's inputs that gives the source file of `module`'s class, JAX beside each line as a comment.

    `annotate_torch(model)(tokens)`: the comment behind `q = self.wq(x)` is the JAX statement that `from_torch` writes
    for it. Lines that more than one statement came from get the others on lines of their own below. Nothing but
    comments is added: the text is the same program.
    """

    def annotated(*args: Any, **kwargs: Any) -> str:
        made, places = written_from_torch(module, args, kwargs, prove=prove)
        path = inspect.getsourcefile(type(module))
        if path is None:
            raise OSError(f"the source of {type(module).__name__} is not to be had")
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
        return "\n".join(_beside(lines, _by_line(made, places, path)))

    return annotated


def _by_line(made: Decompiled, places: list[tuple[int, str, int]], path: str) -> dict[int, list[str]]:
    """{line of the author's file: statements of the text that came from it, each on one line}."""
    text = made.source.split("\n")
    found: dict[int, list[str]] = {}
    real = os.path.realpath(path)
    for start, file, line in places:
        if os.path.realpath(file) != real:
            continue
        said = found.setdefault(line, [])
        statement = _statement(text, start)
        if statement not in said:
            said.append(statement)
    return found


def _statement(text: list[str], start: int) -> str:
    """The statement that begins on a line (counted from 0), on one line and without its comment."""
    import ast

    for stop in range(start + 1, min(start + 60, len(text)) + 1):
        try:
            tree = ast.parse(
                "\n".join(line[len(text[start]) - len(text[start].lstrip()) :] for line in text[start:stop])
            )
        except SyntaxError:
            continue
        return ast.unparse(tree)
    return text[start].strip()


def _beside(lines: list[str], statements: dict[int, list[str]]) -> list[str]:
    width = max((len(lines[n - 1]) for n in statements if 0 < n <= len(lines) and len(lines[n - 1]) < 72), default=0)
    found: list[str] = []
    for number, line in enumerate(lines, 1):
        said = statements.get(number)
        if not said or line.rstrip().endswith("\\"):
            found.append(line)
            continue
        found.append(f"{line:<{width}}  # {said[0]}" if "#" not in line else line)
        indent = " " * (width if "#" not in line else len(line) - len(line.lstrip()))
        for statement in said[1:] if "#" not in line else said:
            found.append(f"{indent}  # {statement}")
    return found
