"""Finds the equations of a program behind those of another one that was traced from the same source."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from jax.extend.core import Literal

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Site
from untrace.tools.stages.model import NOTHING
from untrace.tools.stages.program import Numbered

Equation = Any  # JAX's own


class Matcher:
    """Finds the equations of a program behind those of another one: by place, and where a place was traced several times, as
    in a loop of Python's, by what goes into them and what takes their results."""

    def __init__(self, program: Numbered) -> None:
        self._program = program
        self._exact = IdentityMap((eqn, number) for number, eqn in enumerate(program.equations))
        self._found: dict[object, list[int]] = {}
        for number, eqn in enumerate(program.equations):
            for site in program.origins[number]:
                for key in (*_keys(site, eqn), *_keys_of_ends(site, eqn), *_keys_within(site.frames, site, eqn)):
                    self._found.setdefault(key, []).append(number)

    @cached_property
    def _flow(self) -> _Flow:
        return _Flow(self._program.equations, self._program.jaxpr)

    def behind(
        self, equations: Sequence[Equation], sites: Sequence[tuple[Site, ...]], jaxpr: Any
    ) -> list[frozenset[int]]:
        """For each of these equations of `jaxpr` the numbers of the program's: the very same, or else those from the same
        place, by the same primitive where there are such."""
        found = self._by_place(equations, sites)
        if all(len(numbers) == 1 for numbers in found):
            return found
        flow = _Flow(equations, jaxpr)
        for _ in range(_SWEEPS):
            before = list(found)
            taken = NOTHING.union(*[numbers for numbers in found if len(numbers) == 1])
            for place in (*range(len(found)), *reversed(range(len(found)))):
                if len(found[place]) == 1:
                    continue
                score = self._by_flow(flow, place, found)
                if found[place]:
                    found[place] = _best({n: score.get(n, 0.0) for n in found[place]})
                else:
                    best = _best({n: s for n, s in score.items() if s >= 1 and n not in taken})
                    found[place] = best if len(best) == 1 else NOTHING
                    taken |= found[place]
            _in_order(found)
            if found == before:
                break
        return found

    def _by_place(self, equations: Sequence[Equation], sites: Sequence[tuple[Site, ...]]) -> list[frozenset[int]]:
        """The same by place alone. Where as many come from a place, each is its own."""
        groups: dict[tuple[object, ...], list[int]] = {}
        found: list[frozenset[int]] = [NOTHING] * len(equations)
        for place, eqn in enumerate(equations):
            if eqn in self._exact:
                found[place] = frozenset((self._exact[eqn],))
                continue
            for site in sites[place]:
                key = next((key for key in self._candidates(site, eqn) if key in self._found), None)
                if key is not None:
                    groups.setdefault(key, []).append(place)
        for key, places in groups.items():
            numbers = self._found[key]
            own = len(numbers) == len(places)
            if not own and key[0] is _WITHIN:
                continue  # a call may hold much else
            for turn, place in enumerate(places):
                found[place] |= {numbers[turn]} if own else frozenset(numbers)
        return found

    def _by_flow(self, flow: _Flow, place: int, found: Sequence[frozenset[int]]) -> dict[int, float]:
        """For those that do the same as an equation, how many of its operands' equations lead to each, and of those that
        take its results."""
        score: dict[int, float] = {}
        for position, (maker, *port) in flow.operands(place):
            makers = found[maker] if maker >= 0 else (maker,)
            for number in makers if len(makers) <= _FEW else ():
                for user in {u for u, at in self._flow.users.get((number, *port), ()) if at == position}:
                    score[user] = score.get(user, 0) + 1 / len(makers)
        for position, user in flow.results(place):
            users = found[user]
            for number in users if len(users) <= _FEW else ():
                for at, (maker, *_) in self._flow.operands(number):
                    if at == position and maker >= 0:
                        score[maker] = score.get(maker, 0) + 1 / len(users)
        name = flow.equations[place].primitive.name
        return {n: s for n, s in score.items() if self._flow.equations[n].primitive.name == name}

    def _candidates(self, site: Site, eqn: Equation) -> Iterable[tuple[object, ...]]:
        """Where an equation may be found: at its place by its primitive, then where it stood before a derivative or a map
        that was called took it elsewhere, then at its place by any."""
        exact = tuple(_keys(site, eqn))
        yield from exact[:3]
        inner = self._program.provenance.site(jax_compat.before_it_moved(eqn))
        if inner is not site and inner.user_frames:
            yield from _last_keys(inner.frames, inner, eqn)
            yield from _keys_within(inner.frames[-1:], inner, eqn)
        yield from exact[3:]


def _keys(site: Site, eqn: Equation) -> Iterable[tuple[object, ...]]:
    """What equations have in common, from all to little; nothing of an equation that came from nowhere."""
    if site.frames:
        name = eqn.primitive.name
        yield site.frames, site.phase, name, site.below, tuple([v.aval.str_short() for v in eqn.outvars])
        yield site.frames, site.phase, name, site.below
        yield site.frames, site.phase, name
        yield site.frames, site.phase
        yield (site.frames,)


def _keys_of_ends(site: Site, eqn: Equation) -> Iterable[tuple[object, ...]]:
    """The same for the calls of functions inside, each by itself: a function may have been traced alone."""
    for start in range(len(site.frames)):
        yield from _last_keys(site.frames[start:], site, eqn)


def _last_keys(frames: Sequence[Frame], site: Site, eqn: Equation) -> Iterable[tuple[object, ...]]:
    if frames:
        yield "inside", frames, site.phase, eqn.primitive.name
        yield "inside", frames, site.phase


_WITHIN = "within"


def _keys_within(frames: Sequence[Frame], site: Site, eqn: Equation) -> Iterable[tuple[object, ...]]:
    """The same for all that a call computes, of what JAX has batched or differentiated anew and knows the call alone."""
    for frame in frames:
        yield _WITHIN, frame, site.phase, eqn.primitive.name, tuple([v.aval.str_short() for v in eqn.outvars])


def _best(score: Mapping[int, float]) -> frozenset[int]:
    best = max(score.values(), default=0.0)
    return frozenset([n for n, s in score.items() if s > best - 1e-6])


_SWEEPS = 8
_FEW = 8  # more equations than these say little of their neighbours


class _Flow:
    """Where the operands of equations come from, and where their results go.

    A port is (number of an equation, -1, place among its results), (number, which of its bodies, place among that body's
    arguments), or (-1, 0, place among the arguments of the program).
    """

    def __init__(self, equations: Sequence[Equation], jaxpr: Any) -> None:
        self.equations = equations
        self._ports: dict[Any, tuple[int, int, int]] = {}
        for position, var in enumerate(jax_compat.open_jaxpr(jaxpr)[0].invars):
            self._ports[var] = -1, 0, position
        for number, eqn in enumerate(equations):
            for position, var in enumerate(eqn.outvars):
                self._ports[var] = number, -1, position
            for body, inner in enumerate(jax_compat.jaxprs_in(eqn)):
                for position, var in enumerate(jax_compat.open_jaxpr(inner)[0].invars):
                    self._ports.setdefault(var, (number, body, position))
        self.users: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for number in range(len(equations)):
            for position, port in self.operands(number):
                self.users.setdefault(port, []).append((number, position))

    def operands(self, number: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """(place among the operands, the port that it comes from), of what comes from one."""
        for position, atom in enumerate(self.equations[number].invars):
            port = None if isinstance(atom, Literal) else self._ports.get(atom)
            if port is not None:
                yield position, port

    def results(self, number: int) -> Iterator[tuple[int, int]]:
        """(place among its operands, number) of what takes a result."""
        for position in range(len(self.equations[number].outvars)):
            for user, at in self.users.get((number, -1, position), ()):
                yield at, user


def _in_order(found: list[frozenset[int]]) -> None:
    """Leaves of the equations found those that can be when all come in the program's order: of those that are sure, the
    longest row that does is believed."""
    sure = [place for place, numbers in enumerate(found) if len(numbers) == 1]
    believed = {sure[turn] for turn in _longest_row([min(found[place]) for place in sure])}
    for places, step in ((range(len(found)), 1), (range(len(found) - 1, -1, -1), -1)):
        last = -math.inf * step
        for place in places:
            known = found[place]
            if len(known) == 1 and place in believed:
                (last,) = known
            elif len(known) > 1:
                later = frozenset([n for n in known if (n - last) * step > 0])
                if later:
                    found[place] = later
                    last = min(later) if step > 0 else max(later)


def _longest_row(numbers: Sequence[int]) -> list[int]:
    """The places of a longest increasing row among numbers (patience sorting)."""
    ends: list[int] = []  # of the rows of each length, the place of the one with the least end
    before: list[int | None] = []
    for place, number in enumerate(numbers):
        length = bisect.bisect_left(ends, number, key=numbers.__getitem__)
        before.append(ends[length - 1] if length else None)
        ends[length : length + 1] = [place]
    row: list[int] = []
    place = ends[-1] if ends else None
    while place is not None:
        row.append(place)
        place = before[place]
    return row
