"""Paths of library functions: what a Library callee's `name` means, as something that can be called.

    jnp.mean, jax.nn.softmax, lax.scan    the public function of that path
    operator.add, operator.getitem        an operator of Python
    method.reshape, attribute.T           a method or an attribute of the first argument
    at.add                                `x.at[index].add(y)`; arguments x, index, y
    unpack                                `a, b, c = x`: the parts of an array along its first axis

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

# Where a function of a given name is looked for, as a module writes it; the first that has it is the likeliest.
_MODULES = (
    "jnp", "jax.nn", "jax.random", "jnp.linalg", "jnp.fft", "jax.scipy.special", "jax.scipy.linalg", "jax.ops", "jax.image",
    "jax.scipy.signal", "jax.scipy.stats", "jax.scipy.fft", "jax.scipy.ndimage", "jax.scipy.stats.norm", "lax", "lax.linalg", "jax",
)  # fmt: skip

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
    if kind == "unpack":
        return lambda x: tuple(x)
    found: Any = _ROOTS[kind]
    for word in rest.split("."):
        found = getattr(found, word, None)
        if found is None:
            return None
    return found


@cache
def named(name: str) -> tuple[str, ...]:
    """Paths of the public functions that a jitted library function of this name may be the inside of: `_where`, `_roll_static`."""
    plain = name.lstrip("_")
    words = dict.fromkeys(
        (plain, *(plain.removesuffix(s) for s in ("_static", "_dynamic", "_impl", "_real", "_jit", "_vjp", "_batched")))
    )
    found = []
    for module in _MODULES:
        root = resolve(module) if "." in module else _ROOTS[module]
        for word in words:
            function = getattr(root, word, None)
            if callable(function) and not isinstance(function, type) and type(function).__name__ != "module":
                found.append(f"{module}.{word}")
    return tuple(found)


def public(path: str, name: str) -> str:
    """How a module writes the function `name` of the public module `path`: `jnp.mean`, `lax.rsqrt`, `jax.nn.relu`."""
    for long, short in (("jax.numpy", "jnp"), ("jax.lax", "lax")):
        if path == long or path.startswith(long + "."):
            path = short + path[len(long) :]
    return f"{path}.{name}"
