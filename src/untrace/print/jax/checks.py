"""Refusals in the body of the entry function: `if n != 3: raise ValueError(...)`."""

from __future__ import annotations

from collections.abc import Iterator

from untrace.print.jax.pytrees import string
from untrace.print.tree import COMPARE, OR, Expr, Star, Statement, wrap


class DoubleStar(Star):
    """`**value` in a call."""

    __slots__ = ()

    def flat(self) -> str:
        return "*" + super().flat()


class IsNot(Expr):
    """`left is not right`."""

    __slots__ = ("left", "right")
    strength = COMPARE

    def __init__(self, left: Expr, right: Expr):
        self.left, self.right = left, right

    def flat(self) -> str:
        return f"{wrap(self.left, COMPARE + 1)} is not {wrap(self.right, COMPARE + 1)}"


class Refuse(Statement):
    """`if condition: raise error(message)`; the message is data and is quoted here."""

    __slots__ = ("condition", "error", "message")

    def __init__(self, condition: Expr, message: str, error: str = "ValueError"):
        self.condition, self.message, self.error, self.origin = condition, message, error, None

    def lines(self, indent: str) -> Iterator[str]:
        yield f"{indent}if {self.condition.flat()}:"
        yield f"{indent}    raise {self.error}({string(self.message).flat()})"


class Or(Expr):
    """`left or right`."""

    __slots__ = ("left", "right")
    strength = OR

    def __init__(self, left: Expr, right: Expr):
        self.left, self.right = left, right

    def flat(self) -> str:
        return f"{wrap(self.left, OR)} or {wrap(self.right, OR + 1)}"
