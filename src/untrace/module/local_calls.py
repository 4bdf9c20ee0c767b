"""Local functions and their calls: `x = attention(params["attention"], x)`.

A function that needs several leaves of one tree takes the tree (`access_paths`), the same one at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import jax

from untrace._identifiers import identifier
from untrace._trees import is_simple, parts_by_name
from untrace.ir.callees import callee_of, output_of
from untrace.ir.facts import Step, Way
from untrace.ir.nodes import Atom, Equation, Function, Local, TreeMap, Value
from untrace.ir.types import PyTree
from untrace.module.access_paths import (
    Layout,
    argument_order,
    author_root,
    grouping_of,
    last_word,
    layout_of,
    parameter_of_pack,
)
from untrace.module.grouping import packed, result_trees
from untrace.module.grouping.bound_leaves import bind_leaves
from untrace.module.interface.put_together import changed_parts, rebuilt
from untrace.module.interface.writing import Contents, Writer
from untrace.module.known_trees import Key, Trees, key_of, leaf_behind
from untrace.module.loops import of_calls
from untrace.module.loops.elements import Element
from untrace.python.names import base_of
from untrace.python.statements import Assign, Def, Lines, Parameter, Return, Statement, returned
from untrace.python.tree import Call, Expr, Leaf, Name, Symbol
from untrace.python.types import Type, array_type, ways_type

_LONGEST_RUN = 100


def write_calls(w: Writer, equations: Sequence[Equation], at: int, results: Sequence[Atom]) -> int:
    """Writes the call at place `at`, with those after it where they become a scan; gives how many that were."""
    equation = equations[at]
    if w.module.reroll:
        count = of_calls.run_length(equations, at)
        uses = of_calls.Uses(equations, results) if count > 1 else None
        # One list may end and another begin within a run of calls.
        for length in range(count, 1, -1) if count <= _LONGEST_RUN else (count,):
            scan = None if uses is None else _scan(w, equations[at : at + length], at, uses)
            if scan is not None:
                _mark(scan, equation)
                w.statements.extend(scan)
                return length
        w.note_unscanned(equations, at)
    before = len(w.statements)
    call = local_call(w, equation, [w.atom(a) for a in equation.inputs])
    if not result_trees.assign(w, equation, call):
        packed.assign(w, equation, call)
    _mark(w.statements[before:], equation)
    return 1


def _mark(statements: Sequence[Statement], equation: Equation) -> None:
    if callee_of(equation, Local).body.facts.backward:
        for statement in statements:
            statement.is_backward = True


def _scan(w: Writer, run: Sequence[Equation], start: int, uses: of_calls.Uses) -> list[Statement] | None:
    """A `lax.scan` for `for layer in layers: x = f(layer, x)`; None where the calls are no such loop."""
    carries = of_calls.carries_of(run, start, uses)
    body = callee_of(run[0], Local).body
    if not carries or body.facts.packed_results is not None or body in w.module.returned:
        return None
    atoms = [[w.atom(a) if i not in carries else None for i, a in enumerate(e.inputs)] for e in run]
    leaves = [[None if o is None else leaf_behind(o) for o in turn] for turn in atoms]
    layout = layout_of(w.module, body, leaves[0])
    found = [layout.trees(turn) for turn in leaves]
    trees = [t for t in found if t is not None]
    if len(trees) < len(found):
        return None
    order = argument_order(body, layout)
    elements: list[tuple[int, Element]] = []
    args: list[Expr | int | None] = []
    for i in order:
        turns = [t[-1 - i] for t in trees] if i < 0 else [t[i] for t in leaves]
        if i in carries:
            args.append(i)
        elif i >= 0 and all(e.inputs[i] is run[0].inputs[i] for e in run):
            args.append(atoms[0][i])
        elif len(parts := [t for t in turns if t is not None]) < len(turns):
            return None
        elif len({(t.root.id, t.steps) for t in parts}) == 1:
            args.append(parts[0])
        else:
            element = Element.of([(t.root, t.steps) for t in parts])
            if element is None:
                return None
            elements.append((len(args), element))
            args.append(None)
    name = _written(w, body, layout, order, leaves[0])
    args += [w.source(size) for size in w.module.sizes_of.get(body, ())]
    begin = [w.atom(run[0].inputs[place]) for place in carries]
    names = {place: _carry_name(w, run, place, output, start, uses) for place, output in carries.items()}
    by_output = {output: names[place] for place, output in carries.items()}
    for i, output in enumerate(run[-1].outputs):
        if output is not None:
            w.names[output] = _carried(by_output[i], output)
    targets = [by_output.get(i, "_") for i in range(len(run[-1].outputs))]
    marked = [(place, element, order[place] >= 0 and not element.below) for place, element in elements]
    return w.scan_of_calls(of_calls.Turns(name, args, marked, names, targets, begin, len(run)))


def _carry_name(w: Writer, run: Sequence[Equation], place: int, output: int, start: int, uses: of_calls.Uses) -> str:
    """The variable for a carry: that of the initial value where nothing else needs it."""
    initial = run[0].inputs[place]
    expr = w.atom(initial)
    leaf = leaf_behind(expr)
    whole = type(expr) is Name and w.scope.may_rebind(expr.id) and (leaf is None or not leaf.steps)
    if type(initial) is Value and type(expr) is Name and whole and not uses.after(initial, start):
        return expr.id
    hint = output_of(run[-1], output).hint or callee_of(run[0], Local).body.params[place].hint or "x"
    return w.scope.fresh(identifier(hint, "x"))


def _carried(name: str, output: Value | None) -> Name:
    """The variable of a carry, which its author calls as the last turn's result."""
    author = output.hint if output is not None and output.named else None
    return Name(name, Symbol(author=author and identifier(author, "x")))


def local_call(w: Writer, equation: Equation, operands: Sequence[Expr]) -> Expr:
    """The call of an equation whose callee is a Local function, which is written before the caller."""
    body = callee_of(equation, Local).body
    leaves = [leaf_behind(o) for o in operands]
    layout = layout_of(w.module, body, leaves)
    trees: Sequence[Expr] | None
    if body.facts.taken is not None:
        trees = _put_together(w, body, layout, operands)
    else:
        trees = known = layout.trees(leaves)
        for i, tree in enumerate(known or ()):
            if i not in layout.examples:
                layout.examples[i] = w.trees.node(tree)
    if trees is None and body.facts.author_trees:
        trees = _with_whole(w, equation, layout, operands)
    if trees is None and body.facts.taken is None:
        trees = _with_parts(w.trees, w.module.modules, layout, operands)
    if trees is None:  # another way of calling it than everywhere else: then with some leaves one by one
        layout = Layout([]) if body.facts.taken is not None else layout.fitting(leaves)
        trees = layout.trees(leaves) or []
        if body.facts.taken is None:
            w.module.unfit[body] = w.module.unfit.get(body, layout).fitting(leaves)
    order = argument_order(body, layout)
    name = _written(w, body, layout, order, leaves)
    w.module.called_from.setdefault(name, callee_of(equation, Local).frames)
    sizes = [w.source(s) for s in w.module.sizes_of.get(body, ())]
    call = Call(name, [*[trees[-1 - i] if i < 0 else operands[i] for i in order], *sizes])
    call.frames = callee_of(equation, Local).frames
    return call


def taking_trees(w: Writer, body: Function, operands: Sequence[Expr]) -> tuple[str, list[int], Layout, Sequence[Expr]]:
    """(the name of a function that `jax.checkpoint` marked, the order of its arguments as in `_order`, their layout, the tree
    for each of its packs) where trees can be passed; else of the function that takes these operands one by one."""
    leaves = [leaf_behind(o) for o in operands]
    layout = layout_of(w.module, body, leaves)
    trees = _put_together(w, body, layout, operands)
    if trees is None:
        layout, trees = Layout([]), []
    order = argument_order(body, layout)
    return _written(w, body, layout, order, leaves), order, layout, trees


def _put_together(w: Writer, body: Function, layout: Layout, operands: Sequence[Expr]) -> Sequence[Expr] | None:
    """The tree for each pack of a function that takes trees of its author's: one that has a name, else one of its leaves."""
    examples = {tuple(tree.places): tree.example for _, tree in body.facts.taken or ()}
    found = [examples[tuple(places)] for places, _ in layout.packs]
    if not all(map(is_simple, found)):
        leaves = [leaf_behind(o) for o in operands]
        trees = layout.trees(leaves)
        nodes = [w.trees.node(tree) for tree in trees or ()]
        whole = all(
            node is not None and len(jax.tree.leaves(node)) == len(places)
            for node, (places, _) in zip(nodes, layout.packs, strict=False)
        )
        return trees if whole else None
    return [
        rebuilt(w, example, [operands[p] for p in places])
        for example, (places, _) in zip(found, layout.packs, strict=True)
    ]


def _with_whole(w: Writer, equation: Equation, layout: Layout, operands: Sequence[Expr]) -> list[Expr] | None:
    """The tree for each pack of a function, where those without a name can be put together; with a name from now on where what
    comes after takes all of it again."""
    leaves = [leaf_behind(o) for o in operands]
    examples = {tree.places: (word, tree.example) for word, tree in callee_of(equation, Local).body.facts.author_trees}
    found: list[Expr] = []
    for number, (places, _) in enumerate(layout.packs):
        values = [equation.inputs[p] for p in places]
        tree = layout.tree(number, leaves)
        if tree is None and key_of(values) in w.trees.by_leaves:
            tree = w.trees.by_leaves[key_of(values)][0]
        if tree is None:
            if tuple(places) not in examples:
                return None
            word, example = examples[tuple(places)]
            tree = rebuilt(w, example, [operands[p] for p in places])
            if w.is_taken_later(key_of(values), _trees_taken):
                name = Name(w.scope.fresh(identifier(word, "tree")))
                w.statements.append(Assign([name.id], tree))
                w.trees.add(name, example, values)
                tree = name
        found.append(tree)
    return found


def _with_parts(known: Trees, modules: set[str], layout: Layout, operands: Sequence[Expr]) -> list[Expr] | None:
    """The tree for each pack of a function, where it is one that has a name but for some leaves: `state._replace(x=x)`."""
    leaves = [leaf_behind(o) for o in operands]
    found: list[Expr] = []
    for number, (places, ways) in enumerate(layout.packs):
        tree: Expr | None = layout.tree(number, leaves)
        if tree is None:
            tree = _changed(known, modules, layout.examples.get(number), ways, [operands[p] for p in places])
        if tree is None:
            return None
        found.append(tree)
    return found


def _changed(
    known: Trees, modules: set[str], example: PyTree, ways: Sequence[Way], values: Sequence[Expr]
) -> Expr | None:
    """A tree with other values at the end of these ways, one step long each; what else there is in it, nobody reads."""
    near: dict[tuple[str, tuple[Step, ...]], Leaf] = {}
    for way, value in zip(ways, values, strict=True):
        leaf = leaf_behind(value)
        if leaf is not None and leaf.steps[-1:] == way:
            near[leaf.root.id, leaf.steps[:-1]] = Leaf(leaf.root, leaf.steps[:-1])
    if len(near) > 1 or any(len(way) != 1 for way in ways):
        return None
    tree = next(iter(near.values()), None) or known.like(lambda other: type(other) is type(example))
    node = None if tree is None else known.node(tree)
    parts = node if type(node) is dict else parts_by_name(node)
    words = [step.strip("'\"") for ((_, step, _),) in ways]
    if tree is None or parts is None or not all(word in parts and word.isidentifier() for word in words):
        return None
    new = [
        (word, value)
        for word, way, value in zip(words, ways, values, strict=True)
        if (leaf := leaf_behind(value)) is None or leaf.root.id != tree.root.id or leaf.steps != (*tree.steps, *way)
    ]
    return changed_parts(tree, node, new, modules)


def _trees_taken(equation: Equation) -> list[Key]:
    """The trees that a map goes through, or a function of the author's takes."""
    callee = equation.callee
    if type(callee) is TreeMap:
        return [key_of(column) for column in callee.columns(equation.inputs)]
    trees = [tree.places for _, tree in callee.body.facts.author_trees] if type(callee) is Local else []
    return [key_of([equation.inputs[p] for p in places]) for places in trees]


def _written(w: Writer, body: Function, layout: Layout, order: Sequence[int], leaves: Sequence[Leaf | None]) -> str:
    """The name of the written function; that of another one with the same text where there is one.

    Functions that differ in types only (of another number of heads, say) are one function in Python.
    """
    module = w.module
    key = ("local", body, *[tuple(places) for places, _ in layout.packs])
    found = module.locals.get(key)
    if found is None:
        whole = {tree.places: tree.example for _, tree in body.facts.author_trees}
        trees = [layout.tree(number, leaves) for number in range(len(layout.packs))]
        examples = [
            whole.get(tuple(places)) if tree is None else w.trees.node(tree)
            for tree, (places, _) in zip(trees, layout.packs, strict=True)
        ]
        with module.values.in_words_of(()):  # where it is called from there may be some
            definition = _definition(module, body, layout, order, leaves, examples)
        hint = identifier(body.name, "fn")
        found = placed(module, definition, hint, lambda d: _describe(module, d, body, layout, order, examples))
        if body.facts.variadic:
            module.variadic.setdefault(found, body.facts.variadic)
        module.attributes.setdefault(found, body.facts.attributes)
        module.passed.setdefault(found, body.facts.passed)
        module.passed_as.setdefault(found, body.facts.passed_as)
        module.callees.setdefault(found, body.facts.callee)
        module.left.setdefault(found, _left(body, [p.name for p in definition.params]))
        for atom, word in body.facts.words:
            module.words.setdefault(module.text_of(atom), word)
        module.parts.setdefault(found, []).append(body.facts.parts)
        module.locals[key] = found
    return found


def _left(body: Function, names: Sequence[str]) -> tuple[str, ...]:
    """The author's parameters that may be numbers and are none of these; () where some of these are not his."""
    own = body.facts.author_parameters
    return tuple([word for word in body.facts.numbers if word not in names]) if set(names) <= set(own) else ()


def placed(module: Contents, definition: Def, hint: str, describe: Callable[[Def], object], name: str = "") -> str:
    """The name of a function that now stands in the module, or of one there that has the same text.

    `describe` gives it its docstring, which two functions of one text share. `name`: one that was taken for it.
    """
    definition.name = hint
    text = "\n".join(definition.lines(""))
    found = module.locals.get(text)
    if found is None:
        found = module.locals[text] = definition.name = name or module.scope.fresh_function(hint)
        module.definitions.append(definition)
        module.local_definitions[found] = definition
        describe(definition)
    else:
        if name:
            module.scope.give_back(name)
        describe(definition)
        module.described.shared(module.local_definitions[found], definition)
    return found


def _definition(
    module: Contents,
    body: Function,
    layout: Layout,
    order: Sequence[int],
    leaves: Sequence[Leaf | None],
    examples: Sequence[PyTree],
) -> Def:
    w = module.writer()
    params: list[Parameter] = []
    bound: list[tuple[Value, Leaf]] = []
    own = body.facts.author_parameters
    said = body.facts.said
    known_packs = grouping_of(body)
    names_packs = known_packs is not None and known_packs.names is not None
    functions = {body.name, *(e.callee.body.name for e in body.equations if type(e.callee) is Local)}
    packs: dict[int, Name] = {}
    for i in order:
        if i >= 0:
            leaf = leaves[i]
            hint = body.params[i].hint or "x"
            access = body.facts.accesses[i] if body.facts.accesses else None
            is_known = hint in own and (names_packs or access is not None) or body.params[i] in said
            if leaf is not None and leaf.steps and not is_known:
                hint = last_word(leaf)
            name_ = w.names[body.params[i]] = Name(w.scope.fresh(identifier(hint, "x")))
            is_own = hint in own and access is not None and access.is_whole
            params.append(Parameter(name_.id, is_own=is_own))
            if body.params[i] in said:
                _note_said(name_)
            continue
        places, ways = layout.packs[-1 - i]
        word = _pack_name(body, layout, layout.packs[-1 - i], leaves)
        if word in functions:  # parameters of a layer are not called like the function that applies them
            word = f"{word}_params"
        root = Name(w.scope.fresh(word))
        params.append(Parameter(root.id))
        packs[-1 - i] = root
        if examples[-1 - i] is not None:
            w.trees.add_parts(root, examples[-1 - i], {y: body.params[p] for p, y in zip(places, ways, strict=True)})
        root.symbol.leaves = len(places)
        for place, way in zip(places, ways, strict=True):
            bound.append((body.params[place], Leaf(root, way)))
    if body.facts.head:
        w.statements.append(Lines(f"# {body.facts.head}"))
    # A leaf is not called like the tree that it is a part of.
    known = [value for value, leaf in bound if value.hint in own and value.hint != leaf.root.id or value in said]
    author = {value: value.hint for value in known}
    _rename_after(body, bound)
    bind_leaves(
        w,
        bound,
        body.equations,
        body.results,
        lambda value, leaf: author.get(value) or last_word(leaf),
        frozenset(
            v for v, leaf in bound if v in author and author[v] != last_word(leaf) and not _has_key(v, leaf, own)
        ),
    )
    for value, _ in bound:
        if value in said and type(name := w.names[value]) is Name:
            _note_said(name)
    if w.sizes is not None:
        w.sized.extend(p for p in body.params if p not in w.sized)
        w.sizes.names = {**w.sizes.names, **body.facts.size_names}
        w.sizes.words = body.facts.size_words
        w.sizes.is_open = True
    w.packs = [packs[i] for i in range(len(layout.packs))]
    w.equations(body.equations, body.results)
    given = result_trees.returned(w, body) or packed.returned(w, body)
    if w.sizes is not None:
        params.extend(Parameter(n.id) for n in w.sizes.parameters.values())
        module.sizes_of[body] = tuple(w.sizes.parameters)
    if not body.facts.saved:  # a backward part may go into the function, where each result needs its name
        given = returned(w.statements, given, module.local_definitions)
    w.statements.append(Return(given))
    return Def("", params, w.statements)


def _has_key(value: Value, leaf: Leaf, own: Collection[str]) -> bool:
    """Whether the key of a leaf tells as much as the name that a library's code has for it: `state.mu["w"]`."""
    return value.hint not in own and not leaf.steps[-1][1].isdecimal()


def _note_said(name: Name) -> None:
    """A library's code calls it so: what that binds again can have the name."""
    name.symbol.library = name.id


def _rename_after(body: Function, bound: Sequence[tuple[Value, Leaf]]) -> None:
    """What is called after a leaf of the caller's tree is called after the leaf of the parameter: `d_dense_kernel`."""
    names = {}
    for value, leaf in bound:
        inside = "_".join([t.strip("'\"") for _, t, _ in leaf.steps])
        if value.hint and inside.isidentifier() and value.hint.endswith("_" + inside):
            names[value.hint] = inside
    for equation in body.equations if names else ():
        for output in equation.outputs:
            hint = output.hint if output is not None else None
            if output is None or hint is None or output.named:
                continue
            start = "d_" if hint.startswith("d_") else ""
            outside = next(
                (n for n in names if hint[len(start) :] == n or hint[len(start) :].startswith(n + "_")), None
            )
            if outside is not None:
                output.hint = start + names[outside] + hint[len(start) + len(outside) :]


def _describe(
    module: Contents, definition: Def, body: Function, layout: Layout, order: Sequence[int], examples: Sequence[PyTree]
) -> None:
    arguments = []
    for parameter, i in zip(definition.params, order, strict=False):  # sizes stand behind them
        if i >= 0:
            kind = array_type(body.params[i].aval)
        else:
            places, ways = layout.packs[-1 - i]
            kind = ways_type(ways, [body.params[place].aval for place in places], examples[-1 - i])
        arguments.append((parameter.name, kind))
    arguments += [(parameter.name, Type("array", "int")) for parameter in definition.params[len(order) :]]
    result = result_trees.result_type(module, body) or packed.result_type(body)
    module.described.describe(definition, arguments, result)


def _pack_name(body: Function, layout: Layout, pack: tuple[list[int], list[Way]], leaves: Sequence[Leaf | None]) -> str:
    """The author's parameter where there is one for it, the root's own name, or the word before the leaves."""
    if layout.names is not None:
        return identifier(layout.names[layout.packs.index(pack)], "params")
    own = author_root(body, pack[0]) or parameter_of_pack(body, layout)
    if own is not None:
        return identifier(own, "params")
    leaf = leaves[pack[0][0]]
    if leaf is None:  # the caller puts it together
        words = (word for word, tree in body.facts.author_trees if tree.places == tuple(pack[0]))
        return identifier(next(words, "params"), "params")
    above = Leaf(leaf.root, leaf.steps[: len(leaf.steps) - len(pack[1][0])])
    if len(layout.packs) == 1 and (above.steps or body.facts.calls > 1):
        return "state" if "state" in above.root.id else "params"
    word = last_word(above)
    return identifier(base_of(word) if body.facts.calls > 1 else word, "params")
