"""Rewrites of transposes, reshapes and broadcasts: two in a row are one, those to the shape that is there are none."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from untrace import jax_compat
from untrace.lift.rewrite.arithmetic import ELEMENTWISE, is_of_a_turn, is_scalar_to_all
from untrace.lift.rewrite.common_subexpressions import author_chain
from untrace.lift.rewrite.rematerialised_operands import INDEXED
from untrace.lift.rewrite.simplify import Body, rewrite

Literal = jax_compat.LITERAL_TYPE


@rewrite("transpose")
def transposed_twice(body: Body, eqn: Any) -> Any:
    order = tuple(int(i) for i in eqn.params["permutation"])
    if order == tuple(range(len(order))):
        return eqn.invars[0]
    inner = body.maker(eqn.invars[0], "transpose")
    if inner is None or is_of_a_turn(body, eqn) and not is_of_a_turn(body, inner):  # of the first turn, unlike the others
        return None
    first = inner.params["permutation"]
    whole = tuple(int(first[i]) for i in order)
    if whole == tuple(range(len(whole))):
        return inner.invars[0]
    return eqn.replace(invars=inner.invars, params={**eqn.params, "permutation": whole})


@rewrite("reshape")
def reshaped_twice(body: Body, eqn: Any) -> Any:
    x = eqn.invars[0]
    if type(x) is Literal or len(eqn.invars) > 1 or eqn.params["dimensions"] is not None:
        return None
    if x.aval.shape == eqn.outvars[0].aval.shape:
        return x
    inner = body.maker(x, "reshape")
    if inner is not None and len(inner.invars) == 1 and inner.params["dimensions"] is None:
        return eqn.replace(invars=inner.invars)
    wide = body.maker(x, "broadcast_in_dim")
    if wide is not None and len(wide.invars) == 1 and type(wide.invars[0]) is not Literal:
        dims = [int(d) for d in wide.params["broadcast_dimensions"]]
        if wide.invars[0].aval.size == x.aval.size and dims == sorted(dims):  # axes of size one that come and go
            return eqn.replace(invars=wide.invars)
    literal = body.scalar(x)
    source = body.maker(x, "broadcast_in_dim") if literal is not None else None
    if source is not None and len(source.invars) == 1:
        params = {**source.params, "shape": tuple(eqn.outvars[0].aval.shape)}
        return source.replace(params=params, outvars=eqn.outvars, source_info=eqn.source_info)
    return None


@rewrite("reshape")
def new_axes(body: Body, eqn: Any) -> Any:
    """A reshape that puts axes of size one in between is an index with None; before an operation, it is nothing."""
    x = eqn.invars[0]
    if type(x) is Literal or len(eqn.invars) > 1 or eqn.params["dimensions"] is not None:
        return None
    old, new = tuple(x.aval.shape), tuple(eqn.outvars[0].aval.shape)
    if len(new) <= len(old) or not old:
        return None
    if new == (*old, *[1] * (len(new) - len(old))):
        dims = tuple(range(len(old)))
    elif 1 in old or tuple(n for n in new if n != 1) != old:
        return None
    else:
        dims = tuple(i for i, n in enumerate(new) if n != 1)
    params = {"shape": new, "broadcast_dimensions": dims, "sharding": eqn.params["sharding"]}
    return eqn.replace(primitive=lax.broadcast_in_dim_p, params=params)


@rewrite("broadcast_in_dim")
def broadcast_twice(body: Body, eqn: Any) -> Any:
    x = eqn.invars[0] if len(eqn.invars) == 1 else None
    if x is None or type(x) is Literal:
        return None
    dims = tuple(int(d) for d in eqn.params["broadcast_dimensions"])
    shape = tuple(eqn.params["shape"])
    if x.aval.shape == shape and dims == tuple(range(len(shape))):
        return x
    inner = body.maker(x, "broadcast_in_dim")
    if inner is None or len(inner.invars) != 1:
        return None
    is_number = type(inner.invars[0]) is Literal
    if not is_number and not body.in_backward_pass(eqn) and not _in_one_function(body, inner, eqn):
        return None  # other calls of the function may pass something else
    if is_number and not body.in_backward_pass(eqn) and not is_scalar_to_all(body, x):
        return None  # it is there for something else
    # A number needs no axes to be promoted, and what only got axes in front is promoted from what it was.
    if body.scalar(x) is None and _is_promotion(body, eqn, x.aval.shape) and not _has_axes_in_front(inner):
        return None
    if any(u.primitive.name in INDEXED and u.invars[1] is eqn.outvars[0] for u in body.users(eqn.outvars[0])):
        return None  # the axis that JAX gives an index
    first = tuple(dims[int(d)] for d in inner.params["broadcast_dimensions"])
    return eqn.replace(invars=inner.invars, params={**eqn.params, "broadcast_dimensions": first})


def _in_one_function(body: Body, left: Any, right: Any) -> bool:
    """Whether one call of a function of the author's made both equations, as far as it is known who did."""
    chains = [author_chain(e, body.simplifier.provenance) for e in (left, right)]
    if not all(chains):
        return True
    (*around, (code, _)), (*others, (other, _)) = chains
    return around == others and code == other


def _has_axes_in_front(eqn: Any) -> bool:
    """Whether a broadcast only puts axes of size one before those that there are."""
    old, new = tuple(eqn.invars[0].aval.shape), tuple(eqn.params["shape"])
    dims = tuple(int(d) for d in eqn.params["broadcast_dimensions"])
    more = len(new) - len(old)
    return new == (1,) * more + old and dims == tuple(range(more, len(new)))


def _is_promotion(body: Body, eqn: Any, old: tuple[int, ...]) -> bool:
    """Whether `eqn` gives an operand the rank of the other one, as `x - y[:, None]` does of itself."""
    out = eqn.outvars[0]
    shape = tuple(out.aval.shape)
    if len(shape) == len(old) or shape != (1,) * (len(shape) - len(old)) + tuple(old) or out in body.results:
        return False
    users = body.users(out)
    others = [v for u in users for v in u.invars if v is not out]
    return (
        bool(users)
        and all(u.primitive.name in ELEMENTWISE for u in users)
        and all(type(v) is not Literal and len(v.aval.shape) == len(shape) for v in others)
        and all(tuple(u.outvars[0].aval.shape) != shape for u in users)
    )


@rewrite("slice")
def whole_slice(body: Body, eqn: Any) -> Any:
    """All of an array, as the derivative of `jnp.pad` leaves it: `lax.slice` itself makes no equation of it."""
    x = eqn.invars[0]
    if any(int(s) != 1 for s in eqn.params["strides"] or ()) or type(x) is Literal:
        return None
    return x if tuple(eqn.outvars[0].aval.shape) == tuple(x.aval.shape) else None


@rewrite("squeeze")
def axes_taken_back(body: Body, eqn: Any) -> Any:
    """Axes of size one that were put in and are taken out again, as a batching rule does around what it calls."""
    wide = body.maker(eqn.invars[0], "broadcast_in_dim")
    if wide is None or len(wide.invars) != 1 or type(wide.invars[0]) is Literal:
        return None
    x = wide.invars[0]
    dims = [int(d) for d in wide.params["broadcast_dimensions"]]
    if x.aval.size != wide.outvars[0].aval.size or dims != sorted(dims):
        return None
    return x if tuple(x.aval.shape) == tuple(eqn.outvars[0].aval.shape) else None


@rewrite("squeeze")
def summed_at_once(body: Body, eqn: Any) -> Any:
    """In a backward pass, the axes of size one that a sum leaves, with those that were put in after it, go with the others:
    `d.sum(axis=(0, 1))` for the gradient of a bias, whatever the size of a batch."""
    if not body.in_backward_pass(eqn):
        return None
    total = body.maker(eqn.invars[0], "reduce_sum", "reshape", "broadcast_in_dim")
    if total is not None and total.primitive.name != "reduce_sum":
        same_size = total.invars[0].aval.size == total.outvars[0].aval.size and total.params.get("dimensions") is None
        total = body.maker(total.invars[0], "reduce_sum") if same_size else None
    left = tuple(eqn.outvars[0].aval.shape)
    if total is None or total.params.get("out_sharding") is not None:
        return None
    x, axes = total.invars[0], {int(a) for a in total.params["axes"]}
    kept = [i for i in range(x.aval.ndim) if i not in axes]
    gone = {i for i in kept if x.aval.shape[i] == 1}
    if (
        tuple(x.aval.shape[i] for i in kept if i not in gone) != left
        or not gone
        or not body.used_once(total.outvars[0])
    ):
        return None
    return total.replace(params={**total.params, "axes": tuple(sorted(axes | gone))}, outvars=eqn.outvars)


@rewrite("slice")
def part_of_number(body: Body, eqn: Any) -> Any:
    """A part of an array that is one number everywhere."""
    x = eqn.invars[0]
    literal = body.scalar(x)
    wide = body.maker(x, "broadcast_in_dim") if literal is not None else None
    if wide is None or len(wide.invars) != 1 or wide.params["sharding"] is not None:
        return None
    params = {**wide.params, "shape": tuple(eqn.outvars[0].aval.shape)}
    return wide.replace(params=params, outvars=eqn.outvars, source_info=eqn.source_info)


@rewrite("squeeze")
def squeezed_number(body: Body, eqn: Any) -> Any:
    """A number in the shape that is left, where it was broadcast to a larger one."""
    x = eqn.invars[0]
    source = body.maker(x, "broadcast_in_dim") if type(x) is not Literal else None
    if source is None or body.scalar(x) is None or len(source.invars) != 1:
        return None
    params = {**source.params, "shape": tuple(eqn.outvars[0].aval.shape)}
    if not params["shape"]:
        aval = eqn.outvars[0].aval
        return jax_compat.literal(np.asarray(body.scalar(x).val).astype(aval.dtype)[()], aval)
    return source.replace(params=params, outvars=eqn.outvars, source_info=eqn.source_info)
