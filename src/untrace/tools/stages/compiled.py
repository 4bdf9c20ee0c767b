"""The stages that JAX's compiler makes: StableHLO, and HLO once XLA has optimised it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from untrace import jax_compat
from untrace.prove.hlo import METADATA, without_tables
from untrace.tools.stages.model import NOTHING, Line, Stage, indented_folds, safe, with_what_folds_hold

_STRING = r'"(?:[^"\\]|\\.)*"'
_LOCATION = re.compile(rf" ?\bloc\((?:#loc\d*|unknown|{_STRING}(?:\(#loc\d*\))?)\)")
_TABLE = re.compile(r"#loc(\d*) = loc\((.*)\)$")
_PARTS = re.compile(rf"({_STRING})|#loc(\d*)")
_REGION = re.compile(r" *(?:cond|\} do|\},) \{$")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_COMPUTATION = re.compile(r"(?:ENTRY )?(%?[\w.-]+) \(.*\{$")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation|branch_computations|"
                     r"called_computations)=(\{[^}]*\}|%?[\w.-]+)")  # fmt: skip


def stablehlo_stage(lowered: Any) -> Stage:
    """What JAX hands to XLA. lowered: of a program with marks (`jax_compat.with_marks`)."""
    texts = lowered.as_text(debug_info=True).rstrip("\n").split("\n")
    table = {found[1]: found[2] for text in texts if (found := _TABLE.match(text))}
    resolved: dict[str, frozenset[int]] = {}
    lines: list[Line] = []
    opened: dict[int, int] = {}  # lines by their depth: of an operation with regions the location stands at its end
    for text in texts:
        if text.startswith("#loc"):
            continue
        depth = len(text) - len(text.lstrip())
        # What a line says of itself stands at its end; before that are the arguments of a function.
        at_end = text[text.rfind(" loc(") :] if text.endswith(")") else ""
        own = _numbers(at_end, table, resolved) if _LOCATION.fullmatch(at_end) else NOTHING
        if text.lstrip().startswith("}") and own and depth in opened:
            head = lines[opened[depth]]
            lines[opened[depth]] = Line(head.text, head.number, head.computes | own)
        elif not _REGION.match(text):
            opened[depth] = len(lines)
        lines.append(Line(safe(_LOCATION.sub("", text)), len(lines) + 1, own))
    shown = [line.text for line in lines]
    begins = [text.endswith("{") or " stablehlo.while(" in text for text in shown]
    # The regions of a loop stand as far in as the loop itself.
    folds = indented_folds([f" {text}" if _REGION.match(text) else text for text in shown], begins)
    return Stage("stablehlo", "StableHLO", "mlir", with_what_folds_hold(lines, folds), folds)


def _numbers(text: str, table: Mapping[str, str], resolved: dict[str, frozenset[int]]) -> frozenset[int]:
    """The equations that a location names: those of its own name, or else of the locations in it, one after the other."""
    found: list[frozenset[int]] = []
    for name, reference in _PARTS.findall(text):
        if name:
            found.append(frozenset(jax_compat.marks_in([name[1:-1]])))
        elif reference in resolved:
            found.append(resolved[reference])
        elif reference in table:
            resolved[reference] = NOTHING  # a location that is part of itself ends here
            resolved[reference] = _numbers(table[reference], table, resolved)
            found.append(resolved[reference])
    if "fused" in text:
        return NOTHING.union(*found)
    return next((numbers for numbers in found if numbers), NOTHING)


def hlo_stage(text: str) -> Stage:
    """What XLA has made of it. A kernel stands for everything that was fused into it. text: HLO with its metadata."""
    lines: list[Line] = []
    called: list[tuple[int, str, str]] = []  # line, how, which computation
    bounds: dict[str, tuple[int, int]] = {}
    current, start = "", 0
    for raw in without_tables(text).rstrip("\n").split("\n"):
        names = [name for metadata in METADATA.findall(raw) for name in _OP_NAME.findall(metadata)]
        own = frozenset(jax_compat.marks_in(part for name in names for part in name.split(";")))
        shown = METADATA.sub("", raw)
        head = _COMPUTATION.match(shown)
        if head:
            current, start = head[1].lstrip("%"), len(lines)
        elif shown == "}" and current:
            bounds[current] = start, len(lines)
        elif current:
            for how, which in _CALLED.findall(shown):
                called += [(len(lines), how, name.lstrip("%")) for name in re.findall(r"%?[\w.-]+", which)]
        lines.append(Line(safe(shown), len(lines) + 1, own))
    for place, how, name in called:  # a computation stands before those that call it
        first, last = bounds.get(name, (0, -1))
        inner = NOTHING.union(*[line.computes | line.holds for line in lines[first : last + 1]])
        line = lines[place]
        if how == "calls":
            lines[place] = Line(line.text, line.number, line.computes | inner, line.holds)
        else:
            lines[place] = Line(line.text, line.number, line.computes, line.holds | (inner - line.computes))
    folds = tuple(sorted(bounds.values()))
    return Stage("hlo", "optimised HLO", "hlo", with_what_folds_hold(lines, folds), folds)
