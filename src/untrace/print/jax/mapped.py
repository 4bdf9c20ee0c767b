"""`jax.vmap(f, in_axes)(x, y)`: calls that the capture found again (`capture/vmaps.py`), with the author's pytrees.

A function that closes over nothing stands in the module, and takes what the author gave it. One that closes over
values stands where it is called, and closes over all that is the same for every element.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from untrace.capture.provenance import Provenance, targets
from untrace.ir.nodes import Equation, Function, Value
from untrace.ir.scans import used_values
from untrace.lift.words import clean
from untrace.print.jax.bodies import BareReturn, argument_words, function_hint, hint_of, put_definition
from untrace.print.jax.leaves import Leaf, bind_leaves, last_word, reach
from untrace.print.jax.local import placed
from untrace.print.jax.results import rebuilt
from untrace.print.jax.types import array_type, tree_type
from untrace.print.names import Scope, identifier
from untrace.print.tree import Assign, Call, Def, Expr, Name, Parameter, Return, Statement, Text, Tuple

_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(slots=True)
class Argument:
    """One argument of the mapped function: its tree for one element, and the places of its leaves."""

    example: Any
    places: list[int]
    name: str


def vmap(w: Any, operands: Sequence[Expr], body: Function, in_axes: Sequence[int | None]) -> None:
    """Writes the function, its call, and what the call gives back."""
    equation = w.equation
    w.module.modules.add("jax")
    arguments = _arguments(equation, body)
    signature = equation.params["signature"]
    if signature.transform != "vmap":  # a number says which of the arguments it is
        arguments = [a for a in arguments if any(in_axes[p] is not None for p in a.places)]
    elif not signature.stands_alone(equation.inputs):
        used = used_values(body)
        mapped = [a for a in arguments if any(in_axes[p] is not None for p in a.places)]
        # What no element needs is left out, but something must say how many there are.
        arguments = [a for a in mapped if any(body.params[p] in used for p in a.places)] or mapped[:1]
    function = _mapped(w, equation, operands, arguments)
    given = [_given(w, a, [operands[p] for p in a.places]) for a in arguments]
    _assign(w, equation, Call(function, given))


def _mapped(w: Any, equation: Equation, operands: Sequence[Expr], arguments: Sequence[Argument]) -> Expr:
    """`jax.vmap(f, in_axes, out_axes)`."""
    body, in_axes, out_axes = (equation.params[k] for k in ("jaxpr", "in_axes", "out_axes"))
    signature = equation.params["signature"]
    alone = signature.stands_alone(equation.inputs)
    again = body.equations[0] if alone and len(body.equations) == 1 else None
    if (
        again is not None
        and again.callee.name == "vmap"
        and _same(again.inputs, body.params)
        and _same(again.outputs, body.results)
        and again.params["signature"].stands_alone(again.inputs)
    ):
        function = _mapped(w, again, operands, _arguments(again, again.params["jaxpr"]))
    else:
        function = _function(w, equation, operands, body, arguments, alone)
    if signature.transform != "vmap":
        numbers = [("argnums", Text(str(signature.argnums)))] if signature.argnums else []
        return Call(f"jax.{signature.transform}", [function], numbers)
    kwargs = []
    axes = [_axes(w, a.example, [in_axes[p] for p in a.places]) for a in arguments]
    if any(axis.flat() != "0" for axis in axes):
        same = len({axis.flat() for axis in axes}) == 1 and axes[0].flat().lstrip("-").isdigit()
        kwargs.append(("in_axes", axes[0] if same else Tuple(axes)))
    if any(axis != 0 for axis in out_axes):
        kwargs.append(("out_axes", _axes(w, signature.out, out_axes)))
    return Call("jax.vmap", [function], kwargs)


def _same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def _arguments(equation: Equation, body: Function) -> list[Argument]:
    signature = equation.params["signature"]
    words = argument_words(body, 0)
    args, kwargs = signature.args
    place = signature.closed
    found = []
    for key, example in [*enumerate(args), *sorted(kwargs.items())]:
        count = len(jax.tree.leaves(example))
        places = list(range(place, place + count))
        place += count
        if not count:
            continue
        name = key if type(key) is str else words[places[0]][0]
        found.append(Argument(example, places, identifier(name or "x", "x")))
    return found


# ---------------------------------------------------------------- the function


def _function(
    w: Any,
    equation: Equation,
    operands: Sequence[Expr],
    body: Function,
    arguments: Sequence[Argument],
    alone: bool,
) -> Expr:
    hint = equation.params["signature"].name or function_hint(body, "one", equation)[0]
    hint = identifier(hint, "one")
    if alone:
        inner = w.module.writer()
    else:
        packed = {p for a in arguments for p in a.places}
        closed = [(v, x) for i, (v, x) in enumerate(zip(body.params, operands, strict=True)) if i not in packed]
        scope = Scope(w.module.scope)
        for word in sorted({word for _, x in closed for word in _WORD.findall(x.flat())}):
            scope.claim_parameter(word)
        inner = type(w)(w.module, scope).inside(w)
        inner.names.update(closed)
    params: list[Parameter] = []
    types: list[tuple[str, Any]] = []
    leaves: list[tuple[Value, Leaf]] = []
    for argument in arguments:
        values = [body.params[p] for p in argument.places]
        whole = _is_leaf(argument.example)
        name = Name(inner.scope.fresh((whole and hint_of(values[0])) or argument.name))
        params.append(Parameter(name.id))
        if whole:
            inner.names[values[0]] = name
            types.append((name.id, array_type(values[0].aval)))
            continue
        found = reach(argument.example, name)
        leaves.extend(zip(values, found or [], strict=True))
        inner.trees.add(name, argument.example, values)
        inner.trees.arguments.update([id(v) for v in values])
        types.append((name.id, tree_type(argument.example, [v.aval for v in values])))
    bind_leaves(inner, leaves, body.equations, body.results, lambda value, leaf: hint_of(value) or last_word(leaf))
    inner.equations(body.equations, body.results)
    results = [inner.atom(r) for r in body.results]
    out = equation.params["signature"].out
    value = returned(inner.statements, rebuilt(inner, out, results))
    result_type = tree_type(out, [r.aval for r in body.results])
    if alone:
        definition = Def("", params, [*inner.statements, Return(value)])
        return Name(placed(w.module, definition, hint, lambda d: w.module.described.describe(d, types, result_type)))
    name = w.scope.fresh(hint)
    put_definition(w.statements, Def(name, params, [*inner.statements, BareReturn(value)]))
    return Name(name)


# ---------------------------------------------------------------- the call


def _given(w: Any, argument: Argument, operands: Sequence[Expr]) -> Expr:
    """The operand for an argument: the tree with these leaves, or one that is put together here."""
    if _is_leaf(argument.example):
        return operands[0]
    return rebuilt(w, argument.example, operands)


def _axes(w: Any, example: Any, axes: Sequence[int | None]) -> Expr:
    """One number where all are the same, as `jax.vmap` takes it; else the tree of them."""
    texts: list[Expr] = [Text(repr(axis)) for axis in axes]
    return texts[0] if len(set(axes)) == 1 else rebuilt(w, example, texts)


class Unpacked(Assign):
    """`a, b = f(x)`, where what the call gives is a tuple of that many: `return a, b` may be `return f(x)`."""

    __slots__ = ()


def returned(statements: list[Statement], value: Expr) -> Expr:
    """What to return instead of `value`: the call that the last statement, which is taken away then, gave the names for."""
    last = statements[-1] if statements else None
    if type(last) is not Unpacked:
        return value
    several = value.elements if type(value) is Tuple else [value]
    names = [e.id if type(e) is Name else e.root.id if isinstance(e, Leaf) and not e.steps else "" for e in several]
    if names != list(last.targets) or (type(value) is Tuple) != (len(names) > 1):
        return value
    statements.pop()
    return last.value


def _assign(w: Any, equation: Equation, call: Expr) -> None:
    """Binds what comes back: a name for each array, and for each tree in a tuple."""
    out = equation.params["signature"].out
    outputs = list(equation.outputs)
    if _is_leaf(out):
        w._statement(equation, call)
        return
    names = {t.path: clean(t.name) for t in targets(Provenance().site(equation.origin)) if t.strong}
    parts = list(out) if type(out) is tuple and len(out) > 1 else [out]
    bound: list[str] = []
    place = 0
    for number, part in enumerate(parts):
        count = len(jax.tree.leaves(part))
        values = outputs[place : place + count]
        place += count
        if _is_leaf(part):
            bound.append("_" if values[0] is None else w._target(values[0], "out"))
            continue
        word = names.get((number,) if len(parts) > 1 else (), "out")
        root = Name(w.scope.fresh(identifier(word, "out")))
        bound.append(root.id)
        for value, leaf in zip(values, reach(part, root) or [], strict=True):
            if value is not None:
                w.names[value] = leaf
        if None not in values:
            w.trees.add(root, part, values)
    w.statements.append(Unpacked(bound, call, equation.origin))


def _is_leaf(example: Any) -> bool:
    return jax.tree_util.all_leaves([example])
