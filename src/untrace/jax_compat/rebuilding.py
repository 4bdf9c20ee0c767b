"""Jaxprs and equations with other parts (equations, results, constants, names), or without what nothing reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from untrace.jax_compat.inner_jaxprs import equations_in
from untrace.jax_compat.jaxprs import (
    DROP_TYPE,
    JAXPR_TYPES,
    LITERAL_TYPE,
    close_jaxpr,
    fresh_variable,
    new_variables,
    open_jaxpr,
    plain_effects,
)
from untrace.jax_compat.values import FLOAT0, is_continuous, is_key, is_ref, is_ref_aval, is_shaped_array, is_tracer


def without_float0(closed: Any) -> Any:
    """A jaxpr without equations that only give float0, which no public function can compute with.

    Batching leaves them in a rule (a broadcast cotangent of an integer), and so does a `jvp` inside of it; nothing reads
    their results but each other.
    """
    jaxpr, _ = open_jaxpr(closed)
    needed = {v for v in jaxpr.outvars if type(v) is not LITERAL_TYPE}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        idle = eqn.outvars and all(getattr(v.aval, "dtype", None) == FLOAT0 for v in eqn.outvars)
        if not idle or eqn.effects or any(v in needed for v in eqn.outvars):
            needed.update(v for v in eqn.invars if type(v) is not LITERAL_TYPE)
            kept.append(eqn)
    if len(kept) == len(jaxpr.eqns):
        return closed
    return rebuilt_jaxpr(closed, kept[::-1], jaxpr.outvars)


def substituted(atoms: Sequence[Any], substitute: dict[Any, Any]) -> list[Any]:
    """`atoms` with variables replaced; literals (which do not hash) are left as they are."""
    return [a if type(a) is LITERAL_TYPE else substitute.get(a, a) for a in atoms]


def rebuilt_jaxpr(
    closed: Any,
    eqns: Sequence[Any],
    outvars: Sequence[Any],
    constvars: Sequence[Any] = (),
    consts: Sequence[Any] = (),
    invars: Sequence[Any] | None = None,
    kept: Sequence[int] | None = None,
) -> Any:
    """A closed or open jaxpr with other equations and results, and more constants behind those that it has.

    invars: other inputs, whose names are forgotten where there are more or fewer. kept: which of its results it still has.
    """
    jaxpr, old_consts = open_jaxpr(closed)
    changes: dict[str, Any] = {
        "eqns": list(eqns),
        "outvars": list(outvars),
        "effects": frozenset(jaxpr.effects).union(*[plain_effects(e.effects) for e in eqns]),
        "debug_info": jaxpr.debug_info,
    }
    if invars is not None:
        changes["invars"] = list(invars)
        if len(invars) != len(jaxpr.invars):
            changes["debug_info"] = jaxpr.debug_info.with_unknown_names()
    paths = getattr(changes["debug_info"], "result_paths", None)
    if kept is not None and type(paths) is tuple and len(paths) == len(jaxpr.outvars):
        changes["debug_info"] = changes["debug_info"]._replace(result_paths=tuple([paths[i] for i in kept]))
    if constvars:
        changes["constvars"] = [*jaxpr.constvars, *constvars]
    if JAXPR_TYPES[0] is JAXPR_TYPES[1]:  # 0.12: constants are part of the one class
        if constvars:
            changes["consts"] = [*old_consts, *consts]
        return jaxpr.replace(**changes)
    new = jaxpr.replace(**changes)
    return new if closed is jaxpr else jex_core.ClosedJaxpr(new, [*old_consts, *consts])


def as_bound(closed: Any, converts: bool = False) -> Any:
    """A jaxpr in which what `jax.jit(inline=True)` has left, as most functions of `jax.numpy` are, is one call again.

    JAX 0.12 differentiates such a call by itself while a Python function is traced, and so adds up cotangents in another order
    than where its equations stand alone. On 0.10 that makes no difference. Numbers that such functions are given (`0.5 * x`)
    are converted in both, which makes residuals of them: a loop around the pullback is handed those. converts: whether those
    of all other functions are, too, so that whatever a derivative rule computes with them is traced.
    Source: `_pjit_linearize` and `pjit_staging_rule`, jax/_src/pjit.py.
    """
    inline = getattr(getattr(jax, "Inline", None) or _inline_options(), "JAX_EARLY", None)
    closed = _with_numbers_converted(closed, converts)
    if inline is None:
        return closed
    jaxpr, _ = open_jaxpr(closed)
    groups = _calls(jaxpr)
    inlined = [not any(e.effects for e in group) and _is_inlined(group[0]) for group in groups]
    if not any(inlined):
        return closed
    readers: dict[Any, int] = {}
    for place, group in enumerate(groups):
        readers.update((v, place) for e in group for v in e.invars if type(v) is not LITERAL_TYPE)
    readers.update((v, len(groups)) for v in jaxpr.outvars if type(v) is not LITERAL_TYPE)
    eqns = []
    for place, (group, is_call) in enumerate(zip(groups, inlined, strict=True)):
        eqns += [_call_of(jaxpr, group, readers, place, inline)] if is_call else group
    return rebuilt_jaxpr(closed, eqns, jaxpr.outvars)


def _inline_options() -> Any:
    from jax._src import api

    return getattr(api, "Inline", None)


def _is_inlined(eqn: Any) -> bool:
    """Whether an equation was put where a call of a jitted function was bound."""
    traceback = eqn.source_info.traceback
    if traceback is None:
        return False
    files = [code.co_filename for code in traceback.raw_frames()[0][:8]]
    binding = ("source_info_util.py", "partial_eval.py", "core.py")
    first = next((file for file in files if not file.endswith(binding)), "")
    return first.endswith("pjit.py")


def _calls(jaxpr: Any) -> list[list[Any]]:
    """Equations by the call of a jitted function that they were put there for."""
    groups: list[list[Any]] = []
    for eqn in jaxpr.eqns:
        traceback = eqn.source_info.traceback
        if groups and traceback is not None and groups[-1][-1].source_info.traceback is traceback:
            groups[-1].append(eqn)
        else:
            groups.append([eqn])
    return groups


def _with_numbers_converted(closed: Any, every: bool) -> Any:
    """A jaxpr in which the numbers that functions like `jnp.multiply` were given are converted to the type that they have:
    they are taken to be Python's. Those in functions of several equations are the function's own, unless it is `every` one."""
    jaxpr, _ = open_jaxpr(closed)
    eqns: list[Any] = []
    for group in [[e] for e in jaxpr.eqns] if every else _calls(jaxpr):
        eqn, *others = group
        invars = list(eqn.invars)
        is_call = not others and any(map(_is_number, invars)) and (every or _is_inlined(eqn))
        for place in [i for i, v in enumerate(invars) if is_call and _is_number(v)]:
            number = np.asarray(invars[place].val).item()
            like = _conversion(type(number), invars[place].aval.dtype, jax.dtypes.canonicalize_dtype(np.int64))
            given, made = [LITERAL_TYPE(number, like.invars[0].aval)], new_variables([invars[place]])
            eqns.append(like.replace(invars=given, outvars=made, source_info=eqn.source_info, ctx=eqn.ctx))
            invars[place] = made[0]
        eqns += [eqn.replace(invars=invars)] if is_call else group
    return rebuilt_jaxpr(closed, eqns, jaxpr.outvars) if len(eqns) > len(jaxpr.eqns) else closed


@functools.cache
def _conversion(kind: Any, dtype: Any, integers: Any) -> Any:
    """An equation that converts a number of Python's."""
    return jax.make_jaxpr(jax.lax.convert_element_type, static_argnums=1)(kind(0), dtype).eqns[0]


def _is_number(v: Any) -> bool:
    return type(v) is LITERAL_TYPE and is_continuous(v.aval) and not v.aval.weak_type


@functools.cache
def _jitted() -> Any:
    """An equation that calls a jitted function."""
    return jax.make_jaxpr(jax.jit(lambda x: x + 1))(1.0).eqns[0]


def _call_of(jaxpr: Any, group: Sequence[Any], readers: Mapping[Any, int], place: int, inline: Any) -> Any:
    """The call of a jitted function that has the equations of a group. readers: the last group that reads each variable.

    What one equation reads twice (`y * y`) are two operands.
    """
    made = dict.fromkeys(v for e in group for v in e.outvars if type(v) is not DROP_TYPE)
    results = [v for v in made if readers.get(v, -1) > place]
    operands: list[Any] = []
    parameters: list[Any] = []
    of: dict[Any, Any] = {}  # the first parameter for each operand
    eqns = []
    for eqn in group:
        inputs: list[Any] = []
        for v in eqn.invars:
            if type(v) is LITERAL_TYPE or v in made:
                inputs.append(v)
            elif v in of and of[v] not in inputs:
                inputs.append(of[v])
            else:
                operands.append(v)
                parameters.append(fresh_variable(v))
                of.setdefault(v, parameters[-1])
                inputs.append(parameters[-1])
        eqns.append(eqn.replace(invars=inputs))
    body = jaxpr.replace(
        constvars=[], consts=[], invars=parameters, outvars=results, eqns=eqns, effects=frozenset(),
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )  # fmt: skip
    like = _jitted()
    counts = {"in_shardings": operands, "in_layouts": operands, "donated_invars": operands}
    counts |= {"out_shardings": results, "out_layouts": results}
    params = {**like.params, "jaxpr": body, "inline": inline, "name": "inlined"}
    params |= {key: like.params[key][:1] * len(values) for key, values in counts.items()}
    return like.replace(
        invars=operands,
        outvars=results,
        params=params,
        source_info=group[0].source_info,
        ctx=group[0].ctx,
        effects=frozenset(),
    )


def with_results(eqn: Any, kept: Sequence[int], params: Mapping[str, Any]) -> Any:
    """A call with these parameters, of which only some results are left; `kept`: their places."""
    each = {k: tuple([eqn.params[k][i] for i in kept]) for k in ("out_shardings", "out_layouts") if k in eqn.params}
    return eqn.replace(outvars=[eqn.outvars[i] for i in kept], params={**eqn.params, **each, **params})


def with_names(closed: Any, place: str, inputs: Sequence[str], results: Sequence[str]) -> Any:
    """A closed jaxpr of which JAX says that another function was traced: `step at model.py:12`, with these paths."""
    jaxpr, consts = open_jaxpr(closed)
    info = jaxpr.debug_info._replace(func_src_info=place, arg_names=tuple(inputs), result_paths=tuple(results))
    new = jaxpr.replace(debug_info=info)
    return new if JAXPR_TYPES[0] is JAXPR_TYPES[1] or closed is jaxpr else jex_core.ClosedJaxpr(new, consts)


def with_constants(closed: Any, consts: Sequence[Any]) -> Any:
    """A closed jaxpr with other values for its constants."""
    if JAXPR_TYPES[0] is JAXPR_TYPES[1]:  # 0.12: constants are part of the one class
        return closed.replace(consts=list(consts))
    return jex_core.ClosedJaxpr(closed.jaxpr, list(consts))


def without_dead_code(closed: Any) -> Any:
    """`closed` after JAX's own dead code elimination, which also looks into scan, jit, cond...

    All inputs stay.
    """
    from jax._src.interpreters import partial_eval  # `dce_jaxpr` has no public name

    jaxpr, consts = open_jaxpr(closed)
    used = [True] * len(jaxpr.outvars)
    new, used_consts, _ = partial_eval.dce_jaxpr_consts(jaxpr, used, True)
    if not consts:
        return close_jaxpr(new, ())
    if getattr(new, "jaxpr", None) is new:  # 0.12 keeps the constants with the jaxpr
        return new
    return close_jaxpr(new, [c for c, keep in zip(consts, used_consts, strict=True) if keep])


def is_pruned_copy(copy: Any, closed: Any) -> bool:
    """Whether JAX's dead code elimination gives `copy` for the jaxpr of a jitted function; it gives the same one each time.

    Source: `dce_jaxpr_pjit_rule`, jax/_src/pjit.py.
    """
    from jax._src.interpreters import partial_eval  # as above

    return partial_eval.dce_jaxpr(open_jaxpr(closed)[0], True)[0] is open_jaxpr(copy)[0]


def with_unused_dropped(eqn: Any, used: set[Any]) -> Any:
    """`eqn` with its results that are not in `used` marked as dropped."""
    if all(v in used for v in eqn.outvars):
        return eqn
    return eqn.replace(outvars=[v if v in used else DROP_TYPE(v.aval) for v in eqn.outvars])


def copy_of_scalar(var: Any, value: Any, like: Any) -> Any:
    """An equation that binds `var`, a jaxpr's constant, to a copy of a literal; None where `value` cannot be one.

    Lowering gives a copy no operation of its own. `like`: an equation whose context and source it has.
    """
    aval = var.aval
    if not is_shaped_array(aval) or aval.shape or aval.weak_type or is_tracer(value) or is_ref(value):
        return None
    if is_key(value) or aval.dtype == FLOAT0:
        return None
    scalar = np.asarray(value)[()]
    closed = jax.make_jaxpr(lambda: jex_core.primitives.copy_p.bind(scalar))()
    (eqn,) = closed.jaxpr.eqns
    if type(eqn.invars[0]) is not LITERAL_TYPE:
        return None
    return eqn.replace(outvars=[var], ctx=like.ctx, source_info=like.source_info)


def traced_constants_as_inputs(closed: Any) -> tuple[Any, list[Any]]:
    """(a closed jaxpr that takes those of its constants that are tracers as its first inputs, these tracers)."""
    return constants_as_inputs(closed, is_tracer)


def constants_as_inputs(closed: Any, which: Callable[[Any], bool] = lambda value: True) -> tuple[Any, list[Any]]:
    """(a closed jaxpr that takes these of its constants as its first inputs, their values)."""
    jaxpr, consts = open_jaxpr(closed)
    pairs = list(zip(jaxpr.constvars, consts, strict=True))
    moved = [(v, c) for v, c in pairs if which(c)]
    kept = [(v, c) for v, c in pairs if not which(c)]
    names = jaxpr.debug_info.arg_names
    changes: dict[str, Any] = {
        "constvars": [v for v, _ in kept],
        "invars": [*(v for v, _ in moved), *jaxpr.invars],
        "debug_info": jaxpr.debug_info._replace(arg_names=names and ("",) * len(moved) + tuple(names)),
    }
    values = [c for _, c in kept]
    tracers = [c for _, c in moved]
    if JAXPR_TYPES[0] is JAXPR_TYPES[1]:  # 0.12: constants are part of the one class
        return jaxpr.replace(**changes, consts=values), tracers
    return jex_core.ClosedJaxpr(jaxpr.replace(**changes), values), tracers


def side_by_side(first: Any, second: Any) -> Any:
    """One closed jaxpr of two: the inputs of the first, then those of the second, and their results likewise.

    None where one has an effect, which would be one of both.
    """
    (jaxpr, _), (other, consts) = open_jaxpr(first), open_jaxpr(second)
    if jaxpr.effects or other.effects:
        return None
    # What a rewrite left alone is of the same variables in both.
    renamed: dict[Any, Any] = {}

    def rename(variables: Sequence[Any]) -> list[Any]:
        renamed.update({v: fresh_variable(v) for v in variables})
        return [renamed.get(v, v) for v in variables]

    constvars, invars = rename(other.constvars), rename(other.invars)
    eqns = [eqn.replace(invars=substituted(eqn.invars, renamed), outvars=rename(eqn.outvars)) for eqn in other.eqns]
    results = [*jaxpr.outvars, *substituted(other.outvars, renamed)]
    inputs = [*jaxpr.invars, *invars]
    return rebuilt_jaxpr(first, [*jaxpr.eqns, *eqns], results, constvars, consts, inputs)


def without_refs(closed: Any) -> Any:
    """A jaxpr in which what it keeps in mutable arrays of its own is passed on by its equations and loops; the same object
    where there are none. Those that it is given stay."""
    if not any(is_ref_aval(v.aval) for eqn in equations_in(closed) for v in eqn.outvars):
        return closed
    from jax._src.state.discharge import discharge_state  # no public name

    return discharge_state(closed, should_discharge=False)
