"""Results of local functions that go together into one tree: the gradients of a layer, the new statistics of a norm.

    d_norm, d_x = norm_bwd(d_y, saved)
    return {"dense": d_dense, "norm": d_norm}

Where a result goes is seen from outside in: into the tree that the program returns, into one that `jax.tree.map` takes, or
into one that the function around the call returns. Results whose places have the same ways from one node on, at every
call, are that node; of a dict it may be a part (`{**d_attention, **d_feed_forward}`).
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from untrace._identifiers import identifier, snake_case
from untrace._trees import is_simple, parts_by_name
from untrace.ir.callees import callee_of
from untrace.ir.calls import trees_taken
from untrace.ir.nodes import Atom, Cond, Equation, Function, Local, Scan, TreeMap, Value, While, walk_functions
from untrace.ir.types import PyTree
from untrace.lift.naming.words import clean
from untrace.module.access_paths import Step, last_word, reach_nodes
from untrace.module.grouping.accumulators import sums
from untrace.module.grouping.kinds import Group, Place, Way
from untrace.module.grouping.stacked import made
from untrace.module.interface.put_together import rebuilt
from untrace.module.interface.writing import Contents, Writer
from untrace.provenance.sites import Provenance, names_by_part
from untrace.python.names import base_of
from untrace.python.statements import Assign
from untrace.python.tree import Expr, Leaf, Name, Symbol, Tuple
from untrace.python.types import Type, array_type, tuple_type, ways_type

_FEWEST = 2  # results that go together


def note_returned(w: Writer, equations: Sequence[Equation], results: Sequence[Atom], example: PyTree) -> None:
    """Notes in the module which results of local functions are one tree. `w` writes the entry, whose result is like `example`."""
    entry = w.module.entry
    assert entry is not None  # whose result this is
    sites: dict[Function, list[tuple[Function | None, Equation]]] = {}
    for owner, inside in [(None, equations), *((f, f.equations) for f in walk_functions(entry))]:
        if owner is entry:
            continue
        for equation in inside:
            for body in _bodies(equation):
                sites.setdefault(body, []).append((owner, equation))
    places: dict[Function | None, dict[Atom, Place]] = {None: dict(_places_in_entry(w, equations, results, example))}
    given: dict[Function | None, dict[Atom, Place]] = {None: dict(_places_given(equations))}
    for body in _callers_first(sites):
        known = [(e, places.get(o, {})) for o, e in sites[body]]
        places[body], given[body] = {}, dict(_places_given(body.equations))
        if type(known[0][0].callee) is not Local:
            places[body].update(_places_in_tree(body))
            if type(known[0][0].callee) is Scan:
                places[body].update(_places_in_loop(w, body, known))
            continue
        found = _groups(body, known, [given.get(o, {}) for o, _ in sites[body]])
        if found:
            w.module.returned[body] = found
        for i, group in enumerate(found):
            nodes = _nodes(group.example)
            for p, way in zip(group.places, group.ways, strict=True):
                places[body][body.results[p]] = Place((body, i), way, nodes)


def _bodies(equation: Equation) -> Sequence[Function]:
    """The functions that are called, looped or chosen from."""
    callee = equation.callee
    if type(callee) is Cond:
        return callee.branches
    return [callee.body] if type(callee) is Local or type(callee) is Scan or type(callee) is While else []


def _places_given(equations: Sequence[Equation]) -> Iterator[tuple[Atom, Place]]:
    """Where values stand in the trees that loops and branches begin with."""
    for equation in equations:
        for number, tree in enumerate(trees_taken(equation) if _bodies(equation) else ()):
            whole = reach_nodes(tree.example) if tree.nested() else None
            nodes = _nodes(tree.example) if whole else {}
            for place, way in zip(tree.places, whole[0][2] if whole else (), strict=False):
                value = equation.inputs[place]
                if type(value) is Value:
                    yield value, Place((equation, "given", number), way, nodes)


def _places_in_tree(body: Function) -> Iterator[tuple[Atom, Place]]:
    """Where the results of a loop's body stand in the tree that it gives, if that is known."""
    seen: set[Value] = set()
    for value, place in _places(body, body.results, (body, "out")):
        if type(value) is Value and value not in seen:
            seen.add(value)
            yield value, place


def _places(
    body: Function,
    values: Sequence[Atom | None],
    tree: Hashable,
    names: Mapping[tuple[int | str, ...], str] = MappingProxyType({}),
) -> Iterator[tuple[Atom, Place]]:
    """Where these, which are the results of a loop's body or what the loop gives for them, stand in its tree, if that is known."""
    trees = body.facts.trees
    whole = reach_nodes(trees.out.example) if trees is not None else None
    if trees is not None and whole:
        nodes = _nodes(trees.out.example)
        for place, way in zip(trees.out.places, whole[0][2], strict=True):
            value = values[place] if place >= 0 else None
            if value is not None:
                yield value, Place(tree, way, nodes, names)


def _places_in_loop(
    w: Writer, body: Function, sites: Sequence[tuple[Equation, dict[Atom, Place]]]
) -> Iterator[tuple[Value, Place]]:
    """Where the terms of the trees go that a loop adds up; notes these."""
    (equation, known), *others = sites
    found = sums(w.module, equation, known) if known and not others else []
    rows = made(equation, known) if known and not others else []
    if rows:
        w.module.rows[equation] = rows
    stacked = body.results[len(body.results) - len(equation.outputs) + callee_of(equation, Scan).carries :]
    for row in rows:
        nodes = _nodes(row.example)
        for place, way in zip(row.places, row.ways, strict=True):
            value = stacked[place]
            if type(value) is Value:
                yield value, Place((body, "stacked", row.places.start), way, nodes)
    if found:
        w.module.sums[equation] = found
    for number, item in enumerate(found):
        nodes = _nodes(item.example)
        for turn, terms in enumerate(item.terms):
            for term, way in zip(terms, item.ways, strict=True):
                yield term, Place((body, number, turn), way, nodes)


def _callers_first(bodies: Iterable[Function]) -> list[Function]:
    found: dict[Function, None] = {}
    for body in bodies:
        _add_callees_first(body, found)
    return list(found)[::-1]


def _add_callees_first(body: Function, found: dict[Function, None]) -> None:
    for equation in body.equations:
        for inner in _bodies(equation):
            if inner not in found:
                _add_callees_first(inner, found)
    found.setdefault(body)


def _nodes(example: object) -> dict[Way, tuple[PyTree, int]]:
    return {way: (node, len(ways)) for way, node, ways, _ in reach_nodes(example) or ()}


def _places_in_entry(
    w: Writer, equations: Sequence[Equation], results: Sequence[Atom], example: PyTree
) -> Iterator[tuple[Value, Place]]:
    for equation in equations:
        callee = equation.callee
        structure = w.structures.get(equation) if type(callee) is TreeMap else None
        if type(callee) is not TreeMap or structure is None or not is_simple(structure.example):
            continue
        nodes = _nodes(structure.example)
        for values in callee.columns(equation.inputs):
            for value, way in zip(values, structure.ways, strict=True):
                if type(value) is Value:
                    yield value, Place(("map", tuple(values)), way, nodes)
    whole = reach_nodes(example)
    if whole:
        nodes = _nodes(example)
        for value, way in zip(results, whole[0][2], strict=True):
            if type(value) is Value and sum(r is value for r in results) == 1:
                yield value, Place("result", way, nodes)


# ---------------------------------------------------------------- what goes together


def _groups(
    body: Function, sites: Sequence[tuple[Equation, dict[Atom, Place]]], given: Sequence[Mapping[Atom, Place]]
) -> list[Group]:
    """given: at each call, where values stand in trees that loops and branches begin with."""
    if body.facts.packed_results is not None or len(body.results) < _FEWEST:
        return []
    inside: dict[Atom, Place] = dict(_places_inside(body))
    found = (
        _grouped(body, sites, [[_place_of(o, known) for o in e.outputs] for e, known in sites])
        or _grouped(body, sites, [[inside.get(r) for r in body.results]] * len(sites))
        or _grouped(body, sites, [[_place_of(o, g) for o in e.outputs] for (e, _), g in zip(sites, given, strict=True)])
    )
    grouped = {place for group in found for place in group.places}
    for number, (places, example) in enumerate(body.facts.given):
        whole = reach_nodes(example) if grouped.isdisjoint(places) and is_simple(example) else None
        if whole:
            nodes = _nodes(example)
            row: list[Place | None] = [None] * len(body.results)
            for place, way in zip(places, whole[0][2], strict=True):
                row[place] = Place((body, "given", number), way, nodes)
            found += _grouped(body, sites, [row] * len(sites), twice=True)
    return found


def _place_of(value: Value | None, places: Mapping[Atom, Place]) -> Place | None:
    return None if value is None else places.get(value)


def _places_inside(body: Function) -> Iterator[tuple[Atom, Place]]:
    """Where what a function's loops give stands in the trees of their bodies."""
    for equation in body.equations:
        if type(equation.callee) is Scan:
            bound = names_by_part(Provenance().site(equation.origin)) if equation.origin is not None else {}
            names = {path: clean(t.name) for path, t in bound.items()}
            yield from _places(equation.callee.body, equation.outputs, (equation, "made"), names)


def _grouped(
    body: Function,
    sites: Sequence[tuple[Equation, dict[Atom, Place]]],
    rows: Sequence[Sequence[Place | None]],
    twice: bool = False,
) -> list[Group]:
    """rows: at each call where each of the results goes, or comes from. twice: whether one value may be several results."""
    found: list[Group] = []
    candidates: dict[Hashable, list[int]] = {}
    for i in range(len(rows[0])):
        if not twice and sum(r is body.results[i] for r in body.results) > 1:
            return []
        column = [place for row in rows if (place := row[i]) is not None]
        if len(column) == len(rows):
            candidates.setdefault(tuple([place.tree for place in column]), []).append(i)
    for numbers in candidates.values():
        found.extend(_groups_of(body, sites, rows, numbers))
    return found


def _groups_of(
    body: Function,
    sites: Sequence[tuple[Equation, dict[Atom, Place]]],
    rows: Sequence[Sequence[Place | None]],
    numbers: Sequence[int],
) -> Iterator[Group]:
    """The groups among results that go into one tree at each call: all of them, or those below each of its branches."""
    if len(numbers) < _FEWEST:
        return
    columns = [[place for i in numbers if (place := row[i]) is not None] for row in rows]
    prefixes = [_common([p.way for p in column]) for column in columns]
    ways = [tuple([p.way[len(x) :] for p in c]) for c, x in zip(columns, prefixes, strict=True)]
    examples: list[PyTree] = [None]
    if len(set(ways)) == 1 and len(set(ways[0])) == len(numbers):
        examples = [_part(c[0].nodes, x, ways[0]) for c, x in zip(columns, prefixes, strict=True)]
    # A function gives several results anyway; and what the others of its kind give are other parts of a dict.
    apart = (
        type(examples[0]) is tuple
        and len(numbers) == len(body.results)
        or (body.facts.is_one_of_several and columns[0][0].nodes.get(prefixes[0], (None, 0))[1] != len(numbers))
    )
    if examples[0] is None or apart or any(_shape(e) != _shape(examples[0]) for e in examples):
        branches: dict[Hashable, list[int]] = {}
        for place, i in enumerate(numbers):
            branches.setdefault(tuple([own[place][:1] for own in ways]), []).append(i)
        for inner in branches.values() if len(branches) > 1 else ():
            yield from _groups_of(body, sites, rows, inner)
        return
    # In the tree's own order, in which it is flattened.
    order = {leaf: n for n, leaf in enumerate((reach_nodes(examples[0]) or [])[0][2])}
    pairs = sorted(zip(numbers, ways[0], strict=True), key=lambda pair: order[pair[1]])
    group = Group(tuple([n for n, _ in pairs]), tuple([way for _, way in pairs]), examples[0])
    for (equation, _), column, prefix in zip(sites, columns, prefixes, strict=True):
        group.words[equation] = _word(equation, group, column[0], prefix)
    yield group


def _common(ways: Sequence[Way]) -> Way:
    size = 0
    while all(len(w) > size and w[size] == ways[0][size] for w in ways):
        size += 1
    return ways[0][:size]


def _part(nodes: dict[Way, tuple[PyTree, int]], prefix: Way, ways: Sequence[Way]) -> PyTree:
    """A tree with leaves at the end of these ways: a node, or a part of a dict; None where it would be something else."""
    node, count = nodes.get(prefix, (None, 0))
    if count == len(ways):
        return node if is_simple(node) else None
    if type(node) is not dict:
        return None
    inner: dict[Step, list[Way]] = {}
    for way in ways:
        inner.setdefault(way[0], []).append(way[1:])
    found = {}
    for step, rest in inner.items():
        key = ast.literal_eval(step[1])
        part = node.get(key) if rest == [()] and (*prefix, step) not in nodes else _part(nodes, (*prefix, step), rest)
        if part is None:
            return None
        found[key] = part
    return found if is_simple(found) else None


def _shape(example: PyTree) -> object:
    import jax

    return None if example is None else jax.tree.structure(example)


def _word(equation: Equation, group: Group, place: Place, prefix: Way) -> str:
    """`d_norm` for the gradients of `params["norm"]`, `new_norm` for its new values; else after the function."""
    outputs = [o for p in group.places if (o := equation.outputs[p]) is not None]
    wholes = {o.whole for o in outputs} - {None}
    if len(wholes) == 1 and (author := wholes.pop()) is not None:
        return author
    name = place.names.get(tuple([int(text) for _, text, _ in prefix if text.isdecimal()]))
    if name is not None:
        return name
    gradient = all((o.hint or "").startswith("d_") for o in outputs)
    node, count = place.nodes.get(prefix, (None, 0))
    word = last_word(Leaf(Name(""), prefix)) if count == len(group.places) and node is not None else ""
    if not word and not gradient:  # the leaves of one tree, which the author calls alike
        hints = {base_of(o.hint or "") for o in outputs}
        if len(hints) == 1 and hints != {""}:
            return clean(hints.pop())
    if not word and not gradient and parts_by_name(group.example) is not None:
        name = type(group.example).__name__
        return "new_state" if name.endswith("State") else clean(snake_case(name))
    return clean(f"{'d' if gradient else 'new'}_{word or callee_of(equation, Local).body.name.removesuffix('_bwd')}")


# ---------------------------------------------------------------- how they are written


def assign(w: Writer, equation: Equation, call: Expr) -> bool:
    """Binds what a call gives back, where some of it is trees; whether any is."""
    groups = w.module.returned.get(callee_of(equation, Local).body)
    if groups is None:
        return False
    inside = {p: group for group in groups for p in group.places}
    targets: list[str] = []
    for place, output in enumerate(equation.outputs):
        group = inside.get(place)
        if group is None:
            targets.append("_" if output is None else w._target(output, "x"))
        elif place == min(group.places):
            values = [equation.outputs[p] for p in group.places]
            word = group.words.get(equation, "")
            base, is_author = identifier(word, "tree"), word in {v.whole for v in values if v is not None}
            root = Name(w.scope.fresh(base), Symbol(author=base if is_author else None))
            targets.append(root.id)
            w.names.update((v, Leaf(root, way)) for v, way in zip(values, group.ways, strict=True) if v is not None)
            w.trees.add(root, group.example, values)
            _note_handed_on(w, equation, root, group)
    w.statements.append(Assign(targets, call, equation.origin))
    return True


def _note_handed_on(w: Writer, equation: Equation, root: Name, group: Group) -> None:
    body = callee_of(equation, Local).body
    place_of = {param: place for place, param in enumerate(body.params)}
    for place, way in zip(group.places, group.ways, strict=True):
        result = body.results[place]
        if type(result) is Value and result in place_of:
            w.trees.handed_on[Leaf(root, way).flat()] = w.atom(equation.inputs[place_of[result]]).flat()


def returned(w: Writer, body: Function) -> Expr | None:
    """What a function returns, where some of it is trees."""
    groups = w.module.returned.get(body)
    if groups is None:
        return None
    parts: list[Expr] = []
    for place, group in _in_order(body, groups):
        if group is None:
            parts.append(w.atom(body.results[place]))
        else:
            parts.append(rebuilt(w, group.example, [w.atom(body.results[p]) for p in group.places]))
    return parts[0] if len(parts) == 1 else Tuple(parts)


def result_type(module: Contents, body: Function) -> Type | None:
    """The type of what `returned` gives."""
    groups = module.returned.get(body)
    if groups is None:
        return None
    types = [
        array_type(body.results[place].aval)
        if group is None
        else ways_type(group.ways, [body.results[p].aval for p in group.places], group.example)
        for place, group in _in_order(body, groups)
    ]
    return tuple_type(types)


def _in_order(body: Function, groups: Sequence[Group]) -> Iterator[tuple[int, Group | None]]:
    """The results of a function, a group where its first is."""
    inside = {p: group for group in groups for p in group.places}
    for place in range(len(body.results)):
        group = inside.get(place)
        if group is None or place == min(group.places):
            yield place, group
