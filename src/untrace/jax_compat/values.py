"""Values and their types as JAX sees them: shape, dtype, weak type; arrays, tracers, refs, typed PRNG keys; tangents."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeGuard

import jax
import numpy as np
from jax._src import core as _core
from jax.extend import core as jex_core


def core_cotangent(aval: Any) -> Any:
    """The abstract value of a cotangent of `aval` (float0 for integers)."""
    method = getattr(aval, "to_ct_aval", None) or aval.to_tangent_aval
    return method()


FLOAT0 = jax.dtypes.float0


def is_key(value: Any) -> bool:
    """Whether `value` is a typed PRNG key array."""
    return hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def key_impl_name(key: Any) -> str:
    """The name of a key array's implementation ("threefry2x32", "rbg", "unsafe_rbg", ...)."""
    return str(key.dtype._impl.name)


def key_data(key: Any) -> Any:
    return jax.random.key_data(key)


def splits_bits_by_place() -> bool:
    """Whether Threefry's bits for an element of an array depend on its place alone (`jax_threefry_partitionable`)."""
    config: Any = jax.config
    return bool(config.jax_threefry_partitionable)


def as_numpy(value: Any) -> Any:
    """A value as NumPy has it: an array, or a scalar of no dimensions; of typed keys their words."""
    return np.asarray(jax.random.key_data(value) if is_key(value) else value)[()]


def is_ref(value: Any) -> bool:
    """Whether `value` is a mutable array (`jax.new_ref`), concrete or traced."""
    from jax._src.core import Ref  # `jax.Ref` is public from 0.10 on, but a type alias there

    return isinstance(value, Ref)


def why_no_constant(value: Any) -> str:
    """Why no text has `value` as a constant; "" of what may be one."""
    if is_ref(value):
        return (
            "the function closes over a mutable array (jax.new_ref), whose state cannot be written as text: "
            "pass it as an argument, or create it inside the function"
        )
    return "it reads a traced value of the function around it" if is_tracer(value) else ""


def is_shaped_array(aval: Any) -> TypeGuard[_core.ShapedArray]:
    return type(aval) is _core.ShapedArray  # jax.core dropped its public name for isinstance checks


def is_array_type(value: Any) -> bool:
    """Whether a value is the type of an array, as JAX keeps it or as it gives it out."""
    return is_shaped_array(value) or type(value) is jax.ShapeDtypeStruct


def plain_aval(aval: Any) -> Any:
    """The shaped array of the same shape, dtype and weak type that is sharded over nothing; the type itself where a mesh is
    part of it: JAX then makes other equations of the same call."""
    from jax._src.core import ShapedArray

    if getattr(getattr(getattr(aval, "sharding", None), "mesh", None), "axis_names", None):
        return aval
    return ShapedArray(aval.shape, aval.dtype, aval.weak_type)


def is_ref_aval(aval: Any) -> bool:
    from jax._src.state.types import AbstractRef  # no public name

    return isinstance(aval, AbstractRef)


_DTYPE_NAMES = {"bool": "jnp.bool_"}


def dtype_path(dtype: Any) -> str:
    """A dotted public expression for a dtype that every dtype argument of JAX and NumPy takes.

    Raises ValueError for a dtype without one (typed keys: those are written by rules, not as dtypes).
    """
    import jax.numpy as jnp

    if dtype == FLOAT0:
        return "jax.dtypes.float0"
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return f"jax.random.key(0, impl={str(dtype._impl.name)!r}).dtype"
    name = np.dtype(dtype).name
    if name in _DTYPE_NAMES:
        return _DTYPE_NAMES[name]
    if hasattr(jnp, name):
        return f"jnp.{name}"
    return f"np.dtype({name!r})"


def with_weak_type(value: Any, weak_type: bool) -> Any:
    """`value` with the weak type asked for. `lax.convert_element_type` can only make strong types."""
    from jax._src.lax import lax as lax_internal

    return lax_internal._convert_element_type(value, value.dtype, weak_type=weak_type)


def dtype_of(value: Any) -> Any:
    """The dtype of an array, tracer or Python scalar as JAX sees it."""
    return getattr(jax.typeof(value), "dtype", None)


def is_weak(value: Any) -> bool:
    """Whether JAX sees a value as weakly typed."""
    return bool(getattr(jax.typeof(value), "weak_type", False))


def is_tracer(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


def variable_of(tracer: Any) -> Any:
    """The variable of a jaxpr that a traced value is; None for one of another kind of trace.

    Source: `DynamicJaxprTracer.val`, jax/_src/interpreters/partial_eval.py.
    """
    from jax._src.interpreters import partial_eval

    return tracer.val if isinstance(tracer, partial_eval.DynamicJaxprTracer) else None


def weakly_typed(value: Any) -> Any:
    """`value` as a weakly typed array; only Python scalars are weak in the public API."""
    from jax._src.lax import lax as lax_internal

    return lax_internal._convert_element_type(value, weak_type=True)


def prng_impl_name(impl: Any) -> str | None:
    """The public name of a PRNG implementation parameter; None for one that is not registered under a name."""
    name = getattr(impl, "name", None)
    if name is None:
        return None
    try:
        key = jax.eval_shape(lambda: jax.random.key(0, impl=name))
    except ValueError:
        return None
    return str(name) if key.dtype._impl == impl else None


def tangent_aval(aval: Any) -> Any:
    method = getattr(aval, "to_tangent_aval", None)
    return method() if method else aval


def is_traceable(leaf: Any) -> bool:
    """Whether JAX can trace a leaf: an array, a number, a ShapeDtypeStruct, a ref or a key."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return is_key(leaf) or getattr(leaf.dtype, "kind", "") not in "OUSM"
    return (
        isinstance(leaf, (bool, int, float, complex)) or jex_core.valid_jaxtype(leaf) or is_ref(leaf) or is_aval(leaf)
    )


def is_aval(value: Any) -> bool:
    """Whether `value` is an abstract value of JAX (a ShapedArray, an AbstractRef, ...)."""
    from jax._src.core import AbstractValue  # no public name

    return isinstance(value, AbstractValue)


def aval_key(aval: Any) -> Any:
    """A hashable description of an abstract value: shape, dtype, weak type."""
    return getattr(aval, "shape", None), str(getattr(aval, "dtype", aval)), getattr(aval, "weak_type", False)


def has_tangent(aval: Any) -> bool:
    """Whether values of this type have derivatives (floats and complex numbers do, integers and keys do not)."""
    return getattr(aval.to_tangent_aval(), "dtype", FLOAT0) != FLOAT0


def typeof(value: Any) -> Any:
    """The abstract value of an array."""
    return jax.typeof(value)


def is_jax_array(value: Any) -> bool:
    return isinstance(value, jax.Array)


def is_key_dtype(dtype: Any) -> bool:
    """Whether `dtype` is that of typed PRNG keys."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def is_canonical(dtype: Any) -> bool:
    """Whether JAX keeps arrays of this dtype as they are (without 64-bit mode it narrows some; float0 is none of its own)."""
    return dtype != FLOAT0 and jax.dtypes.canonicalize_dtype(dtype) == dtype


def tracer_variable(value: Any) -> Any:
    """The variable of the jaxpr being traced that a tracer stands for; None for other values. `val` in
    `DynamicJaxprTracer`, jax/_src/interpreters/partial_eval.py: it is how one finds an argument again in the jaxpr."""
    return getattr(value, "val", None) if isinstance(value, jax.core.Tracer) else None


def is_continuous(value: Any) -> bool:
    """Whether a value, or one of this type, varies continuously."""
    dtype = getattr(value, "dtype", None)
    dtype = jax.typeof(value).dtype if dtype is None else dtype
    return bool(jax.dtypes.issubdtype(dtype, np.inexact))


def no_tangent(value: Any) -> Any:
    """What stands for the tangent of a value, or of one of this type, that has none."""
    return np.zeros(np.shape(value), FLOAT0)


@contextlib.contextmanager
def arrays_without_compiling() -> Iterator[None]:
    """Inside, `jnp.asarray` of NumPy's arrays and `jnp.copy` give what they always do, and have XLA compile nothing for that:
    one of those compilations takes as long as to trace a small program.

    Source: `stage_p` and `copy_p` in jax/_src/lax/lax.py, both of which compute nothing.
    """
    from jax._src.lax import lax as lax_internal

    stage, copy = _core.stage_p.impl, lax_internal.copy_p.impl

    def staged(x: Any) -> Any:
        plain = isinstance(x, np.ndarray) and not getattr(x, "weak_type", False)
        return jax.device_put(np.array(x)) if plain else stage(x)

    def copied(x: Any) -> Any:
        plain = isinstance(x.dtype, np.dtype) and not x.weak_type and not x.committed
        return jax.device_put(np.array(x)) if plain else copy(x)

    _core.stage_p.impl, lax_internal.copy_p.impl = staged, copied
    try:
        yield
    finally:
        _core.stage_p.impl, lax_internal.copy_p.impl = stage, copy
