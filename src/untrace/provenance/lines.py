"""The lines of source files, of which only those become strings that somebody asks for."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np


class Lines:
    """The lines of a text in UTF-8. Each is decoded when it is asked for: of a long file a program touches little."""

    def __init__(self, data: bytes):
        self.data = data if data.endswith(b"\n") else data + b"\n"
        self._ends = np.flatnonzero(np.frombuffer(self.data, np.uint8) == ord("\n")) + 1

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        return self.text(index, index + 1)

    def text(self, start: int, stop: int) -> str:
        """The lines from one up to another one, counted from 0."""
        return self.data[self._ends[start - 1] if start else 0 : self._ends[stop - 1]].decode() if stop else ""

    @property
    def whole(self) -> Lines:
        return self

    def holding(self, text: bytes) -> Iterator[int]:
        """The lines that a text stands in, counted from 1."""
        at = self.data.find(text)
        while at >= 0:
            yield self.at(at)
            at = self.data.find(text, at + 1)

    def at(self, offset: int) -> int:
        """The line of a byte, counted from 1."""
        return int(np.searchsorted(self._ends, offset, "right")) + 1


class Listed(list[str]):
    """The same of lines that are strings already."""

    def text(self, start: int, stop: int) -> str:
        return "".join(self[start:stop])

    @functools.cached_property
    def whole(self) -> Lines:
        return Lines("".join(self).encode())
