"""The search: candidates are tried, and the smallest that has the fault is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from untrace import jax_compat
from untrace._errors import UntraceError
from untrace.ir.types import Data, Variable
from untrace.tools.minimize.case import Case, is_value, results
from untrace.tools.minimize.predicates import Predicate
from untrace.tools.minimize.runner import Ran, Runner, from_portable

T = TypeVar("T")


class OutOfTime(Exception):
    """The time for the whole search is over."""


@dataclass
class Search:
    """`best`: the smallest case so far that has the fault. repeats: how often a candidate is run before it counts as sound.
    deadline: of time.monotonic. told: is called with each new best case."""

    runner: Runner
    predicate: Predicate
    best: Case
    fault: Hashable
    repeats: int
    deadline: float
    told: Callable[[Case], None]
    tried: int = 0
    _values: tuple[Case, Mapping[Variable, Data]] | None = field(default=None, repr=False)

    def has_fault(self, case: Case) -> bool:
        """Whether a candidate has the very fault. One that cannot be written has not."""
        for _ in range(self.repeats):
            if time.monotonic() > self.deadline:
                raise OutOfTime
            self.tried += 1
            try:
                if self.predicate.signature(self.runner, case) == self.fault:
                    return True
            except UntraceError:
                return False
        return False

    def adopts(self, case: Case, larger: bool = False) -> bool:
        """Whether a candidate has the fault and is smaller, or may be larger, and so is the best from now on."""
        if (larger or case.size < self.best.size) and self.has_fault(case):
            self.best = case
            self.told(case)
            return True
        return False

    def values(self) -> Mapping[Variable, Data]:
        """The values of the best case's equations, as far as they can be had."""
        if self._values is None or self._values[0] is not self.best:
            self._values = self.best, recorded(self.runner, self.best)
        return self._values[1]


def recorded(runner: Runner, case: Case) -> Mapping[Variable, Data]:
    """What the equations of a program give, run operation by operation: of all, or of the first ones, up to that which ends the
    process or never ends."""
    jaxpr, _ = jax_compat.open_jaxpr(case.closed)

    def of_first(count: int) -> Mapping[Variable, Data] | None:
        kept = jaxpr.eqns[:count]
        wanted = [v for e in kept for v in results(e) if is_value(v.aval)]
        try:
            outcome = runner.run(
                Case(jax_compat.rebuilt_jaxpr(case.closed, kept, wanted), case.args, case.name), "eager"
            )
        except UntraceError:
            return None
        if not isinstance(outcome, Ran):
            return None
        return dict(zip(wanted, map(from_portable, outcome.outputs), strict=True))

    found = of_first(len(jaxpr.eqns))
    if found is not None:
        return found
    known: Mapping[Variable, Data] = {}
    least, most = 0, len(jaxpr.eqns)
    while most - least > 1:
        middle = (least + most) // 2
        now = of_first(middle)
        if now is None:
            most = middle
        else:
            least, known = middle, now
    return known


def fewer(items: Sequence[T], has_fault: Callable[[Sequence[T]], bool]) -> list[T]:
    """Items of which none can be left out by itself (delta debugging; Zeller and Hildebrandt, 2002), from those that have the
    fault together. Before that, the shortest beginning and the shortest end that have it are looked for by halves."""
    items = list(items)
    items = items[: _shortest(len(items), lambda n: has_fault(items[:n]))]
    count = _shortest(len(items), lambda n: has_fault(items[len(items) - n :]))
    items = items[len(items) - count :]
    parts = 2
    while len(items) >= 2:
        size = -(-len(items) // parts)
        for start in range(0, len(items), size):
            rest = items[:start] + items[start + size :]
            if rest and has_fault(rest):
                items, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(items))
    return items


def _shortest(most: int, has_fault: Callable[[int], bool]) -> int:
    least = 0
    while most - least > 1:
        middle = (least + most) // 2
        if has_fault(middle):
            most = middle
        else:
            least = middle
    return most
