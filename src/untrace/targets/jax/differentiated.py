"""`jax.value_and_grad(f)(x)`, `jax.vjp`, `jvp`, `linearize` and `linear_transpose`: derivatives that the capture kept as calls of the author's.

The functions are written as those of `jax.vmap` are (`mapped.py`): in the module where they close over nothing, else where
they are called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace.ir.nodes import Function, Value
from untrace.ir.signatures import Derivative, DerivativeSignature
from untrace.module.call_arguments import Path, arguments_of, bind_result, is_leaf, passed
from untrace.module.interface.put_together import rebuilt
from untrace.python.tree import Call, Expr, Text, Tuple
from untrace.targets.jax.transformed import gradient, transformed


def value_and_grad(w: Any, operands: Sequence[Expr], body: Function, derivative: Derivative) -> None:
    """Writes the function, `jax.value_and_grad` or `jax.grad` of it, and what it gives back."""
    signature = derivative.signature
    function, given = _parts(w, operands, body, signature)
    outputs = [o if o is None or w.is_read(o) else None for o in w.equation.outputs]
    count = len(jax.tree.leaves(signature.out))
    gradients = _with_gaps(outputs[count:], jax.tree.leaves(signature.gradients))
    value, aux = outputs[0], outputs[1:count]
    out, found = signature.gradients, [*gradients, *aux]
    words: dict[Path, str] = {(): "grads", (0,): "grads", (1,): "aux"}
    has_value = value is not None or signature.has_aux and signature.transform != "grad"
    if has_value:
        out, found = (signature.out, signature.gradients), [value, *aux, *gradients]
        words = {(0, 0): "value", (0, 1): "aux", (1,): "grads"} if signature.has_aux else {(0,): "value", (1,): "grads"}
    elif signature.has_aux:
        out = out, signature.out[1]
    call = Call(gradient("value_and_grad" if has_value else "grad", function, signature), *given)
    # Of a value that nobody reads the author may have asked all the same.
    part = (1,) if not has_value and signature.transform != "grad" else ()
    bind_result(w, w.equation, call, out, found, words, part)


def jvp(w: Any, operands: Sequence[Expr], body: Function, derivative: Derivative) -> None:
    signature = derivative.signature
    function, (args, _) = _parts(w, operands, body, signature)
    leaves = jax.tree.leaves(signature.args)
    given = _tangents(operands[len(body.params) :], leaves)
    tangents = [_tree(w, example, given) for example in signature.args[0]]
    count = len(jax.tree.leaves(signature.out))
    outputs = w.equation.outputs
    moved = _with_gaps(outputs[count:], jax.tree.leaves(signature.value))
    several = len(jax.tree.leaves(signature.value))
    options: list[tuple[str, Expr]] = [("has_aux", Text("True"))] if signature.has_aux else []
    call = Call("jax.jvp", [function, Tuple(args), Tuple(tangents)], options)
    aux = (signature.out[1],) if signature.has_aux else ()
    found = [*outputs[:several], *moved, *outputs[several:count]]
    bind_result(
        w, w.equation, call, (signature.value, signature.value, *aux), found, {(1,): "tangents_out", (2,): "aux"}
    )


def jacobian(w: Any, operands: Sequence[Expr], body: Function, derivative: Derivative) -> None:
    signature = derivative.signature
    function, given = _parts(w, operands, body, signature)
    out = (derivative.jacobian, signature.out[1]) if signature.has_aux else derivative.jacobian
    words: dict[Path, str] = {(): "jacobian", (0,): "jacobian", (1,): "aux"}
    bind_result(
        w, w.equation, Call(gradient(signature.transform, function, signature), *given), out, w.equation.outputs, words
    )


def called(w: Any, operands: Sequence[Expr], body: Function, derivative: Derivative) -> None:
    """A call of a function that is differentiated elsewhere."""
    signature = derivative.signature
    function, given = _parts(w, operands, body, signature)
    bind_result(w, w.equation, Call(function, *given), signature.out, w.equation.outputs)


def with_pullback(w: Any, operands: Sequence[Expr], body: Function, derivative: Derivative) -> None:
    """`y, f_vjp = jax.vjp(f, x)`, or the same of `jax.linearize`."""
    signature = derivative.signature
    function, (args, _) = _parts(w, operands, body, signature)
    options: list[tuple[str, Expr]] = [("has_aux", Text("True"))] if signature.has_aux else []
    call = Call(f"jax.{signature.transform}", [function, *args], options)
    *outs, token = w.equation.outputs
    several = len(jax.tree.leaves(signature.value))
    example = signature.value, jax.ShapeDtypeStruct((), np.int32), *((signature.out[1],) if signature.has_aux else ())
    words: dict[Path, str] = {(1,): "pullback" if signature.transform == "vjp" else "pushforward", (2,): "aux"}
    part = (0,) if signature.around else ()
    if signature.around and type(signature.out) is not tuple:
        words[part] = "grads" if signature.name == "gradient" else signature.name
    bind_result(w, w.equation, call, example, [*outs[:several], token, *outs[several:]], words, inside=part)


def linear_transpose(w: Any, operands: Sequence[Expr], body: Function, derivative: Derivative) -> None:
    """`f_transpose = jax.linear_transpose(f, x)`, of types where the author had no arrays."""
    signature = derivative.signature
    if len(operands) == signature.closed:
        operands = [*operands, *(_type(w, p.aval) for p in body.params[signature.closed :])]
    function, (args, _) = _parts(w, operands, body, signature)
    bind_result(w, w.equation, Call("jax.linear_transpose", [function, *args]), body.params[0], w.equation.outputs)


def _type(w: Any, aval: Any) -> Expr:
    """Something of this type."""
    return Text("0.0") if aval.weak_type and not aval.shape and aval.dtype == np.float32 else w.aval(aval)


def pullback(w: Any, operands: Sequence[Expr], signature: DerivativeSignature) -> None:
    given = _tangents(operands[1:], jax.tree.leaves(signature.value))
    call = Call(operands[0], [_tree(w, signature.value, given)])
    found = _with_gaps(w.equation.outputs, jax.tree.leaves(signature.args[0]))
    words: dict[Path, str] = {(i,): f"d_{name}" for i, name in enumerate(signature.names) if name}
    bind_result(w, w.equation, call, signature.args[0], found, words)


def pushforward(w: Any, operands: Sequence[Expr], signature: DerivativeSignature) -> None:
    given = _tangents(operands[1:], jax.tree.leaves(signature.args[0]))
    call = Call(operands[0], [_tree(w, example, given) for example in signature.args[0]])
    found = _with_gaps(w.equation.outputs, jax.tree.leaves(signature.value))
    bind_result(w, w.equation, call, signature.value, found, {(): "pushed"})


def _parts(
    w: Any, operands: Sequence[Expr], body: Function, signature: DerivativeSignature
) -> tuple[Expr, tuple[list[Expr], list[tuple[str, Expr]]]]:
    """(the function, what it is called with)."""
    w.module.modules.add("jax")
    equation = w.equation
    arguments = arguments_of(signature, body)
    function = transformed(w, equation, operands, body, arguments, signature)
    return function, passed(w, operands, arguments, signature)


def _tangents(operands: Sequence[Expr], like: Sequence[Any]) -> Iterator[Expr]:
    """An expression for each leaf: those given, and what stands for the tangents of integers."""
    given = iter(operands)
    for leaf in like:
        if jax_compat.is_continuous(leaf):
            yield next(given)
        else:
            yield Text(f"np.zeros({tuple(leaf.shape)!r}, jax.dtypes.float0)")


def _tree(w: Any, example: Any, leaves: Iterator[Expr]) -> Expr:
    found = [next(leaves) for _ in jax.tree.leaves(example)]
    if any(type(x) is Text and x.flat().startswith("np.zeros(") for x in found):
        w.module.modules.add("np")
    return found[0] if is_leaf(example) else rebuilt(w, example, found)


def _with_gaps(outputs: Sequence[Value | None], like: Sequence[Any]) -> list[Value | None]:
    """An output for each leaf; None where it has no tangent."""
    found = iter(outputs)
    return [next(found) if jax_compat.is_continuous(leaf) else None for leaf in like]
