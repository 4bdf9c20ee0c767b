"""A whole C program: one source, one header, and how its entry is called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np

from untrace._errors import UnsupportedPrimitiveError
from untrace.ir.nodes import Literal, Program
from untrace.ir.types import PyTree
from untrace.targets.c import rules  # noqa: F401  (registers them)
from untrace.targets.c.arrays import stored
from untrace.targets.c.build import Builder, Unit
from untrace.targets.c.expressions import c_type, literal
from untrace.targets.c.loops import Buffer, CFunction, Invoke, Read, accesses, statements
from untrace.targets.c.names import Scope, c_name
from untrace.targets.c.optimise import optimise
from untrace.targets.c.rules.table import Declined
from untrace.targets.c.runtime.helpers import helpers, needed
from untrace.targets.c.structs import Leaf, Place, Struct, Structs, layout, offsets, places
from untrace.targets.c.text import WIDTH, Printer, parameter, slot_name, wrapped
from untrace.targets.c.types import TYPES

_PER_LINE = 8  # numbers of a table
_LARGE = 4096  # bytes of a table that stands in a file of its own


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of the entry. `kind`: what it is; a struct, or an array with axes, is passed by its address.

    `leaves`: how many leaves of the arguments it holds, in JAX's order, each at its place.
    """

    name: str
    kind: Leaf | Struct
    leaves: Sequence[Place]

    @property
    def by_value(self) -> bool:
        return isinstance(self.kind, Leaf) and not self.kind.shape


@dataclass(frozen=True, slots=True)
class CProgram:
    """A program as C. `source`, `header`: the texts; `name`: the entry's. `arguments`: its parameters, in order.

    `result`: what it gives: a number that it returns (`returns`), or what it writes to the address that it is given.
    `work_bytes`: how much memory it needs beside; 0 where it takes none.
    `data`: the text of a second source, with its large constants; "" where it has none.
    """

    name: str
    source: str
    header: str
    arguments: Sequence[Argument]
    result: Argument | None
    returns: bool
    work_bytes: int = 0
    notes: tuple[str, ...] = field(default=())
    data: str = ""

    def with_head(self, before: str, after: str) -> CProgram:
        """The same with another comment on top."""
        old, new = _comment(before), _comment(after)
        return replace(self, source=self.source.replace(old, new, 1), header=self.header.replace(old, new, 1))


def c_program(program: Program, arguments: Sequence[tuple[str, PyTree]], result: PyTree, head: str) -> CProgram:
    """The program in C. arguments: the author's names for them and examples; result: an example.

    Raises UnsupportedPrimitiveError for all that C cannot express at once, each with the author's line.
    """
    name = c_name(program.entry.name, "program")
    unit, builder = Unit(), None
    builder = Builder(unit)
    structs, scope = Structs(), Scope([name, "work", *helpers()])
    made: list[Argument] = []
    inputs: list[Buffer] = []
    try:
        for word, example in arguments:
            if not jax.tree.leaves(example):
                continue
            own = scope.fresh(word, "x")
            kind = structs.of(example, f"{name}_{own}")
            found = places(kind)
            made.append(Argument(own, kind, found))
            for place in found:
                inputs.append(
                    Buffer(f"{own}->{place.path}" if place.path else own, place.leaf.shape, place.leaf.dtype, "in")
                )
                if place.leaf.dtype not in TYPES:
                    unit.refuse(
                        f"an argument of {place.leaf.dtype.name}, which is none of C's arithmetic types here", None
                    )
    except TypeError:
        unit.refuse("arguments of types that are no arrays", None)
    given, returns, outs, function = None, False, [], CFunction(name, inputs, [], builder.block)
    if not unit.missing:
        try:
            given, returns, outs = _body(builder, program, function, structs, scope, name, result)
        except Declined as error:  # in what the entry gives
            unit.refuse(str(error), None)
    if unit.missing:
        lines = "\n".join(f"  {line}" for line in dict.fromkeys(unit.missing))
        raise UnsupportedPrimitiveError(
            f"this program cannot be written for C, which has nothing for:\n{lines}\n"
            "Compute these parts outside of the function, or write it for JAX."
        )
    optimise(function)
    return _texts(unit, function, made, given, returns, structs, head)


def _body(
    builder: Builder, program: Program, function: CFunction, structs: Structs, scope: Scope, name: str, result: PyTree
) -> tuple[Argument | None, bool, list[Buffer]]:
    """Builds the entry's body; what it gives, whether it returns that, and the buffers of its leaves."""
    entry = program.entry
    arrays = builder.run(entry, [stored(p) for p in function.params])
    if not arrays:
        builder.unit.refuse("a function without results", None)
        return None, False, []
    hints = [None if isinstance(r, Literal) else r.hint for r in entry.results]
    word = (hints[0] if len(hints) == 1 and hints[0] != name else None) or "result"
    if len(arrays) == 1 and not arrays[0].shape and jax.tree_util.all_leaves([result]):
        function.returns = builder.result(arrays[0], entry.results[0])
        return Argument("result", Leaf((), arrays[0].dtype), places(Leaf((), arrays[0].dtype))), True, []
    own = scope.fresh(word, "result")
    top = hints if isinstance(result, tuple) and len(result) == len(hints) else []
    try:
        kind = structs.of(result, f"{name}_{own}", top)
    except TypeError as error:
        raise Declined("results of types that are no arrays") from error
    found = places(kind)
    for place, array in zip(found, arrays, strict=True):
        out = Buffer(f"{own}->{place.path}" if place.path else own, place.leaf.shape, array.dtype, "out")
        builder.fill(Read(out, ()), array)
        function.outs.append(out)
    return Argument(own, kind, found), False, function.outs


def _note_shared(caller: CFunction) -> None:
    """Notes of the functions that one calls which parameters get the same array."""
    for stmt in statements(caller.body):
        if isinstance(stmt, Invoke) and stmt.work is not None:
            used = {a.buffer for s in stmt.work.body for a in accesses(s)}
            given: dict[Buffer, list[Buffer]] = {}
            for param, arg in zip([p for p in stmt.work.params if p in used], stmt.args, strict=True):
                if isinstance(arg, Read) and param.shape:
                    given.setdefault(arg.buffer, []).append(param)
            stmt.work.shared.update(p for params in given.values() if len(params) > 1 for p in params)


def _texts(
    unit: Unit, function: CFunction, arguments: Sequence[Argument], result: Argument | None, returns: bool,
    structs: Structs, head: str,
) -> CProgram:  # fmt: skip
    name = function.name
    every = helpers()
    outer = [a.name for a in arguments] + ([result.name] if result is not None and not returns else [])
    # What has the name of a parameter of the entry would be hidden by it there.
    taken = Scope([name, f"{name}_work", *every, *outer, *[s.tag for s in structs.all]])
    for one in unit.functions:
        one.name = taken.fresh(one.name, "function")
    _rename_calls(unit, function)
    for one in (*unit.functions, function):
        _note_shared(one)
    used = [a.buffer for f in (*unit.functions, function) for s in f.body for a in accesses(s)]
    tables = [b for b in dict.fromkeys(used) if b.kind == "table"]
    large = [t for t in tables if t.value is not None and t.value.nbytes > _LARGE]
    for table in tables:
        table.name = taken.fresh(f"{name}_{table.name}" if table in large else table.name, "table")
    printer = Printer(frozenset(every), Scope(taken.taken - set(outer)))  # the others' parameters may have these names
    bodies = [printer.function(one) for one in unit.functions]
    signature = _signature(function, arguments, result, returns, "restrict")
    bodies.append(printer.function(function, signature, [*outer, *(["work"] if function.needs_work else [])]))
    _unused(bodies, outer)
    works = [text for one in (*unit.functions, function) if (text := _work(one))]
    texts = [
        needed(printer.used), ["\n".join([f"extern const {_declared(t)};" for t in large])] if large else [],
        [_table(t) for t in tables if t not in large], bodies,
    ]  # fmt: skip
    includes = ["<math.h>", "<stdbool.h>", "<stddef.h>", "<stdint.h>", "<string.h>"]
    body = "\n\n".join([t.rstrip("\n") for group in texts for t in group])
    if "_Complex" in body:
        includes.insert(0, "<complex.h>")
    wanted = [f"#include {i}" for i in includes if i != "<string.h>" or "memcpy(" in body]
    if "UNTRACE_BLAS" in body:
        wanted += ["", "#ifdef UNTRACE_BLAS", "#include <cblas.h>", "#endif"]
    header = _header(function, signature_in_header(function, arguments, result, returns), structs, head, works)
    wanted += _complex_types(body, header)
    asserts = [text for s in structs.all for text in _asserts(s)]
    source = "\n".join(
        [
            _comment(head), "", f'#include "{name}.h"', "", *wanted, "",
            *asserts, *([""] if asserts else []), body, "",
        ]
    )  # fmt: skip
    data = ""
    if large:
        lines = [
            "/* The large constants. */",
            "",
            "#include <math.h>",
            "#include <stdbool.h>",
            "#include <stdint.h>",
            "",
        ]
        for table in large:
            lines += [*_complex_types(_declared(table)), *([""] if table.dtype.kind == "c" else [])]
            lines += [f"extern const {_declared(table)};", _table(table, ""), ""]
        data = "\n".join(lines)
    notes = tuple(dict.fromkeys(unit.notes))
    return CProgram(name, source, header, arguments, result, returns, _size(function), data=data, notes=notes)


def _rename_calls(unit: Unit, function: CFunction) -> None:
    for one in (*unit.functions, function):
        for stmt in statements(one.body):
            if isinstance(stmt, Invoke) and stmt.work is not None:
                stmt.name = stmt.work.name


def _signature(
    function: CFunction, arguments: Sequence[Argument], result: Argument | None, returns: bool, restrict: str
) -> str:
    params: list[str] = []
    for argument in arguments:
        if isinstance(argument.kind, Leaf):
            params.append(parameter(Buffer(argument.name, argument.kind.shape, argument.kind.dtype, "in"), restrict))
        else:
            params.append(f"const struct {argument.kind.tag} *{restrict} {argument.name}")
    kind = "void"
    if result is not None and returns:
        assert isinstance(result.kind, Leaf)
        kind = c_type(result.kind.dtype)
    elif result is not None and isinstance(result.kind, Leaf):
        params.append(parameter(Buffer(result.name, result.kind.shape, result.kind.dtype, "out"), restrict))
    elif result is not None and isinstance(result.kind, Struct):
        params.append(f"struct {result.kind.tag} *{restrict} {result.name}")
    if function.needs_work:
        params.append(f"struct {function.name}_work *{restrict} work")
    return f"{kind} {function.name}({', '.join(params) or 'void'})"


def signature_in_header(
    function: CFunction, arguments: Sequence[Argument], result: Argument | None, returns: bool
) -> str:
    return _signature(function, arguments, result, returns, f"{function.name.upper()}_RESTRICT")


def _unused(bodies: list[str], names: Sequence[str]) -> None:
    """A parameter on which nothing depends, and a result without elements, is said to be so."""
    text = re.sub(
        r"/\*.*?\*/|(->|\.)\w+", "", bodies[-1].partition("\n{\n")[2], flags=re.DOTALL
    )  # fields have other names
    idle = [name for name in names if not re.search(rf"\b{name}\b", text)]
    if idle:
        lines = "\n".join([f"    (void){n};" for n in idle])
        bodies[-1] = bodies[-1].replace("\n{\n", "\n{\n" + lines + "\n", 1)


def _work(function: CFunction) -> str:
    """The struct of the memory that a function needs."""
    if not function.needs_work:
        return ""
    lines = [f"struct {function.name}_work {{"]
    for slot, (dtype, count) in enumerate(function.slots):
        lines.append(f"    {c_type(dtype)} {slot_name(function, slot)}[{count}];")
    members = [f"struct {one.name}_work {one.name};" for one in function.callees]
    if len(members) > 1:
        lines += ["    union {", *[f"        {m}" for m in members], "    } calls;"]
    else:
        lines += [f"    {m}" for m in members]
    return "\n".join([*lines, "};"])


def _size(function: CFunction) -> int:
    """Bytes of that, with room for alignment."""
    own = sum(-(-dtype.itemsize * count // 8) * 8 for dtype, count in function.slots)
    return own + max(map(_size, function.callees), default=0)


def _table(buffer: Buffer, before: str = "static ") -> str:
    assert buffer.value is not None
    start = f"{before}const {_declared(buffer)} = "
    text = _initialiser(buffer.value, buffer.dtype)
    if len(start) + len(text) < WIDTH:
        return f"{start}{text};"
    return f"{start}{{\n{_rows(buffer.value, buffer.dtype)}}};"


def _declared(buffer: Buffer) -> str:
    return f"{c_type(buffer.dtype)} {buffer.name}" + "".join([f"[{n}]" for n in buffer.shape])


def _initialiser(value: np.ndarray, dtype: np.dtype) -> str:
    if not value.ndim:
        return literal(value.item(), dtype)
    if value.size > WIDTH:  # more than a line
        return " " * WIDTH
    return "{" + ", ".join([_initialiser(part, dtype) for part in value]) + "}"


def _rows(value: np.ndarray, dtype: np.dtype, indent: str = "    ") -> str:
    """What stands between the braces of a table of several lines."""
    if value.ndim > 1:
        return "".join([f"{indent}{{\n{_rows(part, dtype, indent + '    ')}{indent}}},\n" for part in value])
    words = [literal(x.item(), dtype) for x in value]
    lines = [words[k : k + _PER_LINE] for k in range(0, len(words), _PER_LINE)]
    return "".join([f"{indent}{', '.join(line)},\n" for line in lines])


def _asserts(struct: Struct) -> list[str]:
    """What callers from other languages rely on."""
    kind = layout(struct)
    last, offset = struct.fields[-1].name, offsets(struct)[-1]
    return [
        wrapped(f'_Static_assert(sizeof(struct {struct.tag}) == {kind.itemsize}, "{struct.tag}");', ""),
        wrapped(f'_Static_assert(offsetof(struct {struct.tag}, {last}) == {offset}, "{struct.tag}.{last}");', ""),
    ]


_COMPLEX_TYPE = """
#ifndef UNTRACE_COMPLEX{0}
#define UNTRACE_COMPLEX{0}
/* The same in memory as {1} _Complex of C, and as std::complex<{1}> of C++, which have no type in common. */
struct complex{0} {{
    {1} re;
    {1} im;
}};
#endif"""


def _complex_types(text: str, before: str = "") -> list[str]:
    """The definitions of complex numbers that a text needs and what stands before it has not."""
    kinds = [("64", "float"), ("128", "double")]
    return [
        _COMPLEX_TYPE.format(*k)
        for k in kinds
        if f"struct complex{k[0]}" in text and f"struct complex{k[0]}" not in before
    ]


def _comment(text: str) -> str:
    """A comment; whatever the text holds, it ends where it should."""
    plain = text.replace("*/", "* /").replace("/*", "/ *").replace("\\\n", "\n").replace("??/", "?? /")
    lines = [line.encode("ascii", "replace").decode().rstrip().rstrip("\\") for line in plain.strip().split("\n")]
    return "/* " + "\n".join([lines[0], *[f" * {line}".rstrip() for line in lines[1:]]]) + " */"


def _header(function: CFunction, signature: str, structs: Structs, head: str, works: Sequence[str]) -> str:
    name, guard = function.name, f"{function.name.upper()}_H"
    macro = f"{name.upper()}_RESTRICT"
    lines = [
        _comment(head), f"#ifndef {guard}", f"#define {guard}", "", "#include <stdbool.h>", "#include <stdint.h>", "",
        "#ifdef __cplusplus", f"#define {macro}", 'extern "C" {', "#else", f"#define {macro} restrict", "#endif", "",
    ]  # fmt: skip
    texts = structs.texts()
    for text in _complex_types("\n".join([*texts, *works, signature])):
        lines += [text.lstrip("\n"), ""]
    for text in texts:
        lines += [text, ""]
    if works:
        lines += [f"/* Memory that {name} works in: any, as it is; of each thread its own. */"]
    for text in works:
        lines += [text, ""]
    lines += [wrapped(f"{signature};", ""), "", "#ifdef __cplusplus", "}", "#endif", "", "#endif", ""]
    return "\n".join(lines)


__all__ = ["WIDTH", "Argument", "CProgram", "c_program"]
