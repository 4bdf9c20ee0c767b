"""Control flow: cond, switch, while, scan. Source: jax/_src/lax/control_flow/{conditionals,loops}.py.

The public functions rewrite what they are given (a carry that the body only forwards becomes a constant, constants are
ordered by their first use, outputs that are inputs are pruned). Where that would make another equation, the primitive
itself is bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace import jax_compat
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Atom, Equation, Function, Literal, Scan, Value, functions_called
from untrace.module.nested import scan_options
from untrace.module.rules import DECLINE, Groups
from untrace.python.statements import Def, Parameter, Return, Unpack
from untrace.python.tree import Call, Expr, List, Name, Text, Tuple
from untrace.targets.jax import branches as branches_
from untrace.targets.jax import loops
from untrace.targets.jax.rules.calls import result, same_weak_type
from untrace.targets.jax.rules.table import rule


@rule("cond")
def cond(w: Any, index: Any, *operands: Any, branches: Sequence[Function], **params: Any) -> Any:
    params.pop("branches_platforms", None)
    if any(v is not None for v in params.values()) or _forwards_alike(branches):
        return DECLINE
    selector = w.previous(w.equation.inputs[0])
    constant = branches_.constant_predicate(w.equation.inputs[0], branches)
    if selector is None and constant is None:
        return DECLINE
    kind = selector.callee.name if selector is not None else ""
    if w.module.idiomatic and not w.retreating:
        found = branches_.cond(w, selector, operands, branches)
        if found is not None:
            return found
    if not _takes_its_operands(w.equation, branches):
        return DECLINE
    functions: list[Expr] = [Name(w.module.function(b)) for b in branches]
    if constant is not None:
        call = w.lax("cond", constant, functions[1], functions[0], *operands)
    elif kind == "convert_element_type" and len(branches) == 2 and str(selector.inputs[0].aval.dtype) == "bool":
        w.statements.pop()
        predicate = w.atom(selector.inputs[0])
        call = w.lax("cond", predicate, functions[1], functions[0], *operands)
    elif kind == "clamp" and _is_literal(selector.inputs[0], 0) and _is_literal(selector.inputs[2], len(branches) - 1):
        w.statements.pop()
        call = w.lax("switch", w.atom(selector.inputs[1]), List(functions), *operands)
    elif kind == "platform_index":
        w.statements.pop()
        call = _platform_dependent(w, selector.params["platforms"], functions, operands)
    else:
        return DECLINE
    return result(branches[0], call)


def _takes_its_operands(equation: Equation, branches: Sequence[Function]) -> bool:
    """Whether `lax.cond` would trace the branches for these types. (A jaxpr that was evaluated again kept its own.)"""
    operands = equation.inputs[1:]
    return all(same_weak_type(a, p) for b in branches for a, p in zip(operands, b.params, strict=True))


def _platform_dependent(w: Any, platforms: Sequence[Any], functions: Sequence[Expr], operands: Sequence[Expr]) -> Expr:
    """`lax.platform_dependent(*operands, cpu=f, default=g)`: branches that name several platforms are given to each."""
    kwargs: dict[str, Expr] = {}
    for names, function in zip(platforms, functions, strict=True):
        for name in names or ("default",):
            kwargs[name] = function
    return w.lax("platform_dependent", *operands, **kwargs)


@rule("platform_index")
def platform_index(w: Any, *, platforms: Sequence[Any]) -> Any:
    """The index alone. Right before the `cond` that it belongs to, `cond` writes both as one call."""
    w.module.helper("_platform_index")
    return w.call("_platform_index", tuple(platforms))


def _is_literal(atom: Any, value: int) -> bool:
    return type(atom) is Literal and atom.value == value


def _forwards_alike(branches: Sequence[Function]) -> bool:
    """Whether some output is the same operand in every branch: `lax.cond` would prune it."""
    for atoms in zip(*(b.results for b in branches), strict=True):
        places = {_index(b.params, a) for b, a in zip(branches, atoms, strict=True)}
        if len(places) == 1 and None not in places:
            return True
    return False


def _index(params: Sequence[Value], atom: Any) -> int | None:
    for i, p in enumerate(params):
        if p is atom:
            return i
    return None


def closes_naturally(function: Function, consts: int, operands: Sequence[Any]) -> bool:
    """Whether a Python function that closes over the constants would give them in the same order again.

    JAX orders closed-over values by first use. `operands`: the constants outside, which must be distinct variables.
    """
    outside, wanted = operands[:consts], function.params[:consts]
    if any(jax_compat.is_ref_aval(p.aval) for p in wanted):
        # There is no abstract value that a function over references could be traced on by itself, so this has to do:
        # a constant that nothing reads (a carry that was only passed on) is left out.
        read = {a for e in function.equations for a in e.inputs} | set(function.results)
        used = [i for i, p in enumerate(wanted) if p in read]
        outside, wanted = [outside[i] for i in used], [wanted[i] for i in used]
        consts = len(used)
    if any(type(a) is Literal for a in outside) or len(set(outside)) < consts:
        return False
    read = [*(a for e in function.equations for a in e.inputs), *function.results]
    inner = set(wanted)
    return list(dict.fromkeys(a for a in read if a in inner)) == list(wanted)


def _body(
    w: Any, function: Function, consts: int, hint: str, groups: Sequence[int], names: Sequence[str]
) -> tuple[Any, Def]:
    """(writer, name) of a nested function over `function`: constants closed over, the other parameters in groups."""
    name = w.scope.fresh_function(hint)
    inner = w.nested()
    operands = w.equation.inputs[w.offset : w.offset + consts]
    for param, atom in zip(function.params[:consts], operands, strict=True):
        inner.names[param] = w.atom(atom)
    rest = iter(function.params[consts:])
    params = []
    for size, base in zip(groups, names, strict=True):
        values = [next(rest) for _ in range(size)]
        if size == 1:
            params.append(Parameter(inner.bind_parameter(values[0], base).id))
        else:
            whole = inner.scope.fresh(base if size else "_" + base)
            params.append(Parameter(whole))
            if size:
                targets = [inner.bind_parameter(v, base + "_item").id for v in values]
                inner.statements.append(Unpack(targets, Name(whole)))
    return inner, Def(name, params, inner.statements)


def _group(atoms: Sequence[Expr]) -> Expr:
    if not atoms:
        return Text("None")
    return atoms[0] if len(atoms) == 1 else Tuple(atoms)


@rule("scan")
def scan(w: Any, *operands: Any, jaxpr: Function, length: int, reverse: bool, unroll: int, **params: Any) -> Any:
    if w.module.idiomatic and not w.retreating:
        found = loops.scan(w, operands, jaxpr, length, reverse, unroll)
        if found is not None:
            return found
    loop = callee_of(w.equation, Scan)
    consts, carries = loop.consts, loop.carries
    extra = {k: v for k, v in params.items() if k not in ("num_consts", "num_carry", "ft_in", "ft_out", "linear")}
    outs = len(jaxpr.results)
    xs = len(operands) - consts - carries
    inputs = w.equation.inputs
    natural = (
        not w.retreating
        and not any(v for v in extra.values())
        and closes_naturally(jaxpr, consts, inputs)
        and not any(
            r is p for r, p in zip(jaxpr.results[:carries], jaxpr.params[consts : consts + carries], strict=True)
        )
        and not any(r is p for r in jaxpr.results[carries:] for p in jaxpr.params[consts + carries :])
        and not any(type(a) is Literal for a in inputs[consts + carries :])
        and all(
            same_weak_type(a, p) for a, p in zip(inputs[consts : consts + carries], jaxpr.params[consts:], strict=False)
        )
    )
    if not natural:
        return _bind_scan(w, operands, jaxpr, length, reverse, unroll, params, consts, carries, xs, outs - carries)
    inner, definition = _body(w, jaxpr, consts, "step", [carries, xs], ["carry", "x"])
    inner.equations(jaxpr.equations, jaxpr.results)
    results = [inner.atom(r) for r in jaxpr.results]
    inner.statements.append(Return(Tuple([_group(results[:carries]), _group(results[carries:])])))
    w.statements.append(definition)
    kwargs = scan_options(None if xs else w.source(length), reverse, unroll)
    init = _group(operands[consts : consts + carries])
    call = w.lax("scan", Name(definition.name), init, _group(operands[consts + carries :]), **kwargs)
    return Groups(call, (carries, outs - carries))


def _bind_scan(
    w: Any, operands: Any, jaxpr: Function, length: int, reverse: bool, unroll: int, params: Any, *counts: int
) -> Any:
    if "ft_in" not in params:
        return DECLINE  # the general form can say everything
    place = w.primitive(w.equation.callee.object)
    w.module.helper("_scan_trees")
    trees = Call("_scan_trees", [Text(str(n)) for n in counts])
    rest = {k: v for k, v in params.items() if k not in ("ft_in", "ft_out")}
    kwargs: list[tuple[str, Expr]] = [
        ("jaxpr", w.jaxpr(jaxpr)),
        ("length", w.source(length)),
        ("reverse", w.source(reverse)),
        ("unroll", w.source(unroll)),
        *((k, w.source(v)) for k, v in rest.items()),
        ("**", trees),
    ]
    return Call(place.flat() + ".bind", operands, kwargs)


@rule("while")
def while_(
    w: Any,
    *operands: Any,
    cond_jaxpr: Function,
    body_jaxpr: Function,
    cond_nconsts: int,
    body_nconsts: int,
    **params: Any,
) -> Any:
    if getattr(cond_jaxpr.results[0].aval, "shape", ()):
        return DECLINE  # of elements that each stop at a time of their own: no public function takes such a condition
    if w.module.idiomatic and not w.retreating:
        found = loops.while_(w, operands, cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts, params)
        if found is not None:
            return found
    inputs = w.equation.inputs
    pruned = cond_jaxpr.facts.pruned
    kept = _kept(body_jaxpr, body_nconsts, inputs[cond_nconsts:], pruned)
    if kept is None or kept and not pruned and _has_dead_code(cond_jaxpr):
        return DECLINE
    carry, init = body_jaxpr.params[body_nconsts:], inputs[cond_nconsts + body_nconsts :]
    forwarded = [r is p for r, p in zip(body_jaxpr.results, carry, strict=True)]
    used_by_cond = _used(cond_jaxpr)
    if (
        any(v is not None for v in params.values())
        or not closes_naturally(cond_jaxpr, cond_nconsts, inputs)
        or any(f and p not in used_by_cond for f, p in zip(forwarded, cond_jaxpr.params[cond_nconsts:], strict=True))
        or not all(map(same_weak_type, inputs[cond_nconsts : cond_nconsts + kept], body_jaxpr.params))
        or not all(map(same_weak_type, init, carry))
    ):
        return DECLINE
    first = body_jaxpr.params[:kept]
    inner, condition = _loop_function(w, cond_jaxpr, (), 0, cond_nconsts, "keep_going")
    if kept:
        _takes_two(inner, condition)
    inner.equations(cond_jaxpr.equations, cond_jaxpr.results)
    inner.statements.append(Return(inner.atom(cond_jaxpr.results[0])))
    w.statements.append(condition)
    inner, body = _loop_function(w, body_jaxpr, first, cond_nconsts + kept, body_nconsts - kept, "body")
    if kept:
        _takes_two(inner, body)
    inner.equations(body_jaxpr.equations, body_jaxpr.results)
    state = [_group([inner.atom(r) for r in body_jaxpr.results])]
    start = [_group(operands[cond_nconsts + body_nconsts :])]
    if kept:
        state.append(_group([inner.atom(p) for p in first]))
        start.append(_group(operands[cond_nconsts : cond_nconsts + kept]))
    inner.statements.append(Return(_group(state)))
    w.statements.append(body)
    call = w.lax("while_loop", Name(condition.name), Name(body.name), _group(start))
    return Groups(call, (len(carry), 0) if kept else (len(carry),))


def _kept(body: Function, consts: int, operands: Sequence[Any], some: bool) -> int | None:
    """How many of the first constants of a loop's body were carried by its author, who only handed them on.

    JAX puts those before what the body closes over. None where no number of them explains the order. some: whether
    there are any, for JAX has pruned the condition.
    """
    for kept in range(min(some, consts), consts + 1):
        closes = Function(body.name, body.params[kept:], body.equations, body.results)
        if closes_naturally(closes, consts - kept, operands[kept:]):
            return kept if not any(jax_compat.is_ref_aval(p.aval) for p in body.params[:kept]) else None
    return None


def _loop_function(
    w: Any, function: Function, kept: Sequence[Value], offset: int, consts: int, hint: str
) -> tuple[Any, Def]:
    """Like `_body`, of the carry and of the values in `kept`, where there are any, which no longer are constants."""
    own = [p for p in function.params if p not in kept]
    groups = [len(own) - consts, len(kept)] if kept else [len(own) - consts]
    w.offset = offset
    names = ["carry", "kept"][: len(groups)]
    found = _body(w, Function(function.name, [*own, *kept], [], []), consts, hint, groups, names)
    w.offset = 0
    return found


def _takes_two(inner: Any, definition: Def) -> None:
    """Makes a function of one argument, a pair, of one that takes its parts, or only the first of them."""
    names = [p.name for p in definition.params]
    whole = inner.scope.fresh("state")
    inner.statements.insert(0, Unpack([*names, "_"][:2], Name(whole)))
    definition.params = [Parameter(whole)]


def _has_dead_code(function: Function) -> bool:
    """Whether dead code elimination, which `lax.while_loop` does on its condition where `_kept` finds something, would
    leave less of it: then its author handed on nothing."""
    live = _used(function)
    for equation in function.equations:
        bodies = functions_called(equation)
        dead = [o is None or o not in live for o in equation.outputs]
        if (all(dead) or bodies and any(dead)) and not _has_effects(equation) or any(map(_has_dead_code, bodies)):
            return True
    return False


def _used(function: Function) -> set[Atom]:
    """The atoms that the results of `function` depend on (effects count as results)."""
    live = set(function.results)
    for equation in reversed(function.equations):
        if any(o in live for o in equation.outputs) or _has_effects(equation):
            live.update(equation.inputs)
    return live


def _has_effects(equation: Equation) -> bool:
    return bool(equation.origin is not None and equation.origin.effects)
