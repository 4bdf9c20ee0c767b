"""Primitives in the words of others: what has neither code of JAX's own behind it that could be traced nor needs the compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace.ir.calls import replaces
from untrace.ir.evaluate import evaluate
from untrace.ir.nodes import Function
from untrace.ir.types import Data, Parameter, PrimitiveObject

_INDEX = 4  # bytes of an integer that can say any place

PlainForm = Callable[..., Sequence[Data]]  # of the operands, the results


def plain_form(primitive: PrimitiveObject, params: Mapping[str, Parameter]) -> PlainForm | None:
    """What a primitive computes, as a function of its operands that JAX can trace; None where this has none.

    A collective over axes of its operands is a reduction: `vmap` leaves that of one over its name. The approximate largest
    numbers are the exact ones where there is no hardware for them. Factors of matrices are LAPACK's, by the textbook
    (Golub and Van Loan, Matrix Computations, 5.1 and 8.5). None of these primitives has a public name.
    """
    make = _FORMS.get(primitive.name)
    return make(**params) if make is not None else None


def _reduced(reduce: Callable[..., Data]) -> Callable[..., PlainForm | None]:
    def form(*, axes: Sequence[Parameter], axis_index_groups: Parameter, **others: Parameter) -> PlainForm | None:
        if axis_index_groups is not None or not all(type(a) is int for a in axes):
            return None
        return lambda *args: [reduce(x, axis=tuple(axes)).astype(x.dtype) for x in args]

    return form


def _largest(*, k: int, reduction_dimension: int, is_max_k: bool, **others: Parameter) -> PlainForm | None:
    if jax.default_backend() == "tpu":
        return None
    sign = 1 if is_max_k else -1

    def largest(x: Data) -> Sequence[Data]:
        values, places = lax.top_k(sign * jnp.moveaxis(x, reduction_dimension, -1), k)
        return [jnp.moveaxis(sign * values, -1, reduction_dimension), jnp.moveaxis(places, -1, reduction_dimension)]

    return largest


def _of_each(function: Callable[..., Data]) -> PlainForm:
    """A function whose first operand is a matrix, for batches of all of them."""

    def of_batch(*args: Data) -> Data:
        each = function
        for _ in range(args[0].ndim - 2):
            each = jax.vmap(each)
        return each(*args)

    return of_batch


def _reflector(a: Data, i: Data) -> Data:
    """The vector of the reflection in a column below the diagonal: 1 on it, and 0 above."""
    rows = jnp.arange(a.shape[0])
    return jnp.where(rows > i, a[:, i], 0) + (rows == i).astype(a.dtype)


def _householder(**others: Parameter) -> PlainForm:
    """`geqrf`: the upper factor, with the vectors of the reflections below it, and their scales."""

    def factors(a: Data) -> Sequence[Data]:
        count = min(a.shape)

        def turn(i: Data, state: tuple[Data, Data]) -> tuple[Data, Data]:
            a, taus = state
            rows, columns = jnp.arange(a.shape[0]), jnp.arange(a.shape[1])
            first, below = a[i, i], jnp.where(rows > i, a[:, i], 0)
            rest = jnp.sum(jnp.abs(below) ** 2)
            is_done = (rest == 0) & (jnp.imag(first) == 0)
            norm = jnp.sqrt(jnp.abs(first) ** 2 + rest)
            pivot = jnp.where(is_done, first, jnp.where(jnp.real(first) > 0, -norm, norm).astype(a.dtype))
            tau = jnp.where(is_done, 0, (pivot - first) / jnp.where(is_done, 1, pivot)).astype(a.dtype)
            vector = below / jnp.where(is_done, 1, first - pivot) + (rows == i)
            right = jnp.where(columns > i, jnp.conj(vector) @ a, 0)
            a = a - jnp.conj(tau) * vector[:, None] * right
            column = jnp.where(rows > i, vector, jnp.where(rows == i, pivot, a[:, i]))
            return a.at[:, i].set(column), taus.at[i].set(tau)

        return lax.fori_loop(0, count, turn, (a, jnp.zeros(count, a.dtype)))

    return _of_each(factors)


def _reflected(*, left: bool, transpose: bool, **others: Parameter) -> PlainForm:
    """`ormqr`: a matrix times the product of reflections, or that product's adjoint."""

    def product(a: Data, taus: Data, c: Data) -> Data:
        count = taus.shape[0]

        def turn(k: Data, c: Data) -> Data:
            i = k if left == transpose else count - 1 - k
            vector, tau = _reflector(a, i), jnp.conj(taus[i]) if transpose else taus[i]
            if left:
                return c - tau * vector[:, None] * (jnp.conj(vector) @ c)
            return c - tau * (c @ vector)[:, None] * jnp.conj(vector)

        return lax.fori_loop(0, count, turn, c)

    return lambda *args: [_of_each(product)(*args)]


def _applied(
    *,
    dimension_numbers: lax.ScatterDimensionNumbers,
    mode: Parameter,
    update_jaxpr: Function | None,
    update_consts: Sequence[Parameter] = (),
    **others: Parameter,
) -> PlainForm | None:
    """`scatter` by a function of what is there and of an update: window by window, as one index may come several times."""
    d = dimension_numbers
    if update_jaxpr is None or replaces(update_jaxpr) or update_consts:
        return None

    def applied(x: Data, indices: Data, updates: Data) -> Sequence[Data]:
        kept = [axis for axis in range(x.ndim) if axis not in (*d.inserted_window_dims, *d.operand_batching_dims)]
        sizes = [1] * x.ndim
        for axis, dim in zip(kept, d.update_window_dims, strict=True):
            sizes[axis] = updates.shape[dim]
        ahead = [dim for dim in range(updates.ndim) if dim not in d.update_window_dims]
        windows = updates.transpose(*ahead, *d.update_window_dims).reshape(-1, *sizes)
        if 0 in windows.shape:
            return [x]
        indices = indices if indices.dtype.itemsize >= _INDEX else indices.astype(np.int32)
        places = [jnp.zeros(indices.shape[:-1], indices.dtype)] * x.ndim
        for k, axis in enumerate(d.scatter_dims_to_operand_dims):
            places[axis] = indices[..., k]
        for axis, dim in zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True):
            places[axis] = lax.broadcasted_iota(indices.dtype, indices.shape[:-1], dim)
        starts = jnp.stack(places, -1).reshape(-1, x.ndim)
        last = np.array([n - size for n, size in zip(x.shape, sizes, strict=True)], indices.dtype)

        def of_window(old: Data, update: Data) -> Data:
            if old.size == 1:
                return evaluate(update_jaxpr, old.reshape(()), update.reshape(()))[0].reshape(old.shape)
            each = jax.vmap(lambda *pair: evaluate(update_jaxpr, *pair)[0])
            return each(old.ravel(), update.ravel()).reshape(old.shape)

        def turn(k: Data, x: Data) -> Data:
            start = jnp.clip(starts[k], 0, last)
            old = lax.dynamic_slice(x, list(start), sizes)
            new = of_window(old, windows[k])
            if mode != lax.GatherScatterMode.CLIP:
                new = jnp.where(jnp.all(start == starts[k]), new, old)
            return lax.dynamic_update_slice(x, new, list(start))

        return [turn(0, x) if len(windows) == 1 else lax.fori_loop(0, len(windows), turn, x)]

    return applied


_FORMS: dict[str, Callable[..., PlainForm | None]] = {
    "psum": _reduced(jnp.sum), "pmax": _reduced(jnp.max), "pmin": _reduced(jnp.min), "approx_top_k": _largest,
    "geqrf": _householder, "ormqr": _reflected, "scatter": _applied,
}  # fmt: skip
