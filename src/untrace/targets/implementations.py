"""What JAX itself runs for a primitive, for targets that have nothing of their own for it."""

from __future__ import annotations

import warnings

import jax

from untrace.capture.jaxpr import Importer
from untrace.ir.nodes import Equation, Function, Primitive, functions_called
from untrace.jaxprs.expand.expand import implementations
from untrace.targets.plain_forms import plain_form


def implementation(equation: Equation) -> Function | None:
    """The function of an equation's operands that JAX lowers its primitive to: `random_gamma` is a loop of rejections,
    `cumlogsumexp` an associative scan. None where that is code of the compiler's, or nothing that can be traced, or does more
    than compute."""
    if type(equation.callee) is not Primitive or equation.effects:
        return None
    primitive = equation.callee.object
    avals = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in equation.inputs]
    known = plain_form(primitive, equation.params)
    for function in [known] if known is not None else implementations(primitive, equation.params, other_platforms=True):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                closed = jax.make_jaxpr(function)(*avals)
        except Exception:  # JAX's code for another platform or type: anything may be raised
            continue
        found = Importer(rules=False).function(closed, equation.callee.name)
        pairs = zip(equation.outputs, closed.out_avals, strict=True)
        is_typed = all(o is None or (o.aval.shape, o.aval.dtype) == (a.shape, a.dtype) for o, a in pairs)
        if is_typed and not _runs(found, equation.callee.name):
            return found
    return None


def _runs(function: Function, primitive: str) -> bool:
    """Whether a primitive is anywhere in a function: that is no way to do without it."""
    return any(
        e.callee.name == primitive or any(_runs(body, primitive) for body in functions_called(e))
        for e in function.equations
    )
