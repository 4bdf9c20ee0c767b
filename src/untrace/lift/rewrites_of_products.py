"""Rewrites of products of matrices into `x @ w` with transposed operands: the gradients of `x @ w` are `d @ w.T`, `x.T @ d`.

Of matrices of single and double precision XLA makes the same product of either form: it takes transposes into the product
and swaps its operands itself. It does not do so for vectors and for axes of size one, where the order of the sum may
be another.
"""

from __future__ import annotations

from typing import Any

from jax import lax

from untrace import jax_compat
from untrace.lift.simplify import Body, rewrite

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
    swapped = jax_compat.fresh_variable(eqn.outvars[0], eqn.outvars[0].aval.shape[::-1])
    body.add(_product(eqn, right, left).replace(outvars=[swapped]))
    return _transposed(eqn, swapped, eqn.outvars[0])


@rewrite("transpose")
def transposed_product(body: Body, eqn: Any) -> Any:
    """`x.T @ d` for `(d.T @ x).T`, where nothing else needs the product."""
    product = body.maker(eqn.invars[0], "dot_general")
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
