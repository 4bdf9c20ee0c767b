"""The pytrees of loops and jitted functions: what the author's `step(state, batch)` takes and gives.

A jaxpr keeps the leaves. JAX traces such a body on pytrees, which are noted while a program is traced (`noted_bodies`), and
found again by the names that JAX gives to the leaves (`state.params['w']`). What the body of a loop hands on unchanged JAX
takes out of the carry, and what all branches do out of their results: it is a leaf of the tree all the same.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax

from untrace import jax_compat
from untrace.capture.filtered_bodies import FilteredCall, filtered_call
from untrace.ir.bodies import CALLS, bodies_in
from untrace.ir.nodes import Cond, Function, Program, functions_called, walk_functions
from untrace.ir.signatures import DerivativeSignature
from untrace.ir.structured import derivative_in
from untrace.ir.trees import BodyTrees, Tree

_LOOPS = frozenset({"scan", "while", "cond"})  # and branches
_BRANCHES = frozenset({"cond", "switch"})  # what JAX traces them for


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
                entries.append((inputs, results, args, out, _handed_on(closed)))

    def knows(self, closed: Any) -> bool:
        """Whether something was noted of the function that a jaxpr is of, or JAX itself keeps no names for it."""
        names = jax_compat.body_names(closed)
        return names is None or names[0] in self._found

    def trees(self, closed: Any) -> BodyTrees | None:
        """The trees of a loop's body; None where they are not known, or do not fit."""
        names = jax_compat.body_names(closed)
        if names is None:
            return self._of_branch(closed)
        where, inputs, results = names
        count = len(jax_compat.open_jaxpr(closed)[0].outvars)
        for known_inputs, known_results, args, out, handed_on in self._found.get(where, ()):
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
            keywords = {key: a for key, a in keywords.items() if jax.tree.leaves(a) and not _is_static(a)}
            sizes = [len(jax.tree.leaves(a)) for a in positional]
            if keywords or sum(sizes) != len(places):
                continue
            carry: Sequence[int | None] = ()
            if sizes and where[0] in ("scan", "while_body", "fori_loop"):
                carry = places[: sizes[0]]
            elif where[0] in _BRANCHES and len(handed_on) == len(known_results):
                carry = [None if i is None else places[i] for i in handed_on]
            made = _result_places(known_results, results, count, carry)
            if made is None or len(jax.tree.leaves(result)) != len(made):
                continue
            if where[0] in _BRANCHES and sum(place >= 0 for place in made) != count:
                continue  # it is another function of the same line
            return _body_trees(where[0], positional, places, Tree(result, made))
        return None

    def _of_branch(self, closed: Any) -> BodyTrees | None:
        """The trees of a branch of which JAX keeps no names, since another one closes over more."""
        where = jax_compat.body_place(closed)
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        if where is None or where[0] not in _BRANCHES:
            return None
        for known_inputs, known_results, args, out, handed_on in self._found.get(where, ()):
            (positional, _), result = args(), out()
            leaves = jax.tree.leaves(positional)
            start = len(jaxpr.invars) - len(leaves)
            own = [v.aval for v in jaxpr.invars[start:]] if start >= 0 else []
            if [(a.shape, a.dtype) for a in own] != [(a.shape, a.dtype) for a in leaves] or len(handed_on) == 0:
                continue
            gone = len(known_results) - len(jaxpr.outvars)
            if gone not in (0, sum(i is not None for i in handed_on)):
                continue  # which of them all the branches hand on this one does not say
            places = tuple(range(start, len(jaxpr.invars)))
            rest = iter(range(len(jaxpr.outvars)))
            made = [next(rest) if i is None or not gone else -1 - places[i] for i in handed_on]
            trees = _body_trees(where[0], positional, places, Tree(result, tuple(made)))
            return _named(trees, [*[""] * start, *known_inputs], where[1])
        return None


def _named(trees: BodyTrees, names: Sequence[str], place: str) -> BodyTrees:
    """The trees with what the author calls the arguments that have their leaves, by the names of all inputs."""
    return replace(trees, names=tuple([_root(names, tree) for tree in trees.args]), place=place)


def _body_trees(kind: str, positional: Sequence[Any], places: Sequence[int], out: Tree) -> BodyTrees:
    """The trees of a function of which the leaves of the arguments are at `places`, in their order."""
    found, start = [], 0
    for argument in positional:
        count = len(jax.tree.leaves(argument))
        found.append(Tree(argument, tuple(places[start : start + count])))
        start += count
    return BodyTrees(kind, tuple(found), out)


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


def _handed_on(closed: Any) -> list[int | None]:
    """Which of its inputs each result of a jaxpr is; None for the others."""
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    places = {v: i for i, v in enumerate(jaxpr.invars)}
    return [None if type(v) is jax_compat.LITERAL_TYPE else places.get(v) for v in jaxpr.outvars]


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
    known: Sequence[str], names: Sequence[str] | None, count: int, carry: Sequence[int | None]
) -> tuple[int, ...] | None:
    """Where the leaves of the result are among the `count` outputs of a jaxpr. What is only handed on is an input: the carry
    of a loop that became a constant, and what all branches give back as they get it.

    carry: the places of the inputs that the first leaves of the result may be; None for what is none.
    """
    if names is None:  # of a batched loop: all that it had
        return tuple(range(len(known))) if count == len(known) else None
    if tuple(known) == tuple(names):
        return tuple(range(len(names)))
    if len(set(known)) < len(known):
        return None
    by_name = {name: i for i, name in enumerate(names)}
    found: list[int | None] = []
    for i, name in enumerate(known):
        place = carry[i] if i < len(carry) else None
        found.append(by_name[name] if name in by_name else None if place is None else -1 - place)
    places = [place for place in found if place is not None]
    return tuple(places) if len(places) == len(found) else None


@contextlib.contextmanager
def noted_bodies(bodies: Bodies) -> Iterator[None]:
    """While the context is open, the pytrees of functions that are traced go to `bodies`."""
    with jax_compat.intercepted_bodies(bodies.note):
        yield


def has_unknown_loops(closed: Any, bodies: Bodies) -> bool:
    """Whether a program has a loop whose function JAX had traced before: nothing was noted of it."""
    found = [e for e in jax_compat.equations_in(closed) if e.primitive.name in _LOOPS or e.primitive.name in CALLS]
    every = [body for eqn in found for body in jax_compat.jaxprs_in(eqn)]
    # JAX's own functions take arrays one by one.
    return not all(bodies.knows(body) or jax_compat.is_library_jaxpr(body) for body in every)


def note_trees(program: Program, bodies: Bodies) -> None:
    """Notes the trees of loops, branches, jitted and differentiated functions, and those that marked functions take."""
    for function in walk_functions(program.entry):
        for equation in function.equations:
            derivative = derivative_in(equation.callee)
            if derivative is not None:
                (body,) = functions_called(equation)
                _note(body, _of_signature(derivative.signature))
    for body, equation in bodies_in(program):
        marked = body.transposed[0] if body.transposed is not None else None
        taken = bodies.trees(marked.jaxpr) if marked is not None else None
        if marked is not None and taken is not None:
            names = jax_compat.argument_names(marked.jaxpr) or [""] * len(marked.params)
            args = taken.typed(marked.params, marked.results).args
            marked.facts = replace(marked.facts, taken=[(_root(names, tree), tree) for tree in args])
        trees = bodies.trees(body.jaxpr) if body.jaxpr is not None else None
        if trees is None and type(equation.callee) is Cond:
            trees = _of_another_branch(body, equation.callee.branches, bodies)
        if trees is not None:
            _note(body, trees)
            if trees.place is not None:
                body.jaxpr = jax_compat.with_names(body.jaxpr, trees.place, *trees.paths(len(body.params)))


def _of_another_branch(body: Function, branches: Sequence[Function], bodies: Bodies) -> BodyTrees | None:
    """The trees of a branch of which nothing is known: all branches take and give the same."""
    place = jax_compat.body_place(body.jaxpr) if body.jaxpr is not None else None
    for other in branches:
        names = jax_compat.argument_names(other.jaxpr) if other.jaxpr is not None else None
        trees = bodies.trees(other.jaxpr) if names is not None else None
        if trees is not None and names is not None and place is not None:
            return _named(trees, names, place[1])
    return None


def _note(body: Function, trees: BodyTrees) -> None:
    body.facts = replace(body.facts, trees=trees.typed(body.params, body.results))


def _of_signature(signature: DerivativeSignature) -> BodyTrees:
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
