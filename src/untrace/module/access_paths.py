"""Leaves of pytrees in idiomatic text: written where they are used, or unpacked once under a short name.

    x @ params["dense"]["kernel"]         used once, and short
    w, b = params                         used several times, or the whole of a tuple
    attention(params["attention"], x)     a local function that needs several leaves of one sub-tree gets the sub-tree

A leaf is a root (a variable) and the steps from there. Nothing here changes the program: an access costs nothing when it
is traced.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Protocol

import jax

from untrace.ir.facts import Grouping, Step, Way
from untrace.ir.nodes import Function
from untrace.ir.types import PyTree
from untrace.provenance.call_records import Access
from untrace.python.pytrees import access, branches, labelled
from untrace.python.tree import Attribute, Expr, Leaf, Name, Subscript, Text, Tuple

# Leaves of a tree that is put together where a function is called: more are passed one by one, and those of trees in trees.
_MOST_PUT_TOGETHER = 6


class Bare(Tuple):
    """A tuple without brackets, on the right of an assignment."""

    __slots__ = ()

    def flat(self) -> str:
        return ", ".join([e.flat() for e in self.elements])


def reach(example: PyTree, root: Expr) -> list[Leaf] | None:
    """The leaves of an argument in flatten order; None where one cannot be reached by keys and attributes."""
    start, steps = _split(root)
    if start is None:
        return None
    tree, distinct = labelled(example)
    found: list[Leaf] = []
    stack = [(tree, steps)]
    while stack:
        node, way = stack.pop()
        level = branches(node)
        if level is None:
            found.append(Leaf(start, way))
            continue
        reached = access(node, Name("x"), level, distinct)
        if reached is None:
            return None
        children = []
        count = len(level.children) if type(node) in (tuple, list) else 0
        for item in reached:
            if item is not None:
                _, more = _split(item[0], count)
                children.append((item[1], way + more))
        stack.extend(reversed(children))
    return found if len(found) == len(jax.tree.leaves(example)) else None


# An inner node of a tree: (the way there, the node, the ways to all its leaves, the number of its first leaf).
Node = tuple[tuple[Step, ...], PyTree, list[tuple[Step, ...]], int]


def reach_nodes(example: PyTree) -> list[Node] | None:
    """The inner nodes of a tree, itself first; None where a leaf cannot be reached by keys and attributes."""
    tree, distinct = labelled(example)
    leaves: list[tuple[Step, ...]] = []

    def visited(node: PyTree, label: PyTree, way: tuple[Step, ...], leaf_way: tuple[Step, ...]) -> list[Node]:
        """What is found of one node, its last child before the others."""
        labels = branches(label)
        if labels is None:
            leaves.append(leaf_way)
            return []
        level = labels if node is label else branches(node)
        reached = access(label, Name("x"), labels, distinct)
        if reached is None:
            raise _OutOfReach
        start = len(leaves)
        count = len(labels.children) if type(label) in (tuple, list) else 0
        length = len(level.children) if level is not None and type(node) in (tuple, list) else 0
        below: list[list[Node]] = []
        for number, item in enumerate(reached):
            if item is None:
                continue
            child = level.children[number] if level is not None and number < len(level.children) else item[1]
            _, own = _split(item[0], count)
            _, more = (None, own) if length == count else _split(item[0], length)
            below.append(visited(child, item[1], way + more, leaf_way + own))
        found: list[Node] = [] if level is None else [(way, node, leaves[start:], start)]
        return [*found, *[each for part in reversed(below) for each in part]]

    try:
        found = visited(example, tree, (), ())
    except _OutOfReach:
        return None
    return found if len(leaves) == len(jax.tree.leaves(example)) else None


class _OutOfReach(Exception):
    """No key and no attribute gives a part of a tree."""


def _split(expr: Expr, count: int = 0) -> tuple[Name | None, tuple[Step, ...]]:
    """An access as its variable and the steps."""
    steps: list[Step] = []
    while type(expr) is not Name:
        if type(expr) is Subscript:
            steps.append(("item", expr.index.flat(), count))
        elif type(expr) is Attribute:
            steps.append(("attribute", expr.name, 0))
        else:
            return None, ()
        expr = expr.value
    return expr, tuple(reversed(steps))


# ---------------------------------------------------------------- sub-trees as arguments


# Parameters that are leaves of one tree: their places, the ways to them from the tree.
Pack = tuple[list[int], list[Way]]


class Layout:
    """How the parameters of a local function are grouped: `packs` are (places of parameters, ways to them from the tree).

    `names`: what the packs are called; None where that is seen from their leaves. `examples`: trees that were given for
    them, by the number of the pack.
    """

    __slots__ = ("packs", "names", "examples")

    def __init__(self, packs: Sequence[tuple[list[int], list[Way]]], names: Sequence[str] | None = None):
        self.packs = packs
        self.names = names
        self.examples: dict[int, PyTree] = {}

    def trees(self, operands: Sequence[Leaf | None]) -> list[Leaf] | None:
        """The sub-tree for each pack, where these operands are grouped in the same way; else None."""
        found = [self.tree(number, operands) for number in range(len(self.packs))]
        known = [tree for tree in found if tree is not None]
        return known if len(known) == len(found) else None

    def tree(self, number: int, operands: Sequence[Leaf | None]) -> Leaf | None:
        """The sub-tree for one pack, where these operands are grouped in the same way."""
        tree: Leaf | None = None
        for place, way in zip(*self.packs[number], strict=True):
            leaf = operands[place]
            if leaf is None or leaf.steps[len(leaf.steps) - len(way) :] != way or len(leaf.steps) < len(way):
                return None
            above = Leaf(leaf.root, leaf.steps[: len(leaf.steps) - len(way)])
            if tree is not None and (tree.root.id, tree.steps) != (above.root.id, above.steps):
                return None
            tree = above
        return tree

    def fitting(self, operands: Sequence[Leaf | None]) -> Layout:
        """The packs in which these operands are grouped as well."""
        kept = [i for i in range(len(self.packs)) if self.tree(i, operands) is not None]
        names = None if self.names is None else [self.names[i] for i in kept]
        return Layout([self.packs[i] for i in kept], names)


class Grouped(Protocol):
    """A module, as far as it says how parameters are grouped."""

    layouts: dict[Function, Layout]
    agreed: Mapping[Function, Layout]


def layout_of(module: Grouped, body: Function, operands: Sequence[Leaf | None], kept: bool = True) -> Layout:
    """The layout of a local function, chosen where it is called first. kept: whether this call may choose it."""
    found = module.layouts.get(body)
    if found is None:
        known, agreed = grouping_of(body), module.agreed.get(body)
        if agreed is not None:
            found = Layout(agreed.packs, agreed.names)
        else:
            found = Layout(packs_of(module, body, operands)) if known is None else Layout(known.packs, known.names)
        if kept:
            module.layouts[body] = found
    return found


def is_grouped(body: Function) -> bool:
    """Whether it is known how the parameters of a local function are grouped, whoever calls it."""
    return body.facts.grouping is not None or body.facts.taken is not None


def grouping_of(body: Function) -> Grouping | None:
    """How they are; None where that is seen from the calls. A function that `jax.checkpoint` marked takes its trees."""
    if body.facts.grouping is not None or body.facts.taken is None:
        return body.facts.grouping
    packs, names = [], []
    for word, tree in body.facts.taken:
        found = None if tree.is_leaf else reach(tree.example, Name("x"))
        if found is not None and word and len(found) > 1:
            packs.append((list(tree.places), [leaf.steps for leaf in found]))
            names.append(word)
    return Grouping(packs, names if packs else None)


def packs_of(
    module: Grouped, body: Function, operands: Sequence[Leaf | None], grouped: Collection[int] = ()
) -> list[Pack]:
    """How these operands of a call are grouped. grouped: the places of those that are already."""
    packs = _author_packs(body, operands)
    for word, tree in body.facts.author_trees:  # which a call puts together where it has no name for it
        if not set(tree.places).isdisjoint(grouped):
            continue
        ways = [leaf.steps for leaf in reach(tree.example, Name(word)) or ()]
        known = next((dict(zip(*pack, strict=True)) for pack in packs if set(pack[0]) == set(tree.places)), None)
        if known is not None:
            ways = [known[place] for place in tree.places]
        elif not 0 < len(ways) <= _MOST_PUT_TOGETHER or any(len(way) > 1 for way in ways):
            continue
        packs = [pack for pack in packs if set(pack[0]).isdisjoint(tree.places)]
        packs.append((list(tree.places), ways))
    packed = {place for places, _ in packs for place in places}
    if body.facts.together is not None:
        left = [[p for p in places if p not in packed] for places in body.facts.together]
        return [*packs, *[pack for places in left if places for pack in _whole(places, operands)]]
    roots: dict[str, dict[int, Leaf]] = {}
    for place, leaf in enumerate(operands):
        if leaf is not None and place not in packed and not _is_whole(body, place):
            roots.setdefault(leaf.root.id, {})[place] = leaf
    same = body.facts.same
    for leaves in roots.values():
        # A function that passes on all that it took as one tree passes that tree.
        whole = next(iter(leaves.values())).root.symbol.leaves == len(leaves)
        several = body.facts.is_one_of_several or body.facts.calls > 1 and not all(place in same for place in leaves)
        shared = several and not whole
        packs.extend(_packs(leaves, 0, shared))
    return packs


def argument_order(body: Function, layout: Layout) -> list[int]:
    """Arguments in the author's order, trees first: -1 - i for pack i, else the place of a parameter."""
    if not layout.packs and body.facts.taken is not None:
        return list(range(len(body.params)))  # as JAX took the trees apart
    packed = {place for places, _ in layout.packs for place in places}
    own = body.facts.author_parameters
    hints = [p.hint for p in body.params]
    # A parameter that none of the author's names fits stays in front, in the order of use, or is one of any number.
    other = len(own) if body.facts.variadic else -1
    rest = [i for i in range(len(hints)) if i not in packed]
    packs = [-1 - i for i in range(len(layout.packs))]
    unmatched = parameter_of_pack(body, layout)
    hints = {i: hints[i] for i in rest}
    if unmatched is not None:
        hints[-1] = unmatched
    for i, (places, _) in enumerate(layout.packs):
        root = author_root(body, places)
        inside = [body.params[p].hint for p in places] if layout.names is None else [layout.names[i]]
        inside = inside if root is None else [root]
        hints.setdefault(-1 - i, min([h for h in inside if h in own], key=own.index, default=None))
    for i in rest:  # a part of a tree that is passed by itself stands where the tree would
        access = body.facts.accesses[i] if body.facts.accesses else None
        if access is not None and hints[i] not in own:
            hints[i] = access.root
    return sorted([*packs, *rest], key=lambda i: own.index(hints[i]) if hints.get(i) in own else other)


def parameter_of_pack(body: Function, layout: Layout) -> str | None:
    """The author's parameter that the only pack is, where all the others are known."""
    unmatched = body.facts.unmatched
    if len(layout.packs) != 1 or len(unmatched) != 1:
        return None
    places, own = layout.packs[0][0], body.facts.author_parameters
    if any(p.hint not in own or p.hint in unmatched for i, p in enumerate(body.params) if i not in places):
        return None  # it may be one of these
    if any(body.params[p].hint in own and body.params[p].hint not in unmatched for p in places):
        return None  # one of its leaves is another parameter of the author's
    return unmatched[0]


def tuple_around(args: Sequence[object]) -> tuple[int, Expr] | None:
    """(how many of the first arguments are all the parts of one tuple or list, in order; that); None where they are none."""
    first = _part_of_tuple(args[0]) if args else None
    if first is None or first[1] != 0 or not 1 < first[2] <= len(args):
        return None
    whole, _, count = first
    every = [_part_of_tuple(a) for a in args[:count]]
    text = whole.flat()
    alike = all(part is not None and part[1:] == (i, count) and part[0].flat() == text for i, part in enumerate(every))
    return (count, whole) if alike else None


def _part_of_tuple(arg: object) -> tuple[Expr, int, int] | None:
    """(a tuple, which of its elements an expression is, how many there are)."""
    if type(arg) is Leaf and arg.steps:
        kind, key, count = arg.steps[-1]
        whole = arg.prefix(len(arg.steps) - 1)
    elif type(arg) is Subscript and type(arg.index) is Text:
        kind, key, count, whole = "item", arg.index.flat(), arg.siblings, arg.value
    else:
        return None
    return (whole, int(key), count) if kind == "item" and count > 1 and key.isdecimal() else None


def author_root(body: Function, places: Sequence[int]) -> str | None:
    """The author's parameter of which these parameters are the parts; None where that is not known of any."""
    roots = {
        a.root for p in places if p < len(body.facts.accesses) and (a := body.facts.accesses[p]) and not a.is_whole
    }
    if len(roots) != 1:
        return None
    root = roots.pop()
    every = [p for p, a in enumerate(body.facts.accesses) if a is not None and not a.is_whole and a.root == root]
    return root if set(every) <= set(places) else None


def _is_whole(body: Function, place: int) -> bool:
    """Whether a parameter is one of the author's as it is."""
    access = body.facts.accesses[place] if body.facts.accesses else None
    return access is not None and access.is_whole


def _author_packs(body: Function, operands: Sequence[Leaf | None]) -> list[tuple[list[int], list[Way]]]:
    """The trees that the author's function takes, where this call has them as trees; with leaves of these of which it is
    not known what the author's function has them as."""
    by_root: dict[str, list[int]] = {}
    for place, known in enumerate(body.facts.accesses):
        if known is not None and not known.is_whole:
            by_root.setdefault(known.root, []).append(place)
    packs: list[tuple[list[int], list[Way]]] = []
    for inside in by_root.values():
        whole = _around([operands[p] for p in inside], [body.facts.accesses[p] for p in inside])
        shared = body.facts.calls > 1 and not all(place in body.facts.same for place in inside)
        if whole is None:
            continue
        all_of_it = whole.root.symbol.leaves == len(inside)
        if shared and not whole.steps and not all_of_it and all(_is_rough(body, p) for p in inside):
            continue  # other calls may pass other parts of the tree
        places = list(inside)
        for place, leaf in enumerate(operands):
            unknown = body.facts.accesses[place] is None and leaf is not None
            if unknown and leaf is not None and _is_below(leaf, whole):
                places.append(place)
        size = len(whole.steps)
        packs.append((places, [leaf.steps[size:] for p in places if (leaf := operands[p]) is not None]))
    return packs


def _is_rough(body: Function, place: int) -> bool:
    known = body.facts.accesses[place]
    return known is not None and not known.exact and not known.steps


def _around(leaves: Sequence[Leaf | None], accesses: Sequence[Access | None]) -> Leaf | None:
    """The tree of which all these leaves are the parts that the author's function takes; None where there is none."""
    found: Leaf | None = None
    first = leaves[0]
    for leaf, known in zip(leaves, accesses, strict=True):
        if leaf is None or known is None or first is None or leaf.root.id != first.root.id:
            return None
        if not known.exact and not known.steps:
            continue
        size = _start(leaf, known)
        if size is None:
            return None
        if found is not None and found.steps != leaf.steps[:size]:
            return None
        found = Leaf(leaf.root, leaf.steps[:size])
    every = [leaf for leaf in leaves if leaf is not None]
    if found is None:  # the smallest
        same = itertools.takewhile(lambda steps: len(set(steps)) == 1, zip(*[x.steps for x in every], strict=False))
        found = Leaf(every[0].root, tuple([steps[0] for steps in same]))
    return found if all(_is_below(leaf, found) for leaf in every) else None


def _start(leaf: Leaf, known: Access) -> int | None:
    """At which step of a leaf the author's tree begins, of which it is that part; None where it is none."""
    last = len(leaf.steps) - len(known.steps)
    plain = plain_way(leaf)
    starts = range(last + 1) if not known.exact else [last]
    found = [i for i in starts if i >= 0 and all(map(_is_step, plain[i:], known.steps, leaf.steps[i:]))]
    return found[0] if len(found) == 1 else None


def _is_step(ours: tuple[str, Hashable], author: tuple[str, Hashable], step: Step) -> bool:
    """Whether the author's step is ours, which he may count from the end."""
    kind, key = author
    if type(key) is int and key < 0 < step[2]:
        key += step[2]
    return ours == (kind, key)


def _is_below(leaf: Leaf, tree: Leaf) -> bool:
    size = len(tree.steps)
    return leaf.root.id == tree.root.id and len(leaf.steps) > size and leaf.steps[:size] == tree.steps


def _whole(places: list[int], operands: Sequence[Leaf | None]) -> list[Pack]:
    """The pack of leaves that are the whole of one list, or have keys of their own in it."""
    leaves = {p: leaf for p in places if (leaf := operands[p]) is not None}
    if len(leaves) < len(places) or len({leaf.root.id for leaf in leaves.values()}) > 1:
        return []
    found = _packs(leaves, 0, False)
    steps = {way[0] for _, ways in found for way in ways}
    numbered = [step for step in steps if step[1].isdecimal()]
    return found if all(count == len(steps) for _, _, count in numbered) else []


def _packs(leaves: Mapping[int, Leaf], depth: int, shared: bool) -> list[Pack]:
    if len(leaves) < 2:
        return []
    ways = [leaf.steps for leaf in leaves.values()]
    common = depth
    while all(len(w) > common for w in ways) and len({w[common] for w in ways}) == 1:
        common += 1
    if common == 0 and shared:
        # What the calls of a shared function have in common lies further down.
        parts: dict[tuple[Step, ...], dict[int, Leaf]] = {}
        for place, leaf in leaves.items():
            if leaf.steps:
                parts.setdefault(leaf.steps[:1], {})[place] = leaf
        return [pack for part in parts.values() for pack in _packs(part, 1, shared)]
    if any(len(w) == common for w in ways):
        return []
    return [(list(leaves), [w[common:] for w in ways])]


def rows(
    leaves: Sequence[Leaf | None], ways: Callable[[Leaf], Sequence[tuple[Step, ...]] | None]
) -> list[tuple[range, Sequence[tuple[Step, ...]], Leaf]]:
    """Leaves in a row that are all those of one tree, in its order: (their places, the ways to them from it, the tree).

    ways: those to all leaves of a tree, None where it is not known. A tuple of arrays is written as one.
    """
    found = []
    at = 0
    while at < len(leaves):
        leaf = leaves[at]
        for size in range(len(leaf.steps) if leaf is not None else 0):
            assert leaf is not None
            node = Leaf(leaf.root, leaf.steps[:size])
            inside = ways(node) or ()
            if len(inside) < 2 or all(len(way) == 1 and way[0][2] for way in inside):
                continue
            row = [x for x in leaves[at : at + len(inside)] if x is not None and x.root.id == node.root.id]
            if [x.steps for x in row] == [(*node.steps, *way) for way in inside]:
                found.append((range(at, at + len(inside)), inside, node))
                at += len(inside) - 1
                break
        at += 1
    return found


_plain_key = functools.lru_cache(4096)(ast.literal_eval)  # the same few keys in every layer


def plain_way(leaf: Leaf) -> tuple[tuple[str, Hashable], ...]:
    """The steps to a leaf with plain keys: ("item", "w"), ("item", 0), ("attribute", "mu")."""
    found: list[tuple[str, Hashable]] = []
    for kind, text, _ in leaf.steps:
        try:
            found.append((kind, _plain_key(text) if kind == "item" else text))
        except (ValueError, SyntaxError):  # a key that is no literal
            found.append((kind, text))
    return tuple(found)


_SEPARATOR = re.compile(r"[/.]")


def last_word(leaf: Leaf) -> str:
    """The last step of a way that reads as a name, or the last part of a key (`"block/query"`, `"layers.0.bias"`);
    numbers count with the list they are in."""
    for kind, text, _ in reversed(leaf.steps):
        parts = _SEPARATOR.split(text.strip("'\"")) if kind == "item" else [text]
        for word in reversed(parts):
            wrapped = len(parts) == 1 and word in ("value", "raw_value")
            if word[:1].isalpha() and word.isidentifier() and not wrapped:
                return word
    return leaf.root.id
