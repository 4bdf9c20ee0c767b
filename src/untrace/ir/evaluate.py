"""An evaluator of the IR: what a Program means, and the oracle of every pass's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace import jax_compat
from untrace.ir import derivatives
from untrace.ir.bodies import PLAIN_CALLS
from untrace.ir.nodes import (
    Atom,
    Cond,
    Equation,
    Function,
    Library,
    Local,
    OverLeaves,
    Pack,
    Primitive,
    Scan,
    TreeMap,
    TupleType,
    Unpack,
    Value,
    While,
    functions_called,
)
from untrace.ir.signatures import Derivative
from untrace.ir.structured import CustomRule, JvpRule, Map, Pullback, Transformed, VjpRule
from untrace.ir.types import Aval, Data

Evaluator: TypeAlias = Callable[..., Sequence[Data]]  # of a Function on its arguments
PrimitiveEvaluator: TypeAlias = Callable[[Equation, Sequence[Data]], Sequence[Data]]


def evaluate(function: Function, *args: Data) -> list[Data]:
    """The results of `function` on `args` (arrays or tracers, one per parameter); usable under `jax.jit`, and differentiable.

    Everything that has a body is run by that, as passes have left it: a mapped function is mapped and a differentiated one
    differentiated here, with the rules that functions in it have. What has none, or is one of those that JAX alone can run
    (callbacks, kernels, functions with a rule for `vmap` or over references), is bound again as it was captured.
    """
    return run_equations(function, args, by_body)


def rounded_otherwise(function: Function, *args: Data) -> list[Data]:
    """The same, with the floats that each primitive gives off by their last digit, up or down in turn; of sums, and of factors
    of matrices, what they are made from as well: their rounding is of that, however little of it is left.

    What this differs from `evaluate` by is what rounding may make of the results on these arguments (Monte Carlo arithmetic
    with one draw; Parker, Pierce and Eggert, 2000).
    """

    def rounded(equation: Equation, inputs: Sequence[Data]) -> Sequence[Data]:
        given = [*_off(inputs[:1]), *inputs[1:]] if equation.callee.name in _SUMS else inputs
        return _off(by_body(equation, given, rounded_otherwise))

    return run_equations(function, args, rounded)


# Whose terms are rounded, too, before they are added in another order.
_SUMS = frozenset(
    (
        "dot_general",
        "conv_general_dilated",
        "reduce_sum",
        "cumsum",
        "reduce_window_sum",
        "cholesky",
        "lu",
        "triangular_solve",
    )
)


def bound_again(function: Function, *args: Data) -> list[Data]:
    """The same, every equation bound again as it was captured: what is traced so is the program that was captured."""
    return run_equations(function, args, bound)


def run_equations(function: Function, args: Sequence[Data], primitive: PrimitiveEvaluator) -> list[Data]:
    """The results of a function whose equations `primitive` evaluates, but for those of a pass's own; a value is let go after
    its last use."""
    env: dict[Value, Data] = dict(zip(function.params, args, strict=True))

    def read(atom: Atom) -> Data:
        return env[atom] if type(atom) is Value else atom.value

    last = {a: n for n, e in enumerate(function.equations) for a in e.inputs if type(a) is Value}
    last.update((a, -1) for a in function.results if type(a) is Value)
    for number, equation in enumerate(function.equations):
        inputs = [read(a) for a in equation.inputs]
        for atom in equation.inputs:
            if type(atom) is Value and last[atom] == number:
                env.pop(atom, None)
        callee = equation.callee
        outputs: Sequence[Data]
        if type(callee) is Pack:
            outputs = [tuple(inputs)]
        elif type(callee) is Unpack:
            outputs = inputs[0]
        elif type(callee) is TreeMap:
            outputs = [
                run_equations(f, callee.arguments(inputs, turn), primitive)[0] for turn, f in enumerate(callee.turns)
            ]
        elif isinstance(callee, OverLeaves):
            params = [a for a in equation.inputs if type(a) is Value]
            results = [o for o in equation.outputs if o is not None]
            given = [x for a, x in zip(equation.inputs, inputs, strict=True) if type(a) is Value]
            leaves = Function(callee.name, params, list(callee.equations), results)
            found = iter(run_equations(leaves, given, primitive))
            outputs = [None if o is None else next(found) for o in equation.outputs]
        elif type(callee) is Library or type(callee) is Local:
            outputs = run_equations(callee.body, inputs, primitive)
        else:
            outputs = primitive(equation, inputs)
        for value, out in zip(equation.outputs, outputs, strict=True):
            if value in last:
                env[value] = out
    return [read(a) for a in function.results]


def _off(values: Sequence[Data]) -> Sequence[Data]:
    """Values off by one unit in the last place, if they are floats."""
    found: list[Data] = []
    for value in values:
        dtype = getattr(value, "dtype", None)
        if dtype is not None and jnp.issubdtype(dtype, jnp.inexact):
            step = jnp.finfo(dtype).eps
            signs = jnp.where(jnp.arange(value.size).reshape(value.shape) % 3 == 0, 1 + step, 1 - step)
            value = value * signs.astype(jnp.finfo(dtype).dtype)
        found.append(value)
    return found


def by_body(equation: Equation, inputs: Sequence[Data], run: Evaluator = evaluate) -> Sequence[Data]:
    """What a primitive gives; by its body where it has one, which `run` evaluates."""
    callee = equation.callee
    if type(callee) is Scan:
        return _scan(callee, equation, inputs, run)
    if type(callee) is While:
        return _while(callee, inputs, run)
    if type(callee) is Cond:
        branches = [lambda *operands, b=branch: run(b, *operands) for branch in callee.branches]
        return lax.switch(inputs[0], branches, *inputs[1:])
    if type(callee) is CustomRule:
        return _ruled(callee, equation, inputs, run)
    if type(callee) is Map:
        mapped = jax.vmap(lambda *xs: run(callee.function, *xs), callee.in_axes, list(callee.out_axes))
        return mapped(*inputs)
    if type(callee) is Transformed:
        return _transformed(callee, inputs, run)
    if type(callee) is Pullback:
        return derivatives.call_later(callee.name, inputs[0], callee.derivative.signature, inputs[1:])
    if type(callee) is Primitive and callee.name in PLAIN_CALLS:
        (body,) = functions_called(equation)
        return run(body, *inputs)
    if callee.name == "custom_linear_solve":
        return _solved(equation, inputs, run)
    if callee.name == "linear_call":
        return _linear(equation, inputs, run)
    if callee.name == "shard_map":
        return _sharded(equation, inputs, run)
    return bound(equation, inputs)


# ---------------------------------------------------------------- loops


def _scan(loop: Scan, equation: Equation, inputs: Sequence[Data], run: Evaluator) -> Sequence[Data]:
    consts, start = inputs[: loop.consts], loop.consts + loop.carries

    def turn(carry: tuple[Data, ...], elements: tuple[Data, ...]) -> tuple[tuple[Data, ...], tuple[Data, ...]]:
        results = run(loop.body, *consts, *carry, *elements)
        return as_typed(results[: loop.carries], carry), tuple(results[loop.carries :])

    options = {key: equation.params[key] for key in ("length", "reverse")}
    carry, stacked = lax.scan(turn, _arrays(inputs[loop.consts : start]), tuple(inputs[start:]), **options)
    return [*carry, *stacked]


def _while(loop: While, inputs: Sequence[Data], run: Evaluator) -> Sequence[Data]:
    ours, consts = inputs[: loop.condition_consts], inputs[loop.condition_consts : loop.consts]

    def goes_on(carry: tuple[Data, ...]) -> Data:
        return jnp.any(run(loop.condition, *ours, *carry)[0])

    def turn(carry: tuple[Data, ...]) -> tuple[Data, ...]:
        new = as_typed(run(loop.body, *consts, *carry), carry)
        if not loop.condition.result_avals[0].shape:
            return new
        # Of a loop that `jax.vmap` has batched: what is done already keeps its carry.
        goes = run(loop.condition, *ours, *carry)[0]
        return jax.tree.map(lambda a, b: jnp.where(jnp.expand_dims(goes, range(goes.ndim, a.ndim)), a, b), new, carry)

    return list(lax.while_loop(goes_on, turn, _arrays(inputs[loop.consts :])))


def _arrays(values: Sequence[Data]) -> tuple[Data, ...]:
    """Numbers as arrays: what a loop hands on has a type."""
    return tuple([jax.tree.map(jnp.asarray, value) for value in values])


def as_typed(values: Sequence[Data], carry: Sequence[Data]) -> tuple[Data, ...]:
    """What a turn hands on, of the types that it was handed: a literal among it is a Python number here."""
    return tuple([jax.tree.map(lambda v, c: jnp.asarray(v, c.dtype), v, c) for v, c in zip(values, carry, strict=True)])


# ---------------------------------------------------------------- derivatives


def _transformed(call: Transformed, inputs: Sequence[Data], run: Evaluator) -> Sequence[Data]:
    def function(*args: Data) -> Sequence[Data]:
        return run(call.function, *args)

    how = call.how
    if isinstance(how, Derivative):
        outs, held = derivatives.call(call.name, function, how.signature, inputs)
        return outs if held is None else [*outs, held]
    if how.varied is None:
        return function(*inputs)
    places, count = how.varied, len(call.function.params)

    def of_varied(*varied: Data) -> list[Data]:
        given = dict(zip(places, varied, strict=True))
        return list(function(*[given.get(i, x) for i, x in enumerate(inputs[:count])]))

    _, pullback = jax.vjp(of_varied, *[inputs[i] for i in places])
    return pullback(list(inputs[count:]))


def _ruled(call: CustomRule, equation: Equation, inputs: Sequence[Data], run: Evaluator) -> Sequence[Data]:
    """What a function with a rule gives: by its body, and where it is differentiated by the rule's, or as it was captured
    where there is no such body."""
    rule, count = call.rule, call.consts
    outs = len(call.function.results)

    def function(*args: Data) -> tuple[Data, ...]:
        return tuple([jnp.asarray(x) for x in run(call.function, *args)])

    def captured(*args: Data) -> tuple[Data, ...]:
        return tuple(bound(equation, args))

    if call.is_jvp:
        with_jvp = jax.custom_jvp(function)

        @with_jvp.defjvp
        def jvp(primals: tuple[Data, ...], tangents: tuple[Data, ...]) -> tuple[tuple[Data, ...], tuple[Data, ...]]:
            if type(rule) is not JvpRule:
                return jax.jvp(captured, primals, tangents)
            closed = [primals[i] for i in rule.closed]
            results = run(rule.function, *closed, *primals[count:], *tangents[count:])
            moved = _with_zeros(results[outs:], rule.out_zeros, results[:outs])
            return tuple([jnp.asarray(x) for x in results[:outs]]), tuple(moved)

        return with_jvp(*inputs)

    with_vjp = jax.custom_vjp(function)

    def forward(*args: Data) -> tuple[tuple[Data, ...], Data]:
        if type(rule) is not VjpRule:
            return jax.vjp(captured, *args)
        results = run(rule.fwd, *[args[i] for i in rule.fwd_closed], *args[count:])
        fresh = iter(results[: len(results) - outs])
        residuals = [next(fresh) if i is None else args[i] for i in rule.res_forwards]
        return tuple(results[len(results) - outs :]), [*[args[i] for i in rule.bwd_closed], *residuals]

    def backward(saved: Data, cotangents: Sequence[Data]) -> tuple[Data, ...]:
        if type(rule) is not VjpRule:
            return saved(cotangents)
        fresh = iter(run(rule.bwd, *saved, *cotangents))
        return tuple([*[None] * count, *[None if zero else next(fresh) for zero in rule.ct_zeros]])

    with_vjp.defvjp(forward, backward)
    return with_vjp(*inputs)


def _with_zeros(some: Sequence[Data], zeros: Sequence[bool], like: Sequence[Data]) -> Iterator[Data]:
    """A tangent for each of the values `like`: those given, and zeros."""
    given = iter(some)
    for value, zero in zip(like, zeros, strict=True):
        aval = jax_compat.tangent_aval(jax_compat.typeof(value))
        yield np.zeros(aval.shape, aval.dtype) if zero else next(given)


def _solved(equation: Equation, inputs: Sequence[Data], run: Evaluator) -> Sequence[Data]:
    """What a solver gives, whose parts are Functions with constants of their own."""
    parts, counts = equation.params["jaxprs"], equation.params["const_lengths"]
    given = iter(inputs)
    consts = [[next(given) for _ in range(count)] for count in counts]
    count = len(parts.matvec.params) - counts.matvec
    has_aux = len(parts.solve.results) > count

    def solver(part: Function, own: Sequence[Data]) -> Callable[[Data, Sequence[Data]], Data]:
        def solved(_: Data, b: Sequence[Data]) -> Data:
            found = list(run(part, *own, *b))
            return (found[:count], found[count:]) if has_aux else found

        return solved

    found = lax.custom_linear_solve(
        lambda x: list(run(parts.matvec, *consts[0], *x)),
        list(given),
        solver(parts.solve, consts[2]),
        None if parts.transpose_solve is None else solver(parts.transpose_solve, consts[3]),
        symmetric=parts.vecmat is parts.matvec,
        has_aux=has_aux,
    )
    return jax.tree.leaves(found)


def _linear(equation: Equation, inputs: Sequence[Data], run: Evaluator) -> Sequence[Data]:
    """What a linear function with an author's transpose gives."""
    params = equation.params
    first = params["num_callee_consts"]
    last = first + params["num_res"]
    own, others = inputs[:first], [c.value for c in params["transpose_consts"]]
    return jax.custom_derivatives.linear_call(
        lambda residuals, x: list(run(params["callee"], *own, *residuals, *x)),
        lambda residuals, ct: list(run(params["transpose"], *others, *residuals, *ct)),
        list(inputs[first:last]),
        list(inputs[last:]),
    )


def _sharded(equation: Equation, inputs: Sequence[Data], run: Evaluator) -> Sequence[Data]:
    """What a function gives whose parts run on the devices of a mesh."""
    params, (body,) = equation.params, functions_called(equation)
    specs = params["in_specs"], params["out_specs"]
    if any(jax_compat.is_auto_axes(spec) for some in specs for spec in some):
        return bound(equation, inputs)  # what no public function can say
    return jax.shard_map(
        lambda *xs: tuple(run(body, *xs)),
        mesh=params["mesh"],
        in_specs=tuple(specs[0]),
        out_specs=tuple(specs[1]),
        axis_names=frozenset(params["newly_manual_axes"]),
        check_vma=params["check_vma"],
    )(*inputs)


# ---------------------------------------------------------------- what was captured


def bound(equation: Equation, args: Sequence[Data]) -> Sequence[Data]:
    """What the captured equation gives; a loop takes and gives the parts of tuples."""
    outputs = jax_compat.bind_equation(equation.origin, jax.tree.leaves(list(args)))
    if not any(o is not None and type(o.aval) is TupleType for o in equation.outputs):
        return outputs
    rest = iter(outputs)

    def build(aval: Aval | None) -> Data:
        return tuple([build(p) for p in aval.parts]) if type(aval) is TupleType else next(rest)

    return [build(o.aval if o is not None else None) for o in equation.outputs]
