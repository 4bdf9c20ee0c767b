"""What Python is called back with, as the arguments of a call: pytrees of operands and of plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from untrace.capture.callbacks import CallbackInfo, Operand
from untrace.python.tree import Dict, Expr, List, Tuple


def callback_arguments(
    info: CallbackInfo, operands: Sequence[Expr], source: Callable[[object], Expr]
) -> tuple[list[Expr], list[tuple[str, Expr]]]:
    """The positional and the named arguments, as expressions. source: writes plain values."""
    if info.flat_reason:
        return list(operands), []

    def written(value: object) -> Expr:
        if isinstance(value, Operand):
            return operands[value.index]
        if type(value) is dict:
            return Dict([(source(k), written(v)) for k, v in value.items()])
        if type(value) is tuple:
            return Tuple([written(v) for v in value])
        if type(value) is list:
            return List([written(v) for v in value])
        return source(value)

    return [written(a) for a in info.args], [(k, written(v)) for k, v in info.kwargs.items()]
