"""Functions inside a function, in idiomatic style: what they close over, how their parameters come apart, their names.

A nested function closes over the values that JAX handed to its jaxpr as constants: whatever their order, the proof
takes them for the same (`jaxprs.equal.closures`). Its own variables may have the names of variables around it that it does
not use, as an author's would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from untrace import jax_compat
from untrace._identifiers import identifier
from untrace.ir.nodes import Atom, Equation, Function, Library, Value
from untrace.ir.scans import used_values
from untrace.module.constants import Named
from untrace.module.def_use import read_by, targets_of
from untrace.module.interface.writing import Writer
from untrace.python.names import Scope
from untrace.python.statements import Assign, Def, Lines, Parameter, Return, Statement
from untrace.python.tree import WIDTH, Call, Expr, Name, Text, Tuple
from untrace.python.types import Type, array_type, tuple_type
from untrace.python.walk import nodes_of

_WORD = re.compile(r"[A-Za-z_]\w*")
_KEY = re.compile(r"\"[^\"\\\n]*\"|'[^'\\\n]*'")  # a string, which binds no name
# Names that JAX's own functions and Python give: they say nothing about the program.
_NAMELESS = frozenset(
    {
        "",
        "<lambda>",
        "<unknown>",
        "<unnamed function>",
        "f",
        "fun",
        "scanned_fun",
        "while_body_fun",
        "linearize_and_solve",
    }
)


class Body:
    """A nested function while it is written: `writer` writes its statements, `params` are its parameters so far."""

    def __init__(self, w: Writer, function: Function, fallback: str, closed: Iterable[tuple[Value, Expr]]):
        self.outer = w
        self.name, self.authored = function_hint(function, fallback, w.equation)
        self.fallback = fallback
        self.function = function
        self.types: list[Type | None] = []  # of the parameters
        pairs = list(closed)
        if any(type(expr) is Named for _, expr in pairs):  # what the body knows by itself, it does not read
            read = used_values(function)
            pairs = [(param, expr) for param, expr in pairs if type(expr) is not Named or param in read]
        scope = Scope(w.module.scope)
        for word in sorted({word for _, expr in pairs for word in _WORD.findall(_KEY.sub("", expr.flat()))}):
            scope.claim_closed_over(word)
        self.writer = w.nested(scope)
        self.writer.names.update(pairs)
        self.writer.trees.close_over(pairs)
        self.params: list[Parameter] = []
        self.heads: list[Statement] = []  # that give leaves names

    def parameter(
        self,
        values: Sequence[Value],
        names: Sequence[str],
        whole: str,
        used: set[Value],
        empty: str = "_",
    ) -> None:
        """Adds one parameter for `values`: itself for one, else a tuple that is taken apart first.

        `names`: bases of names, where a value has no hint. Values that nothing uses are `_`; a parameter of none is
        `empty`.
        """
        inner = self.writer
        self.types.append(tuple_type([array_type(v.aval) for v in values]) if values else None)
        if len(values) == 1 and values[0] in used:
            self.params.append(Parameter(inner.bind_parameter(values[0], names[0]).id))
        elif not any(v in used for v in values):
            self.params.append(Parameter(empty))
            for value in values:
                inner.names[value] = Name(empty)
        else:
            self.params.append(Parameter(inner.scope.fresh(identifier(whole, "carry"))))
            targets: list[str] = []
            for value, name in zip(values, names, strict=True):
                if value in used:
                    targets.append(inner.bind_parameter(value, name).id)
                else:
                    inner.names[value] = Name("_")
                    targets.append("_")
            inner.statements.append(Assign(targets, Name(self.params[-1].name)))

    def name_of(self, value: Value) -> str:
        """The identifier of a parameter, "" where nothing uses it."""
        expr = self.writer.names.get(value)
        return expr.id if type(expr) is Name and not expr.id.startswith("_") else ""

    def finish(self, value: Expr) -> Expr:
        """What a call is given for this function: its name, now defined before the call."""
        if self.heads:  # of leaves that only go where their whole tree went, nobody reads the name
            read = {n for part in (*self.writer.statements, value) for n in read_by(part)}
            unread = {s for s in self.heads if read.isdisjoint(targets_of(s))}
            self.writer.statements[:] = [s for s in self.writer.statements if s not in unread]
        if not self.writer.statements and type(value) is Call and type(value.func) is str and not value.kwargs:
            if value.args and [a.flat() for a in value.args] == [p.name for p in self.params]:
                return Name(value.func)  # nothing but a call of it
        self.define(value)
        return Name(self.name)

    def text(self, value: Expr) -> str:
        """Everything but the name: two functions with the same text do the same."""
        whole = Def("f", self.params, [*self.writer.statements, BareReturn(value)])
        return "\n".join(whole.lines(""))

    def define(self, value: Expr, decorators: Sequence[Expr] = ()) -> None:
        """Puts the definition, with blank lines around it, where the outer function now stands."""
        body = [*self.writer.statements, BareReturn(value)]
        if any(type(n) is Call and n.func == self.name for part in body for n in nodes_of(part)):
            self.name = identifier(self.fallback, self.name)  # the author's function is the one that it calls
        self.name = self.outer.scope.fresh_function(self.name)
        definition = Def(self.name, self.params, body, decorators, is_named=self.authored)
        described = self.outer.module.described
        if described.annotations:
            described.nested(definition, self.types, _type_of(value, self.function.results))
        put_definition(self.outer.statements, definition)


def _type_of(value: Expr, results: Sequence[Atom]) -> Type | None:
    """The type of what a body returns: tuples of its results in order, None where a part of a carry is empty."""
    rest = iter(results)

    def walk(expr: Expr) -> Type:
        if type(expr) is Tuple:
            return Type("tuple", parts=tuple(("", walk(e)) for e in expr.elements))
        if type(expr) is Text and expr.text == "None":
            return Type("None", "None")
        return array_type(next(rest).aval)

    try:
        found = walk(value)
    except StopIteration:
        return None
    return found if next(rest, None) is None else None


class BareReturn(Return):
    """`return a, b` without brackets, where it fits on one line."""

    __slots__ = ()

    def lines(self, indent: str) -> Iterator[str]:
        value = self.value
        if type(value) is Tuple and len(value.elements) > 1:
            line = f"{indent}return {value.flat()[1:-1]}"
            if len(line) <= WIDTH:
                yield line
                return
        yield from super().lines(indent)


def put_definition(statements: list[Statement], *definitions: Statement) -> None:
    """Appends definitions with a blank line before and after each, as the community's formatter has them."""
    for definition in definitions:
        last = statements[-1] if statements else None
        if last is not None and not (type(last) is Lines and last.text == ""):
            statements.append(Lines(""))
        statements.extend([definition, Lines("")])


# ------------------------------------------------------------------ names


def function_hint(function: Function, fallback: str, equation: Equation) -> tuple[str, bool]:
    """The name of a nested function, `_bwd` after it in a backward pass, and whether it is its author's."""
    name = jax_compat.function_name(function.jaxpr) if function.jaxpr is not None else ""
    name = function.facts.whole or name if name in _NAMELESS else name
    authored = name not in _NAMELESS and not name.startswith("_")
    name = identifier(name if authored else fallback, fallback)
    # A loop in the body of a backward loop has no scope of its own that says so.
    if (is_backward(equation) or function.name.endswith("_bwd")) and not name.endswith("_bwd"):
        name += "_bwd"
    return name, authored


def is_backward(equation: Equation) -> bool:
    """Whether an equation comes from the transposition of a linear function."""
    if equation.origin is None:
        return False
    _, stack = jax_compat.equation_source(equation.origin)
    return "transpose()" in jax_compat.scope_names(stack)


def argument_words(function: Function, skip: int) -> list[tuple[str, str]]:
    """(root, own name) of each parameter after the first `skip`, from the names that JAX keeps: `carry['h']` gives
    ("carry", "h"), `machine[1]` gives ("machine", ""), `x` gives ("x", "x"). Empty strings where it keeps none."""
    paths = jax_compat.argument_names(function.jaxpr) if function.jaxpr is not None else None
    count = len(function.params) - skip
    if paths is None or len(paths) != len(function.params):
        return [("", "")] * count
    return [_words(path) for path in paths[skip:]]


_PATH = re.compile(r"([A-Za-z_]\w*)(.*)$", re.DOTALL)
_LAST_STEP = re.compile(r"(?:\.|\[')([A-Za-z_]\w*)(?:'\])?$")


def _words(path: str) -> tuple[str, str]:
    found = _PATH.match(path)
    if found is None:
        return "", ""
    root, rest = found.groups()
    if not rest:
        return root, root
    leaf = _LAST_STEP.search(rest)
    return root, leaf.group(1) if leaf else ""


def root_name(words: Sequence[tuple[str, str]], fallback: str) -> str:
    """The author's name for a tuple of parameters, where all its parts agree on one."""
    roots = {root for root, _ in words}
    return roots.pop() if len(roots) == 1 and "" not in roots else fallback


def hint_of(*atoms: object) -> str:
    """The first hint among some values, "" without one."""
    for atom in atoms:
        if type(atom) is Value and atom.hint and not atom.hint.startswith("_"):
            return atom.hint
    return ""


def plural(name: str) -> str:
    if not name or name.endswith("s") or not name[-1].isalpha():
        return name
    return name + ("es" if name.endswith(("x", "ch", "sh")) else "s")


# ------------------------------------------------------------------ what a body does


def plain_equation(equation: Equation) -> Equation:
    """The primitive's equation behind a lift of a single equation; the equation itself otherwise."""
    if type(equation.callee) is Library and len(equation.callee.body.equations) == 1:
        return plain_equation(equation.callee.body.equations[0])
    return equation


def scan_options(length: Expr | None, reverse: bool, unroll: int, says_reverse: bool = False) -> dict[str, Expr | int]:
    """The keyword arguments of `lax.scan` that are no defaults. length: None where `xs` has it. says_reverse: whether the author
    has a variable there, which is written also where it is False: in another call of his function it may be True."""
    found: dict[str, Expr | int] = {} if length is None else {"length": length}
    if reverse or says_reverse:
        found["reverse"] = reverse
    if unroll != 1:
        found["unroll"] = unroll
    return found


def group(atoms: Sequence[Expr]) -> Expr:
    """The values of one part of a carry: None, the value itself, or a tuple."""
    if not atoms:
        return Text("None")
    return atoms[0] if len(atoms) == 1 else Tuple(atoms)


def unpacked(targets: Sequence[Expr]) -> Expr:
    """What a group is bound to: several that nobody reads, at its end, are `*_`."""
    found = list(targets)
    if len(found) > 2 and all(type(x) is Name and x.id == "_" for x in found[-2:]):
        while type(found[-1]) is Name and found[-1].id == "_":
            found.pop()
        found.append(Name("*_"))
    return group(found)
