"""The loop: each function of a text goes to the editor, and its answer through the gate."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from untrace.refine.allowed import NotAllowed, Vocabulary, parsed
from untrace.refine.functions import Editor, given, places, replaced
from untrace.refine.judge import Judge, Text

_FENCED = re.compile(r"^```[\w+-]*[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an editor's answer. `function`: whose text it was to be. `before`, `after`: the texts. `why`: it was
    refused, in words; "" where it was taken, or where nothing was changed."""

    function: str
    before: str
    after: str
    why: str = ""

    @property
    def taken(self) -> bool:
        return not self.why and self.after != self.before

    def __str__(self) -> str:
        """`dense: taken, 12 lines for 15`, or `dense: refused: it has a new import (line 3)`."""
        if self.why:
            return f"{self.function}: refused: {self.why}"
        if not self.taken:
            return f"{self.function}: as it was"
        count, before = (len(text.strip().splitlines()) for text in (self.after, self.before))
        return f"{self.function}: taken, {count} line{'' if count == 1 else 's'} for {before}"


class Answers(tuple[Answer, ...]):
    """What came of all answers: a tuple. Printed, it has a line for each, and what they come to."""

    __slots__ = ()

    def __str__(self) -> str:
        taken, refused = sum(a.taken for a in self), sum(bool(a.why) for a in self)
        return "\n".join(
            [*map(str, self), f"{taken} taken, {refused} refused, {len(self) - taken - refused} as they were"]
        )


def edited(
    text: Text, editor: Editor, types: Mapping[str, str], authors: Mapping[str, str], seconds: float, tries: int = 1
) -> tuple[str, Answers]:
    """The text after the editor went over its functions, one after the other, and what came of each answer.

    types, authors: what is known of the functions, by name. seconds: the limit for tracing one answer. tries: how often the
    editor is asked for one function, where its answers are refused.
    Raises OptionError where the text cannot be traced in another process.
    """
    source = text.source
    answers: list[Answer] = []
    with Judge(text, seconds) as judge:
        for name in places(source):
            refused: list[str] = []
            for _ in range(tries):
                function = given(source, name, types, authors.get(name, ""), refused)
                answer, new = _judged(judge, source, function, editor, is_entry=name == text.name)
                answers.append(answer)
                if answer.taken:
                    source = new
                    judge.change(source)
                if not answer.why:
                    break
                refused.append(answer.why)
    return source, Answers(answers)


def _judged(judge: Judge, source: str, function: Any, editor: Editor, is_entry: bool) -> tuple[Answer, str]:
    name, before = function.name, str(function)
    try:
        said = editor(function)
    except Exception as error:  # the editor is the user's
        return Answer(name, before, before, f"the editor failed: {type(error).__name__}: {str(error)[:300]}"), source
    if said is None:
        return Answer(name, before, before), source
    if not isinstance(said, str):
        return Answer(name, before, before, f"it is a {type(said).__name__}, and no text"), source
    after = _without_fence(str(said)).strip("\n")
    if after == before.strip("\n"):
        return Answer(name, before, before), source
    place = places(source)[name]
    try:
        parsed(after, place.node, Vocabulary.of(source), is_entry, len(before))
        new = replaced(source, place, after)
        _check_place(source, new, name, after)
    except NotAllowed as error:
        return Answer(name, before, after, str(error)), source
    why = judge.refusal(name, new)
    return Answer(name, before, after, why), source if why else new


def _check_place(before: str, after: str, name: str, text: str) -> None:
    """The module must be what it was but for the function: as it is parsed, not as it looks."""
    old, new = ast.parse(before).body, ast.parse(after).body
    found = places(after).get(name)
    same = len(old) == len(new) and all(
        ast.dump(a) == ast.dump(b) for a, b in zip(old, new, strict=True) if getattr(a, "name", None) != name
    )
    if not same or found is None or ast.dump(found.node) != ast.dump(ast.parse(text).body[0]):
        raise NotAllowed("it changes what stands around it")


def _without_fence(text: str) -> str:
    """What stands between the marks of a block of code, where there is one such block."""
    blocks = _FENCED.findall(text)
    return blocks[0] if len(blocks) == 1 else text


def command_editor(command: str, seconds: float = 600.0) -> Callable[[Any], str]:
    """An editor that runs a command of the shell for each function: its text on stdin, the other text on stdout.

    `UNTRACE_CONTEXT` names a file with what there is to know beside it, as JSON: `name`, `types`, `callers`, `author`,
    `module`, and `refused`, why earlier answers were. An answer that stands in a block of Markdown counts without its marks.
    A command that fails, or takes longer than `seconds`, raises, so that the function stays as it was.
    """

    def edit(function: Any) -> str:
        import json
        import os

        with tempfile.TemporaryDirectory(prefix="untrace_refine_") as folder:
            context = Path(folder) / "context.json"
            context.write_text(json.dumps(function.context()), encoding="utf-8")
            environment = {**os.environ, "UNTRACE_CONTEXT": str(context)}
            done = subprocess.run(
                command, shell=True, input=str(function) + "\n", capture_output=True, text=True, timeout=seconds,
                env=environment, encoding="utf-8", errors="replace",
            )  # fmt: skip
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [""])[-1]
            raise RuntimeError(f"{shlex.split(command)[0]} ended with {done.returncode}. {last}".strip())
        return done.stdout

    return edit
