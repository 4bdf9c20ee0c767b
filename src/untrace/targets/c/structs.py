"""Pytrees as structs: their types, how each leaf is reached in C, and where it is in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace.ir.types import PyTree
from untrace.targets.c.expressions import declared_type
from untrace.targets.c.names import Scope, c_name


@dataclass(frozen=True, slots=True)
class Leaf:
    """An array in a struct."""

    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(eq=False, slots=True)
class Struct:
    """A struct of C: its tag, and its fields in order; a field of `count` such structs in a row has a number for it, else 0."""

    tag: str
    fields: list[Field]


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Leaf | Struct
    count: int = 0


class Structs:
    """The structs of one file, those that others hold first."""

    def __init__(self) -> None:
        self.all: list[Struct] = []

    def of(self, tree: PyTree, tag: str, names: Sequence[str | None] = ()) -> Struct | Leaf:
        """What a pytree is in C. names: hints for the elements of a tuple."""
        children, kind = _children(tree)
        if children is None:
            return _leaf(tree)
        scope = Scope()
        fields: list[Field] = []
        for place, (word, child) in enumerate(children):
            hint = names[place] if place < len(names) and kind in (tuple, list) else None
            name = scope.fresh(hint or word, "item")
            if not jax.tree.leaves(child):
                continue
            fields.append(self._field(name, child, f"{tag}_{name}"))
        for other in self.all:
            if other.fields == fields:  # a gradient is what it is the gradient with respect to
                return other
        made = Struct(tag, fields)
        self.all.append(made)
        return made

    def _field(self, name: str, child: PyTree, tag: str) -> Field:
        parts, kind = _children(child)
        if (
            parts is not None
            and kind is list
            and len(parts) > 1
            and not jax.tree_util.all_leaves([p for _, p in parts])
        ):
            examples = [_types(p) for _, p in parts]
            if all(e == examples[0] for e in examples):  # layers of one kind are an array of structs
                made = self.of(parts[0][1], c_name(tag.removesuffix("s"), "item"))
                return Field(name, made, len(parts))
        return Field(name, self.of(child, tag))

    def texts(self) -> list[str]:
        return [_definition(struct) for struct in self.all]


def _types(tree: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [_leaf(x) for x in leaves]


def _leaf(array: PyTree) -> Leaf:
    if jax_compat.is_key(array):
        return Leaf((*array.shape, 2), np.dtype(np.uint32))
    return Leaf(tuple(np.shape(array)), _dtype(array))


def _dtype(leaf: PyTree) -> np.dtype:
    """The type that JAX takes it for: NumPy's int64 is an int32 where there are no 64 bits."""
    return np.dtype(jax.dtypes.canonicalize_dtype(getattr(leaf, "dtype", type(leaf))))


def _children(tree: PyTree) -> tuple[list[tuple[str, PyTree]] | None, type]:
    """The children of a container with words for them, in JAX's order; None of a leaf."""
    if tree is not None and jax.tree_util.all_leaves([tree]):
        return None, type(tree)
    found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    return [(_word(path[0]), child) for path, child in found], type(tree)


def _word(key: Any) -> str:
    """The author's name for a part of a tree; the place of an element of a tuple or a list."""
    for attribute in ("name", "key"):
        value = getattr(key, attribute, None)
        if isinstance(value, str):
            return value
    return f"item_{getattr(key, 'idx', getattr(key, 'key', 0))}"


def _definition(struct: Struct) -> str:
    lines = [f"struct {struct.tag} {{"]
    for field in struct.fields:
        if isinstance(field.kind, Leaf):
            shape = "".join([f"[{max(n, 1)}]" for n in field.kind.shape])
            lines.append(f"    {declared_type(field.kind.dtype)} {field.name}{shape};")
        else:
            lines.append(f"    struct {field.kind.tag} {field.name}{f'[{field.count}]' if field.count else ''};")
    return "\n".join([*lines, "};"])


def layout(kind: Struct | Leaf, count: int = 0) -> np.dtype:
    """The same as NumPy's type, with C's places of the fields."""
    if isinstance(kind, Leaf):
        return np.dtype((kind.dtype, tuple([max(n, 1) for n in kind.shape])))
    made = np.dtype([(f.name, layout(f.kind, f.count)) for f in kind.fields], align=True)
    return np.dtype((made, (count,))) if count else made


def offsets(struct: Struct) -> list[int]:
    """After how many bytes each field begins."""
    found: dict[str, tuple[Any, ...]] = dict(layout(struct).fields or {})
    return [found[field.name][1] for field in struct.fields]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a leaf is: how C reaches it from the struct, after how many bytes, and what it is."""

    path: str
    offset: int
    leaf: Leaf

    @property
    def size(self) -> int:
        return math.prod(self.leaf.shape) * self.leaf.dtype.itemsize


def places(struct: Struct | Leaf, path: str = "", offset: int = 0) -> list[Place]:
    """The leaves in JAX's order."""
    if isinstance(struct, Leaf):
        return [Place(path, offset, struct)]
    found: list[Place] = []
    for field, inside in zip(struct.fields, offsets(struct), strict=True):
        start = offset + inside
        name = f"{path}.{field.name}" if path else field.name
        if not field.count:
            found += places(field.kind, name, start)
            continue
        size = layout(field.kind).itemsize
        for k in range(field.count):
            found += places(field.kind, f"{name}[{k}]", start + k * size)
    return found
