"""Derivatives and maps that the capture kept as calls of the author's: `torch.func`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from untrace import jax_compat
from untrace.ir.nodes import Function, Value, functions_called
from untrace.ir.scans import used_values
from untrace.ir.signatures import CallSignature, DerivativeSignature
from untrace.ir.structured import Map, Pullback, derivative_in
from untrace.module.call_arguments import Path, arguments_of, bind_result, function_of, given_to, is_leaf, passed
from untrace.module.interface.put_together import rebuilt
from untrace.module.rules import DECLINE, WRITTEN
from untrace.python.tree import Call, Expr, Text, Tuple
from untrace.targets.torch.rules.table import rule


def _parts(
    w: Any, operands: Sequence[Expr], body: Function, signature: CallSignature
) -> tuple[Expr, list[Expr], list[tuple[str, Expr]]]:
    """(the function, what it is called with by place, and by name)."""
    w.module.modules.add("torch")
    arguments, alone = arguments_of(signature, body), signature.stands_alone(w.equation.inputs)
    function = function_of(w, w.equation, operands, body, arguments, alone, signature)
    return function, *passed(w, operands, arguments, signature)


def _is_plain(signature: DerivativeSignature, *trees: Any) -> bool:
    """Whether it is the derivative of floats, by nothing that PyTorch has no word for."""
    return not signature.options and all(map(jax_compat.is_continuous, jax.tree.leaves(trees)))


def _options(signature: DerivativeSignature) -> list[tuple[str, Expr]]:
    found: list[tuple[str, Expr]] = []
    if signature.argnums != 0:
        found.append(("argnums", Text(repr(signature.argnums))))
    if signature.has_aux:
        found.append(("has_aux", Text("True")))
    return found


@rule("value_and_grad")
def value_and_grad(w: Any, *operands: Any, jaxpr: Function) -> Any:
    """`grads, value = torch.func.grad_and_value(f)(x)`, or `torch.func.grad` where nobody reads the value."""
    derivative = derivative_in(w.equation.callee)
    assert derivative is not None
    signature = derivative.signature
    if not _is_plain(signature, signature.gradients):
        return DECLINE
    function, args, kwargs = _parts(w, operands, jaxpr, signature)
    outputs: list[Value | None] = [o if o is None or w.is_read(o) else None for o in w.equation.outputs]
    count = len(jax.tree.leaves(signature.out))
    (value, *aux), gradients = outputs[:count], outputs[count:]
    words: dict[Path, str] = {(): "grads", (0,): "grads", (1,): "aux"}
    out, found = signature.gradients, [*gradients, *aux]
    if value is not None:
        out, found = (signature.gradients, signature.out), [*gradients, value, *aux]
        words = {(0,): "grads", (1,): "value", (1, 0): "value", (1, 1): "aux"}
    elif signature.has_aux:
        out = signature.gradients, signature.out[1]
    name = "grad" if value is None else "grad_and_value"
    call = Call(Call(f"torch.func.{name}", [function], _options(signature)), args, kwargs)
    bind_result(w, w.equation, call, out, found, words, moved={} if value is None else {0: 1, 1: 0})
    return WRITTEN


@rule("jacfwd", "jacrev", "hessian")
def jacobian(w: Any, *operands: Any, jaxpr: Function) -> Any:
    derivative = derivative_in(w.equation.callee)
    assert derivative is not None
    signature = derivative.signature
    if not _is_plain(signature, derivative.jacobian):
        return DECLINE
    function, args, kwargs = _parts(w, operands, jaxpr, signature)
    out = (derivative.jacobian, signature.out[1]) if signature.has_aux else derivative.jacobian
    words: dict[Path, str] = {(): "jacobian", (0,): "jacobian", (1,): "aux"}
    call = Call(Call(f"torch.func.{signature.transform}", [function], _options(signature)), args, kwargs)
    bind_result(w, w.equation, call, out, w.equation.outputs, words)
    return WRITTEN


@rule("jvp")
def jvp(w: Any, *operands: Any, jaxpr: Function) -> Any:
    """`y, y_dot = torch.func.jvp(f, (x,), (x_dot,))`."""
    derivative = derivative_in(w.equation.callee)
    assert derivative is not None
    signature = derivative.signature
    if not _is_plain(signature, signature.args, signature.value):
        return DECLINE
    function, args, kwargs = _parts(w, operands, jaxpr, signature)
    if kwargs:
        return DECLINE
    rest = iter(operands[len(jaxpr.params) :])
    tangents = [_tree(w, e, [next(rest) for _ in jax.tree.leaves(e)]) for e in signature.args[0]]
    options: list[tuple[str, Expr]] = [("has_aux", Text("True"))] if signature.has_aux else []
    call = Call("torch.func.jvp", [function, Tuple(args), Tuple(tangents)], options)
    several, count = len(jax.tree.leaves(signature.value)), len(jax.tree.leaves(signature.out))
    outputs = w.equation.outputs
    found = [*outputs[:several], *outputs[count:], *outputs[several:count]]
    aux = (signature.out[1],) if signature.has_aux else ()
    words: dict[Path, str] = {(1,): "tangents_out", (2,): "aux"}
    bind_result(w, w.equation, call, (signature.value, signature.value, *aux), found, words)
    return WRITTEN


def _tree(w: Any, example: Any, leaves: Sequence[Expr]) -> Expr:
    return leaves[0] if is_leaf(example) else rebuilt(w, example, list(leaves))


@rule("vjp")
def vjp(w: Any, *operands: Any, jaxpr: Function) -> Any:
    """`y, f_vjp = torch.func.vjp(f, x)`."""
    derivative = derivative_in(w.equation.callee)
    assert derivative is not None
    signature = derivative.signature
    if signature.around or not _is_plain(signature, signature.args, signature.value):
        return DECLINE
    function, args, kwargs = _parts(w, operands, jaxpr, signature)
    if kwargs:
        return DECLINE
    call = Call("torch.func.vjp", [function, *args], [("has_aux", Text("True"))] if signature.has_aux else [])
    *outs, token = w.equation.outputs
    several = len(jax.tree.leaves(signature.value))
    example = signature.value, _TOKEN, *((signature.out[1],) if signature.has_aux else ())
    words: dict[Path, str] = {(1,): "pullback", (2,): "aux"}
    bind_result(w, w.equation, call, example, [*outs[:several], token, *outs[several:]], words)
    return WRITTEN


_TOKEN = jax.ShapeDtypeStruct((), "int32")  # what stands for the pullback in the program


@rule("pullback")
def pullback(w: Any, *operands: Any) -> Any:
    assert type(w.equation.callee) is Pullback
    signature = w.equation.callee.derivative.signature
    given = _tree(w, signature.value, operands[1:])
    words: dict[Path, str] = {(i,): f"d_{name}" for i, name in enumerate(signature.names) if name}
    bind_result(w, w.equation, Call(operands[0], [given]), signature.args[0], w.equation.outputs, words)
    return WRITTEN


@rule("called")
def called(w: Any, *operands: Any, jaxpr: Function) -> Any:
    """A call of a function that is differentiated elsewhere."""
    derivative = derivative_in(w.equation.callee)
    assert derivative is not None
    function, args, kwargs = _parts(w, operands, jaxpr, derivative.signature)
    bind_result(w, w.equation, Call(function, args, kwargs), derivative.signature.out, w.equation.outputs)
    return WRITTEN


@rule("vmap")
def vmap(w: Any, *operands: Any, jaxpr: Function) -> Any:
    """`torch.func.vmap(f, in_dims=(None, 0))(x, y)`."""
    call = w.equation.callee
    assert type(call) is Map
    arguments = arguments_of(call.signature, jaxpr)
    alone = call.signature.stands_alone(w.equation.inputs)
    if not alone:
        used = used_values(jaxpr)
        mapped = [a for a in arguments if any(call.in_axes[p] is not None for p in a.places)]
        arguments = [a for a in mapped if any(jaxpr.params[p] in used for p in a.places)] or mapped[:1]
    w.module.modules.add("torch")
    function = _gradient(w, operands, jaxpr, call.signature) if alone else None
    if function is None:
        function = function_of(w, w.equation, operands, jaxpr, arguments, alone, call.signature)
    options: list[tuple[str, Expr]] = []
    dims = [_dims(w, a.example, [call.in_axes[p] for p in a.places]) for a in arguments]
    if any(d.flat() != "0" for d in dims):
        options.append(("in_dims", dims[0] if len(dims) == 1 and dims[0].flat().isdigit() else Tuple(dims)))
    if any(axis != 0 for axis in call.out_axes):
        options.append(("out_dims", _dims(w, call.signature.out, call.out_axes)))
    given = [given_to(w, a, [operands[p] for p in a.places]) for a in arguments]
    made = Call(Call("torch.func.vmap", [function], options), given)
    bind_result(w, w.equation, made, call.signature.out, w.equation.outputs)
    return WRITTEN


def _gradient(w: Any, operands: Sequence[Expr], body: Function, around: CallSignature) -> Expr | None:
    """`torch.func.grad(f)` for a function that does nothing else; None where it does."""
    inner = body.equations[0] if len(body.equations) == 1 else None
    derivative = derivative_in(inner.callee) if inner is not None else None
    if inner is None or derivative is None or inner.callee.name != "value_and_grad" or around.closed:
        return None
    signature, count = derivative.signature, len(jax.tree.leaves(derivative.signature.out))
    gradients = inner.outputs[count:]
    is_all = list(inner.inputs) == list(body.params) and list(gradients) == list(body.results)
    if not is_all or signature.closed or signature.has_aux or not _is_plain(signature, signature.gradients):
        return None
    (function,) = functions_called(inner)
    found = function_of(w, inner, operands, function, arguments_of(signature, function), True, signature)
    return Call("torch.func.grad", [found], _options(signature))


def _dims(w: Any, example: Any, axes: Sequence[int | None]) -> Expr:
    """One number where all are the same; else the tree of them."""
    texts: list[Expr] = [Text(repr(axis)) for axis in axes]
    return texts[0] if len(set(axes)) == 1 else rebuilt(w, example, texts)
