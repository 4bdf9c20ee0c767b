"""Derivatives of library functions: `jax.vjp` of the function, and a call of what it gives back.

    y, log_softmax_vjp = jax.vjp(jax.nn.log_softmax, x)
    ...
    d_x = log_softmax_vjp(d_y)[0]

JAX differentiates a jitted function as a whole: one call of its name computes the result and the residuals, and another one
in the backward pass takes these. The guess is traced as any other, and laid over the two. It stands before functions are
outlined, so that the residuals are one value wherever they go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace.ir.nodes import (
    Equation,
    Function,
    Library,
    Literal,
    Pack,
    Primitive,
    Program,
    PullbackType,
    Slot,
    Unpack,
    Value,
    walk_functions,
)
from untrace.jaxprs.equal.comparer import Comparer
from untrace.jaxprs.equal.rules import MAX_DEPTH
from untrace.lift.adjoint.pullback_choices import lift_choices
from untrace.lift.adjoint.pullback_convolutions import lift_convolutions
from untrace.lift.adjoint.pullback_groups import SHAPES, call_to_try, has_batches, lift_groups
from untrace.lift.naming.names import provenance_of
from untrace.lift.naming.words import after_lift
from untrace.lift.outline.pieces import renamed
from untrace.lift.recognise.engine import (
    FIRST,
    IDIOMS,
    LAST,
    Guess,
    Lifter,
    Matcher,
    is_same_literal,
    is_same_type,
    with_all_outputs,
)
from untrace.lift.recognise.library import facts, resolve
from untrace.lift.recognise.patterns import Pattern, fill, pattern_of
from untrace.lift.rewrite.simplify import simplified

PULLBACK = "pullback"
_JITS = ("jit", "pjit")
_KINDS = ("jnp", "jax", "method", "vmap")  # of paths
# Equations of a backward part, and of the forward part for it: of fewer it reads better what they compute.
_LEAST = 4


def find_pullbacks(
    program: Program,
    refused: frozenset[JaxprEqn] = frozenset(),
    instead: dict[JaxprEqn, Any] | None = None,
) -> Program:
    """Makes `jax.vjp` of the two parts of each library function's derivative, where that is proven; in place.

    instead: of parts that only do the same as what `jax.vjp` gives (those of a function that was mapped), its jaxprs are put
    there, by the id of the part's own equation.
    """
    provenance = provenance_of(program)
    lifter = Lifter(refused, program.facts.own, provenance=provenance)
    for function in walk_functions(program.entry):
        pairs = list(_pairs(function))
        if not pairs and not any(provenance.site(e.origin).phase == "backward" for e in function.equations):
            continue  # most functions
        matcher = Matcher(lifter, function)
        for forward, backward in pairs:
            _lift(matcher, forward, backward, instead)
        lift_groups(matcher, replace)
        lift_convolutions(matcher, replace)
        lift_choices(matcher, replace)
        matcher.finish(function)
    return program


def is_derivative(callee: Any) -> bool:
    """Whether it is a call of `jax.vjp`, or of what that gives back."""
    return type(callee) is Library and (callee.name == PULLBACK or callee.name.startswith("vjp."))


def _pairs(function: Function) -> Iterator[tuple[Equation, Equation]]:
    """A library's call that computes residuals, and the call of the same name that takes them, each in one pair only."""
    made: dict[Value, Equation] = {}
    taken: set[Equation] = set()
    for equation in function.equations:
        name = _name(equation)
        if name is None:
            continue
        before = {e: e for a in equation.inputs if type(a) is Value and (e := made.get(a)) is not None}
        # Residuals come last.
        found = [e for e in before.values() if _name(e) == name and len(e.outputs) > 1 and e not in taken]
        found = [e for e in found if e.outputs[-1] in equation.inputs]
        if len(found) == 1:
            taken.add(found[0])
            yield found[0], equation
        made.update((o, equation) for o in equation.outputs if o is not None)


def _name(equation: Equation) -> str | None:
    """The name of a library's jitted function."""
    if not isinstance(equation.callee, Primitive) or equation.callee.name not in _JITS or equation.origin is None:
        return None
    closed = equation.origin.params["jaxpr"]
    return equation.origin.params["name"] if jax_compat.is_library_jaxpr(closed) else None


def _lift(m: Matcher, forward: Equation, backward: Equation, instead: dict[JaxprEqn, Any] | None) -> bool:
    if not m.free(forward) or not m.free(backward):
        return False
    inside = list(jax_compat.equations_in(_plain(backward.origin.params["jaxpr"])))
    steps = sum(eqn.primitive.name not in SHAPES for eqn in (*inside, *_for_residuals(forward, backward)))
    if steps < _LEAST and not any(has_batches(eqn) for eqn in inside):
        return False
    known = {*forward.inputs, *forward.outputs}
    # Cotangents come last; one may be what the function takes.
    given = [a for a in backward.inputs if a not in known] or list(backward.inputs[-1:])
    if given[0] in forward.outputs or not all(type(a) in (Value, Literal) for a in given):
        return False
    guesses = [g for f in (*FIRST, *IDIOMS.get(forward.callee.name, ()), *LAST) for g in f(m, forward)]
    names = (None, _name(forward))
    # Of two results one may be auxiliary.
    auxiliary = [[None, *given], [*given, None]] if len(given) == 1 and len(forward.outputs) > 2 else []
    for cotangents in [given, *auxiliary]:
        for guess in guesses:
            known_kind = guess.path.partition(".")[0] in _KINDS and facts(guess.path).call in names
            if known_kind and _try(m, guess, forward, backward, cotangents, instead):
                return True
    return False


def _for_residuals(forward: Equation, backward: Equation) -> list[Any]:
    """The equations of a forward part that its own results do not need, but for those of numbers alone: what these compute
    is known, and stands in the text as a number."""
    jaxpr, _ = jax_compat.open_jaxpr(_plain(forward.origin.params["jaxpr"]))
    results = [v for v, o in zip(jaxpr.outvars, forward.outputs, strict=True) if o is None or o not in backward.inputs]
    live = {v for v in results if type(v) is not jax_compat.LITERAL_TYPE}
    known = {v for v, a in zip(jaxpr.invars, forward.inputs, strict=True) if type(a) is Literal}
    for eqn in jaxpr.eqns:
        if eqn.invars and all(type(v) is jax_compat.LITERAL_TYPE or v in known for v in eqn.invars):
            known.update(eqn.outvars)
    found = []
    for eqn in reversed(jaxpr.eqns):
        if live.isdisjoint(eqn.outvars):
            found.extend([eqn] if known.isdisjoint(eqn.outvars) else [])
        else:
            live.update(v for v in eqn.invars if type(v) is not jax_compat.LITERAL_TYPE)
    return found


def _try(
    m: Matcher,
    guess: Guess,
    forward: Equation,
    backward: Equation,
    given: Sequence[Any],
    instead: dict[JaxprEqn, Any] | None,
) -> bool:
    """Whether `jax.vjp` of the guessed call is what the two do; if so, they are replaced. given: the cotangents, None for
    that of an auxiliary result."""
    call = call_to_try(guess, given)
    if call is None:
        return False
    for varied in combinations(range(call.operands), len(backward.outputs)):
        pattern = pattern_of(m.lifter.patterns, call.path, (varied, call.args, call.given), call.kwargs, call.inputs)
        whole = _of_two_calls(pattern) if pattern is not None else None
        if whole is None or not _is_private(m, forward, backward, len(given)):
            continue
        group = m.lay_over(whole, call.inputs, (forward, backward))
        if group is None and instead is not None and _does_the_same(m, whole, call.inputs, (forward, backward)):
            for eqn, part in zip(_calls(whole), (forward, backward), strict=True):
                instead[part.origin] = eqn.params["jaxpr"]
            group = [forward, backward]
        if group is not None and len(group) == 2:
            parts = ([forward], [backward])
            replace(m, call.callee(varied), call.inputs[: call.operands], given, parts, (forward, backward))
            return True
    return False


def _calls(pattern: Pattern) -> list[Any]:
    """The equations that make the pattern's results, each once."""
    made = [pattern.made_by[v][0] for v in pattern.outvars if v in pattern.made_by]
    return list({eqn: eqn for eqn in made}.values())


def replace(
    m: Matcher,
    callee: Library,
    inputs: list[Any],
    given: Sequence[Any],
    parts: Sequence[Sequence[Equation]],
    results: Sequence[Equation],
) -> None:
    """Puts `jax.vjp` and the call of what it gives back in the place of two groups of equations, in program order.

    callee: a Library callee without its body. given: the cotangents, None for that of an auxiliary
    result. results: the equation with the result of the first group, and those with the results of the second.
    """
    (forward, backward), (first, *lasts) = parts, results
    auxiliary = given.index(None) if None in given else None
    results_of_call = len(given)
    given = [a for a in given if a is not None]
    made = [with_all_outputs(e) for e in forward]
    saved = [a for a in _read(backward) if type(a) is Value and a not in given]
    name = callee.name.rpartition(".")[2].removesuffix("_general_dilated").removeprefix("reduce_")
    result = first.outputs[0]
    if results_of_call == 1 and result is not None and not result.named:
        result.hint = after_lift(result.hint, name, result.aval)
    pullback = Value(PullbackType(callee.name, [a.aval for a in saved]), f"{name}_vjp")
    count = len(first.outputs) if len(forward) > 1 else results_of_call
    whole: list[Any] = [*made[forward.index(first)].outputs[:count], pullback]
    outputs: list[Any] = [*first.outputs[:count], pullback]
    if auxiliary is not None:  # `result, pullback, other`
        whole, outputs = [[o[1 - auxiliary], pullback, o[auxiliary]] for o in (whole, outputs)]
        callee.auxiliary = auxiliary
    elif count > 1 and _gives_own_tuple(callee, inputs):
        callee.own_tuple = True
    callee.body = Function(callee.name, inputs, [*made, Equation(Pack(), saved, [pullback], {})], whole)
    m.replaced[first] = Equation(callee, inputs, outputs, {}, first.origin)
    inside = {a: Value(a.aval, a.hint) for a in saved}
    unpack = Equation(Unpack(), [pullback], list(inside.values()), {})
    pulled = [with_all_outputs(renamed(e, inside)) for e in backward]
    last = min(lasts, key=m.position)
    ours: list[Any] = [o for e in lasts for o in pulled[backward.index(e)].outputs]
    cotangents = [Value(a.aval) if type(a) is Literal else a for a in given]
    body = Function(PULLBACK, [pullback, *cotangents], [unpack, *pulled], ours)
    slots = tuple([Slot(i) for i in range(1 + len(given))])
    m.replaced[last] = Equation(
        Library(PULLBACK, slots, {}, body), [pullback, *given], [o for e in lasts for o in e.outputs], {}, last.origin
    )
    m.consumed.update([e for part in parts for e in part])


def _read(equations: Sequence[Equation]) -> list[Any]:
    """What equations read that none of them makes, each once."""
    own = {o for e in equations for o in e.outputs}
    return list(dict.fromkeys([a for e in equations for a in e.inputs if type(a) is not Literal and a not in own]))


def _gives_own_tuple(callee: Library, inputs: Sequence[Any]) -> bool:
    """Whether the function gives a tuple of a class of its own, as `jnp.linalg.qr` does: no pullback takes a plain one."""
    kinds: list[Any] = []

    def noted(*arrays: Any) -> None:
        function = resolve(callee.name.removeprefix("vjp."))
        assert function is not None  # which was called
        kinds.append(type(function(*fill(callee.args[1], arrays), **callee.kwargs)))

    jax.eval_shape(noted, *[jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in inputs])
    return kinds[0] is not tuple


def _of_two_calls(pattern: Pattern) -> Pattern | None:
    """The pattern with all the results of its two calls, residuals too; None where it has others."""
    eqns = _calls(pattern)
    if len(eqns) != 2 or pattern.size != 2 or any(eqn.primitive.name not in _JITS for eqn in eqns):
        return None
    outvars = [v for eqn in eqns for v in eqn.outvars]
    return Pattern(pattern.inputs, pattern.consts, pattern.made_by, outvars, pattern.size)


def _does_the_same(m: Matcher, pattern: Pattern, inputs: Sequence[Any], parts: Sequence[Equation]) -> bool:
    """Whether the two calls of the pattern are the parts, but for how their bodies are written."""
    known: dict[Any, Any] = {v: inputs[place] for v, place in pattern.inputs.items()}
    for eqn, part in zip(_calls(pattern), parts, strict=True):
        if len(eqn.invars) != len(part.inputs) or len(eqn.outvars) != len(part.outputs):
            return False
        for var, atom in zip(eqn.invars, part.inputs, strict=True):
            if type(var) is jax_compat.LITERAL_TYPE:
                if type(atom) is not Literal or not is_same_literal(var, atom):
                    return False
            elif known.get(var) is not atom:
                return False
        if not all(is_same_type(a.aval, b.aval) for a, b in zip(eqn.outvars, part.origin.outvars, strict=True)):
            return False
        known.update(zip(eqn.outvars, part.outputs, strict=True))
        ours, theirs = [_plain(e.params["jaxpr"]) for e in (part.origin, eqn)]
        # Rules of the library's functions in it were mapped as they were, and read as JAX writes them then.
        if not Comparer(rule_depth=MAX_DEPTH).same(ours, theirs):
            return False
    return True


def _plain(closed: Any) -> Any:
    """The simplest form of a call's body."""
    return _simplified(closed, jax_compat.trace_settings())


@lru_cache(128)  # calls of a library share their bodies, and are looked at in every attempt
def _simplified(closed: Any, settings: Any) -> Any:
    return simplified(closed)[0]


def _is_private(m: Matcher, forward: Equation, backward: Equation, results: int) -> bool:
    """Whether nothing but the backward part needs the residuals."""
    return not any(m.is_used_outside(o, [backward]) for o in forward.outputs[results:] if o is not None)
