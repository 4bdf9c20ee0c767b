"""Rewrites of products, sums and solutions of linear systems in gradients.

The gradients of `x @ w` are `d @ w.T` and `x.T @ d`. Of matrices of single and double precision XLA makes the same
product of either form: it takes transposes into the product and swaps its operands itself. It does not do so for
vectors and for axes of size one, where the order of the sum may be another, and of batches it swaps no operands.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace import jax_compat
from untrace.lift.rewrite.call_bodies import spliced
from untrace.lift.rewrite.simplify import Body, rewrite, same_aval

Literal = jax_compat.LITERAL_TYPE


@rewrite("dot_general")
def transposed_operand(body: Body, eqn: Any) -> Any:
    """`d @ w.T`, `x.T @ d` and `(w @ x).T`, where an operand is summed over its other axis."""
    if not _is_plain_product(eqn):
        return None
    left, right = eqn.invars
    ((first,), (second,)), _ = eqn.params["dimension_numbers"]
    last = left.aval.ndim - 1
    if len(right.aval.shape) != 2 or (first, second) == (last, 0):
        return None
    if first == last:
        return _product(eqn, left, _transpose(body, eqn, right))
    if left.aval.ndim != 2:
        return None
    if second == 0:
        return _product(eqn, _transpose(body, eqn, left), right)
    if body.simplifier.mapped:
        return None  # swapped operands are another program of batches
    swapped = jax_compat.fresh_variable(eqn.outvars[0], eqn.outvars[0].aval.shape[::-1])
    body.add(_product(eqn, right, left).replace(outvars=[swapped]))
    return _transposed(eqn, swapped, eqn.outvars[0])


@rewrite("transpose")
def transposed_product(body: Body, eqn: Any) -> Any:
    """`x.T @ d` for `(d.T @ x).T` of a derivative, where nothing else needs the product; an author has a name for it."""
    product = body.maker(eqn.invars[0], "dot_general") if body.in_backward_pass(eqn) else None
    if product is None or not _is_plain_product(product) or not body.used_once(eqn.invars[0]):
        return None
    left, right = product.invars
    ((first,), (second,)), _ = product.params["dimension_numbers"]
    if left.aval.ndim != 2 or right.aval.ndim != 2 or (first, second) != (1, 0):
        return None
    if not _is_transposed(body, left) and not _is_transposed(body, right):
        return None
    operands = [_transpose(body, product, right), _transpose(body, product, left)]
    return _product(product, *operands).replace(outvars=eqn.outvars, source_info=eqn.source_info)


@rewrite("dot_general")
def product_of_nothing(body: Body, eqn: Any) -> Any:
    """A number times an array, where nothing is summed: a part of the derivative of `x @ y` for vectors."""
    left, right = eqn.invars
    if any(map(any, eqn.params["dimension_numbers"])) or eqn.params["precision"] is not None:
        return None
    out = eqn.outvars[0].aval
    if str(out.dtype) not in ("float32", "float64") or any(v.aval.dtype != out.dtype for v in eqn.invars):
        return None
    if out.weak_type or left.aval.shape and right.aval.shape or eqn.params.get("out_sharding") is not None:
        return None
    if any(jax_compat.varying_axes(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        return None
    closed = jax_compat.trace_library_call(lambda a, b: [lax.mul(a, b)], [eqn.outvars[0].aval] * 2)
    product = jax_compat.open_jaxpr(closed)[0].eqns[0]
    operands = [_spread(body, eqn, v, tuple(out.shape)) for v in eqn.invars]
    return product.replace(invars=operands, outvars=eqn.outvars, source_info=eqn.source_info)


@rewrite("dot_general")
def outer_product(body: Body, eqn: Any) -> Any:
    """`jnp.outer(x, d)` for the product of two vectors that sums nothing: XLA multiplies them."""
    left, right = eqn.invars
    out = eqn.outvars[0].aval
    if any(map(any, eqn.params["dimension_numbers"])) or not body.in_backward_pass(eqn):
        return None
    if any(type(v) is Literal or len(v.aval.shape) != 1 or v.aval.dtype != out.dtype for v in eqn.invars):
        return None
    if str(out.dtype) not in ("float32", "float64") or out.weak_type or eqn.params.get("out_sharding") is not None:
        return None
    if any(v.aval.weak_type or jax_compat.varying_axes(v.aval) for v in eqn.invars):
        return None
    return spliced(body, eqn, lambda a, b: [jnp.outer(a, b)], [left, right])


def _spread(body: Body, eqn: Any, atom: Any, shape: tuple[int, ...]) -> Any:
    """An operand of an elementwise operation of this shape."""
    if tuple(atom.aval.shape) == shape:
        return atom
    if type(atom) is Literal:
        return jax_compat.literal(np.asarray(atom.val).astype(atom.aval.dtype)[()], atom.aval)
    variable = jax_compat.fresh_variable(eqn.outvars[0])
    params = {"shape": shape, "broadcast_dimensions": (), "sharding": None}
    body.add(eqn.replace(primitive=lax.broadcast_in_dim_p, invars=[atom], outvars=[variable], params=params))
    return body.substitute.get(variable, variable)


def _is_plain_product(eqn: Any) -> bool:
    """Whether an equation sums over one axis of each of two arrays, of which XLA makes the same in either order."""
    (contracted, _), batched = eqn.params["dimension_numbers"]
    out = eqn.outvars[0].aval
    if any(batched) or len(contracted) != 1 or eqn.params.get("out_sharding") is not None:
        return False
    if any(type(v) is Literal or v.aval.ndim < 2 or 1 in v.aval.shape for v in eqn.invars):
        return False
    if any(str(v.aval.dtype) not in ("float32", "float64") or v.aval.dtype != out.dtype for v in eqn.invars):
        return False
    for aval in (out, *(v.aval for v in eqn.invars)):
        sharding = getattr(aval, "sharding", None)
        if not (
            sharding is None or jax_compat.is_trivial_sharding(sharding) or jax_compat.is_manual_sharding(sharding)
        ):
            return False
    precision = eqn.params["precision"]
    return not isinstance(precision, tuple) or precision[0] == precision[1]


def _is_transposed(body: Body, matrix: Any, depth: int = 0) -> bool:
    """Whether a matrix is the transposed of another, or a product with such an operand that nothing else needs."""
    made = body.maker(matrix, "transpose", "dot_general")
    if made is None or made.primitive is lax.transpose_p:
        return made is not None
    if depth > 3 or not _is_plain_product(made) or not body.used_once(matrix):
        return False
    return any(v.aval.ndim == 2 and _is_transposed(body, v, depth + 1) for v in made.invars)


def _transpose(body: Body, like: Any, matrix: Any) -> Any:
    """The transposed of a matrix: what it is the transposed of, or by an equation before `like`."""
    inner = body.maker(matrix, "transpose")
    if inner is not None:
        return inner.invars[0]
    variable = jax_compat.fresh_variable(matrix, matrix.aval.shape[::-1])
    body.add(_transposed(like, matrix, variable))
    return body.substitute.get(variable, variable)


def _transposed(like: Any, matrix: Any, variable: Any) -> Any:
    return like.replace(primitive=lax.transpose_p, invars=[matrix], outvars=[variable], params={"permutation": (1, 0)})


def _product(eqn: Any, left: Any, right: Any) -> Any:
    numbers = (((left.aval.ndim - 1,), (0,)), ((), ()))
    return eqn.replace(invars=[left, right], params={**eqn.params, "dimension_numbers": numbers})


@rewrite("reduce_sum")
def sum_of_one(body: Body, eqn: Any) -> Any:
    """A sum over axes of size one, as the derivatives of `keepdims=True` and of a bias leave it, is the array without them.

    StableHLO leaves open whether the zero that a sum begins with is added; XLA does not, so that -0.0 stays -0.0.
    """
    x = eqn.invars[0]
    axes = tuple(sorted(int(a) for a in eqn.params["axes"]))
    if type(x) is Literal or any(x.aval.shape[a] != 1 for a in axes):
        return None
    site = body.simplifier.provenance.site(eqn)
    if not axes:
        # Of a single number, which a library sums without asking for its shape; an author's is for other leaves too.
        if not site.frames or not site.frames[-1].library or x.aval.shape or eqn.params.get("out_sharding") is not None:
            return None
        return x
    if not body.in_backward_pass(eqn) and not site.by_jvp and (site.library or ("", ""))[1] == "sum":
        return None  # one that the author wrote, for leaves of a tree of which others are larger
    inner = body.maker(x, "reshape", "broadcast_in_dim")
    if inner is not None and len(inner.invars) == 1 and type(inner.invars[0]) is not Literal:
        if inner.invars[0].aval.size == x.aval.size and same_aval(inner.invars[0].aval, eqn.outvars[0].aval):
            return inner.invars[0]
    if eqn.params.get("out_sharding") is not None or x.aval.weak_type != eqn.outvars[0].aval.weak_type:
        return None
    body.summed.add(eqn.outvars[0])
    return eqn.replace(primitive=lax.squeeze_p, params={"dimensions": axes})


@rewrite("broadcast_in_dim")
def put_back(body: Body, eqn: Any) -> Any:
    """Axes of size one that a sum took out and that are put back where they were."""
    inner = body.maker(eqn.invars[0], "squeeze") if len(eqn.invars) == 1 else None
    if inner is None or type(inner.invars[0]) is Literal or eqn.params["sharding"] is not None:
        return None
    if inner.outvars[0] not in body.summed:
        return None  # an index, as in `jnp.stack([x[0], x[1]])`
    x, shape = inner.invars[0], tuple(eqn.params["shape"])
    out = {int(d) % len(x.aval.shape) for d in inner.params["dimensions"]}
    kept = tuple(d for d in range(len(x.aval.shape)) if d not in out)
    if len(shape) != len(x.aval.shape) or tuple(map(int, eqn.params["broadcast_dimensions"])) != kept:
        return None
    return eqn.replace(invars=[x], params={**eqn.params, "broadcast_dimensions": tuple(range(len(shape)))})
