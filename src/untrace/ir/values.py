"""What equations take and give: variables, numbers that stand in them, arrays that the program closes over.

`Value` and `Constant` objects are compared by identity: the object *is* the variable.
"""

from __future__ import annotations

from typing import final

from untrace.ir.said import SaidArray, SaidComputed
from untrace.ir.types import Aval, Data


@final
class Value:
    """A variable: bound once, by a Function's parameter or an Equation's output. `aval` is JAX's abstract value.

    `hint` is a name for it; `named` says that the author bound it to that name, in a statement of its own, and
    `named_inside` that a library did. `whole` is the author's name for the tree of which it is a leaf, where a call gave it.
    """

    __slots__ = ("aval", "hint", "named", "named_inside", "whole")

    def __init__(self, aval: Aval, hint: str | None = None):
        self.aval = aval
        self.hint = hint
        self.named = False
        self.named_inside = False
        self.whole: str | None = None


@final
class Literal:
    """A scalar that stands in an equation itself. `value`: Python or NumPy scalar of `aval.dtype`, shape ()."""

    __slots__ = ("value", "aval")

    def __init__(self, value: Data, aval: Aval):
        self.value = value
        self.aval = aval


@final
class Constant:
    """An array that a function closes over; one object per array identity in the whole Program.

    `hint` is a name for it: from where the function has it, or from what it holds; None where nobody has said.
    `said`: the author's expressions for its numbers (of a small array), where they are made of numbers of the module; or
    his expression for the whole of it.
    """

    __slots__ = ("value", "aval", "hint", "said")

    def __init__(self, value: Data, aval: Aval, hint: str | None = None):
        self.value = value
        self.aval = aval
        self.hint = hint
        self.said: SaidArray | SaidComputed | None = None


Atom = Value | Literal | Constant
