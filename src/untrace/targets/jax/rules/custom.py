"""Functions with custom derivative rules, written as such. Source: jax/_src/custom_derivatives.py."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import numpy as np

from untrace import jax_compat
from untrace._errors import UnsupportedPrimitiveError
from untrace._identifiers import identifier
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Constant, Equation, Function, Literal
from untrace.ir.structured import CustomRule, JvpRule, VjpRule
from untrace.lift.naming.parameters import parse_path
from untrace.lift.naming.words import clean
from untrace.module import roles
from untrace.module.rules import DECLINE
from untrace.python.statements import Assign, Def, Parameter, Return, Statement, Unpack
from untrace.python.tree import Attribute, Call, Expr, Lambda, Name, Star, Text, Tuple
from untrace.python.values import SMALL_BYTES
from untrace.targets.jax.rules.calls import Spaced, result
from untrace.targets.jax.rules.control import closes_naturally
from untrace.targets.jax.rules.table import rule


@rule("custom_jvp_call")
def custom_jvp_call(w: Any, *operands: Any, call_jaxpr: Function, num_consts: int, symbolic_zeros: bool) -> Any:
    module = w.module
    module.modules.add("jax")
    found = callee_of(w.equation, CustomRule).rule
    jvp = found if type(found) is JvpRule else None
    if module.idiomatic:
        roles.name_jvp_rule(call_jaxpr, None if jvp is None else jvp.function, num_consts)
    if num_consts and closes_naturally(call_jaxpr, num_consts, w.equation.inputs) and not w.retreating:

        def rules(name: str, variables: Sequence[Expr]) -> list[Statement]:
            return _closed_jvp(w, name, call_jaxpr, jvp, variables, symbolic_zeros)

        inside = _closed_over(w, operands, num_consts, call_jaxpr, "jax.custom_jvp", rules)
        if inside is not None:
            return inside

    def build(name: str) -> Iterator[Statement]:
        yield module.define(call_jaxpr, name, [Text("jax.custom_jvp")])
        rule = (
            None
            if jvp is None
            else _written_rule(
                module,
                call_jaxpr,
                lambda: _jvp_rule(module.writer(), name, call_jaxpr, jvp, num_consts, symbolic_zeros),
            )
        )
        if rule:
            yield rule
        else:
            yield Spaced(
                [], Call(Attribute(Name(name), "defjvp"), [module.helper("_no_rule")], _symbolic(symbolic_zeros))
            )

    name = module.named(("custom_jvp", call_jaxpr), call_jaxpr.name, build)
    return result(call_jaxpr, Call(name, operands))


def _closed_over(
    w: Any,
    operands: Sequence[Expr],
    consts: int,
    primal: Function,
    decorator: str,
    rules: Callable[[str, Sequence[Expr]], list[Statement]],
) -> Any:
    """A call of a function that closes over variables of this one, and is defined right here, unless it is already.

    rules: the statements that give the function of this name its rules, for what it closes over. None where a rule calls
    its own function over something else: written here it would be written into itself for ever, so that the variables
    have to be passed.
    """
    module, variables = w.module, operands[:consts]
    if primal in module.closures:
        writer, definition, known = module.closures[primal]
        seen = w.is_inside(writer) and any(s is definition for s in writer.statements)
        if seen and all(map(operator.is_, variables, known)):
            return result(primal, Call(definition.name, operands[consts:]))
    if primal in module.being_written:
        return None
    inner = w.nested()
    name = w.scope.fresh_function(identifier(primal.name, "fn"))
    inner.names.update(zip(primal.params[:consts], variables, strict=True))
    params = [Parameter(inner.bind_parameter(p).id) for p in primal.params[consts:]]
    inner.equations(primal.equations, primal.results)
    inner.statements.append(Return(inner.results(primal.results)))
    definition = Def(name, params, inner.statements, [Text(decorator)])
    w.statements.append(definition)
    module.closures[primal] = w, definition, variables
    module.being_written.add(primal)
    try:
        w.statements += rules(name, variables)
    finally:
        module.being_written.discard(primal)
    return result(primal, Call(name, operands[consts:]))


def _closed_jvp(
    w: Any,
    name: str,
    primal: Function,
    jvp: JvpRule | None,
    variables: Sequence[Expr],
    symbolic: bool,
) -> list[Statement]:
    own = Function(primal.name, primal.params[len(variables) :], [], primal.results)
    rule = (
        None
        if jvp is None
        else _written_rule(w.module, primal, lambda: _jvp_rule(w.nested(), name, own, jvp, 0, symbolic, variables))
    )
    if rule:
        return [rule]
    return [Assign([], Call(Attribute(Name(name), "defjvp"), [w.module.helper("_no_rule")], _symbolic(symbolic)))]


Rule = TypeVar("Rule")


def _written_rule(module: Any, primal: Function, write: Callable[[], Rule]) -> Rule | None:
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
    rule: JvpRule,
    consts: int,
    symbolic: bool,
    variables: Sequence[Expr] = (),
) -> Def:
    """What the rule closes over are `variables` around the function, or, without those, its first arguments."""
    module, jvp, closed = w.module, rule.function, rule.closed
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
        allowed = [
            p or not jax_compat.has_tangent(v.aval)
            for p, v in zip(rule.perturbed, params[: count - consts], strict=True)
        ]
        if not all(allowed):
            module.helper("_unmoved")
            held = [Name(t) for t, free in zip(tangents, allowed, strict=True) if not free]
            body.append(Assign([], Call("_unmoved", held)))
        module.helper("_instantiate")
        used = [t for t, moved in zip(tangents, rule.perturbed, strict=True) if moved]
        body.extend(Assign([t], Call("_instantiate", [Name(t)])) for t in used)
    w.equations(jvp.equations, jvp.results)
    results = [w.atom(r) for r in jvp.results]
    outs = len(primal.results)
    fresh = iter(results[outs:])
    dots = [
        _zero(w, results[i], primal.results[i].aval, symbolic) if rule.out_zeros[i] else next(fresh)
        for i in range(outs)
    ]
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


@rule("custom_vjp_call")
def custom_vjp_call(w: Any, *operands: Any, call_jaxpr: Function, num_consts: int, symbolic_zeros: bool) -> Any:
    module = w.module
    module.modules.add("jax")
    callee = callee_of(w.equation, CustomRule)
    rule = callee.rule if type(callee.rule) is VjpRule else None
    forwards = rule.res_forwards if rule is not None else ()
    if module.idiomatic:
        own_fwd = _without_closed(rule.fwd, rule.fwd_closed) if rule is not None else None
        own_bwd = _without_closed(rule.bwd, rule.bwd_closed) if rule is not None else None
        roles.name_vjp_rule(call_jaxpr, own_fwd, own_bwd, num_consts, forwards)
    own = _Vjp(callee, num_consts, forwards)
    key: tuple[Any, ...] = ("custom_vjp", call_jaxpr)
    fixed: dict[Any, Expr] = {}
    closes = num_consts and all(f is None or f >= num_consts for f in forwards)
    if closes and closes_naturally(call_jaxpr, num_consts, w.equation.inputs) and not w.retreating:
        # As the original did: what it closes over is no argument.
        constants = [module.constant_named(x) for x in operands[:num_consts]]
        own = replace(own, consts=0, forwards=[None if f is None else f - num_consts for f in forwards])
        if None in constants:

            def statements(name: str, variables: Sequence[Expr]) -> list[Statement]:
                *rules, define = _vjp_rules(module, name, replace(own, outer=w, variables=variables))
                return [*rules, Assign([], define)]

            found = _closed_over(w, operands, num_consts, call_jaxpr, "jax.custom_vjp", statements)
            if found is not None:
                return found
            own = replace(own, consts=num_consts, forwards=forwards)
        else:
            key += tuple(_constant_key(module, a) for a in constants)
            converted = {a for e in call_jaxpr.equations if e.callee.name == "convert_element_type" for a in e.inputs}
            fixed = {
                p: module.jax_constant(a) if p in converted and type(a.value) is not np.ndarray else x
                for p, a, x in zip(call_jaxpr.params, constants, operands, strict=False)
            }
            operands = operands[num_consts:]

    def build(name: str) -> Iterator[Statement]:
        yield module.define(call_jaxpr, name, [Text("jax.custom_vjp")], fixed)
        *rules, define = _vjp_rules(module, name, own)
        yield from rules
        yield Spaced([], define)

    name = module.named(key, call_jaxpr.name, build)
    return result(call_jaxpr, Call(name, operands))


@dataclass(frozen=True)
class _Vjp:
    """A function with its rules, as it is to be written.

    `consts`: how many of its first arguments the original closes over. `forwards`: as in the rule, counted without what
    is no argument. `outer`: the writer of the function around it, where that stands inside one; then `variables` are what it
    closes over there.
    """

    callee: CustomRule
    consts: int
    forwards: Sequence[int | None]
    outer: Any = None
    variables: Sequence[Expr] = ()


def _without_closed(rule: Function, closed: Sequence[int]) -> Function:
    """A rule as a function of its own arguments alone, to look at."""
    return Function(rule.name, rule.params[len(closed) :], rule.equations, rule.results)


def _vjp_rules(module: Any, name: str, own: _Vjp) -> list[Any]:
    """The definitions of both rules, and the call that makes them the function's."""
    options = _symbolic(own.callee.symbolic_zeros)
    define = Attribute(Name(name), "defvjp")
    rule = own.callee.rule
    if type(rule) is VjpRule:
        rules = _written_rule(
            module, own.callee.function, lambda: [_fwd(module, name, rule, own), _bwd(module, name, rule, own)]
        )
        if rules:
            if _optimized(rule.fwd, rule.fwd_closed) is not None:
                options.append(("optimize_remat", Text("True")))
            return [*rules, Call(define, [Name(r.name) for r in rules], options)]
    missing = module.helper("_no_rule")
    return [Call(define, [missing, missing], options)]


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
    return constant


def _fwd(module: Any, name: str, rule: VjpRule, own: _Vjp) -> Def:
    fwd = rule.fwd
    w = own.outer.nested() if own.outer else module.writer()
    scope = own.outer.scope if own.outer else module.scope
    params = fwd.params[len(rule.fwd_closed) :]
    count = len(params) + own.consts
    unused = [w.scope.fresh("closed") for _ in range(own.consts)]
    closed = own.variables or [Name(n) for n in unused]
    w.names.update((p, closed[place]) for p, place in zip(fwd.params, rule.fwd_closed, strict=False))
    names = [w.bind_parameter(v, f"x{i}" if count > 1 else "x").id for i, v in enumerate(params)]
    if own.callee.symbolic_zeros:
        allowed = [*[True] * own.consts, *rule.perturbed]
        if not all(allowed):
            module.helper("_unperturbed")
        for n, free in zip([*unused, *names], allowed, strict=True):
            value = Attribute(Name(n), "value") if free else Call("_unperturbed", [Name(n)])
            w.statements.append(Assign([n], value))
    optimized = _optimized(fwd, rule.fwd_closed)
    if optimized is not None:
        fwd = optimized.params["fwd_jaxpr"]
        w.names.update((p, w.atom(a)) for p, a in zip(fwd.params, optimized.inputs, strict=True))
    w.equations(fwd.equations, fwd.results)
    results = [w.atom(r) for r in fwd.results]
    outs = len(own.callee.function.results)
    fresh = iter(results[: len(results) - outs])
    every = [*unused, *names]
    residuals = [next(fresh) if f is None else Name(every[f]) for f in own.forwards]
    saved = _pack(residuals) if module.idiomatic else Tuple(residuals)
    w.statements.append(Return(Tuple([_pack(results[len(results) - outs :]), saved])))
    return Def(scope.fresh(identifier(name + "_fwd", "fwd")), [Parameter(n) for n in every], w.statements)


def _optimized(fwd: Function, closed: Sequence[int]) -> Equation | None:
    """The equation that `optimize_remat=True` puts around the author's forward rule, where the rule is nothing else."""
    if [e.callee.name for e in fwd.equations] != ["remat_opt"]:
        return None
    (equation,) = fwd.equations
    consts = equation.params["num_consts"]
    outside = {p for p in fwd.params[: len(closed)]}
    same = list(equation.inputs[consts:]) == list(fwd.params[len(closed) :])
    same = same and list(equation.outputs) == list(fwd.results)
    return equation if same and all(type(a) is Constant or a in outside for a in equation.inputs[:consts]) else None


def _bwd(module: Any, name: str, rule: VjpRule, own: _Vjp) -> Def:
    bwd = rule.bwd
    w = own.outer.nested() if own.outer else module.writer()
    scope = own.outer.scope if own.outer else module.scope
    if rule.bwd_closed and not own.variables:
        raise UnsupportedPrimitiveError("it reads a traced value of the function around it")
    w.names.update((p, own.variables[place]) for p, place in zip(bwd.params, rule.bwd_closed, strict=False))
    params = bwd.params[len(rule.bwd_closed) :]
    residuals = len(own.forwards)
    alone = module.idiomatic and residuals == 1
    packed = w.bind_parameter(params[0], "residual").id if alone else w.scope.fresh("residuals")
    cotangent = w.scope.fresh(_name_of_cotangents(bwd, len(own.callee.function.results)))
    names = [] if alone else [w.bind_parameter(v, f"res{i}").id for i, v in enumerate(params[:residuals])]
    cts = params[residuals:]
    if names:
        w.statements.append(Unpack(names, Name(packed)))
    if len(cts) == 1:
        w.names[cts[0]] = Name(cotangent)
        ct_names = [cotangent]
    else:
        ct_names = [w.bind_parameter(v, f"ct{i}").id for i, v in enumerate(cts)]
        if ct_names:
            w.statements.append(Unpack(ct_names, Name(cotangent)))
    if own.callee.symbolic_zeros:
        module.helper("_instantiate")
        w.statements.extend(Assign([n], Call("_instantiate", [Name(n)])) for n in ct_names)
    w.equations(bwd.equations, bwd.results)
    fresh = iter([w.atom(r) for r in bwd.results])
    outs = [Text("None") if zero else next(fresh) for zero in rule.ct_zeros]
    w.statements.append(Return(Tuple([Text("None")] * own.consts + outs)))
    return Def(scope.fresh(identifier(name + "_bwd", "bwd")), [Parameter(packed), Parameter(cotangent)], w.statements)


def _name_of_cotangents(bwd: Function, count: int) -> str:
    """What the author calls the last argument of a backward rule."""
    paths = bwd.facts.rule_paths
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
    backward = w.module.named(("transpose", transpose), transpose.name, lambda n: [_tupled(w.module, transpose, n)])
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
