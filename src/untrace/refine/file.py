"""A module that was saved, with an editor to go over it: what is proven is that the module still is the same program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from untrace._errors import OptionError
from untrace.prove.saving import save_module
from untrace.refine.context import argument_types, traced_call
from untrace.refine.declared import declared_calls, declared_level, entry_name
from untrace.refine.editing import Answers, command_editor, edited
from untrace.refine.judge import Text
from untrace.refine.sizes import TracedCall


def entry_of(path: Path) -> str:
    """The function of a saved module that is called from outside. Raises OptionError."""
    return entry_name(_read(path))


@dataclass(frozen=True)
class WrittenFile:
    """A saved module, with its arrays and the arguments at which it is traced."""

    text: Text

    @classmethod
    def load(cls, path: Path, name: str, given: Sequence[TracedCall]) -> WrittenFile:
        """given: arguments; where there are none, those that the module says it was written for. Raises OptionError."""
        source = _read(path)
        data = path.with_suffix(".npz")
        arrays = dict(np.load(data)) if data.is_file() else {}
        calls = [traced_call(*call) for call in given]
        try:
            calls += declared_calls(source, name)
        except OptionError:
            if not calls:
                raise
        return cls(Text(source, name, arrays, declared_level(source), calls))

    def refined(self, command: str, tries: int, seconds: float) -> tuple[WrittenFile, Answers]:
        """The module after the editor, and what came of its answers."""
        text = self.text
        types = argument_types(text.source, text.name, text.arrays, text.calls)
        source, answers = edited(text, command_editor(command), types, {}, seconds, tries)
        return WrittenFile(dataclasses.replace(text, source=source)), answers

    def save(self, path: Path, overwrite: bool) -> None:
        save_module(path, self.text.source, dict(self.text.arrays), overwrite)


def _read(path: Path) -> str:
    source = path.read_text(encoding="utf-8")
    try:
        compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise OptionError(f"{path} is no Python: {error}") from None
    return source
