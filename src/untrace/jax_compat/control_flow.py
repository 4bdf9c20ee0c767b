"""Loops, choices and solves: what their functions close over, and how their operands are counted."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from untrace.jax_compat.jaxprs import LITERAL_TYPE, new_variables, open_jaxpr
from untrace.jax_compat.rebuilding import constants_as_inputs, rebuilt_jaxpr, substituted


def leaf_counts(value: Any) -> tuple[int, ...] | None:
    """Leaves in each part of one of 0.12's FlatTrees (`ft_in`, `ft_out` of scan), else None."""
    if type(value).__module__ != "jax._src.flattree":
        return None
    try:
        return tuple(len(part) for part in value.unpack())
    except (AssertionError, AttributeError, TypeError):  # a tree with one part
        return (len(value),)


def scan_counts(eqn: Any) -> tuple[int, int]:
    """(constants, carries) of a scan equation. 0.12 keeps them as a tree of (constants, carry, xs)."""
    params = eqn.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def inner_places(eqn: Any) -> list[tuple[str, int | None, range]]:
    """(parameter, place in it where it is a tuple, which operands) of the jaxprs of a loop, a choice or a jitted function.

    Raises ValueError for other equations.
    """
    name, params, count = eqn.primitive.name, eqn.params, len(eqn.invars)
    if name in ("scan", "jit", "pjit", "closed_call", "checkpoint", "remat2"):
        return [("jaxpr", None, range(count))]
    if name == "cond":
        return [("branches", i, range(1, count)) for i in range(len(params["branches"]))]
    if name == "while":
        first, both = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        return [("cond_jaxpr", None, range(first)), ("body_jaxpr", None, range(first, both))]
    if name == "custom_linear_solve":
        ends = list(itertools.accumulate(params["const_lengths"]))
        places = [range(end - length, end) for end, length in zip(ends, params["const_lengths"], strict=True)]
        return [("jaxprs", i, place) for i, place in enumerate(places) if params["jaxprs"][i] is not None]
    raise ValueError(f"what {name} closes over is not known")


def inner_jaxpr(params: Mapping[str, Any], key: str, number: int | None) -> Any:
    """One of `inner_places`."""
    return params[key] if number is None else params[key][number]


def put_inner_jaxpr(params: dict[str, Any], key: str, number: int | None, jaxpr: Any) -> None:
    several = params[key]
    if number is None:
        params[key] = jaxpr
        return
    items = [*several[:number], jaxpr, *several[number + 1 :]]
    params[key] = several._make(items) if hasattr(several, "_make") else tuple(items)


def with_operands_spread(eqn: Any, params: dict[str, Any], several: Mapping[int, int]) -> dict[str, Any]:
    """The parameters of an equation where each of some operands becomes several (or none), by place.

    Raises ValueError where such an operand is carried through a loop.
    """
    name, count = eqn.primitive.name, len(eqn.invars)
    more = lambda places: sum(several.get(i, 1) for i in places)  # noqa: E731
    if name == "scan":
        consts, carry = scan_counts(eqn)
        if any(i >= consts for i in several):
            raise ValueError("a pullback is carried through a loop")
        xs, ys = count - consts - carry, len(eqn.outvars) - carry
        return recounted_scan(params, more(range(consts)), carry, xs, ys)
    if name == "while":
        first, both = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        if any(i >= both for i in several):
            raise ValueError("a pullback is carried through a loop")
        return {**params, "cond_nconsts": more(range(first)), "body_nconsts": more(range(first, both))}
    if name == "custom_linear_solve":
        lengths, places = params["const_lengths"], [place for _, _, place in inner_places(eqn)]
        counts = [more(next((p for p in places if p.stop == end), ())) for end in itertools.accumulate(lengths)]
        return {**params, "const_lengths": lengths._make(counts)}
    for key, value in params.items():
        if key in ("in_shardings", "in_layouts", "donated_invars"):
            params[key] = tuple([v for i, v in enumerate(value) for _ in range(several.get(i, 1))])
    return params


def with_numbers_inside(eqn: Any) -> Any:
    """A loop whose functions have the numbers themselves that they are handed as constants; the very same where there are none."""
    if eqn.primitive.name == "scan":
        last = scan_counts(eqn)[0]
    elif eqn.primitive.name == "while":
        last = eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
    else:
        return eqn
    numbers = {i: v for i, v in enumerate(eqn.invars[:last]) if type(v) is LITERAL_TYPE}
    if not numbers:
        return eqn
    params = dict(eqn.params)
    for key, number, place in inner_places(eqn):
        closed = inner_jaxpr(params, key, number)
        jaxpr, _ = open_jaxpr(closed)
        known = {v: numbers[i] for i, v in zip(place, jaxpr.invars, strict=False) if i in numbers}
        eqns = [e.replace(invars=substituted(e.invars, known)) for e in jaxpr.eqns]
        kept = [v for v in jaxpr.invars if v not in known]
        new = rebuilt_jaxpr(closed, eqns, substituted(jaxpr.outvars, known), invars=kept)
        put_inner_jaxpr(params, key, number, new)
    params = with_operands_spread(eqn, params, dict.fromkeys(numbers, 0))
    return eqn.replace(invars=[v for i, v in enumerate(eqn.invars) if i not in numbers], params=params)


def handed_constants(eqn: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """(a loop that is handed the arrays of its functions, as JAX does; a new variable for each, and its value)."""
    if eqn.primitive.name == "scan":
        inner, values = constants_as_inputs(eqn.params["jaxpr"])
        variables = new_variables(open_jaxpr(inner)[0].invars[: len(values)])
        count, carry = scan_counts(eqn)
        rest = len(eqn.invars) - count - carry, len(eqn.outvars) - carry
        params = recounted_scan({**eqn.params, "jaxpr": inner}, count + len(values), carry, *rest)
        known = list(zip(variables, values, strict=True))
        return (eqn.replace(invars=[*variables, *eqn.invars], params=params) if values else eqn), known
    if eqn.primitive.name != "while":
        return eqn, []
    params, invars, place = dict(eqn.params), list(eqn.invars), 0
    found: list[tuple[Any, Any]] = []
    for key, number in (("cond_jaxpr", "cond_nconsts"), ("body_jaxpr", "body_nconsts")):
        params[key], values = constants_as_inputs(params[key])
        variables = new_variables(open_jaxpr(params[key])[0].invars[: len(values)])
        invars[place:place] = variables
        params[number] += len(values)
        place += params[number]
        found += zip(variables, values, strict=True)
    return (eqn.replace(invars=invars, params=params) if found else eqn), found


def closed_as_used(eqn: Any) -> Any:
    """A loop that closes over what its functions need, each value once, in the order in which they need it: as JAX does."""
    if eqn.primitive.name == "scan":
        count, carry = scan_counts(eqn)
        places, jaxpr = _closed_as_used(eqn.params["jaxpr"], eqn.invars[:count])
        rest = eqn.invars[count:]
        params = {**eqn.params, "jaxpr": jaxpr}
        params = recounted_scan(params, len(places), carry, len(rest) - carry, len(eqn.outvars) - carry)
        return eqn.replace(invars=[*(eqn.invars[i] for i in places), *rest], params=params)
    if eqn.primitive.name == "custom_linear_solve":
        params, counts, kept = dict(eqn.params), list(eqn.params["const_lengths"]), []
        for _, number, place in inner_places(eqn):
            assert number is not None  # they are several
            own = range(place.start, place.start + counts[number])
            order, jaxpr = _closed_as_used(params["jaxprs"][number], [eqn.invars[i] for i in own])
            put_inner_jaxpr(params, "jaxprs", number, jaxpr)
            counts[number] = len(order)
            kept += [own[i] for i in order]
        params["const_lengths"] = eqn.params["const_lengths"]._make(counts)
        rest = eqn.invars[sum(eqn.params["const_lengths"]) :]
        return eqn.replace(invars=[*(eqn.invars[i] for i in kept), *rest], params=params)
    if eqn.primitive.name != "while":
        return eqn
    params, first = eqn.params, eqn.params["cond_nconsts"]
    both = first + params["body_nconsts"]
    of_condition, condition = _closed_as_used(params["cond_jaxpr"], eqn.invars[:first])
    of_body, body = _closed_as_used(params["body_jaxpr"], eqn.invars[first:both])
    changed = {
        "cond_jaxpr": condition,
        "body_jaxpr": body,
        "cond_nconsts": len(of_condition),
        "body_nconsts": len(of_body),
    }
    invars = [*(eqn.invars[i] for i in of_condition), *(eqn.invars[first + i] for i in of_body), *eqn.invars[both:]]
    return eqn.replace(invars=invars, params={**params, **changed})


def _closed_as_used(closed: Any, operands: Sequence[Any]) -> tuple[list[int], Any]:
    """(which of the first operands a function needs, the function of those)."""
    jaxpr, _ = open_jaxpr(closed)
    count = len(operands)
    first: dict[Any, int] = {}
    keys = [id(v) if type(v) is LITERAL_TYPE else v for v in operands]
    same = {jaxpr.invars[i]: jaxpr.invars[first.setdefault(key, i)] for i, key in enumerate(keys)}
    own = {v: i for i, v in enumerate(jaxpr.invars[:count])}
    eqns = [e.replace(invars=substituted(e.invars, same)) for e in jaxpr.eqns]
    outvars = substituted(jaxpr.outvars, same)
    read = [v for e in eqns for v in e.invars if type(v) is not LITERAL_TYPE]
    read += [v for v in outvars if type(v) is not LITERAL_TYPE]
    order = list(dict.fromkeys([own[v] for v in read if v in own]))
    if order == list(range(count)):
        return order, closed
    invars = [*(jaxpr.invars[i] for i in order), *jaxpr.invars[count:]]
    return order, rebuilt_jaxpr(closed, eqns, outvars, invars=invars)


def recounted_scan(params: Mapping[str, Any], consts: int, carry: int, xs: int, ys: int) -> dict[str, Any]:
    """The parameters of a scan that has so many constants, carries, inputs and outputs, as `jax.lax.scan` counts them."""
    if "num_consts" in params:
        return {**params, "num_consts": consts, "num_carry": carry}

    def template(consts: Any, init: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            return [v + sum(consts) for v in c], [sum(c + x + consts, 0.5)] * ys

        return jax.lax.scan(step, init, xs, length=1)

    traced = jax.make_jaxpr(template)([1.0] * consts, [1.0] * carry, [jax.numpy.ones(1)] * xs)
    trees = {k: v for k, v in open_jaxpr(traced)[0].eqns[-1].params.items() if k.startswith("ft_")}
    return {**params, **trees}
