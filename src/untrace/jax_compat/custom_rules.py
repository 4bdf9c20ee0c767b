"""The rules of `custom_jvp` and `custom_vjp` equations, which JAX keeps as closures, as jaxprs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from untrace._identity import IdentityMap
from untrace.jax_compat.inner_jaxprs import with_inner_jaxprs, with_other_jaxprs
from untrace.jax_compat.jaxprs import LITERAL_TYPE, close_jaxpr, evaluate_closed, open_jaxpr
from untrace.jax_compat.rebuilding import rebuilt_jaxpr, without_float0
from untrace.jax_compat.tracing import trace_flat, trace_on_avals, tracing_context
from untrace.jax_compat.values import FLOAT0, core_cotangent, dtype_of, has_tangent, tangent_aval

# The parameter that holds a rule, which is told of each operand whether it is differentiated, or that it is not.
_RULE_HOLDERS = {"custom_jvp_call": "jvp_jaxpr_fun", "custom_vjp_call": "fwd_jaxpr_thunk"}


def rule_holder(eqn: Any) -> Any:
    """What holds the derivative rule of a call of a function with one; None of other equations."""
    return eqn.params.get(_RULE_HOLDERS.get(eqn.primitive.name, ""))


def custom_jvp_rule(
    eqn: Any, again: bool = False, perturbed: Sequence[bool] | None = None
) -> tuple[Any, list[bool], list[bool]]:
    """(ClosedJaxpr of the JVP rule with no zero tangents, which tangents out are symbolic zeros, which operands the rule lets
    differentiation go through).

    A rule with symbolic zeros may refuse tangents of some operands (as equinox's `nondifferentiable` does): those are zero
    then, and inputs that the jaxpr does not read. again: whether it is traced though JAX remembers what that gave, which it
    goes on to do. perturbed: the operands that are differentiated, where that is known.
    `jvp_jaxpr_fun` is the only place that keeps the rule; see `lift_jvp` in jax/_src/custom_derivatives.py.
    """
    params = eqn.params
    thunk = params["jvp_jaxpr_fun"]
    call = getattr(thunk, "call_wrapped", thunk)
    operands = eqn.invars[params["num_consts"] :]

    def trace(moved: Sequence[bool]) -> Any:
        return call(*[not m for m in moved])

    with tracing_context(eqn), _forgotten(thunk) if again else contextlib.nullcontext():
        tries = [[True] * len(operands), *([list(perturbed)] if perturbed is not None else [])]
        (jaxpr, consts, out_zeros), taken = _with_most_taken(trace, operands, tries, params["symbolic_zeros"], ())
    # The tangent of an integer says nothing, whether it is a symbolic zero or an array of float0.
    outs = len(eqn.outvars)
    tangents = iter(jaxpr.outvars[outs:])
    given = [None if zero else next(tangents) for zero in out_zeros]
    kept = [v for v in given if v is not None and getattr(v.aval, "dtype", None) != FLOAT0]
    zeros = [v is None or getattr(v.aval, "dtype", None) == FLOAT0 for v in given]
    closed = close_jaxpr(jaxpr, consts)
    if len(kept) < len(jaxpr.outvars) - outs:
        closed = rebuilt_jaxpr(closed, jaxpr.eqns, [*jaxpr.outvars[:outs], *kept])
    if not all(taken):
        moved = iter(jaxpr.invars[len(operands) :])
        idle = [type(v)(tangent_aval(v.aval)) for v in jaxpr.invars[: len(operands)]]
        tangents_in = [next(moved) if m else i for m, i in zip(taken, idle, strict=True)]
        closed = rebuilt_jaxpr(
            closed,
            open_jaxpr(closed)[0].eqns,
            open_jaxpr(closed)[0].outvars,
            invars=[*jaxpr.invars[: len(operands)], *tangents_in],
        )
    return without_float0(closed), zeros, taken


def with_dense_zeros(eqn: Any) -> Any:
    """A custom_jvp equation with symbolic zeros, as one whose rule, and the calls in it, get arrays of zeros.

    `transformation2` keeps the rule's identity, by which its functions are shared. Source: `jvp_jaxpr_thunk` of
    `DynamicJaxprTrace.process_custom_jvp_call`, jax/_src/interpreters/partial_eval.py.
    """
    from jax._src import linear_util as lu

    def with_dense(closed: Any) -> Any:
        jaxpr, _ = open_jaxpr(closed)
        eqns = [with_inner_jaxprs(with_dense_zeros(e), with_dense) for e in jaxpr.eqns]
        same = all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
        return closed if same else rebuilt_jaxpr(closed, eqns, jaxpr.outvars)

    @lu.transformation2
    def dense_zeros(rule: Any, *in_zeros: bool) -> Any:
        jaxpr, *rest = rule(*in_zeros)
        return with_dense(jaxpr), *rest

    if eqn.primitive.name != "custom_jvp_call" or not eqn.params["symbolic_zeros"]:
        return eqn
    rule = dense_zeros(eqn.params["jvp_jaxpr_fun"])
    return eqn.replace(params={**eqn.params, "symbolic_zeros": False, "jvp_jaxpr_fun": rule})


def custom_vjp_rules(
    eqn: Any, perturbed: Sequence[bool] | None = None
) -> tuple[Any, list[int | None], Any, list[bool], list[bool]]:
    """(fwd ClosedJaxpr, residual forwards, bwd ClosedJaxpr, which cotangents out are zeros, which
    operands the rule lets differentiation go through).

    perturbed: the operands that are differentiated (of a rule with symbolic zeros), where that is known.
    Source: `fwd_jaxpr_thunk`, `bwd` and `out_trees` of custom_vjp_call, jax/_src/custom_derivatives.py
    """
    from jax._src import ad_util  # a zero cotangent is an `ad_util.Zero` (0.10) or None (0.12)

    params = eqn.params
    n_consts = params["num_consts"]
    thunk = params["fwd_jaxpr_thunk"]
    with tracing_context(eqn):
        (fwd_jaxpr, consts), perturbed = _forward_rule(
            thunk, eqn.invars[n_consts:], params["symbolic_zeros"], perturbed
        )
    fwd = close_jaxpr(fwd_jaxpr, consts)
    _, res_tree, forwards = params["out_trees"]()
    # `forwards` counts all operands of the equation, constants first.
    in_avals = [v.aval for v in eqn.invars]
    fresh_avals = iter([v.aval for v in fwd_jaxpr.outvars])
    res_avals = [next(fresh_avals) if f is None else in_avals[f] for f in forwards]
    if len(res_avals) != res_tree.num_leaves:
        raise ValueError(f"{len(res_avals)} residuals where the rule has {res_tree.num_leaves}")
    ct_avals = [core_cotangent(v.aval) for v in eqn.outvars]
    # A residual that is a literal is a Python value to the rule (a flag it may branch on), not an array.
    fresh_vars = iter(fwd_jaxpr.outvars)
    fixed = [next(fresh_vars) if f is None else None for f in forwards]
    fixed_values = {i: v.val for i, v in enumerate(fixed) if type(v) is LITERAL_TYPE}
    zeros: list[bool] = []
    bwd = params["bwd"]
    call = getattr(bwd, "call_wrapped", bwd)

    def backward(*args: Any) -> list[Any]:
        for store in getattr(bwd, "stores", ()):
            if store is not None:
                store.reset()
        outs = call(*[fixed_values.get(i, a) for i, a in enumerate(args)])
        if isinstance(outs, tuple) and len(outs) == 2 and isinstance(outs[0], (list, tuple)):
            outs, logs = outs  # 0.12 returns (cotangents, log entries of `defvjp_with_logs`)
            if logs:
                raise ValueError("the backward rule returns log entries")
        outs = list(outs)
        # A cotangent of an integer says nothing, whether it is a symbolic zero or an array of float0.
        zeros[:] = [o is None or type(o) is ad_util.Zero or dtype_of(o) == FLOAT0 for o in outs]
        return [o for o, zero in zip(outs, zeros, strict=True) if not zero]

    with tracing_context(eqn):
        closed = trace_flat(backward, [*res_avals, *ct_avals])
    return fwd, list(forwards), without_float0(closed), list(zeros), perturbed


def _forward_rule(
    thunk: Any, operands: Sequence[Any], symbolic: bool, known: Sequence[bool] | None
) -> tuple[Any, list[bool]]:
    """(what `thunk` gives for the `known` perturbed operands, else for the most that it takes; which those are)."""
    stores, memories = _kept_by(thunk)
    trace = getattr(thunk, "call_wrapped", thunk)

    def call(perturbed: Sequence[bool]) -> Any:
        for memory in memories:  # else the result would come back without the trees
            memory.clear()
        return trace(*perturbed)

    tries = [[True] * len(operands) if known is None or not symbolic else list(known)]
    return _with_most_taken(call, operands, tries, symbolic, stores)


def _with_most_taken(
    call: Callable[[Sequence[bool]], Any],
    operands: Sequence[Any],
    tries: Sequence[list[bool]],
    symbolic: bool,
    stores: Sequence[Any],
) -> tuple[Any, list[bool]]:
    """(what a rule gives for the first of the sets of perturbed operands in `tries` that it takes, else for the most that
    it takes; that set).

    With symbolic zeros a rule is told which operands are differentiated, and may refuse some (as
    equinox's `filter_custom_vjp` does for all arguments but the first). Raises what the rule raises
    where it takes no operand at all. stores: where it keeps the trees of its last call.
    """
    refusal: Exception | None = None
    for some in tries:
        try:
            return call(some), some
        except Exception as error:  # the rule is user code: anything may be raised
            if not symbolic:
                raise
            refusal = refusal or error
    taken: set[int] = set()
    found: Any = None
    trees: list[Any] = []
    # Halves of halves: what is refused mostly stands together, and a rule that is taken is traced whole.
    pieces = [[i for i, v in enumerate(operands) if has_tangent(v.aval)]]
    while pieces:
        piece = pieces.pop()
        wanted = taken.union(piece)
        try:
            found = call([i in wanted for i in range(len(operands))])
        except Exception:
            if len(piece) > 1:
                middle = len(piece) // 2
                pieces += [piece[middle:], piece[:middle]]
        else:
            taken = wanted
            trees = [_stored(store) for store in stores]
    if not taken:
        assert refusal is not None
        raise refusal
    for store, tree in zip(stores, trees, strict=True):
        store.reset()
        if tree is not _NOTHING:
            store.store(tree)
    return found, [i in taken for i in range(len(operands))]


def perturbed_operands(closed: Any) -> IdentityMap[Any, tuple[bool, ...]]:
    """Which operands an equation whose rule gets symbolic zeros has differentiated when all inputs of `closed` are.

    By the id of what holds the rule (`rule_holder`); those that nothing differentiates are not in it. Such a rule is told
    which operands these are, and may compute something else for others (as equinox's loops do): the right rule is
    the one that JAX asks for. So JAX is asked, on a copy of the jaxpr whose thunks note down how they are called.
    """
    found: IdentityMap[Any, tuple[bool, ...]] = IdentityMap()
    copy = _noting(closed, found, {})
    if copy is closed:
        return found
    avals = [v.aval for v in open_jaxpr(closed)[0].invars]
    floats = [i for i, aval in enumerate(avals) if has_tangent(aval)]

    def differentiated(*args: Any) -> list[Any]:
        def of_floats(*given: Any) -> list[Any]:
            full = list(args)
            for i, value in zip(floats, given, strict=True):
                full[i] = value
            return [out for out in evaluate_closed(copy, full) if has_tangent(jax.typeof(out))]

        return jax.vjp(of_floats, *[args[i] for i in floats])[0]

    with contextlib.suppress(Exception):  # a program that JAX cannot differentiate has no rule that is asked for
        trace_on_avals(differentiated, avals)
    return found


def _noting(closed: Any, found: IdentityMap[Any, tuple[bool, ...]], known: dict[Any, Any]) -> Any:
    """A copy of a jaxpr whose derivative rules with symbolic zeros note down in `found` how they are called; the same
    object where there is none. Source: `lift_fwd`, jax/_src/custom_derivatives.py."""
    from jax._src import linear_util as lu

    def note(thunk: Any, zeros: bool) -> Any:
        def call(*said: bool) -> Any:
            rule = getattr(thunk, "call_wrapped", thunk)(*said)  # not noted where it refuses
            before = found.get(thunk, (False,) * len(said))
            found[thunk] = tuple(a or bool(b) is not zeros for a, b in zip(before, said, strict=True))
            return rule

        return lu.wrap_init(call, debug_info=thunk.debug_info)

    if closed not in known:
        eqns = []
        for eqn in open_jaxpr(closed)[0].eqns:
            params = eqn.params
            held = _RULE_HOLDERS.get(eqn.primitive.name)
            if held is not None:
                if params["symbolic_zeros"]:
                    params = {**params, held: note(params[held], zeros=held == "jvp_jaxpr_fun")}
            else:
                params = with_other_jaxprs(params, lambda inner: _noting(inner, found, known))
            eqns.append(eqn if params is eqn.params else eqn.replace(params=params))
        jaxpr = open_jaxpr(closed)[0]
        same = all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
        known[closed] = closed if same else rebuilt_jaxpr(closed, eqns, jaxpr.outvars)
    return known[closed]


@contextlib.contextmanager
def _forgotten(thunk: Any) -> Iterator[None]:
    """Makes a thunk trace its rule again; it remembers afterwards what it did before."""
    _, memories = _kept_by(thunk)
    before = [dict(memory) for memory in memories]
    for memory in memories:
        memory.clear()
    try:
        yield
    finally:
        for memory, kept in zip(memories, before, strict=True):
            memory.clear()
            memory.update(kept)


_NOTHING: Any = object()


def _stored(store: Any) -> Any:
    try:
        return store.val
    except Exception:  # StoreException: it is empty
        return _NOTHING


def _kept_by(value: Any) -> tuple[list[Any], list[dict[Any, Any]]]:
    """(where the `WrappedFun`s inside a thunk keep what they found out besides their result, where it keeps results).

    A rule's trees are those of its last call, and a refused one forgets them. A program that was evaluated from
    its jaxpr has thunks in thunks. Source: jax/_src/linear_util.py, `_memoize` in jax/_src/interpreters/partial_eval.py.
    """
    from jax._src import linear_util as lu

    stores: list[Any] = []
    memories: list[dict[Any, Any]] = []
    seen: IdentityMap[Any, None] = IdentityMap()
    todo = [value]
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen[value] = None
        if isinstance(value, lu.WrappedFun):
            stores += [s for s in value.stores if s is not None]
            todo.append(value.f)
            todo += [a for _, args in value.transforms for a in args if callable(a)]
        elif str(getattr(value, "__module__", "")).startswith("jax._src.") and hasattr(value, "__closure__"):
            free = _filled_cells(value)
            if value.__name__ == "memoized" and type(free.get("cells")) is dict:
                memories.append(free["cells"])
            todo += free.values()
    return stores, memories


def _filled_cells(function: Any) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is not filled yet
            found[name] = cell.cell_contents
    return found
