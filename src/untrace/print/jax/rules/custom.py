"""Functions with custom derivative rules, written as such. Source: jax/_src/custom_derivatives.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from untrace import jax_compat
from untrace.ir.nodes import Function
from untrace.print.jax.rules.calls import result
from untrace.print.names import identifier
from untrace.print.rules import rule
from untrace.print.tree import Assign, Attribute, Call, Def, Expr, Name, Parameter, Return, Statement, Text, Tuple, Unpack


@rule("custom_jvp_call")
def custom_jvp_call(
    w: Any, *operands: Any, call_jaxpr: Function, jvp: Function | None, num_consts: int, symbolic_zeros: bool, out_zeros: Any
) -> Any:
    module = w.module
    module.modules.add("jax")

    def build(name: str) -> Iterator[Statement]:
        yield module.define(call_jaxpr, name, [Text("jax.custom_jvp")])
        if jvp is not None:
            yield _jvp_rule(module, name, call_jaxpr, jvp, num_consts, symbolic_zeros, out_zeros)

    name = module.named(("custom_jvp", id(call_jaxpr)), call_jaxpr.name, build)
    return result(call_jaxpr, Call(name, operands))


def _jvp_rule(
    module: Any, name: str, primal: Function, jvp: Function, consts: int, symbolic: bool, zeros: Sequence[bool]
) -> Def:
    rule_name = module.scope.fresh(identifier(name + "_jvp", "jvp"))
    w = module.writer()
    count = len(primal.params)
    body = w.statements
    names = ["_"] * consts
    primals = [w.bind_parameter(v, f"x{i}" if count > 1 else "x").id for i, v in enumerate(jvp.params[: count - consts])]
    tangents = [w.bind_parameter(v, n + "_dot").id for n, v in zip(primals, jvp.params[count - consts :], strict=True)]
    body.append(Unpack([*names, *primals], Name(w.scope.fresh("primals"))))
    body.append(Unpack([*names, *tangents], Name(w.scope.fresh("tangents"))))
    if symbolic:
        module.helper("_instantiate")
        body.extend(Assign([t], Call("_instantiate", [Name(t)])) for t in tangents)
    w.equations(jvp.equations, jvp.results)
    results = [w.atom(r) for r in jvp.results]
    outs = len(primal.results)
    fresh = iter(results[outs:])
    dots = [_zero(w, primal.results[i].aval) if zeros[i] else next(fresh) for i in range(outs)]
    body.append(Return(Tuple([_pack(results[:outs]), _pack(dots)])))
    decorator: Expr = Attribute(Name(name), "defjvp")
    if symbolic:
        module.modules.add("functools")
        decorator = Call("functools.partial", [decorator], [("symbolic_zeros", Text("True"))])
    return Def(rule_name, [Parameter("primals"), Parameter("tangents")], body, [decorator])


def _zero(w: Any, aval: Any) -> Expr:
    """A zero tangent of a primal of type `aval`."""
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
) -> Any:
    module = w.module
    module.modules.add("jax")

    def build(name: str) -> Iterator[Statement]:
        yield module.define(call_jaxpr, name, [Text("jax.custom_vjp")])
        if fwd is not None and bwd is not None:
            forward = _fwd(module, name, call_jaxpr, fwd, num_consts, symbolic_zeros, res_forwards)
            backward = _bwd(module, name, call_jaxpr, bwd, num_consts, symbolic_zeros, len(res_forwards), ct_zeros)
            yield forward
            yield backward
            options = [("symbolic_zeros", Text("True"))] if symbolic_zeros else []
            define = Attribute(Name(name), "defvjp")
            yield Spaced([], Call(define, [Name(forward.name), Name(backward.name)], options))

    name = module.named(("custom_vjp", id(call_jaxpr)), call_jaxpr.name, build)
    return result(call_jaxpr, Call(name, operands))


class Spaced(Assign):
    """A module-level statement that stands apart from the definition before it."""

    __slots__ = ()

    def lines(self, indent: str) -> Iterator[str]:
        yield ""
        yield ""
        yield from super().lines(indent)


def _fwd(
    module: Any, name: str, primal: Function, fwd: Function, consts: int, symbolic: bool, forwards: Sequence[int | None]
) -> Def:
    w = module.writer()
    count = len(primal.params)
    unused = [w.scope.fresh("closed") for _ in range(consts)]
    names = [w.bind_parameter(v, f"x{i}" if count > 1 else "x").id for i, v in enumerate(fwd.params)]
    if symbolic:
        w.statements.extend(Assign([n], Attribute(Name(n), "value")) for n in [*unused, *names])
    w.equations(fwd.equations, fwd.results)
    results = [w.atom(r) for r in fwd.results]
    outs = len(primal.results)
    fresh = iter(results[: len(results) - outs])
    every = [*unused, *names]
    residuals = [next(fresh) if f is None else Name(every[f]) for f in forwards]
    w.statements.append(Return(Tuple([_pack(results[len(results) - outs :]), Tuple(residuals)])))
    return Def(module.scope.fresh(identifier(name + "_fwd", "fwd")), [Parameter(n) for n in every], w.statements)


def _bwd(
    module: Any, name: str, primal: Function, bwd: Function, consts: int, symbolic: bool, residuals: int, zeros: Sequence[bool]
) -> Def:
    w = module.writer()
    packed, cotangent = w.scope.fresh("residuals"), w.scope.fresh("cotangents" if len(primal.results) != 1 else "ct")
    names = [w.bind_parameter(v, f"res{i}").id for i, v in enumerate(bwd.params[:residuals])]
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
