"""Functions of loops with the author's pytrees: `state, losses = lax.scan(step, state, batches)`, where a jaxpr has leaves.

What the trees of a loop's functions are, the capture has noted (`capture/body_trees.py`). A tuple is taken apart as the
author did; of every other tree the leaves are written where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import jax

from untrace._identifiers import identifier
from untrace.ir.nodes import Atom, Cond, Equation, Function, Literal, Value
from untrace.ir.trees import BodyTrees, Tree
from untrace.lift.naming import parameters
from untrace.lift.naming.words import clean
from untrace.module.access_paths import last_word, reach
from untrace.module.grouping.bound_leaves import bind_leaves, own_uses
from untrace.module.interface.put_together import inner_nodes, is_readable, rebuilt
from untrace.module.nested import Body, argument_words, hint_of
from untrace.module.rules import WRITTEN, Whole
from untrace.provenance.sites import Provenance, names_by_part
from untrace.python.statements import Assign, Parameter, Unpacked, returned
from untrace.python.tree import Expr, Leaf, Name, Symbol, Text, Tuple

# What a parameter is called that is handed from one iteration to the next.
CARRIED = ("carry", "state")


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


# ---------------------------------------------------------------- the function


class LoopBody(Body):
    """A nested function that takes trees: None, an array and a tuple of arrays are some. `consts`: how many of its parameters
    it closes over; `operands`: what the loop gets for all of them; `shift`: how many operands the loop has before these."""

    def __init__(
        self,
        w: Any,
        function: Function,
        fallback: str,
        closed: Iterable[tuple[Value, Expr]],
        consts: int = 0,
        operands: Sequence[Expr] = (),
        shift: int = 0,
    ):
        super().__init__(w, function, fallback, closed)
        self.consts, self.operands, self.shift = consts, operands, shift
        self.words = argument_words(function, 0)
        self.model = self  # the function whose places and names are meant
        self.leaves: list[tuple[Value, Leaf]] = []  # of trees that it takes

    def beside(self, function: Function, fallback: str, consts: int, operands: Sequence[Expr]) -> Self:
        """Another function, which takes the same and calls it the same."""
        closed = zip(function.params[:consts], operands, strict=False)
        other = type(self)(self.outer, function, fallback, closed, consts)
        other.model = self
        return other

    def value_of(self, place: int) -> Value | None:
        """The parameter for what the model has at this place; None for what it closes over and this function lacks."""
        if self.model is self:
            return self.function.params[place]
        return self.function.params[place - self.model.consts + self.consts] if place >= self.model.consts else None

    def bind(self, tree: Tree, path: parameters.Path, word: str, used: set[Value], empty: str = "_") -> str:
        """The variable that holds a tree: a new one."""
        inner = self.writer
        values = [self.value_of(p) for p in tree.places]
        if not any(v in used for v in values):
            inner.names.update((v, Name("_")) for v in values if v is not None)
            return empty
        if tree.is_leaf:
            value = values[0]
            assert value is not None  # it is used
            return inner.bind_parameter(value, word).id
        base = identifier(clean(word), "state")
        name = Name(inner.scope.fresh(base), Symbol(author=base))
        elements = self.elements(tree, path)
        if elements:
            at = len(inner.statements)
            inner.statements.append(Assign((), name))  # in its place for now
            bound = [
                self.bind(part, (*path, i), word or f"{name.id}_{i}", used) for i, (part, word) in enumerate(elements)
            ]
            inner.statements[at] = Assign(bound, name)
            return name.id
        found = reach(tree.example, name) or []
        self.leaves.extend((v, leaf) for v, leaf in zip(values, found, strict=True) if v is not None)
        if None not in values:
            inner.trees.add(name, tree.example, values)
            if tree.nested():
                inner.trees.arguments.update(values)
        return name.id

    def elements(self, tree: Tree, path: parameters.Path) -> list[tuple[Tree, str]]:
        """The elements of a tree that is taken apart, with what they are called, "" where nothing says it; none of a tree
        that is not."""
        raise NotImplementedError

    def equations(self, equations: Sequence[Equation] | None = None, results: Sequence[Atom] | None = None) -> None:
        """Writes what the function does: all of it, or these equations for these results."""
        equations = self.function.equations if equations is None else equations
        results = self.function.results if results is None else results
        self.name_leaves(equations, results)
        self.writer.equations(equations, results)

    def name_leaves(self, equations: Sequence[Equation], results: Sequence[Atom]) -> None:
        """Writes names for leaves of trees that these equations read several times."""

        def word(value: Value, leaf: Leaf) -> str:
            return value.hint if value.named and value.hint else last_word(leaf)

        if self.leaves:
            start = len(self.writer.statements)
            bind_leaves(self.writer, self.leaves, equations, results, word)
            self.heads.extend(self.writer.statements[start:])


class TreeBody(LoopBody):
    """A nested function that takes the author's trees."""

    def __init__(self, w: Any, function: Function, *args: Any):
        super().__init__(w, function, *args)
        self.own_names = parameters.unpacked_names(function.jaxpr)
        self.is_known = parameters.has_source(function.jaxpr)
        self.word = "out"  # for the first result
        self.is_carry = False  # what is bound now

    def root_of(self, tree: Tree) -> str:
        """What the author calls the parameter that a tree is, or is in; "" where that is not known."""
        words = self.model.words
        roots = {words[p][0] for p in tree.places if p < len(words)}
        return roots.pop() if len(roots) == 1 else ""

    def atom_of(self, place: int) -> Any:
        """A result, or the parameter that stands for it."""
        return self.function.results[place] if place >= 0 else self.function.params[-1 - place]

    def take(self, tree: Tree, role: str, used: set[Value], empty: str = "_") -> None:
        """Adds one parameter: itself for a leaf, a tuple that is taken apart first, or a tree.

        role: what it is called where the author's name is not known. empty: its name where nothing uses it.
        """
        self.types.append(None)
        self.is_carry = role in CARRIED
        root = self.root_of(tree)
        self.params.append(Parameter(self.bind(tree, (root,), root or role, used, empty)))
        if self.is_carry:
            self.word = self.params[-1].name.strip("_") or "carry"

    def _comes_whole(self, values: Sequence[Value | None]) -> bool:
        """Whether a tuple is only handed on to calls that take all of it."""
        known = {
            v: Leaf(Name("whole"), (("item", str(i), len(values)),)) for i, v in enumerate(values) if v is not None
        }
        return not any(own_uses(self.writer.module, self.function, known).values())

    def elements(self, tree: Tree, path: parameters.Path) -> list[tuple[Tree, str]]:
        """Taken apart is what the author did, a tuple of leaves that is no whole, and a carry of unknown origin."""
        names = self.model.own_names
        is_tuple = type(tree.example) is tuple and len(tree.example) > 1
        is_flat = is_tuple and not tree.nested()
        if is_flat and self._comes_whole([self.value_of(p) for p in tree.places]):
            return []
        by_author = type(tree.example) in (tuple, list) and len(tree.example) > 1 and any(n[:-1] == path for n in names)
        if by_author or is_flat or is_tuple and len(path) == 1 and self.is_carry and not self.is_known:
            parts = list(enumerate(tree.parts()))
            return [(part, names.get((*path, i)) or self._leaf_word(part)) for i, part in parts]
        return []

    def _leaf_word(self, part: Tree) -> str:
        if not part.is_leaf:
            return ""
        (place,) = part.places
        return hint_of(self.value_of(place)) or self.model.words[place][1] or "value"

    def finish(self, value: Expr) -> Expr:
        return super().finish(returned(self.writer.statements, value, self.writer.module.local_definitions))

    def value(self, tree: Tree) -> Expr:
        """What the function returns for a tree."""
        if not tree.places:
            return Text("None") if tree.example is None else rebuilt(self.writer, tree.example, [], True)
        atoms = [self.writer.atom(self.atom_of(p)) for p in tree.places]
        return atoms[0] if tree.is_leaf else rebuilt(self.writer, tree.example, atoms, True)

    def given(self, tree: Tree) -> Expr:
        """What the loop is given for a parameter."""
        return given(self.outer, tree, self.operands)

    def bound(self, call: Expr, trees: Sequence[Tree]) -> Any:
        """What the rule of the primitive gives: the call, whose results are bound as these trees."""
        paths: list[tuple[int, ...]] = [()] if len(trees) == 1 else [(i,) for i in range(len(trees))]
        return assign(self.outer, list(zip(trees, paths, strict=True)), self.function, call, self.word, self.shift)


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


def _is_as_bound(example: Any, target: Expr) -> bool:
    """Whether what is unpacked into a target is, put together again as it says, the same."""
    if type(target) is Tuple:
        return type(example) is tuple and all(map(_is_as_bound, example, target.elements))
    return target.flat() != "_"


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
        fields = [(v, leaf) for v, leaf in rows if leaf.steps and leaf.steps[-1][0] == "attribute"]
        w.trees.handed_on.update({leaf.flat(): w.atom(v).flat() for v, leaf in fields})
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
    plain = all(_is_as_bound(tree.example, target) for (tree, _), target in zip(trees, targets_, strict=True))
    if len(targets_) == 1 and type(targets_[0]) is Tuple:
        targets_ = list(targets_[0].elements)
    bound = [t.id if type(t) is Name else t for t in targets_]
    if all(b == "_" for b in bound):
        bound = []
    w.statements.append((Unpacked if bound and plain else Assign)(bound, call, equation.origin))
    w._note_folded(equation)
    return WRITTEN
