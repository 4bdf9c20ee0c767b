"""What goes in and out of a module, as plain pytrees: dataclasses, model outputs and caches become dicts and tuples."""

from __future__ import annotations

import dataclasses
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


def cache_layers(value: Any) -> list[tuple[Any, ...]] | None:
    """The (keys, values) of each layer of a key-value cache of transformers; None of anything else."""
    layers = getattr(value, "layers", None)
    if not isinstance(layers, list) or not all(hasattr(x, "keys") and hasattr(x, "values") for x in layers):
        pair = [getattr(value, n, None) for n in ("self_attention_cache", "cross_attention_cache")]
        if any(p is None for p in pair):
            return None
        found = [cache_layers(p) or [] for p in pair]
        return [a + b for a, b in zip(*found, strict=False)]
    return [(x.keys, x.values) for x in layers if x.keys is not None]


def has_tensor(value: Any) -> bool:
    """Whether there is a tensor (or an array) anywhere in an argument."""
    found: list[Any] = []
    plain(value, lambda t: found.append(t))
    return bool(found)


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
        made = copy.copy(example)
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
        pairs = iter(values)
        for layer in made.layers:
            if layer.keys is not None:
                layer.keys, layer.values = (wrap(v) for v in next(pairs))
        return made
    return example
