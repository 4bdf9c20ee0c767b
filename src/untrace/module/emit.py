"""From a Program to the text of a module, with its source map and the arrays that go beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace.ir.nodes import Function, Program
from untrace.ir.passes import ALL, Course
from untrace.ir.types import Origin
from untrace.lift.naming.names import provenance_of
from untrace.lift.naming.size_words import author_words
from untrace.module.access_paths import Layout as Grouped
from untrace.module.access_paths import argument_order
from untrace.module.comments import Layout
from untrace.module.interface import entry
from untrace.module.interface.guarded import Guarded
from untrace.module.passes import Statements, improve
from untrace.module.sizes import words_of_sizes
from untrace.module.writer import ModuleWriter
from untrace.provenance.sites import Provenance
from untrace.python import helpers
from untrace.python.statements import Assign, Compound, Def, Lines, Statement, Unpack, docstring_lines
from untrace.python.tree import WIDTH

# Of a function of which one call has trees, and another has their leaves: with more, these are two functions.
_MOST_ARGUMENTS = 8


@dataclass(slots=True)
class Written:
    """The text of a module. `arrays` go into the `.npz`; `origins[i]` is the jaxpr equation behind line i + 1, or None.

    `callables`: Python functions without text, by the name of the function of the module that stands for each.
    """

    source: str
    name: str
    arrays: dict[str, np.ndarray]
    origins: list[Origin] = field(repr=False)
    notes: tuple[str, ...] = ()
    callables: dict[str, Callable[..., object]] = field(default_factory=dict)
    # A jaxpr equation -> those whose expressions stand inside its own.
    folded: dict[Origin, tuple[Origin, ...]] = field(repr=False, default_factory=dict)
    sizes: Mapping[int, str] = field(default_factory=dict)  # the words for sizes that follow the inputs
    scans: int = 0  # how many loops over local functions became scans: the program is another one
    shared: bool = False  # whether functions that differ became one
    rolled: bool = False  # whether statements that repeat became a loop
    comprehends: bool = False  # whether a list or a sum became a comprehension
    kept_carries: bool = False  # whether a loop has no tree in its carry, for that would have another order

    def with_docstring(self, docstring: str, old: str) -> None:
        """Puts another docstring of as many lines in the place of `old`."""
        before, after = (list(docstring_lines(d, "")) for d in (old, docstring))
        if len(before) == len(after):
            lines = self.source.split("\n")
            lines[: len(before)] = after
            self.source = "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """What is decided for one attempt at a text, by the pipeline or by a capture that knows more than a trace."""

    keeps_carries: bool = True
    """Whether the carries of loops keep their order: XLA may round otherwise where they do not."""

    in_order: bool = False
    """Whether everything is computed in the author's order: in that order the derivative of a function adds up."""

    share: Callable[[ModuleWriter, list[Statement]], bool] | None = None
    """Makes one of functions that differ, and says whether it did, where a capture knows better which are one."""

    layout: Callable[[Provenance, str], Layout] = Layout
    """What puts blank lines and comments between statements."""

    size_names: bool = True
    """Whether the author's words for sizes are looked for in the code; else the functions have them."""

    course: Course = ALL
    """Which of the passes over the statements are run."""


def write_module(
    writer: Callable[[frozenset[JaxprEqn], bool, bool], ModuleWriter],
    program: Program,
    docstring: str,
    forced: frozenset[JaxprEqn] = frozenset(),
    standalone: bool = False,
    idiomatic: bool = False,
    comments: str = "none",
    annotations: str = "none",
    reroll: bool = False,
    rolls: bool = True,
    guarded: Guarded | None = None,
    manner: Manner = Manner(),
) -> Written:
    """The module of `program`. Raises UnsupportedPrimitiveError for what no rule and no `bind` can express.

    guarded: what the entry depends on beside its arguments, for its guard (`guard.guarded_by`); None: without one. course:
    which passes over the statements are run. writer: the target's.
    """

    def begun(layouts: Mapping[Function, Grouped]) -> tuple[ModuleWriter, str, list[Statement]]:
        module = writer(forced, standalone, idiomatic)
        module.reroll, module.guarded = reroll, guarded
        module.described.start(idiomatic and comments != "none", annotations == "jaxtyping")
        module.program, module.in_order, module.provenance = (
            program.entry.jaxpr,
            manner.in_order,
            provenance_of(program),
        )
        module.agreed = layouts
        module.residuals = program.facts.residuals
        module.keeps_carries = manner.keeps_carries
        module.numbers = program.numbers or module.numbers
        if module.numbers.integers:
            module.size_names = author_words(program, provenance_of(program)) if manner.size_names else {}
            module.described.sizes = words_of_sizes(program, module.size_names)
        return module, *entry.write_entry(module, program)

    module, name, definitions = begun({})
    agreed = {
        body: layout for body, layout in module.unfit.items() if len(argument_order(body, layout)) <= _MOST_ARGUMENTS
    }
    if agreed:  # which calls take another one's trees apart is known only now
        module, name, definitions = begun(agreed)
    statements = Statements(module, list(definitions), provenance_of(program), manner.share, rolls)
    if idiomatic:
        improve(statements, manner.course)
    definitions = statements.definitions
    module.described.finish([*module.definitions, *definitions])
    lines: list[str] = []
    origins: list[Origin] = []

    def emit(*texts: str) -> None:
        lines.extend(texts)
        origins.extend([None] * len(texts))

    constants = set(module.constants)
    guarded_entry = next((d for d in definitions if type(d) is Def), None)
    layout = manner.layout(provenance_of(program), comments) if idiomatic else None
    if layout is not None:
        layout.sizes = module.described.sizes
    for statement in [*module.definitions, *definitions]:
        if statement not in constants:
            if type(statement) is Def:
                emit("", "")
                if layout is not None:
                    statement.body = layout.arrange(statement.body)
                if statement is guarded_entry and module.guard:  # last: it is no part of the program
                    space = [Lines("")] if statement.body and type(statement.body[0]) in (Def, Lines) else []
                    statement.body = [*module.guard, *space, *statement.body]
            _print([statement], lines, origins)
    below, origins_below = lines, origins
    lines, origins = [], []
    if idiomatic:
        _drop_unread(module, below)
    if docstring:
        emit(*docstring_lines(docstring, ""))
        emit("")
    standard, others = _import_lines(module)
    emit(*standard)
    if standard and others:
        emit("")
    emit(*[line for each in others for line in each.split("\n")])
    if module.constants:
        emit("")
    if "_constants" in module.helpers:
        emit("", *helpers.text("_constants").split("\n"), "", "")
    _print(module.constants, lines, origins)
    at_the_end = [h for h in module.helpers if helpers.name_at_end(h)]
    for helper in module.helpers:
        if helper != "_constants" and helper not in at_the_end:
            emit("", "", *helpers.text(helper).split("\n"))
    lines.extend(below)
    origins.extend(origins_below)
    for helper in at_the_end:
        emit("", "", *helpers.text(helper).replace(helper, helpers.name_at_end(helper)).split("\n"))
    emit("")
    text = "\n".join(lines)
    notes = tuple(module.notes)
    sizes = module.described.sizes
    del module.described  # it holds the module
    return Written(
        text,
        name,
        module.large,
        origins,
        notes,
        module.missing,
        module.folded,
        sizes,
        module.scans,
        statements.shared,
        statements.rolled,
        statements.comprehends,
        module.kept_carries,
    )


_WORD = re.compile(r"[A-Za-z_]\w*")


def _drop_unread(module: ModuleWriter, lines: Sequence[str]) -> None:
    """Takes out the constants and imports that nothing in the text needs: what a loop closes over may be known inside it by
    another form."""
    helped = [line for h in module.helpers if h != "_constants" for line in helpers.text(h).split("\n")]
    words = set(_WORD.findall("\n".join([*lines, *helped])))
    kept: list[Statement] = []
    for statement in reversed(module.constants):
        name = statement.targets[0] if type(statement) is Assign and len(statement.targets) == 1 else None
        if type(name) is str and name not in words:
            continue
        kept.append(statement)
        words.update(word for line in statement.lines("") for word in _WORD.findall(line))
    module.constants[:] = reversed(kept)
    for name in [n for n in module.large if n not in words]:
        del module.large[name]
    if "_constants" in module.helpers:
        if "_constants" in words:
            words.update(_WORD.findall(helpers.text("_constants")))
        else:
            module.helpers.remove("_constants")
            module.modules.difference_update(set(helpers.modules("_constants")) - words)
    module.modules.difference_update(jax_compat.ALIASES - words)


def _import_lines(module: ModuleWriter) -> tuple[list[str], list[str]]:
    import sys

    known = {**jax_compat.IMPORTS, **module.import_lines}
    others = sorted(module.modules - known.keys() - {"", "bytes", "slice"})
    plain = [line for name, line in known.items() if name in module.modules] + [f"import {name}" for name in others]
    lines = plain + _together(module.imports)
    standard = [s for s in lines if s.split()[1].split(".")[0] in sys.stdlib_module_names]
    return sorted(standard), [s for s in lines if s not in standard]


def _together(imports: Iterable[str]) -> list[str]:
    """Import lines in their order, those from one module as one."""
    names: dict[str, list[str]] = {}
    for line in sorted(imports):
        start, _, name = line.partition(" import ")
        names.setdefault(start if name else line, []).extend([name] if name else [])
    found = []
    for start, several in names.items():
        line = f"{start} import {', '.join(several)}" if several else start
        wide = len(line) > WIDTH and len(several) > 1
        found.append("\n".join([f"{start} import (", *[f"    {n}," for n in several], ")"]) if wide else line)
    return found


def _print(statements: list[Statement], lines: list[str], origins: list[Origin], indent: str = "") -> None:
    """Appends the lines of `statements`, and beside each line the equation that it stands for."""
    for statement in statements:
        if type(statement) is Def:
            _print_def(statement, lines, origins, indent)
            continue
        if isinstance(statement, Compound):
            for head, body in statement.blocks(indent):
                lines.extend(head)
                origins.extend([None] * len(head))
                _print(list(body), lines, origins, indent + "    ")
            continue
        new = list(statement.lines(indent))
        if isinstance(statement, Assign) and statement.comment:
            new[-1] = _commented(new[-1], statement.comment)
        lines.extend(new)
        origin = statement.origin if isinstance(statement, (Assign, Unpack)) else None
        origins.extend([origin] * len(new))


def _commented(line: str, comment: str) -> str:
    """A comment that does not fit loses its first words, and goes at last: the code comes first."""
    words = comment.split("  ")
    while words and len(line) + 4 + len("  ".join(words)) > WIDTH:
        words.pop(0)
    return f"{line}  # {'  '.join(words)}" if words else line


def _print_def(statement: Def, lines: list[str], origins: list[Origin], indent: str) -> None:
    head = Def(statement.name, statement.params, (), statement.decorators, statement.docstring, statement.returns)
    head_lines = list(head.lines(indent))
    if not statement.docstring:
        head_lines.pop()  # the `pass` of an empty body
    lines.extend(head_lines)
    origins.extend([None] * len(head_lines))
    inner = indent + "    "
    if statement.body:
        if statement.docstring and type(statement.body[0]) is Def:
            lines.append("")
            origins.append(None)
        _print(list(statement.body), lines, origins, inner)
    elif not statement.docstring:
        lines.append(inner + "pass")
        origins.append(None)
