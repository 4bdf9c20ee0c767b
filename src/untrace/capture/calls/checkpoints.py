"""Finds the functions again that `jax.checkpoint` marked, where a program differentiates them.

What differentiation leaves of one computes its values again and then the cotangents, in one equation. The functions are noted
while the program is traced, before anything differentiates them (`noted_checkpoints`). Each is differentiated here on its
own: where that gives the very equation, the equation is `jax.vjp(jax.checkpoint(f), *primals)[1](cotangent)`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import chain, combinations, islice, product
from typing import Any

import jax
from jax.extend.core import JaxprEqn, primitives

from untrace import jax_compat
from untrace.ir.bodies import CHECKPOINTS
from untrace.ir.facts import Transposed
from untrace.jaxprs.equal.comparer import Comparer

# Which of its arguments a function is differentiated for is tried out, all of them first.
_MOST_TRIED = 12


class Checkpoints:
    """The functions that were noted, and what is the derivative of which."""

    def __init__(self) -> None:
        self._noted: dict[int, Any] = {}
        self._found: dict[Any, tuple[Any, Transposed | None]] = {}
        self._comparer = Comparer()

    def note(self, jaxpr: Any) -> None:
        self._noted[jaxpr] = jaxpr

    def functions(self) -> Collection[Any]:
        """The jaxprs of the functions that were noted."""
        return self._noted.values()

    def of(self, eqn: Any) -> Transposed | None:
        """What an equation is the derivative of; None where no function that was noted has it."""
        if eqn.primitive.name not in CHECKPOINTS or not eqn.params["differentiated"]:
            return None
        body = eqn.params["jaxpr"]
        if body not in self._found:
            found = next(filter(None, (self._transposed(f, eqn) for f in self._noted.values())), None)
            self._found[body] = body, found
        return self._found[body][1]

    def _transposed(self, function: Any, eqn: Any) -> Transposed | None:
        jaxpr, consts = jax_compat.open_jaxpr(function)
        inputs, outs = [v.aval for v in jaxpr.invars], [v.aval for v in jaxpr.outvars]
        if consts or jaxpr.effects or not all(map(jax_compat.has_tangent, outs)):
            return None
        of_type: dict[str, list[int]] = {}
        for i, aval in enumerate(inputs):
            if jax_compat.has_tangent(aval):
                of_type.setdefault(str(_tangent(aval)), []).append(i)
        wanted = Counter(str(v.aval) for v in eqn.outvars)
        several = product(*[combinations(of_type.get(kind, ()), count) for kind, count in wanted.items()])
        for some in islice(several, _MOST_TRIED):
            varied = tuple(sorted(chain(*some)))
            with contextlib.suppress(Exception):  # what cannot be differentiated was not
                found = self._fitting(function, varied, eqn)
                if found is not None:
                    return found
        return None

    def _fitting(self, function: Any, varied: tuple[int, ...], eqn: Any) -> Transposed | None:
        jaxpr, _ = jax_compat.open_jaxpr(function)
        count = len(jaxpr.invars)
        params = {k: v for k, v in eqn.params.items() if k not in ("jaxpr", "differentiated")}

        def derivative(*args: Any) -> Any:
            def called(*some: Any) -> Any:
                given = dict(zip(varied, some, strict=True))
                operands = [given.get(i, x) for i, x in enumerate(args[:count])]
                return primitives.remat_p.bind(*operands, jaxpr=function, differentiated=False, **params)

            return jax.vjp(called, *[args[i] for i in varied])[1](list(args[count:]))

        avals = [*[v.aval for v in jaxpr.invars], *[_tangent(v.aval) for v in jaxpr.outvars]]
        traced, _ = jax_compat.open_jaxpr(jax_compat.trace_on_avals(derivative, avals, eqn.ctx))
        made = [e for e in traced.eqns if e.primitive.name in CHECKPOINTS and e.params["differentiated"]]
        if len(made) != 1 or len(made[0].invars) != len(eqn.invars) or len(made[0].outvars) != len(eqn.outvars):
            return None
        own = made[0]
        places = self._places(own, eqn)
        operand = {
            v: places[i] for i, v in enumerate(own.invars) if i in places and type(v) is not jax_compat.LITERAL_TYPE
        }
        result = {v: i for i, v in enumerate(own.outvars)}
        unread = [v for v in traced.invars if v not in operand]
        if not all(v in result for v in traced.outvars) or not set(traced.invars[count:]) <= set(operand):
            return None  # one that the derivative has no part in
        if not all(jax_compat.has_tangent(v.aval) for v in unread):
            return None
        every = [operand.get(v, -1) for v in traced.invars]
        if len(set(every) - {-1}) != len(eqn.invars) or len(every) != len(eqn.invars) + len(unread):
            return None  # it takes what a policy saves
        return Transposed(
            function, tuple(every[:count]), varied, tuple(every[count:]), tuple(result[v] for v in traced.outvars)
        )

    def _places(self, own: Any, eqn: Any) -> dict[int, int]:
        """Which operand of an equation each of another one is, where both do the same; {} where they do not."""
        for key, value in eqn.params.items():
            if key != "jaxpr" and not self._comparer.values.same(own.params[key], value):
                return {}
        free = len(own.invars), len(eqn.invars)
        return dict(self._comparer.closure_pairs(own.params["jaxpr"], eqn.params["jaxpr"], free) or ())


def _tangent(aval: Any) -> Any:
    return jax_compat.tangent_aval(aval)


def parts(closed: Any, checkpoints: Checkpoints) -> set[JaxprEqn]:
    """Ids of the equations that are derivatives of functions that were noted, and of those that JAX left of such a function
    where it is whole, in a forward pass: as the function's own, they are to stay as they were traced."""
    known: set[JaxprEqn] = set()
    functions: dict[int, Any] = {}
    bodies: list[list[Any]] = []
    for jaxpr in jax_compat.bodies_in(closed, lambda eqn: checkpoints.of(eqn) is None):
        others = []
        for eqn in jaxpr.eqns:
            found = checkpoints.of(eqn)
            if found is None:
                others.append(eqn)
            else:
                known.add(eqn)
                functions[found.function] = found.function
        bodies.append(others)
    comparer = Comparer()
    for function in functions.values():
        own = jax_compat.open_jaxpr(function)[0].eqns
        sources = {_source(e) for e in own}
        for body in bodies:
            left: dict[Any, list[Any]] = {}
            for eqn in body:
                if _source(eqn) in sources:
                    left.setdefault(_source(eqn), []).append(eqn)
            if all(any(_alike(comparer, e, other) for other in left.get(_source(e), ())) for e in own):
                known.update(e for several in left.values() for e in several)
    return known


def _alike(comparer: Comparer, left: Any, right: Any) -> bool:
    return comparer.same_head(left, right) and comparer.differing_param(left, right) is None


def _source(eqn: Any) -> Any:
    return eqn.primitive.name, jax_compat.equation_source(eqn)[0]


@contextlib.contextmanager
def noted_checkpoints(checkpoints: Checkpoints) -> Iterator[None]:
    """While the context is open, functions that `jax.checkpoint` marked go to `checkpoints`."""
    with jax_compat.intercepted_checkpoints(checkpoints.note):
        yield


def has_unknown_checkpoints(closed: Any, checkpoints: Checkpoints) -> bool:
    """Whether a program has the derivative of a function that was not noted: JAX may have traced it before."""
    found = [
        e for e in jax_compat.equations_in(closed) if e.primitive.name in CHECKPOINTS and e.params["differentiated"]
    ]
    return any(checkpoints.of(eqn) is None for eqn in found)
