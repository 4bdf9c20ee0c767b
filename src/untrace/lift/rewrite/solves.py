"""Rewrites of linear systems: parts of a `custom_linear_solve` that its public function would make in another form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core

from untrace import jax_compat
from untrace.jaxprs.equal.compare import compare
from untrace.lift.rewrite.simplify import Body, rewrite


@rewrite("custom_linear_solve")
def derived_transpose(body: Body, eqn: Any) -> Any:
    """The transpose of its operator is what JAX derives of that: where both were batched, it is the same in another form.

    The program that is compiled has neither of the two in it, only `solve`.
    """
    jaxprs, counts = eqn.params["jaxprs"], eqn.params["const_lengths"]
    matvec, vecmat = jaxprs.matvec, jaxprs.vecmat
    if vecmat is None or vecmat is matvec or jaxprs.transpose_solve is None:
        return None
    known = [v.aval for v in eqn.invars]
    consts, values = known[: counts.matvec], known[sum(counts) :]
    if len(values) != 1 or counts.vecmat != counts.matvec or jax_compat.open_jaxpr(matvec)[1]:
        return None

    def transposed(*operands: Any) -> Sequence[Any]:
        *given, cotangent = operands
        product = jax.extend.core.jaxpr_as_fun(matvec)
        return jax.linear_transpose(lambda x: product(*given, x)[0], values[0])(cotangent)

    try:
        derived = jax_compat.trace_on_avals(transposed, [*consts, *values])
    except Exception:  # an operator that JAX cannot transpose
        return None
    if compare(vecmat, derived).difference is None:
        return None
    start = counts.matvec
    invars = [*eqn.invars[:start], *eqn.invars[:start], *eqn.invars[start + counts.vecmat :]]
    return eqn.replace(invars=invars, params={**eqn.params, "jaxprs": jaxprs._replace(vecmat=derived)})
