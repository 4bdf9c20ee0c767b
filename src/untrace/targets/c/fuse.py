"""Loops that go over the same elements become one, and choices on the same condition.

Two loops may be one where all that one writes and the other touches is at the index of the loop itself: then each turn
needs what the same turn has made. What both a reduction and its reader need is in a buffer by then, so that it is the same
number for both.
"""

from __future__ import annotations

from collections.abc import Sequence

from untrace.targets.c.loops import (
    Access,
    Expr,
    If,
    Loop,
    Stmt,
    Touched,
    Var,
    accesses,
    blocks,
    change_expressions,
    reads,
    statements,
    touched,
)

_WINDOW = 32  # statements back, among which a partner is looked for
_LONGEST = 60  # statements in the body of one loop


def fuse(block: list[Stmt]) -> None:
    """Makes loops one, in place, and then those inside them."""
    _joined(block)
    for stmt in block:
        for inner in blocks(stmt):
            fuse(inner)


def _joined(block: list[Stmt]) -> None:
    effects = [touched(stmt) for stmt in block]
    here = 0
    while here < len(block):
        stmt = block[here]
        partner = _partner(block, effects, here) if isinstance(stmt, Loop | If) else None
        if partner is None:
            here += 1
            continue
        first, up = partner
        _merge(block[first], stmt)
        effects[first] = Touched(
            effects[first].read | effects[here].read, effects[first].written | effects[here].written
        )
        if up:
            del block[here], effects[here]
        else:
            block[here], effects[here] = block[first], effects[first]
            del block[first], effects[first]
            here -= 1  # the joined one, which may have a partner before it


def _partner(block: Sequence[Stmt], effects: Sequence[Touched], here: int) -> tuple[int, bool] | None:
    """Which statement before this one it may join, and whether it goes up there; otherwise that one comes down."""
    mine, up = effects[here], True
    between: list[Touched] = []
    for first in range(here - 1, max(-1, here - _WINDOW), -1):
        other = effects[first]
        if type(block[first]) is type(block[here]) and (up or not any(other.conflicts(e) for e in between)):
            if _may_join(block[first], block[here], other, mine):
                return first, up
        up = up and not mine.conflicts(other)
        between.append(other)
    return None


def _may_join(one: Stmt, other: Stmt, first: Touched, second: Touched) -> bool:
    if isinstance(one, If) and isinstance(other, If):
        return one.condition == other.condition and first.written.isdisjoint([r.buffer for r in reads(one.condition)])
    if not isinstance(one, Loop) or not isinstance(other, Loop):
        return False
    if not (one.joins and other.joins) or one.var.extent != other.var.extent or one.reverse != other.reverse:
        return False
    tables = {b for b in first.read | second.read if b.kind == "table"}
    if ((first.read | first.written) - tables).isdisjoint(second.read | second.written):
        return False  # they have nothing to do with each other
    if sum(1 for _ in statements([one])) + sum(1 for _ in statements([other])) > _LONGEST:
        return False
    shared = (first.written & (second.read | second.written)) | (first.read & second.written)
    if not shared:
        return True
    mine: dict[object, list[Access]] = {buffer: [] for buffer in shared}
    for access in accesses(one):
        if access.buffer in shared:
            mine[access.buffer].append(access)
    others: dict[object, list[Access]] = {buffer: [] for buffer in shared}
    for access in accesses(other):
        if access.buffer in shared:
            others[access.buffer].append(access)
    return all(_along(mine[buffer], one.var, others[buffer], other.var) for buffer in shared)


def _along(mine: Sequence[Access], var: Var, others: Sequence[Access], other: Var) -> bool:
    """Whether there is an axis along which both go, turn by turn."""
    rank = min(len(access.index) for access in (*mine, *others))
    return any(all(a.index[d] is var for a in mine) and all(a.index[d] is other for a in others) for d in range(rank))


def _merge(one: Stmt, other: Stmt) -> None:
    """Puts what `other` does behind what `one` does, inside it."""
    if isinstance(one, If) and isinstance(other, If):
        one.then.extend(other.then)
        one.otherwise.extend(other.otherwise)
        return
    assert isinstance(one, Loop) and isinstance(other, Loop)
    new: Var = one.var

    def change(expr: Expr) -> Expr | None:
        return new if expr is other.var else None

    for stmt in other.body:
        change_expressions(stmt, change)
    one.body.extend(other.body)
