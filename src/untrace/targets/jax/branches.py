"""`lax.cond` and `lax.switch` as a person writes them: branches beside the call, over the values around them.

`cond` gives what the rule of the primitive should return, or None where the exact form must do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from untrace.ir.nodes import Equation, Function, Literal
from untrace.ir.scans import used_values
from untrace.ir.trees import Tree
from untrace.lift.naming.words import clean
from untrace.module.interface.put_together import rebuilt
from untrace.module.nested import Body, argument_words, hint_of
from untrace.module.rules import Groups, Whole
from untrace.python.tree import Expr, List, Text, Tuple
from untrace.targets.jax import loop_trees


def constant_predicate(index: Any, branches: Sequence[Function]) -> Expr | None:
    """What the author's predicate was where it is no value of the program (a Python bool); None where it is one."""
    if type(index) is Literal and len(branches) == 2 and index.value in (0, 1):
        return Text(str(bool(index.value)))
    return None


def cond(w: Any, selector: Equation | None, operands: Sequence[Expr], branches: Sequence[Function]) -> Any:
    """`lax.cond(x > 0, if_true, if_false, *given)`, or `lax.switch(index, [...], *given)`.

    `selector`: the equation just before, which makes the index out of the bool or number that the author gave; None
    where that was a constant.
    """
    if selector is not None and not selector.inputs:  # the index of the platform that it is compiled for
        return None
    source: Any = None
    constant = constant_predicate(w.equation.inputs[0], branches)
    predicate = constant is not None
    if selector is not None:
        kind, source = selector.callee.name, selector.inputs[0]
        predicate = kind == "convert_element_type" and len(branches) == 2 and str(source.aval.dtype) == "bool"
        if not predicate:
            if kind != "clamp" or not _is_number(source, 0) or not _is_number(selector.inputs[2], len(branches) - 1):
                return None
            source = selector.inputs[1]
        w.statements.pop()
    inputs = w.equation.inputs[1:]
    explicit = _explicit(inputs, branches)
    taken = [i for i, e in enumerate(explicit) if e]
    given = [operands[i] for i in taken]
    out, arguments = _trees(w, branches, taken)
    if arguments is not None:
        given = [loop_trees.given(w, tree, operands) for tree in arguments]
    functions: list[Expr] = []
    for place, branch in enumerate(branches):
        fallback = ("false_branch", "true_branch")[place] if predicate else f"branch_{place}"
        closed = [(p, o) for p, o, e in zip(branch.params, operands, explicit, strict=True) if not e]
        handed_on = [branch.params[-1 - p] for p in out.places if p < 0] if out is not None else []
        used = used_values(branch) | set(handed_on)
        if arguments is not None:
            body = loop_trees.TreeBody(w, branch, fallback, closed)
            for tree in arguments:
                word = "_" + clean(body.root_of(tree), "x")
                body.take(tree, "x", used, "_" if len(arguments) == 1 else body.writer.scope.fresh(word))
            body.equations()
        else:
            body = Body(w, branch, fallback, closed)
            words = argument_words(branch, 0)
            for i in taken:
                param = branch.params[i]
                base = words[i][1] or words[i][0] or hint_of(param, inputs[i]) or "x"
                empty = "_" if len(taken) == 1 else body.writer.scope.fresh("_" + base)
                body.parameter([param], [base], base, used, empty)
            body.writer.equations(branch.equations, branch.results)
        if out is None:
            value = _results([body.writer.atom(r) for r in branch.results])
        else:
            leaves = [branch.results[p] if p >= 0 else branch.params[-1 - p] for p in out.places]
            value = rebuilt(body.writer, out.example, [body.writer.atom(r) for r in leaves], True)
        functions.append(body.finish(value))
    if predicate:
        made = w.lax("cond", constant or w.atom(source), functions[1], functions[0], *given)
    else:
        made = w.lax("switch", w.atom(source), List(functions), *given)
    if out is not None:
        return loop_trees.assign(w, [(out, ())], branches[0], made, "out", shift=1)
    count = len(branches[0].results)
    return Whole(made) if count == 1 else Groups(made, (count,))


def _trees(w: Any, branches: Sequence[Function], taken: Sequence[int]) -> tuple[Tree | None, tuple[Tree, ...] | None]:
    """The tree that all branches give, and those that they take; None where that says no more than a tuple."""
    found = [loop_trees.trees_of(w, branch) for branch in branches]
    trees = [t for t in found if t is not None]
    if len(trees) < len(found):
        return None, None
    outs, arguments = [t.out for t in trees], [t.args for t in trees]
    places = list(range(len(branches[0].results)))
    same = _alike(outs) and outs[0].nested() and [p for p in outs[0].places if p >= 0] == places
    same = same and all(-1 - p in taken for p in outs[0].places if p < 0)
    taken_alike = all(len(a) == len(arguments[0]) for a in arguments) and all(map(_alike, zip(*arguments, strict=True)))
    whole = taken_alike and [p for tree in arguments[0] for p in tree.places] == list(taken) and bool(taken)
    return outs[0] if same else None, arguments[0] if whole else None


def _alike(trees: Sequence[Tree]) -> bool:
    return len({(jax.tree.structure(t.example), t.places) for t in trees}) == 1


def _results(values: Sequence[Expr]) -> Expr:
    return values[0] if len(values) == 1 else Tuple(values)


def _is_number(atom: Any, value: int) -> bool:
    return type(atom) is Literal and atom.value == value


def _explicit(inputs: Sequence[Any], branches: Sequence[Function]) -> list[bool]:
    """Which operands are passed and not closed over: those that the author passed, as far as JAX has kept that, numbers,
    and variables that stand there twice and are read twice (as closed-over values they would become one)."""
    count = len(inputs)
    passed = 0
    for branch in branches:
        words = argument_words(branch, 0)
        named = [bool(root) for root, _ in words]
        if any(named):
            passed = max(passed, count - named.index(True))
    used = used_values(*branches)
    read = [any(branch.params[i] in used for branch in branches) for i in range(count)]
    times = Counter(a for a, is_read in zip(inputs, read, strict=True) if is_read)
    return [i >= count - passed or type(a) is Literal or times[a] > 1 for i, a in enumerate(inputs)]
