"""Loops as a person writes them: `lax.scan`, `lax.map`, `lax.fori_loop`, `lax.while_loop` around nested functions.

Each function here gives what the rule of its primitive should return, or None where the loop cannot be said this way;
then the exact form is written. Where the public function would make another equation (it turns a carry that the body
only forwards into a constant, drops an output that is an input), it gives None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from untrace import jax_compat
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Equation, Function, Literal, Scan, Value
from untrace.ir.scans import closes_simply, is_plain_scan, same_weak_types, used_values
from untrace.lift.naming.words import singular
from untrace.module.grouping import stacked
from untrace.module.grouping.accumulators import Carry
from untrace.module.library_calls import argument, with_author_numbers
from untrace.module.nested import Body, argument_words, group, hint_of, plain_equation, plural, root_name, scan_options
from untrace.module.rules import Groups
from untrace.python.tree import Call, Expr, Name, Tuple
from untrace.targets.jax import loop_trees

_NUMBERED = re.compile(r"\w*_\d+")

# Called with all their operands: the function stands in the module.


def scan(w: Any, operands: Sequence[Expr], jaxpr: Function, length: int, reverse: bool, unroll: int) -> Groups | None:
    loop = callee_of(w.equation, Scan)
    operands = with_author_numbers(w, w.equation, operands)
    consts, carries = loop.consts, loop.carries
    inputs = w.equation.inputs
    init, xs = inputs[consts : consts + carries], inputs[consts + carries :]
    state, elements = jaxpr.params[consts : consts + carries], jaxpr.params[consts + carries :]
    found = loop_trees.scan(w, operands, jaxpr, length, reverse, unroll)
    if found is not None:
        return found
    if not is_plain_scan(w.equation):
        return None
    if not xs and not reverse:
        found = _static_fori(w, operands, jaxpr, length, unroll, consts, carries)
        if found is not None:
            return found
    plain_map = not carries and bool(xs) and not reverse and unroll == 1 and len(jaxpr.results) > 0
    fallback = "one" if plain_map else "step"
    body = Body(w, jaxpr, fallback, zip(jaxpr.params[:consts], operands, strict=False))
    words = argument_words(jaxpr, consts)
    used = used_values(jaxpr)
    carry = None
    if not plain_map:
        names = _state_names(state, jaxpr.results, init, w.equation.outputs, words)
        empty = "_" if xs else "_carry"
        added = w.module.sums.get(w.equation)
        if added:
            carry = Carry(w, body, added, consts, carries)
            carry.bind(names, root_name(words[:carries], "carry"), used)
        else:
            body.parameter(state, names, root_name(words[:carries], "carry"), used, empty)
    names = _element_names(elements, xs, words[carries:])
    given = operands[consts + carries :]
    rows = stacked.gone_through(w, given)
    through = stacked.Elements(body, elements, rows)
    if rows:
        through.bind(names, [root for root, _ in words[carries:]], root_name(words[carries:], "inputs"), used)
    else:
        body.parameter(elements, names, root_name(words[carries:], "inputs"), used)
    outs = len(jaxpr.results) - carries
    made = w.module.rows.get(w.equation, [])
    if carry is not None:
        carry.equations()
    else:
        body.writer.equations(jaxpr.equations, jaxpr.results)
    bases = _result_names(w.equation.outputs, jaxpr.results, body, state)
    ys = stacked.value(body, jaxpr.results[carries:], made)
    if plain_map:
        call = w.lax("map", body.finish(ys), through.given(given))
        return Groups(call, (outs,), bases, bound=_bound(w, None, carries, bases, made))
    last = carry.value() if carry is not None else group([body.writer.atom(r) for r in jaxpr.results[:carries]])
    function = body.finish(Tuple([last, ys]))
    kwargs = scan_options(None if xs else argument(w, length, ()), reverse, unroll)
    first = _zeros_like(w, operands[consts : consts + carries], state, body) if carry is None else operands[consts:]
    arguments = [carry.init(first) if carry is not None else group(first)]
    if xs:
        arguments.append(through.given(given))
    call = w.lax("scan", function, *arguments, **kwargs)
    return Groups(call, (carries, outs), bases, bound=_bound(w, carry, carries, bases, made))


def _bound(
    w: Any, carry: Carry | None, carries: int, bases: Sequence[str], made: Sequence[stacked.Row]
) -> dict[int, Expr]:
    """What the last carry and the stacked arrays are bound to, where there are trees among them."""
    bound = {} if carry is None else {0: carry.targets(bases)}
    if made:
        bound[1 if carries else 0] = stacked.targets(w, w.equation.outputs[carries:], bases[carries:], made)
    return bound


def while_(
    w: Any,
    operands: Sequence[Expr],
    cond_jaxpr: Function,
    body_jaxpr: Function,
    cond_nconsts: int,
    body_nconsts: int,
    params: dict[str, Any],
) -> Groups | None:
    operands = with_author_numbers(w, w.equation, operands)
    found = loop_trees.while_(w, operands, cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts)
    if found is not None:
        return found
    inputs = w.equation.inputs
    consts = cond_nconsts + body_nconsts
    init, outside = inputs[consts:], operands[consts:]
    state, seen = body_jaxpr.params[body_nconsts:], cond_jaxpr.params[cond_nconsts:]
    read = used_values(cond_jaxpr)
    forwarded = [r is p for r, p in zip(body_jaxpr.results, state, strict=True)]
    if (
        any(v is not None for v in params.values())
        or not closes_simply(cond_jaxpr, cond_nconsts, inputs)
        or not closes_simply(body_jaxpr, body_nconsts, inputs[cond_nconsts:])
        or any(f and p not in read for f, p in zip(forwarded, seen, strict=True))
        or not same_weak_types(init, state)
    ):
        return None
    found = _dynamic_fori(w, operands, cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts)
    if found is not None:
        return found
    words = argument_words(body_jaxpr, body_nconsts)
    if not any(root for root, _ in words):
        words = argument_words(cond_jaxpr, cond_nconsts)
    whole = root_name(words, "state")
    _share_names(state, seen)
    names = _state_names(state, body_jaxpr.results, init, w.equation.outputs, words, seen)
    closed = zip(cond_jaxpr.params[:cond_nconsts], operands, strict=False)
    check = Body(w, cond_jaxpr, "keep_going", closed)
    check.parameter(seen, [hint_of(s) or n for s, n in zip(state, names, strict=True)], whole, read)
    check.writer.equations(cond_jaxpr.equations, cond_jaxpr.results)
    condition = check.finish(check.writer.atom(cond_jaxpr.results[0]))
    closed = zip(body_jaxpr.params[:body_nconsts], operands[cond_nconsts:], strict=False)
    body = Body(w, body_jaxpr, "body", closed)
    body.parameter(state, names, whole, used_values(body_jaxpr))
    body.writer.equations(body_jaxpr.equations, body_jaxpr.results)
    function = body.finish(group([body.writer.atom(r) for r in body_jaxpr.results]))
    bases = _result_names(w.equation.outputs, body_jaxpr.results, body, state)
    return Groups(w.lax("while_loop", condition, function, group(outside)), (len(init),), bases)


def _zeros_like(w: Any, init: Sequence[Expr], state: Sequence[Value], body: Body) -> list[Expr]:
    """What the carry begins as, with `jnp.zeros_like(w)` for the zeros that become `d_w`."""
    if not any(_is_zeros(expr) for expr in init):
        return list(init)
    named = {expr.id: value.aval for value, expr in w.names.items() if type(expr) is Name}
    found: list[Expr] = []
    for expr, value in zip(init, state, strict=True):
        primal = body.name_of(value).removeprefix("d_")
        aval = named.get(primal) if _is_zeros(expr) and primal != body.name_of(value) else None
        alike = aval is not None and _same_array(aval, value.aval)
        found.append(w.jnp("zeros_like", Name(primal)) if alike else expr)
    return found


def _is_zeros(expr: Expr) -> bool:
    return type(expr) is Call and expr.func == "jnp.zeros"


def _same_array(left: Any, right: Any) -> bool:
    """Whether zeros like the one are of the type of the other: so are they on a mesh only where it varies alike."""
    types = [getattr(a, "shape", None) for a in (left, right)]
    plain = not (jax_compat.varying_axes(left) or jax_compat.varying_axes(right))
    return plain and None not in types and types[0] == types[1] and left.dtype == right.dtype and not left.weak_type


# ------------------------------------------------------------------ fori_loop


def _static_fori(
    w: Any, operands: Sequence[Expr], jaxpr: Function, length: int, unroll: int, consts: int, carries: int
) -> Groups | None:
    """A scan that only counts: `fori_loop` with bounds that were known."""
    inputs, outputs = w.equation.inputs, w.equation.outputs
    if carries < 2 or len(jaxpr.results) != carries or not _unread(w, outputs[0]):
        return None
    counter, lower = jaxpr.params[consts], inputs[consts]
    step = _increment(jaxpr, counter)
    if step is None or type(lower) is not Literal or not counter.aval.weak_type:
        return None
    start = int(lower.value)
    bounds = [argument(w, start, ()), argument(w, start + length, ())]
    kwargs = {"unroll": unroll} if unroll != 1 else {}
    return _fori(w, operands, jaxpr, step, bounds, consts, consts, 1, kwargs)


def _dynamic_fori(
    w: Any, operands: Sequence[Expr], cond: Function, body: Function, cond_consts: int, body_consts: int
) -> Groups | None:
    """A while loop that counts up to a bound: `fori_loop` with a bound that is computed."""
    inputs, outputs = w.equation.inputs, w.equation.outputs
    consts = cond_consts + body_consts
    if cond_consts or len(inputs) - consts < 3 or len(cond.equations) != 1:
        return None
    less = plain_equation(cond.equations[0])
    if less.callee.name != "lt" or list(less.inputs) != list(cond.params[:2]):
        return None
    if cond.results[0] is not cond.equations[0].outputs[0]:
        return None
    counter, bound = body.params[body_consts : body_consts + 2]
    lower, upper = inputs[consts : consts + 2]
    step = _increment(body, counter)
    reads = sum(a is bound for e in body.equations for a in e.inputs) + sum(r is bound for r in body.results)
    if step is None or body.results[1] is not bound or reads != 1 or not all(_unread(w, o) for o in outputs[:2]):
        return None
    if type(upper) is not Value and type(lower) is not Value:
        return None  # known bounds make a scan
    return _fori(w, operands, body, step, operands[consts : consts + 2], consts, body_consts, 2, {})


def _fori(
    w: Any,
    operands: Sequence[Expr],
    jaxpr: Function,
    step: Equation,
    bounds: Sequence[Expr],
    start: int,
    consts: int,
    skipped: int,
    kwargs: dict[str, Any],
) -> Groups:
    """`operands[start:]` are the carry, of which the first `skipped` belong to the loop itself; so do the body's parameters
    after the constants. `step` is the equation that counts."""
    equation = w.equation
    found = loop_trees.fori(w, operands, jaxpr, step, bounds, start - consts, consts, kwargs)
    if found is not None:
        return found
    state, results = jaxpr.params[consts + skipped :], jaxpr.results[skipped:]
    init, outputs = equation.inputs[start + skipped :], equation.outputs[skipped:]
    words = argument_words(jaxpr, consts)
    counter = jaxpr.params[consts]
    equations = [e for e in jaxpr.equations if e is not step]
    used = used_values(Function(jaxpr.name, (), equations, results))
    body = Body(w, jaxpr, "body", zip(jaxpr.params[:consts], operands, strict=False))
    body.parameter([counter], [words[0][1] or "i"], "i", used)
    names = _state_names(state, results, init, outputs, words[skipped:])
    body.parameter(state, names, root_name(words[skipped:], "state"), used, "_state")
    body.writer.equations(equations, results)
    function = body.finish(group([body.writer.atom(r) for r in results]))
    bases = _result_names(outputs, results, body, state)
    call = w.lax("fori_loop", *bounds, function, group(operands[start + skipped :]), **kwargs)
    return Groups(call, (len(state),), bases, skipped)


def _increment(function: Function, counter: Value) -> Equation | None:
    """The equation that computes the first result as `counter + 1`, where nothing else reads its result."""
    wanted = function.results[0]
    if counter.aval.shape or str(counter.aval.dtype)[:3] not in ("int", "uin"):
        return None
    for equation in function.equations:
        if wanted not in equation.outputs:
            if any(a is wanted for a in equation.inputs):
                return None
            continue
        plain = plain_equation(equation)
        if plain.callee.name != "add" or plain.inputs[0] is not counter:
            return None
        one = plain.inputs[1]
        if type(one) is not Literal or one.value != 1 or plain.outputs[0] is not wanted:
            return None
        reads = sum(a is wanted for e in function.equations for a in e.inputs) + sum(
            r is wanted for r in function.results
        )
        return equation if reads == 1 else None
    return None


def _unread(w: Any, output: Value | None) -> bool:
    return output is None or not w.is_live(output)


# ------------------------------------------------------------------ names


def _state_names(
    state: Sequence[Value],
    results: Sequence[Any],
    init: Sequence[Any],
    outputs: Sequence[Any],
    words: Sequence[tuple[str, str]],
    others: Sequence[Value] = (),
) -> list[str]:
    """Names of carried values: the author's, else that of what they become, were or end as."""
    fallback = "carry" if len(state) == 1 else "value"
    found = []
    for i, value in enumerate(state):
        own = hint_of(value, *others[i : i + 1]) or words[i][1]
        found.append(own or hint_of(results[i], init[i], outputs[i]) or fallback)
    return found


def _share_names(state: Sequence[Value], seen: Sequence[Value]) -> None:
    """What one function of a loop only numbers (`s_0`) has the name that the other knows it by."""
    for left, right in zip(state, seen, strict=True):
        for own, other in ((left, right), (right, left)):
            if own.hint and other.hint and _NUMBERED.fullmatch(own.hint) and not _NUMBERED.fullmatch(other.hint):
                own.hint = other.hint


def _element_names(elements: Sequence[Value], xs: Sequence[Any], words: Sequence[tuple[str, str]]) -> list[str]:
    found = []
    for i, (value, whole) in enumerate(zip(elements, xs, strict=True)):
        own = hint_of(value) or words[i][1]
        found.append(own or singular(hint_of(whole)) or "x")
    return found


def _result_names(outputs: Sequence[Any], results: Sequence[Any], body: Body, state: Sequence[Value]) -> list[str]:
    """Bases for the names of results without a hint: the last carry is called like the carry, stacked values in plural."""
    found = []
    for i, _ in enumerate(outputs):
        if i < len(state):
            found.append(body.name_of(state[i]) or "carry")
        else:
            found.append(plural(hint_of(results[i])) if i < len(results) and hint_of(results[i]) else "ys")
    return found
