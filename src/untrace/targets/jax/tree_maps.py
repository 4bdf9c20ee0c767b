"""`jax.tree.map`: where a TreeMap of the IR can stand in the text, and how.

    updates = jax.tree.map(lambda g, m: 0.1 * g + 0.9 * m, grads, opt_state.mu)

The leaves that go in must be those of trees that the text can name: an argument or a part of one, or what another map
gave. Leaves of no such tree (the gradients that were just computed) are put into one of the same structure first. The
text for each leaf must be the same; shapes that differ stand there as `x.shape`. Where that fails, the equations are
written leaf by leaf.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from untrace._identifiers import identifier
from untrace._trees import is_simple
from untrace.ir.callees import callee_of
from untrace.ir.calls import trees_given
from untrace.ir.facts import Selected
from untrace.ir.nodes import (
    Atom,
    Equation,
    TreeMap,
    TreeRavel,
    TreeSum,
    TreeUnravel,
    Value,
    functions_called,
    walk_functions,
)
from untrace.lift.naming.words import clean
from untrace.module.access_paths import last_word
from untrace.module.grouping.leaf_paths import Selection, selection
from untrace.module.interface.put_together import rebuilt
from untrace.module.known_trees import Inverse, Key, Structure, Trees, key_of, plain_type, same_structure
from untrace.module.local_calls import placed
from untrace.module.nested import BareReturn, put_definition
from untrace.python import walk
from untrace.python.names import Scope
from untrace.python.pytrees import string
from untrace.python.statements import Assign, Def, Parameter, Return
from untrace.python.tree import (
    Attribute,
    Binary,
    Call,
    Comprehension,
    Expr,
    Lambda,
    Leaf,
    List,
    Name,
    Subscript,
    Symbol,
    Ternary,
    Text,
    Tuple,
)
from untrace.python.values import Unwritable

_LAMBDA_WIDTH = 60
_RAVEL = "from jax.flatten_util import ravel_pytree"
_LINE_WIDTH = 70  # of what a function of its own gives


# ---------------------------------------------------------------- which maps there are


def settle(w: Any, equations: Sequence[Equation], results: Sequence[Atom]) -> list[Equation]:
    """`equations`, with those over trees written out that cannot be written as one."""
    maps = [e for e in equations if type(e.callee) is TreeMap]
    flat = any(type(e.callee) is TreeRavel or type(e.callee) is TreeUnravel for e in equations)
    given = _given_by(equations) if maps or flat else {}
    structures: dict[Equation, Structure] = {}
    for _ in range(2 if flat else 1):  # what maps give may be made a vector, and what a vector was is mapped
        raveled = _raveled(w, equations, given) if flat else {}
        structures = {**_structures(w.trees, maps, given), **raveled}
        given.update((key_of(callee_of(e, TreeMap).given(e)), structures[e]) for e in maps if e in structures)
    w.structures.update(structures)
    found: list[Equation] = []
    read: set[Atom] = set()
    makers = {output: e for e in equations for output in e.outputs if output is not None} if maps else {}
    at_hand, mapped = {*w.trees.by_leaves, *given}, set[Key]()

    def is_at_hand(column: Sequence[Any]) -> bool:
        """Whether a tree need not be put together: where many of them are, two leaves are read more easily by themselves."""
        own = {makers.get(leaf) for leaf in column}
        return key_of(column) in at_hand or len(own) == 1 and None not in own

    for equation in equations:
        callee = equation.callee
        if type(callee) is TreeMap:
            columns = callee.columns(equation.inputs)
            is_tree = len(columns[0]) > 2 or 2 * sum(map(is_at_hand, columns)) > len(columns)
            if equation in structures and is_tree and _one_text(w, equation):
                found.append(equation)
                mapped.add(key_of(callee.given(equation)))
                continue
            at_hand.discard(key_of(callee.given(equation)))
            read = read or {*results, *[a for e in equations for a in e.inputs]}
            for turn, output in zip(callee.turns, equation.outputs, strict=True):
                found.extend(turn.equations if output in read else ())  # a leaf stays for the sake of its tree only
        elif type(callee) is TreeRavel or type(callee) is TreeUnravel:
            found.extend([equation] if equation in structures else callee.equations)
        elif type(callee) is TreeSum:
            known = key_of(equation.inputs) in {*w.trees.by_leaves, *mapped}
            found.extend([equation] if known else callee.equations)
        else:
            found.append(equation)
    return found


def _raveled(w: Any, equations: Sequence[Equation], given: dict[Key, Structure]) -> dict[Equation, Structure]:
    """{TreeRavel, or TreeUnravel: the structure of its tree}, where it is known; `given` gets what the latter give."""
    found: dict[Equation, Structure] = {}
    inverses: list[Inverse] = []
    for equation in equations:
        callee = equation.callee
        if type(callee) is TreeRavel:
            key = key_of(equation.inputs)
            known = w.trees.by_leaves.get(key)
            structure = known[1] if known is not None else given.get(key)
            if structure is not None:
                found[equation] = structure
                inverses.append(Inverse("", structure, key))
        elif type(callee) is TreeUnravel:
            like = equation.inputs[0].aval, equation.outputs, callee.sizes
            inverse = w.trees.inverse(*like)  # of the function around this one
            if inverse is not None:
                w.scope.claim_closed_over(inverse.name)
            else:
                inverse = next((i for i in inverses if i.gives(*like)), None)
            if inverse is None and (tree := _tree_like(w, equation, callee)) is not None:
                inverse = tree[1]
                inverses.append(inverse)
            if inverse is not None:
                found[equation] = given[key_of(equation.outputs)] = inverse.structure
    return found


def _tree_like(
    w: Any, equation: Equation, callee: TreeUnravel, structure: Structure | None = None
) -> tuple[Expr, Inverse] | None:
    """A tree (of this structure) like the one that the author's `unravel` gives, where the tree that it is of was made no
    vector."""
    like = equation.inputs[0].aval, equation.outputs, callee.sizes
    trees = w.trees.by_leaves.items() if callee.inverse else ()
    known = [(leaf, Inverse(callee.inverse, of, key)) for key, (leaf, of) in trees]
    found = [
        (leaf, inverse)
        for leaf, inverse in known
        if inverse.gives(*like) and (structure is None or same_structure(inverse.structure.example, structure.example))
    ]
    return min(found, key=lambda tree: len(tree[0].flat()), default=None)


def _given_by(equations: Sequence[Equation]) -> dict[Key, Structure]:
    """The trees that loops and calls will have given, and their parts."""
    given = Trees()
    for equation in equations:
        for example, leaves in trees_given(equation):
            given.add(Name("given"), example, leaves)
    return {key: structure for key, (_, structure) in given.by_leaves.items()}


def _structures(trees: Trees, maps: Sequence[Equation], given: Mapping[Key, Structure]) -> dict[Equation, Structure]:
    """{map: the structure of its trees}, for those of which some tree, or one of a map next to it, is known or will be, or
    whose leaves have the types of an argument's: gradients are like the parameters.
    """
    known = {**given, **{key: structure for key, (_, structure) in trees.by_leaves.items()}}
    found: dict[Equation, Structure] = {}
    grown, guessing = True, False
    while grown:
        grown = False
        for equation in maps:
            if equation in found:
                continue
            callee = callee_of(equation, TreeMap)
            given_by_it, columns = callee.given(equation), callee.columns(equation.inputs)
            keys = [key_of(column) for column in [*columns, given_by_it]]
            structure = next((known[k] for k in keys if k in known), None)
            mixed = [
                leaves
                for k, leaves in zip(keys, columns, strict=False)
                if k not in trees.by_leaves and not trees.arguments.isdisjoint(k)
            ]
            if structure is None and mixed or any(not _is_put_together(trees, structure, m) for m in mixed):
                continue  # leaves of a tree, but not all of it, or in another order
            if structure is None and guessing and callee.is_called:
                guesses = (_like_an_argument(trees, leaves) for leaves in (columns[0], given_by_it))
                structure = next(filter(None, guesses), None)
            if structure is not None:
                if any(k in known and not same_structure(structure.example, known[k].example) for k in keys):
                    continue
                found[equation] = structure
                known.update((k, structure) for k in keys if k not in known)
                grown = True
        if not grown and not guessing:
            grown = guessing = True
    return found


def _is_put_together(trees: Trees, structure: Structure | None, leaves: Sequence[Any]) -> bool:
    """Whether a tree of this structure with these leaves is mostly trees that there are: `Best(loss, params)`."""
    parts = 0
    todo = [] if structure is None else [(structure.example, list(leaves))]
    while todo:
        node, own = todo.pop()
        children = jax.tree.leaves(node, is_leaf=lambda x, node=node: x is not node)
        if len(own) < 2 or key_of(own) in trees.by_leaves:
            parts += len(own) > 0
            continue
        for child in children:
            count = len(jax.tree.leaves(child))
            todo.append((child, own[:count]))
            own = own[count:]
    return 0 < 2 * parts <= len(leaves)


def _like_an_argument(trees: Trees, leaves: Sequence[Any]) -> Structure | None:
    """The structure of the argument, or the part of one, that has leaves of these types."""
    wanted = [plain_type(v.aval) for v in leaves]
    if None in wanted:
        return None
    for key, (_, structure) in trees.by_leaves.items():
        if trees.arguments.issuperset(key) and [plain_type(x) for x in jax.tree.leaves(structure.example)] == wanted:
            return structure
    return None


# ---------------------------------------------------------------- the function for one leaf


def _one_text(w: Any, equation: Equation) -> bool:
    callee = callee_of(equation, TreeMap)
    shared = len(callee.turns[0].params) - callee.trees
    names = [Name(f"shared_{i}") for i in range(shared)]
    if callee.selected is not None and _condition(equation, callee.selected, w.structures[equation]) is None:
        return False
    texts = set()
    for turn in _changed(equation):
        try:
            params, statements, value = _leaf_function(w, equation, turn, names)
        except Unwritable:
            return False
        if statements and callee.selected is not None:
            return False  # they might not do for the leaves that stay what they are
        texts.add("\n".join(Def("f", params, [*statements, Return(value)]).lines("")))
        if len(texts) > 1:
            return False
    return True


def _changed(equation: Equation) -> list[int]:
    """The turns that change their leaf."""
    return [i for i, output in enumerate(equation.outputs) if output is not None]


def _leaf_function(
    w: Any, equation: Equation, turn: int, shared: Sequence[Expr]
) -> tuple[list[Parameter], list[Any], Expr]:
    """(parameters, statements, result) of the function for the leaf of one turn."""
    callee = callee_of(equation, TreeMap)
    function = callee.turns[turn]
    scope = Scope(w.module.scope)
    for expr in shared:
        scope.claim_closed_over(_root(expr))
    inner = type(w)(w.module, scope)
    params = []
    for value, name in zip(function.params, callee.names, strict=False):
        inner.names[value] = Name(scope.fresh(identifier(clean(name or "x"), "x")))
        params.append(Parameter(inner.names[value].id))
    inner.names.update(zip(function.params[callee.trees :], shared, strict=True))
    shapes = [(tuple(v.aval.shape), inner.names[v]) for v in function.params[: callee.trees]]
    made = {i: [o for e in callee.turns[i].equations for o in e.outputs if o is not None] for i in _changed(equation)}
    hints = [(o, o.hint, o.named) for o in made[turn]]
    for own, *outputs in zip(made[turn], *made.values(), strict=True):
        if not own.named and len({o.hint for o in outputs}) > 1:
            own.hint = None  # one that is after the leaf's own name
    (result,) = function.results
    assert type(result) is Value
    result.named = False
    try:
        with w.module.values.in_words_of(shapes):
            inner.equations(function.equations, function.results)
        value, last = inner.atom(function.results[0]), inner.statements[-1:]
        if last and type(last[0]) is Assign and type(value) is Name and last[0].targets == [value.id]:
            inner.statements.pop()
            value = last[0].value
        return params, inner.statements, value
    finally:
        for output, hint, named in hints:
            output.hint, output.named = hint, named


def _root(expr: Expr) -> str:
    text = expr.flat()
    end = next((i for i, c in enumerate(text) if not (c.isalnum() or c == "_")), len(text))
    return text[:end] or "_"


def _condition(
    equation: Equation, selected: Selected, structure: Structure
) -> tuple[int | None, Selection | None] | None:
    """(of how many axes more a leaf that changes must have, where it must be in the tree), None for what does not matter;
    None where neither tells those that change."""
    changed = _changed(equation)
    ranks = [len(turn.params[selected.tree].aval.shape) for turn in callee_of(equation, TreeMap).turns]
    high = [i for i, rank in enumerate(ranks) if selected.axes is not None and rank > selected.axes]
    if high == changed:
        return selected.axes, None
    ways = [[str(_word(key)) for key in path] for path in _paths(structure)]
    found = selection(ways, changed)
    if found is not None:
        return None, found
    if not high:
        return None
    found = selection([ways[i] for i in high], [i for i, place in enumerate(high) if place in changed])
    return None if found is None else (selected.axes, found)


def _paths(structure: Structure) -> list[tuple[Any, ...]]:
    return [path for path, _ in jax.tree_util.tree_flatten_with_path(structure.example)[0]]


def _test(axes: int | None, where: Selection | None, leaf: str, path: str, structure: Structure) -> Expr:
    """The condition as an expression of the leaf, and its path in a tree of this structure."""
    tests: list[Expr] = []
    if axes is not None:
        tests.append(Binary(Attribute(Name(leaf), "ndim"), ">", Text(str(axes))))
    if where is not None and where.last:
        is_key = all(type(p[-1]) is jax.tree_util.DictKey for p in _paths(structure))
        if is_key or all(type(p[-1]) is jax.tree_util.GetAttrKey for p in _paths(structure)):
            word: Expr = Attribute(Subscript(Name(path), Text("-1")), "key" if is_key else "name")
        else:
            word = Call("jax.tree_util.keystr", [Subscript(Name(path), Text("-1:"))], [("simple", Text("True"))])
        words = [string(w) for w in where.last]
        operators = ("!=", "not in") if where.others else ("==", "in")
        several = len(words) > 1
        tests.append(Binary(word, operators[several], Tuple(words) if several else words[0]))
    if where is not None:
        text = Call("jax.tree_util.keystr", [Name(path)])
        within = [Binary(string(word), "in", text) for word in where.within]
        tests.extend([functools.reduce(lambda one, other: Binary(one, "or", other), within)] if within else [])
        tests.extend(Binary(string(word), "not in", text) for word in where.without)
    return functools.reduce(lambda one, other: Binary(one, "and", other), tests)


def _word(key: Any) -> Any:
    """What a key of a path in a tree says: the key of a dict, the name of a field, the place in a list."""
    return next(getattr(key, field) for field in ("key", "name", "idx") if hasattr(key, field))


# ---------------------------------------------------------------- the map


def write_over_trees(w: Any, equation: Equation) -> None:
    """Appends the statements of an equation over trees."""
    w.module.modules.add("jax")
    callee = equation.callee
    if type(callee) is TreeMap:
        _write_map(w, equation)
    elif type(callee) is TreeSum:
        w._statement(equation, _sum(w, equation))
    elif type(callee) is TreeRavel:
        _write_vector(w, equation, callee)
    elif type(callee) is TreeUnravel:
        inverse = w.trees.inverse(equation.inputs[0].aval, equation.outputs, callee.sizes)
        if inverse is None:
            like = _tree_like(w, equation, callee, w.structures[equation])
            assert like is not None  # else it was not settled so
            inverse = _write_ravel(w, "_", *like)
        name = identifier(callee.result, "unraveled")
        result = Name(w.scope.fresh(name), Symbol(author=name if callee.own_result else None))
        w.statements.append(Assign([result.id], Call(inverse.name, [w.atom(equation.inputs[0])]), equation.origin))
        _note_result(w, equation, result, inverse.structure, equation.outputs, callee.equations)


def _write_vector(w: Any, equation: Equation, callee: TreeRavel) -> None:
    """`flat, unravel = ravel_pytree(tree)`, or the vector alone where nothing takes one apart, or something does already."""
    leaves, structure = equation.inputs, w.structures[equation]
    inverse = Inverse(callee.inverse, structure, key_of(leaves))
    sizes = [math.prod(leaf.aval.shape) for leaf in leaves]
    tree = _tree(w, leaves, structure)
    if _is_undone(w, inverse) and w.trees.inverse(leaves[0].aval, leaves, sizes) is None:
        _write_ravel(w, w._target(equation.outputs[0], "flat"), tree, inverse, equation.origin)
    else:
        w.module.imports.add(_RAVEL)
        w._statement(equation, Subscript(Call("ravel_pytree", [tree]), Text("0")))


def _is_undone(w: Any, inverse: Inverse) -> bool:
    """Whether an equation after the current one, or one in a function there, takes a vector apart so."""
    after = w.remaining()[0]
    inside = [e for one in after for f in functions_called(one) for g in walk_functions(f) for e in g.equations]
    return any(
        type(e.callee) is TreeUnravel and inverse.gives(e.inputs[0].aval, e.outputs, e.callee.sizes)
        for e in [*after, *inside]
    )


def _write_ravel(w: Any, flat: str, tree: Expr, inverse: Inverse, origin: Any = None) -> Inverse:
    """`flat, unravel = ravel_pytree(tree)`."""
    w.module.imports.add(_RAVEL)
    name = w.scope.fresh(identifier(inverse.name, "unravel"))
    w.statements.append(Assign([flat, name], Call("ravel_pytree", [tree]), origin))
    w.trees.inverses.append(dataclasses.replace(inverse, name=name))
    return w.trees.inverses[-1]


def _note_result(
    w: Any,
    equation: Equation,
    result: Name,
    structure: Structure,
    leaves: Sequence[Any],
    inside: Sequence[Equation],
) -> None:
    """Says that `result` is the tree with these leaves, which the equation gives; `inside`: the equations that it stands for."""
    origins = [e.origin for e in inside if e.origin is not None]
    if equation.origin is not None:
        w.module.folded[equation.origin] = tuple([o for o in origins if o is not equation.origin])
    w.trees.add(result, structure.example, leaves)
    for output, way in zip(equation.outputs, structure.ways, strict=True):
        if output is not None:
            w.names[output] = Leaf(result, way)


def _write_map(w: Any, equation: Equation) -> None:
    """`result = jax.tree.map(f, tree, ...)`."""
    callee = callee_of(equation, TreeMap)
    structure = w.structures[equation]
    trees = [_tree(w, column, structure) for column in callee.columns(equation.inputs)]
    condition = _condition(equation, callee.selected, structure) if callee.selected is not None else None
    by_place = condition is not None and condition[1] is not None
    if not by_place:  # the places are those in these trees
        trees, structure = _outermost(w, trees, structure)
    shared = [w.atom(a) for a in equation.inputs[callee.trees * len(callee.turns) :]]
    name = callee.result or _common([o.hint for o in equation.outputs if o is not None], "leaves")
    if callee.result is None and type(trees[0]) is Leaf and set(equation.outputs) <= set(w.remaining()[1]):
        word = last_word(trees[0])
        name = word.removeprefix("new_") if word.startswith("new_") else f"new_{word}"
    if name == callee.function and type(trees[0]) is Leaf:  # of what it gives nothing else is known
        name = last_word(trees[0])
    function = _function(w, equation, shared, f"{name}_of_leaf")
    name = identifier(name, "leaves")
    result = Name(w.scope.fresh(name), Symbol(author=name if callee.own_result and name == callee.result else None))
    mapping = "jax.tree_util.tree_map_with_path" if by_place else "jax.tree.map"
    w.statements.append(Assign([result.id], Call(mapping, [function, *trees]), equation.origin))
    inside = [e for turn in callee.turns for e in turn.equations]
    _note_result(w, equation, result, structure, callee.given(equation), inside)


def _function(w: Any, equation: Equation, shared: Sequence[Expr], otherwise: str) -> Expr:
    """What is mapped: a function that there is; one of the author's that closes over nothing, in the module; a lambda, or one
    beside the map."""
    callee = callee_of(equation, TreeMap)
    changed = _changed(equation)
    params, statements, value = _leaf_function(w, equation, changed[0], shared)
    names = [p.name for p in params]
    if callee.selected is not None:
        structure = w.structures[equation]
        condition = _condition(equation, callee.selected, structure)
        assert condition is not None
        own = Scope(w.module.scope)  # what the function may not hide: its parameters, and what it closes over
        for taken in [*names, *map(_root, shared)]:
            own.claim_closed_over(taken)
        path = own.fresh("path")
        test = _test(*condition, names[callee.selected.tree], path, structure)
        kept = names[callee.selected.kept]
        if condition[1] is not None:
            params, names = [Parameter(path), *params], [path, *names]
        if len(Ternary(value, test, Name(kept)).flat()) > _LINE_WIDTH:
            name = own.fresh("is_changed")
            statements, test = [Assign([name], test)], Name(name)
        value = Ternary(value, test, Name(kept))
    if not statements and type(value) is Call and not value.kwargs:
        func = Name(value.func) if type(value.func) is str else value.func
        if type(func) is Name and [a.id if type(a) is Name else a for a in value.args] == names:
            return func
    label = identifier(clean(callee.function), "leaf") if callee.function else otherwise
    if callee.own and not shared and callee.selected is None:
        name = label
        for turn in changed:
            params, statements, value = _leaf_function(w, equation, turn, shared)
            leaf, definition = callee.turns[turn], Def("", params, [*statements, Return(value)])
            describe = functools.partial(w.module.described.flat, params=leaf.params, results=leaf.results)
            name = placed(w.module, definition, label, describe)
        return Name(name)
    function = Lambda(names, value)
    if not callee.own and not statements and len(function.flat()) <= _LAMBDA_WIDTH:
        return function
    label = w.scope.fresh_function(label)
    put_definition(w.statements, Def(label, params, [*statements, BareReturn(value)]))
    return Name(label)


def _outermost(w: Any, trees: list[Expr], structure: Structure) -> tuple[list[Expr], Structure]:
    """The same leaves as trees further up, where these have no others: `grads` for `grads["params"]`."""
    while True:
        below = [t for t in trees if type(t) is Leaf and t.steps]
        if len(below) < len(trees) or len({t.steps[-1] for t in below}) > 1:
            return trees, structure
        above = [Leaf(t.root, t.steps[:-1]) for t in below]
        examples = [w.trees.node(t) for t in above]
        if not all(same_structure(examples[0], e) for e in examples):
            return trees, structure
        if jax.tree.structure(examples[0]).num_leaves != len(structure.ways):
            return trees, structure
        trees = [*above]
        structure = Structure(examples[0], tuple([(below[0].steps[-1], *way) for way in structure.ways]))


def _sum(w: Any, equation: Equation) -> Expr:
    """`sum(jax.tree.leaves(tree))`."""
    tree = w.trees.by_leaves[key_of(equation.inputs)][0]
    if not callee_of(equation, TreeSum).from_zero:
        w.module.imports.add("import operator")
        return Call("jax.tree.reduce", [Text("operator.add"), tree])
    return _sum_of_each(w, equation, tree) or Call("sum", [Call("jax.tree.leaves", [tree])])


def _sum_of_each(w: Any, equation: Equation, tree: Expr) -> Expr | None:
    """`sum(f(x) for x in jax.tree.leaves(tree))`, where the statement before is a map that its author does not call, for this alone."""
    made, mapped = w.statements[-1] if w.statements else None, w.before()
    if mapped is None or type(mapped.callee) is not TreeMap or mapped.callee.is_called or mapped.callee.trees > 1:
        return None
    if [*mapped.outputs] != [*equation.inputs] or any(w.is_read_later(value) for value in mapped.outputs):
        return None
    match made, tree:
        case (
            Assign(targets=[name], value=Call(args=[Lambda(params=[leaf], body=body), whole])),
            Leaf(root=Name(id=own), steps=()),
        ) if name == own:
            w.statements.pop()
            w.scope.give_back(own)
            folded = w.module.folded
            inside = (mapped.origin, *folded.get(mapped.origin, ()), *folded.get(equation.origin, ()))
            folded[equation.origin] = tuple([o for o in inside if o not in (None, equation.origin)])

            def bound(node: object) -> object:
                return Text(leaf) if type(node) is Name and node.id == leaf else walk.rebuilt(node, bound)

            each = bound(body)
            assert isinstance(each, Expr)  # of an expression
            return Comprehension("sum(", each, leaf, Call("jax.tree.leaves", [whole]), ")")
    return None


def _tree(w: Any, column: Sequence[Any], structure: Structure) -> Expr:
    """The tree with these leaves: by its name, or put together now."""
    found = w.trees.by_leaves.get(key_of(column))
    if found is not None:
        return found[0]
    leaves = [w.atom(a) for a in column]
    if is_simple(structure.example):  # a reader would put it together by its parts
        tree = rebuilt(w, structure.example, leaves)
    else:
        known = w.trees.by_leaves.values()
        like = next(leaf for leaf, other in known if same_structure(other.example, structure.example))
        tree = Call("jax.tree.unflatten", [Call("jax.tree.structure", [like]), List(leaves)])
    hints = [getattr(a, "hint", None) for a in column]
    name = Name(w.scope.fresh(identifier(_common(hints, "leaves"), "leaves")))
    w.statements.append(Assign([name.id], tree))
    if all(type(a) is Value for a in column):
        w.trees.add(name, structure.example, column)
    return name


def _common(hints: Sequence[str | None], otherwise: str) -> str:
    """The word that all of them are numbered forms of; else the most frequent one. Cotangents are gradients together."""
    if all((h or "").startswith("d_") for h in hints):
        return "grads"
    words = [h for h in hints if h]
    if not words:
        return otherwise
    best = max(sorted(set(words)), key=words.count)
    return best if words.count(best) * 2 > len(hints) else otherwise
