"""Reads the source of one Python function: its definition, and what that reads from outside.

Every definition comes from the function's own file, and only when the file still compiles to the
function's code.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import linecache
import sys
import sysconfig
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_READING_METHODS = {
    "get", "items", "keys", "values", "index", "count", "copy", "item", "tolist", "astype",
    "reshape", "sum", "mean", "min", "max", "shape", "dtype", "ndim", "size", "T", "any", "all",
    "dot",
}  # fmt: skip


class NotEmbeddable(Exception):
    """Why a callable's text cannot stand by itself."""


def unparsed(node: ast.AST) -> str:
    """Source text of a syntax tree."""
    return ast.unparse(ast.fix_missing_locations(node))


def no_arguments() -> ast.arguments:
    return ast.arguments([], [], None, [], [], None, [])


def is_public_module(name: str) -> bool:
    """Whether a written module may import `name`: jax, numpy or the standard library, no private
    part.
    """
    root, *rest = name.split(".")
    if any(part.startswith("_") for part in (root, *rest)) or root in ("posixpath", "ntpath"):
        return False
    if root in ("jax", "numpy"):
        return True
    return root in sys.stdlib_module_names and root not in ("test", "idlelib") and _is_stdlib(root)


def _is_stdlib(root: str) -> bool:
    """Whether the module that `root` names here really is the standard library's, not a file that
    shadows it.
    """
    module = sys.modules.get(root)
    file = getattr(module, "__file__", None)
    if file is None:
        return True
    return file.startswith(sysconfig.get_paths()["stdlib"]) and "site-packages" not in file


def source_of(function: types.FunctionType) -> ast.FunctionDef:
    """The function's definition from its source file, without decorators and annotations.

    A lambda comes back as a function with one `return`. Raises NotEmbeddable where there is no
    source, or where the source, compiled, does not have this very function.
    """
    code = function.__code__
    # A generated function (`exec`, a REPL without history) has no lines; linecache also knows
    # notebooks.
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    if not text:
        raise NotEmbeddable("its source is not available")
    tree, codes = _parsed(text)
    # Equal code objects have equal instructions, names, constants and positions: the file is the
    # one that was run.
    if not any(code == other for other in codes):
        raise NotEmbeddable("its source file does not have this function (any more)")
    if code.co_name == "<lambda>":
        return _without_annotations(_lambda_at(tree, code))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *[d.lineno for d in node.decorator_list]])
            if code.co_firstlineno == first:
                return _without_annotations(node)
    raise NotEmbeddable("its source is not a plain function")


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> tuple[ast.Module, tuple[types.CodeType, ...]]:
    """The syntax tree and all code objects of a file. Optimisations by name need the whole file,
    not one function.
    """
    tree = ast.parse(text)
    return tree, tuple(_codes(compile(tree, "<source>", "exec", dont_inherit=True)))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _lambda_at(tree: ast.Module, code: types.CodeType) -> ast.FunctionDef:
    """The innermost lambda that all of the code's instructions stand in, as a function with one
    `return`.
    """
    places = [p for p in code.co_positions() if None not in p and (p[0], p[2]) != (p[1], p[3])]
    start = min((p[0], p[2]) for p in places)
    end = max((p[1], p[3]) for p in places)
    inside = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            body = node.body
            first, last = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
            if first <= start and end <= last:
                inside.append((first, node))
    if not inside:
        raise NotEmbeddable("its source is not a plain function")
    found = max(inside, key=lambda pair: pair[0])[1]
    return ast.FunctionDef("function", found.args, [ast.Return(found.body)], [])


class _AnnotationRemover(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> Any:
        node.annotation = None
        return node


def _without_annotations(node: ast.FunctionDef) -> ast.FunctionDef:
    """`node` without annotations: they may name what the module does not have, and do not change
    what it does.
    """
    copy = ast.parse(unparsed(node)).body[0]
    assert isinstance(copy, ast.FunctionDef)
    copy.decorator_list = []
    return _AnnotationRemover().visit(copy)


def free_values(function: types.FunctionType) -> Mapping[str, Any]:
    """What the function's free names mean: closure cells before globals."""
    values = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:
            values.pop(name, None)
    return values


def names_read(node: ast.FunctionDef, freevars: Collection[str]) -> list[str]:
    """Names from outside that the function (and functions in it) reads, sorted. Raises if it
    assigns any.
    """
    cells = [ast.Assign([ast.Name(v, ast.Store())], ast.Constant(None), lineno=0) for v in freevars]
    outer = ast.FunctionDef("outer", no_arguments(), [*cells, node], [])
    # Through text: nodes made by hand lack fields that the compiler of one Python or another asks
    # for.
    whole = compile(unparsed(ast.Module([outer], [])), "<source>", "exec", dont_inherit=True)
    outer_code = next(c for c in whole.co_consts if isinstance(c, types.CodeType))
    code = next(c for c in outer_code.co_consts if isinstance(c, types.CodeType))
    names = set(code.co_freevars)
    for part in _codes(code):
        for step in dis.get_instructions(part):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names.add(step.argval)
            elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") or (
                step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars
            ):
                raise NotEmbeddable(f"it assigns {step.argval!r}, which stands outside it")
    return sorted(n for n in names if isinstance(n, str))


def drop_foreign_assignments(node: ast.FunctionDef, values: Mapping[str, Any], where: str) -> list[str]:
    """Removes `module.attribute = ...` of modules that a written module may not import; a note for
    each.

    That is how equinox's `error_if` tells its own `filter_jit` about an error, before it raises it
    for everyone else.
    """
    notes: list[str] = []

    class Dropper(ast.NodeTransformer):
        def visit_Assign(self, node: ast.Assign) -> Any:
            statement, target = node, node.targets[0]
            if len(statement.targets) == 1 and isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                owner = values.get(target.value.id)
                if isinstance(owner, types.ModuleType) and not is_public_module(owner.__name__):
                    notes.append(f"{where}: its assignment to {owner.__name__}.{target.attr} is left out")
                    return ast.Pass()
            return statement

    Dropper().visit(node)
    for body in [body for n in ast.walk(node) if isinstance(body := getattr(n, "body", None), list)]:
        if len(body) > 1:
            body[:] = [s for s in body if not isinstance(s, ast.Pass)] or [ast.Pass()]
    return notes


def check_imports(node: ast.FunctionDef) -> None:
    for part in ast.walk(node):
        names = []
        if isinstance(part, ast.Import):
            names = [a.name for a in part.names]
        elif isinstance(part, ast.ImportFrom):
            names = [part.module or "."] if not part.level else ["."]
        for name in names:
            if not is_public_module(name):
                raise NotEmbeddable(f"it imports {name}")


def only_reads(node: ast.FunctionDef, name: str) -> bool:
    """Whether every use of the container `name` in the function plainly reads it."""
    for parent in ast.walk(node):
        for child in ast.iter_child_nodes(parent):
            if isinstance(child, ast.Name) and child.id == name and not _reads(parent, child):
                return False
    return True


def _reads(parent: ast.AST, child: ast.Name) -> bool:
    match parent:
        case ast.Subscript():
            return isinstance(parent.ctx, ast.Load)
        case ast.Attribute():
            return isinstance(parent.ctx, ast.Load) and parent.attr in _READING_METHODS
        case ast.Call():
            # A function that is handed a container could change it; builtins and NumPy's do not.
            target = parent.func
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                return target.value.id in ("np", "jnp", "numpy")
            return isinstance(target, ast.Name) and target.id in dir(builtins)
        case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.BoolOp() | ast.FormattedValue() | ast.IfExp():
            return True
        case ast.For() | ast.comprehension():
            return parent.iter is child
        case _:
            return False
