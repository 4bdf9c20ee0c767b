"""Loops with the numbers that they are handed inside: whether a number is an operand of a loop or stands in its body depends
on what it was (Python's, NumPy's, or an array of JAX's) where a pullback holds it, and no jaxpr says so."""

from __future__ import annotations

from typing import Any

from untrace import jax_compat


def numbers_inside(closed: Any) -> Any:
    """`closed` with the numbers that its loops are handed in their bodies; the very same object where there are none."""
    return _NumbersInside().jaxpr(closed)


class _NumbersInside(jax_compat.JaxprRewriter):
    def rewritten(self, closed: Any) -> Any:
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        eqns = [jax_compat.with_numbers_inside(jax_compat.with_inner_jaxprs(e, self.jaxpr)) for e in jaxpr.eqns]
        if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return closed
        return jax_compat.rebuilt_jaxpr(closed, eqns, jaxpr.outvars)
