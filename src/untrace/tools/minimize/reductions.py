"""Ways to make a program smaller. Each takes the search on as far as it can, and says whether it found something."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace.ir.types import Data
from untrace.tools.minimize.case import (
    Case,
    Change,
    Unfit,
    body_of,
    made_up,
    operands,
    part,
    results,
    run_body,
    traced_again,
    with_outputs,
)
from untrace.tools.minimize.runner import Ran, from_portable
from untrace.tools.minimize.search import Search, fewer

Reduction = Callable[[Search], bool]


def _adopts(search: Search, make: Callable[[], Case], larger: bool = False) -> bool:
    """Whether a candidate is the best from now on. larger: also where it has more equations, of which others can go then."""
    try:
        return search.adopts(make(), larger)
    except Unfit:
        return False


def results_left_out(search: Search) -> bool:
    """Fewer results, and no equation that only the others need."""
    base = search.best
    places = range(len(jax_compat.open_jaxpr(base.closed)[0].outvars))
    fewer(places, lambda kept: _adopts(search, lambda: with_outputs(base, kept)))
    return search.best is not base


def equations_left_out(search: Search) -> bool:
    """Fewer equations: what they read of others are arguments, with the values that they have in the whole program."""
    base, values = search.best, search.values()
    given = dict(zip(jax_compat.open_jaxpr(base.closed)[0].invars, base.args, strict=True))

    def known(equation: JaxprEqn) -> tuple[list[Data], list[Data]]:
        every = {**given, **values}
        return [every[v] for v in operands(equation) if v in every], [every[v] for v in results(equation) if v in every]

    def has_fault(kept: Sequence[JaxprEqn]) -> bool:
        return _adopts(search, lambda: part(base, kept, values))

    suspects = [e for e in base.equations if search.predicate.is_suspect(*known(e))]
    if any(has_fault([e]) for e in suspects[:8]):
        return True
    fewer(base.equations, has_fault)
    return search.best is not base


def calls_opened(search: Search) -> bool:
    """The body of a call, of a branch or of a loop's turn alone; or the body in the place of the call."""
    base = search.best
    jaxpr, _ = jax_compat.open_jaxpr(base.closed)
    if not any(jax_compat.jaxprs_in(e) for e in jaxpr.eqns):
        return False
    every = {**dict(zip(jaxpr.invars, base.args, strict=True)), **search.values()}
    for equation in jaxpr.eqns:
        inputs = [
            a.val if type(a) is jax_compat.LITERAL_TYPE else every.get(a, made_up(a.aval)) for a in equation.invars
        ]
        for body, args in [*_inside(equation, inputs), *_last_turn(search, equation, inputs)]:
            if len(args) == len(jax_compat.open_jaxpr(body)[0].invars):
                if _adopts(search, lambda body=body, args=args: Case(body, tuple(args), base.name)):
                    return True
        for change in _in_place(equation):
            if _adopts(search, lambda change=change: traced_again(base, change), larger=True):
                return True
    return False


def _inside(equation: JaxprEqn, inputs: Sequence[Data]) -> Iterator[tuple[Data, Sequence[Data]]]:
    """Bodies of an equation that are programs by themselves, with arguments."""
    body, name = body_of(equation), equation.primitive.name
    if body is not None:
        yield body, inputs
    elif name == "cond":
        yield from ((branch, inputs[1:]) for branch in equation.params["branches"])
    elif name == "while":
        ours, theirs = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        yield equation.params["body_jaxpr"], inputs[ours:]
        yield equation.params["cond_jaxpr"], [*inputs[:ours], *inputs[ours + theirs :]]
    elif name == "scan" and equation.params["length"]:
        whole = sum(jax_compat.scan_counts(equation))
        for turn in dict.fromkeys((0, equation.params["length"] - 1)):
            yield equation.params["jaxpr"], [*inputs[:whole], *[np.asarray(x)[turn] for x in inputs[whole:]]]


def _last_turn(search: Search, equation: JaxprEqn, inputs: Sequence[Data]) -> Iterator[tuple[Data, Sequence[Data]]]:
    """The body of a loop with what its last turn takes, as the turns before it have left it."""
    if equation.primitive.name != "scan" or equation.params["length"] < 2:
        return
    consts, carries = jax_compat.scan_counts(equation)
    last = 0 if equation.params["reverse"] else equation.params["length"] - 1
    others = equation.replace(params={**equation.params, "length": equation.params["length"] - 1})
    rest = slice(1, None) if equation.params["reverse"] else slice(-1)
    given = [*inputs[: consts + carries], *[x[rest] for x in inputs[consts + carries :]]]
    try:
        before = jax.make_jaxpr(lambda *xs: jax_compat.bind_equation(others, xs)[:carries])(*given)
        outcome = search.runner.run(Case(before, tuple(given)), "eager")
    except Exception:  # what cannot be run by itself has no last turn by itself
        return
    if isinstance(outcome, Ran):
        carry = map(from_portable, outcome.outputs)
        yield equation.params["jaxpr"], [*inputs[:consts], *carry, *[x[last] for x in inputs[consts + carries :]]]


def _in_place(equation: JaxprEqn) -> Iterator[Change]:
    """What can stand for an equation in its program: the body of a call, a branch, the first turns of a `while`."""
    bodies = [body_of(equation)] if body_of(equation) is not None else []
    offset = 0
    if equation.primitive.name == "cond":
        bodies, offset = list(equation.params["branches"]), 1
    for body in bodies:
        yield lambda e, inputs, body=body: run_body(body, inputs[offset:]) if e is equation else None
    if equation.primitive.name == "while":
        for turns in (1, 2, 4, 8, 16, 64, 256, 1024):
            yield lambda e, inputs, turns=turns: _first_turns(e, inputs, turns) if e is equation else None


def _first_turns(equation: JaxprEqn, inputs: Sequence[Data], turns: int) -> Sequence[Data]:
    """What a `while` has after so many turns, whatever its condition says."""
    ours, whole = equation.params["cond_nconsts"], equation.params["cond_nconsts"] + equation.params["body_nconsts"]

    def turn(carry: tuple[Data, ...], _: None) -> tuple[tuple[Data, ...], None]:
        return tuple(run_body(equation.params["body_jaxpr"], [*inputs[ours:whole], *carry])), None

    return jax.lax.scan(turn, tuple(inputs[whole:]), length=turns)[0]


def loops_shortened(search: Search) -> bool:
    """Fewer turns of loops that count them."""
    base = search.best
    for equation in _scans(base):
        length = equation.params["length"]
        for fewer_turns in sorted({1, 2, length // 2, length - 1} - {0, length}):
            if fewer_turns < length:

                def change(
                    e: JaxprEqn, inputs: Sequence[Data], loop: JaxprEqn = equation, n: int = fewer_turns
                ) -> Sequence[Data] | None:
                    return _shortened(e, inputs, n) if e is loop else None

                if _adopts(search, lambda change=change: traced_again(base, change), larger=True):
                    return True
    return False


def _scans(case: Case) -> list[JaxprEqn]:
    return [e for e in jax_compat.equations_in(case.closed) if e.primitive.name == "scan" and e.params["length"] > 1]


def _shortened(equation: JaxprEqn, inputs: Sequence[Data], length: int) -> Sequence[Data]:
    whole = sum(jax_compat.scan_counts(equation))
    changed = equation.replace(params={**equation.params, "length": length})
    return jax_compat.bind_equation(changed, [*inputs[:whole], *[x[:length] for x in inputs[whole:]]])


def bodies_emptied(search: Search) -> bool:
    """Fewer equations in the bodies of loops and calls: in the place of their results there are zeros, or arguments of the type."""
    base = search.best
    outer = set(base.equations)
    inner = [e for e in jax_compat.equations_in(base.closed) if e not in outer]
    if not inner:
        return False

    def has_fault(kept: Sequence[JaxprEqn]) -> bool:
        gone = set(inner) - set(kept)

        def change(equation: JaxprEqn, inputs: Sequence[Data]) -> Sequence[Data] | None:
            return [_instead(v.aval, inputs) for v in equation.outvars] if equation in gone else None

        return _adopts(search, lambda: traced_again(base, change))

    if not has_fault([]):
        fewer(inner, has_fault)
    return search.best is not base


def _instead(aval: Data, inputs: Sequence[Data]) -> Data:
    same = [x for x in inputs if getattr(x, "shape", None) == aval.shape and getattr(x, "dtype", None) == aval.dtype]
    return (
        same[0]
        if same
        else jnp.asarray(made_up(aval))
        if jax_compat.is_key_dtype(aval.dtype)
        else jnp.zeros(aval.shape, aval.dtype)
    )


def sizes_lowered(search: Search) -> bool:
    """Smaller arrays: of all axes of one size that size is another."""
    base = search.best
    sizes = sorted({n for a in base.args for n in np.shape(a) if n > 1}, reverse=True)
    return any(
        _adopts(search, lambda size=size, less=less, end=end: _resized(base, size, less, end))
        for size in sizes[:8]
        for less in sorted({1, 2, 3, size // 2} - {0})
        if less < size
        for end in (False, True)
    )


def _resized(base: Case, size: int, less: int, end: bool) -> Case:
    """The program with the first or the last `less` elements of each axis of a size."""
    kept = slice(size - less, None) if end else slice(less)

    def number(value: object) -> object:
        if type(value) is tuple:
            return tuple([number(v) for v in value])
        return less if type(value) is int and value == size else value

    def cut(x: Data) -> Data:
        shape = np.shape(x)
        return x if size not in shape else x[tuple([kept if n == size else slice(None) for n in shape])]

    return _of_other_parameters(base, number, cut)


def types_narrowed(search: Search) -> bool:
    """Arrays of 32 bits in the place of those of 64."""
    base = search.best
    kinds = {
        np.dtype("float64"): np.dtype("float32"),
        np.dtype("int64"): np.dtype("int32"),
        np.dtype("complex128"): np.dtype("complex64"),
    }

    def narrowed(value: object) -> object:
        return kinds.get(value, value) if isinstance(value, np.dtype) else value

    def cast(x: Data) -> Data:
        kind = getattr(x, "dtype", None)
        with np.errstate(all="ignore"):
            return x.astype(kinds[kind]) if kind in kinds else x

    if not any(getattr(v.aval, "dtype", None) in kinds for e in base.equations for v in e.outvars):
        return False
    return _adopts(search, lambda: _of_other_parameters(base, narrowed, cast), larger=True)


def _of_other_parameters(base: Case, other: Callable[[object], object], changed: Callable[[Data], Data]) -> Case:
    """The program on `changed` arguments and constants, each parameter of its equations being `other` of what it is. Calls
    are opened. Raises Unfit."""

    def change(equation: JaxprEqn, inputs: Sequence[Data]) -> Sequence[Data]:
        inputs = [changed(x) for x in inputs]
        body = body_of(equation)
        if body is not None:
            return run_body(body, inputs, change)
        params = {k: other(v) for k, v in equation.params.items()}
        if jax_compat.jaxprs_in(equation):
            types = [jax.typeof(jnp.asarray(x)) for x in inputs]
            params |= _bodies_of(equation, types, lambda body: lambda *xs: run_body(body, xs, change))
        return jax_compat.bind_equation(equation.replace(params=params), inputs)

    _, consts = jax_compat.open_jaxpr(base.closed)
    return traced_again(base, change, [changed(a) for a in base.args], [changed(c) for c in consts])


def _bodies_of(
    equation: JaxprEqn, types: Sequence[Data], run: Callable[[Data], Callable[..., Sequence[Data]]]
) -> dict[str, object]:
    """The parameters of a loop or a choice that are bodies, traced again for operands of these types. Raises Unfit for others."""
    params = equation.params
    if equation.primitive.name == "scan":
        whole = sum(jax_compat.scan_counts(equation))
        rows = [jax.ShapeDtypeStruct(t.shape[1:], t.dtype) for t in types[whole:]]
        return {"jaxpr": jax.make_jaxpr(run(params["jaxpr"]))(*types[:whole], *rows)}
    if equation.primitive.name == "cond":
        return {"branches": tuple([jax.make_jaxpr(run(b))(*types[1:]) for b in params["branches"]])}
    if equation.primitive.name == "while":
        ours, whole = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        return {
            "cond_jaxpr": jax.make_jaxpr(run(params["cond_jaxpr"]))(*types[:ours], *types[whole:]),
            "body_jaxpr": jax.make_jaxpr(run(params["body_jaxpr"]))(*types[ours:]),
        }
    raise Unfit


def values_simplified(search: Search) -> bool:
    """Arguments and constants of simpler numbers: zeros, ones, one number everywhere, few digits."""
    start = search.best
    for place in range(len(start.args)):
        args = search.best.args
        for value in _simpler(args[place]):
            other = Case(search.best.closed, (*args[:place], value, *args[place + 1 :]), start.name)
            if search.adopts(other, larger=True):
                break
    _, consts = jax_compat.open_jaxpr(search.best.closed)
    for place in range(len(consts)):
        _, now = jax_compat.open_jaxpr(search.best.closed)
        for value in _simpler(now[place]):
            closed = jax_compat.with_constants(search.best.closed, [*now[:place], value, *now[place + 1 :]])
            if search.adopts(Case(closed, search.best.args, start.name), larger=True):
                break
    return False  # nothing else becomes possible by it


def _simpler(value: Data) -> Iterator[Data]:
    """Simpler values of the type, the simplest first; none where there is nothing to gain."""
    if jax_compat.is_key(value) or isinstance(value, (bool, int, float, complex)):
        return
    array = np.asarray(value)
    if array.size == 0 or array.dtype.kind == "V" and array.dtype.names:
        return
    for other in (np.zeros_like(array), np.ones_like(array), np.full_like(array, array.flat[0])):
        if (other == array).all():
            return
        yield other
    if array.dtype.kind == "f" and np.isfinite(array).all():
        for digits in (1, 2, 3):
            with np.errstate(all="ignore"):
                scale = 10.0 ** (
                    digits - 1 - np.floor(np.log10(np.where(array == 0, 1, np.abs(array.astype(np.float64)))))
                )
                rounded = (np.round(array * scale) / scale).astype(array.dtype)
            if np.isfinite(rounded).all() and (rounded != array).any():
                yield rounded


REDUCTIONS: tuple[Reduction, ...] = (
    results_left_out, equations_left_out, calls_opened, loops_shortened, bodies_emptied, sizes_lowered, types_narrowed,
)  # fmt: skip
"""In the order in which they are tried; after one that found something all begin anew."""
