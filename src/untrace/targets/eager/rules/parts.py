"""What rules ask: fill values, starts of reductions, how windows lie, the letters of a product, how JAX counts keys."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace.python.tree import Expr, Text


def is_float(aval: Any) -> bool:
    """Whether an abstract value is of real or complex numbers."""
    return bool(jax.dtypes.issubdtype(aval.dtype, np.inexact))


def fill_of(dtype: Any, fill_value: Any) -> Any:
    """What a gather gives for what lies outside."""
    if fill_value is not None:
        return np.asarray(fill_value).item()
    if jax.dtypes.issubdtype(dtype, np.inexact):
        return np.nan
    if dtype == np.bool_:
        return True
    info = np.iinfo(dtype)
    return int(info.min if info.min else info.max)


def start_of(dtype: Any, method: str) -> Any:
    """What a sum, a maximum or a minimum of nothing is."""
    if method == "sum":
        return 0
    if dtype == np.bool_:
        return method == "min"
    if jax.dtypes.issubdtype(dtype, np.floating):
        return -np.inf if method == "max" else np.inf
    info = jax.numpy.iinfo(dtype)
    return int(info.min if method == "max" else info.max)


def is_whole(subset: Any, count: int) -> bool:
    """Whether all eigenvalues or singular values are asked for."""
    return subset is None or tuple(subset) == (0, count)


def einsum_letters(w: Any, contract_x: Any, contract_y: Any, batch_x: Any, batch_y: Any) -> str:
    """`ab,bc->ac`: the product of the two operands as `einsum` takes it."""
    m, n = w.avals[0].ndim, w.avals[1].ndim
    letters = iter(string.ascii_lowercase)
    first = [next(letters) for _ in range(m)]
    second = [""] * n
    for a, b in [*zip(batch_x, batch_y, strict=True), *zip(contract_x, contract_y, strict=True)]:
        second[b] = first[a]
    second = [s or next(letters) for s in second]
    batch = [first[a] for a in batch_x]
    free = [f for i, f in enumerate(first) if i not in (*batch_x, *contract_x)]
    free += [s for i, s in enumerate(second) if i not in (*batch_y, *contract_y)]
    return f"{''.join(first)},{''.join(second)}->{''.join(batch + free)}"


def is_threefry(aval: Any) -> bool:
    return jax_compat.key_impl_name(aval) == "threefry2x32"


def counting(name: str) -> str:
    """The helper for how JAX counts: each element by its place, or (`jax_threefry_partitionable` is off) all together."""
    return name if jax_compat.splits_bits_by_place() else f"{name}_together"


@dataclass(frozen=True, slots=True)
class Window:
    """How windows lie: their sizes and steps, what is around the array, and the gaps in it and in them."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    spread: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()

    @staticmethod
    def of(sizes: Any, strides: Any, padding: Any, spread: Any = (), dilation: Any = ()) -> Window:
        pairs = tuple(map(tuple, padding))
        return Window(tuple(sizes), tuple(strides), pairs, tuple(spread), tuple(dilation))

    def views(self, w: Any, x: Expr, start: Any) -> Expr:
        """The windows of an array, with `start` around it."""
        options = {} if set(self.spread) == {1} else {"spread": self.spread}
        if set(self.dilation) != {1}:
            options["dilation"] = self.dilation
        return w.call(w.helper("_windows"), x, self.sizes, self.strides, self.padding, start, **options)

    def choice(self, w: Any, aval: Any, select_prim: Any, functions: tuple[str, str]) -> list[Any] | None:
        """What says which element of each window is chosen; None where that is for others to say. functions: what says
        whether one number is at least, or at most, another."""
        name, method = {"ge": (functions[0], "max"), "le": (functions[1], "min")}[str(select_prim.name)]
        if np.dtype(aval.dtype).kind == "c" or 0 in aval.shape:
            return None
        if any(n < 0 for pair in self.padding for n in pair):
            return None
        if any(n != 1 for n in (*self.spread, *self.dilation)):
            return None
        worst = start_of(aval.dtype, method)
        return [self.sizes, self.strides, self.padding, Text(name), w.bound(worst, aval)]
