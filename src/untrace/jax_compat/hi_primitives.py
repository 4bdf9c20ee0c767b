"""Primitives that are objects (`call_hi_primitive`), and the parts of `custom_root`."""

from __future__ import annotations

from typing import Any

import jax

from untrace.jax_compat.jaxprs import open_jaxpr
from untrace.jax_compat.tracing import trace_on_avals
from untrace.jax_compat.values import aval_key


def hi_primitive(eqn: Any) -> Any:
    """The object in a `call_hi_primitive` equation (SearchSorted, Nonzero, CustomRoot, ...), None for any other."""
    return eqn.params.get("_prim") if eqn.primitive.name == "call_hi_primitive" else None


def hi_primitive_function(prim: Any) -> Any:
    """`flat operands -> flat results` in plain JAX: `to_lojax`, which is what lowering calls."""
    from jax._src import hijax

    return lambda *args: hijax.call_hi_primitive_p.to_lojax(*args, _prim=prim)


def root_functions(eqn: Any) -> tuple[list[Any], list[int], int] | None:
    """(jaxprs of `f`, `solve` and `tangent_solve`, numbers of their constants, leaves of the root) of a `custom_root`.

    Each jaxpr takes its constants first; then `f` the root, `solve` the guess, `tangent_solve` the root and what to
    solve for. None for every other equation, where the guess is not of the root's types (a `vmap` over the constants
    alone), and where it has effects. Source: `CustomRoot`, jax/_src/lax/control_flow/solves.py (0.12), whose operands
    are (constants of solve, guess, constants of f, constants of tangent_solve).
    """
    prim = hi_primitive(eqn)
    if type(prim).__name__ != "CustomRoot" or prim.effects:
        return None
    solve_consts, guess, f_consts, tangent_consts = prim.in_avals
    root = prim.out_aval[0] if prim.has_aux else prim.out_aval
    leaves = jax.tree_util.tree_leaves
    if [aval_key(a) for a in leaves(guess)] != [aval_key(a) for a in leaves(root)]:
        return None
    tangent = jax.tree_util.tree_map(lambda a: a.to_tangent_aval(), root)
    calls = [
        (prim.f, (f_consts, root)),
        (prim.solve, (solve_consts, guess)),
        (prim.tangent_solve, (tangent_consts, root, tangent)),
    ]
    jaxprs = [_trace_tree(function, avals, eqn.ctx) for function, avals in calls]
    return jaxprs, [len(leaves(avals[0])) for _, avals in calls], len(leaves(root))


def root_map_function(eqn: Any) -> tuple[Any, bool, int] | None:
    """(jaxpr of the function, transposed?, number of its constants) of a `_RootLinearMap` equation, None for others.

    It stands for the derivative of `f`, which a `tangent_solve` of `custom_root` is given. Its operands are (constants
    of f, the root, the tangent). Source: as of `root_functions`.
    """
    if not is_root_map(eqn):
        return None
    prim = hi_primitive(eqn)
    consts, root = prim.in_avals[:2]
    return (
        _trace_tree(prim.f, (consts, root), eqn.ctx),
        bool(prim.transposed),
        len(jax.tree_util.tree_leaves(consts)),
    )


def is_root_map(eqn: Any) -> bool:
    """Whether an equation applies the `g` that a `tangent_solve` of `custom_root` is given."""
    return type(hi_primitive(eqn)).__name__ == "_RootLinearMap"


def _trace_tree(function: Any, avals: Any, ctx: Any) -> Any:
    """ClosedJaxpr of `function(*avals)`, flat; of a function that JAX has converted, the jaxpr inside it."""
    flat, tree = jax.tree_util.tree_flatten(avals)

    def run(*args: Any) -> list[Any]:
        return jax.tree_util.tree_leaves(function(*jax.tree_util.tree_unflatten(tree, args)))

    closed = trace_on_avals(run, flat, ctx)
    jaxpr, _ = open_jaxpr(closed)
    if len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name == "eval_jaxpr":
        (eqn,) = jaxpr.eqns
        if list(eqn.invars) == list(jaxpr.invars) and list(eqn.outvars) == list(jaxpr.outvars):
            return eqn.params["call_jaxpr"]
    return closed


def primitive_label(eqn: Any) -> str:
    """The name of what an equation applies: the primitive's, or of a primitive object its class's ("custom_root")."""
    prim = hi_primitive(eqn)
    if prim is None:
        return str(eqn.primitive.name)
    name = type(prim).__name__.lstrip("_")
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))
