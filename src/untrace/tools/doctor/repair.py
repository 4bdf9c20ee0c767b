"""Puts better ways of writing into a program, each only where it is shown to be better on the samples and nowhere worse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from untrace import jax_compat
from untrace._errors import CaptureError
from untrace.ir.nodes import Atom, Equation, Function
from untrace.ir.types import Data
from untrace.tools.doctor.examine import LIMIT, Examination
from untrace.tools.doctor.pair import Pair
from untrace.tools.doctor.pairs import ZERO_DIVIDEND, ZERO_FACTOR
from untrace.tools.doctor.patterns import Match, matches_in, place_of_match, replaced
from untrace.tools.doctor.tape import computed

_SLACK = 6.0  # ULP by which a repaired result may be worse where it was right
_WRONG = 64.0  # times: and where it was wrong
_GARBAGE = 1e5  # ULP: and where it had no digit, it may not become NaN
_UNLUCKY = 64.0  # ULP
_AT_END = 0.01  # of all samples
_ROUNDS = 8
_MOST_TRIALS = 40
_MOST_TOGETHER = 5
_CHOICE = 3  # of those that help
_ZEROS = (ZERO_FACTOR, ZERO_DIVIDEND)


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement: by which pattern, of which pair, at which place of the program as it then was."""

    name: str
    place: tuple[int, ...]
    anchor: Equation
    pair: Pair | None


@dataclass(frozen=True, slots=True, eq=False)
class Repair:
    """One better way of writing, where it was taken. `changes`: the equations that it stands for the last of, each with the
    pattern's name and its own place in the program when it was put in. `better`: of which samples the result is right, or
    nearer to it, by this. `positive`: it is worse where an input is negative of which all that was given is positive.
    `unlucky`: on how many samples it is off by some more ULP than before. `known`: whether it is a pair that people know."""

    name: str
    because: str
    changes: tuple[Change, ...]
    better: np.ndarray
    positive: bool
    unlucky: int
    known: bool = False

    @property
    def is_guard(self) -> bool:
        """Whether it only keeps zeros from what has no value: there is no better way of writing to be told."""
        return any(c.pair in _ZEROS for c in self.changes)


@dataclass(frozen=True, slots=True)
class _Trial:
    """What came of a repair: the errors; `better`, `positive` and `unlucky` as of a Repair."""

    errors: np.ndarray
    better: np.ndarray
    positive: bool
    unlucky: int


@dataclass(slots=True)
class Repaired:
    """The repaired function, what was done, and its errors on the samples in ULP."""

    function: Function
    repairs: Sequence[Repair]
    errors: np.ndarray


@dataclass(frozen=True, slots=True)
class Site:
    """In what repairs are put. `derivatives`: as of `matches_in`. `derived`: of a function that is differentiated before it is
    examined, the program that then is."""

    derivatives: frozenset[str] | None = None
    derived: Callable[[Function], Function | None] | None = None

    def put(self, function: Function, match: Match) -> Function | None:
        return replaced(function, match, self.derived is not None)


def repaired(function: Function, found: Examination, site: Site, before: np.ndarray | None = None) -> Repaired:
    """`function`, whose calls are inlined, with all repairs that hold on the samples of its examination. before: its errors
    there, where it has been repaired already."""
    errors = found.errors if before is None else before
    repairs: list[Repair] = []
    tried: set[_Key] = set()
    idle: list[_Key] = []
    while (errors > LIMIT).any():
        best = _best(function, found, errors, site, tried, idle) or _together(function, found, errors, site, idle)
        if best is None:
            break
        function, made, errors = best
        repairs += made
    return Repaired(function, repairs, errors)


def guarded(better: Repaired, found: Examination, site: Site) -> Repaired:
    """A repaired derivative in which zeros are passed on as zeros too, where there still is NaN for them."""
    last = _zeros(better.function, found, better.errors, site) if site.derivatives is not None else None
    return better if last is None else Repaired(last[0], (*better.repairs, *last[1]), last[2])


def alone(program: Function, found: Examination, at: Equation) -> Repaired | None:
    """Another program for the same, in longer numbers, as the one repair; None where it does not help. at: where that is said
    to be."""
    accepted = _accepted(found, program, found.errors, Site())
    if accepted is None:
        return None
    trial = accepted.better, accepted.positive, accepted.unlucky
    because = "numbers of 16 bits are too short for what is computed on the way"
    return Repaired(
        program, [Repair("in float32", because, (Change("in float32", (), at, None),), *trial)], accepted.errors
    )


_Key = tuple[str, Equation | None]
_Made = tuple[Function, list[Repair], np.ndarray]


def _best(
    function: Function,
    found: Examination,
    errors: np.ndarray,
    site: Site,
    tried: set[_Key],
    idle: list[_Key],
) -> _Made | None:
    """The one that leaves the fewest samples wrong, of the largest patterns that help. tried: what has been; idle: is given
    what neither helped nor harmed."""
    best: _Made | None = None
    helpful: list[_Key] = []
    chosen: _Key | None = None
    for match in matches_in(function, site.derivatives):
        key = match.pattern.name, match.anchor.origin
        if key in tried or len(tried) >= _MOST_TRIALS:
            continue
        tried.add(key)
        made = _tried(function, match, found, errors, site)
        if made is None:
            idle.append(key)
            continue
        helpful.append(key)
        # What is put in everywhere may stand in the place of a larger one, which cannot be found after it.
        changes = made[1][0].changes
        hides = len(changes) > 1 and chosen is not None and any(c.anchor.origin is chosen[1] for c in changes)
        if best is None or not hides and _left(found, made[2]) < _left(found, best[2]):
            best, chosen = made, key
        # What helps far away only is no reason not to look for what helps nearby.
        is_near = _left(found, best[2])[0] < _left(found, errors)[0] or not _left(found, errors)[0]
        if len(helpful) >= _CHOICE and is_near or not (best[2] > LIMIT).any():
            break
    tried -= {key for key in helpful if key != chosen}  # they may help again, beside the one that is taken
    return best


def _together(function: Function, found: Examination, errors: np.ndarray, site: Site, idle: list[_Key]) -> _Made | None:
    """Two that are wrong hide what each repair does: of what did not help, two at a time, wherever they are found."""
    again = [m for m in matches_in(function, site.derivatives) if (m.pattern.name, m.anchor.origin) in idle]
    again = [m for m in again if not m.inside and m.beside is None]
    first = {m.anchor.origin: m for m in reversed(again)}  # of each place the largest
    places = list(first.values())[-_MOST_TOGETHER:]
    idle.clear()
    for number, match in enumerate(places):
        first_made = _everywhere(function, match, site)
        if first_made is None:
            continue
        new, changes = first_made
        for other in places[:number]:
            again = [
                m for m in matches_in(new, site.derivatives, other.pattern.pair)
                if m.name == other.name and m.anchor.origin is other.anchor.origin and m.beside is None
            ]  # fmt: skip
            then_made = _everywhere(new, again[0], site) if again else None
            accepted = then_made and _accepted(found, then_made[0], errors, site)
            if accepted and then_made:
                trial = accepted.better, accepted.positive, accepted.unlucky
                made = [(match, changes), (again[0], then_made[1])]
                return (
                    then_made[0],
                    [Repair(m.name, m.pattern.pair.because, c, *trial, m.pattern.pair.known) for m, c in made],
                    accepted.errors,
                )
    return None


def _zeros(function: Function, found: Examination, errors: np.ndarray, site: Site) -> _Made | None:
    """Zeros that a derivative passes on as zeros, where there is NaN for them: as few as will do."""
    best: _Made | None = None
    keys: list[_Key] = []
    new = function
    for _ in range(_ROUNDS):
        wrong = np.isinf(errors if best is None else best[2]) & found.samples.near
        match = _zero_in(new, found, wrong, site)
        put = None if match is None else site.put(new, match)
        if match is None or put is None:
            break
        new = put
        keys.append((match.name, match.anchor.origin))
        best = _with_zeros(function, found, errors, site, keys, best) or best
    kept = keys[: len(best[1][0].changes)] if best is not None else []
    for key in list(kept):
        fewer = [k for k in kept if k is not key]
        made = _with_zeros(function, found, errors, site, fewer)
        if made is not None and best is not None and _left(found, made[2]) <= _left(found, best[2]):
            best, kept = made, fewer
    return best


def _with_zeros(
    function: Function,
    found: Examination,
    errors: np.ndarray,
    site: Site,
    keys: Sequence[_Key],
    best: _Made | None = None,
) -> _Made | None:
    """With these guarded; None where that does not help, or no more than what is the best so far."""
    changes: list[Change] = []
    pair = ZERO_FACTOR
    for key in keys:
        matches = [m for p in _ZEROS for m in matches_in(function, site.derivatives, p)]
        match = next((m for m in matches if (m.name, m.anchor.origin) == key), None)
        put = None if match is None else site.put(function, match)
        if match is None or put is None:
            return None
        changes.append(_change(function, match))
        function, pair = put, match.pattern.pair
    trial = _accepted(found, function, errors, site) if changes else None
    if trial is None or best is not None and _left(found, trial.errors) >= _left(found, best[2]):
        return None
    # A number without a right digit says less than NaN does.
    lies = np.isinf(errors) & np.isfinite(trial.errors) & (trial.errors >= found.no_digit) & found.samples.near
    if lies.sum() * 10 > trial.better.sum():
        return None
    repair = Repair(pair.name, pair.because, tuple(changes), trial.better, trial.positive, trial.unlucky)
    return function, [repair], trial.errors


def _zero_in(function: Function, found: Examination, rows: np.ndarray, site: Site) -> Match | None:
    """The first product or quotient that is NaN in some samples where a factor, or the dividend, is zero."""
    zeros: list[tuple[Equation, Atom]] = []

    def seen(equation: Equation, operands: Sequence[Data], results: Sequence[Data]) -> None:
        for place, x in enumerate(operands[: {"mul": 2, "div": 1}.get(equation.callee.name, 0)]):
            if np.shape(x) == np.shape(results[0]) and (np.isnan(results[0]) & (np.asarray(x) == 0))[rows].any():
                zeros.append((equation, equation.inputs[place]))

    computed(function, found.samples.leaves, found.samples.count, seen)
    matches = [m for pair in _ZEROS for m in matches_in(function, site.derivatives, pair)]
    return next((m for e, x in zeros for m in matches if m.anchor is e and m.bound[0].atom is x), None)


def _left(found: Examination, errors: np.ndarray) -> tuple[int, int]:
    wrong = errors > LIMIT
    return int((wrong & found.samples.near).sum()), int(wrong.sum())


def _tried(function: Function, match: Match, found: Examination, errors: np.ndarray, site: Site) -> _Made | None:
    """What a match does everywhere, or else at its own place; None where it does not help."""
    candidate = _everywhere(function, match, site)
    accepted = candidate and _accepted(found, candidate[0], errors, site)
    if not accepted and candidate and len(candidate[1]) > 1:
        alone = site.put(function, match)
        candidate = None if alone is None else (alone, (_change(function, match),))
        accepted = candidate and _accepted(found, candidate[0], errors, site)
    if not accepted or not candidate:
        return None
    trial = accepted.better, accepted.positive, accepted.unlucky
    pair = match.pattern.pair
    repair = Repair(match.pattern.name, pair.because, candidate[1], *trial, pair.known)
    return candidate[0], [repair], accepted.errors


def _everywhere(function: Function, match: Match, site: Site) -> tuple[Function, tuple[Change, ...]] | None:
    """The function with one pair put in wherever it is found, also where that makes new places for it: a zero that is moved
    behind one product is before the next."""
    changes: list[Change] = []
    for _ in range(_ROUNDS):
        new = site.put(function, match)
        if new is None:
            break
        changes.append(_change(function, match))
        function = new
        again = [
            m
            for m in matches_in(function, site.derivatives, match.pattern.pair)
            if m.pattern.pair is match.pattern.pair
        ]
        again = [m for m in again if not _is_own(m, changes)]
        if not again:
            break
        match = again[0]
    return (function, tuple(changes)) if changes else None


def _change(function: Function, match: Match) -> Change:
    return Change(match.name, place_of_match(function, match), match.anchor, match.pattern.pair)


def changed(function: Function, repairs: Sequence[Repair], site: Site) -> Function:
    """The same repairs in the same program for other sizes. Raises CaptureError where it is another one there."""
    for change in [c for repair in repairs for c in repair.changes]:
        new = None
        with jax_compat.uncounted():
            with jax.ensure_compile_time_eval():  # a series is found by numbers, also where a text is being traced
                matches = matches_in(function, site.derivatives, change.pair)
            for match in matches:
                if match.name == change.name and place_of_match(function, match) == change.place:
                    new = new or site.put(function, match)
        if new is None:
            raise CaptureError(
                "what was repaired is not in the program that the function is for arguments of this size"
            )
        function = new
    return function


def _is_own(match: Match, changes: Sequence[Change]) -> bool:
    """Whether a match is in what a repair has written: it has the place of the anchor that it replaced."""
    return not match.pattern.pair.is_derivative and any(
        match.anchor.origin is not None
        and change.anchor.origin is not None
        and match.anchor.origin.source_info is change.anchor.origin.source_info
        for change in changes
    )


def _accepted(found: Examination, new: Function, errors: np.ndarray, site: Site) -> _Trial | None:
    """How a repaired program does, if it is better and nowhere worse."""
    program = new if site.derived is None else site.derived(new)
    if program is None:
        return None
    new_errors, unexplained = found.errors_of(program, _SLACK)
    right = errors <= LIMIT
    # What is off by no more than the last bits of the inputs is right.
    wrong = np.where(errors > _GARBAGE, np.finfo(float).max, _WRONG * errors)
    worse = np.where(right, new_errors > errors + _SLACK, (new_errors > wrong) & np.isfinite(errors)) & unexplained
    better = (errors > LIMIT) & (new_errors < errors / 4) & (new_errors < found.no_digit)
    here = worse & found.samples.positive
    # Some digits are a matter of luck: what is far better may be a little worse once in a while, or at the end of the range.
    unlucky = here & right & (new_errors < _UNLUCKY)
    at_end = here & ~found.samples.near & np.isfinite(new_errors)
    if at_end.sum() <= _AT_END * len(errors):
        unlucky |= at_end
    if not better.any() or (here & ~unlucky).any() or unlucky.sum() * 10 > better.sum() or here[0]:
        return None
    return _Trial(new_errors, better, bool((worse & ~found.samples.positive).any()), int(unlucky.sum()))
