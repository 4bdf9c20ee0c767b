"""Loops and branches in Python's own words: `for`, `while` and `if`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace._identifiers import identifier
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Atom, Constant, Equation, Function, Library, Literal, Scan, Slot, Value, While
from untrace.module.inlining import foldable
from untrace.module.library_calls import author_number
from untrace.module.rules import DECLINE, WRITTEN, Whole
from untrace.python.statements import Assign, For, If, Lines, Loop, Statement
from untrace.python.tree import Binary, Call, Expr, List, Name, Slice, Subscript, Symbol, Text, Tuple, Unary
from untrace.targets.eager.lower import bare
from untrace.targets.eager.writer import EagerFunction

# What a scan says of its operands, which is known by then.
_COUNTS = frozenset({"num_consts", "num_carry", "ft_in", "ft_out", "linear"})
_BACKWARDS = Slice(None, None, Text("-1"))


class Bare(Tuple):
    """A tuple without parentheses: `a, b = b, a`."""

    __slots__ = ()

    def flat(self) -> str:
        return ", ".join([e.flat() for e in self.elements])


def scan(
    w: EagerFunction, *operands: Any, jaxpr: Function, length: int, reverse: bool, unroll: Any = 1, **counts: Any
) -> Any:
    if any(value for name, value in counts.items() if name not in _COUNTS):
        return DECLINE
    loop = callee_of(w.equation, Scan)
    body, inputs, outputs = loop.body, w.equation.inputs, w.equation.outputs
    first = loop.consts + loop.carries
    inner = _block(w, body, inputs[: loop.consts])
    counter = _counter(w, loop)
    places = [i for i in range(loop.carries) if counter is None or i != counter.place]
    params, results = [body.params[loop.consts + i] for i in places], [body.results[i] for i in places]
    equations = [e for e in body.equations if counter is None or e is not counter.step]
    read = {a for e in equations for a in e.inputs} | set(body.results)
    carried = _start(w, inner, [inputs[loop.consts + i] for i in places], params, [outputs[i] for i in places])
    elements, arrays = [], []
    if counter is not None and counter.param in read:
        ends = [_size(w, n) for n in (counter.start, counter.start + length) if n]
        arrays.append(w.array_call("arange", *ends, dtype=w.dtype(counter.param.aval.dtype)))
        elements.append(inner.bind_parameter(counter.param, "i").id)
    for atom, param in zip(inputs[first:], body.params[first:], strict=True):
        if param in read:
            rows = w.named_value(atom, "elements")
            arrays.append(w.backwards(rows) if reverse else rows)
            elements.append(inner.bind_parameter(param, "element").id)
    kept = [i for i, o in enumerate(outputs) if i >= loop.carries and o is not None and w.is_read(o)]
    lists = [_fresh(w, outputs[i], "outputs") for i in kept]
    w.statements += [Assign([name], List([])) for name in lists]
    _reuse(inner, equations, body.results, dict(zip(params, carried, strict=True)), results)
    inner.equations(equations, body.results)
    for name, i in zip(lists, kept, strict=True):
        inner.statements.append(Assign((), Call(f"{name}.append", [inner.atom(body.results[i])])))
    _hand_on(inner, carried, results)
    turns = arrays[0] if len(arrays) == 1 else Call("zip", arrays) if arrays else Call("range", [_size(w, length)])
    w.statements.append(For(", ".join(elements) or "_", turns, inner.statements))
    _name_results(w, carried, [outputs[i] for i in places])
    for name, i in zip(lists, kept, strict=True):
        output = outputs[i]
        assert output is not None
        stacked: Expr = w.array_call("stack", Subscript(Name(name), _BACKWARDS) if reverse else Name(name))
        if not length:
            stacked = w.array_call("zeros", tuple(output.aval.shape), dtype=w.dtype(output.aval.dtype))
        w.statements.append(Assign([name], stacked, w.equation.origin))
        w.names[output] = Name(name)
    return WRITTEN


def _size(w: EagerFunction, size: int) -> Expr:
    """How often a loop runs, or where it begins, by the author's words where he has any."""
    return author_number(w, w.equation, size) or w.source(size)


def while_(
    w: EagerFunction, *operands: Any, cond_jaxpr: Function, body_jaxpr: Function, cond_nconsts: int, body_nconsts: int
) -> Any:
    batch = len(cond_jaxpr.result_avals[0].shape)  # of elements that each stop at a time of their own
    loop = callee_of(w.equation, While)
    inputs, outputs = w.equation.inputs, w.equation.outputs
    inner = _block(w, loop.body, inputs[loop.condition_consts : loop.consts])
    params = loop.body.params[loop.body_consts :]
    carried = _start(w, inner, inputs[loop.consts :], params, outputs)
    test = _block(w, loop.condition, inputs[: loop.condition_consts])
    for param, name in zip(loop.condition.params[loop.condition_consts :], carried, strict=True):
        test.names[param] = Name(name)
    test.equations(loop.condition.equations, loop.condition.results)
    condition = test.atom(loop.condition.results[0])
    if batch:
        going = Name(w.scope.fresh("going"))
        test.statements.append(Assign([going.id], condition))
        condition = w.array_call("any", going)
        inner.equations(loop.body.equations, loop.body.results)
        _hand_on(
            inner,
            carried,
            loop.body.results,
            lambda new, old, aval: _where(w, going, aval.ndim - batch, new, old, aval),
        )
    else:
        carries = dict(zip(params, carried, strict=True))
        _reuse(inner, loop.body.equations, loop.body.results, carries, loop.body.results)
        inner.equations(loop.body.equations, loop.body.results)
        _hand_on(inner, carried, loop.body.results)
    if test.statements:  # what takes several statements is asked at the beginning of each turn
        ends = If(Unary("not ", condition), [Lines("break")], [])
        w.statements.append(Loop(Text("True"), [*test.statements, ends, *inner.statements]))
    else:
        w.statements.append(Loop(condition, inner.statements))
    _name_results(w, carried, outputs)
    return WRITTEN


def _where(w: EagerFunction, going: Expr, more: int, new: Expr, old: Expr, aval: Any) -> Expr:
    """`new` for the elements that go on. more: how many axes it has behind those."""
    if jax_compat.is_key_dtype(aval.dtype):
        more += 1
    index = ["...", *["None"] * more]
    return w.where(Subscript(going, Text(", ".join(index))) if more else going, new, old, aval)


def cond(
    w: EagerFunction, index: Any, *operands: Any, branches: Sequence[Function], branches_platforms: Any = None
) -> Any:
    """The branches may be those for platforms: which of them it is, the index says then as well."""
    inputs, outputs = w.equation.inputs, w.equation.outputs
    live = [i for i, o in enumerate(outputs) if o is not None and w.is_read(o)]
    names = [_fresh(w, outputs[i], "value") for i in live]
    blocks: list[list[Statement]] = []
    for branch in branches:
        inner = _block(w, branch, inputs[1:])
        inner.equations(branch.equations, branch.results)
        values = [inner.atom(branch.results[i]) for i in live]
        if names:
            inner.statements.append(Assign(names, values[0] if len(values) == 1 else Bare(values)))
        blocks.append(inner.statements or [Lines("pass")])
    if len(blocks) == 2:
        whole: list[Statement] = [If(_truth(w, index), blocks[1], blocks[0], w.equation.origin)]
    else:
        number, whole = w.named_value(inputs[0], "branch"), blocks[-1]
        for i in range(len(blocks) - 2, -1, -1):
            whole = [If(Binary(number, "==", Text(str(i))), blocks[i], whole, w.equation.origin)]
    w.statements += whole
    for i, name in zip(live, names, strict=True):
        output = outputs[i]
        assert output is not None
        w.names[output] = Name(name, Symbol(output.hint if output.named else None))
    return WRITTEN


def choice(w: EagerFunction, index: Expr, branches: Sequence[Function]) -> Any:
    """Computes all branches, one after the other, and chooses by the index."""
    inputs, outputs = w.equation.inputs, w.equation.outputs
    live = [i for i, o in enumerate(outputs) if o is not None and w.is_read(o)]
    if not live:
        return WRITTEN
    which = _truth(w, index) if len(branches) == 2 else index
    is_number = which is index
    cases: list[list[Expr]] = []
    for branch in branches:
        inner = _block(w, branch, inputs[1:])
        inner.equations(branch.equations, branch.results)
        w.statements += inner.statements
        cases.append([inner.atom(_beside(branches, branch.results[i], i)) for i in live])
    if (is_number or len(live) > 1) and type(which) is not Name:
        name = w.scope.fresh("branch" if is_number else "condition")
        w.statements.append(Assign([name], which))
        which = Name(name)
    for place, i in enumerate(live):
        output, values = outputs[i], [case[place] for case in cases]
        assert output is not None
        chosen = w.chosen(which, values) if is_number else w.where(which, values[1], values[0], output.aval)
        if len(outputs) == 1:
            return Whole(chosen)
        name = _fresh(w, output, "value")
        w.statements.append(Assign([name], chosen, w.equation.origin))
        w.names[output] = Name(name, Symbol(output.hint if output.named else None))
    return WRITTEN


def _beside(branches: Sequence[Function], result: Atom, place: int) -> Atom:
    """A result of a branch: a number, where another branch gives an array."""
    return result if all(type(b.results[place]) is Literal for b in branches) else bare(result)


def _truth(w: EagerFunction, index: Expr) -> Expr:
    """The condition behind the number of a branch: `x > 0` for `(x > 0).astype(np.int32)`."""
    selector = w.previous(w.equation.inputs[0])
    if selector is None or selector.callee.name != "convert_element_type":
        return index
    if str(selector.inputs[0].aval.dtype) != "bool":
        return index
    w.statements.pop()
    return w.atom(selector.inputs[0])


def _block(w: EagerFunction, function: Function, consts: Sequence[Any]) -> EagerFunction:
    """A writer for the body of a loop or a branch, which reads the variables of the function that it stands in."""
    inner = w.in_block()
    for param, atom in zip(function.params, consts, strict=False):
        inner.names[param] = w.named_value(atom, identifier(param.hint or "", "const"))
    return inner


def _start(
    w: EagerFunction, inner: EagerFunction, inputs: Sequence[Any], params: Sequence[Value], outputs: Sequence[Any]
) -> list[str]:
    """Gives the variables of a loop their first values; their names."""
    names, values = [], []
    for atom, param, output in zip(inputs, params, outputs, strict=False):
        values.append(w.atom(atom))
        hint = param.hint or (output.hint if output is not None else "") or "carry"
        name = Name(w.scope.fresh(identifier(hint, "carry")), Symbol(param.hint if param.named else None))
        inner.names[param] = name
        names.append(name.id)
    for name, value in zip(names, values, strict=True):
        if value.flat() != name:
            w.statements.append(Assign([name], value))
    return names


def _reuse(
    inner: EagerFunction,
    equations: Sequence[Equation],
    given: Sequence[Any],
    carried: dict[Value, str],
    results: Sequence[Any],
) -> None:
    """Lets what a turn hands on have the loop's variable at once, where nothing reads the old value after it.

    given: all that a turn gives. results: what it hands on, to the variables in `carried`.
    """
    folded = foldable(equations, given)
    end = len(equations)
    places = {o: i for i, e in enumerate(equations) for o in e.outputs if o is not None}
    # When an equation is computed at the latest: in a folded one, when what it stands in is.
    latest = [i for i in range(end)]
    readers: dict[Any, int] = {}
    for i in range(end - 1, -1, -1):
        equation = equations[i]
        if any(o in folded for o in equation.outputs):
            latest[i] = max((readers.get(o, end) for o in equation.outputs), default=end)
        for atom in equation.inputs:
            readers[atom] = max(readers.get(atom, -1), latest[i])
    for (param, name), result in zip(carried.items(), results, strict=True):
        last = end if any(r is param for r in given) else readers.get(param, -1)
        if type(result) is not Value or result in folded or last > places.get(result, -1):
            continue
        if result in places and sum(r is result for r in results) == 1:
            inner.reused[result] = name


@dataclass(frozen=True, slots=True)
class _Counter:
    """A carry that counts the turns of a loop: its place, the equation that adds one, its first value, the variable."""

    place: int
    step: Equation
    start: int
    param: Value


def _counter(w: EagerFunction, loop: Scan) -> _Counter | None:
    """The carry that only counts the turns, where nothing but the loop reads it."""
    body, inputs, outputs = loop.body, w.equation.inputs, w.equation.outputs
    for place in range(loop.carries):
        start, param, result = inputs[loop.consts + place], body.params[loop.consts + place], body.results[place]
        output = outputs[place]
        if type(start) is not Literal or output is not None and w.is_read(output):
            continue
        step = next((e for e in body.equations if any(o is result for o in e.outputs)), None)
        reads = [a for e in body.equations for a in e.inputs] + list(body.results)
        if step is not None and _adds_one(step, param) and sum(a is result for a in reads) == 1:
            return _Counter(place, step, int(start.value), param)
    return None


def _adds_one(equation: Equation, value: Value) -> bool:
    """Whether an equation is `value + 1`."""
    callee = equation.callee
    if callee.name not in ("add", "operator.add") or not any(a is value for a in equation.inputs):
        return False
    terms = list(equation.inputs)
    if type(callee) is Library:
        terms = [equation.inputs[a.index] if type(a) is Slot else a for a in callee.args]
    ones = [t.value if type(t) is Literal else t for t in terms if t is not value]
    return len(ones) == 1 and not isinstance(ones[0], Value | Constant) and bool(np.all(np.asarray(ones[0]) == 1))


def _hand_on(
    inner: EagerFunction,
    names: Sequence[str],
    results: Sequence[Any],
    choose: Callable[[Expr, Expr, Any], Expr] = lambda new, old, aval: new,
) -> None:
    """Gives the variables of a loop the values of the next turn, all at once. choose: of a new value and the old one."""
    pairs = [
        (n, choose(v, Name(n), r.aval)) for n, r in zip(names, results, strict=True) if (v := inner.atom(r)).flat() != n
    ]
    if pairs:
        values = [v for _, v in pairs]
        inner.statements.append(Assign([n for n, _ in pairs], values[0] if len(values) == 1 else Bare(values)))
    if not inner.statements:
        inner.statements.append(Lines("pass"))


def _name_results(w: EagerFunction, names: Sequence[str], outputs: Sequence[Value | None]) -> None:
    for name, output in zip(names, outputs, strict=True):
        if output is not None:
            w.names[output] = Name(name, Symbol(output.hint if output.named else None))


def _fresh(w: EagerFunction, output: Value | None, base: str) -> str:
    return w.scope.fresh(identifier((output.hint if output is not None else None) or base, base))
