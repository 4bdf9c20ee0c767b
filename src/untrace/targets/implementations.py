"""What JAX itself runs for a primitive, for targets that have nothing of their own for it."""

from __future__ import annotations

import warnings
import jax

from untrace import jax_compat
from untrace.capture.jaxpr import Importer
from untrace.ir.nodes import Equation, Function, Primitive, functions_called
from untrace.jaxprs.expand.expand import implementations


def implementation(equation: Equation) -> Function | None:
    """The function of an equation's operands that JAX lowers its primitive to: `random_gamma` is a loop of rejections,
    `cumlogsumexp` an associative scan. None where that is code of the compiler's, or nothing that can be traced."""
    if type(equation.callee) is not Primitive or any(o is None for o in equation.outputs):
        return None
    primitive = equation.callee.object
    avals = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in equation.inputs]
    wanted = [(o.aval.shape, o.aval.dtype) for o in equation.outputs if o is not None]
    known = jax_compat.in_other_words(primitive, equation.params)
    for function in [known] if known is not None else implementations(primitive, equation.params):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                closed = jax.make_jaxpr(function)(*avals)
        except Exception:  # JAX's code for another platform or type: anything may be raised
            continue
        found = Importer(rules=False).function(closed, equation.callee.name)
        if [(a.shape, a.dtype) for a in closed.out_avals] == wanted and not _runs(found, equation.callee.name):
            return found
    return None


def _runs(function: Function, primitive: str) -> bool:
    """Whether a primitive is anywhere in a function: that is no way to do without it."""
    return any(
        e.callee.name == primitive or any(_runs(body, primitive) for body in functions_called(e))
        for e in function.equations
    )
