"""Functions with custom derivative rules, written as such. Source: jax/_src/custom_derivatives.py."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace._errors import UnsupportedPrimitiveError
from untrace.ir.nodes import Constant, Equation, Function, Literal
from untrace.lift.parameters import parse_path
from untrace.lift.words import clean
from untrace.print.jax import roles
from untrace.print.jax.rules.calls import Spaced, result
from untrace.print.jax.rules.control import closes_naturally
from untrace.print.names import identifier
from untrace.print.rules import DECLINE, rule
from untrace.print.tree import (
    Assign,
    Attribute,
    Call,
    Def,
    Expr,
    Lambda,
    Name,
    Parameter,
    Return,
    Star,
    Statement,
    Text,
    Tuple,
    Unpack,
)  # fmt: skip
from untrace.print.values import SMALL_BYTES


@rule("custom_jvp_call")
def custom_jvp_call(
    w: Any,
    *operands: Any,
    call_jaxpr: Function,
    jvp: Function | None,
    num_consts: int,
    symbolic_zeros: bool,
    out_zeros: Any,
    closed: Sequence[int] = (),
) -> Any:
    module = w.module
    module.modules.add("jax")
    if module.idiomatic:
        roles.name_jvp_rule(call_jaxpr, jvp, num_consts)
    if num_consts and closes_naturally(call_jaxpr, num_consts, w.equation.inputs):
        # A rule that calls its own function would be written into itself for ever: it calls the one around it where it
        # sees that and means the same variables, and else one to which the constants are passed.
        around = module.being_written.get(id(call_jaxpr))
        if around is None:
            try:
                return _closed_over(w, operands, call_jaxpr, jvp, num_consts, symbolic_zeros, out_zeros, closed)
            finally:
                module.being_written.pop(id(call_jaxpr), None)
        writer, name, variables = around
        if w.is_inside(writer) and all(map(operator.is_, operands[:num_consts], variables)):
            return result(call_jaxpr, Call(name, operands[num_consts:]))

    def build(name: str) -> Iterator[Statement]:
        yield module.define(call_jaxpr, name, [Text("jax.custom_jvp")])
        rule = jvp and _written_rule(
            module,
            call_jaxpr,
            lambda: _jvp_rule(module.writer(), name, call_jaxpr, jvp, num_consts, symbolic_zeros, out_zeros, closed),
        )
        if rule:
            yield rule
        else:
            yield Spaced(
                [], Call(Attribute(Name(name), "defjvp"), [module.helper("_no_rule")], _symbolic(symbolic_zeros))
            )

    name = module.named(("custom_jvp", id(call_jaxpr)), call_jaxpr.name, build)
    return result(call_jaxpr, Call(name, operands))


def _closed_over(
    w: Any,
    operands: Sequence[Expr],
    primal: Function,
    jvp: Function | None,
    consts: int,
    symbolic: bool,
    zeros: Sequence[bool],
    closed: Sequence[int],
) -> Any:
    """A function that closes over variables of this one is defined right here."""
    name = w.scope.fresh(identifier(primal.name, "fn"))
    w.module.being_written[id(primal)] = w, name, operands[:consts]
    inner = w.nested()
    inner.names.update(zip(primal.params[:consts], operands, strict=False))
    params = [Parameter(inner.bind_parameter(p).id) for p in primal.params[consts:]]
    inner.equations(primal.equations, primal.results)
    inner.statements.append(Return(inner.results(primal.results)))
    w.statements.append(Def(name, params, inner.statements, [Text("jax.custom_jvp")]))
    own = Function(primal.name, primal.params[consts:], [], primal.results)
    rule = jvp and _written_rule(
        w.module, primal, lambda: _jvp_rule(w.nested(), name, own, jvp, 0, symbolic, zeros, closed, operands)
    )
    if rule:
        w.statements.append(rule)
    else:
        define = Attribute(Name(name), "defjvp")
        w.statements.append(Assign([], Call(define, [w.module.helper("_no_rule")], _symbolic(symbolic))))
    return result(primal, Call(name, operands[consts:]))


def _written_rule(module: Any, primal: Function, write: Callable[[], Any]) -> Any:
    """What `write` gives; None, and a note, where the rule holds a primitive that cannot be written.

    Such a rule need not work in the original either: JAX runs it only when it differentiates.
    """
    try:
        return write()
    except UnsupportedPrimitiveError as error:
        reason = str(error).split("\n")[0]
        module.notes.append(f"the derivative rule of {primal.name} is left out: {reason}")
        return None


def _jvp_rule(
    w: Any,
    name: str,
    primal: Function,
    jvp: Function,
    consts: int,
    symbolic: bool,
    zeros: Sequence[bool],
    closed: Sequence[int],
    variables: Sequence[Expr] = (),
) -> Def:
    """`closed`: which of the `variables` around the function its rule reads, or, without those, of its first arguments."""
    module = w.module
    rule_name = w.scope.outside().fresh(identifier(name + "_jvp", "jvp"))
    count = len(primal.params)
    body = w.statements
    names = ["_"] * consts
    for value, place in zip(jvp.params, closed, strict=False):
        if variables:
            w.names[value] = variables[place]
        elif names[place] == "_":
            names[place] = w.bind_parameter(value, "closed").id
        else:
            w.names[value] = Name(names[place])
    params = jvp.params[len(closed) :]
    primals = [w.bind_parameter(v, f"x{i}" if count > 1 else "x").id for i, v in enumerate(params[: count - consts])]
    tangents = [w.bind_parameter(v, n + "_dot").id for n, v in zip(primals, params[count - consts :], strict=True)]
    given, given_dots = w.scope.fresh("primals"), w.scope.fresh("tangents")
    body.append(Unpack([*names, *primals], Name(given)))
    body.append(Unpack([*["_"] * consts, *tangents], Name(given_dots)))
    if symbolic:
        module.helper("_instantiate")
        body.extend(Assign([t], Call("_instantiate", [Name(t)])) for t in tangents)
    w.equations(jvp.equations, jvp.results)
    results = [w.atom(r) for r in jvp.results]
    outs = len(primal.results)
    fresh = iter(results[outs:])
    dots = [_zero(w, results[i], primal.results[i].aval, symbolic) if zeros[i] else next(fresh) for i in range(outs)]
    body.append(Return(Tuple([_pack(results[:outs]), _pack(dots)])))
    decorator: Expr = Attribute(Name(name), "defjvp")
    if symbolic:
        module.modules.add("functools")
        decorator = Call("functools.partial", [decorator], [("symbolic_zeros", Text("True"))])
    return Def(rule_name, [Parameter(given), Parameter(given_dots)], body, [decorator])


def _symbolic(symbolic_zeros: bool) -> list[tuple[str, Expr]]:
    return [("symbolic_zeros", Text("True"))] if symbolic_zeros else []


def _zero(w: Any, primal: Expr, aval: Any, symbolic: bool) -> Expr:
    """A zero tangent of a primal of type `aval`: a symbolic one where the rule deals in those."""
    if symbolic:
        return w.jax("custom_derivatives.zero_from_primal", primal, symbolic_zeros=True)
    w.module.modules.add("np")
    tangent = jax_compat.tangent_aval(aval)
    return Call("np.zeros", [w.source(tuple(tangent.shape)), w.module.values.dtype(tangent.dtype)])


def _pack(atoms: Sequence[Expr]) -> Expr:
    return atoms[0] if len(atoms) == 1 else Tuple(atoms)


@rule("custom_vjp_call", "custom_vjp_call_jaxpr")
def custom_vjp_call(
    w: Any,
    *operands: Any,
    call_jaxpr: Function,
    fwd: Function | None,
    bwd: Function | None,
    num_consts: int,
    symbolic_zeros: bool,
    res_forwards: Sequence[int | None] = (),
    ct_zeros: Sequence[bool] = (),
    perturbed: Sequence[bool] = (),
) -> Any:
    module = w.module
    module.modules.add("jax")
    if module.idiomatic:
        roles.name_vjp_rule(call_jaxpr, fwd, bwd, num_consts, res_forwards)

    key: tuple[Any, ...] = ("custom_vjp", id(call_jaxpr))
    constants = [module.constant_named(x) for x in operands[:num_consts]]
    if constants and _closes_over_constants(w, call_jaxpr, constants, res_forwards):
        # As the original did: constants of the module are no arguments.
        key += tuple(_constant_key(module, a) for a in constants)
        converted = {a for e in call_jaxpr.equations if e.callee.name == "convert_element_type" for a in e.inputs}
        fixed = {
            p: module.jax_constant(a) if p in converted and type(a.value) is not np.ndarray else x
            for p, a, x in zip(call_jaxpr.params, constants, operands, strict=False)
        }
        operands = operands[num_consts:]
        res_forwards = [None if f is None else f - num_consts for f in res_forwards]
        num_consts = 0
    else:
        fixed = {}

    def build(name: str) -> Iterator[Statement]:
        yield module.define(call_jaxpr, name, [Text("jax.custom_vjp")], fixed)
        rules = None
        if fwd is not None and bwd is not None:
            rules = _written_rule(
                module,
                call_jaxpr,
                lambda: (
                    _fwd(module, name, call_jaxpr, fwd, num_consts, symbolic_zeros, res_forwards, perturbed),
                    _bwd(module, name, call_jaxpr, bwd, num_consts, symbolic_zeros, len(res_forwards), ct_zeros),
                ),
            )
        if rules:
            forward, backward = rules
            yield from rules
            define = Attribute(Name(name), "defvjp")
            options = _symbolic(symbolic_zeros)
            if _optimized(fwd) is not None:
                options.append(("optimize_remat", Text("True")))
            yield Spaced([], Call(define, [Name(forward.name), Name(backward.name)], options))
        else:
            missing = module.helper("_no_rule")
            yield Spaced([], Call(Attribute(Name(name), "defvjp"), [missing, missing], _symbolic(symbolic_zeros)))

    name = module.named(key, call_jaxpr.name, build)
    return result(call_jaxpr, Call(name, operands))


def _constant_key(module: Any, constant: Constant) -> Any:
    """What two constants share that are one to a function: their bits where they are few, else the object."""
    value = constant.value
    if (
        isinstance(value, (np.ndarray, np.generic, jax.Array))
        and not jax_compat.is_key(value)
        and value.nbytes <= SMALL_BYTES
    ):
        array = np.asarray(value)
        return array.dtype.name, array.shape, array.tobytes()
    module.kept.append(constant)
    return id(constant)


def _closes_over_constants(
    w: Any, primal: Function, constants: Sequence[Constant | None], forwards: Sequence[int | None]
) -> bool:
    """Whether a function that reads the constants of the module would give the same constants to the equation."""
    consts = len(constants)
    if None in constants or any(f is not None and f < consts for f in forwards):
        return False
    return closes_naturally(primal, consts, w.equation.inputs)


def _fwd(
    module: Any,
    name: str,
    primal: Function,
    fwd: Function,
    consts: int,
    symbolic: bool,
    forwards: Sequence[int | None],
    perturbed: Sequence[bool],
) -> Def:
    w = module.writer()
    count = len(fwd.params) + consts
    unused = [w.scope.fresh("closed") for _ in range(consts)]
    names = [w.bind_parameter(v, f"x{i}" if count > 1 else "x").id for i, v in enumerate(fwd.params)]
    if symbolic:
        allowed = [*[True] * consts, *perturbed]
        if not all(allowed):
            module.helper("_unperturbed")
        for n, free in zip([*unused, *names], allowed, strict=True):
            value = Attribute(Name(n), "value") if free else Call("_unperturbed", [Name(n)])
            w.statements.append(Assign([n], value))
    optimized = _optimized(fwd)
    if optimized is not None:
        fwd = optimized.params["fwd_jaxpr"]
        w.names.update((p, w.atom(a)) for p, a in zip(fwd.params, optimized.inputs, strict=True))
    w.equations(fwd.equations, fwd.results)
    results = [w.atom(r) for r in fwd.results]
    outs = len(primal.results)
    fresh = iter(results[: len(results) - outs])
    every = [*unused, *names]
    residuals = [next(fresh) if f is None else Name(every[f]) for f in forwards]
    saved = _pack(residuals) if module.idiomatic else Tuple(residuals)
    w.statements.append(Return(Tuple([_pack(results[len(results) - outs :]), saved])))
    return Def(module.scope.fresh(identifier(name + "_fwd", "fwd")), [Parameter(n) for n in every], w.statements)


def _optimized(fwd: Function) -> Equation | None:
    """The equation that `optimize_remat=True` puts around the author's forward rule, where the rule is nothing else."""
    if [e.callee.name for e in fwd.equations] != ["remat_opt"]:
        return None
    (equation,) = fwd.equations
    consts = equation.params["num_consts"]
    same = list(map(id, equation.inputs[consts:])) == list(map(id, fwd.params))
    same = same and list(map(id, equation.outputs)) == list(map(id, fwd.results))
    return equation if same and all(type(a) is Constant for a in equation.inputs[:consts]) else None


def _bwd(
    module: Any,
    name: str,
    primal: Function,
    bwd: Function,
    consts: int,
    symbolic: bool,
    residuals: int,
    zeros: Sequence[bool],
) -> Def:
    w = module.writer()
    alone = module.idiomatic and residuals == 1
    packed = w.bind_parameter(bwd.params[0], "residual").id if alone else w.scope.fresh("residuals")
    cotangent = w.scope.fresh(_name_of_cotangents(bwd, len(primal.results)))
    names = [] if alone else [w.bind_parameter(v, f"res{i}").id for i, v in enumerate(bwd.params[:residuals])]
    cts = bwd.params[residuals:]
    if names:
        w.statements.append(Unpack(names, Name(packed)))
    if len(cts) == 1:
        w.names[cts[0]] = Name(cotangent)
        ct_names = [cotangent]
    else:
        ct_names = [w.bind_parameter(v, f"ct{i}").id for i, v in enumerate(cts)]
        if ct_names:
            w.statements.append(Unpack(ct_names, Name(cotangent)))
    if symbolic:
        module.helper("_instantiate")
        w.statements.extend(Assign([n], Call("_instantiate", [Name(n)])) for n in ct_names)
    w.equations(bwd.equations, bwd.results)
    fresh = iter([w.atom(r) for r in bwd.results])
    outs = [Text("None") if zero else next(fresh) for zero in zeros]
    w.statements.append(Return(Tuple([Text("None")] * consts + outs)))
    return Def(
        module.scope.fresh(identifier(name + "_bwd", "bwd")), [Parameter(packed), Parameter(cotangent)], w.statements
    )


def _name_of_cotangents(bwd: Function, count: int) -> str:
    """What the author calls the last argument of a backward rule."""
    paths = bwd.extra.get("paths") or ()
    path = parse_path(paths[-1] or "") if paths else ()
    word = str(path[0]).strip("_") if path else ""
    return clean(word) if word and word not in ("args", "residuals") else "cotangents" if count != 1 else "cotangent"


@rule("linear_call")
def linear_call(
    w: Any,
    *operands: Any,
    callee: Function,
    transpose: Function,
    transpose_consts: Sequence[Any],
    num_callee_consts: int,
    num_res: int,
) -> Any:
    """`jax.custom_derivatives.linear_call(f, f_transpose, residuals, linear)`; constants are closed over."""
    if any(type(a) is Literal for a in w.equation.inputs[:num_callee_consts]):
        return DECLINE
    closed, rest = operands[:num_callee_consts], operands[num_callee_consts:]
    forward = Name(w.module.function(callee))
    backward = w.module.named(("transpose", id(transpose)), transpose.name, lambda n: [_tupled(w.module, transpose, n)])
    spread = [Star(Name("res")), Star(Name("lin"))]
    consts = [w.module.constant(c) for c in transpose_consts]
    call = w.jax(
        "custom_derivatives.linear_call",
        Lambda(["res", "lin"], Call(forward, [*closed, *spread])),
        Lambda(["res", "ct"], Call(backward, [*consts, Star(Name("res")), _cotangents(callee)])),
        Tuple(rest[:num_res]),
        Tuple(rest[num_res:]),
    )
    return result(callee, call)


def _cotangents(callee: Function) -> Expr:
    """`ct` as arguments: the cotangents have the tree of the results, bare where there is one."""
    return Name("ct") if len(callee.results) == 1 else Star(Name("ct"))


def _tupled(module: Any, function: Function, name: str) -> Def:
    """A definition that returns a tuple, also of one result."""
    w = module.writer()
    params = [Parameter(w.bind_parameter(p).id) for p in function.params]
    w.equations(function.equations, function.results)
    w.statements.append(Return(Tuple([w.atom(r) for r in function.results])))
    return Def(name, params, w.statements)
