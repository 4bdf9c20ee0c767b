"""Source behind code objects: parsed once per file, looked up by exact position.

Everything answers None (or nothing) where the source is missing or no longer fits; nothing raises.
"""

from __future__ import annotations

import ast
import linecache
from types import CodeType
from typing import Any

Position = tuple[Any, Any, Any, Any]  # line, column, end line, end column, as `ast` counts them
Parent = tuple[ast.AST | None, str, int]  # the node around it, in which field of that, and where in a list

# Longer files are parsed one function at a time: those of libraries take longer to parse than all the rest.
_WHOLE_FILE_LINES = 400


class _Tree:
    """A parsed piece of a file: nodes by position, and parents."""

    def __init__(self, tree: ast.AST, shift: int = 0):
        self.nodes: dict[Position, ast.AST] = {}
        self.parents: dict[ast.AST, Parent] = {}
        self.functions: dict[int, list[ast.AST]] = {}  # by the line at which the code object starts
        self.by_name: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self.returns: dict[ast.AST, _Returns] = {}
        self.shift = shift
        self._walk(tree)

    def _walk(self, root: ast.AST) -> None:
        nodes, parents, shift = self.nodes, self.parents, self.shift
        stack = [root]
        while stack:
            node = stack.pop()
            for field in node._fields:
                value = getattr(node, field, None)
                for index, child in enumerate(value) if type(value) is list else ((0, value),):
                    kind = type(child)
                    if kind in _LEAVES and field != "iter" or not isinstance(child, ast.AST):
                        continue
                    stack.append(child)
                    parents[child] = (node, field, index)
                    if kind in _WITHOUT_POSITION:
                        continue
                    line = child.lineno + shift  # type: ignore[attr-defined]
                    if isinstance(child, ast.expr) or kind is ast.AugAssign:
                        end = child.end_lineno + shift  # type: ignore[attr-defined]
                        nodes.setdefault((line, child.col_offset, end, child.end_col_offset), child)  # type: ignore[attr-defined]
                    if kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
                        self.by_name.setdefault(child.name, []).append(child)  # type: ignore[attr-defined]
                        decorators = child.decorator_list  # type: ignore[attr-defined]
                        line = decorators[0].lineno + shift if decorators else line
                        self.functions.setdefault(line, []).append(child)
                    elif kind in _INLINE:
                        self.functions.setdefault(line, []).append(child)


# What computes nothing by itself, or has no position: operators and contexts are shared objects of `ast`.
_LEAVES = frozenset(
    (ast.Name, ast.Constant, ast.arg, ast.alias, ast.Pass, ast.Import, ast.ImportFrom, ast.Load, ast.Store, ast.Del)
    + tuple(v for v in vars(ast).values() if isinstance(v, type) and issubclass(v, (ast.operator, ast.unaryop, ast.cmpop, ast.boolop)))
    + tuple(v for v in vars(ast).values() if isinstance(v, type) and issubclass(v, (ast.type_ignore,)))
)
_WITHOUT_POSITION = frozenset((ast.comprehension, ast.arguments, ast.withitem, ast.match_case))
_INLINE = frozenset((ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))


class _File:
    def __init__(self, lines: list[str]):
        self.lines = lines
        self.whole: _Tree | None | bool = False
        self.blocks: dict[int, _Tree | None] = {}
        self.keep: list[CodeType] = []

    def tree(self, code: CodeType) -> _Tree | None:
        if len(self.lines) > _WHOLE_FILE_LINES and self.whole is False and not code.co_name.startswith("<"):
            found: Any = self.blocks.get(id(code), False)
            if found is False:
                self.keep.append(code)
                found = self.blocks[id(code)] = self._block(code)
            if found is not None:
                return found
        return self.parsed()

    def parsed(self) -> _Tree | None:
        """The tree of the whole file."""
        if self.whole is False:
            self.whole = _parse("".join(self.lines), 0)
        return self.whole  # type: ignore[return-value]

    def around(self, first: int) -> _Tree | None:
        """The tree of the definition that starts at a line: up to the next line that is indented as little."""
        found: Any = self.blocks.get(-first, False)
        if found is False:
            indent = _indent(self.lines[first - 1])
            last, started = first, False
            while last < len(self.lines):
                text = self.lines[last]
                if text.strip() and not text.lstrip().startswith(("#", ")")) and _indent(text) <= indent:
                    if started:
                        break
                    started = not text.lstrip().startswith("@") or started
                elif text.strip():
                    started = True
                last += 1
            found = self.blocks[-first] = self._lines_between(first, last)
        return found

    def _block(self, code: CodeType) -> _Tree | None:
        return self._lines_between(code.co_firstlineno, _last_line(code))

    def _lines_between(self, first: int, last: int) -> _Tree | None:
        lines = self.lines[first - 1 : last]
        if not lines or not (1 <= first <= len(self.lines)):
            return None
        if lines[0][:1].isspace():
            return _parse("if True:\n" + "".join(lines), first - 2)
        return _parse("".join(lines), first - 1)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _last_line(code: CodeType) -> int:
    last = code.co_firstlineno
    for _, end, _, _ in code.co_positions():
        if end is not None and end > last:
            last = end
    for const in code.co_consts:
        if isinstance(const, CodeType):
            last = max(last, _last_line(const))
    return last


def _parse(text: str, shift: int) -> _Tree | None:
    try:
        return _Tree(ast.parse(text), shift)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_FILES: dict[str, _File] = {}
_CODES: dict[int, tuple[CodeType, _Tree | None]] = {}


def _tree(code: CodeType) -> _Tree | None:
    found = _CODES.get(id(code))
    if found is not None and found[0] is code:
        return found[1]
    tree = _load(code)
    if len(_CODES) > 20_000:  # a long-lived process; the trees themselves stay with their files
        _CODES.clear()
    _CODES[id(code)] = (code, tree)
    return tree


def _load(code: CodeType) -> _Tree | None:
    lines = _lines(code.co_filename)
    return _file(code.co_filename, lines).tree(code) if lines else None


def _lines(name: str) -> list[str]:
    try:
        linecache.checkcache(name)
        return linecache.getlines(name)
    except Exception:  # a loader of someone else's
        return []


def _file(name: str, lines: list[str]) -> _File:
    file = _FILES.get(name)
    if file is None or file.lines is not lines and file.lines != lines:
        file = _FILES[name] = _File(lines)
    return file


def node_at(code: CodeType, position: Position) -> ast.AST | None:
    """The outermost expression (or augmented assignment) at exactly this position."""
    if None in position:
        return None
    tree = _tree(code)
    return None if tree is None else tree.nodes.get(position)


def parent(code: CodeType, node: ast.AST) -> Parent:
    """(the node around `node`, the field of it, the place in that field's list)."""
    tree = _tree(code)
    return (None, "", 0) if tree is None else tree.parents.get(node, (None, "", 0))


def definition(code: CodeType) -> Any:
    """The FunctionDef, Lambda or comprehension of a code object; None where that is not certain."""
    tree = _tree(code)
    if tree is None:
        return None
    found = tree.functions.get(code.co_firstlineno, ())
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
    tree = _tree(code)
    if tree is None or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    facts = tree.returns.get(function)
    if facts is None:
        facts = tree.returns[function] = _returns(function)
    place = facts.places.get(name)
    if place is None or facts.last_store.get(name, (0, 0)) > (node.end_lineno or 0, node.end_col_offset or 0):
        # The store of this very statement stands before its value, so a later one is another statement's.
        return None
    return place


class _Returns:
    __slots__ = ("places", "last_store")

    def __init__(self) -> None:
        self.places: dict[str, tuple[int | str, ...]] = {}
        self.last_store: dict[str, tuple[int, int]] = {}


def _returns(function: ast.FunctionDef | ast.AsyncFunctionDef) -> _Returns:
    facts = _Returns()
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, ast.Return) and node.value is not None:
            for name, path in _names_in(node.value, ()):
                facts.places.setdefault(name, path)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            at = (node.lineno, node.col_offset)
            facts.last_store[node.id] = max(at, facts.last_store.get(node.id, at))
        stack.extend(ast.iter_child_nodes(node))
    return facts


def _names_in(value: ast.AST, path: tuple[int | str, ...]) -> list[tuple[str, tuple[int | str, ...]]]:
    match value:
        case ast.Name():
            return [(value.id, path)]
        case ast.Tuple() | ast.List():
            return [found for i, e in enumerate(value.elts) for found in _names_in(e, (*path, i))]
        case ast.Dict():
            keys = [k.value if isinstance(k, ast.Constant) else "?" for k in value.keys]
            return [found for k, v in zip(keys, value.values, strict=True) for found in _names_in(v, (*path, k))]
    return []


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
    tree = _tree(code)
    callee = call.func
    if tree is None:
        return None
    if isinstance(callee, ast.Name):
        name, bound = callee.id, 0
    elif isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name) and callee.value.id == "self":
        name, bound = callee.attr, 1
    else:
        return None
    found = tree.by_name.get(name, ())
    if len(found) != 1:
        return None
    names = [a.arg for a in (*found[0].args.posonlyargs, *found[0].args.args)]
    return names[index + bound] if index + bound < len(names) else None


def dotted(node: ast.AST) -> str:
    """`jnp.linalg.norm` of an attribute chain; "" for other expressions."""
    words = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(words)]) if isinstance(node, ast.Name) else ""


def function_at(file: str, line: int, name: str) -> Any:
    """The FunctionDef or Lambda that starts at a line of a file; None where that is not certain."""
    lines = _lines(file)
    if not lines or not 0 < line <= len(lines):
        return None
    known = _file(file, lines)
    if known.whole is False and len(lines) > _WHOLE_FILE_LINES and not name.startswith("<"):
        tree = known.around(line)
    else:
        tree = known.parsed()
    found = [] if tree is None else tree.functions.get(line, [])
    kind: Any = ast.Lambda if name.startswith("<") else (ast.FunctionDef, ast.AsyncFunctionDef)
    matching = [n for n in found if isinstance(n, kind) and getattr(n, "name", name) == name]
    return matching[0] if len(matching) == 1 else None


def source_line(file: str, number: int) -> str:
    """One line of a source file as Python last read it; "" where there is none."""
    try:
        return linecache.getline(file, number)
    except Exception:  # a loader of someone else's
        return ""
