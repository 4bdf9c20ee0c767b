"""Functions of `jax.nn` and `jax.scipy.special` that JAX traces inline."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as product_of
from typing import Any

from untrace.ir.callees import output_of
from untrace.ir.nodes import Equation, Literal, Value
from untrace.lift.recognise.engine import Guess, Matcher, idiom
from untrace.lift.recognise.idioms.reductions import axis_arguments, reduced
from untrace.lift.recognise.scalars import python_scalar


@idiom("div")
def _softmax(m: Matcher, equation: Equation) -> Iterator[Guess]:
    exp, total = equation.inputs
    e = m.producer(exp, "exp")
    if e is None:
        return
    shifted = m.producer(e.inputs[0], "sub")
    inside = m.producer(m.through(total, "broadcast_in_dim"), "reduce_sum")
    if shifted is None or inside is None:
        return
    largest = shifted.inputs[1]  # JAX lets no derivative through it
    if m.producer(m.through(largest, "broadcast_in_dim") or largest, "stop_gradient") is None:
        return
    _, axes = reduced(m, inside)
    x = shifted.inputs[0]
    for kwargs in axis_arguments(axes, len(x.aval.shape)):
        yield Guess("jax.nn.softmax", (x,), kwargs)


@idiom("add")
def _logsumexp(m: Matcher, equation: Equation) -> Iterator[Guess]:
    log = m.producer(equation.inputs[0], "log")
    if log is None:
        return
    total = log.inputs[0]
    total = m.through(total, "abs") or total
    inside = m.producer(total, "reduce_sum") or m.producer(m.through(total, "broadcast_in_dim"), "reduce_sum")
    if inside is None:
        return
    exp = m.producer(inside.inputs[0], "exp")
    shifted = m.producer(exp.inputs[0], "sub") if exp is not None else None
    if shifted is None:
        return
    x = shifted.inputs[0]
    _, axes = reduced(m, inside)
    for keep in (False, True):
        for kwargs in axis_arguments(axes, len(x.aval.shape), keepdims=keep):
            yield Guess("jax.nn.logsumexp", (x,), kwargs)


@idiom("mul")
def _gelu(m: Matcher, equation: Equation) -> Iterator[Guess]:
    for x in equation.inputs:
        if type(x) is not Literal:
            inside = m.producer(equation.inputs[1], "mul", "add", *_SIGMOIDS)
            alone = inside is not None and not m.is_used_outside(inside.outputs[0], [equation])
            found = _sigmoids(m, inside) if inside is not None and alone else set()
            if "tanh" in found:
                yield Guess("jax.nn.gelu", (x,))
            if found & {"erf", "erfc"}:
                yield Guess("jax.nn.gelu", (x,), {"approximate": False})
            if "logistic" in found:
                yield Guess("jax.nn.silu", (x,))
            if "tanh" in found:
                yield Guess("jax.nn.mish", (x,))
            return


_SIGMOIDS = ("erfc", "erf", "tanh", "logistic")


def _sigmoids(m: Matcher, equation: Equation) -> set[str]:
    """Which of `_SIGMOIDS` an equation is, or sums and products of."""
    if equation.callee.name in _SIGMOIDS:
        return {equation.callee.name}
    before = [e for a in equation.inputs if (e := m.producer(a, "mul", "add", *_SIGMOIDS)) is not None]
    inner = [e for b in before for a in b.inputs if (e := m.producer(a, *_SIGMOIDS)) is not None]
    return {e.callee.name for e in (*before, *inner)}.intersection(_SIGMOIDS)


# What stands between the product of queries and keys and the weights: scale, bias, masks, softmax.
_BETWEEN = (
    "div", "exp", "sub", "stop_gradient", "broadcast_in_dim", "reduce_sum", "reduce_max", "max", "jit", "pjit", "select_n",
    "mul", "add", "and", "convert_element_type", "transpose", "reshape", "squeeze",
)  # fmt: skip
_MOST_BETWEEN = 40


@idiom("reshape")
def _dot_product_attention(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """Its groups of heads are an axis of their own, over which JAX maps it: the result is transposed, then reshaped."""
    result = equation.inputs[0]
    while (before := m.through(result, "transpose")) is not None:
        result = before
    product = m.producer(result, "dot_general")
    if product is None or len(output_of(equation).aval.shape) != 4:
        return
    operands = [a for a in product.inputs if type(a) is Value]
    if sorted(len(a.aval.shape) for a in operands) != [4, 5]:
        return
    value, weights = sorted(operands, key=lambda a: len(a.aval.shape))
    scores, between = _scores(m, weights)
    sides = [(m.through(a, "reshape"), b) for a, b in zip(scores, scores[::-1], strict=True)]
    found = [(q, k) for q, k in sides if q is not None and len(q.aval.shape) == len(k.aval.shape) == 4]
    if len(found) != 1:
        return
    args = (*found[0], value)
    # A scale that is not the usual one, a mask, a bias: what there is of these shows in the equations.
    given: list[list[dict[str, Any]]] = [[{}], [{}], [{}]]
    for atom in between:
        is_bool, is_number = atom.aval.dtype == bool, type(atom) is Literal
        if is_number and not is_bool and atom.value > 0:
            given[0].append({"scale": python_scalar(atom.value, atom.aval)})
        elif not is_number and len(atom.aval.shape) == 4:  # by batch, head, query and key
            given[1 if is_bool else 2].append({"mask" if is_bool else "bias": atom})
    # A mask that is made of nothing is JAX's own.
    masked = any(type(a) is Literal and a.aval.dtype == bool for a in between)
    for scale, mask, bias in product_of(*given):
        for causal in ({}, {"is_causal": True})[:: -1 if masked else 1]:
            yield Guess("jax.nn.dot_product_attention", args, {**bias, **mask, **scale, **causal})


def _scores(m: Matcher, weights: Value) -> tuple[list[Value], list[Any]]:
    """The operands of the product of queries and keys, and what else goes into the weights that come of it."""
    scores: list[Value] = []
    between: dict[Any, None] = {}
    todo = [weights]
    while todo and len(between) < _MOST_BETWEEN:
        atom = todo.pop(0)
        equation = m.producer(atom, *_BETWEEN, "dot_general") if type(atom) is Value else None
        if equation is not None and equation.callee.name == "dot_general":
            scores = scores or [a for a in equation.inputs if type(a) is Value]
        elif equation is not None:
            todo += [a for a in equation.inputs if a not in between]
            between.update(dict.fromkeys(equation.inputs))
    return scores if len(scores) == 2 else [], list(between)
