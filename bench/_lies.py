"""Names of a written text that say what is not so, found by its source map: what `readability.py --lies` counts.

A text says of a value that it is a cotangent (`d_x`), of statements that they are a backward pass (`# backward`), of a function
or a variable that it is the author's of that name. Which of the author's statements each expression of the text computes, and
in which pass, is on the map; a name that the map speaks against is a lie:

  cotangent   `d_x` of what no equation of a backward pass computes, where the author has no `d_x`
  pass        a block under `# backward` without an equation of a backward pass, or one under `# forward` with those alone
  function    `def f` of which no equation came through the author's `f`, or none but those of its derivative
  primal      `h = ...` of what a backward pass computes where the author's own statement gives `h` its value: a cotangent
  value       `h = ...` of what came of no statement of the author's that binds an `h`, gives one to a function or returns it,
              and of no function of a library that has an `h`; what a loop's body returns may be called as the loop's result
  cut         a name as long as one may be that ends in what is a word nowhere else

Numbers at the end of names (`x_2`) are aside.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

_NUMBER = re.compile(r"_\d+$")
_DERIVATIVES = frozenset("grad value_and_grad vjp jvp linearize jacfwd jacrev hessian linear_transpose".split())
_TRANSFORMED = _DERIVATIVES | {"vmap", "scan", "while_loop", "fori_loop", "cond", "switch", "map", "checkpoint", "jit"}
_Functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class _Author:
    """What stands in the author's file."""

    def __init__(self, source: str, path: str) -> None:
        self.path = path
        tree = ast.parse(source)
        self._words = set(re.findall(r"\w+", source))
        self._binding: dict[str, list[tuple[int, int]]] = {}  # lines of the statements that bind a name, or pass it on
        self.functions: dict[str, bool] = {}  # whether one of that name asks for a derivative
        self._asking = [  # lines of calls of derivatives
            (n.lineno, n.end_lineno or n.lineno)
            for n in ast.walk(tree)
            if isinstance(n, ast.Call) and _called(n) in _DERIVATIVES
        ]
        parameters: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, _Functions):
                names = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
                name = getattr(node, "name", "<lambda>")
                parameters.setdefault(name, set()).update(names)
                asks = any(_called(n) in _DERIVATIVES for n in ast.walk(node))
                self.functions[name] = self.functions.get(name, False) or asks
        for node in ast.walk(tree):
            if not isinstance(node, ast.stmt | ast.Call | ast.NamedExpr):
                continue
            lines = (node.lineno, node.end_lineno or node.lineno)
            for name in self._bound(node, parameters):
                self._binding.setdefault(name, []).append(lines)

    @staticmethod
    def _bound(node: ast.AST, parameters: dict[str, set[str]]) -> Iterator[str]:
        if isinstance(node, ast.Call):
            yield from parameters.get(_called(node), ())
            yield from (k.arg for k in node.keywords if k.arg)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (_word(n) for t in targets for n in ast.walk(t) if isinstance(n, ast.Name | ast.Attribute))

    def binds(self, name: str, lines: Sequence[int]) -> bool:
        return any(first <= line <= last for first, last in self._binding.get(name, ()) for line in lines)

    def gives(self, name: str, lines: Sequence[int]) -> bool:
        """Whether the innermost call that gives a name its value does so without asking for a derivative."""
        for line in lines:
            if any(first <= line <= last for first, last in self._asking):
                return False
            if self.binds(name, [line]):
                return True
        return False

    def knows(self, name: str) -> bool:
        """Whether the file has a variable of that name."""
        return name in self._binding

    def says(self, name: str) -> bool:
        return name in self._words


def _called(node: ast.AST) -> str:
    return _word(node.func) if isinstance(node, ast.Call) else ""


def _word(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def lies(found: Any, path: str) -> list[str]:
    """The lies of a text, each with its line: `12 cotangent d_x`. `found`: what `untrace.decompile` gave."""
    source = Path(path).read_text(encoding="utf-8")
    author, tree = _Author(source, path), ast.parse(found.source)
    entries = [(e, _frames(e.equation, path)) for e in found.source_map if e.span is not None]
    backward = {e.path for e in found.source_map if e.backward}
    told: dict[tuple[int, str], None] = {}
    from untrace._identifiers import LONGEST

    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | set(re.findall(r"\w+", source))
    words = {word for name in names if len(_NUMBER.sub("", name)) != LONGEST for word in name.split("_")}

    def inside(node: Any) -> list[tuple[Any, list[tuple[int, str]]]]:
        return [
            (e, f) for e, f in entries if any(node.lineno <= s.line and s.end_line <= node.end_lineno for s in e.calls)
        ]

    results = set(_results_of_loops(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (some := inside(node)):
            kind = _of_function(node.name, some, author)
            if kind:
                told[node.lineno, f"{kind} {node.name}"] = None
            for line in _passes(node, some, found.source.split("\n")):
                told[line, "pass"] = None
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            kind = _of_variable(name, inside(node.value), author, backward)
            if kind == "value" and (node in results or any(_called(n) in _TRANSFORMED for n in ast.walk(node.value))):
                kind = ""  # the calls around what JAX transforms are not kept
            if kind:
                told[node.lineno, f"{kind} {name}"] = None
        if isinstance(node, ast.Name | ast.arg):
            name = node.id if isinstance(node, ast.Name) else node.arg
            bare = _NUMBER.sub("", name)
            if len(bare) == LONGEST and bare.rpartition("_")[2] not in words:
                told[node.lineno, f"cut {name}"] = None
    return [f"{line} {what}" for line, what in sorted(told)]


def _results_of_loops(tree: ast.AST) -> Iterator[ast.Assign]:
    """The assignments in functions that `while_loop` is handed of what it gives, in the last turn, under the same name."""
    named: dict[str, set[str]] = {}  # the names of a loop's results, by its functions'
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _called(node.value) in ("while_loop", "fori_loop"):
            bound = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            for argument in ast.walk(node.value):
                named.setdefault(_word(argument), set()).update(bound)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and isinstance(function.body[-1], ast.Return):
            given = {_word(n) for n in ast.walk(function.body[-1])} & named.get(function.name, set())
            yield from [n for n in function.body if isinstance(n, ast.Assign) and _word(n.targets[0]) in given]


def _frames(eqn: Any, path: str) -> list[tuple[int, str]]:
    """(line, function) of the calls in the author's file that led to an equation, the innermost first."""
    codes, offsets = _codes(eqn)
    own = [(c, at) for c, at in zip(codes, offsets, strict=True) if c.co_filename == path]
    return [(list(c.co_positions())[at // 2][0] or c.co_firstlineno, c.co_name) for c, at in own]


def _codes(eqn: Any) -> Any:
    """The code of all calls that led to an equation, and where each was."""
    from untrace import jax_compat

    traceback = jax_compat.inner_traceback(eqn)
    return ((), ()) if traceback is None else jax_compat.raw_frames(traceback)


def _of_function(name: str, some: Any, author: _Author) -> str:
    name = _NUMBER.sub("", name)
    if name not in author.functions or not any(frames for _, frames in some):
        return ""
    if any(e.calls[0].function == name for e, _ in some):
        return ""  # the entry, which is what was handed over
    through = [e for e, _ in some if any(code.co_name == name for code in _codes(e.equation)[0])]  # a library's as well
    is_derivative = bool(through) and all(e.backward for e in through) and not author.functions[name]
    return "" if through and not is_derivative else "function"


def _of_variable(name: str, some: Any, author: _Author, backward: Container[tuple[int, ...]]) -> str:
    bare = _NUMBER.sub("", name)
    placed = [(e, [line for line, _ in frames]) for e, frames in some if frames]
    if not placed:
        return ""
    if bare.startswith("d_"):
        # What stands in an equation of a backward pass, a checkpoint's, belongs to it.
        passes = [e.path[:n] for e, _ in placed for n in range(1, len(e.path) + 1, 2)]
        return "" if author.says(bare) or any(place in backward for place in passes) else "cotangent"
    if not author.knows(bare):
        return ""
    if all(e.backward for e, _ in placed) and all(author.gives(bare, lines) for _, lines in placed):
        return "primal"
    if any(
        bare in code.co_varnames for e, _ in placed for code in _codes(e.equation)[0] if code.co_filename != author.path
    ):
        return ""
    returned = any(called == bare for _, frames in some for _, called in frames)
    return "" if returned or any(author.binds(bare, lines) for _, lines in placed) else "value"


def _passes(node: ast.FunctionDef, some: Any, lines: list[str]) -> Iterator[int]:
    """The lines of comments in a function that speak of another pass than what stands below."""
    marks = [n for n in range(node.lineno, node.end_lineno or 0) if re.match(r"\s*# (forward|backward)\b", lines[n])]
    for mark, end in itertools.pairwise([*marks, node.end_lineno or 0]):
        of_block = [e.backward for e, _ in some if mark < e.span.line - 1 < end]
        is_backward = "# backward" in lines[mark]
        if of_block and (not any(of_block) if is_backward else all(of_block)):
            yield mark + 1
