"""`jax.pmap(f)(x)`: what is left of such a call is a jitted `shard_map` (`lift/recognise/pmaps.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace.ir.nodes import Equation, Function, Value
from untrace.lift.recognise.pmaps import UNNAMED, axes_of
from untrace.module.access_paths import last_word
from untrace.module.known_trees import leaf_behind
from untrace.module.rules import Whole
from untrace.provenance.sites import Provenance
from untrace.python.statements import Statement
from untrace.python.tree import Call, Expr, Lambda, Name, Text, Tuple

_LONGEST = 50


def pmap(w: Any, operands: Sequence[Expr], function: Function) -> Any:
    """The call that a jitted function is; None for another one."""
    inner = function.equations[0] if len(function.equations) == 1 else None
    if inner is None or inner.callee.name != "shard_map" or inner.origin is None:
        return None
    axes = axes_of(inner.params)
    if axes is None or list(inner.inputs) != list(function.params) or list(inner.outputs) != list(function.results):
        return None
    body = _of_one(inner.params["jaxpr"], axes)
    if body is None:
        return None
    w.module.modules.add("jax")
    kwargs: list[tuple[str, Expr]] = []
    name = inner.params["mesh"].axis_names[0]
    if name != UNNAMED:
        kwargs.append(("axis_name", w.source(name)))
    if any(axis is None for axis in axes):
        kwargs.append(("in_axes", Tuple([Text(str(axis)) for axis in axes])))
    call = Call(Call("jax.pmap", [_written(w, body, operands)], kwargs), operands)
    return Whole(call) if len(body.results) == 1 else call


def _of_one(body: Function, axes: Sequence[int | None]) -> Function | None:
    """The function that is mapped: without what takes the axis of the devices out and puts it in again."""
    made: dict[Any, Equation] = {o: e for e in body.equations for o in e.outputs}
    gone: list[Equation] = []
    params: list[Value] = []
    for param, axis in zip(body.params, axes, strict=True):
        uses = [e for e in body.equations if param in e.inputs]
        if axis is None:
            params.append(param)
            continue
        if len(uses) != 1 or _primitive(uses[0]) != "squeeze" or param in body.results:
            return None
        (one,) = uses[0].outputs
        assert one is not None
        one.hint = one.hint or param.hint
        params.append(one)
        gone.append(uses[0])
    results = []
    for result in body.results:
        last = made.get(result)
        if last is None or _primitive(last) != "broadcast_in_dim" or len(last.inputs) != 1:
            return None
        if any(result in e.inputs for e in body.equations):
            return None
        results.append(last.inputs[0])
        gone.append(last)
    return Function(body.name, params, [e for e in body.equations if e not in gone], results)


def _primitive(equation: Equation) -> str:
    return equation.origin.primitive.name if equation.origin is not None else ""


def _written(w: Any, body: Function, operands: Sequence[Expr]) -> Expr:
    """The function by name, or as a lambda where it is one expression."""
    code = _author(w, body)
    own = code.co_varnames[: code.co_argcount] if code is not None else ()
    for place, (param, operand) in enumerate(zip(body.params, operands, strict=True)):
        if (param.hint or "flat_arg").startswith("flat_arg"):
            leaf = leaf_behind(operand)
            word = last_word(leaf) if leaf is not None else operand.id if type(operand) is Name else "x"
            param.hint = own[place] if len(own) == len(body.params) else word
    definition = w.module.define(body, "")
    value = definition.body[0].value if len(definition.body) == 1 else None
    if value is not None and len(value.flat()) <= _LONGEST:
        names = [p.name for p in definition.params]
        if type(value) is Call and type(value.func) is str and not value.kwargs:
            if [a.id if type(a) is Name else "" for a in value.args] == names:
                return Text(value.func)
        return Lambda(names, value)
    name = code.co_name if code is not None and code.co_name.isidentifier() else "one"

    def named(written: str) -> list[Statement]:
        definition.name = written
        return [definition]

    return Name(w.module.named(("pmap", body), name, named))


def _author(w: Any, body: Function) -> Any:
    """The code of the function that the author maps."""
    provenance = Provenance()
    outside = [f.code for f in provenance.site(w.equation.origin).frames]
    for equation in body.equations:
        if equation.origin is not None:
            inside = [f for f in provenance.site(equation.origin).frames if not f.library and f.code not in outside]
            if inside:
                return inside[0].code
    return None
