"""Jaxprs as such: their classes, their parts, their variables, literals and effects.

On 0.10 a jaxpr is open or closed, two classes; on 0.12 `ClosedJaxpr is Jaxpr`, with its constants inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core as _core
from jax.extend import core as jex_core

LITERAL_TYPE: type[Any] = jex_core.Literal
DROP_TYPE: type[Any] = jex_core.DropVar
JAXPR_TYPES: tuple[type, ...] = (jex_core.ClosedJaxpr, getattr(jex_core, "Jaxpr", jex_core.ClosedJaxpr))


def is_jaxpr(value: Any) -> bool:
    """Whether `value` is a ClosedJaxpr or an open Jaxpr (0.12: one and the same class)."""
    return isinstance(value, JAXPR_TYPES)


def open_jaxpr(closed: Any) -> tuple[Any, Sequence[Any]]:
    """(jaxpr, consts) of a closed or open jaxpr. On 0.12 `ClosedJaxpr is Jaxpr` and `.jaxpr` returns itself."""
    consts = getattr(closed, "consts", ())
    return getattr(closed, "jaxpr", closed), consts


def bind_equation(eqn: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The outputs of one equation on `args`, as JAX's own `eval_jaxpr` binds it; always a sequence.

    `get_bind_params` turns the jaxprs of call-like primitives back into functions; it has no public counterpart.
    """
    out = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
    return out if eqn.primitive.multiple_results else [out]


def close_jaxpr(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """The ClosedJaxpr of an open jaxpr and its constants (0.12 closes by replacing)."""
    return jex_core.ClosedJaxpr(jaxpr, list(consts)) if jex_core.ClosedJaxpr is not JAXPR_TYPES[1] or consts else jaxpr


def is_open(jaxpr: Any) -> bool:
    """Whether a parameter holds an open Jaxpr (0.10 tells them apart; on 0.12 there is one class)."""
    return JAXPR_TYPES[0] is not JAXPR_TYPES[1] and not isinstance(jaxpr, JAXPR_TYPES[0])


def plain_effects(effects: Any) -> set[Any]:
    """Effects that do not count operands: those of refs do, and the jaxpr already has them."""
    from jax._src.effects import JaxprInputEffect

    return {e for e in effects if not isinstance(e, JaxprInputEffect)}


def ordering_effect(effect: Any) -> Any:
    """What keeps an effect in its place: those with the same key keep their order; None: any order.

    A read or write of a ref is keyed "ref", whichever ref it is. An axis name is only in scope,
    nothing happens, and `InternalMutableArrayEffect` says that a ref is made or unmade: data
    dependencies keep those in place.
    Source: `dceable_effects`, jax/_src/interpreters/partial_eval.py.
    """
    from jax._src import core, effects  # effects have no public names

    if isinstance(effect, effects.JaxprInputEffect):
        return "ref"
    if isinstance(effect, (core.NamedAxisEffect, core.InternalMutableArrayEffect)):
        return None
    return effect


def effect_kind(effect: Any) -> Any:
    """`effect` without the variable that it acts on: its class for a ref effect, else itself."""
    from jax._src import effects

    return type(effect) if isinstance(effect, effects.JaxprInputEffect) else effect


_CONTEXT_FIELDS = (
    "compute_type", "threefry_partitionable", "cur_layout_mode",
    "remove_size_one_mesh_axis", "no_collectives", "xla_metadata",
)  # fmt: skip


def same_context(left: Any, right: Any) -> bool:
    """Whether two equations were bound under the same settings (compute type, metadata...).

    `JaxprEqnContext` is interned, so identity nearly always answers; the fields differ by JAX line. The mesh of the
    context is left out: it acts through the types of values alone, and those are compared; a jaxpr from JAX's trace
    cache can carry the context of its first caller.
    """
    if left is right:
        return True
    missing = object()
    return all(getattr(left, f, missing) == getattr(right, f, missing) for f in _CONTEXT_FIELDS)


PRIMITIVE_TYPE = jex_core.Primitive


def binds_functions(prim: Any) -> bool:
    """Whether a primitive is bound with Python functions in place of the jaxprs that its equations have."""
    return type(prim).get_bind_params is not PRIMITIVE_TYPE.get_bind_params


def literal_key(eqn: Any) -> tuple[str, ...]:
    return tuple(str(v.val) for v in eqn.invars if type(v) is LITERAL_TYPE)


def is_ordered_debug_effect(effect: Any) -> bool:
    """Whether a debugging effect is the ordered one."""
    from jax._src import debugging

    return effect is debugging.ordered_debug_effect or effect == debugging.ordered_debug_effect


def evaluate_closed(closed: Any, args: Sequence[Any]) -> list[Any]:
    """The results of a ClosedJaxpr; under a trace, its equations are recorded one by one."""
    return list(jex_core.jaxpr_as_fun(closed)(*args))


def is_dropped(var: Any) -> bool:
    """Whether a result of an equation is not used."""
    return type(var) is DROP_TYPE


def literal(value: Any, aval: Any) -> Any:
    """A Literal operand of a jaxpr's equation: `value` is a NumPy scalar of `aval`'s dtype."""
    return LITERAL_TYPE(value, aval)


def zeros_equation(like: Any, pattern: Any, beside: Any) -> Any:
    """The equation of `jnp.zeros` of the type of a variable. pattern: any equation. beside: the one whose place in the source
    it has, or None."""
    from jax._src import source_info_util

    scalar = like.aval.update(shape=())
    return pattern.replace(
        primitive=jax.lax.broadcast_in_dim_p,
        invars=[literal(np.zeros((), like.aval.dtype)[()], scalar)],
        outvars=[fresh_variable(like)],
        params={"shape": like.aval.shape, "broadcast_dimensions": (), "sharding": None},
        source_info=source_info_util.new_source_info() if beside is None else beside.source_info,
    )


def fresh_variable(like: Any, shape: tuple[int, ...] | None = None, typed: Any = None) -> Any:
    """A new variable of a jaxpr, of the type of `like`, or of another shape of the same rank, or of the dtype of `typed`."""
    if type(like) is DROP_TYPE:
        return like
    aval = like.aval if shape is None else like.aval.update(shape=shape)
    if typed is not None:
        aval = aval.update(dtype=typed.aval.dtype, weak_type=typed.aval.weak_type)
    return type(like)(aval)


def is_variable(atom: Any) -> bool:
    """Whether an atom is a variable of a jaxpr, and no literal or array."""
    return isinstance(atom, _core.Var)


def dropped(like: Sequence[Any]) -> list[Any]:
    """What stands for results of these types that nobody takes."""
    return [DROP_TYPE(v.aval) for v in like]


def new_variables(like: Sequence[Any]) -> list[Any]:
    """Variables of a jaxpr that are in none yet, of the types of others."""
    return [_core.Var(v.aval) for v in like]
