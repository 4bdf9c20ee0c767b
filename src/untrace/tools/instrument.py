"""The text with a probe behind each statement: what it computes stays the same, and can be watched.

The syntax tree is changed and not the text, so that every line keeps its number.
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType

import jax

from untrace import jax_compat
from untrace._api import Decompiled
from untrace.ir.types import Data, PyTree
from untrace.prove.load import LoadedText, load_text
from untrace.python import helpers
from untrace.tools.probe import Frame, Probed, Site, bind

_PROBE = "_untrace_probe_"
_COMPUTES = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Subscript)
# Whose functions run where no probe can be: kernels.
_KERNEL_CALLS = frozenset({"pallas_call", "core_map", "kernel"})


@dataclass
class Instrumented:
    """A text whose functions are probed. `module`: as it was executed; `sites`: all its places, in the order of the text."""

    name: str
    sites: Sequence[Site]
    functions: dict[tuple[str, int], str]
    serials: Iterator[int] = field(default_factory=itertools.count)
    module: LoadedText | None = None

    @property
    def file(self) -> str:
        return str(self.module.__file__) if self.module is not None else ""

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        return getattr(self.module, self.name)(*args, **kwargs)

    def probe(self, number: int, value: PyTree) -> PyTree:
        """`value`, with a probe on each of its arrays that is being traced."""
        if callable(value) and type(value).__module__.startswith("jax."):
            return value  # a pullback, with what it holds
        if not jax_compat.is_tracer(value) and jax.tree_util.all_leaves([value]):
            return value
        paths, tree = jax.tree_util.tree_flatten_with_path(value)
        if not any(jax_compat.is_tracer(leaf) for _, leaf in paths):
            return value
        frames, serial, site = tuple(self._running()), next(self.serials), self.sites[number]
        leaves = [
            bind(leaf, Probed(site, jax.tree_util.keystr(path), frames, serial)) if _can_be_probed(leaf) else leaf
            for path, leaf in paths
        ]
        return jax.tree.unflatten(tree, leaves)

    def _running(self) -> list[Frame]:
        """The functions of the text that are running, the outermost first."""
        found, frame, file = [], sys._getframe(2), self.file
        while frame is not None:
            if frame.f_code.co_filename == file:
                found.append(self.frame(frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return [f for f in reversed(found) if f is not None]

    def frame(self, code: CodeType, line: int) -> Frame | None:
        """What is running on a line; None of what is no function of the text's program."""
        name = self.functions.get((code.co_name, code.co_firstlineno))
        return None if name is None else Frame(name, line)

    def frames_of(self, traceback: Data) -> tuple[Frame, ...]:
        """The functions of the text that were running where JAX has noted a traceback."""
        codes, offsets = jax_compat.raw_frames(traceback)
        own = [(c, at) for c, at in zip(codes, offsets, strict=True) if c.co_filename == self.file]
        found = [self.frame(code, _line(code, at)) for code, at in reversed(own)]
        return tuple([f for f in found if f is not None])


def _line(code: CodeType, offset: int) -> int:
    for start, stop, line in code.co_lines():
        if start <= offset < stop and line is not None:
            return line
    return code.co_firstlineno


def _can_be_probed(leaf: Data) -> bool:
    return jax_compat.is_tracer(leaf) and jax_compat.is_shaped_array(jax_compat.typeof(leaf))


def instrumented(text: Decompiled) -> Instrumented:
    """The text of `text`, executed as another module with its probes."""
    tree = ast.parse(text.source)
    own = _Instrumenter(text.source, text.name, _not_watched(tree))
    changed = own.visit(tree)
    found = Instrumented(text.name, own.sites, own.functions)
    ast.fix_missing_locations(changed)
    names = {_PROBE: found.probe}
    found.module = load_text(text.source, text.name, text.arrays, text.callables, run=changed, names=names)
    return found


def _not_watched(tree: ast.Module) -> frozenset[str]:
    """The functions whose statements are no part of the program, or run where no probe can be: kernels, and what they call."""
    helped = frozenset(helpers.all_names())
    defined = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    todo = [
        argument.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KERNEL_CALLS
        for argument in node.args[:1]
        if isinstance(argument, ast.Name)
    ]
    kernels: set[str] = set()
    while todo:
        name = todo.pop()
        if name in defined and name not in kernels:
            kernels.add(name)
            todo += [n.id for n in ast.walk(defined[name]) if isinstance(n, ast.Name)]
    return helped | kernels


class _Instrumenter(ast.NodeTransformer):
    """Puts the probes in."""

    def __init__(self, source: str, entry: str, left_out: frozenset[str]) -> None:
        self._lines = source.encode().splitlines()  # Python counts columns in bytes, and ends lines where bytes do
        self._entry, self._left_out = entry, left_out
        self._path: list[str] = []
        self.sites: list[Site] = []
        # By the name and the first line of their code, as Python has them.
        self.functions: dict[tuple[str, int], str] = {}

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node  # a container

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name in self._left_out:
            return node
        self._path.append(node.name)
        first = min([node.lineno, *[d.lineno for d in node.decorator_list]])
        self.functions[node.name, first] = ".".join(self._path)
        arguments: list[ast.stmt] = []
        if self._path == [self._entry]:
            given = (*node.args.posonlyargs, *node.args.args, node.args.vararg, *node.args.kwonlyargs, node.args.kwarg)
            arguments = [self._assigned(node, a.arg, "", node.lineno) for a in given if a is not None]
        body = self._block(node.body)
        has_docstring = ast.get_docstring(node, clean=False) is not None
        node.body = [*body[:has_docstring], *arguments, *body[has_docstring:]]
        self._path.pop()
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        if not self._path:
            return node
        self._path.append("<lambda>")
        self.functions["<lambda>", node.lineno] = ".".join(self._path)
        body = self.visit(node.body)
        node.body = self._given_back(body, "return", self._text(node.body))
        self._path.pop()
        return node

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            found += new if isinstance(new, list) else [new]
        return found

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt]:
        return self._with_probes(node, node.targets)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | list[ast.stmt]:
        return node if node.value is None else self._with_probes(node, [node.target])

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | list[ast.stmt]:
        return self._with_probes(node, [node.target])

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is None or not self._path:
            return node
        text = self._text(node)
        node.value = self._given_back(self.visit(node.value), "return", text)
        return node

    def _with_probes(self, node: ast.stmt, targets: Sequence[ast.expr]) -> ast.AST | list[ast.stmt]:
        text = self._text(node)
        value = getattr(node, "value", None)
        self.generic_visit(node)
        called = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
        if not self._path or called in self._left_out and called.startswith("_"):
            return node
        names = [n.id for target in targets for n in _names(target)]
        return [node, *[self._assigned(node, name, text, node.lineno) for name in dict.fromkeys(names)]]

    def _assigned(self, at: ast.AST, name: str, text: str, line: int) -> ast.stmt:
        """`name = probe(site, name)`."""
        probe = self._probe(ast.Name(name, ast.Load()), Site(line, ".".join(self._path), name, text))
        assign = ast.Assign([ast.Name(name, ast.Store())], probe)
        assign.lineno = line
        return ast.fix_missing_locations(ast.copy_location(assign, at))

    def _given_back(self, value: ast.expr, name: str, text: str) -> ast.expr:
        """An expression whose computed parts are probed; what is only handed on has a name already."""
        if isinstance(value, (ast.Tuple, ast.List)):
            value.elts = [self._given_back(part, f"{name}[{i}]", text) for i, part in enumerate(value.elts)]
            return value
        if isinstance(value, ast.Dict):
            words = [ast.unparse(key) if key is not None else "**" for key in value.keys]
            parts = zip(words, value.values, strict=True)
            value.values = [self._given_back(part, f"{name}[{word}]", text) for word, part in parts]
            return value
        if not isinstance(value, _COMPUTES):
            return value
        site = Site(value.lineno, ".".join(self._path), name, text, assigns=False)
        return ast.copy_location(self._probe(value, site), value)

    def _probe(self, value: ast.expr, site: Site) -> ast.expr:
        self.sites.append(site)
        number = ast.Constant(len(self.sites) - 1)
        return ast.Call(ast.Name(_PROBE, ast.Load()), [number, value], [])

    def _text(self, node: ast.stmt | ast.expr) -> str:
        """The source of a statement or an expression, on one line. (`ast.get_source_segment` would split all of it each time.)"""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        lines = self._lines[first : last + 1]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(b"\n".join(lines).decode().split())


def _names(target: ast.expr) -> Iterator[ast.Name]:
    if isinstance(target, ast.Name):
        yield target
    elif isinstance(target, ast.Starred):
        yield from _names(target.value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _names(part)
