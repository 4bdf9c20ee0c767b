"""What was proven about a written program, in one line."""

from __future__ import annotations

from dataclasses import dataclass

LEVELS: tuple[str, ...] = ("unproven", "close", "bits", "hlo", "jaxpr")
"""The proof levels, weakest first."""

_WORDS = {
    "jaxpr": "proven: same jaxpr",
    "hlo": "proven: same compiled program",
    "bits": "proven: same bits",
    "close": "checked: close to the original",
    "unproven": "unproven",
}


@dataclass(frozen=True)
class Proof:
    """The level that was reached, how (`detail`), and what the proof leaves out (`notes`).

    `level` is one of `LEVELS`:
      jaxpr     re-tracing the text gives the same jaxpr, up to names, dead code and the order of
                independent equations;
      hlo       both compile to the same program;
      bits      the same bits on sampled inputs, edge values included;
      close     the same within a stated number of ULPs on sampled inputs;
      unproven  could not be checked, or is different; `detail` says why.
    """

    level: str
    detail: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _rank(self.level)

    def __str__(self) -> str:
        """One line: `proven: same jaxpr (276 equations); note: ...`."""
        line = _WORDS[self.level]
        detail = " ".join(self.detail.split())
        if detail:
            line += f": {detail}" if self.level == "unproven" else f" ({detail})"
        if self.notes:
            line += "; note: " + " ".join(self.notes[0].split())
            if len(self.notes) > 1:
                line += f" (and {len(self.notes) - 1} more)"
        return line

    @property
    def sentence(self) -> str:
        """What was proven, without how: `proven: same jaxpr`."""
        return _WORDS[self.level]

    def at_least(self, level: str) -> bool:
        """Whether this proof is `level` or stronger; ValueError for a level that does not exist."""
        return _rank(self.level) >= _rank(level)


def said_level(text: str) -> str:
    """The level of which a text says that it was proven; "" where it says nothing."""
    return next((level for level in reversed(LEVELS) if _WORDS[level] in text), "")


def _rank(level: str) -> int:
    try:
        return LEVELS.index(level)
    except ValueError:
        raise ValueError(f"{level!r} is no proof level; they are {', '.join(LEVELS)}") from None
