"""Keeps the derivatives that the author asked for as calls: `jax.grad`, `vjp`, `jvp`, `hessian` and their like.

A jaxpr holds the forward and the backward pass, not the call. So the function is traced once more, and whenever it asks for
a derivative, what is differentiated is traced by itself, and one equation of our own stands for what JAX would have made
of it (`called_derivatives`). `unfolded` differentiates the bodies of these equations: only where that gives the very program
back is the form used, so nothing here needs to be trusted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core

from untrace import jax_compat
from untrace.capture import syntax
from untrace.capture.expand import OURS, Expander, constants_of, spliced
from untrace.capture.provenance import Provenance
from untrace.capture.vmaps import VMAP, as_function, file_of_called, is_reached, name_of_called
from untrace.capture.whose import file_kind
from untrace.ir.nodes import Constant, Literal
from untrace.print.names import snake_case


@dataclass(frozen=True, eq=False, slots=True)
class Signature:
    """What a differentiated function takes and gives, and what is asked of it.

    args: `((args), {kwargs})` of abstract values, without those that it closes over; out: its whole result, `(value, aux)`
    where it `has_aux`. closed: how many values it closes over, which are the first parameters of its jaxpr. name: of its
    class, if it is an object that is called. argnums: places in `args`, one or several as they were given; None for all.
    """

    transform: str  # "value_and_grad", "grad", "vjp", "linearize", "jvp", "jacfwd", "jacrev" or "hessian"
    args: tuple[tuple[Any, ...], dict[str, Any]]
    out: Any
    closed: int
    name: str
    argnums: int | tuple[int, ...] | None
    has_aux: bool
    names: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # "holomorphic", "allow_int"

    def stands_alone(self, operands: Sequence[Any]) -> bool:
        """Whether the function can be one of the module, which knows the constants that it closes over."""
        return all(type(x) in (Constant, Literal) for x in operands[: self.closed])

    @property
    def places(self) -> tuple[int, ...]:
        """The arguments that are differentiated."""
        if self.argnums is None:
            return tuple(range(len(self.args[0])))
        several = (self.argnums,) if isinstance(self.argnums, int) else self.argnums
        return tuple([n % len(self.args[0]) for n in several])

    @property
    def value(self) -> Any:
        """What is differentiated of the result."""
        return self.out[0] if self.has_aux else self.out

    @property
    def gradients(self) -> Any:
        """Like the gradients that come back: one argument, or a tuple of them."""
        args = self.args[0]
        return args[self.places[0]] if isinstance(self.argnums, int) else tuple([args[p] for p in self.places])

    def split(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return jax.tree.unflatten(jax.tree.structure(self.args), list(leaves))


@dataclass(slots=True)
class Body:
    """What a call is without the call, of one very jaxpr: `plain`, and for a call whose pullback comes later the tree of it,
    whose leaves are the last results of `plain`."""

    jaxpr: Any
    plain: Any
    later: Any = None
    residuals: Sequence[Any] = ()  # what the pullback holds: those results of `plain`


@dataclass(eq=False, slots=True, repr=False)
class Derivative:
    """The parameter that all equations of one call share. `body`: what was made of the jaxpr that they had last. `jacobian`:
    what comes back of one, with abstract values. `code`: of the author's function."""

    signature: Signature
    body: Body | None = None
    jacobian: Any = None
    code: Any = None


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Later:
    """The parameter of one call of a pullback, or of a linearized function. avals: of its results."""

    derivative: Derivative
    avals: tuple[Any, ...]


@dataclass(eq=False, slots=True)
class _Known:
    """Gradients that are there already, of what has results of these types."""

    gradients: Sequence[Any]
    avals: Sequence[Any]

    def take(self) -> Sequence[Any]:
        """The gradients, once: nothing keeps them alive afterwards."""
        gradients, self.gradients = self.gradients, ()
        return gradients


class _Call(jax.extend.core.Primitive):
    """A primitive whose equations say where the user called, whatever JAX is about to do meanwhile."""

    def bind(self, *args: Any, **params: Any) -> Any:
        with jax_compat.as_called():
            return super().bind(*args, **params)


def _primitive(name: str) -> Any:
    primitive = _Call(name)
    primitive.multiple_results = True
    return primitive


# Their parameters: `jaxpr`, the function, whose first inputs are what it closes over; `derivative`; `avals`.
VALUE_AND_GRAD = _primitive("value_and_grad")  # inputs -> the result, and what gradients are not of integers
JVP = _primitive("jvp")  # inputs, tangents -> the result, tangents
VJP = _primitive("vjp")  # inputs -> the result, and a token that stands for the pullback
LINEARIZE = _primitive("linearize")  # the same with a function of tangents
# inputs -> the leaves of the Jacobian, and what comes beside it
JACOBIANS = {name: _primitive(name) for name in ("jacfwd", "jacrev", "hessian")}
# Their parameter: `later`.
PULLBACK = _primitive("pullback")  # the token, cotangents -> cotangents
PUSHFORWARD = _primitive("pushforward")  # the token, tangents -> tangents
_GRADIENTS = _primitive("gradients")  # gives, transposed, the gradients that are there already; in no jaxpr of ours
CALLED = _primitive("called")  # the function itself: inputs -> the result
CALLS = {p.name: p for p in (VALUE_AND_GRAD, JVP, VJP, LINEARIZE, *JACOBIANS.values())}
LATER = {p.name: p for p in (PULLBACK, PUSHFORWARD)}
_TOKEN = jax.ShapeDtypeStruct((), jax.dtypes.float0)
_ROOT = re.compile(r"\w*")
_ENTRY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "function.py")
_moves, _no_tangent = jax_compat.is_continuous, jax_compat.no_tangent

OURS.update(CALLS.values(), LATER.values(), (CALLED,))
for _p in CALLS.values():
    _p.def_effectful_abstract_eval(lambda *_, jaxpr, derivative, avals: (list(avals), _effects(jaxpr)))
for _p in (VALUE_AND_GRAD, JVP, *JACOBIANS.values()):
    # Where JAX transforms what a call is part of, the call is not there: as without us.
    jax_compat.register_as_function(_p, lambda *xs, jaxpr, derivative, avals: _plainly(xs, derivative))
for _p in LATER.values():
    _p.def_abstract_eval(lambda *_, later: list(later.avals))
_GRADIENTS.def_abstract_eval(lambda *_, known: list(known.avals))
jax_compat.register_transpose(_GRADIENTS, lambda first, cotangents, known: known.take())
jax_compat.register_transpose(PUSHFORWARD, lambda first, cotangents, later: _pulled_back(first, cotangents, later))


def _plainly(inputs: Sequence[Any], derivative: Derivative) -> list[Any]:
    assert derivative.body is not None
    return jax.extend.core.jaxpr_as_fun(derivative.body.plain)(*inputs)


def _effects(closed: Any) -> Any:
    return jax_compat.open_jaxpr(closed)[0].effects


# ---------------------------------------------------------------- while the author's function is traced


@dataclass(slots=True)
class Asked:
    """The derivatives that were asked for, those inside others not counted: how many, and which became equations."""

    count: int = 0
    kept: list[int] = field(default_factory=list)


@contextlib.contextmanager
def called_derivatives(whole: bool, refused: Sequence[int] = ()) -> Iterator[Asked]:
    """While the context is open, derivatives that are asked for become equations of this module.

    whole: also that which the whole function is. refused: calls that stay as JAX makes them, by their number.
    """
    asked = Asked()
    depth = 0

    def replace(call: jax_compat.DerivativeCall) -> jax_compat.Differentiated | None:
        nonlocal depth
        if not whole and call.caller == _ENTRY:
            return None
        asked.count += not depth
        number = asked.count
        if not depth and number in refused:
            return None
        depth += 1
        found = None
        # Tracing a user's function by itself may raise anything; then this call is written out.
        with contextlib.suppress(Exception):
            found = _replaced(call)
        depth -= 1
        if found is not None and not depth:
            asked.kept.append(number)
        return found

    with jax_compat.intercepted_derivatives(replace):
        yield asked


@contextlib.contextmanager
def noted_derivatives(whole: bool) -> Iterator[list[str]]:
    """While the context is open, derivatives that are asked for go to the list: what each is called. whole: as above."""
    names: list[str] = []

    def note(call: jax_compat.DerivativeCall) -> None:
        if whole or call.caller != _ENTRY:
            names.append(call.transform)

    with jax_compat.intercepted_derivatives(note):
        yield names


def _replaced(call: jax_compat.DerivativeCall) -> jax_compat.Differentiated | None:
    given = _given(call)
    if given is None:
        return None
    function, args, kwargs, argnums = given
    leaves, tree = jax.tree.flatten((args, kwargs))
    avals = [jax_compat.typeof(x) for x in leaves]
    types = jax.tree.unflatten(tree, avals)
    with jax_compat.tracing_inside_mesh(avals):
        closed, out = jax.make_jaxpr(function, return_shape=True)(*types[0], **types[1])
    closed = _in_the_authors_words(closed, call.function, types)
    # Arrays that it closes over as well: inside a loop JAX hands them to the loop.
    body, traced = jax_compat.constants_as_inputs(closed)
    if (
        not is_reached(types)
        or not is_reached(out)
        or call.has_aux
        and not (type(out) in (tuple, list) and len(out) == 2)
    ):
        return None
    if Expander().closed(body) is not body:
        return None  # a library's own primitives may be differentiated by rules of their own
    options = tuple([name for name in ("holomorphic", "allow_int") if getattr(call, name)])
    out = tuple(out) if call.has_aux else out
    name = called_name(call.function) or name_of_called(call.function)
    names = _names(closed, types[0])
    signature = Signature(call.transform, types, out, len(traced), name, argnums, call.has_aux, names, options)
    derivative = Derivative(signature, code=_code_of(call.function))
    inputs = [*traced, *leaves]
    moving = [x for p in signature.places for x in jax.tree.leaves(args[p])]
    if not any(_moves(x) for x in moving):
        return None
    if call.transform == "jvp":
        tangents = [t for t in jax.tree.leaves(call.tangents) if _moves(t)]
        return _jvp(derivative, body, [*inputs, *tangents])
    if call.transform in JACOBIANS:
        return _jacobian(derivative, body, inputs)
    if call.transform in ("value_and_grad", "grad"):
        return _value_and_grad(derivative, body, inputs)
    return _with_token(derivative, body, inputs)


def _bound(primitive: Any, derivative: Derivative, body: Any, inputs: Sequence[Any], tokens: int = 0) -> list[Any]:
    made = _body(primitive.name, body, derivative, [jax_compat.typeof(x) for x in inputs])
    avals = [v.aval for v in jax_compat.open_jaxpr(made.plain)[0].outvars]
    if tokens:
        count = len(jax.tree.leaves(derivative.signature.out))
        avals = [*avals[:count], jax.typeof(_TOKEN)]
    return primitive.bind(*inputs, jaxpr=body, derivative=derivative, avals=tuple(avals))


def _parts(signature: Signature, outs: Sequence[Any]) -> tuple[Any, Any]:
    """(what is differentiated, what comes beside it) of a result."""
    out = jax.tree.unflatten(jax.tree.structure(signature.out), outs)
    return (out[0], out[1]) if signature.has_aux else (out, None)


def _value_and_grad(derivative: Derivative, body: Any, inputs: Sequence[Any]) -> jax_compat.Differentiated:
    signature = derivative.signature
    results = _bound(VALUE_AND_GRAD, derivative, body, inputs)
    count = len(jax.tree.leaves(signature.out))
    value, aux = _parts(signature, results[:count])
    known = _Known(results[count:], [jax_compat.typeof(x) for x in jax.tree.leaves(value)])

    def pushed(residuals: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
        return _GRADIENTS.bind(*tangents, known=known)

    return jax_compat.Differentiated(value, aux, [], pushed)


def _jvp(derivative: Derivative, body: Any, inputs: Sequence[Any]) -> jax_compat.Differentiated:
    signature = derivative.signature
    results = _bound(JVP, derivative, body, inputs)
    count = len(jax.tree.leaves(signature.out))
    value, aux = _parts(signature, results[:count])
    tangents = iter(results[count:])
    every = [next(tangents) if _moves(x) else _no_tangent(x) for x in jax.tree.leaves(value)]
    return jax_compat.Differentiated(value, aux, tangents=jax.tree.unflatten(jax.tree.structure(value), every))


def _jacobian(derivative: Derivative, body: Any, inputs: Sequence[Any]) -> jax_compat.Differentiated:
    signature = derivative.signature
    results = _bound(JACOBIANS[signature.transform], derivative, body, inputs)
    count = len(jax.tree.leaves(derivative.jacobian))
    whole = jax.tree.unflatten(jax.tree.structure(derivative.jacobian), results[:count])
    aux = jax.tree.unflatten(jax.tree.structure(signature.out[1]), results[count:]) if signature.has_aux else None
    return jax_compat.Differentiated(whole, aux)


def _with_token(derivative: Derivative, body: Any, inputs: Sequence[Any]) -> jax_compat.Differentiated:
    signature = derivative.signature
    primitive = CALLS[signature.transform]
    *outs, token = _bound(primitive, derivative, body, inputs, tokens=1)
    value, aux = _parts(signature, outs)
    avals = tuple([jax_compat.typeof(x) for x in jax.tree.leaves(value) if _moves(x)])

    def pushed(residuals: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
        return PUSHFORWARD.bind(*residuals, *tangents, later=Later(derivative, avals))

    return jax_compat.Differentiated(value, aux, [token], pushed)


def _pulled_back(first: Sequence[Any], cotangents: Sequence[Any], later: Later) -> list[Any]:
    body = later.derivative.body
    assert body is not None
    plain = _later(PULLBACK.name, body, later.derivative.signature, [jax_compat.typeof(x) for x in cotangents])
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


def _in_the_authors_words(closed: Any, function: Any, types: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """The jaxpr of a library's function around the author's, which says that it is of the author's."""
    if file_kind(file_of_called(function)) != "library":
        return closed
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    provenance = Provenance()
    frames = [next((f for f in provenance.site(e).frames if not f.library), None) for e in jaxpr.eqns]
    codes = {f.code for f in frames if f is not None}
    if len(codes) != 1:
        return closed
    code = codes.pop()
    words = list(code.co_varnames[: code.co_argcount])
    if words[len(types[0]) :] != [w for w in words if w in types[1]]:
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
    return tuple([_ROOT.match(own[0])[0] if own else "" for own in leaves])  # type: ignore[index]


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
        called.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return called


# ---------------------------------------------------------------- differentiating again


def unfolded(closed: Any) -> Any:
    """`closed` with every equation of this module differentiated, and every mapped one mapped.

    The very same object where there is none. Raises ValueError where a pullback is called where its function was not.
    """
    return _Unfolder().jaxpr(closed)


@dataclass(slots=True)
class _Unfolder:
    """Unfolds jaxprs that may share parts, each once."""

    _memo: dict[int, Any] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)

    def jaxpr(self, closed: Any) -> Any:
        found = self._memo.get(id(closed))
        if found is None:
            self._alive.append(closed)
            found = self._memo[id(closed)] = self._unfolded(closed, {})
        return found

    def _unfolded(self, closed: Any, held: Mapping[int, Body]) -> Any:
        """held: the inputs that are tokens, by place; they become what the pullbacks hold."""
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        eqns: list[Any] = []
        substitute: dict[Any, Any] = {}
        tokens: dict[Any, tuple[Body, list[Any]]] = {
            jaxpr.invars[i]: (body, jax_compat.new_variables(body.residuals)) for i, body in held.items()
        }
        invars = [v for var in jaxpr.invars for v in (tokens[var][1] if var in tokens else [var])]
        constvars: list[Any] = []
        consts: list[Any] = []
        changed = bool(held)
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            given = {i: tokens[v] for i, v in enumerate(eqn.invars) if jax_compat.is_variable(v) and v in tokens}
            if eqn.primitive not in (VMAP, CALLED, CALLS.get(name), LATER.get(name)):
                params = eqn.params if given else jax_compat.with_other_jaxprs(eqn.params, self.jaxpr)
                new = (
                    self._holding(eqn, given) if given else eqn if params is eqn.params else eqn.replace(params=params)
                )
                other = new is not eqn
                if substitute:
                    new = new.replace(invars=jax_compat.substituted(new.invars, substitute))
                if other:
                    new = jax_compat.closed_as_used(new)
                changed = changed or new is not eqn
                eqns.append(new)
                continue
            changed = True
            operands = list(eqn.invars)
            outvars = list(eqn.outvars)
            if name in LATER:
                if not given:
                    raise ValueError("a pullback is called in another function than the one that it is of")
                body, residuals = given[0]
                signature = eqn.params["later"].derivative.signature
                plain = _later(name, body, signature, [v.aval for v in operands[1:]])
                operands = [*residuals, *operands[1:]]
            elif given:
                raise ValueError(f"a pullback is called in what {name} is of")
            elif name in CALLS:
                body = _body(name, eqn.params["jaxpr"], eqn.params["derivative"], [v.aval for v in operands], self)
                plain = body.plain
                if name in (VJP.name, LINEARIZE.name):
                    *outvars, token = outvars
                    found = jax_compat.new_variables(body.residuals)
                    tokens[token] = body, found
                    outvars += found
            elif eqn.primitive is CALLED:
                plain = self.jaxpr(eqn.params["jaxpr"])
            else:
                plain = self._mapped(eqn)
            copies, own = constants_of(plain, eqn)
            if own and jax_compat.is_open(closed):
                raise ValueError("a constant has no home in an open jaxpr")
            constvars += [var for var, _ in own]
            consts += [value for _, value in own]
            like = eqn.replace(invars=operands, outvars=outvars)
            eqns += [*copies, *spliced(like, jax_compat.open_jaxpr(plain)[0], substitute)]
        if not changed:
            return closed
        outvars = jax_compat.substituted(jaxpr.outvars, substitute)
        return jax_compat.rebuilt_jaxpr(closed, eqns, outvars, constvars, consts, invars if held else None)

    def _holding(self, eqn: Any, given: Mapping[int, tuple[Body, list[Any]]]) -> Any:
        """A loop, a choice or a call whose functions call pullbacks that they close over."""
        bodies = {i: body for i, (body, _) in given.items()}
        inner = jax_compat.inner_places(eqn)
        params = dict(eqn.params)
        for key, number, place in inner:
            held = {at - place.start: bodies[at] for at in place if at in bodies}
            new = self._unfolded(jax_compat.inner_jaxpr(params, key, number), held)
            jax_compat.put_inner_jaxpr(params, key, number, new)
        several = {i: len(residuals) for i, (_, residuals) in given.items()}
        invars = [v for i, var in enumerate(eqn.invars) for v in (given[i][1] if i in given else [var])]
        return eqn.replace(invars=invars, params=jax_compat.with_operands_spread(eqn, params, several))

    def _mapped(self, eqn: Any) -> Any:
        params = {**eqn.params, "jaxpr": self.jaxpr(eqn.params["jaxpr"])}
        return jax_compat.trace_on_avals(lambda *xs: VMAP.impl(*xs, **params), [v.aval for v in eqn.invars], eqn.ctx)


def _body(
    name: str, closed: Any, derivative: Derivative, avals: Sequence[Any], unfolder: _Unfolder | None = None
) -> Body:
    """What a call of the function `closed` comes to; traced once for the same object."""
    if derivative.body is not None and derivative.body.jaxpr is closed:
        return derivative.body
    signature = derivative.signature
    function = jax.extend.core.jaxpr_as_fun((unfolder or _Unfolder()).jaxpr(closed))
    later: list[Any] = []

    def called(*inputs: Any) -> list[Any]:
        if name in JACOBIANS:
            whole, aux = _call_jacobian(function, signature, inputs)
            derivative.jacobian = jax.tree.map(jax_compat.typeof, whole)
            return jax.tree.leaves((whole, aux))
        outs, pullback = _CALLED[name](function, signature, inputs)
        if pullback is not None:
            residuals, tree = jax.tree.flatten(pullback)
            later.append(tree)
            outs = [*outs, *residuals]
        return outs

    with jax_compat.derivatives_as_they_are():
        plain = jax_compat.trace_on_avals(called, avals)
    tree = later[-1] if later else None
    outvars = jax_compat.open_jaxpr(plain)[0].outvars
    derivative.body = Body(closed, plain, tree, outvars[len(outvars) - tree.num_leaves :] if later else ())
    return derivative.body


def _function(function: Any, signature: Signature, inputs: Sequence[Any]) -> tuple[Callable[..., Any], Any, Any]:
    """(the author's function, its arguments) over a flat one: it gives leaves of what is differentiated, and of the rest."""
    closed = list(inputs[: signature.closed])
    count = len(jax.tree.leaves(signature.args))
    args, kwargs = signature.split(inputs[signature.closed : signature.closed + count])
    several = len(jax.tree.leaves(signature.value))

    def called(*args: Any, **kwargs: Any) -> Any:
        outs = function(*closed, *jax.tree.leaves((args, kwargs)))
        return (outs[:several], outs[several:]) if signature.has_aux else outs

    return called, args, kwargs


def _call_value_and_grad(function: Any, signature: Signature, inputs: Sequence[Any]) -> tuple[list[Any], Any]:
    called, args, kwargs = _function(function, signature, inputs)

    def scalar(*args: Any, **kwargs: Any) -> Any:
        out = called(*args, **kwargs)
        return (out[0][0], out[1]) if signature.has_aux else out[0]

    options = dict.fromkeys(signature.options, True)
    both = jax.value_and_grad(scalar, signature.argnums, has_aux=signature.has_aux, **options)
    value, gradients = both(*args, **kwargs)
    return [*jax.tree.leaves(value), *filter(_moves, jax.tree.leaves(gradients))], None


def _call_jvp(function: Any, signature: Signature, inputs: Sequence[Any]) -> tuple[list[Any], Any]:
    called, args, _ = _function(function, signature, inputs)
    leaves = jax.tree.leaves(args)
    given = iter(inputs[len(inputs) - sum(map(_moves, leaves)) :])
    tangents = [next(given) if _moves(x) else _no_tangent(x) for x in leaves]
    whole = jax.tree.unflatten(jax.tree.structure(args), tangents)
    value, pushed, *aux = jax.jvp(called, args, whole, has_aux=signature.has_aux)
    return [*jax.tree.leaves((value, *aux)), *filter(_moves, jax.tree.leaves(pushed))], None


def _call_jacobian(function: Any, signature: Signature, inputs: Sequence[Any]) -> tuple[Any, Any]:
    called, args, kwargs = _function(function, signature, inputs)

    def whole(*args: Any, **kwargs: Any) -> Any:
        out = called(*args, **kwargs)
        value, aux = out if signature.has_aux else (out, None)
        value = jax.tree.unflatten(jax.tree.structure(signature.value), value)
        return (value, aux) if signature.has_aux else value

    options = dict.fromkeys(signature.options, True)
    transform = getattr(jax, signature.transform)
    found = transform(whole, signature.argnums, has_aux=signature.has_aux, **options)(*args, **kwargs)
    return found if signature.has_aux else (found, None)


def _call_vjp(function: Any, signature: Signature, inputs: Sequence[Any]) -> tuple[list[Any], Any]:
    called, args, _ = _function(function, signature, inputs)
    value, pullback, *aux = jax.vjp(called, *args, has_aux=signature.has_aux)
    return jax.tree.leaves((value, *aux)), pullback


def _call_linearize(function: Any, signature: Signature, inputs: Sequence[Any]) -> tuple[list[Any], Any]:
    called, args, _ = _function(function, signature, inputs)
    value, pushed, *aux = jax.linearize(called, *args, has_aux=signature.has_aux)
    return jax.tree.leaves((value, *aux)), pushed


_CALLED = {
    VALUE_AND_GRAD.name: _call_value_and_grad, JVP.name: _call_jvp, VJP.name: _call_vjp,
    LINEARIZE.name: _call_linearize,
}  # fmt: skip


def _later(name: str, body: Body, signature: Signature, avals: Sequence[Any]) -> Any:
    """The jaxpr of a pullback, or of a linearized function: of what it holds and what it is called with."""
    held = [v.aval for v in body.residuals]

    def called(*inputs: Any) -> list[Any]:
        function = jax.tree.unflatten(body.later, inputs[: len(held)])
        given = iter(inputs[len(held) :])
        if name == PULLBACK.name:
            outs = jax.tree.leaves(signature.value)
            cotangents = [next(given) if _moves(x) else _no_tangent(x) for x in outs]
            return list(filter(_moves, jax.tree.leaves(function(cotangents))))
        leaves = jax.tree.leaves(signature.args[0])
        tangents = [next(given) if _moves(x) else _no_tangent(x) for x in leaves]
        moved = function(*jax.tree.unflatten(jax.tree.structure(signature.args[0]), tangents))
        return list(filter(_moves, jax.tree.leaves(moved)))

    with jax_compat.derivatives_as_they_are():
        return jax_compat.trace_on_avals(called, [*held, *avals])
