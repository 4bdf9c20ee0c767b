"""Helper routines that a written module may carry: ordinary source, tested here, emitted only where used.

Each is copied into the module as it stands (`text`), so it may use only jax, numpy, the standard library, and other
helpers named in its `@helper(...)` line.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import textwrap
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_NEEDS: dict[str, tuple[str, ...]] = {}
_MODULES: dict[str, tuple[str, ...]] = {}
_FUNCTIONS: dict[str, Any] = {}
_LAST: dict[str, str] = {}


def helper(*modules: str, needs: tuple[str, ...] = (), last: str = "") -> Callable[[Any], Any]:
    """Registers a helper: the modules that its text uses, and the helpers that it calls.

    last: what it is called where it stands at the end of a module, out of the reader's way; "" where it comes first.
    """

    def register(function: Any) -> Any:
        name = inspect.unwrap(function).__name__
        _FUNCTIONS[name] = inspect.unwrap(function)
        _MODULES[name] = modules
        _NEEDS[name] = needs
        if last:
            _LAST[name] = last
        return function

    return register


def needs(name: str) -> tuple[str, ...]:
    return _NEEDS[name]


def function(name: str) -> Any:
    return _FUNCTIONS[name]


def name_at_end(name: str) -> str:
    """What a helper is called at the end of a module; "" for one that stands before the program."""
    return _LAST.get(name, "")


def names_at_end() -> list[str]:
    """What all helpers that may stand at the end of a module are called there."""
    return sorted(set(_LAST.values()))


def modules(name: str) -> tuple[str, ...]:
    return _MODULES[name]


@functools.cache
def text(name: str) -> str:
    """The helper's source, without its `@helper` line."""
    lines = textwrap.dedent(inspect.getsource(_FUNCTIONS[name])).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("@helper"))
    return "\n".join([*_BEFORE.get(name, ()), *lines[:start], *lines[start + 1 :]])


# Module-level state of helpers, as the written module spells it.
_BEFORE = {
    "_checked": ("_KNOWN = set()", "", ""),
    "_jaxpr": ("_JAXPRS = {}", "_NOTHING = jax.jit(lambda: ())", "", ""),
}


@helper("functools", "io", "os", "zipfile", "np")
@functools.cache
def _constants(name, dtype):
    """An array of the .npz file beside this module, mapped into memory: what is used of it is read when it is used."""
    path = os.path.splitext(__file__)[0] + ".npz"
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(name + ".npy")
    if entry.compress_type != zipfile.ZIP_STORED:  # someone has saved it again, compressed
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[name].view(dtype)
    whole = np.memmap(path, np.uint8, "r")
    start = entry.header_offset + 30  # behind it are a name and a field, and these are their lengths
    start += sum(int.from_bytes(whole[start - n : start - n + 2].tobytes(), "little") for n in (4, 2))
    header = io.BytesIO(whole[start : start + 65536].tobytes())
    version = np.lib.format.read_magic(header)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_fortran_order, stored = read_header(header)
    data = whole[start + header.tell() : start + entry.file_size].view(np.ndarray).view(stored)
    return data.reshape(shape, order="F" if in_fortran_order else "C").view(dtype)


@helper("jax")
def _jaxpr(function, *avals):
    """The jaxpr of `function` on abstract values; a jaxpr traced before is the same object again."""
    # The first is another object under other settings, and after `jax.clear_caches()`.
    key = _NOTHING.trace().jaxpr, function, avals
    if key not in _JAXPRS:
        _JAXPRS[key] = jax.make_jaxpr(function)(*avals)
    return _JAXPRS[key]


_JAXPRS: dict[Any, Any] = {}
_NOTHING = jax.jit(lambda: ())


@helper("jax", needs=("_jaxpr",))
def _traced_for(function, types, *args):
    """Calls `function` as it was traced for other weak types than those of `args`."""
    from jax.extend.core import jaxpr_as_fun

    out = jaxpr_as_fun(_jaxpr(function, *types))(*args)
    return out[0] if len(out) == 1 else out


@helper("jax")
def _recomputed(function, *args, prevent_cse=True, policy=None):
    """Calls `function` as differentiation does what `jax.checkpoint` marked: its values are computed again here."""
    from jax.extend.core import primitives

    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    return primitives.remat_p.bind(*args, jaxpr=jaxpr, prevent_cse=prevent_cse, differentiated=True, policy=policy)


@helper("jnp")
def _weakly_typed(x, dtype):
    """`x` as an array of a type that gives way to that of other arrays, as Python's numbers do."""
    from jax.extend.core import primitives

    return primitives.convert_element_type_p.bind(x, new_dtype=jnp.dtype(dtype), weak_type=True, sharding=None)


@helper("jax")
def _transposed(function, cotangent, *args, **kwargs):
    """From the cotangent of `function(x, *args, **kwargs)` to that of `x`, where the one is linear in the other and like it."""
    return jax.linear_transpose(lambda x: function(x, *args, **kwargs), cotangent)(cotangent)[0]


@helper("jax", "lax")
def _scan_trees(consts, carry, xs, ys):
    """The parameters of a scan that say how many constants, carries, inputs and outputs it has."""

    def template(consts, init, xs):
        return lax.scan(
            lambda c, x: ([v + sum(consts) for v in c], [sum(c + x + consts, 0.5)] * ys), init, xs, length=1
        )

    traced = jax.make_jaxpr(template)([1.0] * consts, [1.0] * carry, [jax.numpy.ones(1)] * xs)
    return {key: value for key, value in traced.eqns[-1].params.items() if key.startswith("ft_")}


@helper("jax", "lax")
def _solve_tuple(**parts):
    """The record type that the parameters of a custom_linear_solve equation have."""

    def template(b):
        return lax.custom_linear_solve(lambda x: x, b, lambda matvec, x: x, symmetric=True)

    return type(jax.make_jaxpr(template)(1.0).eqns[-1].params["jaxprs"])(**parts)


@helper()
def _no_rule(*args, **kwargs):
    """Stands for a derivative rule that the module does not have."""
    raise NotImplementedError("this function's derivative rule could not be written; see the notes of the proof")


@helper("jax", "lax")
def _platform_index(platforms):
    """The index of the branch for the platform that the program is lowered for."""
    traced = jax.make_jaxpr(lambda: lax.platform_dependent(cpu=lambda: 0, default=lambda: 1))()
    return traced.eqns[0].primitive.bind(platforms=platforms)


@helper("jax", "jnp")
def _instantiate(value):
    """`value`, or zeros where it is a symbolic zero."""
    if isinstance(value, jax.custom_derivatives.SymbolicZero):
        return jnp.zeros(value.shape, value.dtype)
    return value


@helper()
def _unperturbed(argument):
    """The value of an argument of a derivative rule that nothing may be differentiated by."""
    if argument.perturbed:
        raise ValueError("this argument of a function with its own derivative rule cannot be differentiated")
    return argument.value


@helper("jax", "jnp", "lax")
def _unvmap(reduce, x):
    """`reduce(x)`; under vmap that of the whole batch, one result for all examples."""
    import jax.custom_batching

    def whole_batch(size, in_batched, batch):
        return _unvmap(reduce, batch), False

    function = jax.custom_batching.custom_vmap(lambda x: reduce(x))
    function.def_vmap(whole_batch)
    return function(x)


@helper("jax", "jnp", "lax")
def _select_if_batched(pred, x, y):
    """`x`; under a vmap that maps over `pred`, `x` where `pred` and else `y`."""
    import jax.custom_batching

    def select(size, in_batched, pred, x, y):
        if not any(in_batched):
            return x, False
        several = [
            v if b else jnp.broadcast_to(v, (size, *v.shape)) for v, b in zip((x, y), in_batched[1:], strict=True)
        ]
        if in_batched[0]:
            return jax.vmap(lax.select)(pred, *several), True
        return _select_if_batched(pred, *several), True

    function = jax.custom_batching.custom_vmap(lambda pred, x, y: x)
    function.def_vmap(select)
    return function(pred, x, y)


@helper("jax", "jnp")
def _true_unless_batched(pred):
    """True; under a vmap that maps over `pred`, `pred`."""
    import jax.custom_batching

    function = jax.custom_batching.custom_vmap(lambda pred: jnp.full(pred.shape, True))
    function.def_vmap(
        lambda size, in_batched, pred: (pred, True) if in_batched[0] else (_true_unless_batched(pred), False)
    )
    return function(pred)


@helper("np")
def _with_printoptions(call, **options):
    """Calls `call()` under NumPy printing options, which `jax.debug.print` remembers."""
    with np.printoptions(**options):
        return call()


@helper("jax", "jnp")
def _primitive(name, function, *args):
    """The primitive called `name` that JAX binds somewhere in `function(*args)`: it has no public name of its own."""
    stack = [jax.make_jaxpr(function)(*args).jaxpr]
    while stack:
        for eqn in stack.pop().eqns:
            if eqn.primitive.name == name:
                return eqn.primitive
            stack.extend(getattr(p, "jaxpr", p) for p in eqn.params.values() if hasattr(p, "eqns"))
    raise LookupError(name)


@helper("jax")
def _call(primitive, function, *args):
    """Calls `function` through a call primitive of JAX."""
    import jax.extend.linear_util

    def flat(*args):
        out = function(*args)
        return list(out) if isinstance(out, tuple) else [out]

    info = jax.api_util.debug_info("call", function, args, {})
    return primitive.bind(*args, subfuns=(jax.extend.linear_util.wrap_init(flat, debug_info=info),))
