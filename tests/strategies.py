"""Hypothesis strategies that draw random well-typed JAX programs (`random_programs.Program`).

A `Writer` draws one statement after another. Each is traced once, abstractly, with the values it
uses: that gives the types of its results, and a statement that JAX refuses is left out. So nearly
no example is rejected, and no shape rule is written here twice. The families of statements stand in
`operations.py` (flat ones) and `nested_operations.py` (those with blocks).
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import random_programs as rp
from hypothesis import strategies as st
from random_programs import Block, Param, Program, Statement, Type, Var

DTYPES = ["float32", "float32", "int32", "bool", "bfloat16", "float16", "uint8", "int8"]
DTYPES += ["complex64", "float32", "int16", "uint32"]
ODD_DTYPES = ["float8_e4m3fn", "float8_e5m2", "int4", "uint4"]
WIDE_DTYPES = ["float64", "int64", "float64", "int64", "uint64", "complex128"]
SHAPES = [(), (3,), (2, 3), (4,), (1,), (2, 2), (3, 1), (0,), (2, 3, 2), (1, 4), (2, 0), (5,)]
KEYS = ["key<fry>", "key<fry>", "key<fry>", "key<rbg>"]

# Names that programs give their functions: some are data of the worst kind.
NAMES = ["f", "step", "loss", "lambda", "list", "jnp", "jax", "lax", "np", "class", "größe", "a b"]
NAMES += [
    '"""\nimport os',
    "x\ny",
    "",
    "__init__",
    "print",
    "f'{x}'",
    "\\",
    "2fast",
    "None",
    "main",
]

# Kinds of values that `Writer.pick` looks for.
FLOAT = "float"
INTEGER = "integer"
BOOL = "bool"
COMPLEX = "complex"
NUMBER = "number"
KEY = "key"


def is_kind(type_: Type, kind: str) -> bool:
    """Whether a value of that type is of the kind."""
    match kind:
        case "float":
            return type_.is_float
        case "integer":
            return type_.is_integer
        case "bool":
            return type_.dtype == "bool"
        case "complex":
            return type_.dtype.startswith("complex")
        case "key":
            return type_.is_key
        case _:
            return not type_.is_key


class Writer:
    """Draws the statements of one function; `parent` is the Writer of the function around it.

    Families call `choose`, `integer`, `chance` for decisions, `pick`, `any_value` for operands and
    `block` for nested functions, and return a Statement without targets (or None).
    """

    def __init__(
        self,
        below: Callable[[int], int],
        parent: Writer | None = None,
        wide: bool = False,
        closed: bool = False,
    ):
        self.below = below
        self.parent = parent
        self.closed = closed
        self.wide = parent.wide if parent else wide
        self.depth: int = parent.depth + 1 if parent else 0
        self.values: list[Var] = []
        self.statements: list[Statement] = []
        # Functions that were defined: name -> (defining statement, operand types).
        self.functions: dict[str, tuple[Statement, tuple[Type, ...]]] = {}
        self.counter: list[int] = parent.counter if parent else [0]
        self.refused: list[tuple[str, str]] = parent.refused if parent else []

    # ------------------------------------------------------------ decisions

    def integer(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def choose(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]

    def chance(self, one_in: int) -> bool:
        return self.below(one_in) == one_in - 1

    def fresh(self, prefix: str = "v") -> str:
        """A name that no other value or function of the program has."""
        self.counter[0] += 1
        return f"{prefix}{self.counter[0]}"

    # ------------------------------------------------------------ operands

    def visible(self) -> list[Var]:
        """The values in scope, the newest first, those of functions around after the own ones."""
        outer = self.parent.visible() if self.parent and not self.closed else []
        return self.values[::-1] + outer

    def pick(self, kind: str = NUMBER, where: Callable[[Type], bool] | None = None) -> Var | None:
        """A value in scope of that kind, or None."""
        found = [v for v in self.visible() if is_kind(v.type, kind) and (not where or where(v.type))]
        return self.choose(found) if found else None

    def value(self, kind: str = NUMBER, min_rank: int = 0) -> Var:
        """A value in scope of that kind and rank; made of another one where there is none."""
        found = self.pick(kind, lambda t: len(t.shape) >= min_rank)
        if found is not None and not (kind == NUMBER and self.chance(12)):
            return found
        dtype = {"integer": "int32", "bool": "bool", "complex": "complex64"}.get(kind, "float32")
        if kind == NUMBER:
            dtype = self.dtype()
        shape = self.choose([s for s in SHAPES if len(s) >= min_rank])
        return self.made(Type(shape, dtype))

    def made(self, type_: Type) -> Var:
        """A value of exactly that type: one in scope, else one that is fitted to it."""
        same = self.pick(KEY if type_.is_key else NUMBER, lambda t: t == type_)
        if same is not None:
            return same
        if type_.is_key:
            if type_.dtype != "key<fry>":
                raise Unfit
            source = f"jax.random.key({self.integer(0, 99)})"
            if type_.shape:
                source = f"jax.random.split({source}, {type_.shape})"
            return self.require(Statement(source))
        base = self.pick()
        if base is None:
            return self.require(Statement(f"jnp.full({type_.shape}, 1.5, {type_.dtype!r})"))
        return self.require(Statement(f"fit({{0}}, {type_.shape}, {type_.dtype!r})", (base.name,)))

    def require(self, statement: Statement) -> Var:
        """The value of a helper statement that every function may use."""
        added = self.add(statement)
        if not added:
            raise Unfit
        return added[0]

    def dtype(self) -> str:
        """Any dtype, odd ones seldom."""
        if self.wide and self.chance(2):
            return self.choose(WIDE_DTYPES)
        return self.choose(ODD_DTYPES if self.chance(12) else DTYPES)

    def shape(self) -> tuple[int, ...]:
        return self.choose(SHAPES)

    # ------------------------------------------------------------ statements

    def definition(self, name: str) -> Statement | None:
        """The statement that defines a function in scope."""
        if name in self.functions:
            return self.functions[name][0]
        return self.parent.definition(name) if self.parent else None

    def defined(self) -> list[tuple[str, tuple[Type, ...]]]:
        """The functions in scope and their operand types."""
        outer = self.parent.defined() if self.parent and not self.closed else []
        return [(name, types) for name, (_, types) in self.functions.items()] + outer

    def needed(self, statement: Statement, done: dict[str, Statement]) -> set[str]:
        """The values that a statement uses, also through functions, which are put in `done`."""
        values = set()
        for name in sorted(statement.used()):
            definition = self.definition(name)
            if definition is None:
                values.add(name)
            elif name not in done:
                values |= self.needed(definition, done)
                done[name] = definition
        return values

    def probe(self, statement: Statement) -> Any:
        """What the statement returns, as a pytree of ShapeDtypeStructs; raises what JAX raises."""
        definitions: dict[str, Statement] = {}
        types = {v.name: v.type for v in self.visible()}
        names = sorted(self.needed(statement, definitions))
        lines = [line for d in definitions.values() for line in d.lines()]
        target = (Var("probed", Type((), "bool")),) if not statement.defines else ()
        lines += replace(statement, targets=target).lines()
        lines.append("return probed" if target else "return ()")
        text = f"def probe({', '.join(names)}):\n" + "\n".join("    " + s for s in lines)
        scope = dict(_prelude())
        exec(text, scope)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return jax.eval_shape(scope["probe"], *(types[n].struct() for n in names))

    def add(self, statement: Statement) -> tuple[Var, ...]:
        """Appends a statement with fresh targets; () and nothing appended where JAX refuses it."""
        try:
            out = self.probe(statement)
        except Exception as error:  # JAX's errors have many types: any of them drops the statement
            message = " ".join(str(error).split())[:160]
            self.refused.append((statement.template, f"{type(error).__name__}: {message}"))
            return ()
        leaves = jax.tree_util.tree_leaves(out)
        if any(rp.type_of(leaf).size > 4096 for leaf in leaves):
            return ()
        targets = tuple(Var(self.fresh(), rp.type_of(leaf)) for leaf in leaves)
        if not targets or any(t.type.dtype == "float0" for t in targets):
            return ()
        single = not isinstance(out, (tuple, list, dict)) and out is not None
        self.statements.append(replace(statement, targets=targets, leaves=not single))
        self.values.extend(targets)
        return targets

    def define(self, statement: Statement, name: str, types: tuple[Type, ...]) -> None:
        """Appends lines that define the function `name`."""
        self.statements.append(statement)
        self.functions[name] = (statement, types)

    def write(self, count: int) -> None:
        """Draws up to `count` statements of any family."""
        from operations import FAMILIES

        for _ in range(count):
            family = self.choose(FAMILIES)
            if self.depth >= 2 and family.__module__ == "nested_operations":
                family = FAMILIES[0]
            try:
                statement = family(self)
            except Unfit:
                continue
            if statement is not None:
                self.add(statement)

    # ------------------------------------------------------------ blocks

    def block(
        self,
        types: Sequence[Type],
        results: Sequence[Type] | None = None,
        closed: bool = False,
        name: str | None = None,
    ) -> Block:
        """A nested function of parameters with these types, returning a tuple.

        `results` are the types it must return (else any one to three values). A closed one uses no
        value of the functions around it.
        """
        inner = Writer(self.below, self, closed=closed)
        params = tuple(Var(inner.fresh("p"), Type(t.shape, t.dtype, t.weak)) for t in types)
        inner.values.extend(params)
        inner.write(self.integer(0, 3 if self.depth else 4))
        if results is None:
            out = [inner.value() for _ in range(self.integer(1, 3))]
        else:
            out = [inner.made(t) for t in results]
        operands = tuple(v.name for v in out)
        text = "(" + "".join(f"{{{i}}}, " for i in range(len(out))) + ")"
        return Block(
            name or self.fresh("f"),
            tuple(v.name for v in params),
            tuple(inner.statements),
            text,
            operands,
        )


class Unfit(Exception):
    """A family that cannot be used here."""


_PRELUDE: dict[str, Any] = {}


def _prelude() -> dict[str, Any]:
    if not _PRELUDE:
        _PRELUDE.update(vars(rp.execute(rp.PRELUDE, "random_program_prelude")))
    return _PRELUDE


# ---------------------------------------------------------------- parameters and results

SCALARS = {"1.5": "float32", "3": "int32", "True": "bool", "-0.0": "float32", "1j": "complex64"}
SCALARS |= {"float('nan')": "float32", "-7": "int32"}
TREES = [
    ("{0}", ("",)),
    ("{0}", ("",)),
    ("{0}", ("",)),
    ("({0}, {1})", ("[0]", "[1]")),
    ("{{'w': {0}, 'b': {1}}}", ("['w']", "['b']")),
    ("[{0}, None, ({1},)]", ("[0]", "[2][0]")),
    ("Pair({0}, {{'a b': {1}}})", (".left", ".right['a b']")),
    ("Point({0}, {1}, 'there')", (".x", ".y")),
    ("{{'z': {{'a': ({0}, ())}}, 'lambda': {1}}}", ("['z']['a'][0]", "['lambda']")),
    ("{{3: {0}, 1: {1}}}", ("[3]", "[1]")),
]
RESULTS = [
    "{0}",
    "({0},)",
    "({0}, {1})",
    "{{'loss': {0}, 'aux': ({1}, None)}}",
    "Pair({0}, [{1}, {2}])",
    "Point({0}, Pair({1}, {1}))",
    "[{0}, {{}}, ({1}, {2}, {0})]",
]
PARAM_NAMES = ["x", "y", "jnp", "lax", "jax", "print", "list", "np", "f", "_", "größe", "x_1"]


def _draw_param(writer: Writer, name: str, keyword: bool) -> Param:
    build, paths = writer.choose(TREES)
    leaves = []
    for path in paths:
        # A parameter keeps its name only where the body does not need that name for something else.
        bare = path == "" and name.startswith("arg")
        variable = name if bare else writer.fresh("a")
        if writer.chance(8) and not (len(paths) > 1 and "'" not in build):
            text = writer.choose(list(SCALARS))
            dtype = SCALARS[text]
            if writer.wide:
                dtype = {"float32": "float64", "int32": "int64", "complex64": "complex128"}.get(dtype, dtype)
            type_ = Type((), dtype, dtype != "bool", text)
        elif writer.chance(10):
            type_ = Type(writer.choose([(), (), (2,)]), writer.choose(KEYS))
        else:
            type_ = Type(writer.shape(), writer.dtype())
        leaves.append(Var(variable, type_))
    writer.values.extend(leaves)
    return Param(name, build, tuple(leaves), tuple(name + path for path in paths), keyword)


def _draw_constants(writer: Writer) -> tuple[Statement, ...]:
    """Arrays that the program closes over: small, large, the same one twice, equal ones."""
    # JAX arrays: a program that indexes or combines NumPy ones runs NumPy instead of JAX.
    texts = [
        "jnp.array([1.0, -0.0, float('nan'), float('inf'), 1e-40], 'float32')",
        "jnp.arange(12, dtype='int32').reshape(3, 4)",
        "jnp.asarray(np.linspace(-1, 1, 6, dtype='float32').reshape(2, 3))",
        "jnp.asarray(np.random.default_rng(3).normal(size=(20, 25)).astype('float32'))",
        "jnp.eye(3, dtype='bfloat16')",
        "jnp.asarray(np.full((2, 3), 7, 'int8'))",
        "jnp.asarray(np.array(2.5, 'float16'))",
        "jnp.asarray(np.array([[True, False, True]]))",
        "jnp.asarray(np.zeros((0, 2), 'float32'))",
        "jnp.array([1 + 2j, float('inf') - 0j], 'complex64')",
        "jnp.asarray(np.random.default_rng(3).normal(size=(20, 25)).astype('float32'))",
        "jnp.array([1, 2, 3], 'float8_e4m3fn')",
    ]
    for _ in range(writer.choose([0, 0, 1, 2, 3])):
        writer.add(Statement(writer.choose(texts)))
    constants, writer.statements = tuple(writer.statements), []
    return constants


def _draw_results(writer: Writer) -> tuple[str, tuple[str, ...]]:
    """The returned expression: a pytree of the newest values, or every value that is not used."""
    visible = writer.visible()
    used = set().union(*(s.used() for s in writer.statements))
    unused = [v.name for v in visible if v.name not in used]
    if unused and writer.chance(2):
        return "[" + "".join(f"{{{i}}}, " for i in range(len(unused))) + "]", tuple(unused)
    results = writer.choose(RESULTS)
    count = 1 + max(int(n) for n in re.findall(r"\{(\d)\}", results))
    return results, tuple(writer.choose(visible[: 6 if i else 3]).name for i in range(count))


def written_program(below: Callable[[int], int], size: int = 10, wide: bool = False) -> Program:
    """A random program of up to `size` statements at the top; `wide` needs 64-bit mode.

    `below(n)` makes each decision: an integer of 0 ... n - 1.
    """
    writer = Writer(below, wide=wide)
    constants = _draw_constants(writer)
    params = []
    hostile = writer.chance(6)
    for i in range(writer.integer(1, 3)):
        keyword = bool(i) and (params[-1].keyword or writer.chance(4))
        name = f"arg{i}"
        if hostile:
            taken = {p.name for p in params}
            name = writer.choose([n for n in PARAM_NAMES if not {n, f"{n}_"} & taken])
            if name in ("jnp", "jax", "lax", "np"):  # the body needs these names itself
                name = f"{name}_"
        params.append(_draw_param(writer, name, keyword))
    writer.write(writer.integer(1, size))
    results, operands = _draw_results(writer)
    seed = writer.integer(0, 1 << 16)
    return Program(constants, tuple(params), tuple(writer.statements), results, operands, seed)


def seeded_program(seed: str, size: int = 10, wide: bool = False) -> Program:
    """The program of a seed: every example of a long run can be had again by itself."""
    return written_program(random.Random(seed).randrange, size, wide)


@st.composite
def programs(draw: st.DrawFn, size: int = 10, wide: bool = False) -> Program:
    """Random programs for hypothesis; see `written_program`."""
    # Drawn from a wide range and reduced: hypothesis prefers the ends of small ranges so much that
    # most families would be rare. Zero is still the simplest.
    wide_range = st.integers(0, (1 << 16) - 1)
    return written_program(lambda n: draw(wide_range) % n, size, wide)
