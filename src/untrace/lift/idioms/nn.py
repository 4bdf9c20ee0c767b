"""Functions of `jax.nn` and `jax.scipy.special` that JAX traces inline."""

from __future__ import annotations

from collections.abc import Iterator

from untrace.ir.nodes import Equation, Literal
from untrace.lift.engine import Guess, Matcher, idiom
from untrace.lift.idioms.reductions import axis_arguments, reduced


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
            inside = m.producer(equation.inputs[1], "mul", "add", "erfc", "tanh", "logistic")
            if inside is not None:
                yield Guess("jax.nn.gelu", (x,))
                yield Guess("jax.nn.gelu", (x,), {"approximate": False})
                yield Guess("jax.nn.silu", (x,))
                yield Guess("jax.nn.mish", (x,))
            return
