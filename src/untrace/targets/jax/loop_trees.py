"""Loops with the author's pytrees: `state, losses = lax.scan(step, state, batches)`, where a jaxpr has the leaves.

What the trees of a loop's functions are, the capture has noted (`capture/body_trees.py`). A tuple is taken apart as the
author did; of every other tree the leaves are written where they are used. Loops over single arrays and tuples of them
are written by `loops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from untrace._errors import UnsupportedPrimitiveError
from untrace._identifiers import identifier
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Cond, Equation, Function, Literal, Scan, Value
from untrace.ir.scans import closes_simply, same_weak_types, used_values
from untrace.ir.trees import BodyTrees, Tree
from untrace.lift.naming import parameters
from untrace.lift.naming.words import clean
from untrace.module.access_paths import last_word, reach
from untrace.module.grouping.bound_leaves import bind_leaves, own_uses
from untrace.module.interface.put_together import inner_nodes, is_readable, rebuilt
from untrace.module.library_calls import argument
from untrace.module.nested import Body, argument_words, hint_of, scan_options
from untrace.module.rules import WRITTEN, Whole
from untrace.provenance.sites import Provenance, names_by_part
from untrace.python.statements import Assign, Parameter, Unpacked, returned
from untrace.python.tree import Expr, Leaf, Name, Symbol, Text, Tuple

# What a scan's parameters say of how its operands are counted, or what is written anyway.
_KNOWN = frozenset({"num_consts", "num_carry", "ft_in", "ft_out", "linear", "jaxpr", "length", "reverse", "unroll"})


def trees_of(w: Any, body: Function) -> BodyTrees | None:
    """The trees of a function that is called or looped, where they say more than a tuple of leaves would, and can be
    written: what it takes by the function that `w` writes, and what it gives by itself."""
    found: BodyTrees | None = body.facts.trees
    if found is None:
        return None
    trees: BodyTrees = found
    outs = trees.out.parts() if type(trees.out.example) is tuple else [trees.out]
    every = [*trees.args, *outs]
    if not any(t.nested() for t in every) or not all(_is_reached(t.example) for t in every):
        return None

    def is_outside(accept: Callable[[Any], bool]) -> bool:
        return w.trees.like(accept) is not None

    def is_inside(accept: Callable[[Any], bool]) -> bool:
        return any(accept(node) for t in trees.args for node in inner_nodes(t.example)) or is_outside(accept)

    written = all(is_readable(t.example, is_outside) for t in trees.args) and all(
        is_readable(t.example, is_inside) for t in outs
    )
    results = sum(place >= 0 for place in trees.out.places)
    return trees if written and results == len(body.results) else None


def _is_reached(example: Any) -> bool:
    return jax.tree_util.all_leaves([example]) or reach(example, Name("x")) is not None


def scan(w: Any, operands: Sequence[Expr], jaxpr: Function, length: int, reverse: bool, unroll: int) -> Any:
    """`lax.scan` or `lax.map`; None where the trees are not known, or the public function makes another equation."""
    trees = trees_of(w, jaxpr)
    if trees is None or trees.kind != "scan" or len(trees.args) != 2 or len(trees.out.parts()) != 2:
        return None
    equation = w.equation
    carry, x = trees.args
    loop = callee_of(equation, Scan)
    consts, carries = loop.consts, loop.carries
    inputs = equation.inputs
    xs = inputs[consts + carries :]
    if any(v for k, v in equation.params.items() if k not in _KNOWN) or any(type(a) is Literal for a in xs):
        return None
    elements = set(jaxpr.params[consts + carries :])
    if any(r in elements for r in jaxpr.results[carries:]) or not _is_plain(equation, jaxpr, carry, consts, 0):
        return None
    plain_map = not carry.places and bool(xs) and not reverse and unroll == 1 and len(jaxpr.results) > 0
    written = _Written(w)
    body = _body(w, jaxpr, "one" if plain_map else "step", carry, consts, operands)
    used = used_values(jaxpr)
    if not plain_map:
        body.parameter(carry, True, used, "carry", "_" if xs else "_carry")
    body.parameter(x, False, used, "inputs")
    last, ys = trees.out.parts()
    try:
        body.equations()
        if plain_map:
            call = w.lax("map", body.finish(body.value(ys)), given(w, x, operands))
            return assign(w, [(ys, ())], jaxpr, call, "out")
        function = body.finish(Tuple([body.value(last), body.value(ys)]))
        kwargs = scan_options(None if xs else argument(w, length, ()), reverse, unroll)
        arguments = [given(w, carry, operands), *([given(w, x, operands)] if xs else [])]
        return assign(w, [(last, (0,)), (ys, (1,))], jaxpr, w.lax("scan", function, *arguments, **kwargs), body.word)
    except UnsupportedPrimitiveError:  # a tree that has no source form
        written.take_back()
        return None


def while_(w: Any, operands: Sequence[Expr], cond: Function, body: Function, cond_consts: int, body_consts: int) -> Any:
    """`lax.while_loop`; None as for `scan`."""
    trees = trees_of(w, body)
    if trees is None or trees.kind != "while_body" or len(trees.args) != 1:
        return None
    equation = w.equation
    state = trees.args[0]
    if (
        any(v is not None for v in equation.params.values())
        or not closes_simply(cond, cond_consts, equation.inputs)
        or not _is_plain(equation, body, state, body_consts, cond_consts)
    ):
        return None
    written = _Written(w)
    read = used_values(cond)
    # What the body only hands on, the condition does not read: JAX would have left it in the carry.
    seen = [cond.params[cond_consts + p - body_consts] if p >= body_consts else None for p in state.places]
    check = TreeBody(w, cond, "keep_going", zip(cond.params[:cond_consts], operands, strict=False))
    moved = _body(w, body, "body", state, body_consts, operands[cond_consts:])
    check.names = moved.names  # they are of one thing
    check.words = moved.words
    try:
        check.parameter(state, True, read, "state", "_", seen)
        check.equations()
        condition = check.finish(check.writer.atom(cond.results[0]))
        moved.parameter(state, True, used_values(body), "state", "_")
        moved.equations()
        function = moved.finish(moved.value(trees.out))
        init = given(w, state, operands[cond_consts:])
        return assign(
            w, [(trees.out, ())], body, w.lax("while_loop", condition, function, init), moved.word, cond_consts
        )
    except UnsupportedPrimitiveError:
        written.take_back()
        return None


def fori(
    w: Any,
    operands: Sequence[Expr],
    jaxpr: Function,
    step: Equation,
    bounds: Sequence[Expr],
    shift: int,
    consts: int,
    kwargs: dict[str, Any],
) -> Any:
    """`lax.fori_loop`; None where the trees are not known. `step` is the equation that counts.

    shift: how many operands the equation has before the constants of the body.
    """
    trees = trees_of(w, jaxpr)
    if trees is None or trees.kind != "fori_loop":
        return None
    counter, *_, state = trees.args[0].parts()
    out = trees.out if len(trees.args) == 1 else trees.out.parts()[0]
    last = out.parts()[-1]
    if not state.nested() or not _is_plain(w.equation, jaxpr, state, consts, shift):
        return None
    written = _Written(w)
    body = _body(w, jaxpr, "body", state, consts, operands[shift:])
    equations = [e for e in jaxpr.equations if e is not step]
    results = [r for r in map(body.atom_of, last.places) if type(r) is Value]
    used = used_values(Function(jaxpr.name, (), equations, results))
    try:
        body.parameter(counter, False, used, "i")
        body.parameter(state, True, used, "state", "_state")
        body.equations(equations, results)
        function = body.finish(body.value(last))
        call = w.lax("fori_loop", *bounds, function, given(w, state, operands[shift:]), **kwargs)
        return assign(w, [(last, ())], jaxpr, call, body.word, shift)
    except UnsupportedPrimitiveError:
        written.take_back()
        return None


def _is_plain(equation: Equation, body: Function, carry: Tree, consts: int, shift: int) -> bool:
    """Whether the constants that are not in the carry can be closed over, and the carry begins with its own types."""
    inputs = equation.inputs[shift:]
    inside = set(carry.places)
    closed = [i for i in range(consts) if i not in inside]
    function = Function(body.name, [body.params[i] for i in closed], body.equations, body.results)
    handed_on = [p for p in carry.places if p >= consts]
    if any(r is body.params[p] for r, p in zip(body.results, handed_on, strict=False)):
        return False  # JAX would have made a constant of it
    return closes_simply(function, len(closed), [inputs[i] for i in closed]) and same_weak_types(
        [inputs[p] for p in carry.places], [body.params[p] for p in carry.places]
    )


class _Written:
    """What a writer has written so far: it can be taken back to this."""

    def __init__(self, w: Any):
        self.w = w
        self.count = len(w.statements)

    def take_back(self) -> None:
        del self.w.statements[self.count :]


# ---------------------------------------------------------------- the function


def _body(w: Any, function: Function, fallback: str, carry: Tree, consts: int, operands: Sequence[Expr]) -> TreeBody:
    inside = set(carry.places)
    pairs = [
        (p, x) for i, (p, x) in enumerate(zip(function.params[:consts], operands, strict=False)) if i not in inside
    ]
    return TreeBody(w, function, fallback, pairs)


class TreeBody(Body):
    """A nested function that takes trees."""

    def __init__(self, w: Any, function: Function, fallback: str, closed: Any):
        super().__init__(w, function, fallback, closed)
        self.names = parameters.unpacked_names(function.jaxpr)
        self.is_known = parameters.has_source(function.jaxpr)
        self.words = argument_words(function, 0)
        self.leaves: list[tuple[Value, Leaf]] = []
        self.carry = ""
        self.is_carry = False  # what is bound now

    @property
    def word(self) -> str:
        """The name of the carry."""
        return self.carry.strip("_") or "carry"

    def root_of(self, tree: Tree) -> str:
        """What the author calls the parameter that a tree is, or is in; "" where that is not known."""
        roots = {self.words[p][0] for p in tree.places if p < len(self.words)}
        return roots.pop() if len(roots) == 1 else ""

    def atom_of(self, place: int) -> Any:
        """A result, or the parameter that stands for it."""
        return self.function.results[place] if place >= 0 else self.function.params[-1 - place]

    def parameter(  # pyrefly: ignore[bad-override]
        self,
        tree: Tree,
        is_carry: bool,
        used: set[Value],
        fallback: str,
        empty: str = "_",
        values: Sequence[Value | None] | None = None,
    ) -> None:
        """Adds one parameter: itself for a leaf, a tuple that is taken apart first, or a tree.

        `values`: those of the leaves, where they are not the function's parameters at these places.
        """
        if values is None:
            values = [self.function.params[p] for p in tree.places]
        self.types.append(None)
        self.is_carry = is_carry
        root = self.root_of(tree)
        self.params.append(Parameter(self._bind(tree, values, (root,), root or fallback, used, empty)))
        if is_carry:
            self.carry = self.params[-1].name

    def _bind(
        self, tree: Tree, values: Sequence[Value | None], path: parameters.Path, word: str, used: set[Value], empty: str
    ) -> str:
        """The variable that holds a tree: a new one."""
        inner = self.writer
        if not any(v in used for v in values):
            for value in values:
                if value is not None:
                    inner.names[value] = Name("_")
            return empty
        if tree.is_leaf:
            (value,) = values
            return inner.bind_parameter(value, word).id
        base = identifier(clean(word), "state")
        name = Name(inner.scope.fresh(base), Symbol(author=base))
        if not tree.nested() and self._comes_whole(values):
            found = reach(tree.example, name) or []
            self.leaves.extend((v, leaf) for v, leaf in zip(values, found, strict=True) if v is not None)
            if None not in values:
                inner.trees.add(name, tree.example, values)
            return name.id
        if self._is_unpacked(tree, path):
            at = len(inner.statements)
            inner.statements.append(None)
            bound = []
            place = 0
            for i, part in enumerate(tree.parts()):
                own = values[place : place + len(part.places)]
                place += len(part.places)
                step = (*path, i)
                word = self.names.get(step) or (self._leaf_word(part, own) if part.is_leaf else f"{name.id}_{i}")
                bound.append(self._bind(part, own, step, word, used, "_"))
            inner.statements[at] = Assign(bound, name)
            return name.id
        found = reach(tree.example, name) or []
        self.leaves.extend((v, leaf) for v, leaf in zip(values, found, strict=True) if v is not None)
        if None not in values:
            inner.trees.add(name, tree.example, values)
            inner.trees.arguments.update(values)
        return name.id

    def _comes_whole(self, values: Sequence[Value | None]) -> bool:
        """Whether a tuple is only handed on to calls that take all of it."""
        known = {
            v: Leaf(Name("whole"), (("item", str(i), len(values)),)) for i, v in enumerate(values) if v is not None
        }
        return not any(own_uses(self.writer.module, self.function, known).values())

    def _is_unpacked(self, tree: Tree, path: parameters.Path) -> bool:
        """Whether a tuple is taken apart: where the author did, one of leaves only, and a carry of unknown origin.

        A list is where the author did.
        """
        if type(tree.example) not in (tuple, list) or len(tree.example) < 2:
            return False
        by_author = any(name[:-1] == path for name in self.names)
        if type(tree.example) is list:
            return by_author
        return by_author or not tree.nested() or len(path) == 1 and self.is_carry and not self.is_known

    def _leaf_word(self, part: Tree, values: Sequence[Value | None]) -> str:
        return hint_of(*values) or self.words[part.places[0]][1] or "value"

    def equations(self, equations: Any = None, results: Any = None) -> None:
        equations = self.function.equations if equations is None else equations
        results = self.function.results if results is None else results

        def word(value: Value, leaf: Leaf) -> str:
            return value.hint if value.named and value.hint else last_word(leaf)

        start = len(self.writer.statements)
        bind_leaves(self.writer, self.leaves, equations, results, word)
        self.heads.extend(self.writer.statements[start:])
        self.writer.equations(equations, results)

    def finish(self, value: Expr) -> Expr:
        return super().finish(returned(self.writer.statements, value, self.writer.module.local_definitions))

    def value(self, tree: Tree) -> Expr:
        """What the function returns for a tree."""
        if not tree.places:
            return Text("None") if tree.example is None else rebuilt(self.writer, tree.example, [], True)
        atoms = [self.writer.atom(self.atom_of(p)) for p in tree.places]
        return atoms[0] if tree.is_leaf else rebuilt(self.writer, tree.example, atoms, True)


# ---------------------------------------------------------------- the call


def given(w: Any, tree: Tree, operands: Sequence[Expr], word: str = "") -> Expr:
    """The operands as a tree: one with these leaves that has a name, or one that is put together here.

    One that a later call takes again has a name from here on: `word`.
    """
    if not tree.places:
        return Text("None") if tree.example is None else rebuilt(w, tree.example, [], True)
    leaves = [operands[p] for p in tree.places]
    if tree.is_leaf:
        return leaves[0]
    atoms = [w.equation.inputs[len(w.equation.inputs) - len(operands) + p] for p in tree.places]
    key = (_key(atoms), jax.tree.structure(tree.example))
    known = w.put_together.get(key)
    if known is not None:
        return known
    made = rebuilt(w, tree.of([a.aval for a in atoms]).example, leaves, True)
    again = isinstance(made, Leaf) or not word or not tree.nested() or not w.is_taken_later(key, _taken_by)
    if again:
        return made
    name = w.put_together[key] = Name(w.scope.fresh(identifier(word, "tree")))
    w.statements.append(Assign([name.id], made))
    return name


def _key(atoms: Sequence[Any]) -> tuple[Any, ...]:
    """What tells operands apart: variables and arrays by identity, numbers by value."""
    return tuple([(repr(a.value), str(a.aval)) if type(a) is Literal else a for a in atoms])


def _taken_by(equation: Equation) -> Iterator[Any]:
    """The keys of the trees that a call takes."""
    body: Any = equation.parameters.get("jaxpr")
    trees = body.facts.trees if type(body) is Function else None
    if trees is not None and len(body.params) == len(equation.inputs):
        for tree in trees.args:
            yield _key([equation.inputs[p] for p in tree.places]), jax.tree.structure(tree.example)


def assign(
    w: Any,
    trees: Sequence[tuple[Tree, tuple[int, ...]]],
    body: Function,
    call: Expr,
    word: str,
    shift: int = 0,
    is_call: bool = False,
) -> Any:
    """Binds what comes back, each tree at its path: a name for each array, and for each tree in a tuple.

    word: what the first tree is called where the author has no name for it. is_call: of a function, which gives its results
    as a tuple.
    """
    first = trees[0][0]
    if len(trees) == 1 and first.is_leaf and first.places == (0,) and len(body.results) == 1:
        return Whole(call)
    equation = w.equation
    known = names_by_part(Provenance().site(equation.origin))
    names = {path: clean(t.name) for path, t in known.items()}
    outputs = equation.outputs[len(equation.outputs) - len(body.results) :]

    def value_of(place: int) -> Any:
        return outputs[place] if place >= 0 else equation.inputs[shift - 1 - place]

    def bind(tree: Tree, path: tuple[int, ...], word: str) -> Expr:
        values = [value_of(p) for p in tree.places]
        made = [p >= 0 and v is not None and w.is_read_later(v) for p, v in zip(tree.places, values, strict=True)]
        if not any(made):
            return Name("_")
        if tree.is_leaf:
            return Name(w._target(values[0], word))
        apart = any(name[: len(path)] == path and len(name) > len(path) for name in names)
        apart = apart or type(tree.example) is tuple and (not tree.nested() or not path and is_call)
        if type(tree.example) in (tuple, list) and len(tree.example) > 1 and apart and path not in names:
            return Tuple([bind(part, (*path, i), words(part, (*path, i))) for i, part in enumerate(tree.parts())])
        base = identifier(names.get(path) or word, "out")
        root = Name(w.scope.fresh(base), Symbol(author=base if path in known and not known[path].library else None))
        leaves = reach(tree.example, root) or []
        rows = [(v, leaf) for v, leaf, p in zip(values, leaves, tree.places, strict=True) if p < 0]
        is_plain = type(tree.example) in (tuple, list)
        handed_on = [type(w.names.get(v)) is Leaf or not is_plain or len(leaf.steps) > 1 for v, leaf in rows]
        moves = all(handed_on) and type(equation.callee) is Cond  # what is handed on is part of this tree from now on
        for value, leaf, place, is_made in zip(values, leaves, tree.places, made, strict=True):
            if is_made or moves and place < 0:
                w.names[value] = leaf
        if all(type(v) is Value for v in values):
            w.trees.add(root, tree.of([v.aval for v in values]).example, values)
        return root

    def words(tree: Tree, path: tuple[int, ...]) -> str:
        if path in names:
            return names[path]
        if not path or path == (0,) and len(trees) == 2:
            return word
        return "ys" if path[:1] == (1,) else "out"

    targets_: list[Any] = [bind(tree, path, words(tree, path)) for tree, path in trees]
    if len(targets_) == 1 and type(targets_[0]) is Tuple:
        targets_ = list(targets_[0].elements)
    bound = [t.id if type(t) is Name else t for t in targets_]
    if all(b == "_" for b in bound):
        bound = []
    plain = bound and "_" not in bound and all(type(b) is str for b in bound)
    w.statements.append((Unpacked if plain else Assign)(bound, call, equation.origin))
    w._note_folded(equation)
    return WRITTEN
