"""The pytrees of loops and jitted functions: what the author's `step(state, batch)` takes and gives.

A jaxpr keeps the leaves. JAX traces such a body on pytrees, which are noted while a program is traced (`noted_bodies`), and
found again by the names that JAX gives to the leaves (`state.params['w']`). What the body of a loop hands on unchanged JAX
takes out of the carry: it is a leaf of the tree all the same.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from untrace import jax_compat
from untrace.capture.filtered_bodies import FilteredCall, filtered_call
from untrace.ir.calls import is_derivative, signature_of
from untrace.ir.nodes import Equation, Function, Program, functions_in, walk_functions

# The functions that a loop has, by primitive.
_BODIES = {
    "scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "jit": ("jaxpr",), "pjit": ("jaxpr",), "cond": ("branches",),
    "checkpoint": ("jaxpr",), "remat2": ("jaxpr",), "remat": ("jaxpr",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tree:
    """A pytree with any leaves, and where they are: places among a function's parameters, or its results.

    Of a result, `-1 - i` stands for parameter i, which the loop only hands on.
    """

    example: Any
    places: tuple[int, ...]

    def of(self, leaves: Sequence[Any]) -> Tree:
        """The same tree with other leaves."""
        return Tree(jax.tree.unflatten(jax.tree.structure(self.example), leaves), self.places)

    @property
    def is_leaf(self) -> bool:
        return jax.tree_util.all_leaves([self.example])

    def parts(self) -> list[Tree]:
        """The elements of a tuple."""
        found, place = [], 0
        for part in self.example:
            count = len(jax.tree.leaves(part))
            found.append(Tree(part, self.places[place : place + count]))
            place += count
        return found

    def nested(self) -> bool:
        """Whether it is more than a leaf, or a tuple of leaves."""
        if self.is_leaf or self.example is None:
            return False
        parts = list(self.example) if type(self.example) is tuple else None
        return parts is None or not jax.tree_util.all_leaves([p for p in parts if p is not None])


@dataclass(frozen=True, slots=True)
class BodyTrees:
    """The trees of one body: its arguments and its result. kind: what JAX traced it for (scan, while_body, fori_loop).

    names, place: those of the arguments, and where the function is defined, where JAX traced another one for it.
    """

    kind: str
    args: tuple[Tree, ...]
    out: Tree
    names: tuple[str, ...] = ()
    place: str | None = None

    def typed(self, body: Function) -> BodyTrees:
        """The same with the types of this very body for leaves: it may have been batched."""

        def typed(tree: Tree) -> Tree:
            atoms = [body.results[p] if p >= 0 else body.params[-1 - p] for p in tree.places]
            return tree.of([a.aval for a in atoms])

        args = [tree.of([body.params[p].aval for p in tree.places]) for tree in self.args]
        return replace(self, args=tuple(args), out=typed(self.out))

    def paths(self, count: int) -> tuple[list[str], list[str]]:
        """The paths of `count` inputs, and those of the results, by `names`."""
        inputs = [""] * count
        for name, tree in zip(self.names, self.args, strict=True):
            for way, place in zip(_ways(tree.example), tree.places, strict=True):
                inputs[place] = name + way
        return inputs, ["result" + way for way in _ways(self.out.example)]

    def whole(self) -> list[int]:
        """The places of the leaves that come as parts of a tree, where any such argument is more than a tuple of leaves."""
        nested = any(tree.nested() for tree in self.args)
        return [p for tree in self.args if nested and not tree.is_leaf for p in tree.places]

    def subtrees(self) -> list[Tree]:
        """The arguments that are more than a leaf; the elements of those that are tuples."""
        split = [p for tree in self.args for p in (tree.parts() if type(tree.example) is tuple else [tree])]
        return [tree for tree in split if len(tree.places) > 1]


class Bodies:
    """What was noted of the functions that were traced, by the function and the names of its leaves."""

    def __init__(self) -> None:
        self._found: dict[Any, list[tuple[Any, ...]]] = {}

    def note(self, closed: Any, args: Any, out: Any) -> None:
        names = jax_compat.body_names(closed)
        if names is not None:
            where, inputs, results = names
            if results is None:
                return
            entries = self._found.setdefault(where, [])
            if (inputs, results) not in [e[:2] for e in entries]:
                entries.append((inputs, results, args, out))

    def knows(self, closed: Any) -> bool:
        """Whether something was noted of the function that a jaxpr is of, or JAX itself keeps no names for it."""
        names = jax_compat.body_names(closed)
        return names is None or names[0] in self._found

    def trees(self, closed: Any) -> BodyTrees | None:
        """The trees of a loop's body; None where they are not known, or do not fit."""
        names = jax_compat.body_names(closed)
        if names is None:
            return None
        where, inputs, results = names
        count = len(jax_compat.open_jaxpr(closed)[0].outvars)
        for known_inputs, known_results, args, out in self._found.get(where, ()):
            places = _places(known_inputs, inputs)
            if places is None:
                continue
            (positional, keywords), result = args(), out()
            filtered = filtered_call(positional)
            if filtered is not None:
                trees = _filtered(filtered, places, known_results, results, count, result)
                if trees is not None:
                    return trees
                continue
            positional = [a for a in positional if not _is_static(a)]
            sizes = [len(jax.tree.leaves(a)) for a in positional]
            if keywords or sum(sizes) != len(places):
                continue
            carry = places[: sizes[0]] if sizes and where[0] in ("scan", "while_body", "fori_loop") else ()
            made = _result_places(known_results, results, count, carry)
            if made is None or len(jax.tree.leaves(result)) != len(made):
                continue
            starts = [sum(sizes[:i]) for i in range(len(sizes))]
            found = [Tree(a, places[s : s + n]) for a, s, n in zip(positional, starts, sizes, strict=True)]
            return BodyTrees(where[0], tuple(found), Tree(result, made))
        return None


def _filtered(
    call: FilteredCall,
    places: Sequence[int],
    known: Sequence[str],
    names: Sequence[str] | None,
    count: int,
    result: Any,
) -> BodyTrees | None:
    """The trees of what `filter_jit` called. Its marker, which comes first of the results, nobody reads."""
    made = _result_places(known[1:], names, count, ())
    if made is None or len(jax.tree.leaves(result[1])) != len(made):
        return None
    args = [Tree(tree, tuple([places[i] for i in own])) for _, tree, own in call.arguments]
    return BodyTrees("jit", tuple(args), Tree(result[1], made), tuple([n for n, _, _ in call.arguments]), call.place)


def _ways(example: Any) -> list[str]:
    return [jax.tree_util.keystr(way) for way, _ in jax.tree_util.tree_leaves_with_path(example)]


def _is_static(argument: Any) -> bool:
    """Whether an argument was given to `jit` as it is."""
    leaves = jax.tree.leaves(argument)
    return bool(leaves) and not any(hasattr(leaf, "dtype") for leaf in leaves)


def _places(known: Sequence[str], names: Sequence[str]) -> tuple[int, ...] | None:
    """Where the leaves of the arguments are among the inputs of a jaxpr: at its end in their order, but for those that
    became constants, which are before them."""
    for moved in range(len(known) + 1):
        start = len(names) - (len(known) - moved)
        places = _aligned(known, names, start) if start >= moved else None
        if places is not None:
            return places
    return None


def _aligned(known: Sequence[str], names: Sequence[str], start: int) -> tuple[int, ...] | None:
    """`_places`, where those in their order are `names[start:]`."""
    constants = list(names[:start])
    found: list[int] = []
    at = start
    for name in known:
        if at < len(names) and names[at] == name:
            found.append(at)
            at += 1
        elif name and constants.count(name) == 1:
            found.append(constants.index(name))
        else:
            return None
    return tuple(found) if at == len(names) and len(set(found)) == len(found) else None


def _result_places(
    known: Sequence[str], names: Sequence[str] | None, count: int, carry: Sequence[int]
) -> tuple[int, ...] | None:
    """Where the leaves of the result are among the `count` outputs of a jaxpr; a carry that became a constant is an input.

    carry: the places of the leaves of the carry, which are the first of the result as well.
    """
    if names is None:  # of a batched loop: all that it had
        return tuple(range(len(known))) if count == len(known) else None
    if tuple(known) == tuple(names):
        return tuple(range(len(names)))
    if len(set(known)) < len(known):
        return None
    by_name = {name: i for i, name in enumerate(names)}
    found = [
        by_name[name] if name in by_name else -1 - carry[i] if i < len(carry) else None for i, name in enumerate(known)
    ]
    places = [place for place in found if place is not None]
    return tuple(places) if len(places) == len(found) else None


@contextlib.contextmanager
def noted_bodies(bodies: Bodies) -> Iterator[None]:
    """While the context is open, the pytrees of functions that are traced go to `bodies`."""
    with jax_compat.intercepted_bodies(bodies.note):
        yield


def has_unknown_loops(closed: Any, bodies: Bodies) -> bool:
    """Whether a program has a loop whose function JAX had traced before: nothing was noted of it."""
    found = [e for e in jax_compat.equations_in(closed) if e.primitive.name in _BODIES]
    every = [body for eqn in found for body in jax_compat.jaxprs_in(eqn)]
    # JAX's own functions take arrays one by one.
    return not all(bodies.knows(body) or jax_compat.is_library_jaxpr(body) for body in every)


def note_trees(program: Program, bodies: Bodies) -> None:
    """Puts the trees of loops, branches, jitted and differentiated functions into their `extra`."""
    for function in walk_functions(program.entry):
        for equation in function.equations:
            if is_derivative(equation):
                body = equation.params["jaxpr"]
                body.extra["trees"] = _of_signature(signature_of(equation)).typed(body)
    for body, _ in _bodies_in(program):
        marked, _ = body.extra.get("transposed", (None, None))
        taken = bodies.trees(marked.jaxpr) if marked is not None else None
        if taken is not None:
            names = jax_compat.argument_names(marked.jaxpr) or [""] * len(marked.params)
            marked.extra["taken"] = [(_root(names, tree), tree) for tree in taken.typed(marked).args]
        trees = bodies.trees(body.jaxpr) if body.jaxpr is not None else None
        if trees is not None:
            body.extra["trees"] = trees.typed(body)
            if trees.place is not None:
                body.jaxpr = jax_compat.with_names(body.jaxpr, trees.place, *trees.paths(len(body.params)))


def _of_signature(signature: Any) -> BodyTrees:
    """The trees of a function that is differentiated: what it closes over comes first."""
    found, place = [], signature.closed
    args, kwargs = signature.args
    for example in (*args, *[kwargs[k] for k in sorted(kwargs)]):
        count = len(jax.tree.leaves(example))
        found.append(Tree(example, tuple(range(place, place + count))))
        place += count
    return BodyTrees("derivative", tuple(found), Tree(signature.out, tuple(range(len(jax.tree.leaves(signature.out))))))


def _root(names: Sequence[str], tree: Tree) -> str:
    """What the author calls the argument that a tree is: `layer` of `layer['w']`; "" where the leaves do not agree."""
    found = {re.split(r"\W", names[place], maxsplit=1)[0] for place in tree.places}
    return found.pop() if len(found) == 1 else ""


def forget_trees(program: Program, refused: Container[int] | None = None) -> None:
    """Takes the trees away from equations that were wrong with them, by id; from all where none are named."""
    for body, equation in _bodies_in(program):
        if refused is None or id(equation.origin) in refused:
            body.extra.pop("trees", None)


def has_trees(program: Program) -> bool:
    return any("trees" in body.extra for body, _ in _bodies_in(program))


def _bodies_in(program: Program) -> Iterator[tuple[Function, Equation]]:
    for function in walk_functions(program.entry):
        for equation in function.equations:
            for key in _BODIES.get(equation.callee.name, ()):
                for body in functions_in(equation.params.get(key)):
                    yield body, equation
