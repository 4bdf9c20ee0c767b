"""A better way of writing as an operation of the program."""

from __future__ import annotations

from collections.abc import Callable

from untrace.ir.nodes import Function
from untrace.ir.types import Data


class Better:
    """What stands for a primitive where a better way of writing was put in: `body`, what it does for these types, and
    `function`, which is called where it is written."""

    name = "better"

    def __init__(self, body: Function, function: Callable[..., Data]) -> None:
        self.body = body
        self.function = function
