"""Linear algebra that has a one-equation public function; the rest is bound. Source: jax/_src/lax/linalg.py."""

from __future__ import annotations

from typing import Any

from untrace.print.rules import rule


@rule("householder_product")
def householder_product(w: Any, a: Any, taus: Any) -> Any:
    from untrace.print.rules import Whole

    return Whole(w.lax("linalg.householder_product", a, taus))


@rule("lu")
def lu(w: Any, x: Any) -> Any:
    return w.lax("linalg.lu", x)
