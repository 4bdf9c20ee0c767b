"""Operands that an equation has for itself, though JAX computed them once: those that its public form computes anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import jax.numpy as jnp

from untrace import jax_compat


class Body(Protocol):
    """What these rewrites read of a jaxpr while it is rewritten (`simplify.Body`)."""

    eqns: list[Any]
    made: dict[Any, Any]
    substitute: dict[Any, Any]
    changed: bool

    @property
    def simplifier(self) -> Any: ...
    def maker(self, atom: Any, *names: str, inside: bool = False) -> Any: ...
    def is_of_idiom(self, atom: Any) -> bool: ...
    def scalar(self, atom: Any) -> Any: ...


Literal = jax_compat.LITERAL_TYPE
SCATTERS = frozenset(f"scatter{sep}" for sep in ("", *(a + b for a in "-_" for b in ("add", "mul", "min", "max"))))
INDEXED = SCATTERS | {"gather"}
_INDEX_STEPS = frozenset(
    {"select_n", "lt", "add", "broadcast_in_dim", "reshape", "convert_element_type", "concatenate", "jit", "pjit"}
)


def own_indices(body: Body) -> list[Any]:
    """The equations, with indices of their own for each gather and scatter.

    The backward pass of `x[i]` adds at the indices that the forward pass computed from `i` (negative ones made positive,
    an axis more). XLA finds the common computation again; a reader would rather read `x[i]` and `.at[i].add`. So it is
    with the zeros that several scatters begin with.
    """
    users: Counter[Any] = Counter()
    others: set[Any] = set()  # used elsewhere as well, as in the loops of a backward pass
    for eqn in body.eqns:
        own = _own_operands(body, eqn)
        users.update(own)
        others.update(v for v in eqn.invars if type(v) is not Literal and v not in own)
    shared = {v for v, n in users.items() if n > 1 or v in others}
    if not shared:
        return body.eqns
    found: list[Any] = []
    seen: set[Any] = shared & others
    for eqn in body.eqns:
        for operand in _own_operands(body, eqn):
            if operand not in shared:
                continue
            if operand in seen:
                names: dict[Any, Any] = {}
                of_index = operand is eqn.invars[1]
                for step in _steps_to(body, operand) if of_index else [body.made[operand]]:
                    outs = [jax_compat.fresh_variable(v) for v in step.outvars]
                    found.append(
                        step.replace(
                            invars=jax_compat.substituted(step.invars, names), outvars=outs, source_info=eqn.source_info
                        )
                    )
                    names.update(zip(step.outvars, outs, strict=True))
                if names:
                    eqn = eqn.replace(invars=jax_compat.substituted(eqn.invars, names))
                    body.changed = True
                    body.simplifier.counts["own_indices"] += 1
            seen.add(operand)
        found.append(eqn)
    return found


def _own_operands(body: Body, eqn: Any) -> list[Any]:
    """The operands of an equation that it is to have for itself: indices, and the number that a scatter begins with."""
    if eqn.primitive.name not in INDEXED or type(eqn.invars[1]) is Literal:
        return []
    filled = eqn.primitive.name in SCATTERS and body.maker(eqn.invars[0], "broadcast_in_dim") is not None
    numbers = [eqn.invars[0]] if filled and body.scalar(eqn.invars[0]) is not None else []
    return [eqn.invars[1], *numbers]


def own_selectors(body: Body, outvars: Sequence[Any]) -> list[Any]:
    """The equations, with an index of its own for each `cond`, right before it: made of a bool, or clamped.

    The backward pass of `lax.cond(p, ...)` is a `cond` on the same index; only with its own it is `lax.cond(p, ...)`.
    """
    uses = Counter(v for eqn in body.eqns for v in eqn.invars if type(v) is not Literal)
    uses.update(v for v in jax_compat.substituted(outvars, body.substitute) if type(v) is not Literal)
    found: list[Any] = []
    for eqn in body.eqns:
        if eqn.primitive.name == "cond" and type(eqn.invars[0]) is not Literal and uses[eqn.invars[0]] > 1:
            maker = body.maker(eqn.invars[0], "convert_element_type", "clamp")
            if maker is not None:
                own = jax_compat.fresh_variable(eqn.invars[0])
                found.append(maker.replace(outvars=[own], source_info=eqn.source_info))
                eqn = eqn.replace(invars=[own, *eqn.invars[1:]])
                body.changed = True
                body.simplifier.counts["own_selectors"] += 1
        found.append(eqn)
    return found


def _steps_to(body: Body, index: Any) -> list[Any]:
    """The equations that make indices of integers, in order; [] where there is more to them."""
    steps: list[Any] = []
    todo, known = [index], set()
    while todo:
        atom = todo.pop()
        made = None if type(atom) is Literal else body.made.get(atom)
        if made is None or made in known or body.is_of_idiom(atom):
            continue
        if made.primitive.name not in _INDEX_STEPS or made.effects or len(known) > 24:
            continue
        if not jnp.issubdtype(atom.aval.dtype, jnp.integer) and atom.aval.dtype != bool:
            continue
        known.add(made)
        steps.append(made)
        todo.extend(made.invars)
    order = {e: i for i, e in enumerate(body.eqns)}
    return sorted(steps, key=lambda e: order.get(e, 0))
