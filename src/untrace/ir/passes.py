"""What a pass is, and how a list of them is run: one after the other, each checked after it.

Two stages have such a list: `lift/passes.py` (of a Program) and `module/passes.py` (of the statements of a module).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from untrace._errors import UntraceError

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Pass(Generic[State]):
    """A pass of a stage: `run` changes the state in place. `why`: what it does, or why it stands where it does.

    `applies`: whether there is anything for it to do; a pass that does not apply is not run.
    """

    name: str
    why: str
    run: Callable[[State], object]
    applies: Callable[[State], bool] = lambda state: True


@dataclass(frozen=True, slots=True)
class Course:
    """Which passes of the lists are run: all; those up to `until`, itself among them ("": none); all but those in `without`."""

    until: str | None = None
    without: frozenset[str] = frozenset()


ALL = Course()
NONE = Course(until="")


class BrokenPass(UntraceError):
    """A pass left something that is not well formed. The message names the pass and what is wrong: a bug of untrace."""


def is_strict() -> bool:
    """Whether what a pass leaves is checked, and a fault in one is raised and costs more than readability."""
    return bool(os.environ.get("UNTRACE_STRICT"))


def run_passes(
    passes: Sequence[Pass[State]], state: State, check: Callable[[State], None], course: Course = ALL
) -> bool:
    """Runs those passes on `state`, with the check after each one under UNTRACE_STRICT; whether all were run.

    check: raises an UntraceError where the state is not well formed.
    """
    strict = is_strict()
    if strict:
        _checked(state, check, "before the first pass")
    if course.until == NONE.until:
        return False
    for each in passes:
        if each.name not in course.without and each.applies(state):
            each.run(state)
            if strict:
                _checked(state, check, f"after the pass {each.name!r}")
        if each.name == course.until:
            return False
    return True


def _checked(state: State, check: Callable[[State], None], when: str) -> None:
    try:
        check(state)
    except UntraceError as error:
        raise BrokenPass(f"{when}: {error}") from error
