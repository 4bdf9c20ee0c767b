"""Lowering and compiling: parts of it, without what nobody asks for, and the HLO that comes of it."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core as _core

from untrace.jax_compat.jax_code import replaced
from untrace.jax_compat.jaxprs import fresh_variable, open_jaxpr
from untrace.jax_compat.rebuilding import rebuilt_jaxpr
from untrace.jax_compat.tracing import trace_library_call

# Printed constants are some four times as long as the constants themselves.
_MOST_PRINTED = 16 << 20  # bytes of a compiled program
_STOPPED: dict[bytes, list[bytes]] = {}


def _stop(module: bytes) -> None:
    found = _STOPPED.get(module[2 : 2 + module[1]])  # its name is the first field of the message
    if found is not None:
        found.append(module)
        raise RuntimeError("its optimised HLO is all that was asked for")


# The thread that compiled lets go of the hook without Python's lock. It must not be the last to hold it, and a count that
# goes wrong by one must not matter.
_HOLDERS = [_stop] * 10_000


def stops_before_code() -> bool:
    """Whether XLA can be stopped: not on a backend that has no such stage, nor where JAX has no `jax.extend.xla`."""
    try:
        import jax.extend.xla  # noqa: F401
    except ImportError:
        return False
    return jax.default_backend() == "cpu"


@contextlib.contextmanager
def stopped_before_code(name: str) -> Iterator[list[bytes]]:
    """Inside, XLA gives up a module of that name once its HLO is optimised, all but scheduled: it comes into the list,
    serialised.

    Machine code takes four fifths of a compilation, and nobody runs it. Where `stops_before_code` says no, it goes on to the
    end: then the list stays empty.
    """
    if not stops_before_code():
        yield []
        return
    from jax.extend import xla

    hook: dict[str, Any] = {"name": name, "stage": xla.PipelineStage.PRE_SCHEDULER, "platforms": "cpu"}
    found = _STOPPED[name.encode()] = []
    xla.register_hlo_module_transformation(_stop, **hook)
    try:
        yield found
    finally:
        xla.clear_hlo_module_transformation(**hook)
        del _STOPPED[name.encode()]


class _Prepared(BaseException):
    """Thrown where JAX would call XLA. Not an Exception: JAX spends long on the tracebacks of those."""


def prepared_compilation(lowered: Any, options: dict[str, Any]) -> Callable[[], list[bytes]]:
    """What is left of `lowered.compile(options)` after JAX has done its own part of it: XLA's, for another thread.

    It gives the optimised HLO, serialised, of which the compiled program has no public name. JAX's part is Python, and takes
    five times as long where another thread wants Python's lock as well. Its cache of compiled programs on disk is left alone:
    the key to that takes most of the time. Source: `backend_compile_and_load` in jax/_src/compiler.py, the last function
    before XLA, and `_get_cache_key`, which gives None where there is no cache.
    """
    from jax._src import compiler

    call_xla = getattr(compiler, "backend_compile_and_load", None)
    if call_xla is None:
        return lambda: _serialised(lowered.compile(options).runtime_executable())

    def prepared(*args: Any, **kwargs: Any) -> Any:
        raise _Prepared(args, kwargs)

    try:
        with replaced(compiler, backend_compile_and_load=prepared, _get_cache_key=lambda *_, **__: None):
            compiled = lowered.compile(options)
    except _Prepared as found:
        args, kwargs = found.args
        return lambda: _serialised(call_xla(*args, **kwargs))
    return lambda: _serialised(compiled.runtime_executable())


def _serialised(executable: Any) -> list[bytes]:
    return [m.as_serialized_hlo_module_proto() for m in executable.hlo_modules()]


def text_of_modules(serialised: Sequence[bytes]) -> str | None:
    """HLO as text with the values of all constants; None where it would be too long.

    `compiled.as_text()` leaves out the values of constants of more than ten elements. What prints them has no public name.
    """
    from jaxlib import _hlo

    if sum(map(len, serialised)) > _MOST_PRINTED:
        return None
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    options.print_metadata = False
    return "\n\n".join(_hlo.HloModule.from_serialized_hlo_module_proto(m).to_string(options) for m in serialised)


def lowered(closed: Any, args: Sequence[Any], keep_unused: bool, name: str, places: bool = False) -> Any:
    """A closed jaxpr lowered as the function of that name on arrays or their types, without being traced once more.

    places: operations keep the scopes of the equations that they come from.

    Source: `Traced` in jax/_src/stages.py, which holds what was traced among the parameters of the call.
    """
    count = len(open_jaxpr(closed)[0].outvars)

    def call(*_: Any) -> list[float]:
        return [0.0] * count

    call.__name__ = name
    traced = jax.jit(call, keep_unused=keep_unused).trace(*args)
    traced._params["jaxpr"] = closed
    large = sum(getattr(c, "nbytes", 0) for c in open_jaxpr(closed)[1]) > _MOST_INTERNED
    locations = contextlib.nullcontext() if places else _without_locations()
    with locations, contextlib.nullcontext() if large else _reused_ir_context():
        return traced.lower()


def _without_locations() -> contextlib.AbstractContextManager[None]:
    """Inside, JAX lowers without saying where operations come from, which nobody asks and XLA carries along.

    Source: `source_info_to_location` in jax/_src/interpreters/mlir.py.
    """
    from jax._src.interpreters import mlir

    return replaced(mlir, source_info_to_location=lambda *_: mlir.ir.Location.unknown())


# An MLIR context, and how many lowerings it may still serve: what they intern stays in it, their constants too.
_MOST_INTERNED = 1 << 20  # bytes
_IR_CONTEXT: tuple[Any, int] = (None, 0)


@contextlib.contextmanager
def _reused_ir_context() -> Iterator[None]:
    """Inside, JAX 0.10 lowers in the MLIR context of lowerings before: to make one takes as long as a small program takes.

    Source: `make_ir_context` in jax/_src/interpreters/mlir.py, and the same in JAX 0.12, which uses each ten times itself.
    """
    from jax._src.interpreters import mlir

    if hasattr(mlir, "_thread_local_context"):
        yield
        return
    before = mlir.make_ir_context

    def make_ir_context() -> Any:
        global _IR_CONTEXT
        context, left = _IR_CONTEXT
        _IR_CONTEXT = (context, left - 1) if left else (before(), 10)
        return _IR_CONTEXT[0]

    with replaced(mlir, make_ir_context=make_ir_context):
        yield


def called_side_by_side(first: Any, second: Any) -> Any:
    """The same, each as a call of a function of its own, into which XLA does not look from outside: it is not inlined.

    Source: `CallInliner` in xla/service/call_inliner.cc, which leaves calls with this attribute.
    """
    from jax.experimental.xla_metadata import set_xla_metadata

    halves = [open_jaxpr(first)[0], open_jaxpr(second)[0]]
    if halves[0].effects or halves[1].effects:
        return None

    def call(x: Any) -> list[Any]:
        with set_xla_metadata(inlineable="false"):
            return [jax.jit(lambda x: x)(x)]

    # A call of as many arguments as a program has takes JAX longer than all else here.
    small = trace_library_call(call, [_core.ShapedArray((), np.dtype(np.float32))])
    (eqn,) = open_jaxpr(small)[0].eqns
    invars = [fresh_variable(v) for jaxpr in halves for v in jaxpr.invars]
    count = len(halves[0].invars)
    eqns = []
    for jaxpr, closed, operands in zip(halves, (first, second), (invars[:count], invars[count:]), strict=True):
        outvars = [_core.Var(v.aval) for v in jaxpr.outvars]
        counts = {"in": len(operands), "donated": len(operands), "out": len(outvars)}
        each = {k: v * counts[k.split("_")[0]] for k, v in eqn.params.items() if type(v) is tuple and len(v) == 1}
        params = {**eqn.params, **each, "jaxpr": closed}
        eqns.append(eqn.replace(invars=operands, outvars=outvars, params=params))
    return rebuilt_jaxpr(small, eqns, [v for eqn in eqns for v in eqn.outvars], invars=invars)


def kept_arguments(lowered: Any) -> tuple[int, ...]:
    """The places of those arguments that a lowered function takes: `jit` drops what the program does not read."""
    return tuple(sorted(lowered._lowering.compile_args["kept_var_idx"]))


@contextlib.contextmanager
def quiet_callbacks() -> Iterator[None]:
    """Inside, JAX does not log what a callback raises, and nothing is printed: what a program says of sampled inputs is no
    news."""
    logger = logging.getLogger("jax._src.callback")
    before, logger.disabled = logger.disabled, True
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.disabled = before
