"""Keeps the order in which a program hands its constants to the compiler.

JAX numbers the constants of a jaxpr as it meets them while it traces. Equations that met them and were dropped later
(what a library computed and did not use) leave their mark in that order alone. A text without them would meet the
constants in another order: the same program, with the constants of its StableHLO in other places. So an unused
`lax.optimization_barrier` mentions what would come too late; JAX drops it before lowering.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from jax import lax

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.ir.nodes import Constant, Equation, Function, Primitive


def keep_constant_order(entry: Function) -> None:
    """Adds mentions to `entry` where its equations meet the constants of its jaxpr in another order; mostly there are
    none to add. Keys and scalars keep their places, for JAX does not hand those over as they are."""
    _, consts = jax_compat.open_jaxpr(entry.jaxpr)
    place = IdentityMap((value, i) for i, value in enumerate(consts))
    ordered: dict[int, Constant] = {}
    for equation in entry.equations:
        for atom in equation.inputs:
            if type(atom) is Constant and atom.value in place and _is_array(atom):
                ordered.setdefault(place[atom.value], atom)
    waiting = deque(ordered[i] for i in sorted(ordered))
    known = set(waiting)
    met: set[Constant] = set()
    equations: list[Equation] = []
    for equation in entry.equations:
        new = list(dict.fromkeys(a for a in equation.inputs if a in known and a not in met))
        wanted: list[Constant] = []
        for atom in new:
            while atom not in met:
                met.add(waiting[0])
                wanted.append(waiting.popleft())
        if wanted != new:
            equations.append(_mention(wanted, equation))
        equations.append(equation)
    entry.equations = equations


def _mention(constants: list[Constant], before: Equation) -> Equation:
    """An `optimization_barrier` of constants whose results nobody reads."""
    closed = jax_compat.trace_on_avals(
        lambda *args: list(lax.optimization_barrier(args)), [c.aval for c in constants], before.origin.ctx
    )
    (eqn,) = jax_compat.open_jaxpr(closed)[0].eqns
    origin = eqn.replace(source_info=before.origin.source_info)
    return Equation(Primitive(eqn.primitive), constants, [None] * len(constants), eqn.params, origin)


def _is_array(constant: Constant) -> bool:
    return not jax_compat.is_key(constant.value) and bool(np.ndim(constant.value))
