"""Reductions, running sums, and reductions over windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from untrace.ir.nodes import Function
from untrace.targets.c.arrays import Array, constant, num, plus, stored, times, widened
from untrace.targets.c.build import Builder
from untrace.targets.c.loops import BOOL, INDEX, Buffer, Expr, If, Loop, Op, Read, Var
from untrace.targets.c.rules.elementwise import arithmetic, cast, extreme
from untrace.targets.c.rules.indexing import in_range, when
from untrace.targets.c.rules.table import Declined, rule

Combine = Callable[[Expr, Expr], Expr]


def limits(dtype: np.dtype) -> tuple[object, object]:
    """The smallest and the largest number of a type."""
    if dtype.kind in "fc":
        return -np.inf, np.inf
    if dtype == BOOL:
        return False, True
    info = np.iinfo(dtype)
    return info.min, info.max


def combiner(which: str, dtype: np.dtype) -> tuple[Expr, Combine]:
    """What a reduction begins with, and how it goes on."""
    low, high = limits(dtype)
    match which:
        case "sum":
            return constant(0, dtype), lambda old, new: arithmetic("+", old, new, dtype)
        case "prod":
            return constant(1, dtype), lambda old, new: arithmetic("*", old, new, dtype)
        case "max":
            return constant(low, dtype), lambda old, new: extreme("max", old, new, dtype)
        case "min":
            return constant(high, dtype), lambda old, new: extreme("min", old, new, dtype)
        case "and":
            return num(True if dtype == BOOL else -1, dtype), lambda old, new: Op(
                "&&" if dtype == BOOL else "&", (old, new), dtype
            )
        case "or":
            return num(0, dtype), lambda old, new: Op("||" if dtype == BOOL else "|", (old, new), dtype)
        case "xor":
            return num(0, dtype), lambda old, new: Op("!=" if dtype == BOOL else "^", (old, new), dtype)
    raise Declined(f"a reduction by {which}")


def reduced(b: Builder, x: Array, axes: Sequence[int], first: Expr, combine: Combine) -> Array:
    """An array reduced over some axes: in the order of its elements."""
    kept = [d for d in range(len(x.shape)) if d not in axes]
    shape = [x.shape[d] for d in kept]
    if all(x.shape[d] == 1 for d in axes):
        back = dict(zip(kept, range(len(kept)), strict=True))
        only = num(0, INDEX)
        return Array(
            tuple(shape), x.dtype,
            lambda index: x.at(tuple([index[back[d]] if d in back else only for d in range(len(x.shape))])), x.cost,
        )  # fmt: skip
    out = b.new(shape, x.dtype)

    def add(outer: tuple[Expr, ...], inner: tuple[Expr, ...]) -> None:
        outside, inside = iter(outer), iter(inner)
        index = tuple([next(outside) if d in kept else next(inside) for d in range(len(x.shape))])
        b.write(out, outer, combine(Read(out, outer), x.at(index)))

    if kept == list(range(len(kept))):  # the last axes go: each sum is finished before the next one begins

        def row(outer: tuple[Expr, ...]) -> None:
            b.write(out, outer, first)
            if 0 not in x.shape:
                b.loops([x.shape[d] for d in sorted(axes)], lambda inner: add(outer, inner))

        b.loops(shape, row)
        return stored(out)
    b.fill(Read(out, ()), Array(tuple(shape), x.dtype, lambda index: first))
    if 0 not in x.shape:
        b.loops(
            x.shape,
            lambda index: add(
                tuple([index[d] for d in kept]), tuple([i for d, i in enumerate(index) if d not in kept])
            ),
        )
    return stored(out)


def _register() -> None:
    for primitive in ("sum", "prod", "max", "min", "and", "or", "xor"):

        @rule(f"reduce_{primitive}")
        def one(
            b: Builder, x: Array, *, axes: tuple[int, ...], out_sharding: object = None, primitive: str = primitive
        ) -> Array:
            first, combine = combiner(primitive, x.dtype)
            return reduced(b, x, axes, first, combine)


_register()


def _best(b: Builder, x: Array, axis: int, dtype: np.dtype, operator: str) -> Array:
    """Where the largest or the smallest element of an axis is, the first of several; NaN is before all others."""
    shape = [n for d, n in enumerate(x.shape) if d != axis]
    out = b.new(shape, dtype)

    def one(outer: tuple[Expr, ...]) -> None:
        best = Buffer("best", (), x.dtype)

        def element(i: Expr) -> Expr:
            return x.at((*outer[:axis], i, *outer[axis:]))

        b.write(best, (), element(num(0, INDEX)))
        b.write(out, outer, num(0, dtype))
        loop = Loop(Var(x.shape[axis]), [])
        with b.inside(loop.body):
            value = Buffer("candidate", (), x.dtype)
            b.write(value, (), element(loop.var))
            v, w = Read(value, ()), Read(best, ())
            better: Expr = Op(operator, (v, w), BOOL)
            if x.dtype.kind == "f":
                is_first = Op("&&", (Op("isnan", (v,), BOOL), Op("!", (Op("isnan", (w,), BOOL),), BOOL)), BOOL)
                better = Op("||", (better, is_first), BOOL)
            choice = If(better, [], [])
            with b.inside(choice.then):
                b.write(best, (), v)
                b.write(out, outer, cast(loop.var, dtype))
            b.block.append(choice)
        b.block.append(loop)

    b.loops(shape, one)
    return stored(out)


@rule("argmax")
def _argmax(b: Builder, x: Array, *, axes: tuple[int, ...], index_dtype: Any) -> Array:
    return _best(b, b.often(x), axes[0], np.dtype(index_dtype), ">")


@rule("argmin")
def _argmin(b: Builder, x: Array, *, axes: tuple[int, ...], index_dtype: Any) -> Array:
    return _best(b, b.often(x), axes[0], np.dtype(index_dtype), "<")


def _register_running() -> None:
    for primitive, which in (("cumsum", "sum"), ("cumprod", "prod"), ("cummax", "max"), ("cummin", "min")):

        @rule(primitive)
        def one(b: Builder, x: Array, *, axis: int, reverse: bool, which: str = which) -> Array:
            first, combine = combiner(which, x.dtype)
            out = b.new(x.shape, x.dtype)
            if 0 in x.shape:
                return stored(out)

            def run(outer: tuple[Expr, ...]) -> None:
                total = Buffer("total" if which == "sum" else "running", (), x.dtype)
                b.write(total, (), first)
                loop = Loop(Var(x.shape[axis]), [], reverse)
                with b.inside(loop.body):
                    index = (*outer[:axis], loop.var, *outer[axis:])
                    b.write(total, (), combine(Read(total, ()), x.at(index)))
                    b.write(out, index, Read(total, ()))
                b.block.append(loop)

            b.loops([n for d, n in enumerate(x.shape) if d != axis], run)
            return stored(out)


_register_running()


# ------------------------------------------------------------ windows


def window_places(
    outer: Sequence[Expr], inner: Sequence[Expr], strides: Sequence[int], dilation: Sequence[int], lows: Sequence[int]
) -> list[Expr]:
    """Where elements of a window are in the array that it is laid over."""
    return [
        plus(plus(times(o, s), times(i, d)), -low)
        for o, i, s, d, low in zip(outer, inner, strides, dilation, lows, strict=True)
    ]


def inside_of(places: Sequence[Expr], shape: Sequence[int]) -> list[Expr]:
    """The conditions under which places are inside of an array."""
    found = [in_range(place, n - 1) for place, n in zip(places, shape, strict=True)]
    return [condition for condition in found if condition is not None]


def _register_windows() -> None:
    for primitive in ("sum", "max", "min"):

        @rule(f"reduce_window_{primitive}")
        def one(
            b: Builder,
            x: Array,
            *,
            window_dimensions: tuple[int, ...],
            window_strides: tuple[int, ...],
            padding: Sequence[tuple[int, int]],
            base_dilation: tuple[int, ...],
            window_dilation: tuple[int, ...],
            primitive: str = primitive,
        ) -> Array:
            first, combine = combiner(primitive, x.dtype)
            x = b.often(x)
            lows = [low for low, _ in padding]
            shape = windows(x.shape, padding, window_dimensions, window_strides, base_dilation, window_dilation)
            out = b.new(shape, x.dtype)

            def window(outer: tuple[Expr, ...]) -> None:
                b.write(out, outer, first)

                def add(inner: tuple[Expr, ...]) -> None:
                    places = window_places(outer, inner, window_strides, window_dilation, lows)
                    conditions, places = without_gaps(places, base_dilation)
                    when(
                        b,
                        conditions + inside_of(places, x.shape),
                        lambda: b.write(out, outer, combine(Read(out, outer), x.at(tuple(places)))),
                    )

                b.loops(window_dimensions, add)

            b.loops(shape, window)
            return stored(out)


def windows(
    sizes: Sequence[int], padding: Sequence[tuple[int, int]], window: Sequence[int], strides: Sequence[int],
    gaps: Sequence[int], dilation: Sequence[int],
) -> list[int]:  # fmt: skip
    """How many windows there are along each axis."""
    return [
        ((n - 1) * g + 1 + low + high - (w - 1) * k - 1) // s + 1 if n else 0
        for n, (low, high), w, s, g, k in zip(sizes, padding, window, strides, gaps, dilation, strict=True)
    ]


def without_gaps(places: Sequence[Expr], gaps: Sequence[int]) -> tuple[list[Expr], list[Expr]]:
    """(on what conditions there are elements at some places, of which every `gaps`-th is one; which elements these are)."""
    conditions: list[Expr] = []
    found: list[Expr] = []
    for place, gap in zip(places, gaps, strict=True):
        if gap != 1:
            left = Op("i%", (place, num(gap, INDEX)), INDEX)
            conditions.append(Op("==", (left, num(0, INDEX)), BOOL))
            place = Op("i/", (place, num(gap, INDEX)), INDEX)
        found.append(place)
    return conditions, found


def _by_function(
    b: Builder, function: Function, starts: Sequence[Array], shape: Sequence[int], turns: Sequence[int],
    elements: Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Sequence[Expr], Sequence[Array]]],
) -> list[Array]:  # fmt: skip
    """Arrays of a shape, reduced by a function of numbers. elements: on what conditions there is something in a turn for an
    element of the result, and what."""
    first = [start.at(()) for start in map(b.often, starts)]
    outs = [b.new(shape, start.dtype, place) for place, start in enumerate(starts)]

    def one(outer: tuple[Expr, ...]) -> None:
        for out, value in zip(outs, first, strict=True):
            b.write(out, outer, value)

        def turn(inner: tuple[Expr, ...]) -> None:
            conditions, given = elements(outer, inner)
            when(b, conditions, lambda: go_on(given))

        def go_on(given: Sequence[Array]) -> None:
            state = [Array((), out.dtype, lambda _, out=out: Read(out, outer)) for out in outs]
            made = [widened(m) for m in b.run(function, [*state, *map(b.often, given)])]
            made = [b.keep(m) for m in made] if len(made) > 1 else made  # each from what all were before
            for out, array in zip(outs, made, strict=True):
                b.write(out, outer, array.at(()))

        b.loops(turns, turn)

    b.loops(shape, one)
    return [stored(out) for out in outs]


@rule("reduce")
def _reduce(
    b: Builder, *operands: Array, jaxpr: Function, dimensions: Sequence[int], computation: object = None,
    out_sharding: object = None,
) -> list[Array]:  # fmt: skip
    half = len(operands) // 2
    xs = [b.often(x) for x in operands[:half]]
    rank = len(xs[0].shape)
    kept = [d for d in range(rank) if d not in dimensions]

    def elements(outer: tuple[Expr, ...], inner: tuple[Expr, ...]) -> tuple[list[Expr], list[Array]]:
        at = {**dict(zip(kept, outer, strict=True)), **dict(zip(sorted(dimensions), inner, strict=True))}
        return [], [_element(x, tuple([at[d] for d in range(rank)])) for x in xs]

    sizes = xs[0].shape
    turns = [sizes[d] for d in sorted(dimensions)]
    return _by_function(b, jaxpr, operands[half:], [sizes[d] for d in kept], turns, elements)


@rule("reduce_window")
def _reduce_window(
    b: Builder, *operands: Array, jaxpr: Function, consts: Sequence[object], window_dimensions: tuple[int, ...],
    window_strides: tuple[int, ...], padding: Sequence[tuple[int, int]], base_dilation: tuple[int, ...],
    window_dilation: tuple[int, ...],
) -> list[Array]:  # fmt: skip
    if consts:
        raise Declined("`reduce_window` by a function that closes over arrays")
    half = len(operands) // 2
    xs = [b.often(x) for x in operands[:half]]
    lows = [low for low, _ in padding]

    def elements(outer: tuple[Expr, ...], inner: tuple[Expr, ...]) -> tuple[list[Expr], list[Array]]:
        places = window_places(outer, inner, window_strides, window_dilation, lows)
        conditions, places = without_gaps(places, base_dilation)
        return conditions + inside_of(places, xs[0].shape), [_element(x, tuple(places)) for x in xs]

    shape = windows(xs[0].shape, padding, window_dimensions, window_strides, base_dilation, window_dilation)
    return _by_function(b, jaxpr, operands[half:], shape, window_dimensions, elements)


def _element(x: Array, index: tuple[Expr, ...]) -> Array:
    """An element of an array."""
    return Array((), x.dtype, lambda _: x.at(index), x.cost)


_register_windows()


def _selects_largest(select_jaxpr: object, select_prim: object) -> bool:
    name = getattr(select_prim, "name", "")
    if not name:
        equations = getattr(select_jaxpr, "equations", None) or getattr(select_jaxpr, "eqns", [])
        name = getattr(getattr(equations[0], "callee", None), "name", "") if len(equations) == 1 else ""
    if name not in ("ge", "gt", "le", "lt"):
        raise Declined("a `select_and_scatter` by a function of its own")
    return name in ("ge", "gt")


@rule("select_and_scatter_add")
def _select_and_scatter_add(
    b: Builder,
    source: Array,
    x: Array,
    *,
    select_prim: object,
    window_dimensions: tuple[int, ...],
    window_strides: tuple[int, ...],
    padding: Sequence[tuple[int, int]],
) -> Array:
    largest = _selects_largest(None, select_prim)
    x, source = b.often(x), b.often(source)
    out = b.new(x.shape, x.dtype)
    b.fill(Read(out, ()), Array(x.shape, x.dtype, lambda index: num(0, x.dtype)))
    ones = [1] * len(x.shape)

    def window(outer: tuple[Expr, ...]) -> None:
        best, found = Buffer("best", (), x.dtype), Buffer("found", (), BOOL)
        at = [Buffer("place", (), INDEX) for _ in x.shape]
        b.write(best, (), num(0, x.dtype))
        b.write(found, (), num(False, BOOL))
        for place in at:
            b.write(place, (), num(0, INDEX))

        def look(inner: tuple[Expr, ...]) -> None:
            places = window_places(outer, inner, window_strides, ones, [low for low, _ in padding])
            value = x.at(tuple(places))
            better = Op(
                "||",
                (  # by what is not as good: a NaN is followed by whatever comes next, as XLA does it
                    Op("!", (Read(found, ()),), BOOL),
                    Op("!", (Op(">=" if largest else "<=", (Read(best, ()), value), BOOL),), BOOL),
                ),
                BOOL,
            )

            def take() -> None:
                b.write(best, (), value)
                b.write(found, (), num(True, BOOL))
                for place, where in zip(at, places, strict=True):
                    b.write(place, (), where)

            when(b, [*inside_of(places, x.shape), better], take)

        b.loops(window_dimensions, look)
        target = tuple([Read(place, ()) for place in at])
        when(
            b,
            [Read(found, ())],
            lambda: b.write(out, target, arithmetic("+", Read(out, target), source.at(outer), x.dtype)),
        )

    b.loops(source.shape, window)
    return stored(out)
