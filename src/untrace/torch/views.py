"""Views: tensors that share memory in PyTorch, where who writes to one writes to all of them.

JAX's arrays are values. So a view knows of which tensor it is one, and how it is made of it: what is written to a view is
written to its source as well, and a view whose source was written to is computed again when it is next read. How a
write is put back follows from where the elements of the view stand in the source, whatever the view is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

VIEWS = frozenset(
    "__getitem__ select slice narrow transpose swapaxes swapdims t mT permute movedim moveaxis view view_as reshape "
    "reshape_as flatten ravel unflatten squeeze unsqueeze chunk split split_with_sizes tensor_split hsplit vsplit dsplit "
    "unbind diagonal expand expand_as broadcast_to unfold as_strided contiguous alias detach view_as_real "
    "view_as_complex real imag".split()
)
"""Operations whose result shares the memory of their first argument."""
# These share it only where the elements stand in memory as they need them; else they copy.
_PERHAPS = frozenset("view _unsafe_view reshape reshape_as flatten ravel contiguous".split())
RESHAPING = frozenset("t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_".split())
"""Operations in place that change the shape and no element."""


class Link:
    """What a view is a view of. `forward`: its array from the source's. `version`: the source's when it was computed."""

    __slots__ = ("forward", "name", "shares", "source", "version")

    def __init__(self, source: Any, forward: Callable[[Any], Any], name: str):
        self.source, self.forward, self.name = source, forward, name
        self.version = version(source)
        self.shares: bool | None = None if name in _PERHAPS else True


def version(tensor: Any) -> int:
    """How often a tensor was written to."""
    return getattr(tensor, "untrace_version", 0)


def link(tensor: Any, source: Any, forward: Callable[[Any], Any], name: str) -> Any:
    """Says that `tensor` is a view of `source`."""
    if tensor is not source and getattr(tensor, "untrace_view", None) is None:
        tensor.untrace_view = Link(source, forward, name)
    return tensor


def fresh(tensor: Any) -> Any:
    """The tensor, with what was written to its source since."""
    found = getattr(tensor, "untrace_view", None)
    if found is not None:
        fresh(found.source)
        if version(found.source) != found.version and _shares(found):
            tensor._elem = found.forward(found.source._elem)
            found.version = version(found.source)
            tensor.untrace_version = version(tensor) + 1
    return tensor


def written(tensor: Any) -> None:
    """To be called after a write: the tensor's sources get the new values as well."""
    tensor.untrace_version = version(tensor) + 1
    found = getattr(tensor, "untrace_view", None)
    if found is None or not _shares(found):
        tensor.untrace_view = None  # a copy is a tensor of its own
        return
    source = found.source
    source._elem = _put(source._elem, tensor._elem, found)
    written(source)
    found.version = version(source)


def watched(tensors: Iterable[Any]) -> list[tuple[Any, Any, int]]:
    """What `notice` needs to know before an operation runs."""
    return [(fresh(t), t._elem, version(t)) for t in tensors]


def notice(before: Iterable[tuple[Any, Any, int]]) -> None:
    """Whatever tensors an operation wrote to: tells their sources."""
    for tensor, array, number in before:
        if tensor._elem is not array and version(tensor) == number:
            written(tensor)


# ---------------------------------------------------------------- where the elements stand


def _places(found: Link, shape: tuple[int, ...]) -> Any:
    """For each element of a view its number in the source, of this shape."""
    with jax.ensure_compile_time_eval():
        numbers = jnp.arange(int(np.prod(shape)), dtype=jnp.int32).reshape(shape)
        return np.asarray(found.forward(numbers))


def _shares(found: Link) -> bool:
    if found.shares is None:
        places = None
        step: Any = found
        root: Any = None
        forwards = []
        while step is not None:
            forwards.append(step)
            root, step = step.source, getattr(step.source, "untrace_view", None)
        shape = root._elem.shape
        with jax.ensure_compile_time_eval():
            array = jnp.arange(int(np.prod(shape)), dtype=jnp.int32).reshape(shape)
            for one in reversed(forwards):
                if one.name in _TYPES:  # a view as another type has elements of another size
                    return True
                array = one.forward(array)
            places = np.asarray(array)
        found.shares = _has_strides(places, found.name == "contiguous")
    return found.shares


def _has_strides(places: Any, dense: bool) -> bool:
    """Whether the elements stand at even distances along each axis; `dense`: in one piece."""
    if places.size < 2:
        return True
    expected = np.full(places.shape, places.flat[0], np.int64)
    width = 1
    for axis in reversed(range(places.ndim)):
        n = places.shape[axis]
        first = places[(0,) * axis + (slice(None),) + (0,) * (places.ndim - axis - 1)]
        stride = width if dense else int(first[1]) - int(first[0]) if n > 1 else 0
        expected = expected + np.arange(n).reshape((n, *[1] * (places.ndim - axis - 1))) * stride
        width *= n
    return bool((expected == places).all())


# ---------------------------------------------------------------- writing back

_TYPES: dict[str, Callable[[Any, Any], Any]] = {
    "view_as_real": lambda source, new: lax.complex(new[..., 0], new[..., 1]),
    "view_as_complex": lambda source, new: jnp.stack([new.real, new.imag], axis=-1),
    "real": lambda source, new: lax.complex(new, source.imag) if jnp.iscomplexobj(source) else new,
    "imag": lambda source, new: lax.complex(source.real, new),
}


def _put(source: Any, new: Any, found: Link) -> Any:
    """The source's array with the elements of a view replaced."""
    if found.name in _TYPES:
        return _TYPES[found.name](source, new)
    new = new.astype(source.dtype)
    shape = source.shape
    places = _places(found, shape)
    numbers = np.arange(source.size).reshape(shape)
    if places.size == source.size:
        if (places.ravel() == numbers.ravel()).all():
            return new if new.shape == shape else new.reshape(shape)
        order = _order(places, numbers)
        if order is not None:
            moved = tuple(shape[i] for i in order)
            return (new if new.shape == moved else new.reshape(moved)).transpose(np.argsort(order).tolist())
    index = _slices(places, shape)
    if index is not None:
        chosen = numbers[index]
        if chosen.size == places.size and (chosen.ravel() == places.ravel()).all():
            return source.at[index].set(new if new.shape == chosen.shape else new.reshape(chosen.shape))
    return source.ravel().at[places].set(new).reshape(shape)


def _order(places: Any, numbers: Any) -> tuple[int, ...] | None:
    """The order of axes in which the view has the source's elements."""
    distances = [(int(np.prod(numbers.shape[i + 1 :])), i) for i in range(numbers.ndim) if numbers.shape[i] > 1]
    axes = {stride: i for stride, i in distances}
    found: list[Any] = []
    for axis in range(places.ndim):
        if places.shape[axis] > 1:
            at = [0] * places.ndim
            at[axis] = 1
            found.append(axes.get(int(places[tuple(at)]) - int(places.flat[0])))
    left = [i for i in range(numbers.ndim) if numbers.shape[i] == 1]
    if None in found or len(set(found)) != len(distances) != len(found):
        return None
    order = (*found, *left)
    fits = len(order) == numbers.ndim and (numbers.transpose(order).ravel() == places.ravel()).all()
    return order if fits else None


def _slices(places: Any, shape: tuple[int, ...]) -> Any:
    """The index `[1:3, ..., 0]` of a part of an array, by the numbers of its elements."""
    if not places.size:
        return None
    index: list[Any] = []
    for size, chosen in zip(shape, np.unravel_index(places.ravel(), shape), strict=True):
        values = np.unique(chosen)
        step = int(values[1] - values[0]) if len(values) > 1 else 1
        start, stop = int(values[0]), int(values[-1]) + 1
        if len(values) != len(range(start, stop, step)):
            return None
        if len(values) == 1 and size > 1:
            index.append(start)
        else:
            ends = None if stop + step > size else stop
            index.append(slice(start or None, ends, step if step > 1 else None))
    while index and index[-1] == slice(None):
        index.pop()
    return tuple(index)
