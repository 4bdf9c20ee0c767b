"""Rewrites of gathers and pads into the calls of jnp that make them, where a derivative was written out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace import jax_compat
from untrace.lift.rewrite.arithmetic import choice_of_two, is_value, loop_constants
from untrace.lift.rewrite.call_bodies import on_operands, single_call, spliced
from untrace.lift.rewrite.simplify import Body, in_backward_pass, rewrite

Literal = jax_compat.LITERAL_TYPE


@rewrite("gather")
def taken(body: Body, eqn: Any) -> Any:
    """`jnp.take` of one number or of an array of indices, where its derivative was written out: with its index as it was."""
    x, indices = eqn.invars
    numbers = eqn.params["dimension_numbers"]
    if numbers.operand_batching_dims or len(numbers.collapsed_slice_dims) != 1 or type(x) is Literal:
        return None
    axis = int(numbers.collapsed_slice_dims[0])
    widened = body.maker(indices, "reshape", "broadcast_in_dim")
    if widened is None or tuple(numbers.start_index_map) != (axis,):
        return None
    known = type(widened.invars[0]) is Literal  # the choice was made already
    index = widened.invars[0] if known else _before_wrapping(body, widened.invars[0], x.aval.shape[axis])
    if index is None:
        return None
    if type(index) is Literal:
        if np.shape(index.val) or not jnp.issubdtype(index.aval.dtype, jnp.integer):
            return None
        number = int(np.asarray(index.val))
        return _call_with(eqn, lambda a: [jnp.take(a, number, axis=axis)], [x])
    return _call_with(eqn, lambda a, i: [jnp.take(a, i, axis=axis)], [x, index])


@rewrite("gather")
def part_that_was_set(body: Body, eqn: Any) -> Any:
    """`d_x[0, 1:3]`, the derivative of `x.at[0, 1:3].set(v)` for `v`: JAX gathers at indices that are known."""
    x, indices = eqn.invars
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    if type(x) is Literal or eqn.params["mode"] is not lax.GatherScatterMode.FILL_OR_DROP:
        return None
    if not body.in_backward_pass(eqn) or tuple(numbers.offset_dims) != tuple(range(len(eqn.outvars[0].aval.shape))):
        return None
    known = _known_indices(body, indices)
    if known is None or numbers.operand_batching_dims or jax_compat.varying_axes(x.aval):
        return None
    starts = dict(zip(map(int, numbers.start_index_map), known, strict=True))
    where: list[Any] = []
    for axis, (size, whole) in enumerate(zip(map(int, sizes), x.aval.shape, strict=True)):
        start = starts.get(axis, 0)
        if not 0 <= start <= whole - size:
            return None
        part = slice(None) if size == whole else slice(start, start + size)
        where.append(start if axis in numbers.collapsed_slice_dims else part)
    return spliced(body, eqn, lambda a: [a[tuple(where)]], [x])


def _known_indices(body: Body, atom: Any) -> list[int] | None:
    """The numbers in a vector that is made of numbers alone: `[0]`, or several of those in a row."""
    joined = body.maker(atom, "concatenate")
    found = []
    for part in [atom] if joined is None else joined.invars:
        number = None if type(part) is Literal or len(part.aval.shape) != 1 else body.scalar(part)
        if number is None:
            return None
        found.extend([int(np.asarray(number.val))] * part.aval.shape[0])
    return found


@rewrite("gather")
def read_at_places(body: Body, eqn: Any) -> Any:
    """`x.at[i].get(mode="clip")`: what `jax.vmap` makes of `x[i]` are slices of one, which are squeezed then."""
    numbers, sizes = eqn.params["dimension_numbers"], tuple(map(int, eqn.params["slice_sizes"]))
    x, indices = eqn.invars
    if len(indices.aval.shape) - 1 == len(numbers.operand_batching_dims):
        return None  # one index each reads as `jax.vmap(lambda x, i: x[i])`
    gone = {*map(int, numbers.collapsed_slice_dims), *map(int, numbers.operand_batching_dims)}
    window = [d for d in range(len(sizes)) if d not in gone]
    found = _places(
        body, eqn, list(map(int, numbers.start_index_map)), dict(zip(window, [sizes[d] for d in window], strict=True))
    )
    if found is None:
        return None
    ones, axes, columns = found
    offsets = dict(zip(window, map(int, numbers.offset_dims), strict=True))
    squeezed = [offsets[d] for d in ones]
    shape = tuple(eqn.outvars[0].aval.shape)
    new = numbers._replace(
        offset_dims=tuple(o - sum(s < o for s in squeezed) for d, o in offsets.items() if d not in ones),
        collapsed_slice_dims=tuple(sorted({*map(int, numbers.collapsed_slice_dims), *ones})),
        start_index_map=tuple(axes),
    )
    flags = {key: eqn.params[key] for key in ("unique_indices", "indices_are_sorted", "mode", "fill_value")}

    def read(a: Any, *parts: Any) -> list[Any]:
        taken = lax.gather(a, _joined(parts), new, sizes, **flags)
        return [lax.broadcast_in_dim(taken, shape, [d for d in range(len(shape)) if d not in squeezed])]

    return spliced(body, eqn, read, [x, *columns])


@rewrite("scatter-add", "scatter_add")
def added_at_places(body: Body, eqn: Any) -> Any:
    """`.at[i].add(v, mode="clip")`, the derivative of that."""
    x, _, updates = eqn.invars
    numbers = eqn.params["dimension_numbers"]
    gone = {*map(int, numbers.inserted_window_dims), *map(int, numbers.operand_batching_dims)}
    window = [d for d in range(len(x.aval.shape)) if d not in gone]
    offsets = dict(zip(window, map(int, numbers.update_window_dims), strict=True))
    axes = list(map(int, numbers.scatter_dims_to_operand_dims))
    found = _places(body, eqn, axes, {d: updates.aval.shape[offsets[d]] for d in window})
    if found is None:
        return None
    ones, axes, columns = found
    squeezed = [offsets[d] for d in ones]
    new = numbers._replace(
        update_window_dims=tuple(o - sum(s < o for s in squeezed) for d, o in offsets.items() if d not in ones),
        inserted_window_dims=tuple(sorted({*map(int, numbers.inserted_window_dims), *ones})),
        scatter_dims_to_operand_dims=tuple(axes),
    )
    flags = {key: eqn.params[key] for key in ("unique_indices", "indices_are_sorted", "mode")}

    def add(a: Any, v: Any, *parts: Any) -> list[Any]:
        return [lax.scatter_add(a, _joined(parts), lax.squeeze(v, squeezed), new, **flags)]

    return spliced(body, eqn, add, [x, updates, *columns])


def _places(
    body: Body, eqn: Any, axes: list[int], window: dict[int, int]
) -> tuple[list[int], list[int], list[Any]] | None:
    """(axes along which the window is one index, those of them and others that are indexed still, the parts of the indices
    for these) of what was mapped, and puts windows that would reach outside where they fit; None for anything else.

    axes: those that are indexed. window: sizes by axis. Along an axis that it covers, a window fits in one place only.
    """
    x, indices = eqn.invars[:2]
    if eqn.params["mode"] is not lax.GatherScatterMode.CLIP or Literal in (type(x), type(indices)):
        return None
    scopes = jax_compat.scope_names(jax_compat.equation_source(eqn)[1])
    if not any("vmap()" in scope for scope in scopes) or jax_compat.varying_axes(x.aval):
        return None
    whole = [d for d in axes if window.get(d) == x.aval.shape[d]]
    ones = [d for d in axes if window.get(d) == 1 and d not in whole]
    first = len(eqn.params["dimension_numbers"].operand_batching_dims)
    if sorted(ones) != list(range(first, first + len(ones))) or not ones or len(ones) + len(whole) < len(axes):
        return None
    columns = [indices]
    if whole:
        joined = body.maker(indices, "concatenate")
        if joined is None or [v.aval.shape[-1] for v in joined.invars] != [1] * len(axes):
            return None
        columns = [v for d, v in zip(axes, joined.invars, strict=True) if d in ones]
    return None if any(type(v) is Literal for v in columns) else (ones, [d for d in axes if d in ones], columns)


def _joined(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else lax.concatenate(parts, parts[0].ndim - 1)


@rewrite("gather")
def one_place(body: Body, eqn: Any) -> Any:
    """What is read at one place is read at places that are sorted and unique, as `x.at[i].get(...)` says and a derivative
    does not."""
    indices = eqn.invars[1]
    if type(indices) is Literal or len(indices.aval.shape) != 1 or eqn.params["unique_indices"]:
        return None
    if eqn.params["mode"] is not lax.GatherScatterMode.FILL_OR_DROP or not body.in_backward_pass(eqn):
        return None
    return eqn.replace(params={**eqn.params, "indices_are_sorted": True, "unique_indices": True})


@rewrite("scatter", "scatter-add", "scatter_add")
def one_index(body: Body, eqn: Any) -> Any:
    """`x.at[:, 0].add(v)`, which says of its only index that it is sorted and unique; what a derivative adds at does not."""
    x, indices, updates = eqn.invars
    number = body.scalar(indices)
    axes = eqn.params["dimension_numbers"].scatter_dims_to_operand_dims
    known = (
        type(indices) is not Literal and indices.aval.shape == (1,) and number is not None and not np.shape(number.val)
    )
    if not known or len(axes) != 1 or type(x) is Literal or eqn.params["unique_indices"]:
        return None
    index = int(np.asarray(number.val))
    where = (*[slice(None)] * int(axes[0]), index)
    if not 0 <= index < x.aval.shape[axes[0]]:
        return None

    def at(a: Any, v: Any) -> Any:
        place = a.at[where]
        return [(place.set if eqn.primitive.name == "scatter" else place.add)(v, mode=eqn.params["mode"])]

    try:
        closed = jax_compat.trace_library_call(at, [x.aval, updates.aval])
    except Exception:  # updates of another shape
        return None
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    if [e.primitive.name for e in jaxpr.eqns] != ["broadcast_in_dim", eqn.primitive.name]:
        return None
    filled, call = jaxpr.eqns
    if (
        _plain(call.params["dimension_numbers"]) != _plain(eqn.params["dimension_numbers"])
        or call.invars[2] is not jaxpr.invars[1]
    ):
        return None
    variable = jax_compat.fresh_variable(filled.outvars[0])
    body.add(filled.replace(outvars=[variable], source_info=eqn.source_info))
    return call.replace(invars=[x, variable, updates], outvars=eqn.outvars, source_info=eqn.source_info)


@rewrite(
    "scatter",
    "scatter-add",
    "scatter_add",
    "scatter-mul",
    "scatter_mul",
    "scatter-min",
    "scatter_min",
    "scatter-max",
    "scatter_max",
)
def dropped_outside(body: Body, eqn: Any) -> Any:
    """What a derivative adds at is in bounds, for it was read there. What is not in bounds XLA drops in either mode.

    Inside a backward loop no equation says that it is in one: there it adds to zeros.
    """
    if eqn.params["mode"] is not lax.GatherScatterMode.PROMISE_IN_BOUNDS:
        return None
    if not in_backward_pass(eqn) and not is_value(body.scalar(eqn.invars[0]), 0.0):
        return None
    return eqn.replace(params={**eqn.params, "mode": lax.GatherScatterMode.FILL_OR_DROP})


@rewrite("scan")
def indices_of_a_loop(body: Body, eqn: Any) -> Any:
    """Indices that are the same in every turn are made from `i` in the loop again, which JAX took out of it: `x[i]`."""
    closed = eqn.params["jaxpr"]
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    found: dict[Any, tuple[Any, list[Any]]] = {}  # parameter -> the index, and the equations from there
    for param, operand in loop_constants(eqn):
        if type(operand) is Literal or not jnp.issubdtype(param.aval.dtype, jnp.integer):
            continue
        uses = [(e, n) for e in jaxpr.eqns for n, v in enumerate(e.invars) if v is param]
        sizes: list[Any] = [_indexed_size(e) for e, n in uses if n == 1]
        if not uses or len(sizes) < len(uses) or None in sizes or len(set(sizes)) > 1:
            continue
        steps = _steps_from_index(body, operand, sizes[0])
        if steps is not None:
            found[param] = steps
    if not found:
        return None
    fresh = {param: jax_compat.fresh_variable(index) for param, (index, _) in found.items()}
    eqns: list[Any] = []
    for inner in jaxpr.eqns:
        param = inner.invars[1] if len(inner.invars) > 1 else None
        if type(param) is not Literal and param in found:
            index, steps = found[param]
            names = {index: fresh[param]}
            for step in steps:
                out = jax_compat.fresh_variable(step.outvars[0])
                operands = jax_compat.substituted(step.invars, names)
                eqns.append(step.replace(invars=operands, outvars=[out], source_info=inner.source_info))
                names[step.outvars[0]] = out
            inner = inner.replace(invars=[inner.invars[0], names[steps[-1].outvars[0]], *inner.invars[2:]])
        eqns.append(inner)
    invars = [fresh.get(v, v) for v in jaxpr.invars]
    operands = [found[p][0] if p in found else v for p, v in zip(jaxpr.invars, eqn.invars, strict=True)]
    new = jax_compat.rebuilt_jaxpr(closed, eqns, jaxpr.outvars, invars=invars)
    return eqn.replace(invars=operands, params={**eqn.params, "jaxpr": new})


def _indexed_size(eqn: Any) -> int | None:
    """The size of the one axis that a gather or scatter indexes; None for any other equation."""
    numbers = eqn.params.get("dimension_numbers")
    if eqn.primitive.name == "gather":
        axes = numbers.start_index_map
    elif eqn.primitive.name in ("scatter", "scatter-add", "scatter_add"):
        axes = numbers.scatter_dims_to_operand_dims
    else:
        return None
    return eqn.invars[0].aval.shape[axes[0]] if len(axes) == 1 else None


def _steps_from_index(body: Body, atom: Any, size: int) -> tuple[Any, list[Any]] | None:
    """(`i`, the equations that make `atom` of it): counted from the end where negative, converted, with an axis more."""
    steps: list[Any] = []
    for kinds in (("reshape", "broadcast_in_dim"), ("convert_element_type",)):
        made = body.maker(atom, *kinds)
        if made is not None and len(made.invars) == 1:
            steps.append(made)
            atom = made.invars[0]
    index = _before_wrapping(body, atom, size)
    if not steps or index is None or type(index) is Literal or body.maker(atom, "select_n") is None:
        return None
    chosen = body.made[atom]
    ways = [body.made[v] for v in (chosen.invars[0], chosen.invars[2])]
    return index, [*ways, chosen, *steps[::-1]]


@rewrite("pad")
def cut(body: Body, eqn: Any) -> Any:
    """Padding by less than nothing is a slice."""
    x = eqn.invars[0]
    config = [tuple(map(int, c)) for c in eqn.params["padding_config"]]
    if type(x) is Literal or any(low > 0 or high > 0 or inner for low, high, inner in config):
        return None
    if not any(low or high for low, high, _ in config) or any(jax_compat.varying_axes(v.aval) for v in eqn.invars):
        return None
    limits = [n + high for n, (_, high, _) in zip(x.aval.shape, config, strict=True)]
    params = {"start_indices": tuple(-low for low, _, _ in config), "limit_indices": tuple(limits), "strides": None}
    return eqn.replace(primitive=lax.slice_p, invars=[x], params=params)


@rewrite("pad")
def padded(body: Body, eqn: Any) -> Any:
    """Zeros around an array, as the derivative of `x[1:]` leaves them."""
    x, value = eqn.invars
    config = [tuple(map(int, c)) for c in eqn.params["padding_config"]]
    if type(x) is Literal or type(value) is not Literal or np.shape(value.val):
        return None
    if any(low < 0 or high < 0 or inner for low, high, inner in config) or jax_compat.varying_axes(x.aval):
        return None
    if np.asarray(value.val).astype(x.aval.dtype).tobytes().strip(b"\0"):
        return None  # another number, -0.0 included
    widths = tuple((low, high) for low, high, _ in config)
    return _call_with(eqn, lambda a: [jnp.pad(a, widths)], [x])


def _before_wrapping(body: Body, atom: Any, size: int) -> Any:
    """The index `i` of `where(i < 0, i + size, i)`; None for anything else."""
    found = choice_of_two(body, atom)
    if found is None:
        return None
    which, index, total = found
    if type(index) is Literal and type(total) is Literal and type(which) is not Literal:
        return index if is_value(total, _number(index) + size) and body.maker(which, "lt") is not None else None
    less, added = body.maker(which, "lt"), body.maker(total, "add")
    if less is None or added is None or not is_value(body.scalar(less.invars[1]), 0):
        return None
    if not is_value(body.scalar(added.invars[1]), size):
        return None
    same = all(_same_atom(v, index) for v in (less.invars[0], added.invars[0]))
    return index if same else None


def _number(literal: Any) -> Any:
    return -1 if np.shape(literal.val) else int(np.asarray(literal.val))


def _same_atom(left: Any, right: Any) -> bool:
    if type(left) is Literal and type(right) is Literal:
        return not np.shape(left.val) and np.asarray(left.val).tobytes() == np.asarray(right.val).tobytes()
    return left is right


def _call_with(eqn: Any, function: Any, operands: Sequence[Any]) -> Any:
    """The call of a jitted function that `function` makes, where the one equation like `eqn` in it has `eqn`'s parameters."""
    try:
        closed = jax_compat.trace_library_call(function, [v.aval for v in operands])
    except Exception:  # not what it was
        return None
    call = single_call(closed)
    inner = (
        [e for e in jax_compat.open_jaxpr(call.params["jaxpr"])[0].eqns if e.primitive is eqn.primitive] if call else []
    )
    if len(inner) != 1 or _plain(inner[0].params) != _plain(eqn.params):
        return None
    if [v.aval.shape for v in call.outvars] != [v.aval.shape for v in eqn.outvars]:
        return None
    return on_operands(call, closed, operands, eqn)


def _plain(params: Any) -> str:
    """Parameters as text; batching leaves NumPy's integers in them."""
    return re.sub(r"np\.int\d+\((-?\d+)\)", r"\1", str(params))
