"""What stands between and beside the statements of a function: blank lines, sections, comments.

Blank lines come where the author had them, and between the forward and the backward part of a gradient. A comment
gives the type of a value and the place that it comes from, where that tells something new.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from untrace import jax_compat
from untrace._places import is_cell, place_of
from untrace.ir.types import Aval
from untrace.module.loops.emit import Start
from untrace.provenance.sites import Provenance, Site
from untrace.python.statements import Assign, Def, For, Lines, Statement, Unpack, Unpacked
from untrace.python.tree import WIDTH, Call
from untrace.python.types import array_type

_ASSIGNMENTS = (Assign, Unpacked, Unpack)


_SECTIONS = {"forward": "forward", "backward": "backward, written out: an edit above does not change it"}


class Layout:
    """Arranges the bodies of one module. comments: "full", "some" or "none"."""

    def __init__(self, provenance: Provenance, comments: str):
        self._provenance = provenance
        self._comments = comments
        self.sizes: Mapping[int, str] = {}  # the words for sizes that may differ
        self._depth = 0  # how many functions stand around the one that is arranged

    def arrange(self, body: Sequence[Statement], outermost: bool = True) -> list[Statement]:
        """`body` with blank lines, section titles and comments, its nested functions arranged as well."""
        phases = [self._phase(s) for s in body]
        for place in range(
            len(body) - 2, -1, -1
        ):  # a function, or what a loop begins with, belongs to what it is there for
            if type(body[place]) in (Def, Lines) or isinstance(body[place], Start):
                phases[place] = phases[place + 1]
        # A gradient of a gradient goes forward and backward by turns: where it begins in the middle, no title is right.
        sections = outermost and "backward" in phases and next(p for p in phases if p) == "forward"
        found: list[Statement] = []
        section = ""
        last: Site | None = None
        for statement, phase in zip(body, phases, strict=True):
            site = self._site(statement)
            if _is_space(statement) and found and _is_space(found[-1]):
                continue
            if sections and phase and phase != section and (phase == "backward" or not section):
                section = phase
                if found and not _is_space(found[-1]):
                    found.append(Lines(""))
                found.append(Lines(f"# {_SECTIONS[section]}"))
                if _is_space(statement):
                    continue
            elif type(statement) is Def:
                if found and not _is_space(found[-1]):
                    found.append(Lines(""))
            elif found and type(found[-1]) is Def and not _is_space(statement):
                found.append(Lines(""))
            elif site is not None and last is not None and not _is_space(found[-1]) and self._paragraph(last, site):
                found.append(Lines(""))
            if type(statement) is Def:
                self._depth += 1
                statement.body = self.arrange(statement.body, outermost=False)
                self._depth -= 1
            elif site is not None and _is_assignment(statement):
                self._comment(statement, site, last, phase)
                last = site
                found.extend(self._above(statement))
            found.append(statement)
        return found

    def _site(self, statement: Statement) -> Site | None:
        origin = statement.origin if _is_assignment(statement) else None
        if origin is None:
            return None
        site = self._provenance.site(origin)
        return site if site.user_frames else None

    def _phase(self, statement: Statement) -> str:
        if getattr(statement, "is_backward", False):
            return "backward"
        if isinstance(statement, For):
            return next((p for p in map(self._phase, statement.body) if p), "")
        if not _is_assignment(statement):
            return ""
        if statement.origin is None:  # a function of the module, or a part of an argument
            return "forward" if type(statement.value) is Call else ""
        site = self._provenance.site(statement.origin)
        return "backward" if site.phase == "backward" else "forward"

    @staticmethod
    def _paragraph(last: Site, site: Site) -> bool:
        """Whether the author left an empty line between two statements of one function."""
        before, after = last.user_frames[-1], site.user_frames[-1]
        if before.code is not after.code or not before.end_line or not after.line:
            return False
        between = range(before.end_line + 1, after.line)
        return len(between) < 40 and any(not linecache.getline(after.file, n).strip() for n in between)

    def _comment(self, statement: Assign | Unpack, site: Site, last: Site | None, phase: str) -> None:
        if self._comments == "none":
            return
        full = self._comments == "full"
        if not full and phase != "backward":
            return
        frame = site.user_frames[-1]
        known = os.path.isabs(frame.file) or is_cell(frame.file)
        place = place_of(frame.file, frame.line) if frame.line and known else ""
        previous = last.user_frames[-1] if last is not None else None
        new_place = previous is None or previous.file != frame.file or previous.line != frame.line
        words = []
        if full or new_place:
            outputs: Sequence[Any] = getattr(statement.origin, "outvars", ())
            if len(statement.targets) == len(outputs) == 1:
                words.append(self._type(outputs[0].aval))
            if place and (full or new_place):
                # Whose line it is, where that is not the function that the whole came from.
                inside = full and frame.function != site.user_frames[0].function and frame.function.isidentifier()
                words.append(f"{place}, {frame.function}" if inside else place)
        if not words or type(statement) is not Assign and type(statement) is not Unpacked:
            return
        text = "  ".join([word for word in words if word])
        if text.isprintable() and len(text) < 60:
            statement.comment = text

    def _type(self, aval: Aval) -> str:
        return array_type(aval).sized(self.sizes).text if jax_compat.is_shaped_array(aval) else ""

    def _above(self, statement: Statement) -> list[Statement]:
        """Where everything is commented, what finds no room beside a statement stands above it."""
        if self._comments != "full" or type(statement) is not Assign and type(statement) is not Unpacked:
            return []
        if not statement.comment:
            return []
        indent = "    " * (self._depth + 1)
        if len(list(statement.lines(indent))[-1]) + 2 + len("# " + statement.comment) <= WIDTH:
            return []
        comment, statement.comment = statement.comment, ""
        return [Lines(f"# {comment}")]


def _is_assignment(statement: Statement) -> TypeGuard[Assign | Unpack]:
    return type(statement) in _ASSIGNMENTS


def _is_space(statement: Statement) -> bool:
    return type(statement) is Lines
