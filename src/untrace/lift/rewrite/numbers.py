"""Numbers that a library computes of numbers: `jnp.log(jnp.sqrt(6.2831855) * 5.0)` in a density is one for its reader.

What the author writes so stays, for it says where the number is from.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.lift.rewrite.simplify import Body, rewrite

Literal = jax_compat.LITERAL_TYPE
_FUNCTIONS = {"log": math.log, "sqrt": math.sqrt}


@rewrite(*_FUNCTIONS)
def number_of_a_library(body: Body, eqn: Any) -> Any:
    """As XLA folds it: of a double, rounded. Of others, made of many operations, it makes another number in a program."""
    (x,), out = eqn.invars, eqn.outvars[0].aval
    if type(x) is not Literal or np.shape(x.val) or str(out.dtype) not in ("float32", "float64"):
        return None
    frames = body.simplifier.provenance.site(eqn).frames
    if not frames or not frames[-1].library or eqn.params.get("accuracy") is not None:
        return None
    number = np.asarray(x.val).astype(out.dtype).item()
    if number <= 0.0:
        return None
    value = np.dtype(out.dtype).type(_FUNCTIONS[eqn.primitive.name](number))
    return jax_compat.literal(value, out) if np.isfinite(value) else None
