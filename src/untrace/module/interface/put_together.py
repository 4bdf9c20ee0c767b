"""Results put together: leaf variables -> the original's pytree.

Dicts, tuples and lists are written as such. A node of a library's class is

- imported, where the module may import the class: `TraceState(trace={...})`; else
- taken from an argument: `jax.tree.unflatten(jax.tree.structure(opt_state), [...])`; else
- a twin, a class of the module that is used where the library's own is not loaded (`stand_ins`),

so that a `standalone` module still returns the library's own classes to a program that uses them.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
from jax.tree_util import DictKey

from untrace._errors import UnsupportedPrimitiveError
from untrace._identifiers import identifier
from untrace._trees import is_namedtuple
from untrace.ir.types import PyTree
from untrace.module.grouping.packed import whole_or
from untrace.module.interface import stand_ins
from untrace.module.interface.writing import Writer
from untrace.module.known_trees import KnownTrees
from untrace.python.pytrees import (
    DICTS,
    Branches,
    TreeCalls,
    branches,
    is_plain_identifier,
    key_source,
    string,
    subtrees,
)
from untrace.python.statements import Assign, Statement
from untrace.python.tree import Attribute, Call, Dict, Expr, Leaf, List, Name, Text, Tuple
from untrace.python.values import Unwritable


@dataclass(slots=True)
class Rebuilt:
    """A result as source, and what it needs.

    `statements` stand in the function before its return; `definitions`, `imports` (whole lines),
    `modules` (their names) and `helpers` (of `runtime`) belong to the module. `notes` are
    sentences for the proof.
    """

    value: Expr = field(default_factory=lambda: Text("None"))
    statements: list[Statement] = field(default_factory=list)
    definitions: list[Statement] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    helpers: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def rebuild(
    example: object,
    leaves: Sequence[Expr],
    inputs: Sequence[tuple[Expr, object]],
    standalone: bool,
    fresh: Callable[[str], str],
    calls: TreeCalls,
    known: dict[object, Expr] | None = None,
    trees: KnownTrees | None = None,
    looked_up: dict[object, Name] | None = None,
    readable: bool = False,
    has_jax: bool = True,
) -> Rebuilt:
    """The pytree of `example` with `leaves` (in flatten order) in it, as an expression.

    `example`: the result with any leaves (ShapeDtypeStructs). `inputs`: (expression, example) of
    each argument; the expression must still be valid where the result is built. `fresh(base)`
    gives a free name of the module that no inner name hides. With `standalone` only JAX, NumPy
    and the standard library are imported. `known` holds the twins that the module has already, and
    gets the new ones; `looked_up` the same for variables of the function that hold a library's classes.
    `trees` says which trees have a name (`known_trees.KnownTrees`). `has_jax`: whether the module may ask JAX to put a class
    together; else it is a tree of that class with other parts. Raises UnsupportedPrimitiveError for a dict key that has no
    source form and comes from no argument. `calls`: how the text calls what does so.
    """
    builder = _Builder(inputs, standalone, fresh, calls, {} if known is None else known, trees)
    builder.looked_up = {} if looked_up is None else looked_up
    builder.readable, builder.has_jax = readable, has_jax
    node = builder.read(example)
    if node.count != len(leaves):
        raise ValueError(f"{len(leaves)} leaves for a tree of {node.count}")
    builder.out.value = builder.build(node, leaves)
    del builder.metadata, builder._trial  # which hold the builder
    return builder.out


def rebuilt(w: Writer, example: PyTree, leaves: Sequence[Expr], readable: bool = False) -> Expr:
    """The pytree of `example` with these leaves inside the function that `w` writes.

    readable: raise UnsupportedPrimitiveError where a reader would not put it together like that.
    """

    def fresh(base: str) -> str:
        return w.module.scope.fresh(identifier(base, "Node"))

    root = w  # a function inside another one sees what that one has looked up
    while root.outer is not None:
        root = root.outer
    made = rebuild(
        example, leaves, (), w.module.standalone, fresh, w.module.tree_calls, w.module.twins, KnownTrees(w),
        root.looked_up, readable, not w.module.describes_types,
    )  # fmt: skip
    root.statements.extend(made.statements)
    w.module.definitions.extend(made.definitions)
    w.module.imports.update(made.imports)
    w.module.modules.update(made.modules)
    for helper in made.helpers:
        w.module.helper(helper)
    w.module.notes.extend(made.notes)
    return made.value


def changed_parts(tree: Leaf, node: object, changes: Sequence[tuple[str, Expr]], modules: set[str]) -> Call:
    """A named tuple, dataclass or dict like `node`, with other parts by these names. modules: gets those that this needs."""
    if type(node) is dict:
        return Call("dict", [tree], changes)
    if is_namedtuple(node):
        return Call(Attribute(tree, "_replace"), (), changes)
    modules.add("dataclasses")
    return Call("dataclasses.replace", [tree], changes)


def is_readable(example: object, has: Callable[[Callable[[object], bool]], bool]) -> bool:
    """Whether a reader would put a tree together: of dicts, tuples, lists and public classes that take their children by
    name, and of what can be a changed part of a tree that has a name: `has(accept)` tells whether `accept` takes one."""
    level = branches(example)
    if level is None or example is None:
        return True
    if type(example) not in (*DICTS, tuple, list):
        keywords = stand_ins.constructor_keywords(example, level)
        if not _has_parts_by_name(example, level, keywords):
            if (
                keywords is None
            ):  # its constructor does not take its parts: only a tree of its structure can give another
                return has(lambda other: _same_tree(other, example))
            if not has(lambda other: _is_like(other, example, level)):
                return False
    return all(is_readable(child, has) for child in level.children)


def _same_tree(other: object, value: object) -> bool:
    return type(other) is type(value) and _equal(jax.tree.structure(other), jax.tree.structure(value))


def inner_nodes(example: PyTree) -> list[PyTree]:
    """Every node of a tree that is no leaf."""
    level = branches(example)
    return [] if level is None else [example, *[node for child in level.children for node in inner_nodes(child)]]


def _has_parts_by_name(value: object, level: Branches, keywords: stand_ins.Keywords | None) -> bool:
    place = stand_ins.place_of(type(value))
    private = place is not None and place.module != "__main__" and "._" in f".{place.module}"
    return not private and keywords is not None and all(index is not None for _, index, _ in keywords)


def _is_like(other: object, value: object, level: Branches) -> bool:
    """Whether a node is of the same class, with the same metadata."""
    found = branches(other) if type(other) is type(value) else None
    return found is not None and len(found.children) == len(level.children) and _equal(found.data, level.data)


@dataclass(slots=True)
class _Node:
    """A node of the result. `plain`: it can be written without an argument or a twin to help."""

    value: PyTree
    level: Branches | None  # None of a leaf
    children: list[_Node]
    count: int
    keywords: stand_ins.Keywords | None = None
    plain_itself: bool = True
    plain: bool = True

    @property
    def inside(self) -> Branches:
        """The level of what is no leaf."""
        assert self.level is not None
        return self.level


class _Builder:
    def __init__(
        self,
        inputs: Sequence[tuple[Expr, PyTree]],
        standalone: bool,
        fresh: Callable[[str], str],
        calls: TreeCalls,
        known: dict[object, Expr],
        trees: KnownTrees | None = None,
    ):
        self.trees = trees
        self.calls = calls
        self.out = Rebuilt()
        self.standalone, self.fresh = standalone, fresh
        self.inputs = inputs
        self._subtrees: list[tuple[Expr, PyTree, Branches]] | None = None
        # By place, and by class: what the module has already.
        self._imported = known
        self._twins = known
        self.looked_up: dict[object, Name] = {}
        self.readable, self.has_jax = False, True
        self.metadata = stand_ins.Metadata(self.out.modules, self._refer, self._write_tree, calls, self._helper)
        # The same writer, whose names and imports are thrown away: it answers whether something
        # can be written.
        self._trial = stand_ins.Metadata(set(), self._could_refer, lambda example: Text("None"), calls)

    # ------------------------------------------------------------ reading

    def read(self, value: object) -> _Node:
        level = branches(value)
        if level is None:
            return _Node(value, None, [], 1)
        children = [self.read(child) for child in level.children]
        node = _Node(value, level, children, sum(child.count for child in children))
        if type(value) in DICTS:
            parts: list[object] = [key.key for key in level.keys if isinstance(key, DictKey)]
            if type(value) is collections.defaultdict:
                parts.append(value.default_factory)
            node.plain_itself = self._can_write(parts)
        elif value is not None and type(value) not in (tuple, list):
            importable = stand_ins.is_importable(stand_ins.place_of(type(value)), self.standalone)
            node.keywords = stand_ins.constructor_keywords(value, level, registered=importable)
            node.plain_itself = importable and self._can_write(self._metadata_of(node))
        node.plain = node.plain_itself and all(child.plain for child in children)
        return node

    @staticmethod
    def _metadata_of(node: _Node) -> object:
        if node.keywords is not None:
            return [value for _, index, value in node.keywords if index is None]
        return node.level.data if node.level is not None else None

    def _can_write(self, value: object) -> bool:
        try:
            self._trial.source(value)
        except Unwritable:
            return False
        return True

    # ------------------------------------------------------------ writing

    def build(self, node: _Node, leaves: Sequence[Expr]) -> Expr:
        if node.level is None:
            return leaves[0]
        if node.value is None:
            return Text("None")
        found = self.trees.whole(node.value, leaves) if self.trees is not None and leaves else None
        if found is not None:
            return found
        if not node.plain:
            found = self._replaced(node, leaves)
            if found is None and not self._is_changed_by_parts(node, leaves):
                found = self._same_structure(node, leaves)
            if found is not None:
                return found
        elif node.keywords is None and type(node.value) not in (tuple, list, *DICTS):
            # Its constructor does not take its parts: a tree of its structure tells more than its metadata.
            found = self._same_structure(node, leaves)
            if found is not None:
                return found
        children, start = [], 0
        for child in node.children:
            children.append(self.build(child, leaves[start : start + child.count]))
            start += child.count
        if type(node.value) is tuple:
            return Tuple(children)
        if type(node.value) is list:
            return List(children)
        if type(node.value) in DICTS:
            return self._dict(node, children)
        changed = self._changed(node, children)
        if changed is None and self.readable and not _has_parts_by_name(node.value, node.level, node.keywords):
            raise UnsupportedPrimitiveError(
                f"a `{type(node.value).__name__}` cannot be put together by its parts' names"
            )
        return changed or self._class_node(node, children)

    def _changed(self, node: _Node, children: Sequence[Expr]) -> Expr | None:
        """`state._replace(step=step)` or `dataclasses.replace(state, step=step)`, where most parts are still those of a tree
        that has a name."""
        if self.trees is None or node.keywords is None:
            return None
        own = [(name, index) for name, index, _ in node.keywords if index is not None]
        kept: dict[str, set[str]] = {}
        bases: dict[str, Leaf] = {}
        for name, index in own:
            child = self.trees.leaf(children[index])
            if child is not None and child.steps[-1:] == (("attribute", name, 0),):
                base = Leaf(child.root, child.steps[:-1])
                bases.setdefault(base.flat(), base)
                kept.setdefault(base.flat(), set()).add(name)
        for text, base in bases.items():
            kept[text].update(name for name, index in own if self.trees.is_part(children[index], base, name))
        best = max(kept, key=lambda text: len(kept[text]), default="")
        base = bases.get(best)
        if (
            base is None
            or 2 * len(kept[best]) < len(own)
            or not _is_like(self.trees.node(base), node.value, node.inside)
        ):
            if len(own) == len(node.keywords) and node.plain_itself:
                return None
            # What is no array of it (a model's functions), or its class, comes from a tree like it.
            base = self._tree_like(node)
        if base is None or not is_namedtuple(node.value) and not dataclasses.is_dataclass(node.value):
            return None
        changes = [(n, children[i]) for n, i in own if n not in kept.get(base.flat(), ())]
        if not changes:
            return base if base.steps else base.root
        return changed_parts(base, node.value, changes, self.out.modules)

    def _tree_like(self, node: _Node) -> Leaf | None:
        """A tree that has a name, of the same class and metadata."""
        if self.trees is None or node.level is None:
            return None
        level = node.level
        return self.trees.like(lambda other: _is_like(other, node.value, level))

    def _is_changed_by_parts(self, node: _Node, leaves: Sequence[Expr]) -> bool:
        """Whether all of a node that has no source form can be a tree that has a name, or a changed part of one."""
        if node.plain or self.trees is not None and leaves and self.trees.whole(node.value, leaves) is not None:
            return True
        if not node.plain_itself:
            made_by_name = is_namedtuple(node.value) or dataclasses.is_dataclass(node.value)
            if not made_by_name or node.keywords is None or self._tree_like(node) is None:
                return False
        rest = iter(leaves)
        return all(
            [self._is_changed_by_parts(child, [*itertools.islice(rest, child.count)]) for child in node.children]
        )

    def _dict(self, node: _Node, children: list[Expr]) -> Expr:
        by_key = {
            key.key: child for key, child in zip(node.inside.keys, children, strict=True) if isinstance(key, DictKey)
        }
        try:
            # In the example's own order, which `OrderedDict` keeps and a reader expects.
            pairs = whole_or([(self._key(key), by_key[key]) for key in node.value])
        except Unwritable as error:
            raise UnsupportedPrimitiveError(
                f"the result is a dict with a key that has no source form ({error}), and no "
                "argument holds a dict like it to take the key from: return a dict with strings or "
                "numbers as keys"
            ) from None
        if type(node.value) is dict:
            return self._with_parts(pairs)
        cls = self._import(stand_ins.Place("collections", (type(node.value).__name__,)))
        if type(node.value) is collections.OrderedDict:
            return Call(cls, [pairs])
        try:
            factory = self.metadata.source(node.value.default_factory)
        except Unwritable:
            factory = Text("None")
            self._note("the default factory of a defaultdict in the result")
        return Call(cls, [factory, pairs])

    def _with_parts(self, made: Expr) -> Expr:
        """The dict, with `**part` for the items that are all those of a dict that has a name."""
        if type(made) is not Dict or self.trees is None:
            return made
        by_root: dict[str, list[int]] = {}
        for i, (key, value) in enumerate(made.pairs):
            if isinstance(value, Leaf) and key is not None and value.steps == (("item", key.flat(), 0),):
                by_root.setdefault(value.root.id, []).append(i)
        whole: dict[int, Expr] = {}  # place of the first item -> the dict
        gone: set[int] = set()
        for places in by_root.values():
            first = made.pairs[places[0]][1]
            assert isinstance(first, Leaf)
            root = first.root
            example = self.trees.node(Leaf(root, ()))
            if type(example) is dict and len(example) == len(places) > 1:
                whole[places[0]] = root
                gone.update(places)
        pairs = [(None, whole[i]) if i in whole else pair for i, pair in enumerate(made.pairs)]
        return Dict([pair for i, pair in enumerate(pairs) if i in whole or i not in gone])

    def _key(self, key: object) -> Expr:
        written = key_source(key)
        return written if written is not None else self.metadata.source(key)

    def _class_node(self, node: _Node, children: list[Expr]) -> Expr:
        if not self.has_jax and dataclasses.is_dataclass(node.value):
            return self._with_parts_of(node, children)
        place = stand_ins.place_of(type(node.value))
        if node.plain_itself:
            assert place is not None  # what can be called by itself has a name
            return self._construct(node, self._import(place), children)
        for expr, other, level in self._all_subtrees():
            if type(other) is type(node.value) and len(level.children) == len(children):
                if _equal(level.data, node.inside.data):
                    return Call(self._helper("_like"), [expr, List(children)])
        return self._construct(node, self._twin(node, place), children)

    def _with_parts_of(self, node: _Node, children: list[Expr]) -> Expr:
        """A tree of the same class and metadata with other parts, where there is one at hand."""
        assert node.level is not None
        names = [getattr(key, "name", "") for key in node.level.keys]
        like: Expr | None = self._tree_like(node)
        for expr, other, _ in self._all_subtrees() if like is None else ():
            if _is_like(other, node.value, node.level):
                like = expr
                break
        if like is None and node.keywords is not None:
            return self._construct(node, self._twin(node, stand_ins.place_of(type(node.value))), children)
        if like is None or not all(map(is_plain_identifier, names)):
            raise UnsupportedPrimitiveError(
                f"a `{type(node.value).__name__}` is made of nothing that is one: only JAX can do that. "
                "Give a tuple of its parts, or take one."
            )
        return Call(self._helper("_with_parts"), [like], list(zip(names, children, strict=True)))

    def _construct(self, node: _Node, cls: Expr, children: list[Expr]) -> Expr:
        if node.keywords is None:
            metadata = self._write_metadata(node, node.inside.data)
            return Call(self._helper("_node"), [cls, metadata, List(children)])
        kwargs = [
            (name, children[index] if index is not None else self._write_metadata(node, value))
            for name, index, value in node.keywords
        ]
        return Call(cls, (), kwargs)

    def _write_metadata(self, node: _Node, value: object) -> Expr:
        if self._can_write(value):
            return self.metadata.source(value)
        self._note(f"the metadata of the `{type(node.value).__name__}` in the result")
        if type(value) is tuple:  # what can be written of it is written
            return Tuple([self._write_metadata(node, part) for part in value])
        return string(f"<{type(value).__name__}>")

    def _note(self, what: str) -> None:
        self._say(f"{what} has no source form, so that the tree differs from the original's there")

    def _say(self, sentence: str) -> None:
        if sentence not in self.out.notes:
            self.out.notes.append(sentence)

    # ------------------------------------------------------------ from the arguments

    def _all_subtrees(self) -> list[tuple[Expr, PyTree, Branches]]:
        """The inner nodes of the arguments that an expression reaches, outermost first."""
        if self._subtrees is None:
            self._subtrees = [
                (expr, node, level)
                for root, example in self.inputs
                for expr, node in subtrees(example, root)
                if (level := branches(node)) is not None
            ]
        return self._subtrees

    def _same_structure(self, node: _Node, leaves: Sequence[Expr]) -> Expr | None:
        """`node` through an argument's subtree of exactly its structure; None if there is none."""
        if not self.has_jax and leaves and dataclasses.is_dataclass(node.value):
            return None
        treedef = jax.tree.structure(node.value)
        for expr, other, level in self._all_subtrees():
            same_kind = type(other) is type(node.value)
            if same_kind and len(level.children) == len(node.children):
                if _equal(jax.tree.structure(other), treedef):
                    return self._unflattened(expr, leaves) if leaves else expr
        like = self.trees.like(lambda other: _same_tree(other, node.value)) if self.trees is not None else None
        return None if like is None else self._unflattened(like, leaves)

    def _unflattened(self, like: Expr, leaves: Sequence[Expr]) -> Expr:
        self.out.modules.add(self.calls.module)
        return Call(self.calls.unflatten, [Call(self.calls.structure, [like]), List(list(leaves))])

    def _replaced(self, node: _Node, leaves: Sequence[Expr]) -> Expr | None:
        """`state._replace(params=new_params)`, where an argument holds a named tuple like it and its parts are at hand."""
        if self.trees is None or not is_namedtuple(node.value) or not all(c.count for c in node.children):
            return None
        if len(node.children) != len(node.value._fields):  # registered as another node
            return None
        like = next((e for e, other, _ in self._all_subtrees() if type(other) is type(node.value)), None)
        if like is None:
            return None
        parts, start = [], 0
        for child in node.children:
            own = leaves[start : start + child.count]
            part = own[0] if child.level is None else self.trees.whole(child.value, own)
            if part is None:
                return None
            parts.append(part)
            start += child.count
        if not parts:
            return like
        changed = self._changed(node, parts)
        if changed is not None:
            return changed
        return Call(Attribute(like, "_replace"), (), list(zip(node.value._fields, parts, strict=True)))

    # ------------------------------------------------------------ classes and other objects

    def _twin(self, node: _Node, place: stand_ins.Place | None) -> Expr:
        """The library class where it is loaded, else its twin: a name bound before the return."""
        cls = type(node.value)
        key = cls, tuple(map(str, node.inside.keys)), node.keywords is None
        twin = self._twins.get(key)
        if twin is None:
            twin = self._twins[key] = self._define_twin(node)
        assert isinstance(twin, Name)
        # The library's class would not take what stands in for metadata that has no source.
        if place is None or not self._can_write(self._metadata_of(node)):
            if place is None:
                self._say(
                    f"no module has the class `{identifier(cls.__name__, 'Node')}` of the result, "
                    "so that a class of the written module stands for it"
                )
            return twin
        found = self.looked_up.get(key)
        if found is None:
            local = self.fresh(f"{twin.id}_class")
            arguments = [string(place.module), string(".".join(place.path)), twin]
            call = Call(self._helper("_loaded"), arguments)
            self.out.statements.append(Assign([local], call))
            found = self.looked_up[key] = Name(local)
        return found

    def _define_twin(self, node: _Node) -> Name:
        name = self.fresh(identifier(type(node.value).__name__, "Node"))
        if not self.has_jax and dataclasses.is_dataclass(node.value) and node.keywords is not None:
            self.out.modules.add("dataclasses")
            fields = List([string(field) for field, _, _ in node.keywords])
            self.out.definitions.append(Assign([name], Call("dataclasses.make_dataclass", [string(name), fields])))
            return Name(name)
        statement, modules, helpers = stand_ins.twin_statement(name, node.value, node.inside, node.keywords, self.calls)
        for needed in helpers:
            self._helper(needed)
        self.out.modules |= modules
        self.out.definitions.append(statement)
        return Name(name)

    def _could_refer(self, value: object, otherwise: type | None) -> Expr:
        """A stand-in where `_refer` will succeed; raises Unwritable where it will not."""
        if stand_ins.place_of(value) is None:
            name = getattr(value, "__qualname__", type(value).__qualname__)
            raise Unwritable(f"no module has {name}")
        return Text("None")

    def _refer(self, value: object, otherwise: type | None) -> Expr:
        """An object of a library: imported, or looked up where the module may not import it."""
        self._could_refer(value, otherwise)
        place = stand_ins.place_of(value)
        assert place is not None  # else it could not be referred to
        if stand_ins.is_importable(place, self.standalone):
            return self._import(place)
        plain = otherwise if otherwise in (int, str, float, dict) else None
        stand_in = Text(plain.__name__ if plain else "None")
        arguments = [string(place.module), string(".".join(place.path)), stand_in]
        return Call(self._helper("_loaded"), arguments)

    def _import(self, place: stand_ins.Place) -> Expr:
        found = self._imported.get(place)
        if found is None:
            first, *rest = place.path
            name = self.fresh(first)
            alias = "" if name == first else f" as {name}"
            # Every part was checked to be an identifier and looked up: nothing else can stand in
            # this line.
            self.out.imports.add(f"from {place.module} import {first}{alias}")
            found = Name(name)
            for part in rest:
                found = Attribute(found, part)
            self._imported[place] = found
        return found

    def _helper(self, name: str) -> str:
        if name not in self.out.helpers:
            self.out.helpers.append(name)
        return name

    def _write_tree(self, example: object) -> Expr:
        """A pytree in metadata, its leaves all 0."""
        node = self.read(example)
        return self.build(node, [Text("0")] * node.count)


def _equal(left: object, right: object) -> bool:
    """Whether metadata, or treedefs, are equal; False where a library's `==` fails."""
    try:
        return bool(left == right)
    except Exception:
        return False
