"""What a mapped function gives back as it came: a field of a record that it leaves alone.

No equation makes it, so JAX' program reads the value itself from there on. Where that is read together with what the call
made, as in `Walker(moved.position, moved.energy, walker.width)`, the author reads the result of the call.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from untrace import jax_compat
from untrace._trees import part_of_tree


def read_from_calls(
    eqns: Sequence[Any], outvars: Sequence[Any], handed: Mapping[Any, Any]
) -> tuple[list[Any], list[Any]]:
    """The equations and results of a jaxpr that read what calls hand on from these where they read it together with what they
    made; its calls hand on nothing else. handed: {output of a call: what it is}, in any jaxpr."""
    found: list[Any] = []
    outputs: dict[Any, list[tuple[set[Any], Any]]] = {}  # of what is handed on: what the call made, and its output
    origin: dict[Any, Any] = {}
    used: set[Any] = set()

    def read(atoms: Sequence[Any]) -> list[Any]:
        variables = {a for a in atoms if jax_compat.is_variable(a)}
        given = []
        for atom in atoms:
            if jax_compat.is_variable(atom):
                known = outputs.get(origin.get(atom, atom), ())
                atom = next((own for made, own in reversed(known) if not variables.isdisjoint(made)), atom)
                used.add(atom)
            given.append(atom)
        return given

    for eqn in eqns:
        whole = any(v in handed for v in eqn.outvars)
        if whole or jax_compat.jaxprs_in(eqn):
            atoms = read(eqn.invars)
            eqn = eqn if all(a is b for a, b in zip(atoms, eqn.invars, strict=True)) else eqn.replace(invars=atoms)
        if whole:
            made = {v for v in eqn.outvars if v not in handed}
            for own in [v for v in eqn.outvars if v in handed]:
                origin[own] = origin.get(handed[own], handed[own])
                outputs.setdefault(origin[own], []).append((made, own))
        found.append(eqn)
    results = read(outvars)
    return [_giving(e, [v not in handed or v in used for v in e.outvars]) for e in found], results


def _giving(eqn: Any, kept: Sequence[bool]) -> Any:
    """The call of a function that gives some of its results."""
    if all(kept):
        return eqn
    signature, body = eqn.params["signature"], eqn.params["jaxpr"]
    jaxpr, _ = jax_compat.open_jaxpr(body)
    some = list(itertools.compress(range(len(kept)), kept))
    params = {
        **eqn.params,
        "jaxpr": jax_compat.rebuilt_jaxpr(body, jaxpr.eqns, list(itertools.compress(jaxpr.outvars, kept)), kept=some),
        "out_axes": tuple(itertools.compress(eqn.params["out_axes"], kept)),
        "signature": dataclasses.replace(signature, out=part_of_tree(signature.out, kept)),
    }
    return eqn.replace(outvars=list(itertools.compress(eqn.outvars, kept)), params=params)
