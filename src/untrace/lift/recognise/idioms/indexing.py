"""Indexing: `x[i]`, `x[..., 1:]`, `x[idx]`, `x.at[i].add(v)`."""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from untrace.ir.callees import output_of
from untrace.ir.nodes import Constant, Equation, Literal
from untrace.lift.recognise.engine import Guess, Matcher, idiom
from untrace.lift.recognise.patterns import Fixed
from untrace.provenance import syntax
from untrace.provenance.sites import is_in_loop


def written_index(m: Matcher, equation: Equation) -> tuple[Any, ...] | None:
    """The index of the brackets that made an equation, as it stands there; None where it is not all numbers and slices."""
    frames = m.site(equation).frames
    node = frames[-1].node if frames else None
    if not isinstance(node, ast.Subscript):
        return None
    try:
        return tuple([_element(e) for e in (node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])])
    except ValueError:
        return None


def _element(node: ast.expr | None) -> Any:
    """What an element of an index says. Raises ValueError where it is computed."""
    if isinstance(node, ast.Slice):
        return slice(_element(node.lower), _element(node.upper), _element(node.step))
    if node is None or isinstance(node, ast.Constant) and node.value is None:
        return None
    sign = -1 if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else 1
    number = node.operand if isinstance(node, ast.UnaryOp) and sign < 0 else node
    if isinstance(number, ast.Constant) and (type(number.value) is int or number.value is Ellipsis and sign > 0):
        return sign * number.value if type(number.value) is int else Ellipsis
    raise ValueError


def _written_numbers(m: Matcher, equation: Equation, index: tuple[Any, ...] | None) -> Collection[int]:
    """The numbers of an index that are not counted from the end: in a loop or a comprehension of the author's those that he
    computes."""
    frames = m.site(equation).frames
    last = frames[-1] if frames else None
    if index is None and last is not None and isinstance(last.node, ast.Subscript):
        if is_in_loop(frames) or syntax.comprehensions_around(last.code, last.line):
            return range(sys.maxsize)
    return {i for i in index or () if type(i) is int}


def _index_of_turn(m: Matcher, source: Equation, equation: Equation, squeezed: tuple[int, ...]) -> Any:
    """The index of a slice in a loop of the author's, `x[0:8]` for `x[i : i + n]`: from where to where it goes, as he says
    it, so that turns are alike. None where his index is not one slice or number for each of the first axes."""
    frames = m.site(source).frames
    node = frames[-1].node if frames else None
    if not isinstance(node, ast.Subscript) or not is_in_loop(frames[-1:]):
        return None
    said = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    params, shape = equation.origin.params, equation.inputs[0].aval.shape
    starts, limits = params["start_indices"], params["limit_indices"]
    if len(said) > len(shape) or params["strides"] is not None:
        return None
    if any((starts[d], limits[d]) != (0, shape[d]) for d in range(len(said), len(shape))):
        return None
    found: list[Any] = []
    for d, part in enumerate(said):
        if isinstance(part, ast.Slice) and part.step is None and d not in squeezed:
            stop = int(limits[d]) - (int(shape[d]) if isinstance(part.upper, ast.UnaryOp) else 0)
            found.append(slice(part.lower and int(starts[d]), part.upper and stop))
        elif not isinstance(part, ast.Slice) and d in squeezed:
            found.append(int(starts[d]))
        else:
            return None
    return tuple(found)


def basic_index(
    equation: Equation, squeezed: tuple[int, ...] = (), written: Collection[int] = ()
) -> tuple[Any, ...] | None:
    """The index of a static slice: `[1:, ..., ::2, 0]`; `squeezed` dimensions become integers, those that are `written` if
    these do."""
    params = equation.origin.params
    shape = equation.inputs[0].aval.shape
    strides = params["strides"] or (1,) * len(shape)
    index: list[Any] = []
    for d, (start, stop, step, size) in enumerate(
        zip(params["start_indices"], params["limit_indices"], strides, shape, strict=True)
    ):
        start, stop, step = int(start), int(stop), int(step)
        if d in squeezed:
            if stop - start != 1:
                return None
            index.append(start - size if start == size - 1 and size > 2 and start not in written else start)
        else:
            index.append(_slice(start, stop, step, int(size)))
    return shortened(index)


def _slice(start: int, stop: int, step: int, size: int) -> slice:
    first = None if start == 0 else start
    last = None if stop == size else stop
    if last is not None:
        if start > 0 and size - stop < 3 and size - stop <= start and size > 3 and step == 1:
            last = stop - size
        elif start == 0 and size - stop <= 2 < stop:
            last = stop - size
    if first is not None and last is None and start >= size - 2 and size > 4:
        first = start - size
    return slice(first, last, None if step == 1 else step)


def shortened(index: list[Any]) -> tuple[Any, ...]:
    """Full slices at the end left out, many at the start as an ellipsis."""
    full = slice(None)
    while len(index) > 1 and index[-1] == full:
        index.pop()
        if not index:
            break
    else:
        lead = 0
        while lead < len(index) and index[lead] == full:
            lead += 1
        if lead >= 2:
            index = [Ellipsis, *index[lead:]]
    return tuple(index)


def _full(
    m: Matcher, source: Equation, equation: Equation, squeezed: tuple[int, ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """The indices that a slice may come from, and what follows it: the author's, and one that says the same."""
    written = written_index(m, source)
    turn = None if written is not None else _index_of_turn(m, source, equation, squeezed)
    for said in (written, turn):
        if said is not None:
            yield said
    index = basic_index(equation, squeezed, _written_numbers(m, source, written))
    if index is not None and index != written:
        yield index


@idiom("squeeze")
def _unpacked(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """`a, b, c = x`, where JAX slices the parts off one after the other, with strides; tried at the last."""
    inside = m.producer(equation.inputs[0], "slice")
    if inside is None or inside.origin.params["strides"] is None or tuple(equation.origin.params["dimensions"]) != (0,):
        return
    x = inside.inputs[0]
    size = x.aval.shape[0] if x.aval.shape else 0
    if not 1 < size <= 32:
        return
    parts: dict[int, Equation] = {}
    for part in sorted(m.users(x), key=m.position):  # the last before this one: `x[0]` may stand elsewhere as well
        if part.callee.name != "slice" or len(part.outputs) != 1:
            continue
        users = m.users(part.outputs[0])
        alike = part.origin.params["strides"] == inside.origin.params["strides"]
        if alike and len(users) == 1 and users[0].callee.name == "squeeze":
            place = int(part.origin.params["start_indices"][0])
            if m.position(part) > m.position(inside):
                if place not in parts:
                    return  # it is not the last one
            else:
                parts[place] = users[0]
    places = sorted(parts)
    if len(places) > 1 and parts[places[-1]] is equation:
        some = "" if len(places) == size else "." + ".".join(map(str, places))
        yield Guess("unpack" + some, (x,), anchors=[parts[i] for i in places])


@idiom("unstack", small=True)
def _unstacked(m: Matcher, equation: Equation) -> Iterator[Guess]:
    x = equation.inputs[0]
    axis = int(equation.origin.params["axis"])
    if axis == 0:
        yield Guess("unpack", (x,))
    yield Guess("jnp.unstack", (x,), {"axis": axis})


@idiom("squeeze")
def _integer_index(m: Matcher, equation: Equation) -> Iterator[Guess]:
    inside = m.producer(equation.inputs[0], "slice", "dynamic_slice")
    if inside is None:
        written = written_index(m, equation)
        if written is not None:  # of an axis of one element nothing is cut
            yield Guess("operator.getitem", (equation.inputs[0], _single(written)))
        return
    axes = tuple(int(d) for d in equation.origin.params["dimensions"])
    if inside.callee.name == "slice":
        for index in _full(m, equation, inside, axes):
            yield Guess("operator.getitem", (inside.inputs[0], _single(index)))
        if len(axes) == 1:  # of an array that is taken apart, where some of its parts are not used
            start = int(inside.origin.params["start_indices"][axes[0]])
            options = {**({"axis": axes[0]} if axes[0] else {}), "keepdims": False}
            yield Guess("lax.index_in_dim", (inside.inputs[0], start), options)
        return
    yield from _dynamic(m, inside, axes)


def _single(index: tuple[Any, ...]) -> Any:
    return index[0] if len(index) == 1 else index


@idiom("slice", small=True)
def _slice_index(m: Matcher, equation: Equation) -> Iterator[Guess]:
    x = equation.inputs[0]
    for index in _full(m, equation, equation):
        yield Guess("operator.getitem", (x, _single(index)))
    params = equation.origin.params  # what JAX's own functions slice with comes back as them only
    starts, limits = params["start_indices"], params["limit_indices"]
    cut = [d for d, n in enumerate(x.aval.shape) if (starts[d], limits[d]) != (0, n)]
    if len(cut) == 1 and params["strides"] is not None:
        axis = cut[0]
        stride = int(params["strides"][axis])
        options = {**({} if stride == 1 else {"stride": stride}), **({"axis": axis} if axis else {})}
        yield Guess("lax.slice_in_dim", (x, int(starts[axis]), int(limits[axis])), options)


@idiom("dynamic_slice")
def _dynamic_slice(m: Matcher, equation: Equation) -> Iterator[Guess]:
    x, *starts = equation.inputs
    sizes = tuple(int(s) for s in equation.origin.params["slice_sizes"])
    shape = tuple(x.aval.shape)
    moving = [d for d in range(len(shape)) if sizes[d] != shape[d]]
    if len(moving) == 1:
        d = moving[0]
        start = _unwrapped(m, starts[d])
        for s in start:
            yield Guess("lax.dynamic_slice_in_dim", (x, s, sizes[d]), {"axis": d} if d else {})
    yield Guess("lax.dynamic_slice", (x, _starts(m, starts), sizes))
    yield Guess("lax.dynamic_slice", (x, tuple(s for s in starts), sizes))


def _unwrapped(m: Matcher, start: Any) -> list[Any]:
    """The index before negative ones were made positive: `select_n(i < 0, i, i + n)`; and as it is."""
    found = [start]
    chosen = m.producer(start, "select_n")
    if chosen is not None and len(chosen.inputs) == 3:
        found.insert(0, chosen.inputs[1])
        inner = m.through(chosen.inputs[1], "convert_element_type")
        if inner is not None:
            found.insert(0, inner)
    return found


def _starts(m: Matcher, starts: Sequence[Any]) -> tuple[Any, ...]:
    """The indices as the author passed them."""
    return tuple([int(s.value) if type(s) is Literal else _unwrapped(m, s)[0] for s in starts])


def _dynamic(m: Matcher, inside: Equation, squeezed: tuple[int, ...]) -> Iterator[Guess]:
    """`x[i]`, `x[i, 1:]` with an index that is known at run time only."""
    x, *starts = inside.inputs
    sizes = inside.origin.params["slice_sizes"]
    shape = x.aval.shape
    choices: list[Any] = []
    for d in range(len(shape)):
        start = _unwrapped(m, starts[d])[0]
        if d in squeezed:
            choices.append(int(start.value) if type(start) is Literal else start)
        elif sizes[d] == shape[d]:
            choices.append(slice(None))
        elif type(start) is Literal:
            first = int(start.value)
            choices.append(_slice(first, first + int(sizes[d]), 1, int(shape[d])))
        else:
            return
    yield Guess("operator.getitem", (x, _single(shortened(choices))))
    if len(squeezed) == 1:
        d = squeezed[0]
        for start in _unwrapped(m, starts[d]):
            yield Guess("lax.dynamic_index_in_dim", (x, start), {"axis": d, "keepdims": False})


@idiom("dynamic_update_slice")
def _dynamic_update(m: Matcher, equation: Equation) -> Iterator[Guess]:
    x, update, *starts = equation.inputs
    shape, sizes = x.aval.shape, update.aval.shape
    moving = [d for d in range(len(shape)) if sizes[d] != shape[d]]
    inner = m.through(update, "broadcast_in_dim", "reshape")
    if len(moving) == 1:
        d = moving[0]
        for start in _unwrapped(m, starts[d]):
            if sizes[d] == 1:
                for value in ([inner] if inner is not None else []) + [update]:
                    yield Guess("lax.dynamic_update_index_in_dim", (x, value, start), {"axis": d})
            yield Guess("lax.dynamic_update_slice_in_dim", (x, update, start), {"axis": d})
    yield Guess("lax.dynamic_update_slice", (x, update, _starts(m, starts)))
    yield Guess("lax.dynamic_update_slice", (x, update, tuple(starts)))


_MOST_BYTES = 1 << 12  # of an index that is written out


def _index_array(m: Matcher, atom: Any) -> list[Any]:
    """Index arrays that `jnp` may have turned into the indices of a gather: most prepared first."""
    found: list[Any] = []
    step = atom
    for _ in range(4):
        chosen = m.producer(step, "select_n")
        if chosen is not None and len(chosen.inputs) == 3:
            step = chosen.inputs[1]
            # Whether an index of NumPy's is negative is known before anything is traced.
            known = type(step) is Constant and type(chosen.inputs[0]) is Constant
            found.append(Fixed(step) if known and np.asarray(step.value).nbytes <= _MOST_BYTES else step)
            continue
        before = m.through(step, "broadcast_in_dim", "reshape", "convert_element_type")
        if before is None:
            break
        step = before
        found.append(step)
    return found[::-1]


@idiom("gather")
def _array_index(m: Matcher, equation: Equation) -> Iterator[Guess]:
    x, indices = equation.inputs
    numbers = equation.origin.params["dimension_numbers"]
    if len(numbers.start_index_map) > 1:
        yield from _several_arrays(m, equation)
        return
    if not numbers.start_index_map:
        return
    axis = int(numbers.start_index_map[0])
    rank = len(x.aval.shape)
    options = _mode(equation, _counts_from_end(m, indices))
    for index in _index_array(m, indices):
        if len(index.aval.shape) == 0 and type(index) is Literal:
            index = int(index.value)
        where = _single(shortened([*[slice(None)] * axis, index]))
        yield Guess("operator.getitem", (x, where))
        yield Guess("jnp.take", (x, index), {"axis": axis - rank if axis == rank - 1 and axis else axis})
        if rank == len(getattr(getattr(index, "aval", None), "shape", ())):
            yield Guess("jnp.take_along_axis", (x, index, axis))
        for named in options:
            yield Guess("at.get", (x, where), named)


def _counts_from_end(m: Matcher, indices: Any) -> bool:
    """Whether negative indices were made positive: not where a segment's number is one, nor in the derivative of that."""
    step = indices
    while step is not None and m.producer(step, "select_n") is None:
        step = m.through(step, "broadcast_in_dim", "reshape", "convert_element_type")
    return step is not None


def _mode(equation: Equation, from_end: bool = True) -> list[dict[str, Any]]:
    """Keyword arguments of `x.at[i].get`, `x.at[i].add`: what an equation says of indices that are out of bounds, ..."""
    params = equation.origin.params
    flags = {name: True for name in ("unique_indices", "indices_are_sorted") if params[name]}
    mode = str(params["mode"]).rpartition(".")[2].lower()
    mode = {"fill_or_drop": "fill" if equation.callee.name == "gather" else "drop"}.get(mode, mode)
    modes: list[dict[str, Any]] = [{}, {"mode": mode}]
    value = params.get("fill_value")
    if value is not None:
        modes.append({"mode": mode, "fill_value": value.item() if hasattr(value, "item") else value})
    found = [{**named, **flags} for named in modes if named or flags]
    if flags and len(equation.inputs[1].aval.shape) == 1:  # `x.at[i]` says so by itself
        found = [*modes[1:], *found]
    if from_end:
        return found
    # One index is sorted and unique by itself: the flags are tried at the last.
    every = [*modes, *({**named, **flags} for named in modes if flags)]
    return found + [{**named, "wrap_negative_indices": False} for named in every]


def _several_arrays(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """`x[i, j]`: the indices are joined along a last axis."""
    x, indices = equation.inputs
    axes = [int(a) for a in equation.origin.params["dimension_numbers"].start_index_map]
    options = _mode(equation)
    for index in _joined_index(m, indices, axes, x.aval.shape):
        yield Guess("operator.getitem", (x, index))
        for named in options:
            yield Guess("at.get", (x, index), named)


def _joined_index(m: Matcher, indices: Any, axes: list[int], shape: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """What may stand in the brackets where indices of several axes of an array were joined: `:, i, j`, `-1, :, i`."""
    joined = m.producer(indices, "concatenate")
    if joined is not None and len(joined.inputs) == len(axes) and axes == sorted(axes):
        for parts in _index_arrays(m, joined):
            index: list[Any] = [slice(None)] * (axes[-1] + 1)
            for axis, part in zip(axes, parts, strict=True):
                index[axis] = _place(int(part.value), int(shape[axis])) if type(part) is Literal else part
            yield tuple(index)


def _place(number: int, size: int) -> int:
    """An index as one would write it: the last ones count from the end."""
    return number - size if size - 2 <= number < size and size > 4 else number


def _index_arrays(m: Matcher, joined: Equation) -> Iterator[tuple[Any, ...]]:
    """The arrays `i, j` of `x[i, j]`, each as prepared as `jnp` may have taken it: together they have the indices' shape."""
    parts = [_index_array(m, part) for part in joined.inputs]
    if not all(parts):
        return
    shape = tuple(output_of(joined).aval.shape[:-1])
    first, last = tuple(p[0] for p in parts), tuple(p[-1] for p in parts)
    yield first
    yield last
    tried = 0
    for chosen in itertools.product(*parts):
        if chosen in (first, last) or tried == _MOST_COMBINATIONS:
            continue
        try:
            fits = np.broadcast_shapes(*[c.aval.shape for c in chosen])
        except (AttributeError, ValueError):
            continue
        if fits == shape:
            tried += 1
            yield chosen


_MOST_COMBINATIONS = 8


_SCATTERS = {"scatter": "set", "scatter-add": "add", "scatter-mul": "multiply", "scatter-min": "min", "scatter-max": "max",
             "scatter_add": "add", "scatter_mul": "multiply", "scatter_min": "min", "scatter_max": "max"}  # fmt: skip
_SEGMENTS = {"at.add": "jax.ops.segment_sum", "at.multiply": "jax.ops.segment_prod", "at.min": "jax.ops.segment_min",
             "at.max": "jax.ops.segment_max"}  # fmt: skip


@idiom("convert_element_type")
def _at_of_weak_type(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """`x.at[i].set(v)` of an array with a weak type, which that keeps."""
    changed = m.producer(equation.inputs[0], *_SCATTERS)
    if changed is not None and equation.origin.params["weak_type"]:
        x = m.through(changed.inputs[0], "convert_element_type")
        if x is not None:
            yield from _at_of(m, changed, x)


@idiom(*_SCATTERS)
def _at(m: Matcher, equation: Equation) -> Iterator[Guess]:
    yield from _at_of(m, equation, equation.inputs[0])


def _at_of(m: Matcher, equation: Equation, x: Any) -> Iterator[Guess]:
    """The calls that a scatter may be, of the array `x`."""
    _, indices, updates = equation.inputs
    path = "at." + _SCATTERS[equation.callee.name]
    numbers = equation.origin.params["dimension_numbers"]
    axes = [int(a) for a in numbers.scatter_dims_to_operand_dims]
    values = [updates]
    inner = m.through(updates, "broadcast_in_dim", "convert_element_type", "reshape")
    if inner is not None:
        values.insert(0, inner)
        second = m.through(inner, "convert_element_type", "broadcast_in_dim")
        if second is not None:
            values.insert(0, second)
    from_end = len(axes) > 1 or _counts_from_end(m, indices)
    segments = _SEGMENTS.get(path)
    if segments is not None and axes == [0] and not from_end and m.producer(x, "broadcast_in_dim") is not None:
        flags = {"indices_are_sorted": True} if equation.origin.params["indices_are_sorted"] else {}
        for index in _index_array(m, indices):
            yield Guess(segments, (updates, index, int(x.aval.shape[0])), flags)
    index = _static_index(m, equation, axes)
    options = _mode(equation, from_end)
    for where in ([] if index is None else [index], _scatter_indices(m, indices, axes, x)):
        for index in where:
            for value in values:
                yield Guess(path, (x, index, value))
                for named in options:
                    yield Guess(path, (x, index, value), named)


def _static_index(m: Matcher, equation: Equation, axes: list[int]) -> Any:
    """The index `[1:, 2]` of a scatter whose indices are literals; None where they are not."""
    x, indices, updates = equation.inputs
    joined = m.producer(indices, "concatenate")
    starts: list[Any] = [_start(m, part) for part in (joined.inputs if joined is not None else [indices])]
    if len(starts) != len(axes) or None in starts:
        return None
    numbers = equation.origin.params["dimension_numbers"]
    window = iter(numbers.update_window_dims)
    index: list[Any] = []
    for d, size in enumerate(x.aval.shape):
        width = 1 if d in numbers.inserted_window_dims else int(updates.aval.shape[next(window)])
        start = starts[axes.index(d)] if d in axes else 0
        if d in numbers.inserted_window_dims:
            index.append(start)
        else:
            index.append(_slice(start, start + width, 1, int(size)))
    return _single(shortened(index))


def _start(m: Matcher, atom: Any) -> int | None:
    """The literal that is broadcast to `atom`."""
    for _ in range(3):
        if type(atom) is Literal:
            return int(atom.value)
        atom = m.through(atom, "broadcast_in_dim", "reshape")
        if atom is None:
            break
    return None


def _scatter_indices(m: Matcher, indices: Any, axes: list[int], x: Any) -> Iterator[Any]:
    if len(axes) == 1:
        for array in _index_array(m, indices) or []:
            if type(array) is Literal:
                array = int(array.value)
            yield _single(shortened([*[slice(None)] * axes[0], array]))
        return
    yield from _joined_index(m, indices, axes, x.aval.shape)


@idiom("squeeze", "gather", "scatter", "scatter-add", "scatter_add")
def _mapped_index(m: Matcher, equation: Equation) -> Iterator[Guess]:
    """`jax.vmap(lambda x, i: x[i])(xs, i)`: an index of its own for each along the first axis."""
    kind = equation.callee.name
    inside = m.producer(equation.inputs[0], "gather") if kind == "squeeze" else equation
    if inside is None:
        return
    x, indices, *updates = inside.inputs
    numbers = inside.origin.params["dimension_numbers"]
    count = len(numbers.operand_batching_dims)
    if not 0 < count < 4 or tuple(numbers.operand_batching_dims) != tuple(range(count)) or type(x) is Literal:
        return
    axes = numbers.start_index_map if not updates else numbers.scatter_dims_to_operand_dims
    if len(x.aval.shape) <= count or [int(a) for a in axes] != [count]:
        return

    def mapped(path: str, places: int, args: tuple[Any, ...], named: Any = None) -> Guess:
        """Over each axis in turn: what is mapped inside stands one place further outside."""
        turns = [tuple(range(n, n + places)) for n in reversed(range(count))]
        return Guess("vmap." * count + path, (*turns, *args), named or {})

    for index in _index_array(m, indices):
        if type(index) is Literal or index.aval.shape[:count] != x.aval.shape[:count]:
            continue
        if not updates:
            yield mapped("operator.getitem", 2, (x, index))
            if kind == "gather":
                size = int(inside.origin.params["slice_sizes"][count])
                yield mapped("lax.dynamic_slice_in_dim", 2, (x, index, size))
                for named in _mode(inside):
                    yield mapped("at.get", 2, (x, index), named)
            continue
        for value in (m.through(updates[0], "broadcast_in_dim"), updates[0]):
            if value is not None:
                places = 2 if not getattr(value.aval, "shape", ()) else 3
                for named in ({}, *_mode(inside, False)):
                    yield mapped("at." + _SCATTERS[kind], places, (x, index, value), named)
