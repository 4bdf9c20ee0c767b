"""Tracing: under which settings, into which caches, how long at most, and faster than `jax.make_jaxpr` does."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from untrace.jax_compat.jax_code import replaced
from untrace.jax_compat.jaxprs import close_jaxpr
from untrace.jax_compat.sharding import has_typed_mesh, varying_axes


def trace_flat(function: Any, avals: Sequence[Any]) -> Any:
    """ClosedJaxpr of `function(*flat) -> flat list` on abstract values (kept whole: weak types, shardings)."""
    jaxpr, consts = traced_quickly(function, avals)
    return jax.make_jaxpr(lambda *args: function(*args))(*avals) if consts else close_jaxpr(jaxpr, consts)


@contextlib.contextmanager
def tracing_context(eqn: Any) -> Iterator[None]:
    """The settings under which an equation was traced: mesh, named axes, and whether values say over which they vary.

    Inside shard_map a rule may use its axes; without them it could not be traced on its own. Source:
    `_shard_map_staging`, jax/_src/shard_map.py.
    """
    from jax._src import config, core

    mesh: Any = getattr(eqn.ctx, "cur_abstract_mesh", None)
    manual = tuple(getattr(mesh, "manual_axes", ()) or ()) if mesh is not None else ()
    varies = any(varying_axes(v.aval) for v in (*eqn.invars, *eqn.outvars))
    with contextlib.ExitStack() as stack:
        stack.enter_context(eqn.ctx.manager)
        if manual:
            sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
            stack.enter_context(core.extend_axis_env_nd([(name, sizes[name]) for name in manual]))
            stack.enter_context(config._check_vma(varies))
        yield


@contextlib.contextmanager
def tracing_inside_mesh(avals: Sequence[Any]) -> Iterator[None]:
    """The settings under which values of these types are traced inside shard_map; nothing where no mesh is part of them.

    The same as `tracing_context`, where there is no equation yet.
    """
    from jax._src import config, core
    from jax._src.mesh import use_abstract_mesh

    mesh: Any = next((a.sharding.mesh for a in avals if has_typed_mesh(a)), None)
    manual = tuple(getattr(mesh, "manual_axes", ()) or ())
    with contextlib.ExitStack() as stack:
        if manual:
            stack.enter_context(use_abstract_mesh(mesh))
            sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
            stack.enter_context(core.extend_axis_env_nd([(name, sizes[name]) for name in manual]))
            stack.enter_context(config._check_vma(any(varying_axes(a) for a in avals)))
        yield


def trace_on_avals(function: Any, avals: Sequence[Any], ctx: Any = None) -> Any:
    """ClosedJaxpr of `function(*flat) -> flat list` on abstract values, taken whole (weak types, varying axes).

    `ctx` is the context of the equation that the function stands for. Nothing of the caller's trace is closed over.
    """

    manager = getattr(ctx, "manager", None)
    with manager if manager is not None else tracing_inside_mesh(avals):
        return jax.make_jaxpr(lambda *args: function(*args))(*avals)


def trace_library_call(function: Any, avals: Sequence[Any]) -> Any:
    """`trace_on_avals` of calls of JAX's own functions on arrays, which binds no rules of anyone's: in a fifth of the time."""
    with tracing_inside_mesh(avals):
        jaxpr, consts = traced_quickly(function, avals)
    return close_jaxpr(jaxpr, consts) if not consts else trace_on_avals(function, avals)


def trace_settings() -> tuple[Any, ...]:
    """The settings of JAX that change what a library function traces to."""
    config = jax.config
    names = ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion",
             "jax_numpy_rank_promotion", "jax_softmax_custom_jvp", "jax_random_seed_offset",
             "jax_threefry_partitionable", "jax_default_prng_impl", "jax_debug_nans", "jax_disable_jit",
             "jax_use_simplified_jaxpr_constants")  # fmt: skip
    return tuple(getattr(config, name, None) for name in names)


_fresh_traces = itertools.count()


def fresh_caches() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """What gives a context in which JAX traces all functions again, and forgets nothing of what it had traced before.

    What is traced in one such context, the next ones of the same know.

    Its caches of traces are keyed by what is set around a trace, which the named axes are part of: one that nobody uses
    is in no jaxpr. Source: `trace_context` in jax/_src/config.py.
    """
    from jax._src import core

    axis = f"untrace_{next(_fresh_traces)}"
    return lambda: core.extend_axis_env_nd([(axis, 1)])


def traced_quickly(function: Any, avals: Sequence[Any]) -> tuple[Any, list[Any]]:
    """(jaxpr, constants) of `function(*tracers) -> flat list` on shaped arrays.

    What `jax.make_jaxpr` does inside of its call of `jit`, whose handling of signatures, shardings and caches takes five
    times as long as a small trace does.
    """
    from jax._src import linear_util
    from jax._src.interpreters import partial_eval

    wrapped = linear_util.wrap_init(function, debug_info=_info_of_inputs())
    jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(wrapped, avals)
    return jaxpr, list(consts)


@functools.lru_cache(1)
def _info_of_inputs() -> Any:
    """What JAX says of such a function in its messages, which takes as long to find out as many a trace. It has no names
    for the arrays: under `jax_enable_checks` their number would have to be right."""
    from jax._src import api_util

    def inputs() -> None: ...

    return api_util.debug_info("trace", inputs, (), {})._replace(arg_names=None)


def constants_and_inputs(jaxpr: Any, consts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The variables of the constants and of the inputs of what `traced_quickly` gave: JAX 0.12 has them in one list."""
    inside = len(consts) - len(jaxpr.constvars)
    return [*jaxpr.constvars, *jaxpr.invars[:inside]], list(jaxpr.invars[inside:])


_JITTED = jax.jit(lambda: None)


def name_of_call(function: Any) -> str | None:
    """The name of the one call that a jitted function leaves in every trace; None where it leaves its equations, or is no
    jitted function. Its settings have no public name, and the value that stands for inlining differs between the lines.
    """
    jitted: Any = type(_JITTED)
    settings: Any = jax.config  # its settings are no attributes to a type checker
    if type(function) is not jitted:  # `custom_jvp` copies the attributes of the function that it wraps
        return None
    inline = getattr(getattr(function, "_jit_info", None), "inline", None)
    stays = inline is False or getattr(inline, "name", "") == "AUTO"
    return function.__name__ if stays and not settings.jax_disable_jit else None


def static_of_jitted(function: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """(positions, names) of the static arguments with which a function was jitted, also below a `functools.partial`; empty for
    another function. They have no public name."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    jitted: Any = type(_JITTED)
    settings = getattr(inner, "_jit_info", None) if type(inner) is jitted else None
    numbers = tuple(getattr(settings, "static_argnums", None) or ())
    names = tuple(getattr(settings, "static_argnames", None) or ())
    return numbers if inner is function else (), names


class TooManyEquations(Exception):
    """A trace that grew longer than it may."""


_COUNTS: contextvars.ContextVar[bool] = contextvars.ContextVar("_COUNTS", default=True)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Inside, what is traced does not count for `at_most_equations`: it is ours, and not the user's."""
    before = _COUNTS.set(False)
    try:
        yield
    finally:
        _COUNTS.reset(before)


@contextlib.contextmanager
def at_most_equations(most: int) -> Iterator[None]:
    """Inside, tracing more than `most` equations raises TooManyEquations: a loop over a size that JAX unrolls.

    All equations of a trace, of inner jaxprs too, are added to a frame. Source: `JaxprStackFrame.add_eqn` in
    jax/_src/interpreters/partial_eval.py.
    """
    from jax._src.interpreters import partial_eval

    left = most
    before = partial_eval.JaxprStackFrame.add_eqn

    def add_eqn(frame: Any, eqn: Any) -> None:
        nonlocal left
        left -= _COUNTS.get()
        if left < 0:
            raise TooManyEquations
        before(frame, eqn)

    with replaced(partial_eval.JaxprStackFrame, add_eqn=add_eqn):
        yield
