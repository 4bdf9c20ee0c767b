"""Which rule a `custom_jvp` or `custom_vjp` equation has: the function below closures and wrappers, and what was fixed on the way."""

from __future__ import annotations

from typing import Any

import jax

from untrace.jax_compat.jaxprs import literal_key, open_jaxpr
from untrace.jax_compat.values import aval_key, is_aval


def custom_rule_key(eqn: Any) -> tuple[Any, ...] | None:
    """A hashable value on which alone the rules of a custom_jvp/vjp equation depend, or None.

    Two calls of `jax.nn.relu` get two closures but the same rule; tracing it once is enough. The
    closures are those of `DynamicJaxprTrace.process_custom_jvp_call` and `..._vjp_call` in
    jax/_src/interpreters/partial_eval.py; None (no sharing) when they do not look as expected.
    """
    params = eqn.params
    try:
        thunk = params["jvp_jaxpr_fun"] if "jvp_jaxpr_fun" in params else params["fwd_jaxpr_thunk"]
        trace = _freevars(thunk.f)["fn"]
        inside = _freevars(trace)
        rule = inside["jvp"] if "jvp" in inside else inside["fwd"]
        key: tuple[Any, ...] = (eqn.primitive, eqn.ctx, tuple(inside["in_avals"]))
        key += (params["num_consts"], params["symbolic_zeros"])
        key += (_wrapped_key(rule),)
        if "bwd" in params:
            key += (_wrapped_key(params["bwd"]),)
        hash(key)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return key


def _freevars(function: Any) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return {n: c.cell_contents for n, c in zip(function.__code__.co_freevars, cells, strict=True)}


def _wrapped_key(wrapped: Any) -> tuple[Any, ...]:
    """A WrappedFun as (function, transformations with their arguments), without result thunks."""
    if wrapped.params:
        raise ValueError("keyword arguments")
    forward = _remat_optimized(wrapped.f)
    parts: list[Any] = [wrapped.f] if forward is None else [forward, "optimize_remat"]
    for generator, args in wrapped.transforms:
        parts.append(generator)
        for arg in args:
            if getattr(arg, "__qualname__", "").startswith("transformation_with_aux"):
                continue
            if type(arg).__name__ == "DebugInfo":
                continue
            # 1, 1.0 and True are one dictionary key, but not one argument.
            parts.append((type(arg), arg if not isinstance(arg, float) else repr(arg)))
    return tuple(parts)


def rule_key(eqn: Any, *rules: Any) -> Any:
    """A hashable identity of a custom_jvp/custom_vjp function as this equation calls it.

    Equal keys: the same rule function objects, with the same static arguments, over a body of the same shape, called
    with the same types. The function object itself stands at the bottom of the `WrappedFun`s that the equation keeps.
    """
    closed = eqn.params["call_jaxpr"]
    jaxpr, consts = open_jaxpr(closed)
    body = tuple((e.primitive.name, tuple(aval_key(v.aval) for v in e.outvars), literal_key(e)) for e in jaxpr.eqns)
    types = tuple(aval_key(v.aval) for v in eqn.invars)
    return (eqn.primitive.name, tuple(_rule_identity(r) for r in rules), types, body, tuple(c for c in consts))


def is_call_of(function: Any, eqn: Any) -> bool:
    """Whether a `custom_jvp_call` is one of that function: of its very rule."""
    return isinstance(function, jax.custom_jvp) and _users_rule(eqn.params["jvp_jaxpr_fun"])[0] is function.jvp


def function_of_rule(rule: Any) -> Any:
    """The user's or a library's function that a rule is, below what JAX wrapped it in."""
    return _users_rule(rule)[0]


def has_rule_of_jax(eqn: Any) -> bool:
    """Whether the rule of a `custom_jvp_call` was written by JAX's authors: `jnp.logaddexp` has one, whose call is not public.

    Rules of `defjvps` are not told from each other: JAX makes a function of its own of each.
    """
    module = getattr(_users_rule(eqn.params["jvp_jaxpr_fun"])[0], "__module__", None) or ""
    return module.startswith("jax.") and not module.endswith(".custom_derivatives")


def has_batched_rule(eqn: Any) -> bool:
    """Whether `vmap` batched the rule of a `custom_jvp_call`."""
    return any("batch" in name for name, _ in _users_rule(eqn.params["jvp_jaxpr_fun"])[1])


def _rule_identity(rule: Any) -> Any:
    """(id of the user's function, what was fixed on the way to it)."""
    function, fixed = _users_rule(rule)
    return function, fixed


def _users_rule(rule: Any) -> tuple[Any, frozenset[Any]]:
    """(the user's function below closures and `WrappedFun`s, what was fixed on the way).

    What was fixed is a set: a rule that calls its own function is wrapped once more at every level, in the same way.
    """
    from jax._src import linear_util as lu  # WrappedFun: the transformations and the function below them

    fixed: set[Any] = set()
    inner = rule
    while inner is not None:
        rule = inner
        if isinstance(rule, lu.WrappedFun):
            for transformation, args in rule.transforms:
                fixed.add((transformation.__name__, tuple(_static_key(a) for a in args if _is_fixed(a))))
            inner = rule.f
        elif (forward := _remat_optimized(rule)) is not None:
            fixed.add(("optimize_remat", ()))
            inner = forward
        else:
            inner = _wrapped_inside(rule)
    return rule, frozenset(fixed)


def _remat_optimized(rule: Any) -> Any:
    """The forward rule that every call of a function with `optimize_remat=True` wraps anew; None for other functions.

    Source: `optimize_remat_of_custom_vjp_fwd`, jax/_src/custom_derivatives.py.
    """
    code = getattr(rule, "__code__", None)
    own = code is not None and code.co_name == "wrapped_fwd" and code.co_filename.endswith("custom_derivatives.py")
    return getattr(rule, "__wrapped__", None) if own else None


def _wrapped_inside(function: Any, depth: int = 0) -> Any:
    """The `WrappedFun` that a closure of JAX's own holds, through closures of closures; None where there is none."""
    from jax._src import linear_util as lu

    if depth > 3 or not str(getattr(function, "__module__", "")).startswith("jax._src."):
        return None
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        found = value if isinstance(value, lu.WrappedFun) else _wrapped_inside(value, depth + 1)
        if found is not None:
            return found
    return None


def _is_fixed(arg: Any) -> bool:
    """Static arguments and trees, not the stores and debug records that every call makes anew."""
    return not callable(arg) and type(arg).__name__ not in ("DebugInfo",)


def _static_key(arg: Any) -> Any:
    if isinstance(arg, (tuple, list)):  # a list: the mapped axes of a batched rule
        return tuple(_static_key(a) for a in arg if _is_fixed(a) or type(a).__name__ in ("Unhashable", "Hashable"))
    value = getattr(arg, "val", arg)
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return type(value).__name__, repr(value)
    if type(value).__name__ == "PyTreeDef":
        return str(value)
    if is_aval(value):
        return aval_key(value)
    return id(value)
