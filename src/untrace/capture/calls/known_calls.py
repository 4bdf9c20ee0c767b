"""Finds where else a program calls a function that it differentiates: a loss that is evaluated as well is one function.

A call leaves equations only. Those of a differentiated function are known (`differentiated`), so that the same ones, on
other operands, are one more call of it. Such a call is an equation as well, in the place of what it left, and `unfolded`
puts that back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.capture.calls.derivative_calls import CALLED, CALLS
from untrace.capture.calls.unfolding import unfolded
from untrace.ir.signatures import Derivative
from untrace.jaxprs.equal.compare import compare
from untrace.provenance.sites import Provenance

# Fewer equations read as well where they are.
_FEWEST = 4


@dataclass(slots=True)
class _Known:
    """A function that is differentiated in the jaxpr `home`, where it closes over `closed`."""

    body: Any
    derivative: Derivative
    home: Any
    closed: Sequence[Any]
    makers: dict[Any, tuple[Any, int]] = field(default_factory=dict)  # of its variables: (equation, which output)

    def __post_init__(self) -> None:
        jaxpr, _ = jax_compat.open_jaxpr(self.body)
        self.makers = {v: (e, i) for e in jaxpr.eqns for i, v in enumerate(e.outvars)}


@dataclass(slots=True)
class _Match:
    """Which equations of a jaxpr are those of a function, and what its variables are there."""

    places: set[int] = field(default_factory=set)
    atoms: dict[Any, Any] = field(default_factory=dict)


def with_known_calls(closed: Any, provenance: Provenance) -> Any:
    """`closed` with calls of functions that it differentiates; the very same object where there are none."""
    known = list(_known(closed))
    return _Finder(known, provenance).jaxpr(closed) if known else closed


def _known(closed: Any) -> Iterator[_Known]:
    seen: set[Any] = set()
    for jaxpr in jax_compat.bodies_in(closed):
        for eqn in jaxpr.eqns:
            if eqn.primitive in CALLS.values() and eqn.params["jaxpr"] not in seen:
                body, derivative = eqn.params["jaxpr"], eqn.params["derivative"]
                seen.add(body)
                if len(jax_compat.open_jaxpr(body)[0].eqns) >= _FEWEST and not jax_compat.open_jaxpr(body)[0].effects:
                    yield _Known(body, derivative, jaxpr, eqn.invars[: derivative.signature.closed])


class _Finder(jax_compat.JaxprRewriter):
    """Finds calls in jaxprs that may share parts, each once."""

    def __init__(self, known: Sequence[_Known], provenance: Provenance):
        super().__init__()
        self.known = known
        self.provenance = provenance

    def rewritten(self, closed: Any) -> Any:
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        made_by = {v: (i, n) for i, e in enumerate(jaxpr.eqns) for n, v in enumerate(e.outvars)}
        calls: dict[int, Any] = {}
        gone: set[int] = set()
        for known in self.known:
            if known.body is closed or known.closed and known.home is not jaxpr:
                continue
            for match, outputs in _matches(known, jaxpr, made_by):
                whole = len(match.places) == len(jaxpr.eqns)
                if whole or gone.intersection(match.places) or not _stands_apart(jaxpr, match.places, outputs):
                    continue
                place = max(match.places)
                calls[place] = self._call(known, jaxpr.eqns[place], match, outputs)
                gone |= match.places
        eqns = [
            calls.get(i) or jax_compat.with_inner_jaxprs(e, self.jaxpr)
            for i, e in enumerate(jaxpr.eqns)
            if i in calls or i not in gone
        ]
        if not calls and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return closed
        return jax_compat.rebuilt_jaxpr(closed, eqns, jaxpr.outvars)

    def _call(self, known: _Known, last: Any, match: _Match, outputs: Sequence[Any]) -> Any:
        inner, _ = jax_compat.open_jaxpr(known.body)
        derivative = Derivative(known.derivative.signature, code=known.derivative.code)
        avals = tuple([v.aval for v in inner.outvars])
        params = {"jaxpr": self.jaxpr(known.body), "derivative": derivative, "avals": avals}
        drops = jax_compat.dropped(inner.outvars)
        outvars = [d if o is None else o for o, d in zip(outputs, drops, strict=True)]
        eqn = last.replace(
            primitive=CALLED, invars=[match.atoms[v] for v in inner.invars], outvars=outvars, params=params
        )
        frames = [f.code for f in self.provenance.site(last).frames]
        if derivative.code in frames:  # the statement is that of the call, not one inside the function
            self.provenance.shorten(eqn, frames.index(derivative.code))
        return eqn


def _matches(known: _Known, jaxpr: Any, made_by: dict[Any, tuple[int, int]]) -> Iterator[tuple[_Match, list[Any]]]:
    """Every place where the equations of a function are in a jaxpr, and what its results are there (None: not computed)."""
    inner, _ = jax_compat.open_jaxpr(known.body)
    first = next((v for v in inner.outvars if jax_compat.is_variable(v) and v in known.makers), None)
    if first is None:
        return
    maker, number = known.makers[first]
    for eqn in jaxpr.eqns:
        if eqn.primitive is not maker.primitive:
            continue
        match = _Match(atoms=dict(zip(inner.invars, known.closed, strict=False)))
        if not _unify(known, first, eqn.outvars[number], jaxpr, made_by, match):
            continue
        if not all(v in match.atoms for v in inner.invars):
            continue
        yield match, [match.atoms.get(v) if jax_compat.is_variable(v) else None for v in inner.outvars]


def _unify(known: _Known, var: Any, atom: Any, jaxpr: Any, made_by: dict[Any, tuple[int, int]], match: _Match) -> bool:
    """Whether an atom of the jaxpr is what a variable of the function is, by equal equations all the way to its inputs."""
    stack = [(var, atom)]
    while stack:
        var, atom = stack.pop()
        if not jax_compat.is_variable(var):
            if jax_compat.is_variable(atom) or not _same_literal(var, atom):
                return False
            continue
        if var in match.atoms:
            if match.atoms[var] is not atom:
                return False
            continue
        if _type(var) != _type(atom):
            return False
        if var not in known.makers:
            match.atoms[var] = atom
            continue
        if not jax_compat.is_variable(atom) or atom not in made_by:
            return False
        (ours, number), (place, at) = known.makers[var], made_by[atom]
        theirs = jaxpr.eqns[place]
        if number != at or ours.primitive is not theirs.primitive or len(ours.invars) != len(theirs.invars):
            return False
        if theirs.effects or not _same_params(ours.params, theirs.params):
            return False
        match.places.add(place)
        match.atoms.update(zip(ours.outvars, theirs.outvars, strict=True))
        stack += list(zip(ours.invars, theirs.invars, strict=True))
    return True


def _type(atom: Any) -> Any:
    aval = atom.aval
    return getattr(aval, "shape", None), getattr(aval, "dtype", None), getattr(aval, "weak_type", None)


def _same_literal(left: Any, right: Any) -> bool:
    return _type(left) == _type(right) and np.asarray(left.val).tobytes() == np.asarray(right.val).tobytes()


def _same_params(left: Any, right: Any) -> bool:
    if left is right:
        return True
    # How the author wrote a mapped function is no part of what it does.
    return left.keys() == right.keys() and all(k == "signature" or _same(left[k], right[k]) for k in left)


def _same(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if jax_compat.is_jaxpr(left):
        if not jax_compat.is_jaxpr(right) or len(jax_compat.open_jaxpr(left)[0].eqns) != len(
            jax_compat.open_jaxpr(right)[0].eqns
        ):
            return False
        return compare(unfolded(left), unfolded(right)).difference is None
    if isinstance(left, (tuple, list)):
        return type(left) is type(right) and len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, Derivative):
        return False
    try:
        return bool(left == right)
    except Exception:  # of whatever a library has for a parameter
        return False


def _stands_apart(jaxpr: Any, places: set[int], outputs: Sequence[Any]) -> bool:
    """Whether nothing else reads what is computed on the way."""
    given = {o for o in outputs if o is not None}
    own = {v for p in places for v in jaxpr.eqns[p].outvars} - given
    read = [a for i, e in enumerate(jaxpr.eqns) if i not in places for a in e.invars]
    return not any(jax_compat.is_variable(a) and a in own for a in (*read, *jaxpr.outvars))
