"""Functions of C as text: where variables are declared, how loops and choices look, lines that are not too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from untrace.targets.c.expressions import Expressions, c_type, declared_type
from untrace.targets.c.loops import (
    BOOL,
    Break,
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
    own_accesses,
    statements,
)
from untrace.targets.c.names import Scope

WIDTH = 100
_INDENT = "    "
_INDICES = ("i", "j", "k", "l", "m", "n", "p", "q", "r", "s", "t", "u")


def wrapped(line: str, indent: str) -> str:
    """A statement on as many lines as it needs."""
    lines: list[str] = []
    rest = indent + line
    further = indent + _INDENT * 2
    while len(rest) > WIDTH:
        cut = rest.rfind(", ", len(further) + WIDTH // 3, WIDTH) + 1 or rest.rfind(" ", len(further) + 1, WIDTH)
        if cut <= len(further):
            cut = rest.find(" ", WIDTH)
            if cut < 0:
                break
        lines.append(rest[:cut])
        rest = further + rest[cut + 1 :]
    return "\n".join([*lines, rest])


def parameter(buffer: Buffer, restrict: str = "restrict") -> str:
    """A parameter of a function: `const float x[restrict 3][4]`, `float *loss`, `float x`."""
    const = "const " if buffer.kind == "in" else ""
    kind = declared_type(buffer.dtype)
    if not buffer.shape:
        return f"{kind} {buffer.name}" if buffer.kind == "in" else f"{kind} *{buffer.name}"
    first, *rest = [max(n, 1) for n in buffer.shape]
    first = f"{restrict} {first}".lstrip()
    return f"{const}{kind} {buffer.name}[{first}]" + "".join([f"[{n}]" for n in rest])


class Printer:
    """Prints the functions of one file. `used`: the helpers that they call."""

    def __init__(self, helpers: frozenset[str], taken: Scope):
        self.used: set[str] = set()
        self._helpers = helpers
        self._taken = taken

    def function(self, function: CFunction, signature: str | None = None, outer: Sequence[str] = ()) -> str:
        """The definition. signature: that of the entry, whose parameters have their names already."""
        return _Body(self, function, self._helpers, self._taken, outer).text(signature)


class _Body:
    def __init__(
        self, printer: Printer, function: CFunction, helpers: frozenset[str], taken: Scope, outer: Sequence[str]
    ):
        self.function = function
        self.lines: list[str] = []
        self._outer = list(outer)
        scope = Scope(taken.taken)
        for name in outer:
            scope.taken.add(name)
        _desugar(function.body)
        if not outer:
            for buffer in (*function.params, *function.outs):
                buffer.name = scope.fresh(buffer.name, "x")
        self._writes: Counter[Buffer] = Counter()
        order: dict[Buffer, None] = {}
        for stmt in statements(function.body):
            for access in own_accesses(stmt):
                order.setdefault(access.buffer)
                if access.writes:
                    self._writes[access.buffer] += 1
        for buffer in order:
            if buffer.kind == "local":
                buffer.name = scope.fresh(buffer.name, "value")
        self._free = [name for name in _INDICES if name not in scope.taken] or [f"index_{k}" for k in range(12)]
        self._names: dict[Var, str] = {}
        self._declared: set[Buffer] = set(function.work)
        self._depth = 0
        self.expressions = Expressions(self._names, printer.used, helpers)
        self._used, self._helpers = printer.used, helpers

    def text(self, signature: str | None) -> str:
        function = self.function
        if signature is None:
            used = {a.buffer for s in function.body for a in accesses(s)}
            shared = function.shared
            params = [parameter(p, "" if p in shared else "restrict") for p in function.params if p in used]
            params += [parameter(o) for o in function.outs]
            if function.needs_work:
                params.append(f"struct {function.name}_work *work")
            kind = c_type(function.returns.dtype) if function.returns is not None else "void"
            signature = f"static {kind} {function.name}({', '.join(params) or 'void'})"
        for buffer, slot in function.work.items():
            self._line(f"{self._pointer(buffer)} = {self._slot(buffer, slot)};", _INDENT)
        body, last = function.body, ""
        after: Sequence[Stmt] = ()
        returned = function.returns
        if returned is not None:
            end = body[-1] if body else None
            reads = sum(1 for s in statements(body) for a in own_accesses(s) if a.buffer is returned)
            if isinstance(end, Write) and end.buffer is returned and reads == 1:
                body, after = body[:-1], (end,)
                last = f"return {self.expressions.text(end.value)};"
            else:
                last = f"return {returned.name};"
        owned = {b for b in self._writes if b.kind == "local" and b not in function.work}
        if returned is not None and body is function.body:  # it is read at the end
            owned.discard(returned)
            if not self._declares(body[0], returned) if body else True:
                self._line(f"{c_type(returned.dtype)} {returned.name};", _INDENT)
                self._declared.add(returned)
            else:
                owned.add(returned)
        self._block(body, _INDENT, owned, after)
        if last:
            self._line(last, _INDENT)
        return "\n".join([wrapped(signature, ""), "{", *self.lines, "}"])

    def _pointer(self, buffer: Buffer) -> str:
        kind, rest = c_type(buffer.dtype), "".join([f"[{n}]" for n in buffer.shape[1:]])
        return f"{kind} (*const {buffer.name}){rest}" if rest else f"{kind} *const {buffer.name}"

    def _slot(self, buffer: Buffer, slot: int) -> str:
        rest = "".join([f"[{n}]" for n in buffer.shape[1:]])
        place = f"work->{slot_name(self.function, slot)}"
        return f"({c_type(buffer.dtype)} (*){rest}){place}" if rest else place

    # ------------------------------------------------------------ statements

    def _line(self, text: str, indent: str) -> None:
        self.lines.append(wrapped(text, indent))

    def _block(self, block: Sequence[Stmt], indent: str, owned: set[Buffer], after: Sequence[Stmt] = ()) -> None:
        """Statements; the locals `owned` are used in them and in those `after` alone, and declared here or further inside."""
        where: dict[Buffer, list[Stmt]] = {}
        order: list[list[Buffer]] = []
        for stmt in (*block, *after):
            order.append(list(dict.fromkeys([a.buffer for a in accesses(stmt)])))
            for buffer in order[-1]:
                if buffer in owned:
                    where.setdefault(buffer, []).append(stmt)
        for stmt, buffers in zip(block, order[: len(block)], strict=True):
            inner: list[set[Buffer]] = [set() for _ in blocks(stmt)]
            for buffer in buffers:
                if buffer not in where or buffer in self._declared:
                    continue
                place = _only_block(stmt, buffer) if where[buffer] == [stmt] else None
                if place is not None:
                    inner[place].add(buffer)
                elif not self._declares(stmt, buffer):
                    self._declared.add(buffer)
                    shape = "".join([f"[{max(n, 1)}]" for n in buffer.shape])
                    self._line(f"{c_type(buffer.dtype)} {buffer.name}{shape};", indent)
            self._statement(stmt, indent, inner)

    def _declares(self, stmt: Stmt, buffer: Buffer) -> bool:
        """Whether a statement is the declaration of a scalar at once."""
        if buffer.shape or buffer is self.function.returns and self._writes[buffer] > 1:
            return False
        if isinstance(stmt, Write):
            return stmt.buffer is buffer and not any(a.buffer is buffer and not a.writes for a in own_accesses(stmt))
        return isinstance(stmt, Invoke) and stmt.returns is not None and stmt.returns.buffer is buffer

    def _statement(self, stmt: Stmt, indent: str, inner: Sequence[set[Buffer]]) -> None:
        text = self.expressions.text
        deeper = indent + _INDENT
        match stmt:
            case Write():
                self._line(self._written(stmt), indent)
            case Loop():
                name = self._free[self._depth % len(self._free)]
                self._names[stmt.var] = name
                n = stmt.var.extent
                head = (
                    f"int {name} = {n - 1}; {name} >= 0; {name}--"
                    if stmt.reverse
                    else f"int {name} = 0; {name} < {n}; {name}++"
                )
                self._line(f"for ({head}) {{", indent)
                self._depth += 1
                self._block(stmt.body, deeper, inner[0])
                self._depth -= 1
                self._line("}", indent)
            case While():
                self._line(f"while ({text(stmt.condition)}) {{", indent)
                self._block(stmt.body, deeper, inner[1])
                self._line("}", indent)
            case If():
                self._choice(stmt, indent, inner)
            case Invoke():
                self._line(self._called(stmt), indent)
            case Break():
                self._line("break;", indent)

    def _choice(self, stmt: If, indent: str, inner: Sequence[set[Buffer]], before: str = "") -> None:
        deeper = indent + _INDENT
        self._line(f"{before}if ({self.expressions.text(stmt.condition)}) {{", indent)
        self._block(stmt.then, deeper, inner[0])
        if not stmt.otherwise:
            self._line("}", indent)
            return
        other = stmt.otherwise[0]
        if len(stmt.otherwise) == 1 and isinstance(other, If) and not inner[1]:
            self._choice(other, indent, [set(), set()], "} else ")
            return
        self._line("} else {", indent)
        self._block(stmt.otherwise, deeper, inner[1])
        self._line("}", indent)

    def _declaration(self, buffer: Buffer) -> str:
        """What stands before the name of a scalar that is declared here."""
        if buffer.kind != "local" or buffer.shape or buffer in self._declared:
            return ""
        self._declared.add(buffer)
        return f"{'const ' if self._writes[buffer] == 1 else ''}{c_type(buffer.dtype)} "

    def _written(self, stmt: Write) -> str:
        target = self.expressions.place(stmt.buffer, stmt.index)
        value, old = stmt.value, Read(stmt.buffer, stmt.index)
        if isinstance(value, Op) and value.name in ("+", "-", "*", "/", "&", "|", "^") and value.args[0] == old:
            if value.dtype.kind == "f" or value.dtype.itemsize >= 4:
                return f"{target} {value.name}= {self.expressions.text(value.args[1])};"
        kind = self._declaration(stmt.buffer)
        return f"{kind}{target} = {self.expressions.text(value)};"

    def _called(self, stmt: Invoke) -> str:
        if stmt.name in self._helpers:
            self._used.add(stmt.name)
            args = [
                self._flat(a, "const ")
                if isinstance(a, Read) and len(a.index) < len(a.buffer.shape)
                else self.expressions.text(a)
                for a in stmt.args
            ]
            outs = [self._flat(o) for o in stmt.outs]
        else:
            args, outs = [self._passed(a) for a in stmt.args], [self._out(o) for o in stmt.outs]
        given = [*args, *outs]
        if stmt.work is not None and stmt.work.needs_work:
            member = "calls." if len(self.function.callees) > 1 else ""
            given.append(f"&work->{member}{stmt.work.name}")
        call = f"{stmt.name}({', '.join(given)})"
        if stmt.returns is None:
            return f"{call};"
        kind = self._declaration(stmt.returns.buffer)
        return f"{kind}{self.expressions.place(stmt.returns.buffer, stmt.returns.index)} = {call};"

    def _passed(self, arg: Expr) -> str:
        """An argument for a parameter that may be an array of constants."""
        text = self.expressions.text(arg)
        if (
            not isinstance(arg, Read)
            or len(arg.buffer.shape) - len(arg.index) < 2
            or arg.buffer.kind in ("in", "table")
        ):
            return text
        rest = "".join([f"[{n}]" for n in arg.buffer.shape[len(arg.index) + 1 :]])
        return f"(const {c_type(arg.dtype)} (*){rest}){text}"

    def _out(self, out: Read) -> str:
        text = self.expressions.place(out.buffer, out.index)
        if len(out.index) < len(out.buffer.shape):
            return text
        return text[1:] if text.startswith("*") else f"&{text}"

    def _flat(self, part: Read, const: str = "") -> str:
        """A pointer to the first element of a part of a buffer; not to that of its first row, of which gcc would take the size."""
        missing = len(part.buffer.shape) - len(part.index)
        text = self.expressions.place(part.buffer, part.index)
        if missing == 0:
            return f"&{text}".replace("&*", "")
        return text if missing == 1 else f"({const}{c_type(part.dtype)} *){text}"


def slot_name(function: CFunction, slot: int) -> str:
    """What a slot of the memory is called in its struct: as the first buffer that stands there."""
    return next(f"{buffer.name}" for buffer, number in function.work.items() if number == slot)


def _only_block(stmt: Stmt, buffer: Buffer) -> int | None:
    """Which of the blocks inside a statement has all uses of a buffer."""
    if any(a.buffer is buffer for a in own_accesses(stmt)):
        return None
    users = [
        place for place, block in enumerate(blocks(stmt)) if any(a.buffer is buffer for s in block for a in accesses(s))
    ]
    return users[0] if len(users) == 1 else None


def _desugar(block: list[Stmt]) -> None:
    """A `while` whose condition needs statements becomes one without an end, which is left by `break`."""
    for stmt in block:
        for inner in blocks(stmt):
            _desugar(inner)
        if isinstance(stmt, While) and stmt.prelude:
            leave = If(_negated(stmt.condition), [Break()], [])
            stmt.body[:] = [*stmt.prelude, leave, *stmt.body]
            stmt.prelude, stmt.condition = [], Num(True, BOOL)


_OPPOSITES = {"==": "!=", "!=": "=="}


def _negated(condition: Expr) -> Expr:
    if isinstance(condition, Op) and condition.name in _OPPOSITES:
        return Op(_OPPOSITES[condition.name], condition.args, BOOL)
    return Op("!", (condition,), BOOL)
