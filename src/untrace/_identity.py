"""A mapping whose keys are the objects themselves, whatever their classes call equal, or cannot hash: arrays, code, lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")


class IdentityMap(MutableMapping[Key, Item]):
    """A mapping by identity, in the order of insertion. It holds its keys, so that none of them can become another object."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[tuple[Key, Item]] = ()):
        self._items: dict[int, tuple[Key, Item]] = {}
        for key, item in items:
            self[key] = item

    def __getitem__(self, key: Key) -> Item:
        return self._items[id(key)][1]

    def get(self, key: Key, default: Any = None) -> Any:
        found = self._items.get(id(key))
        return default if found is None else found[1]

    def __setitem__(self, key: Key, item: Item) -> None:
        self._items[id(key)] = key, item

    def __delitem__(self, key: Key) -> None:
        del self._items[id(key)]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._items

    def __iter__(self) -> Iterator[Key]:
        return iter([key for key, _ in self._items.values()])

    def __len__(self) -> int:
        return len(self._items)
