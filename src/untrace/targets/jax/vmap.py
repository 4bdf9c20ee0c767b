"""`jax.vmap(f, in_axes)(x, y)`: calls that the capture found again (`capture/calls/vmaps.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace.ir.scans import used_values
from untrace.ir.structured import Map
from untrace.module.call_arguments import arguments_of, bind_result, given_to
from untrace.python.tree import Call, Expr
from untrace.targets.jax.transformed import mapped as mapped_function


def vmap(w: Any, operands: Sequence[Expr], call: Map) -> None:
    """Writes the function, its call, and what the call gives back."""
    equation, body, signature = w.equation, call.function, call.signature
    w.module.modules.add("jax")
    arguments = arguments_of(signature, body)
    if not signature.stands_alone(equation.inputs):
        used = used_values(body)
        mapped = [a for a in arguments if any(call.in_axes[p] is not None for p in a.places)]
        # What no element needs is left out, but something must say how many there are.
        arguments = [a for a in mapped if any(body.params[p] in used for p in a.places)] or mapped[:1]
    function = mapped_function(w, equation, call, operands, arguments)
    given = [given_to(w, a, [operands[p] for p in a.places]) for a in arguments]
    bind_result(w, equation, Call(function, given), signature.out, equation.outputs)
