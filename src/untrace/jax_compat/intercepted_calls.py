"""Calls that a jaxpr keeps nothing of, noted while a function is traced: of mapped, jitted and marked functions, and of questions to JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from untrace._identity import IdentityMap
from untrace.jax_compat.jax_code import copy_cache, jax_folder, own_folder
from untrace.jax_compat.jaxprs import is_jaxpr


@dataclasses.dataclass(slots=True)
class MappedCall:
    """A call of a function that `jax.vmap` gave, as it is made: flat arguments, results and axes.

    `function(*args, **kwargs)` for one element, whose arguments `in_tree` rebuilds from leaves. `variable(tracer)` is what
    stands for a tracer in the jaxpr that is being traced (a variable or a literal), also for one of a trace further out. `caller` is a file.
    """

    function: Any
    in_tree: Any
    args: Sequence[Any]
    in_axes: Sequence[Any]
    outs: Sequence[Any]
    out_axes: Sequence[Any]
    source_info: Any
    variable: Callable[[Any], Any]
    caller: str


@contextlib.contextmanager
def intercepted_vmap(note: Callable[[MappedCall], None]) -> Iterator[None]:
    """Calls `note` after every call of a mapped function that is made by code outside JAX while a jaxpr is traced.

    A jaxpr keeps nothing of `jax.vmap`, and a user's mapped function may be older than this context: so the one place
    where all go through is replaced while it is open. Source: `vmap_f` in jax/_src/api.py. Left out are calls with
    named axes and those inside another transformation.
    """
    from jax._src import core, source_info_util
    from jax._src.interpreters import batching as jax_batching
    from jax._src.interpreters import partial_eval

    batching: Any = jax_batching  # of which functions are replaced
    flatten_before, batch_before = batching.flatten_fun_for_vmap, batching.batch
    functions: IdentityMap[Any, tuple[Any, Any]] = IdentityMap()
    own = jax_folder()

    def flatten(f: Any, in_tree: Any) -> Any:
        result = flatten_before(f, in_tree)
        functions[result[0]] = (f, in_tree)
        return result

    def batch(fun: Any, axis_data: Any, in_dims: Any, out_dim_dests: Any, **options: Any) -> Any:
        whole = batch_before(fun, axis_data, in_dims, out_dim_dests, **options)
        wrapped, in_tree = functions.pop(fun, (None, None))
        trace = core.trace_ctx.trace
        if (
            wrapped is None
            or not isinstance(trace, partial_eval.DynamicJaxprTrace)
            or axis_data.name is not core.no_axis_name
            or axis_data.spmd_name is not None
            or axis_data.explicit_mesh_axis is not None
        ):
            return whole
        caller = _caller_of_vmap(own, sys._getframe(1))
        if caller is None:
            return whole

        def call_wrapped(*args: Any) -> Any:
            result = whole.call_wrapped(*args)
            info = source_info_util.current()
            axes = out_dim_dests() if callable(out_dim_dests) else out_dim_dests

            def variable(tracer: Any) -> Any:
                staged = isinstance(tracer, partial_eval.DynamicJaxprTracer)
                return trace.to_jaxpr_tracer(tracer, info).val if staged else None

            note(MappedCall(wrapped.f, in_tree, args, in_dims, result[0], axes, info, variable, caller))
            return result

        return types.SimpleNamespace(call_wrapped=call_wrapped)

    batching.flatten_fun_for_vmap, batching.batch = flatten, batch
    try:
        yield
    finally:
        batching.flatten_fun_for_vmap, batching.batch = flatten_before, batch_before


@contextlib.contextmanager
def intercepted_bodies(note: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """Calls `note(jaxpr, args, out)` for every function that is traced to a jaxpr of its own, as the body of a loop is.

    args, out: functions that give `((args), kwargs)` and the result as pytrees of abstract values. A jaxpr keeps its leaves
    only. Source: `trace_to_jaxpr` in jax/_src/interpreters/partial_eval.py, which all of them go through; what it has
    traced before it does not call again, but gives.
    """
    from jax._src.interpreters import partial_eval as jax_partial_eval

    partial_eval: Any = jax_partial_eval  # of which a function is replaced
    before = partial_eval.trace_to_jaxpr

    def trace_to_jaxpr(function: Any, avals: Any, *args: Any, **kwargs: Any) -> Any:
        result = before(function, avals, *args, **kwargs)
        # Of another JAX this may be another thing: then nothing is known, and nothing is lost.
        with contextlib.suppress(Exception):
            closed, out = result
            note(closed, avals.unflatten, out.unflatten)
        return result

    copy_cache(before, trace_to_jaxpr)
    partial_eval.trace_to_jaxpr = trace_to_jaxpr
    try:
        yield
    finally:
        partial_eval.trace_to_jaxpr = before


@contextlib.contextmanager
def noted_reuse() -> Iterator[list[Any]]:
    """While the context is open, the jaxprs of functions that JAX had traced before go to the list that it gives.

    What JAX takes from its caches it does not call. Source: there are two that go by the function, `_infer_params` in
    jax/_src/pjit.py and `trace_to_jaxpr` in jax/_src/interpreters/partial_eval.py.
    """
    from jax._src import pjit as jax_pjit
    from jax._src.interpreters import partial_eval as jax_partial_eval

    pjit: Any = jax_pjit  # of which functions are replaced, as in the next
    partial_eval: Any = jax_partial_eval
    reused: list[Any] = []
    made: IdentityMap[Any, None] = IdentityMap()  # what was traced here
    trace, trace_for_jit, infer = partial_eval.trace_to_jaxpr, pjit._trace_for_jit, pjit._infer_params

    def traced(*args: Any, **kwargs: Any) -> Any:
        misses = trace.cache_info().misses
        result = trace(*args, **kwargs)
        if trace.cache_info().misses > misses:
            made[result[0]] = None
        elif result[0] not in made:
            reused.append(result[0])
        return result

    def traced_for_jit(*args: Any, **kwargs: Any) -> Any:
        found = trace_for_jit(*args, **kwargs)
        made[found] = None
        return found

    def inferred(*args: Any, **kwargs: Any) -> Any:
        found, operands = infer(*args, **kwargs)
        if found not in made:
            reused.append(found.params["jaxpr"])
        return found, operands

    copy_cache(trace, traced)
    partial_eval.trace_to_jaxpr, pjit._trace_for_jit, pjit._infer_params = traced, traced_for_jit, inferred
    try:
        yield reused
    finally:
        partial_eval.trace_to_jaxpr, pjit._trace_for_jit, pjit._infer_params = trace, trace_for_jit, infer


@contextlib.contextmanager
def intercepted_checkpoints(note: Callable[[Any], None]) -> Iterator[None]:
    """Calls `note(jaxpr)` for every function that `jax.checkpoint` marked, when it is called in what is traced.

    Source: `fun_remat` in jax/_src/ad_checkpoint.py, which binds the primitive before anything differentiates it.
    """
    from jax.extend.core import primitives

    before = primitives.remat_p.bind

    def bind(*args: Any, **params: Any) -> Any:
        if params.get("differentiated") is False and is_jaxpr(params.get("jaxpr")):
            note(params["jaxpr"])
        return before(*args, **params)

    primitives.remat_p.bind = bind
    try:
        yield
    finally:
        del primitives.remat_p.bind  # the class has it


# What JAX can be asked of the place where it runs, by public names.
_QUESTIONS = (
    "default_backend", "device_count", "devices", "get_abstract_mesh", "local_device_count", "local_devices",
    "process_count", "process_index",
)  # fmt: skip


@contextlib.contextmanager
def intercepted_questions(note: Callable[[str], None]) -> Iterator[None]:
    """Calls `note("device_count")` where code outside JAX asks that while the context is open.

    Some of these functions remember their answers, so that what they call says nothing. So every module that has one of
    them under its own name, by `from jax import devices` too, gets another.
    """
    own = jax_folder()
    plain = {name: getattr(jax, name, None) or getattr(jax.sharding, name) for name in _QUESTIONS}

    def noting(name: str, function: Any) -> Any:
        @functools.wraps(function)
        def asked(*args: Any, **kwargs: Any) -> Any:
            if not sys._getframe(1).f_code.co_filename.startswith(own):
                note(name)
            return function(*args, **kwargs)

        return asked

    others = {name: noting(name, function) for name, function in plain.items()}
    without: set[str] = set()  # modules that have none of them, and are loaded

    def exchange(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        for place in [place for place in sys.modules if place not in without]:
            module = sys.modules.get(place)
            if isinstance(module, types.ModuleType) and not place.startswith("jax._src."):
                names = object.__getattribute__(module, "__dict__")  # which loads none that waits to be used
                if not names.keys().isdisjoint(_QUESTIONS):
                    names.update({name: new[name] for name in _QUESTIONS if names.get(name) is old[name]})
                    continue
            if type(module) is types.ModuleType:
                without.add(place)

    exchange(plain, others)
    try:
        yield
    finally:
        exchange(others, plain)  # in modules too that were imported meanwhile


def _caller_of_vmap(folder: str, frame: Any) -> str | None:
    """The file of the code outside JAX's folder that called the `vmap_f` of this frame, or of untrace, which calls one of
    `vmap(vmap(f))` and what it is given to decompile; None where JAX itself did."""
    if frame.f_code.co_name != "vmap_f":
        return None
    depth = 0
    frame = frame.f_back
    passing = own_folder()  # what is intercepted goes through here
    while frame is not None and frame.f_code.co_filename.startswith((folder, passing)):
        file = frame.f_code.co_filename
        depth += not (file.endswith("traceback_util.py") or file.startswith(passing))
        frame = frame.f_back
    folder = os.path.join(os.path.dirname(passing.rstrip(os.sep)), "capture")
    ours = [os.path.join(folder, name) for name in (os.path.join("calls", "vmaps.py"), "function.py")]
    file = frame.f_code.co_filename if frame is not None else ""
    return file if file and (depth == 0 or file in ours) else None
