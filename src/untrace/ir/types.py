"""Names for JAX's own types, as far as the intermediate representation knows them.

JAX's classes are not public, or have no types that a checker could use: what is read of their objects is said here.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

# A jaxpr, closed or not. `jax_compat` reads them; nothing in `ir` does.
Jaxpr: TypeAlias = Any
# An equation of a jaxpr, or what a capture has in its place for a call of its own. `jax_compat` reads them.
Origin: TypeAlias = Any
# A variable of a jaxpr.
Variable: TypeAlias = Any
# A JAX primitive.
PrimitiveObject: TypeAlias = Any
# Any pytree: an example of what a function takes, gives or holds.
PyTree: TypeAlias = Any
# What a parameter of an equation, or an argument of a call, may be: any object that JAX or the author put there.
Parameter: TypeAlias = Any
# A Python or NumPy number, or an array: what a program computes with.
Data: TypeAlias = Any
# The code of a Python function.
Code: TypeAlias = Any
# What the entry of a program takes and gives (`module.interface.entry`).
EntrySignature: TypeAlias = Any
# Where equations came from (`provenance.sites.Provenance`).
Sources: TypeAlias = Any


# The type of an array's elements: NumPy's, or one of JAX's extended ones.
DType: TypeAlias = Any


class Aval(Protocol):
    """An abstract value: the type of a variable. (Of a token it is an object without these.)"""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def weak_type(self) -> bool: ...
