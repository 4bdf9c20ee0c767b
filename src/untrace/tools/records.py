"""What was seen of one statement."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from untrace.tools.probe import COTANGENT, TANGENT, VALUE, Frame
from untrace.tools.statistics import Statistics

# What stands before the name of what is no value of the function itself.
MARKS = {VALUE: "", TANGENT: "d ", COTANGENT: "∂ "}


@dataclass(frozen=True, slots=True)
class Record:
    """One array that a statement of the text gave, or its derivative.

    `name`: the variable, and where in it the array is (`params['w']`); `return` is what a function gives back without a
    name. `kind`: "value", "tangent" (of forward mode) or "cotangent" (of reverse mode). `frames`: the functions that
    were running and their lines, the outermost first. `turns`: of the loops around it, the outermost first, with the
    numbers of turns that these have (None where nobody knows); those of `scan` count the elements, also where it goes
    backwards. `depths`: in how many of `frames` each of them stands. `occurrence`: how often each of those loops was
    run before, and the same was seen in the turn. `line`: of the text; `author`: the author's, such as `model.py:8`, ""
    where that is not known. `type`: as JAX says it, `f32[3,5]`. `batch`: the axes that `jax.vmap` has put in. `again`:
    whether it was computed once more, as `jax.checkpoint` does. `digest`: of the bits. `passing`: counts what was
    traced; a value and its derivatives have the same. `value`: None where it was not kept, because of `keep=`; of typed
    keys their words.
    """

    index: int
    name: str
    kind: str
    frames: tuple[Frame, ...]
    turns: tuple[tuple[int, int | None], ...]
    depths: tuple[int, ...]
    occurrence: tuple[int, ...]
    line: int
    statement: str
    author: str
    type: str
    shape: tuple[int, ...]
    batch: tuple[int, ...]
    again: bool
    statistics: Statistics
    digest: str
    passing: int
    value: np.ndarray | None = field(default=None, compare=False)

    @property
    def function(self) -> str:
        """The function that the statement stands in."""
        return self.frames[-1].function if self.frames else ""

    @property
    def place(self) -> str:
        """`model.layer, line 14, turn 3 (m.py:8)`."""
        turn = f", turn {', '.join(str(t) for t, _ in self.turns)}" if self.turns else ""
        author = f" ({self.author})" if self.author else ""
        return f"{self.function}, line {self.line}{turn}{author}"

    @property
    def key(self) -> tuple[object, ...]:
        """What it is aligned by in another run: names and turns, and no lines."""
        return (
            self.kind, tuple(f.function for f in self.frames), self.name, tuple(t for t, _ in self.turns),
            self.occurrence,
        )  # fmt: skip

    @property
    def shown_name(self) -> str:
        return MARKS[self.kind] + self.name
