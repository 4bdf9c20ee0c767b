"""The expressions that rules return, and their layout as text.

Rules build these nodes; nothing else makes text, and nothing touches text after it is laid out.
An expression prints on one line where it fits and is otherwise broken at its outermost brackets,
one item a line with a trailing comma, as the community's formatters do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from untrace.ir.facts import Step
from untrace.ir.values import Constant, Value
from untrace.provenance.frames import Frame

WIDTH = 88  # the community's formatters' own
LAMBDA_WIDTH = 60  # a longer lambda is written as a function with a name

# Binding strengths, weakest first (https://docs.python.org/3/reference/expressions.html).
LAMBDA, TERNARY, OR, AND, NOT, COMPARE, BIT_OR, BIT_XOR, BIT_AND, SHIFT, SUM, PRODUCT, UNARY, POWER, ATOM = range(15)

BINARY_STRENGTH = {
    "or": OR, "and": AND, "==": COMPARE, "!=": COMPARE, "<": COMPARE, "<=": COMPARE, ">": COMPARE,
    ">=": COMPARE, "is": COMPARE, "is not": COMPARE, "in": COMPARE, "not in": COMPARE,
    "|": BIT_OR, "^": BIT_XOR, "&": BIT_AND, "<<": SHIFT, ">>": SHIFT,
    "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "//": PRODUCT, "%": PRODUCT, "@": PRODUCT,
    "**": POWER,
}  # fmt: skip


class Expr:
    """An expression. `flat()` is its text on one line, `strength` how tightly it binds."""

    __slots__ = ()
    strength = ATOM

    def flat(self) -> str:
        raise NotImplementedError(type(self).__name__)

    def items(self) -> tuple[str, Sequence[tuple[str, Expr]], str] | None:
        """(opening, (prefix, item) pairs, closing) where the expression can be broken, else None."""
        return None


@dataclass(slots=True, eq=False, repr=False)
class Symbol:
    """What is known of a variable of the text. Where it is mentioned under another name, that Name has the same symbol."""

    author: str | None = None
    """What the author calls its value."""

    library: str | None = None
    """What the code of a library that computes it calls it."""

    leaf: Leaf | None = None
    """The part of an argument that it holds; without steps where it is the argument itself."""

    leaves: int = 0
    """Of a parameter that is a tree: how many of its leaves are known."""

    value: Value | None = None
    """The value of the program that it holds: by that it is known what one loop saves and a later one takes."""

    constant: Constant | None = None
    """The constant of the program that it stands for in the module."""

    but_last: set[tuple[Step, ...]] = field(default_factory=set)
    """The lists in it of which a loop goes through all but the last, which is `[-1]` then."""


class Name(Expr):
    """A plain identifier, already made safe and unique by `names`; `symbol` is the variable that it mentions."""

    __slots__ = ("id", "symbol")

    def __init__(self, id: str, symbol: Symbol | None = None):
        self.id = id
        self.symbol = symbol or Symbol()

    def flat(self) -> str:
        return self.id


class Text(Expr):
    """A literal's source (a number, a quoted string) or a dotted public path: never anything that came from outside."""

    __slots__ = ("text", "strength")

    def __init__(self, text: str, strength: int = ATOM):
        self.text = text
        self.strength = strength

    def flat(self) -> str:
        return self.text


def quoted(value: str) -> str:
    """A string literal, double-quoted where that needs no more escapes; pure ASCII."""
    text = ascii(value)
    return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text


class Attribute(Expr):
    __slots__ = ("value", "name")

    def __init__(self, value: Expr, name: str):
        self.value = value
        self.name = name

    def flat(self) -> str:
        return f"{wrap(self.value, ATOM)}.{self.name}"


class Call(Expr):
    """`func(*args, **kwargs)`; `kwargs` are (name, expression) pairs in order.

    `frames`: set where it calls a function of the module, from where its author made the call.
    """

    __slots__ = ("func", "args", "kwargs", "frames")
    frames: Sequence[Frame]

    def __init__(self, func: Expr | str, args: Sequence[Expr] = (), kwargs: Sequence[tuple[str, Expr]] = ()):
        self.func = func
        self.args = args
        self.kwargs = kwargs

    def _func(self) -> str:
        return self.func if isinstance(self.func, str) else wrap(self.func, ATOM)

    def flat(self) -> str:
        text = ", ".join([a.flat() for a in self.args])
        if self.kwargs:
            named = ", ".join([f"{_keyword(k)}{v.flat()}" for k, v in self.kwargs])
            text = f"{text}, {named}" if text else named
        return f"{self._func()}({text})"

    def items(self) -> tuple[str, Sequence[tuple[str, Expr]], str]:
        pairs = [("", a) for a in self.args] + [(_keyword(k), v) for k, v in self.kwargs]
        return self._func() + "(", pairs, ")"


def _keyword(name: str) -> str:
    """`name=` in front of a keyword argument; the name "**" spreads a mapping."""
    return "**" if name == "**" else f"{name}="


class Star(Expr):
    """`*value` in a call or a tuple."""

    __slots__ = ("value",)

    def __init__(self, value: Expr):
        self.value = value

    def flat(self) -> str:
        return "*" + wrap(self.value, BIT_OR)


class Tuple(Expr):
    __slots__ = ("elements",)

    def __init__(self, elements: Sequence[Expr]):
        self.elements = elements

    def flat(self) -> str:
        inner = ", ".join([e.flat() for e in self.elements])
        return f"({inner},)" if len(self.elements) == 1 else f"({inner})"

    def items(self) -> tuple[str, Sequence[tuple[str, Expr]], str]:
        return "(", [("", e) for e in self.elements], ")"


class List(Expr):
    __slots__ = ("elements",)

    def __init__(self, elements: Sequence[Expr]):
        self.elements = elements

    def flat(self) -> str:
        return "[" + ", ".join([e.flat() for e in self.elements]) + "]"

    def items(self) -> tuple[str, Sequence[tuple[str, Expr]], str]:
        return "[", [("", e) for e in self.elements], "]"


class Dict(Expr):
    """`{key: value}`; pairs in order. A dict without a key goes into it: `{**value}`."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Sequence[tuple[Expr | None, Expr]]):
        self.pairs = pairs

    def flat(self) -> str:
        return "{" + ", ".join([before + v.flat() for before, v in self._parts()]) + "}"

    def items(self) -> tuple[str, Sequence[tuple[str, Expr]], str]:
        return "{", self._parts(), "}"

    def _parts(self) -> list[tuple[str, Expr]]:
        return [("**" if k is None else f"{k.flat()}: ", v) for k, v in self.pairs]


class Subscript(Expr):
    """`value[index]`; a Tuple index prints without its brackets. `siblings`: how many elements the tuple or list has of
    which it is one; 0 where that is not known."""

    __slots__ = ("value", "index", "siblings")

    def __init__(self, value: Expr, index: Expr, siblings: int = 0):
        self.value = value
        self.index = index
        self.siblings = siblings

    def flat(self) -> str:
        inner = self.index.flat()
        if type(self.index) is Tuple and self.index.elements:
            inner = inner[1:-1]
        return f"{wrap(self.value, ATOM)}[{inner}]"

    def items(self) -> tuple[str, Sequence[tuple[str, Expr]], str] | None:
        index = self.index
        if type(index) is not Tuple or len(index.elements) < 2:  # a comma after a single index would make it a tuple
            broken = self.value.items() if self.value.strength == ATOM else None
            return broken and (*broken[:2], broken[2] + self.flat()[len(self.value.flat()) :])
        return wrap(self.value, ATOM) + "[", [("", e) for e in index.elements], "]"


class Slice(Expr):
    """`start:stop:step` inside a Subscript; None leaves a part out."""

    __slots__ = ("start", "stop", "step")

    def __init__(self, start: Expr | None, stop: Expr | None, step: Expr | None = None):
        self.start, self.stop, self.step = start, stop, step

    def flat(self) -> str:
        parts = [self.start, self.stop, *([self.step] if self.step else [])]
        space = " " if any(isinstance(p, Binary) for p in parts) else ""  # as the community's formatters do
        between = f"{space}:{space}"
        return between.join(p.flat() if p else "" for p in parts).strip(" ")


def along(expr: Expr, steps: Sequence[Step]) -> Expr:
    """The part of `expr` at the end of these steps."""
    for kind, text, siblings in steps:
        expr = Subscript(expr, Text(text), siblings) if kind == "item" else Attribute(expr, text)
    return expr


class Leaf(Expr):
    """`root[...].x`: a part of a pytree."""

    __slots__ = ("root", "steps")

    def __init__(self, root: Name, steps: tuple[Step, ...]):
        self.root = root
        self.steps = steps

    def prefix(self, count: int) -> Expr:
        """The way to the sub-tree after the first `count` steps."""
        steps = list(self.steps[:count])
        for i, (kind, text, siblings) in enumerate(steps):
            if text == str(siblings - 1) and self.steps[:i] in self.root.symbol.but_last:
                steps[i] = kind, "-1", siblings
        return along(self.root, steps)

    def flat(self) -> str:
        return self.prefix(len(self.steps)).flat()


class Lambda(Expr):
    __slots__ = ("params", "body")
    strength = LAMBDA

    def __init__(self, params: Sequence[str], body: Expr):
        self.params = params
        self.body = body

    def flat(self) -> str:
        head = "lambda " + ", ".join(self.params) if self.params else "lambda"
        return f"{head}: {self.body.flat()}"


class Comprehension(Expr):
    """`[body for target in iterable]`, or `sum(body for target in iterable)`, by what it begins and ends with; of a dict,
    `key` is the variable for its keys. What the target binds stands in the body as Text: it is no variable of the function."""

    __slots__ = ("opening", "body", "target", "iterable", "closing", "key")

    def __init__(self, opening: str, body: Expr, target: str, iterable: Expr, closing: str, key: str = ""):
        self.opening, self.body, self.target, self.iterable, self.closing = opening, body, target, iterable, closing
        self.key = key

    def flat(self) -> str:
        return f"{self.opening}{self.head}{self.body.flat()} for {self.target} in {self.iterable.flat()}{self.closing}"

    @property
    def head(self) -> str:
        """What stands before the body."""
        return f"{self.key}: " if self.key else ""


class Ternary(Expr):
    """`then if test else otherwise`."""

    __slots__ = ("then", "test", "otherwise")
    strength = TERNARY

    def __init__(self, then: Expr, test: Expr, otherwise: Expr):
        self.then, self.test, self.otherwise = then, test, otherwise

    def flat(self) -> str:
        return f"{wrap(self.then, TERNARY + 1)} if {wrap(self.test, TERNARY + 1)} else {self.otherwise.flat()}"


class Unary(Expr):
    __slots__ = ("op", "value")
    strength = UNARY

    def __init__(self, op: str, value: Expr):
        self.op = op
        self.value = value

    def flat(self) -> str:
        return self.op + wrap(self.value, UNARY)


class Binary(Expr):
    __slots__ = ("left", "op", "right", "strength")

    def __init__(self, left: Expr, op: str, right: Expr):
        self.left, self.op, self.right = left, op, right
        self.strength = BINARY_STRENGTH[op]

    def flat(self) -> str:
        s = self.strength
        tight = s == POWER or s == COMPARE  # ** binds rightwards; comparisons would chain
        left = wrap(self.left, s + 1 if tight else s)
        right = wrap(self.right, s if s == POWER else s + 1)
        if s == POWER and _is_simple(self.left) and _is_simple(self.right) and right[0] != "(":
            return f"{left}**{right}"  # as the community's formatters write it
        return f"{left} {self.op} {right}"


def _is_simple(expr: Expr) -> bool:
    """A name, a number or an attribute of a name, with or without a sign."""
    if type(expr) is Unary:
        expr = expr.value
    while type(expr) is Attribute:
        expr = expr.value
    return type(expr) is Name or (type(expr) is Text and "(" not in expr.text)


def wrap(expr: Expr, least: int) -> str:
    """Text of `expr`, bracketed where it binds more weakly than `least`."""
    text = expr.flat()
    return text if expr.strength >= least else f"({text})"


def lines_of(
    prefix: str, expr: Expr, suffix: str, indent: str, width: int = WIDTH, bracketed: bool = False
) -> Iterator[str]:
    """Lines of `prefix + expr + suffix`, each starting with `indent`.

    `bracketed`: the expression stands inside brackets already, so that it may be broken without some of its own.
    """
    line = f"{indent}{prefix}{expr.flat()}{suffix}"
    if len(line) > width and type(expr) is Binary:
        yield from _operation_lines(prefix, expr, suffix, indent, width, bracketed)
        return
    if len(line) > width and type(expr) is Comprehension:
        yield f"{indent}{prefix}{expr.opening}"
        yield from lines_of(expr.head, expr.body, "", indent + "    ", width, bracketed=not expr.key)
        yield from lines_of(f"for {expr.target} in ", expr.iterable, "", indent + "    ", width)
        yield f"{indent}{expr.closing}{suffix}"
        return
    broken = expr.items() if len(line) > width else None
    if broken is None or not broken[1]:
        yield line
        return
    opening, pairs, closing = broken
    if type(expr) is Call and type(expr.func) is Call and len(indent) + len(prefix) + len(opening) > width:
        # f(...)(x): the long part is what is called, so that is what gets broken.
        tail = line[len(indent) + len(prefix) + len(expr.func.flat()) :]
        if len(indent) + len(f"){tail}") <= width:
            yield from lines_of(prefix, expr.func, tail, indent, width)
            return
        yield from lines_of(prefix, expr.func, "(", indent, width)  # and what it is given is long as well
    else:
        yield f"{indent}{prefix}{opening}"
    inner = indent + "    "
    width = max(width, WIDTH)
    one_line = inner + ", ".join([f"{p}{e.flat()}" for p, e in pairs])
    # Without a trailing comma a single tuple element would change meaning, so those go one a line.
    if len(one_line) <= width and (type(expr) is not Tuple or len(pairs) > 1):
        yield one_line
    elif len(pairs) > 12 and type(expr) is not Dict and all(type(e) in (Name, Text) for _, e in pairs):
        yield from filled([f"{p}{e.flat()}" for p, e in pairs], inner, width)
    else:
        for p, e in pairs:
            yield from lines_of(p, e, ",", inner, width, bracketed=not p)
    yield f"{indent}{closing}{suffix}"


def _operation_lines(prefix: str, expr: Binary, suffix: str, indent: str, width: int, bracketed: bool) -> Iterator[str]:
    """A chain of operators of one strength, each at the head of a line; or its last call broken, where there is but one."""
    operands: list[tuple[str, Expr, int]] = []
    node: Expr = expr
    strength = expr.strength
    while type(node) is Binary and node.strength == strength and strength not in (POWER, COMPARE):
        operands.append((node.op + " ", node.right, strength + 1))
        node = node.left
    if not operands:
        assert type(node) is Binary
        operands.append((node.op + " ", node.right, strength if strength == POWER else strength + 1))
        node = node.left
        operands.append(("", node, strength + 1))
    else:
        operands.append(("", node, strength))
    operands.reverse()
    last = operands[-1][1]
    head = f"{prefix}{wrap(operands[0][1], operands[0][2])} {operands[-1][0]}"
    broken = last.items() if len(operands) == 2 and last.strength == ATOM else None
    if broken and broken[1]:
        opening = broken[0]
        if len(indent) + len(head) + len(opening) <= width:
            yield from lines_of(head, last, suffix, indent, width)
            return
    inner = indent if bracketed else indent + "    "
    if not bracketed:
        yield f"{indent}{prefix}("
        whole = inner + expr.flat()
        if len(whole) <= width:
            yield whole
            yield f"{indent}){suffix}"
            return
    for place, (op, operand, least) in enumerate(operands):
        end = suffix if bracketed and place == len(operands) - 1 else ""
        start = (prefix if bracketed and not place else "") + op
        if operand.strength >= least:
            yield from lines_of(start, operand, end, inner, width, bracketed=not start)
        else:
            line = f"{inner}{start}({operand.flat()}){end}"
            if len(line) <= width:
                yield line
            else:
                yield f"{inner}{start}("
                yield from lines_of("", operand, "", inner + "    ", width, bracketed=True)
                yield f"{inner}){end}"
    if not bracketed:
        yield f"{indent}){suffix}"


def filled(items: Sequence[str], indent: str, width: int) -> Iterator[str]:
    """Short atoms, as many on a line as fit (a hundred operands one a line help nobody)."""
    line = indent + ", ".join(items)
    if len(line) <= width:
        yield line if len(items) > 1 else line + ","
        return
    if len(items) <= 12:
        yield from (f"{indent}{item}," for item in items)
        return
    line = indent
    for item in items:
        if len(line) + len(item) + 1 > width and line.strip():
            yield line.rstrip()
            line = indent
        line += item + ", "
    yield line.rstrip()
