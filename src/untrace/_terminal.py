"""What the command line shows: text on stdout, talk on stderr, colour on a terminal only."""

from __future__ import annotations

import ast
import io
import os
import pydoc
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

# What is shown of a long source where there is no pager: lines of its top, and of the beginning and the end of its
# entry function.
_TOP, _BODY, _END = 9, 45, 16

# Columns from which on two pieces of code can stand side by side.
_WIDE = 150


class Terminal:
    """The two streams of one run of the command line."""

    def __init__(self) -> None:
        self.out = Console(highlight=False)
        self.talk = Console(stderr=True, highlight=False)

    def mute(self) -> None:
        """Says and shows nothing from now on: of several processes that run the same command one does."""
        self.out = self.talk = Console(file=io.StringIO())

    def say(self, message: str) -> None:
        """Prints one message for the person on stderr."""
        self.talk.print(Text(message), soft_wrap=True)

    def tell(self, markup: str) -> None:
        """Prints a part of the result on stdout; `markup` is rich's, so escape what is not ours."""
        self.out.print(markup, soft_wrap=True)

    @contextmanager
    def working(self, on: str) -> Iterator[None]:
        """Shows a spinner on stderr while the body runs, where stderr is a terminal."""
        if not self.talk.is_terminal:
            yield
            return
        with self.talk.status(escape(on)):
            yield

    def show_source(self, source: str) -> None:
        """Prints Python source on stdout: highlighted and paged on a terminal, else as it is."""
        if not self.out.is_terminal:
            self.out.file.write(source if source.endswith("\n") else f"{source}\n")
            return
        self.page(highlighted(source), length=source.count("\n"))

    def show_text(self, text: str) -> None:
        """Prints lines on stdout as they are, on a terminal through a pager where they are many."""
        if not self.out.is_terminal:
            self.out.file.write(f"{text}\n")
            return
        self.page(Text(text), length=text.count("\n"))

    def show_beside(self, source: str, jaxpr: str) -> None:
        """Prints source and jaxpr side by side where there is room.

        Elsewhere the jaxpr stands below, as comments: what is printed is a Python module still.
        """
        if not self.out.is_terminal or self.out.width < _WIDE:
            comments = "\n".join(f"# {line}".rstrip() for line in jaxpr.splitlines())
            self.show_source(f"{source.rstrip()}\n\n\n# The jaxpr:\n#\n{comments}\n")
            return
        table = Table(box=None, padding=(0, 2), expand=True)
        table.add_column("written", ratio=1, overflow="fold")
        table.add_column("jaxpr", ratio=1, overflow="fold")
        left = highlighted(source)
        left.no_wrap, left.overflow = False, "fold"  # rich would cut what is too wide
        table.add_row(left, Text(jaxpr))
        with self.out.capture() as capture:
            self.out.print(table)
        text = Text.from_ansi(capture.get())
        self.page(text, length=len(text.split()))

    def show_excerpt(self, source: str, entry: str, where: str) -> None:
        """Like `show_source`, but without a pager of a long source only its parts.

        They are its top, the function `entry` (of a long one the beginning and the end), and in
        place of the rest a word on how much there is in the file `where`.
        """
        lines = source.splitlines()
        if self.out.is_terminal or len(lines) <= _TOP + _BODY + _END + 20:
            self.show_source(source)
            return
        shown = 0
        for first, end in [(0, _TOP), *_parts_of(source, entry)]:
            first = max(first, shown)  # where the function begins in the top
            self._leave_out(first - shown, where)
            self.out.file.write("".join(f"{line}\n" for line in lines[first:end]))
            shown = max(end, shown)
        self._leave_out(len(lines) - shown, where)

    def _leave_out(self, count: int, where: str) -> None:
        if count > 0:
            self.tell(f"\n    [dim]… {count} lines more, in {escape(where)} …[/]\n")

    def page(self, text: Text, length: int) -> None:
        """Prints `text` on stdout, through a pager when it is longer than the screen."""
        if length < self.out.height - 2:
            self.out.print(text, soft_wrap=True)
            return
        with self.out.capture() as capture:
            self.out.print(text, soft_wrap=True)
        pager = os.environ.get("PAGER")
        less = shutil.which("less")
        if pager is None and less is not None:
            # -R: keep the colours. The prompt says how to go on, for not everyone knows less.
            command = [less, "-R", "-Pline %lt (space\\: on, q\\: done)"]
            subprocess.run(command, input=capture.get(), text=True, check=False)
        else:
            pydoc.pager(capture.get())


def _parts_of(source: str, entry: str) -> list[tuple[int, int]]:
    """The lines of the function `entry`, from 0, as one part or, of a long function, two."""
    (function,) = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == entry]
    first = min(n.lineno for n in (function, *function.decorator_list)) - 1
    end = function.end_lineno or first
    return [(first, end)] if end - first <= _BODY + _END else [(first, first + _BODY), (end - _END, end)]


def highlighted(source: str) -> Text:
    """Python source with the colours of the terminal's own palette."""
    syntax = Syntax("", "python", theme="ansi_dark", background_color="default")
    return syntax.highlight(source)
