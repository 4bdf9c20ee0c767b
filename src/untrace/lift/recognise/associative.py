"""`lax.associative_scan`: what JAX unrolls into slices, calls of the combining function and interleavings, as one call.

JAX keeps no equation for it. Its frames say which equations one call made, and the first of those show what it was called
with: the elements, their even and odd halves, the combining function on them. The guess is then traced as any other, with
those equations as the function, and laid over the whole. Combining functions that close over values are left as they are,
and so are those that do something else for one element than for many (a product of matrices, which JAX takes out of a
batch of one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations, product
from typing import Any

import jax
from jax import lax
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace.ir.callees import callee_of
from untrace.ir.evaluate import bound_again
from untrace.ir.nodes import (
    Equation,
    Function,
    Library,
    Primitive,
    Program,
    Slot,
    Value,
    walk_functions,
)
from untrace.jaxprs.resized import Lengthened
from untrace.lift.naming import parameters
from untrace.lift.naming.names import provenance_of
from untrace.lift.naming.words import clean
from untrace.lift.recognise.engine import Lifter, Matcher
from untrace.lift.recognise.library import ASSOCIATIVE_SCAN
from untrace.lift.recognise.patterns import Pattern, as_pattern
from untrace.provenance import syntax
from untrace.provenance.sites import targets
from untrace.provenance.whose import is_library_internal

_NAME = "associative_scan"
_COMBINE = "associative_scan.<locals>.combine"
# Of more arrays it is not tried which ones the program goes on with.
_MOST = 6


def find_associative_scans(program: Program, refused: frozenset[JaxprEqn] = frozenset()) -> Program:
    """Makes one call of the equations of each associative scan, where that is proven; in place."""
    lifter = None
    for function in walk_functions(program.entry):
        # To read frames takes long, and halves are slices.
        halved = any(e.callee.name == "slice" for e in function.equations)
        groups = _groups(function.equations) if halved else []
        if not groups:
            continue
        lifter = lifter or Lifter(refused, program.facts.own, provenance=provenance_of(program))
        matcher = Matcher(lifter, function)
        for group in groups:
            _lift(matcher, group)
        matcher.finish(function)
    return program


def _groups(equations: Sequence[Equation]) -> list[list[Equation]]:
    """The equations of each call of `lax.associative_scan`, by the frames around it.

    A loop of the author's calls it from one place: where the frames of a call's first equation come again, the next begins.
    """
    groups: dict[Any, list[list[Equation]]] = {}
    last: dict[Any, Any] = {}
    for equation in equations:
        codes, offsets = _frames(equation)
        for place in range(len(codes) - 1, -1, -1):  # the outermost first
            if codes[place].co_name == _NAME and is_library_internal(codes[place].co_filename):
                frames = tuple(zip(map(id, codes), offsets, strict=True))
                inside, outside = frames[: place + 1], frames[place + 1 :]
                calls = groups.setdefault(outside, [])
                first, before = last.get(outside, (inside, None))
                if not calls or inside == first != before:
                    calls.append([])
                calls[-1].append(equation)
                last[outside] = first, inside
                break
    return [call for calls in groups.values() for call in calls]


def _frames(equation: Equation) -> tuple[Sequence[Any], Sequence[int]]:
    if equation.origin is None or not isinstance(equation.callee, Primitive):
        return (), ()
    return jax_compat.raw_frames(jax_compat.equation_source(equation.origin)[0])


def _author(equation: Equation) -> Any:
    """The code of the combining function that an equation is a part of; None where it is no part of one."""
    codes, _ = _frames(equation)
    for place, code in enumerate(codes):
        if code.co_qualname == _COMBINE:
            return codes[place - 1] if place else code
    return None


def _lift(m: Matcher, group: list[Equation]) -> bool:
    if not all(m.free(e) for e in group):
        return False
    found = _call(group)
    if found is None:
        return False
    elements, combine, orders, kwargs = found
    count = len(elements)
    anchors = [e for e in group if any(o is not None and m.is_used_outside(o, group) for o in e.outputs)]
    if not 0 < len(anchors) <= count <= _MOST or any(len(e.outputs) != 1 for e in anchors):
        return False
    inputs = list(dict.fromkeys(elements))
    pattern = None
    slots = [inputs.index(e) for e in elements]
    place = anchors[0] if len(anchors) == 1 else min(anchors, key=m.position)
    if len(inputs) != count or not m.before(inputs, place):
        return False
    for order, chosen in product(orders, combinations(range(count), len(anchors))):
        if combine.results != order:
            combine.results = order
            pattern = _traced(elements, combine, kwargs)
        if pattern is None:
            continue
        some = Pattern(
            pattern.inputs, pattern.consts, pattern.made_by, [pattern.outvars[i] for i in chosen], pattern.size
        )
        covered = m.lay_over(some, inputs, anchors)
        if covered is None or len(covered) < len(group) // 2:
            continue
        args = (tuple([Slot(i) for i in slots]),) if count > 1 else (Slot(0),)
        m._replace(ASSOCIATIVE_SCAN, args, kwargs, inputs, covered, anchors, place)
        lifted = m.replaced[place]
        callee_of(lifted, Library).function = combine
        results: dict[int, Any] = dict(zip(chosen, lifted.outputs, strict=True))
        lifted.outputs = [results.get(i) for i in range(count)]
        _name(m, anchors[-1], lifted.outputs)
        body = callee_of(lifted, Library).body
        body.results = [results.get(i, body.results[0]) for i in range(count)]
        return True
    return False


def _name(m: Matcher, last: Equation, outputs: Sequence[Value | None]) -> None:
    """Results are called as the author calls those of the call, not after the last step inside it."""
    if _author(last) is not None:
        return
    known = targets(m.site(last))
    for i, output in enumerate(outputs):
        path = () if len(outputs) == 1 else (i,)
        names = [t.name for t in known if t.strong and t.path == path]
        if output is not None and names:
            output.hint = clean(names[0])


def _call(group: Sequence[Equation]) -> tuple[list[Value], Function, list[list[Any]], dict[str, Any]] | None:
    """(the elements, the combining function, in which order its results may be, the other arguments).

    The first equations of a call show them, but for the order where a slice of a result was dead.
    """
    flipped: dict[Any, Any] = {}
    at = 0
    while at < len(group) and group[at].callee.name == "rev":
        flipped[group[at].outputs[0]] = group[at].inputs[0]
        at += 1
    heads = []
    while at < len(group) and group[at].callee.name == "slice" and _author(group[at]) is None:
        heads.append(group[at])
        at += 1
    count = len(heads) // 2
    if not count or len(heads) % 2 or flipped and len(flipped) != count:
        return None
    axes = {_axis(e) for e in heads}
    sources = [e.inputs[0] for e in heads[:count]]
    if len(axes) != 1 or None in axes or any(e.inputs[0] is not s for e, s in zip(heads[count:], sources, strict=True)):
        return None
    if flipped and any(s not in flipped for s in sources):
        return None
    start = at
    while at < len(group) and _author(group[at]) is not None:
        at += 1
    run, after = group[start:at], group[at : at + count]
    params = [e.outputs[0] for e in heads]
    made = {o for e in run for o in e.outputs} | set(params)
    results = [e.inputs[0] for e in after if e.callee.name == "slice" and e.inputs[0] in made]
    orders = [results] if len(set(results)) == count else []
    read = {a for e in group[at:] for a in e.inputs if type(a) is Value}
    outputs = [o for e in run for o in e.outputs if o in read]
    if len(outputs) == count <= 3:
        orders += [list(p) for p in permutations(outputs) if list(p) not in orders]
    elements = [flipped.get(s, s) for s in sources]
    if not run or not orders or any(type(e) is not Value for e in elements):
        return None
    if any(type(a) is Value and a not in made for e in run for a in e.inputs):
        return None  # it closes over something
    kwargs: dict[str, Any] = {}
    if flipped:
        kwargs["reverse"] = True
    axis = axes.pop()
    if axis:
        kwargs["axis"] = axis
    return elements, _function(params, list(run), count), orders, kwargs


def _axis(equation: Equation) -> int | None:
    """Along which axis a slice takes every second element; None where it does not."""
    strides = equation.params.get("strides") or ()
    found = [i for i, s in enumerate(strides) if s == 2]
    return found[0] if len(found) == 1 and all(s in (1, 2) for s in strides) else None


def _function(params: list[Any], run: list[Equation], count: int) -> Function:
    """The combining function, of the first elements and then the second ones, under its author's names; no results yet."""
    code = _author(run[0])
    own = code.co_qualname != _COMBINE and not is_library_internal(code.co_filename)
    node = syntax.definition(code) if own else None
    names = parameters.positional(node)
    name = code.co_name if own and code.co_name.isidentifier() else ""
    combine = Function(name, params, run, [])
    combine.facts = replace(combine.facts, whole=name or syntax.lambda_name(code) or "combine")
    wholes = [a.arg for a in (*node.args.posonlyargs, *node.args.args)] if node is not None else []
    if len(wholes) == 2:
        combine.facts = replace(combine.facts, wholes=(wholes[0], wholes[1]))
    for i, value in enumerate(params):
        side, place = divmod(i, count)
        given = names[side] if len(names) == 2 else []
        value.hint = given[place] if len(given) == count else combine.facts.wholes[side]
    return combine


def _traced(elements: Sequence[Value], combine: Function, kwargs: dict[str, Any]) -> Pattern | None:
    """What the call traces to, with the equations of the first use as its function."""
    count = len(elements)
    axis = kwargs.get("axis", 0)
    length = combine.params[0].aval.shape[axis]
    avals = [jax_compat.plain_aval(p.aval) for p in combine.params]
    whole = jax_compat.trace_on_avals(lambda *xs: bound_again(combine, *xs), avals)

    def function(left: Any, right: Any) -> Any:
        operands = [*jax.tree.leaves(left), *jax.tree.leaves(right)]
        # Of shapes that it says, as `a[:, None]` and `logsumexp` do, those of its first use.
        closed = Lengthened(length, operands[0].shape[axis]).jaxpr(whole)
        results = jax_compat.evaluate_closed(closed, operands)
        return results[0] if count == 1 else tuple(results)

    def call(*arrays: Any) -> list[Any]:
        return jax.tree.leaves(lax.associative_scan(function, arrays[0] if count == 1 else arrays, **kwargs))

    try:
        jaxpr, consts = jax_compat.traced_quickly(call, [jax_compat.plain_aval(e.aval) for e in elements])
    except Exception:  # a function that is bound to the sizes of its first use
        return None
    return as_pattern(jaxpr, consts)
