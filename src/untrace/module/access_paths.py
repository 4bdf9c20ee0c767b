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
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from untrace._identifiers import identifier
from untrace.ir.callees import callee_of
from untrace.ir.calls import is_call, passed_places
from untrace.ir.facts import Grouping, Step, Way
from untrace.ir.nodes import Cond, Equation, Function, Local, Scan, Structured, TreeMap, Value, While
from untrace.python.pytrees import access, branches, labelled
from untrace.python.statements import Assign, Statement, Unpack
from untrace.python.tree import WIDTH, Attribute, Expr, Name, Subscript, Text, Tuple

# A longer way to a leaf gets a name even where it is used only once.
_LONGEST = 48
# One that is short gets a name only where it is used more often.
_SHORT, _OFTEN = 20, 3


def along(expr: Expr, steps: Sequence[Step]) -> Expr:
    """The part of `expr` at the end of these steps."""
    for kind, text, _ in steps:
        expr = Subscript(expr, Text(text)) if kind == "item" else Attribute(expr, text)
    return expr


class Leaf(Expr):
    """`root[...].x`: a part of a pytree."""

    __slots__ = ("root", "steps")

    def __init__(self, root: Name, steps: tuple[Step, ...]):
        self.root = root
        self.steps = steps

    def prefix(self, count: int) -> Expr:
        """The way to the sub-tree after the first `count` steps."""
        return along(self.root, self.steps[:count])

    def flat(self) -> str:
        return self.prefix(len(self.steps)).flat()


class Bare(Tuple):
    """A tuple without brackets, on the right of an assignment."""

    __slots__ = ()

    def flat(self) -> str:
        return ", ".join([e.flat() for e in self.elements])


def reach(example: Any, root: Expr) -> list[Leaf] | None:
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
Node = tuple[tuple[Step, ...], Any, list[tuple[Step, ...]], int]


def reach_nodes(example: Any) -> list[Node] | None:
    """The inner nodes of a tree, itself first; None where a leaf cannot be reached by keys and attributes."""
    tree, distinct = labelled(example)
    leaves: list[tuple[Step, ...]] = []

    def visited(node: Any, label: Any, way: tuple[Step, ...], leaf_way: tuple[Step, ...]) -> list[Node]:
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


class Layout:
    """How the parameters of a local function are grouped: `packs` are (places of parameters, ways to them from the tree).

    `names`: what the packs are called; None where that is seen from their leaves.
    """

    __slots__ = ("packs", "names")

    def __init__(self, packs: Sequence[tuple[list[int], list[Way]]], names: Sequence[str] | None = None):
        self.packs = packs
        self.names = names

    def trees(self, operands: Sequence[Leaf | None], without: int | None = None) -> list[Any] | None:
        """The sub-tree for each pack, where these operands are grouped in the same way; else None. `without`: the pack that
        does not matter."""
        found: list[Any] = []
        for number, (places, ways) in enumerate(self.packs):
            if number == without:
                found.append(None)
                continue
            tree: Any = None
            for place, way in zip(places, ways, strict=True):
                leaf = operands[place]
                if leaf is None or leaf.steps[len(leaf.steps) - len(way) :] != way or len(leaf.steps) < len(way):
                    return None
                above = (leaf.root.id, leaf.steps[: len(leaf.steps) - len(way)])
                if tree is not None and tree[0] != above:
                    return None
                tree = (above, Leaf(leaf.root, above[1]))
            found.append(tree[1])
        return found


def layout_of(module: Any, body: Function, operands: Sequence[Leaf | None]) -> Layout:
    """The layout of a local function, chosen where it is called first."""
    found = module.layouts.get(id(body))
    if found is None:
        known = grouping_of(body)
        made = Layout(packs_of(module, body, operands)) if known is None else Layout(known.packs, known.names)
        module.kept.append(body)
        found = module.layouts[id(body)] = made
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


def packs_of(module: Any, body: Function, operands: Sequence[Leaf | None]) -> list[Any]:
    """How these operands of a call are grouped."""
    packs = []
    if body.facts.together is not None:
        return [pack for places in body.facts.together for pack in _whole(places, operands)]
    roots: dict[str, list[int]] = {}
    for place, leaf in enumerate(operands):
        if leaf is not None:
            roots.setdefault(leaf.root.id, []).append(place)
    same = body.facts.same
    of: Sequence[Any] = operands
    for places in roots.values():
        # A function that passes on all that it took as one tree passes that tree.
        whole = module.pack_sizes.get(id(of[places[0]].root)) == len(places)
        shared = body.facts.calls > 1 and not all(place in same for place in places) and not whole
        packs.extend(_packs(places, operands, 0, shared))
    return packs


def _whole(places: list[int], operands: Sequence[Leaf | None]) -> list[Any]:
    """The pack of leaves that are the whole of one list, or have keys of their own in it."""
    leaves = [leaf for p in places if (leaf := operands[p]) is not None]
    if len(leaves) < len(places) or len({leaf.root.id for leaf in leaves}) > 1:
        return []
    found = _packs(places, operands, 0, False)
    steps = {way[0] for _, ways in found for way in ways}
    numbered = [step for step in steps if step[1].isdecimal()]
    return found if all(count == len(steps) for _, _, count in numbered) else []


def _packs(places: list[int], operands: Sequence[Any], depth: int, shared: bool) -> list[Any]:
    if len(places) < 2:
        return []
    ways = [operands[p].steps for p in places]
    common = depth
    while all(len(w) > common for w in ways) and len({w[common] for w in ways}) == 1:
        common += 1
    if common == 0 and shared:
        # What the calls of a shared function have in common lies further down.
        parts: dict[tuple[Step, ...], list[int]] = {}
        for place, way in zip(places, ways, strict=True):
            if way:
                parts.setdefault(way[:1], []).append(place)
        return [pack for part in parts.values() for pack in _packs(part, operands, 1, shared)]
    if any(len(w) == common for w in ways):
        return []
    return [(places, [w[common:] for w in ways])]


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


# ---------------------------------------------------------------- names for leaves

_CALLED = ("jit", "pjit", "checkpoint", "remat2", "remat")


def bind_leaves(
    w: Any,
    leaves: Sequence[tuple[Value, Leaf]],
    equations: Sequence[Equation],
    results: Sequence[Any],
    hint: Callable[[Value, Leaf], str],
    own: frozenset[Value] = frozenset(),
) -> None:
    """Gives each leaf its expression in the function that `w` writes, and unpacks those that are used several times, and
    `own`, those that the author gave a name.
    """
    known = dict(leaves)
    uses: dict[Value, int] = {}
    _count_uses(w.module, equations, results, known, uses)
    bound: list[tuple[Value, Leaf]] = []
    for value, leaf in leaves:
        count = uses.get(value, 0)
        if not leaf.steps:
            w.names[value] = leaf.root
            w.module.leaf_of[id(leaf.root)] = leaf
            w.module.kept.append(leaf.root)
        elif (
            count > (_OFTEN if _is_short(leaf) else 1)
            or count and value in own
            or count == 1 and len(leaf.flat()) > _LONGEST
        ):  # fmt: skip
            bound.append((value, leaf))
        else:
            w.names[value] = leaf
    w.statements.extend(_unpacking(w, bound, hint))


def _is_short(leaf: Leaf) -> bool:
    """`graph.nodes`: a name of its own would be as long to read."""
    return len(leaf.steps) == 1 and leaf.steps[0][0] == "attribute" and len(leaf.flat()) <= _SHORT


def _count_uses(
    module: Any, equations: Sequence[Equation], results: Sequence[Any], known: dict[Value, Leaf], uses: dict[Value, int]
) -> None:
    """Adds how often each leaf is named, not counting calls that get the tree around it."""
    from untrace.module.grouping import tree_carries

    mapped: set[Value] = set()
    for at, equation in enumerate(equations):
        inside: dict[int, int] = {}
        if type(equation.callee) is TreeMap:
            mapped.update([o for o in equation.outputs if o is not None])
        if type(equation.callee) is Local and mapped and not mapped.isdisjoint(equation.inputs):
            pass  # it may take a tree that is not there yet: how it is called shows where it stands
        elif type(equation.callee) is Local:
            tree_carries.note_handed(module, equations, at, results, known)
            operands = [known.get(a) if type(a) is Value else None for a in equation.inputs]
            layout = layout_of(module, equation.callee.body, operands)
            if layout.trees(operands) is not None:
                inside = {place: 0 for places, _ in layout.packs for place in places}
            elif id(equation.callee.body) in module.handed:  # the other trees, and what stays as it is
                inside = {place: 0 for places, _ in layout.packs for place in places}
        elif type(equation.callee) is TreeMap:  # takes whole trees
            inside = dict.fromkeys(range(len(equation.callee.turns) * equation.callee.trees), 0)
        elif is_call(equation):  # takes whole trees where it takes them at all
            inside = dict.fromkeys(passed_places(equation), 0)
            closed = [i for i in range(len(equation.inputs)) if i not in inside]
            inside.update(_uses_inside(module, equation.params["jaxpr"], equation, closed, known))
        elif equation.callee.name in _CALLED and equation.params["jaxpr"].facts.trees is not None:
            inside = dict.fromkeys(equation.params["jaxpr"].facts.trees.whole(), 0)
        elif type(equation.callee) is Scan:
            inside = _uses_in_loop(module, equation, known)
        elif type(equation.callee) in (While, Cond):
            inside = {**dict.fromkeys(range(len(equation.inputs)), 2), **_uses_in_bodies(module, equation, known)}
        for place, atom in enumerate(equation.inputs):
            if type(atom) is Value and atom in known:
                uses[atom] = uses.get(atom, 0) + inside.get(place, 1)
    for atom in results:
        if type(atom) is Value and atom in known:
            uses[atom] = uses.get(atom, 0) + 1


def _uses_in_loop(module: Any, equation: Equation, known: dict[Value, Leaf]) -> dict[int, int]:
    """What a loop closes over gets a name outside, unless its body only passes it on with the rest of its tree."""
    loop = callee_of(equation, Scan)
    body, consts, carries = loop.body, loop.consts, loop.carries
    trees = body.facts.trees
    whole = trees.whole() if trees is not None else _gone_through(equation, consts + carries, known)
    closed = [i for i in range(consts) if i not in whole]
    return {**dict.fromkeys(whole, 0), **_uses_inside(module, body, equation, closed, known)}


def _gone_through(equation: Equation, start: int, known: dict[Value, Leaf]) -> list[int]:
    """The operands from `start` on that are parts of trees (`stacked.gone_through`)."""
    operands = [known.get(a) if type(a) is Value else None for a in equation.inputs[start:]]
    roots = {leaf.root.id for leaf in operands if leaf is not None}
    every = [leaf for leaf in known.values() if leaf.root.id in roots]

    def ways(node: Leaf) -> list[tuple[Step, ...]]:
        size = len(node.steps)
        return [x.steps[size:] for x in every if x.root.id == node.root.id and x.steps[:size] == node.steps]

    return [start + place for places, _, _ in rows(operands, ways) for place in places]


def own_uses(module: Any, body: Function, known: dict[Value, Leaf]) -> dict[Value, int]:
    """How often a function needs each of these leaves of its parameters by itself, and not with all of its tree."""
    uses: dict[Value, int] = {}
    _count_uses(module, body.equations, body.results, {**_own_leaves(body), **known}, uses)
    return {value: uses.get(value, 0) for value in known}


def _uses_in_bodies(module: Any, equation: Equation, known: dict[Value, Leaf]) -> dict[int, int]:
    """The same for the functions of a `while` or a `cond`, where their trees are known."""
    callee = equation.callee
    assert isinstance(callee, Structured)
    bodies = main = callee.bodies
    if type(callee) is While:
        shifts: tuple[int, ...] = (0, callee.condition_consts)
        main, closed = bodies[1:], [range(callee.condition_consts), range(callee.body_consts)]
    else:
        shifts = (1,) * len(bodies)
        closed = [range(len(body.params)) for body in bodies]
    if any(body.facts.trees is None for body in main):
        return {}
    found: dict[int, int] = {}
    whole = {p for body in main if body.facts.trees is not None for p in body.facts.trees.whole()}
    for body, places, shift in zip(bodies, closed, shifts, strict=True):
        inner = Equation(callee, equation.inputs[shift:], (), {})
        uses = _uses_inside(
            module, body, inner, [p for p in places if body is bodies[0] and body not in main or p not in whole], known
        )
        for place, count in uses.items():
            found[place + shift] = max(found.get(place + shift, 0), count)
    found.update((p + shifts[-1], 0) for p in whole)
    return found


def _own_leaves(body: Function) -> dict[Value, Leaf]:
    """The leaves of the trees that a loop's function takes, under some name."""
    found: dict[Value, Leaf] = {}
    trees = body.facts.trees
    for number, tree in enumerate(trees.subtrees() if trees is not None else ()):
        leaves = reach(tree.example, Name(f"tree_{number}")) or []
        found.update(zip([body.params[p] for p in tree.places], leaves, strict=False))
    return found


def _single_results(body: Function) -> Sequence[Any]:
    """The results of a body but for those that it gives as parts of trees."""
    trees = body.facts.trees
    if trees is None:
        return body.results
    parts = trees.out.parts() if type(trees.out.example) is tuple else [trees.out]
    inside = {p for part in parts if part.nested() for p in part.places}
    return [r for i, r in enumerate(body.results) if i not in inside]


def _uses_inside(
    module: Any, body: Function, equation: Equation, closed: Iterable[int], known: dict[Value, Leaf]
) -> dict[int, int]:
    """How often operands count that a body closes over: {place: 0, 1, or 2 where the body needs the leaf by itself}."""
    pairs = [(i, body.params[i], equation.inputs[i]) for i in closed]
    inner = {param: known[atom] for _, param, atom in pairs if type(atom) is Value and atom in known}
    uses: dict[Value, int] = {}
    _count_uses(module, body.equations, _single_results(body), {**inner, **_own_leaves(body)}, uses)
    counts = {i: (uses.get(param, 0), inner[param].steps) for i, param, _ in pairs if param in inner}
    # What lies deep, or is an attribute, and is used once stands in the body as it is.
    plain = {i for i, (_, s) in counts.items() if len(s) > 2 or s and s[-1][0] == "attribute"}
    return {i: n if i in plain else 2 * min(1, n) for i, (n, _) in counts.items()}


def _unpacking(w: Any, bound: Sequence[tuple[Value, Leaf]], hint: Callable[[Value, Leaf], str]) -> list[Statement]:
    """Statements that bind leaves: those of one node together."""
    by_node: dict[Any, list[tuple[Value, Leaf]]] = {}
    for value, leaf in bound:
        by_node.setdefault((leaf.root.id, leaf.steps[:-1]), []).append((value, leaf))
    statements: list[Statement] = []
    for group in by_node.values():
        last = [leaf.steps[-1] for _, leaf in group]
        if all(kind == "item" and text.isdecimal() and count == len(group) for kind, text, count in last):
            group.sort(key=lambda pair: int(pair[1].steps[-1][1]))  # all of a tuple: in its order
        names = []
        for value, leaf in group:
            name = Name(w.scope.fresh(identifier(hint(value, leaf), "x")))
            w.names[value] = name
            w.module.leaf_of[id(name)] = leaf
            w.module.kept.append(name)
            names.append(name.id)
        leaves = [leaf for _, leaf in group]
        if all(leaf.steps[-1] == ("item", str(i), len(group)) for i, leaf in enumerate(leaves)):
            statements.append(Unpack(names, leaves[0].prefix(len(leaves[0].steps) - 1)))
            continue
        line = len(", ".join(names)) + sum(len(leaf.flat()) + 2 for leaf in leaves) + 8
        if 1 < len(group) <= 4 and line <= WIDTH:
            statements.append(Assign(names, Bare(leaves)))
        else:
            statements.extend([Assign([n], leaf) for n, leaf in zip(names, leaves, strict=True)])
    return statements


_plain_key = functools.lru_cache(4096)(ast.literal_eval)  # the same few keys in every layer


def plain_way(leaf: Leaf) -> tuple[tuple[str, Any], ...]:
    """The steps to a leaf with plain keys: ("item", "w"), ("item", 0), ("attribute", "mu")."""
    found: list[tuple[str, Any]] = []
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
