"""Linear algebra that has a one-equation public function; the rest is bound. Source: jax/_src/lax/linalg.py."""

from __future__ import annotations

from typing import Any

from untrace.module.rules import Whole
from untrace.python.tree import Attribute, Call, Expr, Text
from untrace.targets.jax import solvers
from untrace.targets.jax.rules.table import rule


@rule("householder_product")
def householder_product(w: Any, a: Any, taus: Any) -> Any:
    return Whole(w.lax("linalg.householder_product", a, taus))


@rule("lu")
def lu(w: Any, x: Any) -> Any:
    return w.lax("linalg.lu", x)


@rule("qr")
def qr(w: Any, x: Any, *, pivoting: bool, full_matrices: bool, use_magma: Any) -> Any:
    options = {"pivoting": pivoting, "use_magma": use_magma}
    return w.lax("linalg.qr", x, full_matrices=full_matrices, **{k: v for k, v in options.items() if v})


@rule("custom_linear_solve")
def custom_linear_solve(w: Any, *operands: Any, const_lengths: Any, jaxprs: Any) -> Any:
    """The primitive itself: the public function would derive the transposed parts again, and differently.

    Source: jax/_src/lax/control_flow/solves.py.
    """
    if w.module.idiomatic and not w.retreating:
        found = solvers.custom_linear_solve(w, operands, const_lengths, jaxprs)
        if found is not None:
            return found
    place = w.primitive(w.equation.callee.object)
    w.module.helper("_solve_tuple")

    def record(parts: Any) -> Expr:
        return Call("_solve_tuple", [], [(k, w.parameter(v)) for k, v in parts._asdict().items()])

    kwargs = [("const_lengths", record(const_lengths)), ("jaxprs", record(jaxprs))]
    return Call(Attribute(place or Text("lax.linear_solve_p"), "bind"), operands, kwargs)


@rule("geqrf")
def geqrf(w: Any, x: Any, **params: Any) -> Any:
    """The factorisation before its parts are put together; `jnp.linalg.qr(x, mode="raw")` binds it, and transposes."""
    primitive = w.call("_primitive", "geqrf", Text('lambda a: jnp.linalg.qr(a, mode="raw")'), x)
    w.module.helper("_primitive")
    return Call(Attribute(primitive, "bind"), [x], [(k, w.source(v)) for k, v in params.items()])
