"""Equations that call functions: what goes in and comes out, and what those functions are called."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from untrace import jax_compat
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Cond, Equation, Function, Literal, Scan, Value, While, functions_called, functions_in
from untrace.ir.structured import CustomRule, derivative_in
from untrace.lift.naming import parameters, words
from untrace.provenance.sites import Site


def places(equation: Equation) -> list[parameters.Path | None] | None:
    """Where each output stands in the value that the call returned, from what JAX knows of the called function."""
    for function in functions_called(equation):
        if len(function.results) != len(equation.outputs) or function.jaxpr is None:
            continue
        paths = jax_compat.result_paths(function.jaxpr)
        if (
            paths is not None
            and jax_compat.argument_names(function.jaxpr) is not None
            and len(paths) == len(equation.outputs)
        ):
            found = [parameters.parse_path(p)[1:] for p in paths]
            if not jax_compat.is_body_of_fori_loop(function.jaxpr):
                return [*found]
            carry = (0, 1) if type(equation.callee) is Scan else (2,)  # the author's, beside the counter
            return [place[len(carry) :] if place[: len(carry)] == carry else None for place in found]
    return None


def guessed_places(equation: Equation) -> list[parameters.Path | None]:
    """The same where JAX does not know: a scan returns (carry, outputs), other calls a tuple."""
    count = len(equation.outputs)
    if type(equation.callee) is not Scan:
        return [(i,) for i in range(count)]
    carries = equation.callee.carries
    carry: list[parameters.Path | None] = [(0,)] if carries == 1 else [(0, i) for i in range(carries)]
    stacked = count - carries
    # After differentiation residuals follow the outputs, which come first.
    return [*carry, *([(1,)] if stacked else []), *([None] * (stacked - 1))]


def inner_result(equation: Equation, index: int, lent: Container[Value] = ()) -> str | None:
    """The name inside the called function of what comes out as output `index`.

    lent: ids of values whose names do not count: they are those that one caller has for them.
    """
    zeros = None  # what one branch gives where another one has something
    for function in functions_called(equation):
        if len(function.results) != len(equation.outputs):
            continue
        result = function.results[index]
        if type(result) is not Value or not result.hint or result in lent:
            continue
        if type(equation.callee) is Cond and result.hint in words.CONSTANTS:
            zeros = zeros or result.hint
            continue
        if type(equation.callee) is Scan:
            consts, carries = equation.callee.consts, equation.callee.carries
            if index < carries:
                return function.params[consts + index].hint if consts + index < len(function.params) else None
            return words.plural(result.hint)
        return result.hint
    return zeros


def functions_by_role(equation: Equation) -> list[tuple[str, list[Function]]]:
    """The functions of an equation, with the name of the parameter that holds them."""
    if type(equation.callee) is CustomRule:
        return [("function", [function]) for function in equation.callee.bodies]
    return [(key, functions_in(value)) for key, value in equation.parameters.items()]


def results_inside(equation: Equation, index: int) -> list[Any]:
    """What the functions that an equation calls once give for output `index`."""
    if not equation.may_hold_functions or type(equation.callee) in (Scan, While):
        return []
    return [f.results[index] for f in functions_called(equation) if len(f.results) == len(equation.outputs)]


def operands(equation: Equation, key: str, function: Function) -> list[Any]:
    """What an equation passes for each parameter of one of its functions; empty where that is not known."""
    inputs = list(equation.inputs)
    loop = equation.callee
    count = len(function.params)
    if type(loop) is While:
        own = (
            inputs[: loop.condition_consts]
            if function is loop.condition
            else inputs[loop.condition_consts : loop.consts]
        )
        inputs = [*own, *inputs[loop.consts :]]
    elif type(loop) is Cond:
        inputs = inputs[1:]
    return inputs if len(inputs) == count else []


def carry_after_results(equation: Equation, function: Function, known: int) -> None:
    """A cotangent that a backward loop sums up is named where it is added to."""
    loop = callee_of(equation, Scan)
    consts, carries = loop.consts, loop.carries
    for i, (param, result) in enumerate(
        zip(function.params[consts : consts + carries], function.results, strict=False)
    ):
        if not known >> i & 1 and type(result) is Value and result.hint and result.hint.startswith("d_"):
            param.hint = result.hint


_TURNED = frozenset({"transpose", "reshape", "squeeze", "broadcast_in_dim", "convert_element_type"})


def added(makers: Mapping[Any, Equation], carry: Value, result: Any) -> Equation | None:
    """The equation that computes what the body of a loop adds to a carry; of several the last one. `makers`: the equations
    of the body by what they give."""
    total = makers.get(result)
    if total is None or total.callee.name not in ("add_any", "add") or carry not in total.inputs:
        return None
    term = makers.get(next((a for a in total.inputs if a is not carry), carry))
    while term is not None and term.callee.name in _TURNED:
        term = makers.get(term.inputs[0])
    return term


def carry_after_values(function: Function, consts: int, carries: int) -> None:
    """A carry that is only known by what the loop starts from (`zeros`), or by its place in a tuple (`state_1`), is called
    as its author calls the value that the body gives for it."""
    params = function.params[consts : consts + carries]
    known = {param.hint for param in function.params}
    for param, result in zip(params, function.results, strict=False):
        if type(result) is not Value or not (result.named or result.named_inside) or result.hint in known:
            continue
        if (
            param.hint in words.CONSTANTS
            or _PLACE.search(param.hint or "")
            and not _is_authors(function, param.hint or "")
        ):
            param.hint = result.hint
            known.add(result.hint)


def _is_authors(function: Function, name: str) -> bool:
    """Whether a variable of the author's function has that name, as far as that is known."""
    definition = parameters.definition_of(function.jaxpr) if function.jaxpr is not None else None
    if definition is None or name in parameters.unpacked_names(function.jaxpr).values():
        return True
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(definition))


_PLACE = re.compile(r"_\d+$")


def constant_word(equation: Equation) -> str:
    """What an equation on literals alone makes: zeros, ones."""
    value: Any = next((a.value for a in equation.inputs if type(a) is Literal), None)
    try:
        return {0.0: "zeros", 1.0: "ones"}.get(float(value), equation.callee.name)
    except (TypeError, ValueError):
        return equation.callee.name


def after_definition(names: list[str | None], function: Function, consts: int, carries: int) -> None:
    """After a transformation JAX has forgotten the names: `def step(hidden, x)` still says what carry and slices are."""
    if function.jaxpr is None or jax_compat.argument_names(function.jaxpr) is not None:
        return
    own = parameters.positional(parameters.definition_of(function.jaxpr))
    if len(own) != 2:
        return
    if jax_compat.is_body_of_fori_loop(function.jaxpr):  # takes a counter, and what the loop carries
        if len(own[0]) == 1 and carries:
            names[consts] = own[0][0]
        if len(own[1]) == carries - 1:
            names[consts + 1 : consts + carries] = own[1]
        return
    if len(own[0]) == carries:
        names[consts : consts + carries] = own[0]
    slices = len(names) - consts - carries
    if len(own[1]) <= slices:
        names[consts + carries : consts + carries + len(own[1])] = own[1]


_ROLES = {
    ("scan", "jaxpr"): "scan_step", ("while", "cond_jaxpr"): "loop_condition", ("while", "body_jaxpr"): "loop_body",
    ("cond", "branches_0"): "branch_0", ("cond", "branches_1"): "branch_1",
    ("vmap", "jaxpr"): "one",
}  # fmt: skip
_TOKENS = {"vjp": "pullback", "linearize": "pushforward", "linear_transpose": "transposed"}


def function_name(function: Function, kind: str, role: str, phase: str) -> str:
    """The author's name of a function; for a lambda what it is to the equation. `_bwd` follows in a backward pass."""
    own = jax_compat.function_name(function.jaxpr) if function.jaxpr is not None else ""
    own = own.rpartition(".")[2].strip("_") if not own.startswith("<") else ""
    if not own or own in ("wrapped", "wrapper", "fun", "f_wrapped", "scanned_fun", "call_wrapped", "while_body_fun"):
        own = _ROLES.get((kind, role)) or (role if kind == "cond" else "inner")
        if own.startswith("branches_"):
            own = own.replace("branches", "branch")
    name = words.clean(own, "inner")
    return f"{name}_bwd" if phase == "backward" and kind in ("scan", "while") else name


def name_token(equation: Equation, strong: Sequence[Any]) -> None:
    """What `jax.vjp` and its like give to call later goes through functions by its name."""
    derivative = derivative_in(equation.callee)
    word = _TOKENS.get(equation.callee.name)
    if derivative is not None and word is not None and equation.outputs[-1] is not None:
        path = () if word == "transposed" else (1,)
        own = not derivative.signature.around
        found = next((t.name for t in strong if own and t.path == path), None)
        equation.outputs[-1].hint = word if found is None else words.clean(found)


def place_of_part(equation: Equation, slices: Mapping[Value | None, Equation], site: Site) -> int | None:
    """Which part of an array an equation gives where the array is taken apart along its first axis: `a, b, c = x`."""
    of = equation.inputs[0] if equation.callee.name == "squeeze" and equation.inputs else None
    inside = slices.get(of) if type(of) is Value else None
    if inside is None or not site.frames or isinstance(site.frames[-1].node, ast.Subscript):
        return None
    start, limit = inside.origin.params["start_indices"][0], inside.origin.params["limit_indices"][0]
    return int(start) if tuple(equation.origin.params["dimensions"]) == (0,) and limit == start + 1 else None
