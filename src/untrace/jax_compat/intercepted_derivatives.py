"""Derivatives that code outside JAX asks for, and something else that stands for them."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

from untrace.jax_compat.jax_code import jax_folder, own_folder
from untrace.jax_compat.jaxprs import JAXPR_TYPES
from untrace.jax_compat.values import is_continuous, typeof


@dataclasses.dataclass(slots=True)
class DerivativeCall:
    """A call that asks JAX for a derivative, as it is made: of `function(*args, **kwargs)`.

    transform: "value_and_grad", "grad", "vjp", "linearize", "linear_transpose", "jvp", "jacfwd", "jacrev" or "hessian".
    argnums: what is differentiated, as it was given; all of `args` where it is None. tangents: of `jvp`, like `args`. caller: the file of the
    code outside JAX that called, or (`by_jax`) that called a function of JAX's, written on top of it, which asks. opens: for
    who is asked to say: whether calls inside are asked about too, though JAX takes this derivative.
    """

    transform: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    argnums: int | tuple[int, ...] | None
    has_aux: bool
    holomorphic: bool
    allow_int: bool
    tangents: tuple[Any, ...]
    caller: str
    by_jax: bool = False
    opens: bool = False


@dataclasses.dataclass(slots=True)
class Differentiated:
    """What stands in for a derivative that JAX would have taken: the function's result (of Jacobians: those), and how it varies.

    pushed: gives, for `residuals` and the tangents of those arguments that have some, the tangents of those results that
    have some, by primitives that can be transposed. tangents: of `jvp`, like `out`.
    """

    out: Any
    aux: Any
    residuals: Sequence[Any] = ()
    pushed: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] = lambda residuals, tangents: ()
    tangents: Any = None


def _as_linear(stand: Differentiated) -> Callable[..., Any]:
    """The linear function that tangents of the arguments are pushed through."""
    structure = jax.tree.structure(stand.out)
    return lambda *args: jax.tree.unflatten(structure, stand.pushed(stand.residuals, jax.tree.leaves(args)))


_STAND_IN = jex_core.Primitive("stand_in")  # for a whole function, while its derivative is taken

_STAND_IN.multiple_results = True


def _linearized_stand_in(is_vjp: bool, varying: Sequence[bool], *given: Any, stand: Differentiated) -> Any:
    return _linearized(stand, [i for i, x in enumerate(given) if is_continuous(x)])


def register_linearization(primitive: Any, rule: Callable[..., tuple[Differentiated, Sequence[int]]]) -> None:
    """Tells JAX how a primitive is linearized: `rule(varying, *operands, **params)` gives what stands for it, and the places
    of the operands whose tangents that is pushed, in their order. varying: which operands have tangents."""
    from jax._src.interpreters import ad

    def linearized(is_vjp: bool, varying: Sequence[bool], *operands: Any, **params: Any) -> Any:
        return _linearized(*rule(varying, *operands, **params))

    ad.primitive_linearizations[primitive] = linearized


def varies(value: Any) -> bool:
    """Whether JAX differentiates with respect to what a value is computed from."""
    from jax._src.interpreters import ad

    return isinstance(value, ad.LinearizeTracer) and type(value.tangent) is not ad.Zero


def _linearized(stand: Differentiated, places: Sequence[int]) -> Any:
    """See `LinearizeTrace.process_primitive` in jax/_src/interpreters/ad.py; in JAX 0.12 there are residuals of another kind."""
    from jax._src.interpreters import ad

    outs = jax.tree.leaves(stand.out)
    moves = [is_continuous(x) for x in outs]
    others = (None,) if JAXPR_TYPES[0] is JAXPR_TYPES[1] else ()

    def linear(residuals: Any, *tangents: Any) -> Any:
        tangents = tangents[len(others) :]
        given = [ad.instantiate_zeros(tangents[p]) for p in places]
        found = iter(stand.pushed(residuals, given))
        return [next(found) if m else ad.Zero(typeof(x).to_tangent_aval()) for x, m in zip(outs, moves, strict=True)]

    return outs, moves, list(stand.residuals), *others, linear


@contextlib.contextmanager
def intercepted_derivatives(replace: Callable[[DerivativeCall], Differentiated | None]) -> Iterator[None]:
    """Asks `replace` about every derivative that code outside JAX asks for, while a jaxpr is traced; where it gives
    something, that stands for what JAX would have traced.

    Whatever a user calls ends in one of two functions, also what was made before: `linearize` and `jvp` in
    jax/_src/interpreters/ad.py. What was called stands in the frames above (jax/_src/api.py). Jacobians and transposed
    functions are seen where they are made while the context is open: what makes them is a cell of the function that everybody
    has. Those derivatives are left as they are that JAX's rules and solvers ask for, and those inside another transformation,
    but for a derivative of which `replace` says that it `opens`.
    """
    from jax._src import api, core
    from jax._src.interpreters import ad, partial_eval

    linearize_before, jvp_before = ad.linearize, ad.jvp
    if _STAND_IN not in ad.primitive_linearizations:
        ad.primitive_linearizations[_STAND_IN] = _linearized_stand_in

    def asked(frame: Any) -> tuple[Differentiated | None, bool]:
        call = _derivative_call(frame) if is_seen() else None
        return (None, False) if call is None else (replace(call), call.opens)

    is_open = False

    def is_seen() -> bool:
        trace = core.trace_ctx.trace
        if is_open and isinstance(trace, ad.LinearizeTrace):
            trace = trace.parent_trace
        return isinstance(trace, partial_eval.DynamicJaxprTrace) and not _AS_THEY_ARE.get()

    def linearize(traceable: Any, primals: Any, has_aux: bool = False, *args: Any, **options: Any) -> Any:
        nonlocal is_open
        stand, opens = asked(sys._getframe(1))
        if stand is None:
            before, is_open = is_open, opens
            try:
                return linearize_before(traceable, primals, has_aux, *args, **options)
            finally:
                is_open = before

        def stood_in(*moving: Any) -> Any:
            outs = _STAND_IN.bind(*jax.tree.leaves(moving), stand=stand)
            out = jax.tree.unflatten(jax.tree.structure(stand.out), outs)
            return (out, stand.aux) if has_aux else out

        return linearize_before(stood_in, primals, has_aux, *args, **options)

    def jvp(fun: Any, primals: Any, tangents: Any, has_aux: bool = False, *args: Any, **options: Any) -> Any:
        stand, _ = asked(sys._getframe(1))
        if stand is None:
            return jvp_before(fun, primals, tangents, has_aux, *args, **options)
        aux = (stand.aux,) if has_aux else ()
        return (ad.ft.flatten(stand.out), ad.ft.flatten(stand.tangents), *aux)

    inside = False  # a Jacobian: what it is made of is no call of the user's

    def noting(name: str, make: Any) -> Any:
        def jacobian(
            fun: Any, argnums: Any = 0, has_aux: bool = False, holomorphic: bool = False, **options: Any
        ) -> Any:
            whole = make(fun, argnums, has_aux, holomorphic, **options)

            @functools.wraps(whole)
            def called(*args: Any, **kwargs: Any) -> Any:
                nonlocal inside
                allow_int = bool(options.get("allow_int"))
                number = argnums if isinstance(argnums, int) else tuple(argnums)
                given = name, fun, args, kwargs, number, has_aux, holomorphic, allow_int, ()
                caller = None if inside else _caller_of_derivative(sys._getframe(1))
                if caller is not None and is_seen():
                    stand = replace(DerivativeCall(*given, *caller))
                    if stand is not None:
                        return (stand.out, stand.aux) if has_aux else stand.out
                outside, inside = inside, True
                try:
                    return whole(*args, **kwargs)
                finally:
                    inside = outside

            return called

        return jacobian

    def transposed(fun: Any, *primals: Any, **options: Any) -> Any:
        caller = _caller_of_derivative(sys._getframe(1)) if is_seen() else None
        if caller is not None:
            given = fun, primals, {}, None, False, False, False, ()
            stand = replace(DerivativeCall("linear_transpose", *given, *caller))
            fun = fun if stand is None else _as_linear(stand)
        return makers["linear_transpose"](fun, *primals, **options)

    cells = {name: _made_by(getattr(api, name)) for name in ("jacfwd", "jacrev", "hessian", "linear_transpose")}
    makers = {name: cell.cell_contents for name, cell in cells.items()}
    ad.linearize, ad.jvp = linearize, jvp
    for name, cell in cells.items():
        cell.cell_contents = transposed if name == "linear_transpose" else noting(name, makers[name])
    try:
        yield
    finally:
        ad.linearize, ad.jvp = linearize_before, jvp_before
        for name, cell in cells.items():
            cell.cell_contents = makers[name]


def _made_by(boundary: Any) -> Any:
    """The cell with the function that one of JAX's API calls (`api_boundary` in jax/_src/traceback_util.py)."""
    return boundary.__closure__[boundary.__code__.co_freevars.index("fun")]


# Whether nobody is asked about derivatives, for the time being.
_AS_THEY_ARE = contextvars.ContextVar("derivatives_as_they_are", default=False)


@contextlib.contextmanager
def derivatives_as_they_are() -> Iterator[None]:
    """Inside, JAX takes all derivatives itself again."""
    before = _AS_THEY_ARE.set(True)
    try:
        yield
    finally:
        _AS_THEY_ARE.reset(before)


def _derivative_call(frame: Any) -> DerivativeCall | None:
    """What was called, where the frame is one of a derivative of jax/_src/api.py; None where JAX called for its own sake."""
    api = os.path.join(jax_folder(), "_src", "api.py")
    name = frame.f_code.co_name
    if frame.f_code.co_filename != api or name not in ("vjp", "linearize", "_jvp"):
        return None
    found, transform = frame.f_locals, name.lstrip("_")
    outer = _frame_above(frame)
    if name == "_jvp" and outer is not None and outer.f_code.co_name == "jvp":
        outer = _frame_above(outer)
    args = tuple(found["primals"])
    kwargs: dict[str, Any] = {}
    argnums, holomorphic, allow_int = None, False, False
    if outer is not None and outer.f_code.co_filename == api:
        if outer.f_code.co_name != "value_and_grad_f":
            return None
        found, transform = outer.f_locals, "value_and_grad"
        args, kwargs, argnums = tuple(found["args"]), dict(found["kwargs"]), found["argnums"]
        argnums = argnums if isinstance(argnums, int) else tuple(argnums)
        holomorphic, allow_int = found["holomorphic"], found["allow_int"]
        outer = _frame_above(outer)
        if outer is not None and outer.f_code.co_name in ("grad_f", "grad_f_aux"):
            outer, transform = _frame_above(outer), "grad"
    function, has_aux = found["fun"], bool(found["has_aux"])
    caller = _caller_of_derivative(outer)
    tangents = tuple(found["tangents"]) if transform == "jvp" else ()
    given = function, args, kwargs, argnums, has_aux, holomorphic, allow_int, tangents
    return None if caller is None else DerivativeCall(transform, *given, *caller)


def _frame_above(frame: Any) -> Any:
    """The next frame that is not there for the traceback's sake, nor for ours."""
    frame = frame.f_back
    while frame is not None and _is_passing(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_passing(file: str) -> bool:
    return file.endswith("traceback_util.py") or file.startswith(own_folder())


def _caller_of_derivative(frame: Any) -> tuple[str, bool] | None:
    """(the file of the code outside JAX that this frame, or what JAX calls it for, belongs to; whether a function that is
    written on top of JAX asks for it); None where JAX has a purpose of its own."""
    on_top = os.path.join(jax_folder(), "_src", "scipy", "")
    by_jax = False
    while frame is not None and frame.f_code.co_filename.startswith(jax_folder()):
        if frame.f_code.co_filename.startswith(_solvers()):
            return None
        by_jax = by_jax or frame.f_code.co_filename.startswith(on_top)
        frame = _frame_above(frame)
    return frame.f_code.co_filename if frame is not None else "", by_jax


@functools.cache
def _solvers() -> tuple[str, ...]:
    """Where JAX differentiates for a purpose of its own: in its rules and solvers."""
    own = os.path.join(jax_folder(), "_src", "")
    places = (
        "custom_derivatives.py",
        "custom_transpose.py",
        "interpreters/ad.py",
        "lax/control_flow/solves.py",
    )
    return tuple([own + place for place in places]) + (os.path.join(jax_folder(), "experimental", ""),)
