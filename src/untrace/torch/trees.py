"""What goes in and out of a module, as plain pytrees: dataclasses, model outputs and caches become dicts and tuples."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any


def plain(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """`value` with `leaf` of its tensors, in containers that JAX knows. None and what is no tensor's container: dropped.

    A dataclass or a mapping (transformers' ModelOutput) becomes a dict without the entries that are None.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return leaf(value)
    if isinstance(value, Mapping):
        found = {str(k): plain(v, leaf) for k, v in value.items()}
        return {k: v for k, v in found.items() if v is not None}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[plain(v, leaf) for v in value])
    if isinstance(value, (tuple, list)):
        return type(value)([plain(v, leaf) for v in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {f.name: plain(getattr(value, f.name), leaf) for f in dataclasses.fields(value)}
        return {k: v for k, v in found.items() if v is not None}
    layers = cache_layers(value)
    if layers is not None:
        return tuple(plain(pair, leaf) for pair in layers)
    return value if isinstance(value, (bool, int, float, complex)) else None


def _cache_slots(value: Any) -> list[tuple[tuple[Any, str], ...]] | None:
    """(layer, name of its attribute) of the keys and values of each layer of a cache; None of anything else."""
    layers = getattr(value, "layers", None)
    if isinstance(layers, list) and all(hasattr(x, "keys") and hasattr(x, "values") for x in layers):
        return [((x, "keys"), (x, "values")) for x in layers if isinstance(getattr(x, "keys", None), _tensor())]
    pair = [getattr(value, n, None) for n in ("self_attention_cache", "cross_attention_cache")]
    if any(p is None for p in pair):
        return None
    both = [_cache_slots(p) or [] for p in pair]
    return [(*(a or ()), *(b or ())) for a, b in itertools.zip_longest(*both)]


def _tensor() -> Any:
    import torch

    return torch.Tensor


def cache_layers(value: Any) -> list[tuple[Any, ...]] | None:
    """The (keys, values) of each layer of a key-value cache of transformers; None of anything else."""
    slots = _cache_slots(value)
    return None if slots is None else [tuple(getattr(layer, name) for layer, name in pair) for pair in slots]


def tensors_of(value: Any) -> list[Any]:
    """The tensors of an argument or a result, in order."""
    found: list[Any] = []
    plain(value, found.append)
    return found


def is_in(part: Any, whole: Any) -> bool:
    """Whether an object is one of those that a result is made of."""
    if whole is part:
        return True
    if isinstance(whole, Mapping):
        return any(is_in(part, v) for v in whole.values())
    if isinstance(whole, (tuple, list)):
        return any(is_in(part, v) for v in whole)
    if dataclasses.is_dataclass(whole) and not isinstance(whole, type):
        return any(is_in(part, getattr(whole, f.name)) for f in dataclasses.fields(whole))
    return False


def has_tensor(value: Any) -> bool:
    """Whether there is a tensor (or an array) anywhere in an argument."""
    return bool(tensors_of(value))


def rebuilt(example: Any, values: Any, wrap: Callable[[Any], Any]) -> Any:
    """The argument that `plain(example)` was made of, with `wrap` of `values` in the places of its tensors."""
    import copy

    import torch

    if isinstance(example, torch.Tensor):
        return wrap(values)
    if isinstance(example, Mapping):
        new = {k: rebuilt(v, values.get(str(k)), wrap) for k, v in example.items()}
        if type(example) is dict:
            return new
        made: Any = copy.copy(example)
        made.update(new)
        return made
    if isinstance(example, tuple) and hasattr(example, "_fields"):
        return type(example)(*[rebuilt(e, v, wrap) for e, v in zip(example, values, strict=True)])
    if isinstance(example, (tuple, list)):
        return type(example)([rebuilt(e, v, wrap) for e, v in zip(example, values, strict=True)])
    if dataclasses.is_dataclass(example) and not isinstance(example, type):
        changes = {f.name: getattr(example, f.name) for f in dataclasses.fields(example)}
        return dataclasses.replace(
            example, **{k: rebuilt(v, values.get(k), wrap) for k, v in changes.items() if k in values}
        )
    if cache_layers(example) is not None:
        made = copy.deepcopy(example)
        for pair, given in zip(_cache_slots(made) or (), values or (), strict=True):
            for (layer, name), value in zip(pair, given, strict=True):
                setattr(layer, name, wrap(value))
        return made
    return example
