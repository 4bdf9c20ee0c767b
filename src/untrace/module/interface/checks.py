"""Refusals in the body of the entry function: `if n != 3: raise ValueError(...)`, or a loop over many arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from untrace.python.pytrees import string
from untrace.python.statements import Statement
from untrace.python.tree import Expr, Star


class DoubleStar(Star):
    """`**value` in a call."""

    __slots__ = ()

    def flat(self) -> str:
        return "*" + super().flat()


class Refuse(Statement):
    """`if condition: raise error(message)`; the message is data and is quoted here."""

    __slots__ = ("condition", "error", "message")

    def __init__(self, condition: Expr, message: str, error: str = "ValueError"):
        self.condition, self.message, self.error, self.origin = condition, message, error, None

    def lines(self, indent: str) -> Iterator[str]:
        yield f"{indent}if {self.condition.flat()}:"
        yield f"{indent}    raise {self.error}({string(self.message).flat()})"


class RefuseOthers(Statement):
    """Refuses other values than those of the trace, for many arguments in one loop.

    `same`: an argument's name as the user knows it, what gives it, and the source of the value that it had.
    """

    __slots__ = ("same", "variables")
    variables: tuple[str, ...]

    def __init__(self, same: Sequence[tuple[str, Expr, Expr]]):
        self.same, self.variables, self.origin = same, ("argument", "given", "traced"), None

    def choose(self, fresh: Callable[[str], str]) -> None:
        """Gives the loop's variables names that are free."""
        self.variables = tuple(map(fresh, ("argument", "given", "traced")))

    def lines(self, indent: str) -> Iterator[str]:
        argument, given, traced = self.variables
        rows = [f"({string(name).flat()}, {expr.flat()}, {written.flat()})" for name, expr, written in self.same]
        yield f"{indent}for {argument}, {given}, {traced} in ("
        yield from (f"{indent}    {row}," for row in rows)
        yield f"{indent}):"
        yield f"{indent}    if type({given}) is not type({traced}) or {given} != {traced}:"
        yield f'{indent}        raise ValueError(f"{{{argument}!r}} was {{{traced}!r}} when this was traced, and cannot be anything else")'
