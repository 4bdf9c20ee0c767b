"""What a C function is before it is text: loops, choices and calls over buffers, with expressions of scalars in them.

    Buffer   a variable: a scalar or an array with its shape
    Expr     Num, Var (a loop's index), Read (an element of a buffer), Op (an operator, a cast or a call of a pure function)
    Stmt     Write, Loop, While, If, Invoke (a call that fills buffers)

Buffers and Vars are compared by identity, everything else by what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

INDEX = np.dtype(np.int32)  # of loop indices: `int` in C
BOOL = np.dtype(np.bool_)
COMPLEX = "complex"  # the operation that makes a complex number of its parts,
PARTS = (".re", ".im")  # and those that give them


@dataclass(eq=False, slots=True)
class Buffer:
    """A variable of the text. `kind`: "local", "in" (a parameter, read only), "out" (where a result goes) or "table" (a constant).

    `name`: what it is called, in C: of a field of a parameter that is a struct, how it is reached. `authored`: whether that
    is the author's name for it. `value`: what a table holds. `limits`: between which numbers its elements are, where that is known.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    kind: str = "local"
    authored: bool = False
    value: np.ndarray | None = None
    limits: tuple[int, int] | None = None


@dataclass(eq=False, slots=True)
class Var:
    """The index of a loop, from 0 to `extent` - 1. Its name is chosen when it is printed."""

    extent: int
    dtype: np.dtype = INDEX


@dataclass(frozen=True, slots=True)
class Num:
    """A number that stands in the text."""

    value: int | float | bool
    dtype: np.dtype


@dataclass(frozen=True, slots=True)
class Read:
    """An element of a buffer; in the arguments of a call also a part of one, where the last indices are left out."""

    buffer: Buffer
    index: tuple[Expr, ...]

    @property
    def dtype(self) -> np.dtype:
        return self.buffer.dtype


@dataclass(frozen=True, slots=True)
class Op:
    """An operator of C (`+`, `?:`, `cast`), one on indices that cannot overflow (`i+`), or a function that is called by `name`."""

    name: str
    args: tuple[Expr, ...]
    dtype: np.dtype


Expr = Num | Var | Read | Op


def part_of(dtype: np.dtype) -> np.dtype:
    """The type of the parts of complex numbers; another type itself."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


@dataclass(slots=True)
class Write:
    """`buffer[index] = value;`"""

    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr


@dataclass(slots=True)
class Loop:
    """`for` over `var`, downwards where `reverse`. `joins`: whether it may be made one with its neighbours: not the author's loops."""

    var: Var
    body: list[Stmt]
    reverse: bool = False
    joins: bool = True


@dataclass(slots=True)
class While:
    """A loop that goes on while `condition` holds, before which `prelude` is computed at each turn."""

    prelude: list[Stmt]
    condition: Expr
    body: list[Stmt]


@dataclass(slots=True)
class If:
    """`if (condition) then else otherwise`"""

    condition: Expr
    then: list[Stmt]
    otherwise: list[Stmt]


@dataclass(slots=True)
class Invoke:
    """A call of a function of the text or of a helper. `args`: values and parts of buffers; `outs`: parts of buffers that it fills;
    `returns`: where its value goes, if it has one; `work`: of which function it needs the memory."""

    name: str
    args: Sequence[Expr]
    outs: Sequence[Read]
    returns: Read | None = None
    work: CFunction | None = None


@dataclass(slots=True)
class Break:
    """`break;`, of a `while` whose condition takes more than an expression: only the printer makes it."""


Stmt = Write | Loop | While | If | Invoke | Break


@dataclass(eq=False, slots=True)
class CFunction:
    """A function of the text. `params` and `outs` in the order of C's parameters; `returns`: the local that it returns.

    `work`: the buffers that stand in memory that the caller gives, each with its slot. `shared`: parameters for which a
    call gives an array that another parameter has as well.
    """

    name: str
    params: list[Buffer]
    outs: list[Buffer]
    body: list[Stmt]
    returns: Buffer | None = None
    comment: str = ""
    work: dict[Buffer, int] = field(default_factory=dict)
    slots: list[tuple[np.dtype, int]] = field(default_factory=list)
    shared: set[Buffer] = field(default_factory=set)

    @property
    def callees(self) -> list[CFunction]:
        """The functions that it calls which need memory, each once."""
        found = [
            s.work for s in statements(self.body) if isinstance(s, Invoke) and s.work is not None and s.work.needs_work
        ]
        return list(dict.fromkeys(found))

    @property
    def needs_work(self) -> bool:
        return bool(self.slots) or bool(self.callees)


def blocks(stmt: Stmt) -> list[list[Stmt]]:
    """The lists of statements in a statement, in the order in which they run."""
    match stmt:
        case Loop():
            return [stmt.body]
        case While():
            return [stmt.prelude, stmt.body]
        case If():
            return [stmt.then, stmt.otherwise]
    return []


def statements(block: Sequence[Stmt]) -> Iterator[Stmt]:
    """All statements of a block, those inside others too."""
    for stmt in block:
        yield stmt
        for inner in blocks(stmt):
            yield from statements(inner)


def reads(expr: Expr) -> Iterator[Read]:
    """The reads of buffers in an expression, those of indices too."""
    stack: list[Expr] = [expr]
    while stack:
        one = stack.pop()
        if isinstance(one, Read):
            yield one
            stack.extend(one.index)
        elif isinstance(one, Op):
            stack.extend(one.args)


@dataclass(frozen=True, slots=True)
class Access:
    """One place where a buffer is read or written."""

    buffer: Buffer
    index: tuple[Expr, ...]
    writes: bool


def own_accesses(stmt: Stmt) -> Iterator[Access]:
    """What a statement itself reads and writes, not the statements inside it."""
    values: list[Expr] = []
    match stmt:
        case Write():
            values = [stmt.value, *stmt.index]
            yield Access(stmt.buffer, stmt.index, True)
        case While() | If():
            values = [stmt.condition]
        case Invoke():
            values = list(stmt.args)
            for out in [*stmt.outs, *([stmt.returns] if stmt.returns is not None else [])]:
                values.extend(out.index)
                yield Access(out.buffer, out.index, True)
                if stmt.work is None:  # a helper may work in place
                    yield Access(out.buffer, out.index, False)
    for value in values:
        for read in reads(value):
            yield Access(read.buffer, read.index, False)


def accesses(stmt: Stmt) -> list[Access]:
    """All that a statement and those inside it read and write."""
    return [access for one in statements([stmt]) for access in own_accesses(one)]


@dataclass(slots=True)
class Touched:
    """Which buffers a statement reads, and which it writes."""

    read: set[Buffer]
    written: set[Buffer]

    def conflicts(self, other: Touched) -> bool:
        """Whether the two may not change places."""
        return not (
            self.written.isdisjoint(other.read)
            and self.written.isdisjoint(other.written)
            and self.read.isdisjoint(other.written)
        )


def touched(stmt: Stmt) -> Touched:
    found = Touched(set(), set())
    for access in accesses(stmt):
        (found.written if access.writes else found.read).add(access.buffer)
    return found


def mapped(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with each part replaced for which `change` gives something; the parts of what it gives stay."""
    made = change(expr)
    if made is not None:
        return made
    if isinstance(expr, Read):
        return Read(expr.buffer, tuple([mapped(i, change) for i in expr.index]))
    if isinstance(expr, Op):
        return replace(expr, args=tuple([mapped(a, change) for a in expr.args]))
    return expr


def change_expressions(stmt: Stmt, change: Callable[[Expr], Expr | None], inside: bool = True) -> None:
    """`mapped` on all expressions of a statement, in place, and of those inside it. Places that are written are changed as reads."""

    def place(at: Read) -> Read:
        made = mapped(at, change)
        assert isinstance(made, Read)
        return made

    match stmt:
        case Write():
            at = place(Read(stmt.buffer, stmt.index))
            stmt.buffer, stmt.index = at.buffer, at.index
            stmt.value = mapped(stmt.value, change)
        case While() | If():
            stmt.condition = mapped(stmt.condition, change)
        case Invoke():
            stmt.args = [mapped(a, change) for a in stmt.args]
            stmt.outs = [place(o) for o in stmt.outs]
            stmt.returns = place(stmt.returns) if stmt.returns is not None else None
    if inside:
        for block in blocks(stmt):
            for one in block:
                change_expressions(one, change)
