"""Names for the leaves of a function's trees: those that are used several times are unpacked first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from untrace._identifiers import identifier
from untrace.ir.bodies import CALLS
from untrace.ir.callees import callee_of
from untrace.ir.calls import is_call, passed_places
from untrace.ir.facts import Step, Way
from untrace.ir.nodes import (
    Atom,
    Cond,
    Equation,
    Function,
    Local,
    Scan,
    Structured,
    TreeMap,
    Value,
    While,
    functions_called,
)
from untrace.ir.signatures import arguments_at
from untrace.ir.structured import Map, derivative_in
from untrace.module.access_paths import Bare, argument_order, layout_of, reach, rows, tuple_around
from untrace.module.interface.writing import Contents, Writer
from untrace.python.statements import Assign, Statement, Unpack
from untrace.python.tree import WIDTH, Leaf, Name, Symbol

_LONGEST = 48
# One that is short gets a name only where it is used more often.
_SHORT, _OFTEN = 20, 3


def bind_leaves(
    w: Writer,
    leaves: Sequence[tuple[Value, Leaf]],
    equations: Sequence[Equation],
    results: Sequence[Atom],
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
            leaf.root.symbol.leaf, leaf.root.symbol.value = leaf, value
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
    module: Contents,
    equations: Sequence[Equation],
    results: Sequence[Atom],
    known: dict[Value, Leaf],
    uses: dict[Value, int],
) -> None:
    """Adds how often each leaf is named, not counting calls that get the tree around it."""
    for equation in equations:
        inside: dict[int, int] = {}
        if type(equation.callee) is Local:
            operands = [known.get(a) if type(a) is Value else None for a in equation.inputs]
            # Of a tree that is not there yet is not known how it will be passed.
            is_known = all(type(a) is not Value or a in known for a in equation.inputs)
            layout = layout_of(module, equation.callee.body, operands, kept=is_known)
            if layout.trees(operands) is not None:
                inside = {place: 0 for places, _ in layout.packs for place in places}
                inside.update(_spread(argument_order(equation.callee.body, layout), operands))
            elif equation.callee.body.facts.taken is None:
                inside = {place: 0 for places, _ in layout.fitting(operands).packs for place in places}
        elif type(equation.callee) is TreeMap:  # takes whole trees
            inside = dict.fromkeys(range(len(equation.callee.turns) * equation.callee.trees), 0)
        elif is_call(equation):  # takes whole trees where it takes them at all
            inside = dict.fromkeys(passed_places(equation), 0)
            closed = [i for i in range(len(equation.inputs)) if i not in inside]
            (body,) = functions_called(equation)
            inside.update(_uses_inside(module, body, equation, closed, known))
        elif equation.callee.name in CALLS and (trees := functions_called(equation)[0].facts.trees) is not None:
            inside = dict.fromkeys(trees.whole(), 0)
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


def _spread(order: Sequence[int], operands: Sequence[Leaf | None]) -> dict[int, int]:
    """The operands that are passed as the parts of a tuple that is spread."""
    found: dict[int, int] = {}
    for at in range(len(order)):
        spread = tuple_around([operands[i] if i >= 0 else None for i in order[at:]])
        found.update((i, 0) for i in order[at : at + (spread[0] if spread is not None else 0)])
    return found


def _uses_in_loop(module: Contents, equation: Equation, known: dict[Value, Leaf]) -> dict[int, int]:
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


def own_uses(module: Contents, body: Function, known: dict[Value, Leaf]) -> dict[Value, int]:
    """How often a function needs each of these leaves of its parameters by itself, and not with all of its tree."""
    uses: dict[Value, int] = {}
    _count_uses(module, body.equations, body.results, {**_own_leaves(body), **known}, uses)
    return {value: uses.get(value, 0) for value in known}


def _uses_in_bodies(module: Contents, equation: Equation, known: dict[Value, Leaf]) -> dict[int, int]:
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
        leaves = reach(tree.example, Name(f"tree_{number}", Symbol(leaves=len(tree.places)))) or []
        found.update(zip([body.params[p] for p in tree.places], leaves, strict=False))
    return found


def _argument_leaves(equation: Equation, body: Function) -> dict[Value, Leaf]:
    """Those of the trees that the author's function takes where it is called, under some name."""
    callee = equation.callee
    derivative = derivative_in(callee)
    signature = callee.signature if type(callee) is Map else None if derivative is None else derivative.signature
    if signature is None:
        return {}
    found: dict[Value, Leaf] = {}
    for key, example, places in arguments_at(signature.args, signature.closed):
        leaves = reach(example, Name(f"argument_{key}", Symbol(leaves=len(places)))) or []
        found.update(zip([body.params[p] for p in places], leaves, strict=False))
    return found


def _single_results(body: Function) -> Sequence[Atom]:
    """The results of a body but for those that it gives as parts of trees."""
    trees = body.facts.trees
    if trees is None:
        return body.results
    parts = trees.out.parts() if type(trees.out.example) is tuple else [trees.out]
    inside = {p for part in parts if part.nested() for p in part.places}
    return [r for i, r in enumerate(body.results) if i not in inside]


def _uses_inside(
    module: Contents, body: Function, equation: Equation, closed: Iterable[int], known: dict[Value, Leaf]
) -> dict[int, int]:
    """How often operands count that a body closes over: {place: 0, 1, or 2 where the body needs the leaf by itself}."""
    pairs = [(i, body.params[i], equation.inputs[i]) for i in closed]
    inner = {param: known[atom] for _, param, atom in pairs if type(atom) is Value and atom in known}
    uses: dict[Value, int] = {}
    own = {**_own_leaves(body), **_argument_leaves(equation, body)}
    _count_uses(module, body.equations, _single_results(body), {**inner, **own}, uses)
    counts = {i: (uses.get(param, 0), inner[param].steps) for i, param, _ in pairs if param in inner}
    # What lies deep, or is an attribute, and is used once stands in the body as it is.
    plain = {i for i, (_, s) in counts.items() if len(s) > 2 or s and s[-1][0] == "attribute"}
    return {i: n if i in plain else 2 * min(1, n) for i, (n, _) in counts.items()}


def _unpacking(w: Writer, bound: Sequence[tuple[Value, Leaf]], hint: Callable[[Value, Leaf], str]) -> list[Statement]:
    """Statements that bind leaves: those of one node together."""
    by_node: dict[tuple[str, Way], list[tuple[Value, Leaf]]] = {}
    for value, leaf in bound:
        by_node.setdefault((leaf.root.id, leaf.steps[:-1]), []).append((value, leaf))
    statements: list[Statement] = []
    for group in by_node.values():
        last = [leaf.steps[-1] for _, leaf in group]
        if all(kind == "item" and text.isdecimal() and count == len(group) for kind, text, count in last):
            group.sort(key=lambda pair: int(pair[1].steps[-1][1]))  # all of a tuple: in its order
        names = []
        for value, leaf in group:
            name = Name(w.scope.fresh(identifier(hint(value, leaf), "x")), Symbol(leaf=leaf))
            w.names[value] = name
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
