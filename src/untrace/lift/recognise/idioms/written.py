"""The library function that the author's line calls, as provenance tells it.

All equations that one call left behind share the place in the user's code and the function entered there. Their outer
inputs are its arguments; what else was written there as a literal (`axis=-1`) is taken over, and the rest is guessed from
the function's signature. What stands in the source is only a guess here, too: the trace of the call decides.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from untrace import jax_compat
from untrace.ir.nodes import Constant, Equation, Value
from untrace.lift.recognise import library, signatures
from untrace.lift.recognise.engine import FIRST, LAST, Guess, Matcher
from untrace.provenance.sites import Site

# A call that leaves more equations than this is a whole algorithm, which the first guess finds or none.
_MOST_EQUATIONS = 100
_MOST_INPUTS = 4
_MOST_PARTS = 3  # of what a call gives, one of which is all that is read
# Products of which one equation says less than the call: that is the same for arrays of any rank.
_PRODUCTS = frozenset("einsum vdot inner tensordot".split())
# Functions for which there is an operator.
_OPERATORS = {
    "jnp.add": "operator.add", "jnp.subtract": "operator.sub", "jnp.multiply": "operator.mul",
    "jnp.divide": "operator.truediv", "jnp.true_divide": "operator.truediv", "jnp.matmul": "operator.matmul",
    "jnp.negative": "operator.neg",
}  # fmt: skip


def call_of(m: Matcher, equation: Equation) -> tuple[str, Site] | None:
    """(path, site) of the library function that made the equation; None for operators and methods, and for what stood inside
    a call: that is what the library function left."""
    if equation.origin is None or _stood_inside(equation.origin):
        return None
    site = m.site(equation)
    entered = site.library
    if entered is None or site.phase == "backward" or "." not in entered[0] and entered[0] != "jax":
        return None
    return library.public(*entered), site


def _stood_inside(eqn: Any) -> bool:
    """Whether an equation has come in the place of a call whose body it was in."""
    return jax_compat.inner_traceback(eqn) is not jax_compat.equation_source(eqn)[0]


def _groups(m: Matcher, equation: Equation, site: Site) -> Iterator[list[Equation]]:
    """The equations that the same call may have left before `equation`, in order; `equation` is the last."""
    here = m.position(equation)
    group = [equation]
    for place in range(here - 1, max(here - _MOST_EQUATIONS, -1), -1):
        if not _is_of(m, place, site):
            break
        group.append(m.equations[place])
    group.reverse()
    if sum(e.origin.primitive is equation.origin.primitive for e in group) == 1:
        yield group
        return
    # A loop of the author's makes the same call again and again: only its last round.
    starts = [i for i, e in enumerate(group) if e.origin.primitive is group[0].origin.primitive]
    if len(starts) > 1:
        yield group[starts[-1] :]
    yield group


def _is_of(m: Matcher, place: int, site: Site) -> bool:
    """Whether the equation at a place of the function was left by the call at `site`."""
    other = m.site_at(place)
    return other is site or (
        other is not None
        and other.frames == site.frames
        and other.library == site.library
        and _passes(other) == _passes(site)
    )


def _passes(site: Site) -> list[str]:
    """The derivatives that a place is in. What a function maps or names inside is its own."""
    return [s for s in site.scopes if s in ("jvp()", "transpose()")]


def _several(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """The call that left several equations; tried at the last of them, before the idioms of its primitive."""
    if equation.origin is None:
        return
    site = m.site(equation)
    if site.library is None:
        return
    place = m.position(equation)
    if site.library[1] not in _PRODUCTS and not _is_of(m, place - 1, site):  # most equations
        return
    # What is lifted already was another round of the author's loop.
    if _is_of(m, place + 1, site) and m.equations[place + 1] not in m.consumed:
        return
    call = call_of(m, equation)
    if call is None:
        return
    path, site = call
    for group in _groups(m, equation, site):
        if len(group) > (2 if m.lifter.large else 1) or path.removeprefix("jnp.") in _PRODUCTS:
            yield from _guesses(m, path, site, group)


def _single(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """The call that left this one equation; tried where no idiom of its primitive fits."""
    jitted = equation.callee.name in ("jit", "pjit")
    call = call_of(m, equation) if jitted or not m.lifter.large else None
    if call is None or jitted and not given_arguments(*call):
        return  # a jitted function was tried by its name
    yield from _guesses(m, *call, [equation])


def _around(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """The call that left one call of a function with another name: `jnp.fft.fftshift`, which rolls."""
    if equation.callee.name not in ("jit", "pjit"):
        return
    call = call_of(m, equation)
    if call is not None and call[0] not in library.named(str(equation.origin.params.get("name") or "")):
        yield from _guesses(m, *call, [equation])


FIRST += [_several, _around]
LAST.append(_single)


def _guesses(m: Matcher, path: str, site: Site, group: Sequence[Equation]) -> Iterator[Guess]:
    inside = {o for e in group for o in e.outputs}
    inputs: dict[Any, None] = {}
    constants: dict[Any, None] = {}
    for equation in group:
        for atom in equation.inputs:
            if type(atom) is Value and atom not in inside:
                inputs[atom] = None
            elif type(atom) is Constant:
                constants[atom] = None
    if len(inputs) > _MOST_INPUTS:
        return
    anchors = [e for e in group if any(o is not None and m.is_used_outside(o, group) for o in e.outputs)]
    if not anchors or anchors[-1] is not group[-1]:
        return
    facts = signatures.Facts(
        [e.origin for e in group], [a.aval for a in inputs], [v.aval for e in anchors for v in e.origin.outvars]
    )
    by_library = bool(site.frames) and site.frames[-1].library  # a jitted function of JAX has no frames of a caller
    if path in _OPERATORS and by_library:  # a reader writes `x + b`, whatever a library calls
        for order in itertools.permutations(inputs):
            yield Guess(_OPERATORS[path], order)
    given = given_arguments(path, site)
    if path == "jnp.einsum" and by_library and len(inputs) == 2 and not constants:
        for order in itertools.permutations(inputs):
            if len(order[0].aval.shape) > 1 and len(order[1].aval.shape) == 2:
                yield Guess("operator.matmul", order)
    spec = given.pop("subscripts", None) or _scope_of_einsum(path, site)  # the author's own letters
    if spec is not None:
        # It transposes what comes of a product, and no operand.
        if len(inputs) + len(constants) == 2 and any(e.callee.name == "transpose" for e in group[:-1]):
            return
        for order in itertools.permutations([*inputs, *constants]):
            yield Guess(path, (spec, *order), given)
            yield Guess(
                path,
                (spec, *order),
                {**given, **{"precision": p.name.lower() for p in facts.params("precision")}},  # noqa: B035
            )
        return
    is_part = len(anchors) == len(group[-1].outputs) == 1 and library.facts(path).parts
    parts = [f"item.{place}." for place in range(_MOST_PARTS if is_part else 0)]
    whole = list(itertools.permutations(anchors)) if 1 < len(anchors) < 4 else [tuple(anchors)]
    orders = [[*inputs, *constants]] if len(inputs) + len(constants) <= _MOST_INPUTS else []
    if constants:  # they may be the function's own
        orders.append([*inputs])
    if len(inputs) == 1 and not constants and len(group[-1].inputs) == 2:  # `jnp.vdot(x, x)`
        orders.append([*inputs, *inputs])
    for operands in orders:
        # What the author wrote there is right more often than the first order is.
        for known in [given, {}] if given else [{}]:
            for order in itertools.islice(itertools.permutations(operands), 6):
                found = signatures.guesses(path, order, facts, known)
                for guess in found if list(order) == operands else itertools.islice(found, 6):
                    made = guess if operands else _by_place(guess, site)
                    for part in parts:
                        yield Guess(part + made.path, made.args, made.kwargs)
                    for several in whole:
                        yield Guess(made.path, made.args, made.kwargs, several if len(several) > 1 else ())


def _by_place(guess: Guess, site: Site) -> Guess:
    """A call that makes an array of numbers with those arguments by place that the author gives so: `jnp.arange(1, 5)`."""
    node = site.frames[-1].node if site.frames else None
    count = len(node.args) if isinstance(node, ast.Call) else 0
    args, kwargs = list(guess.args), dict(guess.kwargs)
    for parameter in (signatures.parameters(guess.path) or ())[len(args) : count]:
        if parameter.name not in kwargs:
            break
        args.append(kwargs.pop(parameter.name))
    return Guess(guess.path, tuple(args), kwargs)


_SUBSCRIPTS = re.compile(r"[A-Za-z.,]+(->[A-Za-z.]*)?")


def _scope_of_einsum(path: str, site: Site) -> str | None:
    """The subscripts of an einsum, which JAX makes the name of a scope around what it does."""
    if path != "jnp.einsum" or not site.scopes or not _SUBSCRIPTS.fullmatch(site.scopes[-1]):
        return None
    return site.scopes[-1]


def given_arguments(path: str, site: Site) -> dict[str, Any]:
    """The literal arguments of the call that stands at the innermost frame, by the names of their parameters."""
    node = site.frames[-1].node if site.frames else None
    if not isinstance(node, ast.Call):
        return {}
    found: dict[str, Any] = {}
    parameters = signatures.parameters(path) or ()
    for parameter, argument in zip(parameters, node.args, strict=False):
        if parameter.kind is parameter.VAR_POSITIONAL or isinstance(argument, ast.Starred):
            break
        found.update(_literal(parameter.name, argument))
    for keyword in node.keywords:
        if keyword.arg is not None:
            found.update(_literal(keyword.arg, keyword.value))
    return found


def _literal(name: str, node: ast.AST) -> dict[str, Any]:
    try:
        value = ast.literal_eval(node)
        hash(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return {}
    return {} if isinstance(value, (bytes, str)) and len(str(value)) > 40 else {name: value}
