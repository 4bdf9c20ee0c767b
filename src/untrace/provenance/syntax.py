"""Source behind code objects: parsed once per file, looked up by exact position.

Everything answers None (or nothing) where the source is missing or no longer fits; nothing raises.
"""

from __future__ import annotations

import ast
import bisect
import codecs
import functools
import io
import linecache
import operator
import os
import re
from collections.abc import Container
from types import CodeType
from typing import Any

from untrace._identity import IdentityMap
from untrace.provenance import whose
from untrace.provenance.lines import Lines, Listed
from untrace.provenance.node_kinds import BLOCKS, DEFINITIONS, INLINE, LEAVES
from untrace.provenance.returns import Returns

Position = tuple[Any, Any, Any, Any]  # line, column, end line, end column, as `ast` counts them
Parent = tuple[ast.AST | None, str, int]  # the node around it, in which field of that, and where in a list

_INSIDE_OF_TOP = " \t)]}#"  # what lines begin with that begin no statement at the top level
_DEFINITION = re.compile(r"(?:async )?def (\w+)")
_OUTER_DEFINITION = re.compile(rb"^(?:async )?def ([\w\x80-\xff]+)", re.MULTILINE)
_CLASS = re.compile(rb"^[ \t]*class ([\w\x80-\xff]+)", re.MULTILINE)


# Longer files are parsed one definition at a time: most of them are libraries', of which a program touches little.
_WHOLE_FILE_LINES = 80
_FILE_OF_ONE_AUTHOR = 400


class _Piece:
    """A parsed part of a file, whose line 1 is line `shift` + 1 of the file; positions are those of the file.

    A statement is walked when something in it is looked up.
    """

    def __init__(self, text: str, shift: int, file: _File):
        self.shift = shift
        self.file = file
        self.nodes: dict[Position, ast.AST] = {}
        self.parents: dict[ast.AST, Parent] = {}
        self.functions: dict[int, list[ast.AST]] = {}  # by the line at which their code objects start
        self.returns: dict[ast.AST, Returns] = {}
        self.loops: dict[ast.AST, list[ast.For]] = {}
        self._by_name: dict[str, list[Any]] | None = None
        self._walked: set[ast.AST] = set()
        self._opened: set[int] = set()
        self._starts: IdentityMap[list[Any], list[int]] = IdentityMap()
        self._module: ast.Module | None
        try:
            self._module = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._module = None

    @property
    def is_parsed(self) -> bool:
        return self._module is not None

    def open(self, line: int) -> None:
        """Indexes the statements that stand at a line, and the headers of those around them."""
        line -= self.shift
        if self._module is None or line in self._opened:
            return
        self._opened.add(line)
        blocks: list[list[Any]] = [self._module.body]
        while blocks:
            for statement in self._covering(blocks.pop(), line):
                if statement not in self._walked:
                    self._walked.add(statement)
                    self._walk(statement)
                for field in BLOCKS:
                    inner = getattr(statement, field, None)
                    if type(inner) is list and inner:
                        blocks.append(inner)

    def _covering(self, block: list[Any], line: int) -> list[ast.AST]:
        starts = self._starts.get(block)
        if starts is None:
            starts = self._starts[block] = [_first_line(s) for s in block]
        last = bisect.bisect_right(starts, line)
        found = []
        for statement in reversed(block[:last] if last < 8 else block[last - 8 : last]):
            if _last_line(statement) >= line:
                found.append(statement)
        return found

    def _walk(self, statement: ast.AST) -> None:
        nodes, parents, shift = self.nodes, self.parents, self.shift
        if isinstance(statement, DEFINITIONS):
            self.functions.setdefault(_first_line(statement) + shift, []).append(statement)
        elif isinstance(statement, ast.AugAssign):
            nodes[_position(statement, shift)] = statement
        stack = [statement]
        while stack:
            node = stack.pop()
            outer = node is statement
            for field in node._fields:
                if outer and field in BLOCKS and type(getattr(node, field, None)) is list:
                    continue
                value = getattr(node, field, None)
                for index, child in enumerate(value) if type(value) is list else ((0, value),):
                    kind = type(child)
                    if kind in LEAVES and field != "iter" or not isinstance(child, ast.AST):
                        continue
                    stack.append(child)
                    parents[child] = (node, field, index)
                    if isinstance(child, ast.expr):
                        nodes.setdefault(_position(child, shift), child)
                        if kind in INLINE:
                            self.functions.setdefault(child.lineno + shift, []).append(child)

    def named(self, name: str) -> list[Any]:
        """The functions and methods of this name that the file defines."""
        if self._by_name is None:
            self._by_name = {}
            blocks: list[list[Any]] = [self._module.body] if self._module is not None else []
            while blocks:
                for statement in blocks.pop():
                    if isinstance(statement, DEFINITIONS):
                        self._by_name.setdefault(statement.name, []).append(statement)
                    for field in BLOCKS:
                        inner = getattr(statement, field, None)
                        if type(inner) is list:
                            blocks.append(inner)
        return self._by_name.get(name, [])


class _File:
    """The lines of a file, and the pieces of it that were parsed. `state`: what tells that it is still the same."""

    def __init__(self, lines: Lines | Listed):
        self.lines = lines
        self.state: Any = None
        self._whole: _Piece | None = None
        self._pieces: dict[int, _Piece] = {}  # by first line
        self._named: dict[str, list[Any]] = {}

    def piece(self, first: int, last: int | None = None) -> _Piece:
        """The piece that holds the definition at line `first` (up to `last`, where that is known)."""
        if self._whole is None and len(self.lines) > _WHOLE_FILE_LINES and 0 < first <= len(self.lines):
            found = self._pieces.get(first)
            if found is None:
                indented = self.lines[first - 1][:1].isspace()
                text = self.lines.text(first - 1, min(last or self._end(first), len(self.lines)))
                found = _Piece("if True:\n" + text, first - 2, self) if indented else _Piece(text, first - 1, self)
                self._pieces[first] = found
            if found.is_parsed:
                return found
        if self._whole is None:
            self._whole = _Piece(self.lines.text(0, len(self.lines)), 0, self)
        return self._whole

    def named(self, name: str, piece: _Piece) -> list[Any]:
        """The functions and methods of this name that a file defines, or only a piece of it, where that is a long one: what a
        library's helpers call anything says little. Of several, maybe none."""
        if len(self.lines) > _FILE_OF_ONE_AUTHOR or self._whole is not None:
            return piece.named(name)
        found = self._named.get(name)
        if found is None:
            lines = self.lines.whole
            text = f"def {name}("
            places = [n for n in sorted(set(lines.holding(text.encode()))) if lines[n - 1].lstrip().startswith(text)]
            found = self.piece(self._decorated(places[0])).named(name) if len(places) == 1 else []
            self._named[name] = found
        return found

    @functools.cached_property
    def definitions(self) -> dict[str, list[int]]:
        """The lines at which functions are defined that stand by themselves, by name."""
        found: dict[str, list[int]] = {}
        lines = self.lines.whole
        for match in _OUTER_DEFINITION.finditer(lines.data):
            found.setdefault(match[1].decode(), []).append(lines.at(match.start()))
        return found

    @functools.cached_property
    def classes(self) -> frozenset[str]:
        """The names of the classes that it defines."""
        return frozenset(match[1].decode() for match in _CLASS.finditer(self.lines.whole.data))

    def _end(self, first: int) -> int:
        """The last line of the definition that starts at a line: before the next one that is indented as little."""
        indent = _indent(self.lines[first - 1])
        begun = False
        for number in range(first, len(self.lines)):
            text = self.lines[number]
            bare = text.strip()
            if (
                bare
                and _indent(text) <= indent
                and not bare.startswith(("#", ")", "]", "def ", "async def ", "@")[: 3 if begun else 6])
            ):
                return number
            begun = begun or bool(bare) and _indent(text) > indent
        return len(self.lines)

    def around(self, line: int) -> int:
        """The first line of the innermost function that has a line in its body, by their indentation; else of the top-level
        statement around it."""
        indent = _indent(self.lines[line - 1])
        for first in range(line - 1, 0, -1):
            text = self.lines[first - 1]
            if _DEFINITION.match(text.lstrip()) and _indent(text) < indent and self._end(first) >= line:
                return self._decorated(first)
            if text[:1] not in _INSIDE_OF_TOP and text.strip():
                break
        return self.top(line)

    def _decorated(self, first: int) -> int:
        """The line at which the decorators of the definition at a line begin."""
        while first > 1 and self.lines[first - 2].lstrip()[:1] == "@":
            first -= 1
        return first

    def top(self, line: int) -> int:
        """The first line of the top-level statement around a line, by its indentation."""
        while line > 1 and (not self.lines[line - 1].strip() or self.lines[line - 1][0] in _INSIDE_OF_TOP):
            line -= 1
        return line


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


_END_LINE = operator.itemgetter(1)


def _end_of(code: CodeType) -> int:
    """The last line that a code object's instructions stand for, those of functions inside it included."""
    last = max(filter(None, map(_END_LINE, code.co_positions())), default=code.co_firstlineno)
    return max([last, *(_end_of(c) for c in code.co_consts if isinstance(c, CodeType))])


def _position(node: Any, shift: int) -> Position:
    return node.lineno + shift, node.col_offset, node.end_lineno + shift, node.end_col_offset


def _first_line(statement: Any) -> int:
    if type(statement) is ast.match_case:
        return statement.pattern.lineno
    decorators = getattr(statement, "decorator_list", None)
    return decorators[0].lineno if decorators else statement.lineno


def _last_line(statement: Any) -> int:
    last: Any = statement.body[-1] if type(statement) is ast.match_case else statement
    return int(last.end_lineno)


_FILES: dict[str, _File] = {}
_CODES: IdentityMap[CodeType, _Piece | None] = IdentityMap()


def _piece_of(code: CodeType) -> _Piece | None:
    if code in _CODES:
        return _CODES[code]
    file = _file(code.co_filename)
    piece = None
    if file is not None and code.co_name.startswith("<"):  # its own lines are no statement
        piece = file.piece(file.around(min(code.co_firstlineno, len(file.lines))))
    elif file is not None:
        piece = file.piece(code.co_firstlineno, _end_of(code))
    if len(_CODES) > 20_000:  # a long-lived process; the trees themselves stay with their files
        _CODES.clear()
    _CODES[code] = piece
    return piece


def _file(name: str) -> _File | None:
    try:
        found = _read_plainly(name) if name not in linecache.cache else None
        return _known_to_linecache(name) if found is None else found
    except Exception:  # a loader of someone else's
        return None


def _known_to_linecache(name: str) -> _File | None:
    linecache.checkcache(name)
    lines = linecache.getlines(name)
    if not lines:
        return None
    file = _FILES.get(name)
    if file is None or file.state is not lines:
        held: Any = file.lines if file is not None else ()
        if file is None or list(held) != lines:
            file = _FILES[name] = _File(Listed(lines))
        file.state = lines
    return file


def _read_plainly(name: str) -> _File | None:
    """The file, without `linecache`, where it is UTF-8 with plain ends of lines: JAX's own are long, and to make a string of
    each line takes longer than what is looked up in them. An author's is put into `linecache`: others will ask that."""
    if name.startswith("<"):  # as linecache does: no file, whatever there is of that name
        return None
    file = _FILES.get(name)
    try:
        status = os.stat(name)
        state = status.st_size, status.st_mtime
        if file is not None and file.state == state:
            return file
        with open(name, "rb") as opened:
            data = opened.read()
        text = "" if data.isascii() else data.decode()
    except (OSError, ValueError):  # no file: a module in an archive; or it is not UTF-8
        return None
    head = data[: data.find(b"\n", data.find(b"\n") + 1) + 1] or data
    if not data or b"\r" in data or data.startswith(codecs.BOM_UTF8) or b"coding" in head:
        return None
    if whose.file_kind(name) == "user":
        lines = io.StringIO(text or data.decode()).readlines()
        if not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        linecache.cache[name] = *state, lines, name
        return None
    file = _FILES[name] = _File(Lines(data))
    file.state = state
    return file


def node_at(code: CodeType, position: Position) -> ast.AST | None:
    """The outermost expression (or augmented assignment) at exactly this position."""
    if None in position:
        return None
    piece = _piece_of(code)
    if piece is None:
        return None
    piece.open(position[0])
    return piece.nodes.get(position)


def parent(code: CodeType, node: ast.AST) -> Parent:
    """(the node around `node`, the field of it, the place in that field's list)."""
    piece = _piece_of(code)
    return (None, "", 0) if piece is None else piece.parents.get(node, (None, "", 0))


def definition(code: CodeType) -> Any:
    """The FunctionDef, Lambda or comprehension of a code object; None where that is not certain."""
    piece = _piece_of(code)
    if piece is None:
        return None
    piece.open(code.co_firstlineno)
    found = piece.functions.get(code.co_firstlineno, ())
    if code.co_name.startswith("<"):
        kind = _KINDS.get(code.co_name)
        matching = [n for n in found if kind is not None and isinstance(n, kind)]
        if len(matching) > 1:
            matching = [n for n in matching if _arguments(n) == code.co_varnames[: len(_arguments(n))]] or matching
    else:
        matching = [n for n in found if getattr(n, "name", None) == code.co_name]
    return matching[0] if len(matching) == 1 else None


def roots(code: CodeType) -> list[ast.AST]:
    """The nodes that a code object of its own runs: for a comprehension before Python 3.12."""
    found = definition(code)
    return [] if found is None else [found]


def returned(code: CodeType, name: str, node: ast.AST) -> tuple[int | str, ...] | None:
    """Where a local `name`, assigned from `node`, stands in what its function returns: () for the whole of it.

    None where it is not returned, or assigned again further down.
    """
    function = definition(code)
    piece = _piece_of(code)
    if piece is None or not isinstance(function, DEFINITIONS):
        return None
    facts = piece.returns.get(function)
    if facts is None:
        facts = piece.returns[function] = Returns(function, piece.file.classes)
    place = facts.places.get(name)
    end = getattr(node, "end_lineno", None) or 0, getattr(node, "end_col_offset", None) or 0
    if place is None or facts.last_store.get(name, (0, 0)) > end:
        # The store of this very statement stands before its value, so a later one is another statement's.
        return None
    return place


def classes_of(code: CodeType) -> frozenset[str]:
    """The names of the classes that the file of a code object defines."""
    piece = _piece_of(code)
    return frozenset() if piece is None else piece.file.classes


def loops_around(code: CodeType, line: int) -> list[ast.For]:
    """The `for` loops of a code object's function whose bodies hold a line of the file, outermost first."""
    function = definition(code)
    piece = _piece_of(code)
    if piece is None or function is None:
        return []
    if function not in piece.loops:
        piece.loops[function] = [n for n in walked(function, BLOCKS) if isinstance(n, ast.For)]
    line -= piece.shift
    return [n for n in piece.loops[function] if n.body[0].lineno <= line <= (n.end_lineno or 0)]


Repeated = ast.ListComp | ast.GeneratorExp | ast.DictComp


def comprehensions_around(code: CodeType, line: int | None) -> list[Repeated]:
    """The comprehensions of a code object's function that hold a line of the file; all, where that is None."""
    piece, function = _piece_of(code), definition(code)
    if piece is None or function is None:
        return []
    found = [n for n in ast.walk(function) if isinstance(n, Repeated)]
    return [n for n in found if line is None or n.lineno <= line - piece.shift <= (n.end_lineno or 0)]


def line_of(code: CodeType, node: ast.stmt | ast.expr | ast.arg) -> int:
    """The line of the file that a node stands on, of those that are found for a code object."""
    piece = _piece_of(code)
    return node.lineno + (0 if piece is None else piece.shift)


def parameter_line(code: CodeType, name: str) -> int:
    """The line of the file that a parameter of a code object's function stands on; where it is not found, the function's."""
    arguments = getattr(definition(code), "args", None)
    for node in ast.walk(arguments) if arguments is not None else ():
        if isinstance(node, ast.arg) and node.arg == name:
            return line_of(code, node)
    return code.co_firstlineno


def walked(node: ast.AST, fields: Container[str] | None = None) -> list[Any]:
    """All nodes inside a node in the order of `ast.walk`, but for operators, names and numbers; or only what stands in
    `fields` of them."""
    found: list[Any] = [node]
    for node in found:
        for field in node._fields:
            if fields is None or field in fields:
                value = getattr(node, field, None)
                for child in value if type(value) is list else (value,):
                    if type(child) not in LEAVES and isinstance(child, ast.AST):
                        found.append(child)
    return found


_KINDS: dict[str, type] = {
    "<lambda>": ast.Lambda, "<listcomp>": ast.ListComp, "<setcomp>": ast.SetComp, "<dictcomp>": ast.DictComp,
    "<genexpr>": ast.GeneratorExp,
}  # fmt: skip


def _arguments(node: Any) -> tuple[str, ...]:
    arguments = getattr(node, "args", None)
    if not isinstance(arguments, ast.arguments):
        return ()
    return tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


def parameter(code: CodeType, call: ast.Call, index: int) -> str | None:
    """The parameter that positional argument `index` of `call` is passed for, where the file defines the callee once."""
    if any(isinstance(a, ast.Starred) for a in call.args[: index + 1]):
        return None
    piece = _piece_of(code)
    callee = call.func
    if piece is None:
        return None
    if isinstance(callee, ast.Name):
        name, bound = callee.id, 0
    elif isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name) and callee.value.id == "self":
        name, bound = callee.attr, 1
    else:
        return None
    found = piece.file.named(name, piece)
    if len(found) != 1:
        return None
    names = [a.arg for a in (*found[0].args.posonlyargs, *found[0].args.args)]
    return names[index + bound] if index + bound < len(names) else None


_SAME_FUNCTION = frozenset(("jit", "checkpoint", "remat"))  # what gives a function that computes the same


def lambda_name(code: Any, through_any: bool = False) -> str:
    """The name that a lambda is bound to in its own statement, `g = lambda x: ...` or `g = jax.jit(lambda x: ...)`.

    through_any: also that of what a call makes of it, which is no longer the same function: `g = jax.grad(lambda x: ...)`.
    """
    if not isinstance(code, CodeType):
        return ""
    node = definition(code)
    while node is not None:
        above, field, _ = parent(code, node)
        if isinstance(above, ast.Assign) and len(above.targets) == 1 and isinstance(above.targets[0], ast.Name):
            return above.targets[0].id
        if not isinstance(above, ast.Call) or field != "args":
            return ""
        if not through_any and dotted(above.func).rpartition(".")[2] not in _SAME_FUNCTION:
            return ""
        node = above
    return ""


def dotted(node: ast.AST) -> str:
    """`jnp.linalg.norm` of an attribute chain; "" for other expressions."""
    words = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(words)]) if isinstance(node, ast.Name) else ""


def function_named(file: str, name: str) -> Any:
    """The FunctionDef of that name that stands in a file by itself, if there is one alone."""
    found = _file(file)
    if found is None or not name.isidentifier():
        return None
    lines = found.definitions.get(name, ())
    return function_at(file, lines[0], name) if len(lines) == 1 else None


def function_at(file: str, line: int, name: str) -> Any:
    """The FunctionDef or Lambda that starts at a line of a file; None where that is not certain."""
    found = _file(file)
    if found is None or not 0 < line <= len(found.lines):
        return None
    known = found.piece(found.around(line) if name.startswith("<") else line)
    known.open(line)
    kind: Any = ast.Lambda if name.startswith("<") else DEFINITIONS
    matching = [n for n in known.functions.get(line, ()) if isinstance(n, kind) and getattr(n, "name", name) == name]
    return matching[0] if len(matching) == 1 else None
