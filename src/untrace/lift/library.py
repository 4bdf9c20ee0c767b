"""Paths of library functions: what a Library callee's `name` means, as something that can be called.

    jnp.mean, jax.nn.softmax, lax.scan    the public function of that path
    operator.add, operator.getitem        an operator of Python
    method.reshape, attribute.T           a method or an attribute of the first argument
    at.add                                `x.at[index].add(y)`; arguments x, index, y

A printer spells them its own way; here is only what they do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_ROOTS = {"jnp": jnp, "lax": lax, "jax": jax, "operator": operator}


@cache
def resolve(path: str) -> Callable[..., Any] | None:
    """The function of a path; None where the installed JAX has none."""
    kind, _, rest = path.partition(".")
    if kind == "method":
        return lambda x, *args, **kwargs: getattr(x, rest)(*args, **kwargs)
    if kind == "attribute":
        return lambda x: getattr(x, rest)
    if kind == "at":
        return lambda x, index, *args, **kwargs: getattr(x.at[index], rest)(*args, **kwargs)
    found: Any = _ROOTS[kind]
    for word in rest.split("."):
        found = getattr(found, word, None)
        if found is None:
            return None
    return found
