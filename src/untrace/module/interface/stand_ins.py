"""Pytree classes and their metadata as source: imports where they may be, twins where they may not.

A *twin* is a class of the written module that stands for a library's: same name, same fields,
same order of leaves. It is used only where the library's own class is not loaded (`_loaded`
looks, and imports nothing), so that the written function gives the original's pytrees to a
program that knows them, and needs no library in one that does not.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import jax
import numpy as np

from untrace import jax_compat
from untrace._trees import is_namedtuple
from untrace.ir.types import PyTree
from untrace.python.helpers import helper
from untrace.python.pytrees import Branches, TreeCalls, branches, is_plain_identifier, string
from untrace.python.statements import Assign, Statement, docstring_lines
from untrace.python.tree import Attribute, Call, Expr, List, Text, Tuple
from untrace.python.values import Unwritable, Values

# ---------------------------------------------------------------- what a written module may carry


# What a target knows of metadata that has no public names: (the value, what writes values, what writes trees, what says that
# the module needs a helper, the modules that it needs) -> its source, or None.
OTHER_VALUES: list[Callable[..., Expr | None]] = []


@helper("sys")
def _loaded(module, path, otherwise):
    """`module.path` where that module is loaded already, else `otherwise`; it imports nothing."""
    found = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    for fields in ("_fields", "__dataclass_fields__"):  # another version of the library may differ
        if not set(getattr(otherwise, fields, ())) <= set(getattr(found, fields, ())):
            found = None
    return otherwise if found is None else found


# ---------------------------------------------------------------- where an object can be found


@dataclass(frozen=True, slots=True)
class Place:
    """An object that is `path` of `module`, as was seen by looking it up."""

    module: str
    path: tuple[str, ...]

    @property
    def is_plain(self) -> bool:
        """Whether any written module may import it: JAX, NumPy, the standard library."""
        top = self.module.split(".")[0]
        return jax_compat.is_of_jax(top) or top == "numpy" or top in sys.stdlib_module_names


# The classes of the standard library that JAX itself knows as pytrees.
_STANDARD = ("OrderedDict", "defaultdict")


def place_of(value: object) -> Place | None:
    """The most public place from which `value` can be imported; None where there is none.

    Of the packages that contain its module, the outermost one that has it under the same name is
    taken (`optax.EmptyState`, not `optax._src.base.EmptyState`); failing that its own module, but
    never JAX's private ones.
    """
    module = getattr(value, "__module__", None)
    path = getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str):
        return _sentinel_place(value)
    parts = tuple(path.split("."))
    if not all(is_plain_identifier(part) for part in (*module.split("."), *parts)):
        return None
    words = module.split(".")
    candidates = [".".join(words[:n]) for n in range(1, len(words) + 1)]
    candidates += jax_compat.other_homes(module)
    for name in candidates:
        if any(word.startswith("_") for word in name.split(".")) and name != module:
            continue
        if jax_compat.is_internal_module(name):
            continue
        if _look_up(name, parts) is value:
            return Place(name, parts)
    return None


def _sentinel_place(value: object) -> Place | None:
    """Where a library keeps a single object (`equinox`'s MISSING), by its class's own module."""
    module = type(value).__module__
    if jax_compat.is_of_jax(module) or module.split(".")[0] in ("builtins", "numpy", "__main__"):
        return None
    if not all(is_plain_identifier(part) for part in module.split(".")):
        return None
    for name, found in getattr(sys.modules.get(module), "__dict__", {}).items():
        if found is value and is_plain_identifier(name):
            return Place(module, (name,))
    return None


def _look_up(module: str, path: Sequence[str]) -> object:
    found: object = sys.modules.get(module)
    for name in path:
        # Not `getattr`: a package that loads its parts lazily would be made to load them.
        found = getattr(found, "__dict__", {}).get(name)
    return found


def is_importable(place: Place | None, standalone: bool) -> bool:
    """Whether the written module may import from there (`__main__` differs by program)."""
    return place is not None and (place.is_plain or not standalone and place.module != "__main__")


# ---------------------------------------------------------------- metadata


class Metadata(Values):
    """Writes a node's metadata.

    `refer(value, otherwise)` gives an object of a library, or `otherwise` where that is not
    loaded; it raises Unwritable for an object that no module has. `tree(example)` writes a pytree,
    for metadata that holds treedefs, of which `calls` says how they are made. `need(name)` says that
    the module needs a helper.
    """

    def __init__(
        self,
        modules: set[str],
        refer: Callable[[object, type | None], Expr],
        tree: Callable[[object], Expr],
        calls: TreeCalls,
        need: Callable[[str], object] = lambda name: None,
    ):
        super().__init__(modules)
        self.refer, self.tree, self.calls, self.need = refer, tree, calls, need

    def source(self, value: object) -> Expr:
        if type(value) is str:
            return string(value)
        return super().source(value)

    def _other(self, value: object) -> Expr:
        for source in OTHER_VALUES:
            found = source(value, self.source, self.tree, self.need, self.modules)
            if found is not None:
                return found
        if isinstance(value, jax.tree_util.PyTreeDef):
            self.modules.add(self.calls.module)
            example = jax.tree.unflatten(value, [0] * value.num_leaves)
            return Call(self.calls.structure, [self.tree(example)])
        if isinstance(value, enum.Enum):
            return self._enum(value)
        if isinstance(value, np.dtype):
            if value.name not in np.sctypeDict or np.dtype(value.name) != value:
                return self.dtype(value)
            self.modules.add("np")
            return Call("np.dtype", [string(value.name)])
        if isinstance(value, Mapping):
            return self._remade(value, [dict(value)], {}, dict)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value)
        if isinstance(value, type) or callable(value):
            return self.path_to(value)
        try:
            return super()._other(value)
        except Unwritable:
            return self.refer(value, None)

    def path_to(self, value: object, suffix: str = "", otherwise: type | None = None) -> Expr:
        """The object itself: by its public path, else by `refer`."""
        if suffix:
            raise Unwritable("a part of an object")
        path = jax_compat.public_path(value)
        if path is None:
            return self.refer(value, otherwise)
        if "." not in path:
            return Text(path)  # a builtin
        if not jax_compat.is_brought(path):  # by a name of its own, then
            return self.refer(value, otherwise)
        self.modules.add(path.split(".")[0])
        return Text(path)

    def _enum(self, value: enum.Enum) -> Expr:
        cls = self.path_to(type(value), otherwise=type(value.value))
        named = is_plain_identifier(value.name) and type(value).__members__.get(value.name) is value
        if named and type(cls) is not Call:
            return Attribute(cls, value.name)
        # A combination of flags has no name, and a class that is only looked up may not be there.
        return Call(cls, [self.source(value.value)])

    def _dataclass(self, value: object) -> Expr:
        assert dataclasses.is_dataclass(value)
        fields = [f.name for f in dataclasses.fields(value) if f.init]
        if not all(map(is_plain_identifier, fields)):
            raise Unwritable(f"a {type(value).__qualname__} object")
        return self._remade(value, [], {name: getattr(value, name) for name in fields}, dict)

    def _remade(self, value: object, args: Sequence[object], kwargs: dict[str, object], otherwise: type) -> Expr:
        """`type(value)(*args, **kwargs)`, where that was seen to be equal to `value`."""
        try:
            same = type(value)(*args, **kwargs) == value
        except Exception:
            same = False
        if same is not True:
            raise Unwritable(f"a {type(value).__qualname__} object")
        cls = self.path_to(type(value), otherwise=otherwise)
        named = [(name, self.source(part)) for name, part in kwargs.items()]
        return Call(cls, [self.source(arg) for arg in args], named)


# ---------------------------------------------------------------- constructors


# Keyword, child index or None, metadata value.
Keywords = list[tuple[str, int | None, object]]


def constructor_keywords(node: PyTree, level: Branches, registered: bool = False) -> Keywords | None:
    """(keyword, child index or None, metadata value) for `type(node)(...)`; None if unsure.

    registered: whether it will be called on the class itself, and not on a twin. A namedtuple may be registered with
    some of its fields as metadata; JAX would build such a node of its children alone.

    Only namedtuples and dataclasses, and only where a trial with stand-ins gave exactly those
    children and that metadata back: a class whose `__init__` converts or computes is put together
    by its registration instead (`_node`).
    """
    cls = type(node)
    if is_namedtuple(node):
        words = list(cls._fields)
    elif dataclasses.is_dataclass(cls):
        words = [getattr(key, "name", None) for key in level.keys]
    else:
        return None
    names = [word for word in words if _is_field_name(word)]
    if len(names) < len(words) or len(set(names)) != len(names):
        return None
    probes = [object() for _ in level.children]
    keywords: Keywords = [(n, i, None) for i, n in enumerate(names)]
    if is_namedtuple(node) and registered:
        children = {id(child): i for i, child in enumerate(level.children)}
        keywords = [(n, children.get(id(v)), v) for n, v in zip(names, node, strict=True)]
        if sorted(i for _, i, _ in keywords if i is not None) != list(range(len(level.children))):
            keywords = [(n, i, None) for i, n in enumerate(names)]
    if sum(i is not None for _, i, _ in keywords) != len(level.children):
        return None
    if not is_namedtuple(node):
        for field in dataclasses.fields(cls):
            if field.name not in names and field.init:
                if not hasattr(node, field.name) or not _is_field_name(field.name):
                    return None
                keywords.append((field.name, None, getattr(node, field.name)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = cls(**{k: probes[i] if i is not None else v for k, i, v in keywords})
        found = branches(made)
        same = found is not None and found.kind is level.kind and bool(found.data == level.data)
    except Exception:  # whatever a library's constructor raises on stand-ins
        return None
    if found is None or not same or len(found.children) != len(probes):
        return None
    return keywords if all(a is b for a, b in zip(found.children, probes, strict=True)) else None


def _is_field_name(name: object) -> TypeGuard[str]:
    """Whether a twin can have this field: `__x` is mangled, `typing = ...` hides the module."""
    if not is_plain_identifier(name) or name.startswith("__"):
        return False
    return name not in ("typing", "dataclasses") and not jax_compat.is_of_jax(name)


# ---------------------------------------------------------------- twin classes


def twin_statement(
    name: str, node: object, level: Branches, keywords: Keywords | None, calls: TreeCalls
) -> tuple[Statement, set[str], list[str]]:
    """(the definition of the twin of `type(node)`, the modules it needs, the helpers it needs).

    `name` is safe and free. `keywords` is `constructor_keywords(node, level)`: with it the twin
    is a NamedTuple or a dataclass, without it a class that holds metadata and children as the
    registration had them. `calls`: how the text registers a class.
    """
    cls = type(node)
    if keywords is not None and is_namedtuple(node):
        fields = [k for k, _, _ in keywords]
        # Names that `rename=True` made, which the class form refuses.
        if any(field.startswith("_") for field in fields):
            items = List([string(field) for field in fields])
            call = Call("collections.namedtuple", [string(name), items], [("rename", Text("True"))])
            return Assign([name], call), {"collections"}, []
        return TwinClass(name, cls, fields, (), calls), {"typing"}, []
    if keywords is not None:
        children = [k for k, i, _ in sorted(keywords, key=lambda k: -1 if k[1] is None else k[1])]
        static = [k for k, i, _ in keywords if i is None]
        fields = [k for k in children if k not in static]
        return TwinClass(name, cls, fields, static, calls), {"typing", "dataclasses", calls.module}, []
    keys = []
    for index, key in enumerate(level.keys):
        word = getattr(key, "name", getattr(key, "key", getattr(key, "idx", index)))
        keys.append(string(word) if isinstance(word, str) else Text(str(index)))
    if len({key.flat() for key in keys}) != len(keys):
        keys = [Text(str(index)) for index in range(len(keys))]
    return Assign([name], Call("_twin", [string(name), Tuple(keys)])), set(), ["_twin"]


class TwinClass(Statement):
    """`class Name(typing.NamedTuple)`, or a dataclass with `fields` and then `static` ones."""

    __slots__ = ("name", "fields", "static", "_cls", "_calls")

    def __init__(self, name: str, cls: type, fields: Sequence[str], static: Sequence[str], calls: TreeCalls):
        self.name, self.fields, self.static, self._cls, self._calls = name, fields, static, cls, calls
        self.origin = None

    def lines(self, indent: str) -> Iterator[str]:
        inner = indent + "    "
        yield from ("", "")
        if issubclass(self._cls, tuple):
            yield f"{indent}class {self.name}(typing.NamedTuple):"
        else:
            frozen = self._cls.__dataclass_params__.frozen
            yield f"{indent}@{self._calls.node_class}"
            yield f"{indent}@dataclasses.dataclass{'(frozen=True)' if frozen else ''}"
            yield f"{indent}class {self.name}:"
        place = place_of(self._cls)
        known = ".".join((place.module, *place.path)) if place else self._cls.__name__
        where = " where that is not loaded" if place else ", a class of no module"
        yield from docstring_lines(f"Stands for `{known}`{where}.", inner)
        if self.fields or self.static:
            yield ""
        for field in self.fields:
            yield f"{inner}{field}: typing.Any"
        for field in self.static:
            yield f'{inner}{field}: typing.Any = dataclasses.field(metadata={{"static": True}})'
