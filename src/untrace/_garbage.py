"""Python's cyclic garbage collector, which would walk all live nodes again and again: a third of the time."""

from __future__ import annotations

import gc

_put_off = 0  # in how many `no_collections` that put it off


class no_collections:
    """Puts off the collector. Each public function that traces or writes does so inside one."""

    def __enter__(self) -> None:
        global _put_off
        self._was_enabled = gc.isenabled()
        _put_off += self._was_enabled
        gc.disable()

    def __exit__(self, *exc: object) -> None:
        global _put_off
        if self._was_enabled:
            _put_off -= 1
            gc.enable()


def collect_young() -> None:
    """Collects what was put off, at a moment at which there is nothing else to do."""
    if _put_off:
        gc.collect(0)
