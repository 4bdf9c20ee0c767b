"""The function of an expression such as `jax.vmap(jax.grad(f), in_axes=(None, 0))`: the author's, or a transformation of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from untrace.ir.derivatives import JACOBIANS
from untrace.ir.nodes import Atom, Constant, Equation, Function, Library, Slot, functions_called
from untrace.ir.signatures import CallSignature, DerivativeSignature
from untrace.ir.structured import Map, derivative_in
from untrace.module.call_arguments import Argument, arguments_of, function_of
from untrace.module.interface.put_together import rebuilt
from untrace.module.nested import function_hint
from untrace.python.tree import Call, Expr, Text, Tuple


def transformed(
    w: Any,
    equation: Equation,
    operands: Sequence[Expr],
    body: Function,
    arguments: Sequence[Argument],
    signature: CallSignature,
) -> Expr:
    """The function that a call is of: the author's, or another transformation of it where that is all that is done."""
    alone = signature.stands_alone(equation.inputs)
    again = body.equations[0] if len(body.equations) == 1 else None
    if again is not None and type(again.callee) is Map and alone:
        own = again.callee.signature
        if same(again.inputs, body.params) and same(again.outputs, body.results) and own.stands_alone(again.inputs):
            return mapped(w, again, again.callee, operands, arguments_of(own, again.callee.function))
    if again is not None and type(again.callee) is Library and same(again.inputs, body.params) and not signature.closed:
        slots = [a.index if type(a) is Slot else None for a in again.callee.args]
        plain = again.callee.name.startswith(("jnp.", "jax.")) and not again.callee.kwargs
        if plain and slots == list(range(len(body.params))) and same(again.outputs, body.results):
            w.module.modules.add(again.callee.name.partition(".")[0])
            return Text(again.callee.name)
    derivative = derivative_in(again.callee) if again is not None else None
    if again is not None and derivative is not None and again.callee.name in ("value_and_grad", *JACOBIANS):
        found = _of_derivative(w, again, derivative.signature, operands, body, signature.closed)
        if found is not None:
            return found
    return function_of(w, equation, operands, body, arguments, alone, signature)


def same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two sequences have the same objects."""
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def mapped(w: Any, equation: Equation, call: Map, operands: Sequence[Expr], arguments: Sequence[Argument]) -> Expr:
    """`jax.vmap(f, in_axes, out_axes)`, for the equation of that call."""
    function = transformed(w, equation, operands, call.function, arguments, call.signature)
    kwargs = []
    axes = [_axes(w, a.example, [call.in_axes[p] for p in a.places]) for a in arguments]
    if any(axis.flat() != "0" for axis in axes):
        is_one = len({axis.flat() for axis in axes}) == 1 and axes[0].flat().lstrip("-").isdigit()
        kwargs.append(("in_axes", axes[0] if is_one else Tuple(axes)))
    if any(axis != 0 for axis in call.out_axes):
        kwargs.append(("out_axes", _axes(w, call.signature.out, call.out_axes)))
    return Call("jax.vmap", [function], kwargs)


def _axes(w: Any, example: Any, axes: Sequence[int | None]) -> Expr:
    """One number where all are the same, as `jax.vmap` takes it; else the tree of them."""
    texts: list[Expr] = [Text(repr(axis)) for axis in axes]
    return texts[0] if len(set(axes)) == 1 else rebuilt(w, example, texts)


def _of_derivative(
    w: Any,
    equation: Equation,
    signature: DerivativeSignature,
    operands: Sequence[Expr],
    outer: Function,
    closed: int,
) -> Expr | None:
    """`jax.grad(f)` or `jax.jacfwd(f)` for a function that does nothing else than this equation; None where it does.

    closed: how many of its parameters, which are `operands` here, are values that it closes over.
    """
    (body,) = functions_called(equation)
    own = equation.inputs[: signature.closed]
    count = len(jax.tree.leaves(signature.out))
    places: dict[Atom, int] = {p: i for i, p in enumerate(outer.params)}
    if signature.args[1] or not same(equation.inputs[signature.closed :], outer.params[closed:]):
        return None
    if not all(x in places or type(x) is Constant for x in own) or any(o is None for o in equation.outputs[count:]):
        return None
    name, inner = (function_hint(f, "", equation)[0] for f in (outer, body))
    is_plain = equation.callee.name == "value_and_grad" and all(x in places for x in own)
    if not is_plain and name not in ("", "unnamed", inner):  # a function of the author's
        return None
    transform = signature.transform
    value, aux, gradients = equation.outputs[:1], equation.outputs[1:count], equation.outputs[count:]
    if equation.callee.name in JACOBIANS:
        if signature.has_aux or not same(outer.results, equation.outputs):
            return None
    elif same(outer.results, [*value, *aux, *gradients]):
        transform = "value_and_grad"
    elif same(outer.results, [*gradients, *aux]):
        transform = "grad"
    else:
        return None
    around = [operands[places[x]] if x in places else w.atom(x) for x in own]
    given = [*around, *operands[closed : len(outer.params)]]
    function = transformed(w, equation, given, body, arguments_of(signature, body), signature)
    return gradient(transform, function, signature)


def gradient(transform: str, function: Expr, signature: DerivativeSignature) -> Expr:
    """`jax.grad(f, argnums=..., has_aux=True)`."""
    options: list[tuple[str, Expr]] = []
    if signature.argnums != 0:
        options.append(("argnums", Text(repr(signature.argnums))))
    if signature.has_aux:
        options.append(("has_aux", Text("True")))
    return Call(f"jax.{transform}", [function], [*options, *((name, Text("True")) for name in signature.options)])
