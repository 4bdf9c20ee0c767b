"""The page: one file with its style, its script and the stages as data, of which nothing can become markup or script."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources

from untrace.tools.stages.model import Computation, Line, Stage

_PLACE = "/*the stages*/"  # where the data go


def html(name: str, stages: Sequence[Stage], computations: Sequence[Computation], notes: Sequence[str]) -> str:
    """The page of these stages."""
    data: dict[str, object] = {
        "name": name,
        "notes": list(notes),
        "stages": [_stage(stage) for stage in stages],
        "computations": [[c.name, c.type, c.place, int(c.backward), c.flops] for c in computations],
        "inside": {c.number: _ranges(c.inside) for c in computations if c.inside},
    }
    head, foot = _template().split(_PLACE)
    return f"{head}{_as_script_data(data)}{foot}"


@cache
def _template() -> str:
    return resources.files("untrace.tools.stages").joinpath("page.html").read_text(encoding="utf-8")


def _as_script_data(data: object) -> str:
    """JSON without a character that ends a script or begins a tag or an entity."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _stage(stage: Stage) -> dict[str, object]:
    return {
        "key": stage.key,
        "title": stage.title,
        "language": stage.language,
        "same": stage.same_as,
        "text": stage.text,
        "numbers": _numbers(stage.lines),
        "computes": [_ranges(line.computes) for line in stage.lines],
        "holds": [_ranges(line.holds) for line in stage.lines],
        "folds": [list(fold) for fold in stage.folds],
        "values": {place: list(line.values) for place, line in enumerate(stage.lines) if line.values},
    }


def _numbers(lines: Sequence[Line]) -> list[int | None] | None:
    """How the lines are counted; None where that is from 1 on."""
    numbers = [line.number for line in lines]
    return None if numbers == list(range(1, len(lines) + 1)) else numbers


def _ranges(numbers: Iterable[int]) -> list[int]:
    """Numbers as first and last ones of runs: [3, 5, 8, 8] for 3, 4, 5 and 8."""
    found: list[int] = []
    for number in sorted(numbers):
        if found and found[-1] == number - 1:
            found[-1] = number
        else:
            found += [number, number]
    return found
