"""Functions that are called once and say little go back into their caller, once library calls have been found in them.

How much a call hides is not known before: twenty equations may be one `jax.nn.softmax`. So do a library's functions of trees
(`optax.global_norm`), which get the leaves one by one: in the caller the trees are known, and what is done to them is one line.
A backward part that is the call of one pullback says nothing that the call doesn't, however often it stands there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace.ir.callees import callee_of
from untrace.ir.calls import is_transformed
from untrace.ir.nodes import Cond, Equation, Function, Library, Local, Program, Scan, Value, While, walk_functions
from untrace.lift.outline.pieces import renamed

_FEW = 2  # equations of a function of the author's that is called once
_FEW_OF_LIBRARY = 3  # of a library's, whose name the author did not choose
_MOST_IN_EXPRESSION = 5  # of one of a library's that is one expression
_FEWEST_LEAVES = 3


def fold_back(program: Program) -> Program:
    """Puts the equations of such functions in the place of their calls, in place."""
    functions = walk_functions(program.entry)  # callees before callers
    small = {e for f in functions for e in f.equations if _is_small(e)}  # as they are before others are in them
    for function in functions:
        if any(e in small for e in function.equations):
            named = {v.hint for e in function.equations for v in e.outputs if v is not None and v.named}
            named.update(p.hint for p in function.params)
            handed: dict[Any, Any] = {}  # what a call gave as it came -> what that is
            equations: list[Equation] = []
            for equation in function.equations:
                here = renamed(equation, handed)
                equations += _inside(here, named, handed) if equation in small else [here]
            function.equations, function.results = equations, [handed.get(r, r) for r in function.results]
    return program


def _is_small(equation: Equation) -> bool:
    if type(equation.callee) is not Local:
        return False
    body = equation.callee.body
    facts, size = body.facts, len(body.equations)
    is_librarys = facts.callee is not None and facts.callee.library
    if is_librarys and _takes_leaves(body) or facts.backward and size == 1:
        return True
    if not facts.called_once:
        return False
    if not is_librarys:
        return size <= _FEW and not any(map(_holds_function, body.equations))
    return size <= _FEW_OF_LIBRARY or size <= _MOST_IN_EXPRESSION and _is_expression(body)


def _holds_function(equation: Equation) -> bool:
    """Whether it is a loop or a choice, or a call that is given a function: more to read than one line."""
    callee = equation.callee
    is_librarys = type(callee) is Library and callee.function is not None
    return type(callee) in (Scan, While, Cond) or is_librarys or is_transformed(equation)


def _takes_leaves(body: Function) -> bool:
    """Whether a function of one result does the same to each of its arguments, which are the leaves of a tree."""
    if len(body.params) < _FEWEST_LEAVES or len(body.results) != 1:
        return False
    places = {param: i for i, param in enumerate(body.params)}
    users = [(e, a) for e in body.equations for a in e.inputs if a in places]
    # In order: other functions take several arguments too, of which each is something else.
    in_order = [places[a] for _, a in users] == list(range(len(places)))
    return in_order and len({(e.callee.name, len(e.inputs)) for e, _ in users}) == 1 and len(users[0][0].inputs) == 1


def _is_expression(body: Function) -> bool:
    """Whether nothing that a function computes is used more than once."""
    made = {o for e in body.equations for o in e.outputs if o is not None}
    used = [a for e in body.equations for a in e.inputs if a in made] + [r for r in body.results if r in made]
    return len(used) == len(set(used))


def _inside(equation: Equation, named: set[str | None], handed: dict[Any, Any]) -> list[Equation]:
    """The equations of the function that is called, on the values of its caller. named: what the caller has names for,
    which the function's own values would take from it. handed: gets what the call gives that no equation in it makes, or
    that it gives already."""
    body = callee_of(equation, Local).body
    known: dict[Any, Any] = dict(zip(body.params, equation.inputs, strict=True))
    for inner in body.equations:  # several bodies that say the same may call it, each once
        read = {getattr(known.get(a, a), "hint", None) for a in inner.inputs}  # `query = query / scale`
        for value in inner.outputs:
            if value is not None:
                taken = value.hint in named and value.hint not in read
                known[value] = made = Value(value.aval, None if taken else value.hint)
                made.named = value.named and made.hint is not None
                made.named_inside = value.named_inside and made.hint is not None
    made_inside = {v for inner in body.equations for v in inner.outputs}
    given: set[Any] = set()
    results: Sequence[Any] = body.results
    for result, output in zip(results, equation.outputs, strict=True):
        if output is not None and (result in given or result not in made_inside):
            handed[output] = known.get(result, result)
        elif output is not None:
            if not output.named and result.hint and result.hint not in named:
                output.hint = result.hint
            known[result] = output
            given.add(result)
    return [renamed(e, known) for e in body.equations]
