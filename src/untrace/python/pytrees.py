"""Argument pytrees taken apart into leaf variables: `w = params["w"]`, `mean = belief.mean`.

A pytree is read one level at a time (`branches`), never by its `repr`: a subscript or an
attribute is written only where it was tried on the example and gave that very child. What cannot
be reached so (a registered class that keeps its children to itself) is taken apart by a call that
gives all leaves (`jax.tree.leaves`). Results are put together in `results`.
"""

from __future__ import annotations

import collections
import keyword
import types
import unicodedata
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import jax
from jax.tree_util import DictKey, FlattenedIndexKey

from untrace._identifiers import identifier
from untrace._trees import is_namedtuple
from untrace.ir.types import PyTree
from untrace.python.statements import Assign, Statement, Unpack
from untrace.python.tree import Attribute, Call, Expr, Name, Subscript, Text, Tuple, quoted
from untrace.python.values import Unwritable, Values

DICTS = (dict, collections.OrderedDict, collections.defaultdict)
Path = tuple[str, ...]


def is_plain_identifier(name: object) -> TypeGuard[str]:
    """Whether `name` can stand in source as it is and mean itself.

    Python reads identifiers in NFKC form, so that `ﬁt` in source would ask for the attribute `fit`.
    """
    return (
        isinstance(name, str)
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and name != "__debug__"
        and unicodedata.normalize("NFKC", name) == name
    )


@dataclass(frozen=True, slots=True)
class TreeCalls:
    """How a text calls what knows all classes of trees, by paths of one module.

    `leaves` gives those of a tree, `structure` what `unflatten` makes a tree of, with leaves. `node_class`: the decorator that
    makes a dataclass one of those classes.
    """

    module: str
    leaves: str
    structure: str
    unflatten: str
    node_class: str


@dataclass(frozen=True, slots=True)
class Branches:
    """One level of a pytree: `kind` is the node's class, `data` its metadata."""

    kind: type
    data: object
    keys: tuple[object, ...]
    children: tuple[PyTree, ...]


def branches(node: PyTree) -> Branches | None:
    """The node's class, metadata, and children with keys, in flatten order; None for a leaf."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    node_data = treedef.node_data()
    if node_data is None:
        return None
    # A key path of one level has one entry; a registered class may give several, of which the
    # first says enough.
    keys = tuple(path[0] if path else None for path, _ in pairs)
    return Branches(node_data[0], node_data[1], keys, tuple(child for _, child in pairs))


# ---------------------------------------------------------------- names of leaves


def leaf_paths(example: PyTree, path: Path) -> list[Path]:
    """For each leaf, the words that lead to it: `("params", "dense", "kernel")`.

    `path` is the argument's own name. The words are those of the expressions that `unpack`
    writes: attributes, keys, positions.
    """
    tree, distinct = labelled(example)
    found: list[Path] = []
    stack = [(tree, path)]
    while stack:
        node, words = stack.pop()
        level = branches(node)
        if level is None:
            found.append(words)
            continue
        reached = access(node, Name("x"), level, distinct)
        if reached is None:
            reached = [(Text(""), child) for child in level.children]
        for step, key in reversed(list(zip(reached, level.keys, strict=True))):
            if step is not None:
                stack.append((step[1], (*words, _word(step[0], key))))
    return found


def _word(expr: Expr, key: object) -> str:
    if type(expr) is Attribute:
        return expr.name
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            value = getattr(key, attribute)
            return value if isinstance(value, str) else str(value) if type(value) is int else "key"
    return "key"


def suggest_names(paths: Sequence[Path], taken: Container[str] = frozenset()) -> list[str]:
    """A short identifier for each leaf: the shortest end of its path that no other leaf shares.

    Two leaves may still get the same one (`{1: x, "1": y}`); the caller's scope makes names
    unique. `taken`: the names of the arguments, which leaves inside them should not repeat.
    """
    ends = [_ends(path) for path in paths]
    counts: dict[str, int] = collections.Counter(end for row in ends for end in set(row))
    names = []
    for row in ends:
        free = [end for end in row if counts[end] == 1 and end not in taken]
        names.append(free[0] if free else row[-1])
    return names


def _ends(path: Path) -> list[str]:
    """The ends of a path that read as a name: `kernel`, `dense_kernel`, shortest first."""
    ends = []
    for start in range(len(path) - 1, -1, -1):
        if path[start][:1].isalpha():
            ends.append(identifier("_".join(path[start:]), "leaf"))
    return ends or [identifier("_".join(path), "leaf")]


# ---------------------------------------------------------------- reaching a child


class _Label:
    """Stands for one leaf, so that no two leaves of an example are the same object. Like an array, it has an `x[...]`."""

    __slots__ = ("is_array",)

    def __init__(self, is_array: bool):
        self.is_array = is_array

    def __getitem__(self, index: object) -> _Label:
        if index is not ... or not self.is_array:
            raise TypeError("a label has no parts")
        return self


def labelled(example: PyTree) -> tuple[PyTree, bool]:
    """(the example with a distinct object for each leaf, whether its leaves are distinct)."""
    leaves, treedef = jax.tree.flatten(example)
    labels = [_Label(hasattr(leaf, "shape")) for leaf in leaves]
    try:
        tree = jax.tree.unflatten(treedef, labels)
        again, treedef_again = jax.tree.flatten(tree)
        if _same_objects(again, labels) and treedef_again == treedef:
            return tree, True
    except Exception:  # a library's own unflatten may look at its leaves, and fail in any way
        pass
    # The example itself serves as well where its leaves are already distinct objects (arrays,
    # ShapeDtypeStructs).
    return example, len({id(leaf) for leaf in leaves}) == len(leaves)


def _same_objects(left: Sequence[PyTree], right: Sequence[PyTree]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def access(node: PyTree, expr: Expr, level: Branches, distinct: bool) -> list[tuple[Expr, PyTree] | None] | None:
    """For each child, the expression that gives it and what it gives; None if one is out of reach.

    What an expression gives may differ from the child in class, but not in leaves: `frozen["a"]`
    is a FrozenDict where JAX sees a dict. A child without leaves that cannot be reached is None
    in the list, and no obstacle.
    """
    found: list[tuple[Expr, PyTree] | None] = []
    for index, (key, child) in enumerate(zip(level.keys, level.children, strict=True)):
        for candidate, given in _candidates(node, expr, level, index, key, child):
            exact = type(node) in (tuple, list, *DICTS)
            if given is child and (exact or distinct) or distinct and _same_leaves(given, child):
                found.append((candidate, given))
                break
        else:
            if jax.tree.leaves(child):
                return None
            found.append(None)
    return found


def _candidates(
    node: PyTree, expr: Expr, level: Branches, index: int, key: object, child: PyTree
) -> Iterator[tuple[Expr, PyTree]]:
    """(expression, what it gives) for ways to reach one child, most natural first."""
    if isinstance(node, DICTS):
        assert isinstance(key, (DictKey, FlattenedIndexKey))
        written = key_source(key.key)
        if written is not None:
            yield Subscript(expr, written), node[key.key]
        return
    if type(node) in (tuple, list):
        yield Subscript(expr, Text(str(index))), node[index]
        return
    for name in _attribute_names(node, key, child):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # an attribute on its way out is not written
                given = getattr(node, name)
        except Exception:
            continue
        yield Attribute(expr, name), given
    if is_namedtuple(node):
        yield Subscript(expr, Text(str(index))), node[index]
    if len(level.children) == 1:  # a variable that holds one array: Flax NNX's, a reference
        try:
            given = node[...]
        except Exception:
            pass
        else:
            yield Subscript(expr, Text("...")), given
    word = getattr(key, "key", getattr(key, "idx", None))
    written = key_source(word) if not hasattr(key, "name") else None
    if written is not None:
        try:
            given = node[word]
        except Exception:
            return
        yield Subscript(expr, written), given


def _attribute_names(node: PyTree, key: object, child: PyTree) -> Iterator[str]:
    name = getattr(key, "name", None)
    if is_plain_identifier(name):
        yield name
    # Classes that give JAX no key (BCOO, Partial) mostly keep a child in an attribute.
    for name, value in getattr(node, "__dict__", {}).items():
        if value is child and is_plain_identifier(name) and not name.startswith("_"):
            yield name
    for cls in type(node).__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, _SLOTS) and is_plain_identifier(name) and name[0] != "_":
                yield name


_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _same_leaves(given: PyTree, child: PyTree) -> bool:
    try:
        leaves = jax.tree.leaves(given)
    except Exception:
        return False
    expected = jax.tree.leaves(child)
    return bool(expected) and _same_objects(leaves, expected)


def key_source(key: object) -> Expr | None:
    """A dict key as source; None for one that text cannot give back (a NaN, an object)."""
    kinds = (str, bytes, int, bool, float, type(None))
    if type(key) is tuple:
        parts = [source for part in key if (source := key_source(part)) is not None]
        return Tuple(parts) if len(parts) == len(key) else None
    if type(key) not in kinds or key != key:
        return None
    if type(key) is str:
        return string(key)
    try:
        return Values(set()).source(key)
    except Unwritable:
        return None


def string(text: str) -> Text:
    return Text(quoted(str(text)))


# ---------------------------------------------------------------- unpacking


def unpack(
    example: PyTree,
    root: Expr,
    leaf_name: Callable[[int], str],
    calls: TreeCalls,
    needed: Container[int] | None = None,
) -> tuple[list[Statement], list[Expr]]:
    """(statements that bind the leaves of one argument, each leaf's expression in flatten order).

    `root` gives the argument; `path` is its name in words; `leaf_name(path)` is called once for
    each leaf that is bound, in the order of binding, and must give a new safe name. `needed`
    holds the indices of the leaves that the program uses: the others are not bound, and their
    expression is the way to them. A lone leaf is `root` itself.
    """
    tree, distinct = labelled(example)
    unpacker = _Unpacker(leaf_name, calls, needed, distinct)
    unpacker.walk(tree, root, 0)
    return unpacker.statements, [unpacker.leaves[i] for i in range(len(unpacker.leaves))]


class _Unpacker:
    def __init__(
        self,
        leaf_name: Callable[[int], str],
        calls: TreeCalls,
        needed: Container[int] | None,
        distinct: bool,
    ):
        self.leaf_name, self.calls, self.needed, self.distinct = leaf_name, calls, needed, distinct
        self.statements: list[Statement] = []
        self.leaves: dict[int, Expr] = {}

    def walk(self, node: PyTree, expr: Expr, offset: int) -> None:
        """Binds the leaves of `node`, which is `expr` and begins at leaf `offset`."""
        level = branches(node)
        if level is None:
            self._bind(expr, offset)
            return
        count = len(jax.tree.leaves(node))
        needed = [self._is_needed(offset + i) for i in range(count)]
        if not count:
            return
        flat = type(node) in (tuple, list) and count == len(level.children)
        if flat and all(needed) and all(branches(child) is None for child in level.children):
            self._unpack_all(expr, offset, count)
            return
        reached = access(node, expr, level, self.distinct)
        if reached is None:
            # The class keeps its children to itself: all of its leaves at once, in JAX's own order.
            self._unpack_all(Call(self.calls.leaves, [expr]), offset, count)
            return
        for child_expr, child in filter(None, reached):
            self.walk(child, child_expr, offset)
            offset += len(jax.tree.leaves(child))

    def _is_needed(self, index: int) -> bool:
        return self.needed is None or index in self.needed

    def _bind(self, expr: Expr, index: int) -> None:
        if type(expr) is not Name and self._is_needed(index):
            name = self.leaf_name(index)
            self.statements.append(Assign([name], expr))
            expr = Name(name)
        self.leaves[index] = expr

    def _unpack_all(self, expr: Expr, offset: int, count: int) -> None:
        names = [self.leaf_name(offset + i) for i in range(count)]
        self.statements.append(Unpack(names, expr))
        for i, name in enumerate(names):
            self.leaves[offset + i] = Name(name)


def subtrees(example: PyTree, root: Expr) -> Iterator[tuple[Expr, PyTree]]:
    """(expression, node) for every inner node of an argument in reach, outermost first.

    The nodes hold stand-ins for the leaves: they are good for their structure only.
    """
    tree, distinct = labelled(example)
    stack = [(root, tree)]
    while stack:
        expr, node = stack.pop()
        level = branches(node)
        if level is None:
            continue
        yield expr, node
        stack.extend(filter(None, reversed(access(node, expr, level, distinct) or [])))
