"""What `jax.checkpoint` marked and a program differentiates: `jax.vjp(jax.checkpoint(block), x, layer)`.

Capture knows of which function an equation is the derivative (`capture/calls/checkpoints.py`). The function stands in the text as
it was traced, and where the forward pass calls it as well, one function is for both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import replace
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace.ir.callees import output_of
from untrace.ir.nodes import (
    Constant,
    Equation,
    Function,
    Literal,
    Local,
    Primitive,
    Program,
    Value,
    functions_called,
    walk_functions,
)
from untrace.ir.structured import Checkpoint, Transformed, varied_in
from untrace.jaxprs.equal.comparer import Comparer
from untrace.jaxprs.equal.values import same_constant
from untrace.lift.adjoint.cotangents import d
from untrace.lift.outline.pieces import renamed

CHECKPOINT_VJP = jax.extend.core.Primitive("checkpoint_vjp")
CHECKPOINT_VJP.multiple_results = True


def find_checkpoints(program: Program, refused: Container[JaxprEqn] = ()) -> Program:
    """Puts the function that was marked in the place of what its derivative computes, in place: such an equation takes the
    function's arguments and the cotangents of its results, and gives those of the arguments that it is `varied` for."""
    for function in walk_functions(program.entry):
        for equation in list(function.equations):
            callee = equation.callee
            if type(callee) is not Transformed or callee.how != Checkpoint(differentiated=True):
                continue
            known = callee.function.transposed
            if known is None or equation.origin in refused:
                continue
            block, transposed = known
            # Differentiated by its arrays, or by the trees of which it is for each array.
            taken = [
                (word, tree)
                for word, tree in block.facts.taken or ()
                if tree.is_leaf or set(tree.places) <= set(transposed.varied)
            ]
            block.facts = replace(block.facts, taken=taken)
            zeros = {
                p: _zeros(p.aval, equation) for p, i in zip(block.params, transposed.primals, strict=True) if i < 0
            }
            primals = [
                equation.inputs[i] if i >= 0 else output_of(zeros[p])
                for p, i in zip(block.params, transposed.primals, strict=True)
            ]
            inputs = [*primals, *[equation.inputs[i] for i in transposed.cotangents]]
            outputs = [equation.outputs[i] for i in transposed.results]
            made = Transformed(CHECKPOINT_VJP, block, Checkpoint(varied=transposed.varied))
            place = next(i for i, e in enumerate(function.equations) if e is equation)
            _replace(
                function, place, *zeros.values(), Equation(made, inputs, outputs, equation.params, equation.origin)
            )
    return program


def _zeros(aval: Any, equation: Equation) -> Equation:
    """`jnp.zeros(...)`, for what the derivative does not need."""
    closed = jax.make_jaxpr(lambda: jax.numpy.zeros(aval.shape, aval.dtype))()
    made = jax_compat.open_jaxpr(closed)[0].eqns[-1].replace(source_info=equation.origin.source_info)
    inputs = [Literal(v.val, v.aval) for v in made.invars]
    return Equation(Primitive(made.primitive), inputs, [Value(made.outvars[0].aval)], dict(made.params), made)


def _replace(function: Function, place: int, *equations: Equation) -> None:
    function.equations = [*function.equations[:place], *equations, *function.equations[place + 1 :]]


def name_cotangents(equation: Equation) -> None:
    """What such an equation gives is called after the arguments that it is the cotangents of."""
    for output, place in zip(equation.outputs, varied_in(equation.callee) or (), strict=False):
        hint = getattr(equation.inputs[place], "hint", None)
        if output is not None and output.hint is None and hint:
            output.hint = d(hint)


def share_checkpoints(program: Program, refused: Container[JaxprEqn] = ()) -> Program:
    """Calls these functions in the forward pass too, where equations or a local function do the same; in place."""
    every = walk_functions(program.entry)
    marked: dict[Function, tuple[Function, list[tuple[Function, int]]]] = {}
    for function in every:
        for place, equation in enumerate(function.equations):
            if varied_in(equation.callee) is not None:
                (block,) = functions_called(equation)
                marked.setdefault(block, (block, []))[1].append((function, place))
    if not marked:
        return program
    for block, users in marked.values():
        _close_over(block, users)
    comparer = Comparer()
    known: dict[Function, tuple[Function, list[int]] | None] = {}
    for function in every:
        for index, equation in enumerate(function.equations):
            if type(equation.callee) is not Local or function in marked:
                continue
            body = equation.callee.body
            if body not in known and any(e.origin in refused for e in body.equations):
                known[body] = None
            if body not in known:
                found = [(b, p) for b, _ in marked.values() for p in [_laid_over(comparer, b, body)] if p is not None]
                known[body] = found[0] if found else None
            if (same := known[body]) is not None:
                block, order = same
                block.name = body.name
                inputs = [equation.inputs[i] for i in order]
                _replace(function, index, Equation(Local(block), inputs, equation.outputs, {}, equation.origin))
    for function in every:
        for block, _ in marked.values():
            if function not in marked:
                _call_where_it_stands(comparer, block, function, refused)
    return program


def _close_over(block: Function, users: list[tuple[Function, int]]) -> None:
    """Arrays of the program that a function gets wherever it is differentiated are known in it."""
    equations = [function.equations[place] for function, place in users]
    count = len(block.params)
    constants = [
        i
        for i, atom in enumerate(equations[0].inputs[:count])
        if type(atom) is Constant
        and np.ndim(atom.value)
        and block.params[i] not in block.results
        and all(e.inputs[i] is atom and i not in (varied_in(e.callee) or ()) for e in equations)
    ]
    if not constants:
        return
    values = {block.params[i]: equations[0].inputs[i] for i in constants}
    block.equations = [renamed(e, values) for e in block.equations]
    block.params = [p for p in block.params if p not in values]
    left = [i for i in range(count) if i not in constants]
    taken = [
        (word, replace(tree, places=tuple([left.index(p) for p in tree.places])))
        for word, tree in block.facts.taken or ()
        if set(tree.places) <= set(left)
    ]
    block.facts = replace(block.facts, taken=taken)
    for function, place in users:
        e = function.equations[place]
        inputs = [a for i, a in enumerate(e.inputs) if i not in constants]
        varied = tuple(i - sum(c < i for c in constants) for i in varied_in(e.callee) or ())
        callee = Transformed(CHECKPOINT_VJP, block, Checkpoint(varied=varied))
        _replace(function, place, Equation(callee, inputs, e.outputs, e.params, e.origin))


def _laid_over(comparer: Comparer, block: Function, body: Function) -> list[int] | None:
    """Which parameter of `body` each of `block` is, where both do the same; None where they do not."""
    if len(block.results) != len(body.results) or len(block.params) != len(body.params):
        return None
    pairs = list(zip(block.results, body.results, strict=True))
    found = _matched(comparer, block, _makers(body), pairs)
    if found is None or not all(found[0].get(p) in body.params for p in block.params):
        return None
    return [list(body.params).index(found[0][p]) for p in block.params]


def _call_where_it_stands(
    comparer: Comparer, block: Function, function: Function, refused: Container[JaxprEqn]
) -> None:
    """Makes calls of the equations of `function` that do what a function of one result does, in place."""
    last = _makers(block).get(block.results[0]) if len(block.results) == 1 else None
    while last is not None:
        made = _makers(function)
        uses = Counter([a for e in function.equations for a in e.inputs] + list(function.results))
        for place in range(len(function.equations) - 1, -1, -1):
            equation = function.equations[place]
            if type(equation.callee) is not type(last.callee) or len(equation.outputs) != len(last.outputs):
                continue
            output = equation.outputs[last.outputs.index(block.results[0])]
            found = _matched(comparer, block, made, [(block.results[0], output)]) if output is not None else None
            if found is None or not all(p in found[0] for p in block.params):
                continue
            known, group = found
            inside = Counter([a for e in group for a in e.inputs])
            ends = [o for e in group for o in e.outputs if o is not None and uses[o] != inside[o]]
            if ends != [output] or any(e.effects or e.origin in refused for e in group):
                continue
            call = Equation(Local(block), [known[p] for p in block.params], [output], {}, None)
            gone = {e for e in group}
            after = [e for e in function.equations[place + 1 :] if e not in gone]
            function.equations = [*[e for e in function.equations[:place] if e not in gone], call, *after]
            break
        else:
            return


def _makers(function: Function) -> dict[Any, Equation]:
    return {o: e for e in function.equations for o in e.outputs if o is not None}


def _matched(
    comparer: Comparer, block: Function, theirs: dict[Any, Equation], todo: list[tuple[Any, Any]]
) -> tuple[dict[Any, Any], list[Equation]] | None:
    """(what each value of `block` is elsewhere, the equations that compute it there), from pairs of what is the same."""
    made = _makers(block)
    known: dict[Any, Any] = {}
    group: dict[Equation, Equation] = {}
    while todo:
        ours, other = todo.pop()
        if type(ours) is Literal:
            if type(other) is not Literal or not same_constant(ours.value, ours.aval, other.value, other.aval):
                return None
            continue
        if type(ours) is Constant:
            if type(other) is not Constant or ours.value is not other.value:
                return None
            continue
        if known.setdefault(ours, other) is not other:
            return None
        a, b = made.get(ours), theirs.get(other)
        if a is None or b is None:
            if a is not None:
                return None
            continue
        if b in group:
            if group[b] is not a:
                return None
            continue
        pairs = _operands(comparer, a, b)
        if pairs is None or len(a.outputs) != len(b.outputs) or a.outputs.index(ours) != b.outputs.index(other):
            return None
        group[b] = a
        todo.extend(pairs)
    values = [v for v in known.values() if type(v) is Value]
    if len(set(values)) != len(values):
        return None
    return known, [e for e in {e: e for e in theirs.values()}.values() if e in group]


def _operands(comparer: Comparer, a: Equation, b: Equation) -> list[tuple[Any, Any]] | None:
    """Which operands have to be the same for two equations to be; None where they are not."""
    if type(a.callee) is Local and type(b.callee) is Local:
        same = a.callee.body is b.callee.body
        order = list(range(len(b.inputs))) if same else _laid_over(comparer, a.callee.body, b.callee.body)
        return None if order is None else [(x, b.inputs[i]) for x, i in zip(a.inputs, order, strict=True)]
    if (
        not isinstance(a.callee, Primitive)
        or not isinstance(b.callee, Primitive)
        or a.callee.object is not b.callee.object
    ):
        return None
    if len(a.inputs) != len(b.inputs) or comparer.differing_param(a.origin, b.origin) is not None:
        return None
    return list(zip(a.inputs, b.inputs, strict=True))
