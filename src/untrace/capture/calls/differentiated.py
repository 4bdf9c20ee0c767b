"""Keeps the derivatives that the author asked for as calls: `jax.grad`, `vjp`, `jvp`, `hessian` and their like.

A jaxpr holds the forward and the backward pass, not the call. So the function is traced once more, and whenever it asks for
a derivative, what is differentiated is traced by itself, and one equation of our own stands for what JAX would have made
of it (`called_derivatives`). `unfolding` differentiates the bodies of these equations: only where that gives the very program
back is the form used, so nothing here needs to be trusted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from untrace import jax_compat
from untrace._identifiers import snake_case
from untrace.capture.calls.derivative_calls import (
    CALLS,
    GRADIENTS,
    JACOBIANS,
    JVP,
    PULLBACK,
    PUSHFORWARD,
    VALUE_AND_GRAD,
    WITH_TOKEN,
    Known,
    Later,
)
from untrace.capture.calls.under_derivatives import bound
from untrace.capture.calls.unfolding import later_of
from untrace.capture.calls.vmaps import ENTRY, as_function, is_reached, name_of_called
from untrace.ir.signatures import Derivative, DerivativeSignature
from untrace.jaxprs.expand.expand import Expander
from untrace.provenance import syntax
from untrace.provenance.sites import Provenance
from untrace.provenance.whose import file_kind, kind_of_called

_PLAIN = (dict, list, tuple, type(None))
_ROOT = re.compile(r"\w*")
_moves, _no_tangent = jax_compat.is_continuous, jax_compat.no_tangent


@dataclass(slots=True)
class Asked:
    """The derivatives that were asked for, those inside others not counted: how many, and which became equations."""

    count: int = 0
    kept: list[int] = field(default_factory=list)


@contextlib.contextmanager
def called_derivatives(
    whole: bool, refused: Sequence[int] = (), classes: Collection[type] = frozenset()
) -> Iterator[Asked]:
    """While the context is open, derivatives that are asked for become equations of this module.

    whole: also that which the whole function is. refused: calls that stay as JAX makes them, by their number. classes: of
    pytrees that the whole function takes or gives.
    """
    asked = Asked()
    depth = 0

    def asks(call: jax_compat.DerivativeCall) -> jax_compat.Differentiated | None:
        nonlocal depth
        if not _is_asked(call, whole):
            call.opens = call.caller == ENTRY
            return None
        asked.count += not depth
        number = asked.count
        if not depth and number in refused:
            return None
        depth += 1
        found = None
        # Tracing a user's function by itself may raise anything; then this call is written out.
        with contextlib.suppress(Exception):
            found = _replaced(call, classes)
        depth -= 1
        if found is not None and not depth:
            asked.kept.append(number)
        return found

    with jax_compat.intercepted_derivatives(asks):
        yield asked


@contextlib.contextmanager
def noted_derivatives(whole: bool) -> Iterator[list[str]]:
    """While the context is open, derivatives that are asked for go to the list: what each is called. whole: as above."""
    names: list[str] = []

    def note(call: jax_compat.DerivativeCall) -> None:
        call.opens = not whole and call.caller == ENTRY
        if _is_asked(call, whole):
            names.append(call.transform)

    with jax_compat.intercepted_derivatives(note):
        yield names


def _replaced(call: jax_compat.DerivativeCall, classes: Collection[type]) -> jax_compat.Differentiated | None:
    given = _given(call)
    if given is None:
        return None
    function, args, kwargs, argnums = given
    leaves, tree = jax.tree.flatten((args, kwargs))
    avals = [jax_compat.typeof(x) for x in leaves]
    types = jax.tree.unflatten(tree, avals)
    with jax_compat.tracing_inside_mesh(avals):
        closed, out = jax.make_jaxpr(function, return_shape=True)(*types[0], **types[1])
    plain = closed
    if call.by_jax or kind_of_called(call.function) == "library":
        closed = _in_the_authors_words(closed, types, call.by_jax)
    # Arrays that it closes over as well: inside a loop JAX hands them to the loop.
    body, traced = jax_compat.constants_as_inputs(closed)
    if call.has_aux and not (type(out) in (tuple, list) and len(out) == 2):
        return None
    shown = _shown(types, classes), _shown(tuple(out) if call.has_aux else out, classes)
    if not all(map(is_reached, shown)):
        return None
    if Expander().closed(body) is not body:
        return None  # a library's own primitives may be differentiated by rules of their own
    if any(map(jax_compat.varies, [*traced, *leaves])):
        # JAX differentiates around it: what is given to be called later, or what the text has in other trees, it does not know.
        if call.transform in WITH_TOKEN or any(map(_is_other, shown, (types, out))):
            return None
    options = tuple([name for name in ("holomorphic", "allow_int") if getattr(call, name)])
    out = tuple(out) if call.has_aux else out
    own = _within(call.function) if call.by_jax else call.function
    name = ""
    if closed is plain:
        name = called_name(own) or name_of_called(own) or (own.__name__ if call.by_jax else "")
    names = _names(closed, types[0])
    signature = DerivativeSignature(
        call.transform, types, out, len(traced), name, argnums, call.has_aux, names, options
    )
    derivative = Derivative(signature, code=_code_of(call.function))
    inputs = [*traced, *leaves]
    moving = [x for p in signature.places for x in jax.tree.leaves(args[p])]
    if not any(_moves(x) for x in moving):
        return None
    if call.transform == "jvp":
        tangents = [t for t in jax.tree.leaves(call.tangents) if _moves(t)]
        found = _jvp(derivative, body, [*inputs, *tangents])
    elif call.transform in JACOBIANS:
        found = _jacobian(derivative, body, inputs)
    elif call.transform in ("value_and_grad", "grad"):
        found = _value_and_grad(derivative, body, inputs)
    elif call.transform == "linear_transpose":
        if not all(map(_moves, jax.tree.leaves((moving, out)))):
            return None  # integers are transposed as well
        found = _with_token(derivative, body, inputs if all(map(jax_compat.is_tracer, leaves)) else traced)
    else:
        found = _with_token(derivative, body, inputs)
    derivative.signature = replace(signature, args=shown[0], out=shown[1])  # of the same leaves
    return found


def _shown(tree: Any, classes: Collection[type]) -> Any:
    """A pytree as the text has it. What a library packs things into, and the program neither takes nor gives, stays out."""
    if jax.tree_util.all_leaves([tree]):
        return tree
    parts, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    inside = [_shown(part, classes) for _, part in parts]
    kind = type(tree)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    if kind in _PLAIN or kind in classes or file_kind(file) == "user":
        return jax.tree.unflatten(structure, inside)
    full = [part for part in inside if jax.tree.leaves(part)]
    return full[0] if len(full) == 1 else tuple(full)


def _is_other(shown: Any, tree: Any) -> bool:
    return not bool(jax.tree.structure(shown) == jax.tree.structure(tree))


def _parts(signature: DerivativeSignature, outs: Sequence[Any]) -> tuple[Any, Any]:
    """(what is differentiated, what comes beside it) of a result."""
    out = jax.tree.unflatten(jax.tree.structure(signature.out), outs)
    return (out[0], out[1]) if signature.has_aux else (out, None)


def _value_and_grad(derivative: Derivative, body: Any, inputs: Sequence[Any]) -> jax_compat.Differentiated:
    signature = derivative.signature
    results = bound(VALUE_AND_GRAD, derivative, body, inputs)
    count = len(jax.tree.leaves(signature.out))
    value, aux = _parts(signature, results[:count])
    known = Known(results[count:], [jax_compat.typeof(x) for x in jax.tree.leaves(value)])

    def pushed(residuals: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
        return GRADIENTS.bind(*tangents, known=known)

    return jax_compat.Differentiated(value, aux, [], pushed)


def _jvp(derivative: Derivative, body: Any, inputs: Sequence[Any]) -> jax_compat.Differentiated:
    signature = derivative.signature
    results = bound(JVP, derivative, body, inputs)
    count = len(jax.tree.leaves(signature.out))
    value, aux = _parts(signature, results[:count])
    tangents = iter(results[count:])
    every = [next(tangents) if _moves(x) else _no_tangent(x) for x in jax.tree.leaves(value)]
    return jax_compat.Differentiated(value, aux, tangents=jax.tree.unflatten(jax.tree.structure(value), every))


def _jacobian(derivative: Derivative, body: Any, inputs: Sequence[Any]) -> jax_compat.Differentiated:
    signature = derivative.signature
    results = bound(JACOBIANS[signature.transform], derivative, body, inputs)
    count = len(jax.tree.leaves(derivative.jacobian))
    whole = jax.tree.unflatten(jax.tree.structure(derivative.jacobian), results[:count])
    aux = jax.tree.unflatten(jax.tree.structure(signature.out[1]), results[count:]) if signature.has_aux else None
    return jax_compat.Differentiated(whole, aux)


def _with_token(derivative: Derivative, body: Any, inputs: Sequence[Any]) -> jax_compat.Differentiated:
    signature = derivative.signature
    *outs, token = bound(CALLS[signature.transform], derivative, body, inputs)
    value, aux = _parts(signature, outs) if outs else (signature.out, None)
    avals = tuple([jax_compat.typeof(x) for x in jax.tree.leaves(value) if _moves(x)])

    def pushed(residuals: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
        return PUSHFORWARD.bind(*residuals, *tangents, later=Later(derivative, avals))

    return jax_compat.Differentiated(value, aux, [token], pushed)


def _pulled_back(first: Sequence[Any], cotangents: Sequence[Any], later: Later) -> list[Any]:
    body = later.derivative.body
    assert body is not None
    plain = later_of(PULLBACK.name, body, later.derivative.signature, [jax_compat.typeof(x) for x in cotangents])
    avals = tuple([v.aval for v in jax_compat.open_jaxpr(plain)[0].outvars])
    return PULLBACK.bind(*first, *cotangents, later=Later(later.derivative, avals))


def _given(call: jax_compat.DerivativeCall) -> tuple[Any, tuple[Any, ...], dict[str, Any], Any] | None:
    """(the function, its arguments, which of them are differentiated): without arguments of which anything is known while
    it is traced, and which are not differentiated. Those it closes over."""
    count = len(call.args)
    several = range(count) if call.argnums is None else call.argnums
    moving = {n % count for n in ((several,) if isinstance(several, int) else several)}
    known = {i for i, a in enumerate(call.args) if i not in moving and not _is_unknown(a)}
    named = {k for k, a in call.kwargs.items() if not _is_unknown(a)}
    if not all(jax_compat.is_traceable(x) for i in moving for x in jax.tree.leaves(call.args[i])):
        return None
    kwargs = {k: a for k, a in call.kwargs.items() if k not in named}
    if not known and not named:
        return as_function(call.function), call.args, kwargs, call.argnums
    places = [i for i in range(count) if i not in known]
    argnums: Any = call.argnums
    if argnums is not None:
        now = {old: new for new, old in enumerate(places)}
        argnums = now[argnums % count] if isinstance(argnums, int) else tuple([now[n % count] for n in argnums])
    function = _without(call.function, call.args, {k: call.kwargs[k] for k in named}, known)
    return function, tuple([call.args[i] for i in places]), kwargs, argnums


def _is_asked(call: jax_compat.DerivativeCall, whole: bool) -> bool:
    """Whether the author asks, or a library for the derivative of a function of the author's. whole: as above."""
    return (whole or call.caller != ENTRY) and (not call.by_jax or _within(call.function) is not None)


def _within(function: Any) -> Any:
    """The function of the author's, or of a library, that one of JAX's closes over: `lambda x: fun(x, *args)`. None where
    there is none."""
    seen: list[Any] = []
    waiting = [function]
    while waiting:
        function = waiting.pop()
        while isinstance(function, functools.partial):
            function = function.func
        function = inspect.unwrap(function)
        if any(function is other for other in seen):
            continue
        seen.append(function)
        if kind_of_called(function) in ("user", "library"):
            return function
        with contextlib.suppress(ValueError):  # of a cell that is empty yet
            waiting += [
                c.cell_contents for c in getattr(function, "__closure__", None) or () if callable(c.cell_contents)
            ]
    return None


def _in_the_authors_words(closed: Any, types: tuple[tuple[Any, ...], dict[str, Any]], by_jax: bool) -> Any:
    """The jaxpr of a library's function around the author's, which says that it is of the author's. by_jax: it passes on
    all that it takes."""
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    provenance = Provenance()
    frames = [next((f for f in provenance.site(e).frames if not f.library), None) for e in jaxpr.eqns]
    codes = {f.code for f in frames if f is not None}
    if len(codes) != 1:
        return closed
    code = codes.pop()
    words = list(code.co_varnames[: code.co_argcount])
    if not by_jax and words[len(types[0]) :] != [w for w in words if w in types[1]]:
        return closed
    if words[0] == "self":
        words[0] = snake_case(type(types[0][0]).__name__)
    paths = [
        word + jax.tree_util.keystr(path)
        for word, tree in [*zip(words, types[0], strict=False), *sorted(types[1].items())]
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]
    results = [f"result{i}" for i in range(len(jaxpr.outvars))]
    return jax_compat.with_names(closed, f"{code.co_name} at {code.co_filename}:{code.co_firstlineno}", paths, results)


def called_name(function: Any) -> str:
    """The author's name for a partial or a lambda; "" for other functions, whose jaxprs have theirs."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__name__", "")
    if name == "<lambda>":
        return syntax.lambda_name(getattr(inner, "__code__", None)) or ""
    return name if inner is not function else ""


def _code_of(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(inspect.unwrap(function), "__code__", None)


def _names(closed: Any, args: Sequence[Any]) -> tuple[str, ...]:
    paths = iter(jax_compat.argument_names(closed) or ())
    leaves = [[next(paths, "") for _ in jax.tree.leaves(arg)] for arg in args]
    roots = [_ROOT.match(own[0]) if own else None for own in leaves]
    return tuple([root[0] if root is not None else "" for root in roots])


def _is_unknown(argument: Any) -> bool:
    """Whether nothing of an argument's leaves is known while the function is traced."""
    leaves = jax.tree.leaves(argument)
    return bool(leaves) and all(map(jax_compat.is_tracer, leaves))


def _without(function: Any, args: Sequence[Any], named: dict[str, Any], known: set[int]) -> Any:
    """The function of the other arguments, with the names that they have there."""

    @functools.wraps(as_function(function))
    def called(*rest: Any, **kwargs: Any) -> Any:
        others = iter(rest)
        whole = [a if i in known else next(others) for i, a in enumerate(args)]
        return function(*whole, **named, **kwargs)

    with contextlib.suppress(TypeError, ValueError):
        signature = inspect.signature(function)
        own = list(signature.parameters.values())
        kept = [p for i, p in enumerate(own) if i not in known and p.name not in named]
        described: Any = called
        described.__signature__ = signature.replace(parameters=kept)
    return called


jax_compat.register_transpose(PUSHFORWARD, lambda first, cotangents, later: _pulled_back(first, cotangents, later))
