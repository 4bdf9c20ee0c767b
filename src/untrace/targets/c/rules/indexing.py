"""Gathers and scatters, with JAX's rules for indices outside: clamped, filled, or dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from untrace.ir.calls import replaces
from untrace.ir.nodes import Function
from untrace.targets.c.arrays import Array, bounds, constant, folded, num, plus, stored
from untrace.targets.c.build import Builder
from untrace.targets.c.loops import BOOL, INDEX, Expr, If, Num, Op, Read
from untrace.targets.c.rules.elementwise import arithmetic, extreme
from untrace.targets.c.rules.shapes import clamped
from untrace.targets.c.rules.table import Declined, rule


def _word(mode: object) -> str:
    return str(getattr(mode, "name", mode))


def in_range(index: Expr, last: int) -> Expr | None:
    """Whether an index is from 0 to `last`; None where it is known to be, a number where it is known not to be."""
    known = bounds(index)
    if known is not None and 0 <= known[0] and known[1] <= last:
        return None
    if known is not None and (known[1] < 0 or last < known[0]):
        return Num(False, BOOL)
    return Op("in_range", (index, num(last, INDEX)), BOOL)


def all_of(conditions: Sequence[Expr]) -> Expr:
    """Whether all of some conditions hold; a number where one is known not to."""
    never = [c for c in conditions if isinstance(c, Num) and not c.value]
    if never:
        return never[0]
    made = conditions[0]
    for one in conditions[1:]:
        made = Op("&&", (made, one), BOOL)
    return made


def when(b: Builder, conditions: Sequence[Expr], write: Callable[[], None]) -> None:
    """Writes what is done under some conditions; nothing where one is known not to hold, for compilers look there as well."""
    if not conditions:
        write()
        return
    choice = If(all_of(conditions), [], [])
    if isinstance(choice.condition, Num):
        return
    with b.inside(choice.then):
        write()
    b.block.append(choice)


def as_index(value: Expr) -> Expr:
    return value if value.dtype == INDEX else Op("cast", (value,), INDEX)


@rule("gather")
def _gather(
    b: Builder,
    x: Array,
    indices: Array,
    *,
    dimension_numbers: Any,
    slice_sizes: tuple[int, ...],
    mode: object,
    fill_value: Any,
    indices_are_sorted: bool,
    unique_indices: bool,
) -> Array:
    dn = dimension_numbers
    indices = b.often(indices, "index")
    x = b.often(x)
    batching, other = dn.operand_batching_dims, dn.start_indices_batching_dims
    batch_shape = indices.shape[:-1]
    kept = [d for d in range(len(x.shape)) if d not in dn.collapsed_slice_dims and d not in batching]
    offsets = iter([slice_sizes[d] for d in kept])
    batches = iter(batch_shape)
    rank = len(dn.offset_dims) + len(batch_shape)
    shape = tuple([next(offsets) if d in dn.offset_dims else next(batches) for d in range(rank)])
    fills = _word(mode) == "FILL_OR_DROP"
    if fills and fill_value is None:
        if x.dtype.kind in "fc":
            fill_value = np.nan
        else:
            fill_value = (
                1 if x.dtype == BOOL else np.iinfo(x.dtype).min if x.dtype.kind == "i" else np.iinfo(x.dtype).max
            )

    def at(index: tuple[Expr, ...]) -> Expr:
        batch = [i for d, i in enumerate(index) if d not in dn.offset_dims]
        places: list[Expr] = [num(0, INDEX)] * len(x.shape)
        conditions: list[Expr] = []
        for k, d in enumerate(dn.start_index_map):
            value = indices.at((*batch, num(k, INDEX)))
            last = x.shape[d] - slice_sizes[d]
            if fills:
                inside = in_range(value, last)
                conditions += [] if inside is None else [inside]
                places[d] = as_index(value)
            else:
                places[d] = clamped(value, last)
        for d, k in zip(batching, other, strict=True):
            places[d] = batch[k]
        for d, i in zip(kept, [index[d] for d in dn.offset_dims], strict=True):
            places[d] = plus(places[d], i)
        value = x.at(tuple(places))
        if not conditions:
            return value
        return folded(Op("?:", (all_of(conditions), value, constant(fill_value, x.dtype)), x.dtype))

    return Array(shape, x.dtype, at, 1)


def _scattered(combine: str) -> Any:
    def scatter(
        b: Builder,
        x: Array,
        indices: Array,
        updates: Array,
        *,
        dimension_numbers: Any,
        mode: object,
        update_jaxpr: Function | None = None,
        update_consts: Sequence[object] = (),
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> Array:
        dn = dimension_numbers
        apply = None if combine != "set" or replaces(update_jaxpr) else update_jaxpr
        if update_consts:
            raise Declined("`scatter` by a function that closes over arrays")
        indices, updates = b.often(indices, "index"), b.often(updates, "updates")
        batching, other = dn.operand_batching_dims, dn.scatter_indices_batching_dims
        kept = [d for d in range(len(x.shape)) if d not in dn.inserted_window_dims and d not in batching]
        window = dict(zip(kept, [updates.shape[d] for d in dn.update_window_dims], strict=True))
        out = b.new(x.shape, x.dtype)
        b.fill(Read(out, ()), x)

        def write(index: tuple[Expr, ...]) -> None:
            batch = [i for d, i in enumerate(index) if d not in dn.update_window_dims]
            places: list[Expr] = [num(0, INDEX)] * len(x.shape)
            conditions: list[Expr] = []
            for k, d in enumerate(dn.scatter_dims_to_operand_dims):
                value = indices.at((*batch, num(k, INDEX)))
                last = x.shape[d] - window.get(d, 1)
                if _word(mode) == "CLIP":
                    places[d] = clamped(value, last)
                else:
                    inside = in_range(value, last)
                    conditions += [] if inside is None else [inside]
                    places[d] = as_index(value)
            for d, k in zip(batching, other, strict=True):
                places[d] = batch[k]
            for d, i in zip(kept, [index[d] for d in dn.update_window_dims], strict=True):
                places[d] = plus(places[d], i)
            old: Expr = Read(out, tuple(places))
            new = updates.at(index)
            match combine:
                case "add":
                    new = arithmetic("+", old, new, x.dtype)
                case "sub":
                    new = arithmetic("-", old, new, x.dtype)
                case "mul":
                    new = arithmetic("*", old, new, x.dtype)
                case "min" | "max":
                    new = extreme(combine, old, new, x.dtype)

            def put() -> None:
                pair = [Array((), x.dtype, lambda index, value=value: value) for value in (old, new)]
                b.write(out, tuple(places), new if apply is None else b.run(apply, pair)[0].at(()))

            when(b, conditions, put)

        if 0 not in updates.shape:
            b.loops(updates.shape, write)
        return stored(out)

    return scatter


rule("scatter")(_scattered("set"))
for _combine in ("add", "sub", "mul", "min", "max"):
    rule(f"scatter-{_combine}", f"scatter_{_combine}")(_scattered(_combine))
