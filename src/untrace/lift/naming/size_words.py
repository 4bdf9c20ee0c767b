"""The author's words for sizes: `batch, length, dim = x.shape` names two sizes of the inputs and one of the model."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from untrace.ir.nodes import Program, walk_functions
from untrace.lift.naming import words
from untrace.provenance.sites import Provenance

Shape = tuple[int, ...]

# Of a name that several functions have, so many shapes are looked at.
_MOST_SHAPES = 4


def author_words(program: Program, provenance: Provenance) -> dict[int, str]:
    """{size that follows the inputs: the author's word for it}, of all functions that left equations in a program."""
    sizes = program.numbers.integers if program.numbers else {}
    shapes: dict[str, dict[Shape, None]] = {}
    definitions: dict[Any, Any] = {}
    for function in walk_functions(program.entry):
        sites = [provenance.site(e.origin) for e in function.equations]
        # In what is mapped the author sees one axis less.
        mapped = ["vmap()" in site.scopes for site in sites]
        values = [] if any(mapped) and function is not program.entry else list(function.params)
        values += [
            o for e, m in zip(function.equations, mapped, strict=True) if not m for o in e.outputs if o is not None
        ]
        for value in values:
            shape = getattr(value.aval, "shape", ())
            if value.hint and any(n in sizes for n in shape):
                shapes.setdefault(value.hint, {})[shape] = None
        for frame in (f for site, m in zip(sites, mapped, strict=True) if not m for f in site.frames):
            if not frame.library and frame.code not in definitions:
                definitions[frame.code] = frame.definition
    found: dict[int, str] = {}
    for definition in definitions.values():
        for i in range(_MOST_SHAPES):
            one_each = {name: list(several)[min(i, len(several) - 1)] for name, several in shapes.items()}
            for size, word in named_sizes(definition, one_each).items():
                if size in sizes:
                    found.setdefault(size, word)
    return found


def named_sizes(definition: Any, shapes: Mapping[str, Shape]) -> dict[int, str]:
    """{size: the word that the author's function has for it}, by the shapes of the function's tensors."""
    found: dict[int, str] = {}
    for node in ast.walk(definition) if isinstance(definition, ast.FunctionDef) else ():
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        for name, size in _bound(node.targets[0], node.value, shapes):
            if name.strip("_"):
                found.setdefault(size, words.clean(name))
    return found


def _bound(target: ast.expr, value: ast.expr, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, int]]:
    if isinstance(target, ast.Tuple):
        if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            for one, part in zip(target.elts, value.elts, strict=True):
                yield from _bound(one, part, shapes)
            return
        sizes = _several(value, shapes)
        if sizes is not None and len(sizes) == len(target.elts):
            for one, size in zip(target.elts, sizes, strict=True):
                if isinstance(one, ast.Name):
                    yield one.id, size
        return
    size = _one(value, shapes)
    if isinstance(target, ast.Name) and size is not None:
        yield target.id, size


def _several(value: ast.expr, shapes: Mapping[str, Shape]) -> Shape | None:
    """`x.shape`, `x.size()`, `x.shape[:2]`."""
    match value:
        case ast.Attribute(value=ast.Name(id=name), attr="shape"):
            return shapes.get(name)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[]):
            return shapes.get(name)
        case ast.Subscript(value=inner, slice=ast.Slice(lower=lower, upper=upper, step=None)):
            shape = _several(inner, shapes)
            bounds = [None if b is None else _index(b) for b in (lower, upper)]
            if shape is None or any(b is None and given is not None for b, given in zip(bounds, (lower, upper))):  # noqa: B905
                return None
            return shape[slice(*bounds)]
    return None


def _one(value: ast.expr, shapes: Mapping[str, Shape]) -> int | None:
    """`x.shape[0]`, `x.size(0)`, `len(x)`."""
    shape: Shape | None = None
    place: int | None = None
    match value:
        case ast.Subscript(value=inner, slice=index) if not isinstance(index, ast.Slice):
            shape, place = _several(inner, shapes), _index(index)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[index]):
            shape, place = shapes.get(name), _index(index)
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]):
            shape, place = shapes.get(name), 0
    if shape is None or place is None or not -len(shape) <= place < len(shape):
        return None
    return shape[place]


def _index(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if type(value) is int else None


def words_for_sizes(own: Sequence[str], taken: Sequence[str | None], call: Any) -> tuple[str, ...]:
    """The author's parameters that are passed a number: `rotary_table(self.head_dim, tokens.shape[1])` -> `length`."""
    if not isinstance(call, ast.Call):
        return ()
    pairs = [*zip(own, call.args, strict=False), *[(k.arg, k.value) for k in call.keywords]]
    return tuple(words.clean(n) for n, v in pairs if n is not None and n not in taken and _is_size(v))


def _is_size(node: ast.expr) -> bool:
    names = [n for n in ast.walk(node) if isinstance(n, (ast.Attribute, ast.Name))]
    if any(isinstance(n, ast.Attribute) and n.attr in ("shape", "size") for n in names):
        return True
    return isinstance(node, ast.Name)
