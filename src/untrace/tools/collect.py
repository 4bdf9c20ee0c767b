"""Looks on while a text is evaluated, and makes records of what goes through its probes."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from untrace import jax_compat
from untrace.ir.nodes import Equation, Function
from untrace.ir.stepwise import Turn
from untrace.ir.structured import Checkpoint, Transformed
from untrace.ir.types import Data
from untrace.tools.instrument import Instrumented
from untrace.tools.probe import PROBE, VALUE, Frame, Probed
from untrace.tools.records import Record
from untrace.tools.statistics import Statistics, statistics

NON_FINITE = "first non-finite"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is recorded. `only`: patterns of names and functions, none for all; `non_finite`: nothing but the first record with a
    NaN or an infinity. `turns`: of loops with more turns than that, the first ones and the last; or these turns alone.
    `keep`: so many bytes of values; `records`: so many records, the first and the last ones."""

    only: tuple[str, ...] = ()
    non_finite: bool = False
    turns: int | frozenset[int] = 8
    keep: int = 1 << 26
    records: int = 200_000

    def is_named(self, name: str, function: str) -> bool:
        """Whether a name in a function is asked for: by itself, the function (the last part of its path too) or both."""
        words = (name, name.partition("[")[0].partition(".")[0], function, function.rpartition(".")[2])
        words += tuple(f"{f}.{n}" for f in words[2:] for n in words[:2])
        return not self.only or any(fnmatchcase(word, pattern) for pattern in self.only for word in words)

    def is_chosen(self, turn: int, count: int | None) -> bool:
        if isinstance(self.turns, int):
            return turn < self.turns or count is not None and turn == count - 1
        return turn in self.turns


@dataclass(frozen=True, slots=True)
class _Inside:
    """A function that is being evaluated. `turn`: of a loop, which was run `run` times before and stands in `depth` functions
    of the text. `moved`: what its frames began with where it was traced, in numbers, and where it is called now; JAX traces a
    function once for several calls. `is_again`: whether a checkpoint computes it once more."""

    turn: Turn | None
    run: int
    depth: int
    moved: tuple[int, tuple[Frame, ...]] | None
    is_again: bool


class Kept:
    """Records as they come, in bounded memory: of too many the first half and the last ones."""

    def __init__(self, most: int) -> None:
        self._first_most = most - most // 2
        self._first: list[Record] = []
        self._last: deque[Record] = deque(maxlen=most // 2)
        self.count = 0

    def add(self, record: Record) -> None:
        self.count += 1
        if len(self._first) < self._first_most:
            self._first.append(record)
        else:
            self._last.append(record)

    def __iter__(self) -> Iterator[Record]:
        yield from self._first
        yield from self._last


class Collector:
    """The observer of an evaluation (`ir.stepwise`). to: is given each record as it comes. authors: the author's lines behind
    those of the text."""

    def __init__(
        self, text: Instrumented, wanted: Wanted, authors: Mapping[int, str], to: Callable[[Record], None] | None = None
    ) -> None:
        self._text, self._wanted, self._authors, self._to = text, wanted, authors, to
        self._inside: list[_Inside] = []
        self._first_calls: dict[Function, tuple[Equation, int]] = {}
        self._places: dict[Function, int] = {}
        # How often was what seen, in the program and in each turn around.
        self._seen: list[Counter[tuple[object, ...]]] = [Counter()]
        self._room = wanted.keep
        self._index = 0
        self.records = Kept(wanted.records)
        self.non_finite: Record | None = None
        self.not_kept = 0  # bytes of values
        self.skipped = 0  # records of turns that were not chosen

    # ---------------------------------------------------------------- where it is

    def enter(self, equation: Equation, function: Function, args: Sequence[Data], turn: Turn | None) -> None:
        frames = self._frames_of(equation)
        first, depth = self._first_calls.setdefault(function, (equation, len(frames)))
        moved = None if first is equation else (depth, frames)
        run = place = 0
        if turn is not None:
            around = self._moved(frames)
            place = max(self._place_of(function) + len(around) - len(frames), len(around))
            loop = "loop", tuple([f.function for f in around])
            self._seen[-1][loop] += turn.is_first
            run = self._seen[-1][loop] - 1
            self._seen.append(Counter())
        callee = equation.callee
        is_again = type(callee) is Transformed and type(callee.how) is Checkpoint and callee.how.differentiated
        self._inside.append(_Inside(turn, run, place, moved, is_again))

    def leave(self) -> None:
        if self._inside.pop().turn is not None:
            self._seen.pop()

    def _place_of(self, function: Function) -> int:
        """In how many functions of the text the body of a loop stands, as its own probes say: of a loop that was differentiated
        JAX does not know."""
        found = self._places.get(function)
        if found is None:
            probed = [e.params["probed"] for e in function.equations if getattr(e.callee, "object", None) is PROBE]
            found = self._places[function] = min([len(p.frames) for p in probed], default=1) - 1
        return found

    def _frames_of(self, equation: Equation) -> tuple[Frame, ...]:
        if equation.origin is None:
            return ()
        return self._text.frames_of(jax_compat.equation_source(equation.origin)[0])

    def _moved(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        for inside in reversed(self._inside):
            if inside.moved is not None:
                depth, now = inside.moved
                frames = (*now, *frames[depth:])
        return frames

    # ---------------------------------------------------------------- what it sees

    def replaces(self, equation: Equation, inputs: Sequence[Data]) -> Sequence[Data] | None:
        if getattr(equation.callee, "object", None) is not PROBE:
            return None
        (value,) = inputs
        if not jax_compat.is_jax_array(value):  # a number of the jaxpr's own, which a branch has given: Python's
            value = np.asarray(value, equation.inputs[0].aval.dtype)
        self._see(equation.params["probed"], value)
        return inputs

    def computed(self, equation: Equation, outputs: Sequence[Data]) -> None:
        pass

    def _see(self, probed: Probed, value: Data) -> None:
        wanted, site = self._wanted, probed.site
        name = site.name + probed.leaf
        if site.name == "_" or not wanted.is_named(name, site.function):
            return
        turns = [i.turn for i in self._inside if i.turn is not None]
        is_chosen = all([wanted.is_chosen(turn.number, turn.count) for turn in turns])
        self.skipped += not is_chosen
        if not is_chosen or wanted.non_finite:
            if self.non_finite is not None or statistics(np.asarray(jax_compat.as_numpy(value))).is_finite:
                return
        record = self._record(probed, name, self._moved(probed.frames), turns, value)
        if self.non_finite is None and not record.statistics.is_finite:
            self.non_finite = record
        self.records.add(record)
        if self._to is not None:
            self._to(record)

    def _record(
        self, probed: Probed, name: str, frames: tuple[Frame, ...], turns: Sequence[Turn], value: Data
    ) -> Record:
        array = np.asarray(jax_compat.as_numpy(value))
        is_key = jax_compat.is_key(value)
        data = np.ascontiguousarray(array).tobytes()
        kept = array if len(data) <= self._room else None
        if kept is None:
            self.not_kept += len(data)
        else:
            self._room -= len(data)
        key = probed.kind, tuple([f.function for f in frames]), name
        occurrence = (*[i.run for i in self._inside if i.turn is not None], self._seen[-1][key])
        self._seen[-1][key] += 1
        is_again = probed.kind == VALUE and any([i.is_again for i in self._inside])
        self._index += 1
        site = probed.site
        return Record(
            self._index - 1, name, probed.kind, frames, tuple([(turn.number, turn.count) for turn in turns]),
            tuple([i.depth for i in self._inside if i.turn is not None]), occurrence, site.line, site.statement,
            self._authors.get(site.line, ""), str(jax_compat.typeof(value).str_short(short_dtypes=True)), np.shape(value),
            probed.batch, is_again, Statistics(np.size(array)) if is_key else statistics(array),
            hashlib.blake2b(data, digest_size=8).hexdigest(), probed.serial, kept,
        )  # fmt: skip
