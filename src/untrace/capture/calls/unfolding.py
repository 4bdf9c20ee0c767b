"""Takes calls of derivatives, and of mapped functions, out of a jaxpr again: differentiates and maps what they are of.

What comes is compared with the program that was captured, so that nothing about the calls needs to be trusted.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core

from untrace import jax_compat
from untrace.capture.calls.derivative_calls import CALLED, CALLS, JACOBIANS, LATER, WITH_TOKEN
from untrace.capture.calls.vmaps import VMAP
from untrace.ir import derivatives
from untrace.ir.signatures import Derivative, DerivativeSignature, WrittenOut
from untrace.jaxprs.equal.compare import compare
from untrace.jaxprs.expand.expand import Expander, constants_of, spliced


def unfolded(closed: Any) -> Any:
    """`closed` with every call of a derivative differentiated, and every mapped function mapped.

    The very same object where there is none. Raises ValueError where a pullback is called where its function was not.
    """
    return _Unfolder().jaxpr(closed)


def gives_back(plain: Any, calls: Any, expander: Expander) -> bool:
    """Whether a jaxpr with calls is a program that was captured, but for which numbers it hands to loops: what the author's
    numbers were (Python's, NumPy's) decides whether a pullback holds them and whether a derivative rule that adds two of them
    leaves an equation, and no jaxpr says so."""
    whole = unfolded(calls)
    if compare(plain, whole, expander).difference is None:
        return True
    inside = _NumbersInside()
    if compare(inside.jaxpr(plain), inside.jaxpr(whole), expander).difference is None:
        return True
    return compare(plain, _Unfolder(converts=True).jaxpr(calls), expander).difference is None


class _NumbersInside(jax_compat.JaxprRewriter):
    """Loops have the numbers themselves that they are handed."""

    def rewritten(self, closed: Any) -> Any:
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        eqns = [jax_compat.with_numbers_inside(jax_compat.with_inner_jaxprs(e, self.jaxpr)) for e in jaxpr.eqns]
        if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return closed
        return jax_compat.rebuilt_jaxpr(closed, eqns, jaxpr.outvars)


class _Unfolder(jax_compat.JaxprRewriter):
    """Unfolds jaxprs that may share parts, each once.

    converts: whether the numbers in what is differentiated are converted first; what was made of it otherwise is made anew.
    """

    def __init__(self, converts: bool = False):
        super().__init__()
        self.converts = converts

    def rewritten(self, closed: Any) -> Any:
        return self._unfolded(closed, {})

    def _unfolded(self, closed: Any, held: Mapping[int, WrittenOut]) -> Any:
        """held: the inputs that are tokens, by place; they become what the pullbacks hold."""
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        eqns: list[Any] = []
        substitute: dict[Any, Any] = {}
        tokens: dict[Any, tuple[WrittenOut, list[Any]]] = {
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
                new = self._holding(eqn, given) if given else jax_compat.with_inner_jaxprs(eqn, self.jaxpr)
                other = new is not eqn
                if substitute:
                    new = new.replace(invars=jax_compat.substituted(new.invars, substitute))
                if other:
                    new, own = jax_compat.handed_constants(new)
                    constvars += [var for var, _ in own]
                    consts += [value for _, value in own]
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
                plain = later_of(name, body, signature, [v.aval for v in operands[1:]])
                operands = [*residuals, *operands[1:]]
            elif given:
                raise ValueError(f"a pullback is called in what {name} is of")
            elif name in CALLS:
                body = body_of(name, eqn.params["jaxpr"], eqn.params["derivative"], [v.aval for v in operands], self)
                plain = body.plain
                if name in WITH_TOKEN:
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
            moved = spliced(like, jax_compat.open_jaxpr(plain)[0], substitute)
            places = _tracebacks(eqn)
            eqns += [*copies, *[_in_its_place(e, places) for e in moved]]
        if not changed:
            return closed
        outvars = jax_compat.substituted(jaxpr.outvars, substitute)
        return jax_compat.rebuilt_jaxpr(closed, eqns, outvars, constvars, consts, invars if held else None)

    def _holding(self, eqn: Any, given: Mapping[int, tuple[WrittenOut, list[Any]]]) -> Any:
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


def _tracebacks(eqn: Any) -> set[Any]:
    """Where the equations were made of what an equation maps or differentiates."""
    inside = [e for closed in jax_compat.jaxprs_in(eqn) for e in jax_compat.equations_in(closed)]
    return {jax_compat.equation_source(e)[0] for e in inside} - {None}


def _in_its_place(eqn: Any, own: Container[Any]) -> Any:
    """An equation of what was mapped or differentiated, with the author's place that it has there, and not that of the call."""
    return jax_compat.before_it_moved(eqn) if jax_compat.inner_traceback(eqn) in own else eqn


def body_of(
    name: str, closed: Any, derivative: Derivative, avals: Sequence[Any], unfolder: _Unfolder | None = None
) -> WrittenOut:
    """What a call of the function `closed` comes to; traced once for the same object."""
    unfolder = unfolder or _Unfolder()
    if derivative.body is not None and derivative.body.jaxpr is closed and not unfolder.converts:
        return derivative.body
    signature = derivative.signature
    bound = jax_compat.as_bound(unfolder.jaxpr(closed), unfolder.converts)
    function = jax.extend.core.jaxpr_as_fun(bound)
    later: list[Any] = []

    def called(*inputs: Any) -> Sequence[Any]:
        if name in JACOBIANS:
            whole, aux = derivatives.jacobian(function, signature, inputs)
            derivative.jacobian = jax.tree.map(jax_compat.typeof, whole)
            return jax.tree.leaves((whole, aux))
        outs, pullback = derivatives.call(name, function, signature, inputs)
        if pullback is not None:
            residuals, tree = jax.tree.flatten(pullback)
            later.append(tree)
            outs = [*outs, *residuals]
        return outs

    with jax_compat.derivatives_as_they_are():
        plain = jax_compat.trace_on_avals(called, avals)
    tree = later[-1] if later else None
    outvars = jax_compat.open_jaxpr(plain)[0].outvars
    derivative.body = WrittenOut(closed, plain, tree, outvars[len(outvars) - tree.num_leaves :] if later else ())
    return derivative.body


def later_of(name: str, body: WrittenOut, signature: DerivativeSignature, avals: Sequence[Any]) -> Any:
    """The jaxpr of a pullback, or of a linearized function: of what it holds and what it is called with."""
    held = [v.aval for v in body.residuals]

    def called(*inputs: Any) -> Sequence[Any]:
        function = jax.tree.unflatten(body.later, inputs[: len(held)])
        return derivatives.call_later(name, function, signature, inputs[len(held) :])

    with jax_compat.derivatives_as_they_are():
        return jax_compat.trace_on_avals(called, [*held, *avals])
