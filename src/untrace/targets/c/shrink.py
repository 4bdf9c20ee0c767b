"""Buffers that are not needed: copies, axes of which one element at a time is used, names for what is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from untrace.targets.c.loops import (
    Access,
    Buffer,
    CFunction,
    Expr,
    If,
    Invoke,
    Loop,
    Num,
    Op,
    Read,
    Stmt,
    Var,
    While,
    Write,
    accesses,
    blocks,
    change_expressions,
    mapped,
    own_accesses,
    reads,
    statements,
    touched,
)

_LONG = 14  # operations in an expression, beyond which nobody reads it


# ------------------------------------------------------------ axes


def contract(function: CFunction) -> bool:
    """Takes the axes off local buffers that are used at the index of one loop alone; whether there were any."""
    everywhere: dict[Buffer, list[Access]] = {}
    for stmt in statements(function.body):
        for access in own_accesses(stmt):
            if access.buffer.kind == "local" and access.buffer.shape:
                everywhere.setdefault(access.buffer, []).append(access)
    total = {buffer: len(found) for buffer, found in everywhere.items()}
    axes: dict[Buffer, set[int]] = {}
    for stmt in statements(function.body):
        if not isinstance(stmt, Loop):
            continue
        inside: dict[Buffer, list[Access]] = {}
        for access in accesses(stmt):
            if access.buffer in total:
                inside.setdefault(access.buffer, []).append(access)
        for buffer, found in inside.items():
            if len(found) != total[buffer]:
                continue
            for d in range(len(buffer.shape)):
                if all(len(a.index) > d and a.index[d] is stmt.var for a in found):
                    axes.setdefault(buffer, set()).add(d)
    for buffer, found in everywhere.items():  # an axis of which only one element is used
        for d in range(len(buffer.shape)):
            ends = [a.index[d] if len(a.index) > d else None for a in found]
            numbers = [e.value for e in ends if isinstance(e, Num)]
            if len(numbers) == len(ends) and len(set(numbers)) == 1:
                axes.setdefault(buffer, set()).add(d)
    if not axes:
        return False
    keep = {buffer: [d for d in range(len(buffer.shape)) if d not in dead] for buffer, dead in axes.items()}

    def change(expr: Expr) -> Expr | None:
        if isinstance(expr, Read) and expr.buffer in keep:
            inner = [_changed(i) for i in expr.index]
            return Read(expr.buffer, tuple([inner[d] for d in keep[expr.buffer] if d < len(inner)]))
        return None

    def _changed(expr: Expr) -> Expr:
        return mapped(expr, change)

    for stmt in function.body:
        change_expressions(stmt, change)
    for buffer, kept in keep.items():
        buffer.shape = tuple([buffer.shape[d] for d in kept])
    return True


# ------------------------------------------------------------ copies


def _copied(stmt: Stmt) -> tuple[Read, Buffer] | None:
    """The place that a whole buffer is copied to, element by element, and the buffer."""
    index: list[Var] = []
    while isinstance(stmt, Loop) and len(stmt.body) == 1:
        index.append(stmt.var)
        stmt = stmt.body[0]
    if not isinstance(stmt, Write) or not isinstance(stmt.value, Read):
        return None
    source, rank = stmt.value, len(stmt.value.buffer.shape)
    if len(source.index) != rank or len(stmt.index) < rank:
        return None
    first = len(stmt.index) - rank
    rest = iter(index)
    for one, other, extent in zip(source.index, stmt.index[first:], source.buffer.shape, strict=True):
        if extent == 1 and isinstance(one, Num) and isinstance(other, Num):
            if other.value != 0:
                return None
        elif one is not other or one is not next(rest, None):
            return None
    if next(rest, None) is not None or stmt.buffer.shape[first:] != source.buffer.shape:
        return None
    return Read(stmt.buffer, stmt.index[:first]), source.buffer


def without_copies(function: CFunction) -> bool:
    """Writes at once to where a local buffer is copied to; whether there was such a copy."""
    return _without_copies(function, function.body)


def _without_copies(function: CFunction, block: list[Stmt]) -> bool:
    found = False
    here = 0
    while here < len(block):
        copied = _copied(block[here])
        if copied is not None and _is_renamed(function, block, here, *copied):
            found = True
            del block[here]
            continue
        here += 1
    for stmt in block:
        for inner in blocks(stmt):
            found = _without_copies(function, inner) or found
    return found


def _is_renamed(function: CFunction, block: list[Stmt], here: int, place: Read, source: Buffer) -> bool:
    """Makes `source` the place that it is copied to, where nothing can tell the difference."""
    target = place.buffer
    if source.kind != "local" or source is target or source is function.returns or target.kind not in ("local", "out"):
        return False
    if source.dtype != target.dtype:
        return False
    inside = [k for k, stmt in enumerate(block) if source in _all(stmt)]
    if not inside or inside[-1] != here:
        return False  # it is needed afterwards
    if sum(1 for s in statements(function.body) for a in own_accesses(s) if a.buffer is source) != sum(
        1 for k in inside for a in accesses(block[k]) if a.buffer is source
    ):
        return False  # or elsewhere
    first = inside[0]
    own = Buffer("", source.shape, source.dtype)
    for k in range(first, here):
        stmt = block[k]
        if target not in _all(stmt):
            continue
        copied = _copied(stmt)
        if (
            k != first
            or copied is None
            or copied[0].buffer is not source
            or copied[0].index
            or copied[1] is not target
            or place.index
        ):
            return False
    written = {v for r in place.index for v in [r] if isinstance(v, Read)}
    if any(isinstance(i, Op | Read) and _changes(block[first:here], i) for i in place.index) or written and own is None:
        return False

    def change(expr: Expr) -> Expr | None:
        if isinstance(expr, Read) and expr.buffer is source:
            return Read(target, (*place.index, *[mapped(i, change) for i in expr.index]))
        return None

    for k in range(first, here):
        change_expressions(block[k], change)
    if source.authored and not target.authored and target.kind == "local":
        target.name, target.authored = source.name, True
    return True


def _changes(between: list[Stmt], index: Expr) -> bool:
    needed = {r.buffer for r in reads(index)}
    return any(not touched(stmt).written.isdisjoint(needed) for stmt in between)


def _all(stmt: Stmt) -> set[Buffer]:
    found = touched(stmt)
    return found.read | found.written


def without_idle(block: list[Stmt]) -> None:
    """Leaves out what writes a place to itself, and loops and choices in which nothing is left."""
    kept: list[Stmt] = []
    for stmt in block:
        for inner in blocks(stmt):
            without_idle(inner)
        if isinstance(stmt, Write) and stmt.value == Read(stmt.buffer, stmt.index):
            continue
        if isinstance(stmt, Loop) and not stmt.body or isinstance(stmt, If) and not stmt.then and not stmt.otherwise:
            continue
        if isinstance(stmt, If) and not stmt.then:
            stmt.condition, stmt.then, stmt.otherwise = (
                Op("!", (stmt.condition,), stmt.condition.dtype),
                stmt.otherwise,
                [],
            )
        kept.append(stmt)
    block[:] = kept


def without_unread(function: CFunction) -> None:
    """Leaves out what is written to local buffers that nobody reads."""
    while True:
        # What only its own next value is computed from is not read.
        read = {
            a.buffer
            for s in statements(function.body)
            for a in own_accesses(s)
            if not a.writes and not (isinstance(s, Write) and s.buffer is a.buffer)
        }
        if function.returns is not None:
            read.add(function.returns)
        dead = {
            s.buffer
            for s in statements(function.body)
            if isinstance(s, Write) and s.buffer.kind == "local" and s.buffer not in read
        }
        filled = {o.buffer for s in statements(function.body) if isinstance(s, Invoke) for o in s.outs}
        dead -= filled
        if not dead:
            return
        _drop(function.body, dead)
        without_idle(function.body)


def without_unchosen(function: CFunction) -> bool:
    """Leaves out what one branch writes for the other one alone to read; whether there was anything."""
    total: Counter[Buffer] = Counter(a.buffer for s in statements(function.body) for a in own_accesses(s))
    found = False
    for stmt in list(statements(function.body)):
        if not isinstance(stmt, If):
            continue
        inside = Counter(a.buffer for a in accesses(stmt))
        for mine in (stmt.then, stmt.otherwise):
            uses = [a for s in mine for a in accesses(s)]
            read = {a.buffer for a in uses if not a.writes}
            dead = {
                a.buffer
                for a in uses
                if a.buffer.kind == "local" and a.buffer not in read and inside[a.buffer] == total[a.buffer]
            } - {
                o.buffer
                for s in statements(mine)
                if isinstance(s, Invoke)
                for o in (*s.outs, *([s.returns] if s.returns else []))
            }
            dead -= {function.returns}
            if dead:
                _drop(mine, dead)
                found = True
    return found


def _drop(block: list[Stmt], dead: set[Buffer]) -> None:
    block[:] = [s for s in block if not (isinstance(s, Write) and s.buffer in dead)]
    for stmt in block:
        for inner in blocks(stmt):
            _drop(inner, dead)


# ------------------------------------------------------------ names for what is read once


def _size(expr: Expr) -> int:
    return 1 + sum(map(_size, expr.args)) if isinstance(expr, Op) else 0


def inline(function: CFunction) -> bool:
    """Puts a value that is computed once, and read once, into its reader; whether there was one."""
    counts: Counter[Buffer] = Counter()
    writes: Counter[Buffer] = Counter()
    for stmt in statements(function.body):
        for access in own_accesses(stmt):
            (writes if access.writes else counts)[access.buffer] += 1
    once = {b for b in writes if writes[b] == 1 and not b.shape and b.kind == "local" and b is not function.returns}
    return _inline(function.body, counts, once)


def _inline(block: list[Stmt], counts: Counter[Buffer], once: set[Buffer]) -> bool:
    found = False
    here = 0
    while here < len(block):
        stmt = block[here]
        if isinstance(stmt, Write) and stmt.buffer in once and _put(block, here, stmt, counts[stmt.buffer]):
            found = True
            del block[here]
            continue
        here += 1
    for stmt in block:
        for inner in blocks(stmt):
            found = _inline(inner, counts, once) or found
    return found


def _put(block: list[Stmt], here: int, stmt: Write, count: int) -> bool:
    """Puts the value of a local into the statements that read it."""
    trivial = isinstance(stmt.value, Num)
    if not trivial and (count != 1 or stmt.buffer.authored and isinstance(stmt.value, Op)):
        return False
    value, buffer = stmt.value, stmt.buffer
    needed = {r.buffer for r in reads(value)}

    def change(expr: Expr) -> Expr | None:
        return value if isinstance(expr, Read) and expr.buffer is buffer else None

    if trivial:
        later = sum(1 for s in statements(block[here + 1 :]) for a in own_accesses(s) if a.buffer is buffer)
        if later != count or any(
            isinstance(s, Invoke) and any(o.buffer is buffer for o in s.outs) for s in statements(block)
        ):
            return False
        for one in block[here + 1 :]:
            change_expressions(one, change)
        return True
    for one in block[here + 1 :]:
        own = list(own_accesses(one))
        if any(a.buffer is buffer for a in own):
            if isinstance(one, While) or _size(value) + max(map(_size, _values(one)), default=0) > _LONG:
                return False
            change_expressions(one, change, inside=False)
            return True
        inner = touched(one)
        if buffer in inner.read or not inner.written.isdisjoint(needed):
            return False
    return False


def _values(stmt: Stmt) -> Iterator[Expr]:
    match stmt:
        case Write():
            yield stmt.value
        case If() | While():
            yield stmt.condition
        case Invoke():
            yield from stmt.args
