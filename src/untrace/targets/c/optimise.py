"""From what the rules wrote to what a person would: loops joined, buffers left out, memory shared."""

from __future__ import annotations

import math

from untrace.targets.c.fuse import fuse
from untrace.targets.c.loops import Buffer, CFunction, accesses
from untrace.targets.c.shrink import contract, inline, without_copies, without_idle, without_unchosen, without_unread

_ROUNDS = 6
_ON_STACK = 4096  # bytes of arrays that a function may have as locals
_SMALL = 256  # bytes of an array that stays one in any case


def optimise(function: CFunction) -> None:
    """Rewrites a function in place; it computes the same numbers."""
    without_unread(function)
    for _ in range(_ROUNDS):
        fuse(function.body)
        changed = contract(function)
        changed = without_unchosen(function) or changed
        changed = inline(function) or changed
        changed = without_copies(function) or changed
        without_idle(function.body)
        without_unread(function)
        if not changed:
            break
    _place_in_memory(function)


def _bytes(buffer: Buffer) -> int:
    return math.prod(buffer.shape) * buffer.dtype.itemsize


def _place_in_memory(function: CFunction) -> None:
    """Chooses the buffers that stand in the caller's memory, of which those share a slot that are not needed at one time.

    When a buffer is needed is seen by the statements of the function's own block.
    """
    live: dict[Buffer, list[int]] = {}
    for place, stmt in enumerate(function.body):
        for access in accesses(stmt):
            if access.buffer.kind == "local" and access.buffer.shape:
                span = live.setdefault(access.buffer, [place, place])
                span[1] = place
    if sum(map(_bytes, live)) <= _ON_STACK:
        return
    slots: list[tuple[Buffer, int, int]] = []  # (the largest buffer of it, its bytes, until when it is needed)
    for buffer, (first, last) in sorted(live.items(), key=lambda item: item[1][0]):
        if _bytes(buffer) <= _SMALL:
            continue
        free = [
            (abs(size - _bytes(buffer)), number)
            for number, (owner, size, until) in enumerate(slots)
            if until < first and owner.dtype == buffer.dtype
        ]
        if free:
            number = min(free)[1]
            owner, size, _ = slots[number]
            slots[number] = (owner, max(size, _bytes(buffer)), last)
        else:
            number = len(slots)
            slots.append((buffer, _bytes(buffer), last))
        function.work[buffer] = number
    function.slots = [(owner.dtype, size // owner.dtype.itemsize) for owner, size, _ in slots]
