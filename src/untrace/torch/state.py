"""A module's tensors as nested dicts with PyTorch's own names, and how they are put into the module for a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from untrace._identity import IdentityMap
from untrace.torch.bridge import array_of


@dataclass(slots=True)
class Slots:
    """Where one tensor stands in the module: its canonical name, and every (module, kind, key) that holds it."""

    name: str
    places: list[tuple[Any, str, str]] = field(default_factory=list)


@dataclass(slots=True)
class State:
    """The tensors of a module, each once.

    `params`, `buffers`: nested dicts of arrays by PyTorch's names. `aliases`: other names of the same tensor ->
    the canonical name (tied weights). `unsaved`: names of buffers that are not in the state dict, with their values.
    """

    params: dict[str, Any]
    buffers: dict[str, Any]
    aliases: dict[str, str]
    unsaved: dict[str, Any]
    constants: dict[str, Any]
    slots: list[Slots]
    kinds: dict[str, str]  # canonical name -> "params" or "buffers"


def read_state(module: Any) -> State:
    """The tensors of `module`. Plain tensor attributes count as buffers: a cache in `self.cache` is state as well."""
    import torch

    by_tensor: IdentityMap[Any, Slots] = IdentityMap()
    found = State({}, {}, {}, {}, {}, [], {})
    for kind in ("_parameters", "_buffers", "__dict__"):
        for path, owner in module.named_modules(remove_duplicate=False):
            for key, value in getattr(owner, kind).items():
                if not isinstance(value, torch.Tensor):
                    continue
                name = f"{path}.{key}" if path else key
                slots = by_tensor.get(value)
                if slots is None:
                    slots = by_tensor[value] = Slots(name)
                    found.slots.append(slots)
                    is_param = kind == "_parameters"
                    tree = found.params if is_param else found.buffers
                    found.kinds[name] = "params" if is_param else "buffers"
                    insert(tree, tuple(name.split(".")), array_of(value))
                    if kind == "__dict__" or key in getattr(owner, "_non_persistent_buffers_set", ()):
                        found.unsaved[name] = value
                elif slots.name != name and name not in found.aliases and kind != "__dict__":
                    found.aliases[name] = slots.name
                if not any(p[0] is owner and p[1] == kind and p[2] == key for p in slots.places):
                    slots.places.append((owner, kind, key))
    return found


def insert(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def lookup(tree: Mapping[str, Any], name: str) -> Any:
    found: Any = tree
    for key in name.split("."):
        found = found[key]
    return found


def flat_names(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted names of a nested dict's leaves, in the order of the module."""
    names: list[str] = []
    for key, value in tree.items():
        path = f"{prefix}.{key}" if prefix else key
        names.extend(flat_names(value, path) if isinstance(value, dict) else [path])
    return names


@contextlib.contextmanager
def replaced(module: Any, state: State, values: Mapping[str, Any]) -> Iterator[None]:
    """The module with other tensors in its places; whatever it does to itself meanwhile is undone."""
    saved = []
    for owner in module.modules():
        attributes = dict(owner.__dict__)
        for kind in ("_parameters", "_buffers"):
            attributes[kind] = dict(attributes[kind])
        saved.append((owner, attributes, {k: _copied(v) for k, v in attributes.items() if type(v) in (list, dict)}))
    try:
        for slots in state.slots:
            if slots.name in values:
                for owner, kind, key in slots.places:
                    getattr(owner, kind)[key] = values[slots.name]
        yield
    finally:
        for owner, attributes, containers in saved:
            owner.__dict__.clear()
            owner.__dict__.update(attributes)
            for key, content in containers.items():
                held = attributes[key]
                held.clear()
                held.extend(content) if type(held) is list else held.update(content)


def _copied(value: Any) -> Any:
    return list(value) if type(value) is list else dict(value)


def current(state: State, slots: Slots) -> Any:
    """What the module holds now in the place of a tensor."""
    owner, kind, key = slots.places[0]
    return getattr(owner, kind).get(key)
