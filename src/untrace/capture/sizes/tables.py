"""Up to which sizes a program stays inside of its tables: positions `wpe[jnp.arange(t)]` of a table of 1024 rows.

JAX clips an index beyond a table, and the text of a module of PyTorch, which raises there, would compute something else.
Of each access whose indices depend on no data, the room that it leaves at either end of a dimension of the table is
compared between traces at several sizes, and says at which size there is none left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.ir.bodies import PLAIN_CALLS, RULED_CALLS

Sizes = tuple[int, ...]  # of the groups of dimensions that may differ

_MOST_ELEMENTS = 1_000_000  # of an array of indices that is computed


@dataclass(frozen=True, slots=True)
class Room:
    """What one access leaves: `left` places at one end of a dimension of `rows`; None where that is not known."""

    rows: int
    left: int | None


def largest_sizes(
    traces: Sequence[tuple[Any, Sizes]], least: Sizes, trace: Callable[[Sizes], Any | None]
) -> list[int | None]:
    """Of each group the largest size at which all accesses stay inside of what they read; None of one without such a limit.

    traces: one program as closed jaxprs at several sizes, the first at sizes that differ from all others. least: the
    smallest size of each group. trace: the program at further sizes, None where it cannot be traced.
    """
    return _Search(traces, least, trace).found()


class _Search:
    """Which groups the rooms of a program depend on, and how."""

    def __init__(self, traces: Sequence[tuple[Any, Sizes]], least: Sizes, trace: Callable[[Sizes], Any | None]):
        self.sizes = [sizes for _, sizes in traces]
        self.least = least
        self._trace = trace
        self._every = [rooms(closed) for closed, _ in traces]
        self._rooms: dict[Sizes, list[Room] | None] = dict(zip(self.sizes, self._every, strict=True))

    def found(self) -> list[int | None]:
        most: list[int | None] = [None] * len(self.least)
        if len({len(r) for r in self._every}) > 1:
            return most
        seen = set()
        for number, column in enumerate(zip(*self._every, strict=True)):
            left = tuple(room.left for room in column)
            if column in seen or None in left or len({room.rows for room in column}) > 1 or len(set(left)) == 1:
                continue
            seen.add(column)
            for group, size in self._limits(number, left, column[0].rows).items():
                old = most[group]
                most[group] = size if old is None else min(old, size)
        return most

    def _limits(self, number: int, left: Sequence[Any], rows: int) -> Mapping[int, int]:
        """The limits, by group, that the access with this number sets. left: its room in each trace."""
        fitting = [(g, rate) for g in range(len(self.least)) if (rate := self._fitting(g, left)) is not None]
        limits = self._even(number, left, dict(fitting)) if len(fitting) == 1 else {}
        if limits:
            return limits  # else it fits by chance, or the indices go no further
        rates, first = self._alone(number, left), self.sizes[0]
        if all(rate == int(rate) for rate in rates.values()) and left == self._expected(left, rates):
            return self._even(number, left, rates) if min(rates.values(), default=0) > 0 else {}
        steep = [g for g, rate in rates.items() if rate >= 1]  # others grow ever more slowly: buckets of distances
        limits = {g: max(s[g] for s in self.sizes) for g in steep}
        far = [limits[g] + rows if g in steep else size for g, size in enumerate(first)]
        return {} if not steep or self._has_room(number, far) else limits

    def _expected(self, left: Sequence[Any], rates: Mapping[int, float]) -> tuple[float, ...]:
        """The room in each trace, from that in the first, where each group takes so many places for one more of its size."""
        first = self.sizes[0]
        return tuple([left[0] - sum(rate * (s[g] - first[g]) for g, rate in rates.items()) for s in self.sizes])

    def _fitting(self, group: int, left: Sequence[Any]) -> float | None:
        """How many places one more of this group takes, if it is this group alone."""
        old, new = next(((r, s[group]) for r, s in zip(left, self.sizes, strict=True) if r != left[0]), (0, 0))
        by = new - self.sizes[0][group]
        rate = (left[0] - old) / by if by else 0
        return rate if rate >= 1 and rate == int(rate) and left == self._expected(left, {group: rate}) else None

    def _alone(self, number: int, left: Sequence[Any]) -> Mapping[int, float]:
        """How many places one more of each group takes, found with each at another size alone."""
        first = self.sizes[0]
        found: dict[int, float] = {}
        for group, size in enumerate(first):
            other = next((s[group] for s in self.sizes if s[group] != size), size)
            alone = self._at([other if g == group else n for g, n in enumerate(first)])
            now = alone[number].left if alone is not None and len(alone) == len(self._every[0]) else None
            if now is not None and now != left[0]:
                found[group] = (left[0] - now) / (other - size)
        return found

    def _even(self, number: int, left: Sequence[Any], rates: Mapping[int, float]) -> dict[int, int]:
        """The limits where groups take so many places for one more: of each with the others at their smallest, which is
        all that can be said of one size."""
        limits: dict[int, int] = {}
        for group, rate in rates.items():
            at = [self.least[g] if g in rates and g != group else size for g, size in enumerate(self.sizes[0])]
            room = left[0] - sum(k * (at[g] - self.sizes[0][g]) for g, k in rates.items())
            most = max(at[group] + int(room // rate), *[s[group] for s in self.sizes])  # what ran once stays
            at[group] = most + 1
            if not self._has_room(number, at):
                limits[group] = most
        return limits

    def _has_room(self, number: int, sizes: Sequence[int]) -> bool:
        """Whether the access is known to stay inside at other sizes."""
        found = self._at(sizes)
        if found is None or len(found) != len(self._every[0]):
            return False  # another program, that of a slice that was cut
        left = found[number].left
        return left is not None and left >= 0

    def _at(self, sizes: Sequence[int]) -> Sequence[Room] | None:
        key = tuple(sizes)
        if key not in self._rooms:
            closed = self._trace(key)
            self._rooms[key] = None if closed is None else rooms(closed)
        return self._rooms[key]


def rooms(closed: Any) -> list[Room]:
    """The room that each access of a closed jaxpr leaves whose indices depend on no input, at both ends of each dimension,
    in the order of the program. Loops and branches are passed over."""
    found: list[Room] = []
    _follow(closed, [None] * len(jax_compat.open_jaxpr(closed)[0].invars), found)
    return found


Value = Callable[[], Any]  # what gives an array, or None where it is not known after all


@dataclass(slots=True)
class _Results:
    """The results of an equation whose operands depend on no input, computed when they are asked for."""

    eqn: Any
    operands: Sequence[Value]
    _known: list[Any] = field(default_factory=list)

    def __getitem__(self, number: int) -> Any:
        if not self._known:
            self._known = [None] * len(self.eqn.outvars)
            if all(getattr(v.aval, "size", _MOST_ELEMENTS + 1) <= _MOST_ELEMENTS for v in self.eqn.outvars):
                try:
                    operands = [operand() for operand in self.operands]
                    if all(o is not None for o in operands):
                        self._known = list(jax_compat.bind_equation(self.eqn, operands))
                except Exception:  # whatever an equation says that cannot be run here: it stays unknown
                    pass
        return self._known[number]


def _follow(closed: Any, inputs: Sequence[Value | None], found: list[Room]) -> list[Value | None]:
    """The results of a jaxpr, None for those that depend on an input that is None. Adds its rooms to `found`."""
    jaxpr, constants = jax_compat.open_jaxpr(closed)
    known: dict[Any, Value | None] = dict(zip(jaxpr.invars, inputs, strict=True))
    known.update((v, lambda c=c: c) for v, c in zip(jaxpr.constvars, constants, strict=True))

    def read(atom: Any) -> Value | None:
        return (lambda: atom.val) if type(atom) is jax_compat.LITERAL_TYPE else known[atom]

    for eqn in jaxpr.eqns:
        operands = [read(a) for a in eqn.invars]
        inner = jax_compat.jaxprs_in(eqn)
        results: list[Value | None] = [None] * len(eqn.outvars)
        if eqn.primitive.name in PLAIN_CALLS | RULED_CALLS and len(inner) == 1:
            results = _follow(inner[0], operands, found)
        elif not inner:
            for rows, lowest, highest in _accesses(eqn, operands):
                found += [Room(rows, lowest), Room(rows, None if highest is None else rows - 1 - highest)]
            values = [o for o in operands if o is not None]
            if len(values) == len(operands) and not eqn.effects:
                computed = _Results(eqn, values)
                results = [lambda c=computed, n=n: c[n] for n in range(len(eqn.outvars))]
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(a) for a in jaxpr.outvars]


def _accesses(eqn: Any, operands: Sequence[Value | None]) -> Iterator[tuple[int, int | None, int | None]]:
    """(rows, lowest, highest place) of each dimension that an equation takes a part of, or writes one to."""
    kind, params = eqn.primitive.name, eqn.params
    shape = getattr(eqn.invars[0].aval, "shape", ()) if eqn.invars else ()
    if kind == "slice":
        for rows, start, limit in zip(shape, params["start_indices"], params["limit_indices"], strict=True):
            yield rows, start, limit - 1
    elif kind in ("dynamic_slice", "dynamic_update_slice"):
        update = kind == "dynamic_update_slice"
        taken = eqn.invars[1].aval.shape if update else params["slice_sizes"]
        for rows, index, size in zip(shape, operands[1 + update :], taken, strict=False):
            if index is not None:
                yield rows, *_ends(index(), size)
    elif kind in ("gather", "scatter", "scatter-add", "scatter_add") and operands[1] is not None:
        numbers = params["dimension_numbers"]
        if kind == "gather":
            axes, windows = numbers.start_index_map, params["slice_sizes"]
        else:
            axes = numbers.scatter_dims_to_operand_dims
            inside = iter([eqn.invars[2].aval.shape[axis] for axis in numbers.update_window_dims])
            single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
            windows = [1 if axis in single else next(inside) for axis in range(len(shape))]
        places = operands[1]()
        for column, axis in enumerate(axes):
            yield shape[axis], *_ends(None if places is None else np.asarray(places)[..., column], windows[axis])


def _ends(places: Any, size: int) -> tuple[int | None, int | None]:
    """The lowest and the highest place of windows of a size that begin at these places."""
    if places is None or not np.size(places):
        return None, None
    return int(np.min(places)), int(np.max(places)) + size - 1
