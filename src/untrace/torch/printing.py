"""Comments of a module written from PyTorch: the author's statement beside the first statement that came from it."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Collection
from typing import Any

from untrace.module.comments import Layout
from untrace.provenance import syntax
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Site
from untrace.python.statements import Assign, If, Lines, Statement, Unpack
from untrace.python.tree import WIDTH, Name
from untrace.torch.call_tree import author_frame
from untrace.torch.structure import OF_PYTORCH, CallOrigin

_LONGEST = 160


class TorchLayout(Layout):
    """Blank lines as in the author's source; PyTorch's statements as comments (`comments="none"` leaves them out).

    silent: heads of functions that have none.
    """

    def __init__(self, provenance: Any, comments: str, silent: Collection[str] = ()):
        super().__init__(provenance, comments)
        self._silent = silent
        self._ifs = 0  # how many `if`s stand around what is arranged

    def arrange(self, body: Any, outermost: bool = True) -> list[Statement]:
        if outermost:
            self._said: set[tuple[str, int]] = set()
            first = body[0] if body else None
            # The author's statement stands where the layer is called.
            head = first.text.removeprefix("# ") if type(first) is Lines else ""
            self._is_layer = head.startswith(OF_PYTORCH) or head in self._silent
        found: list[Statement] = []
        for statement in super().arrange(body, outermost):
            if type(statement) is Assign and statement.comment:
                lines = list(statement.lines("    " * (1 + self._depth + self._ifs)))
                # Behind the last line of several it would say something of that line.
                if len(lines) > 1 or len(statement.comment) + 4 > WIDTH - len(lines[-1]):
                    found.append(Lines(f"# {statement.comment}"))
                    statement.comment = ""
            if type(statement) is If:
                self._ifs += 1
                statement.otherwise = [s for s in statement.otherwise if not _says_nothing(s)]
                statement.body = self.arrange(statement.body, outermost=False)
                statement.otherwise = self.arrange(statement.otherwise, outermost=False)
                self._ifs -= 1
            found.append(statement)
        return found

    def _site(self, statement: Statement) -> Site | None:
        origin = statement.origin if type(statement) in (Assign, Unpack) else None
        if type(origin) is CallOrigin:
            return origin.site if origin.site.user_frames else None
        return super()._site(statement)

    def _above(self, statement: Statement) -> list[Statement]:
        return []  # `arrange` does it at every level

    def _comment(self, statement: Any, site: Site, last: Site | None, phase: str) -> None:
        if self._comments == "none" or type(statement) is not Assign or self._is_layer:
            return
        frame = author_frame(site)
        if frame is None:
            return
        text, line = statement_of(frame)
        if not text or (frame.file, line) in self._said and self._comments != "full":
            return
        self._said.add((frame.file, line))
        statement.comment = text if len(text) < WIDTH - 6 else text[: WIDTH - 7].rstrip() + "…"


def _says_nothing(statement: Statement) -> bool:
    """`x = x`, which a choice between two values can become where both have the author's name."""
    if type(statement) is not Assign or len(statement.targets) != 1:
        return False
    return type(statement.value) is Name and statement.targets[0] == statement.value.id


def statement_of(frame: Frame) -> tuple[str, int]:
    """(the author's statement that a frame is in, on one line, where it starts); ("", 0) where it is not to be had."""
    node: Any = frame.node
    try:
        while node is not None and not isinstance(node, ast.stmt):
            node = syntax.parent(frame.code, node)[0]
    except (AttributeError, TypeError, RecursionError):
        node = None
    if node is None:
        text, line = linecache.getline(frame.file, frame.line or 0), frame.line or 0
    elif isinstance(node, (ast.For, ast.While, ast.If, ast.With, ast.FunctionDef)):
        text, line = linecache.getline(frame.file, frame.line or 0), frame.line or 0
    else:
        # Nodes may count lines from the start of their function; the frame counts from the start of the file.
        line = node.lineno + (frame.line or 0) - getattr(frame.node, "lineno", 0)
        several = (node.end_lineno or node.lineno) > node.lineno
        text = ast.unparse(node) if several else linecache.getline(frame.file, line)
    text = " ".join(text.split("#")[0].split()) if "'" not in text and '"' not in text else " ".join(text.split())
    return (text, line) if text.isprintable() and len(text) <= _LONGEST else ("", line)
