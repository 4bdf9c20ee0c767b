"""Random keys and bits. Source: jax/_src/prng.py, jax/_src/random.py, jax/_src/lax/control_flow/loops.py."""

from __future__ import annotations

from typing import Any

from untrace import jax_compat
from untrace.module.rules import DECLINE
from untrace.python.tree import Attribute, Call, Expr, Text
from untrace.targets.jax.rules.table import rule


def _impl(w: Any, impl: Any) -> Expr:
    name = jax_compat.prng_impl_name(impl)
    if name is None:
        return DECLINE
    return w.source(name)


def _over_batch(w: Any, function: Expr, rank: int, *args: Expr) -> Expr:
    """`jax.vmap` of a function of scalars over `rank` leading axes: JAX's batching rule binds one equation."""
    w.module.modules.add("jax")
    for _ in range(rank):
        function = Call("jax.vmap", [function])
    return Call(function, args)


@rule("random_seed")
def random_seed(w: Any, seeds: Any, *, impl: Any) -> Any:
    name = _impl(w, impl)
    if name is DECLINE:
        return DECLINE
    rank = len(w.avals[0].shape)
    if not rank:
        return w.jax("random.key", seeds, impl=name)
    w.module.modules.add("functools")
    key = Call("functools.partial", [Text("jax.random.key")], [("impl", name)])
    return _over_batch(w, key, rank, seeds)


@rule("random_wrap")
def random_wrap(w: Any, data: Any, *, impl: Any) -> Any:
    name = _impl(w, impl)
    if name is DECLINE:
        return DECLINE
    return w.jax("random.wrap_key_data", data, impl=name)


@rule("random_unwrap")
def random_unwrap(w: Any, keys: Any) -> Any:
    return w.jax("random.key_data", keys)


@rule("random_split")
def random_split(w: Any, keys: Any, *, shape: Any) -> Any:
    if w.avals[0].shape:
        return DECLINE
    return w.jax("random.split", keys, shape[0] if len(shape) == 1 else shape)


@rule("random_bits")
def random_bits(w: Any, keys: Any, *, bit_width: int, shape: Any) -> Any:
    if w.avals[0].shape:
        return DECLINE
    return w.jax("random.bits", keys, shape, Text(f'"uint{int(bit_width)}"'))


@rule("random_fold_in")
def random_fold_in(w: Any, keys: Any, data: Any) -> Any:
    if w.avals[0].shape or w.avals[1].shape or str(w.avals[1].dtype) != "uint32":
        return DECLINE
    return w.jax("random.fold_in", keys, data)


@rule("random_clone")
def random_clone(w: Any, keys: Any) -> Any:
    return w.jax("random.clone", keys)


@rule("rng_uniform")
def rng_uniform(w: Any, a: Any, b: Any, *, shape: Any) -> Any:
    return w.lax("rng_uniform", a, b, shape)


@rule("rng_bit_generator")
def rng_bit_generator(w: Any, key: Any, *, shape: Any, dtype: Any, algorithm: Any, out_sharding: Any = None) -> Any:
    if out_sharding is not None:
        return DECLINE
    return w.lax("rng_bit_generator", key, shape, w.module.values.dtype(dtype), algorithm)


@rule("iota_2x32_shape")
def iota_2x32_shape(w: Any, *, shape: Any) -> Any:
    """The counters of threefry. The primitive has no public name, but threefry's public implementation binds it."""
    w.module.helper("_primitive")
    w.importing("import jax.extend.random")
    w.module.modules.add("np")
    bits = Text("lambda key: jax.extend.random.threefry_prng_impl.random_bits(key, 32, (1,))")
    primitive = w.call("_primitive", "iota_2x32_shape", bits, Text("np.zeros(2, np.uint32)"))
    return Call(Attribute(primitive, "bind"), [], [("shape", w.source(tuple(shape)))])
