"""The text of a program after each pass, for whoever looks for the pass that made it wrong or ugly."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from untrace._errors import OptionError, UntraceError
from untrace.driver.attempts import Attempt
from untrace.ir.passes import NONE, Course
from untrace.lift.passes import PASSES as LIFTS
from untrace.module.passes import PASSES as STATEMENTS

# What is before and after the passes.
CAPTURED, SIMPLIFIED, PROVEN = "capture", "simplify", "proof"


@dataclass(frozen=True, slots=True)
class Step:
    """A pass and the text after it. `diff`: from the text of the step before, as `diff -u` gives it; "" where it is the
    same. `why`: what the pass does, or why it stands where it does."""

    name: str
    why: str
    text: str
    diff: str

    def __str__(self) -> str:
        heading = f"# pass {self.name}: {self.why}"
        return "\n".join([heading, self.diff.rstrip("\n") if self.diff else "# (the text is the same)", ""])


def steps_of(attempt: Attempt, proven: str) -> Iterator[Step]:
    """The steps of an attempt, whose text in the end is `proven`; each is written when it is asked for."""
    words = attempt.form.target.simplifications or "nothing was"
    before = ""
    for name, why in _passes():
        if name == PROVEN:
            text = proven
        else:
            course = NONE if name in (CAPTURED, SIMPLIFIED) else Course(until=name)
            text = _text(attempt, course, name != CAPTURED)
        yield Step(name, f"{why}: {words}" if name == SIMPLIFIED else why, text, _diff(before, text))
        before = text


def known_pass(name: str) -> str:
    """The name itself. Raises OptionError where no pass is called so."""
    names = [known for known, _ in _passes()]
    if name not in names:
        raise OptionError(f"{name!r} is no pass; the passes are {', '.join(names)}")
    return name


def _passes() -> list[tuple[str, str]]:
    """The names of all steps, in their order, and what each does."""
    return [
        (CAPTURED, "what was traced"),
        (SIMPLIFIED, "rewrites of the jaxpr that keep every bit"),
        *[(each.name, each.why) for each in (*LIFTS, *STATEMENTS)],
        (PROVEN, "the guard, and what was proven"),
    ]


def _text(attempt: Attempt, course: Course, simplified: bool) -> str:
    try:
        return attempt.replayed(course, simplified).source
    except UntraceError as error:
        return f"# There is no text yet: {error}\n"


def _diff(before: str, after: str) -> str:
    """All of `after` where there is nothing before it."""
    if not before:
        return after
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2))
    return "\n".join(lines[2:])
