"""A small language of random JAX programs: a tree of frozen dataclasses that prints as a module.

    Program    a module: constants, the signature and body of `program`, what it returns
    Block      a function: parameters, statements, results
    Statement  one call: `targets = template.format(operands, names of its blocks)`

The printed module *is* the program: it is executed to get the function, saved to be looked at, and
reproduces a failure with nothing but JAX. Names of values are unique in a whole program, so a block
may use any value of the functions around it. `strategies.py` draws programs, `roundtrip.py` checks
them, `shrunk` makes a failing one smaller.
"""

from __future__ import annotations

import itertools
import linecache
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# What every printed program starts with. `fit` makes any value one of the wanted type, linearly and
# in few equations, so that a drawn operand fits wherever it is used.
PRELUDE = '''\
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Pair(NamedTuple):
    left: Any
    right: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Point:
    x: Any
    y: Any
    label: str = dataclasses.field(metadata=dict(static=True), default="here")


def fit(x, shape, dtype):
    """`x` with that dtype and shape, repeated or cut where the sizes differ."""
    x = jnp.asarray(x)
    if x.dtype != dtype and jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = x.real
    x = lax.convert_element_type(x, dtype)
    if x.shape != shape and x.size == np.prod(shape):
        return x.reshape(shape)
    if x.shape != shape and x.size and np.prod(shape):
        return jnp.resize(x, shape)
    return x if x.shape == shape else jnp.zeros(shape, dtype)


def truth(x):
    """A bool scalar: whether any element of `x` is positive."""
    return jnp.any(jnp.real(x) > 0)
'''

# The dtypes of typed PRNG keys and the names of their implementations.
KEY_KINDS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}

_serial = itertools.count()


@dataclass(frozen=True)
class Type:
    """The type of a value; `python` is the text of the Python scalar that an argument is."""

    shape: tuple[int, ...]
    dtype: str
    weak: bool = False
    python: str | None = None

    @property
    def is_key(self) -> bool:
        return self.dtype.startswith("key<")

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def is_float(self) -> bool:
        return not self.is_key and jnp.issubdtype(self.dtype, jnp.floating)

    @property
    def is_integer(self) -> bool:
        return not self.is_key and jnp.issubdtype(self.dtype, jnp.integer)

    def struct(self) -> jax.ShapeDtypeStruct:
        """The same as JAX says it."""
        dtype: Any = self.dtype
        if self.is_key:
            dtype = jax.eval_shape(lambda: jax.random.key(0, impl=KEY_KINDS[self.dtype])).dtype
        return jax.ShapeDtypeStruct(self.shape, dtype, weak_type=self.weak)


def type_of(aval: Any) -> Type:
    """The Type of an array or an abstract value."""
    return Type(tuple(aval.shape), str(aval.dtype), bool(getattr(aval, "weak_type", False)))


@dataclass(frozen=True)
class Var:
    name: str
    type: Type


@dataclass(frozen=True)
class Statement:
    """`targets = template`: `{0}` is an operand's name, `{f0}` the name of a block printed before.

    With `leaves` the expression is a pytree and the targets are its leaves. With `defines` there
    are no targets: the template is lines that wrap the blocks.
    """

    template: str
    operands: tuple[str, ...] = ()
    targets: tuple[Var, ...] = ()
    blocks: tuple[Block, ...] = ()
    leaves: bool = False
    defines: bool = False

    def lines(self) -> list[str]:
        """The statement as Python lines, its blocks first."""
        out = [line for block in self.blocks for line in block.lines()]
        names = {f"f{i}": block.name for i, block in enumerate(self.blocks)}
        text = self.template.format(*self.operands, **names)
        if self.defines:
            return out + text.split("\n")
        if self.leaves:
            text = f"jax.tree_util.tree_leaves({text})"
        left = ", ".join(v.name for v in self.targets)
        if self.leaves and len(self.targets) == 1:
            left += ","
        return [*out, f"{left} = {text}"]

    def used(self) -> set[str]:
        """The names from outside that it needs."""
        return set(self.operands).union(*(block.free() for block in self.blocks))

    def bound(self) -> set[str]:
        """The names that it binds for the statements after it."""
        return {v.name for v in self.targets} | {block.name for block in self.blocks}


@dataclass(frozen=True)
class Block:
    name: str
    params: tuple[str, ...]
    statements: tuple[Statement, ...]
    results: str
    operands: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The function as Python lines."""
        body = [line for s in self.statements for line in s.lines()]
        body.append(f"return {self.results.format(*self.operands)}")
        return [f"def {self.name}({', '.join(self.params)}):", *("    " + line for line in body)]

    def free(self) -> set[str]:
        """The names that it takes from the functions around it."""
        names = set(self.operands).union(*(s.used() for s in self.statements))
        return names.difference(self.params, *(s.bound() for s in self.statements))


@dataclass(frozen=True)
class Param:
    """A parameter of the program: a pytree written as `build`, whose leaves are read by `paths`."""

    name: str
    build: str
    leaves: tuple[Var, ...]
    paths: tuple[str, ...]
    keyword: bool = False


@dataclass(frozen=True)
class Program:
    constants: tuple[Statement, ...]
    params: tuple[Param, ...]
    statements: tuple[Statement, ...]
    results: str
    operands: tuple[str, ...]
    seed: int = 0

    def source(self) -> str:
        """The module that holds the function `program`."""
        lines = [PRELUDE, ""]
        lines += [line for s in self.constants for line in s.lines()]
        names = [p.name for p in self.params if not p.keyword]
        keywords = [p.name for p in self.params if p.keyword]
        signature = ", ".join(names + (["*", *keywords] if keywords else []))
        unpack = [
            Statement(path, (), (leaf,))
            for p in self.params
            for leaf, path in zip(p.leaves, p.paths, strict=True)
            if leaf.name != path
        ]
        body = [line for s in (*unpack, *self.statements) for line in s.lines()]
        body.append(f"return {self.results.format(*self.operands)}")
        lines += ["", "", f"def program({signature}):", *("    " + line for line in body)]
        return "\n".join(lines) + "\n"

    def module(self) -> types.ModuleType:
        """The printed module, executed; importable by name, its lines known to tracebacks."""
        return execute(self.source(), f"random_program_{next(_serial)}")

    def arguments(self, module: types.ModuleType, salt: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """`(args, kwargs)`: random values, edge values among them, of the seed and `salt`."""
        rng = np.random.default_rng([self.seed, salt])
        args, kwargs = [], {}
        for param in self.params:
            values = {leaf.name: sample(leaf.type, rng) for leaf in param.leaves}
            text = param.build.format(*(leaf.name for leaf in param.leaves))
            value = eval(text, {**vars(module), **values})
            if param.keyword:
                kwargs[param.name] = value
            else:
                args.append(value)
        return args, kwargs

    def size(self) -> int:
        """The number of statements, nested ones too."""
        return _count((*self.constants, *self.statements)) + len(self.params)


def _count(statements: tuple[Statement, ...]) -> int:
    return sum(1 + sum(_count(b.statements) for b in s.blocks) for s in statements)


def execute(source: str, name: str) -> types.ModuleType:
    """A module made of text, known to `sys.modules` and `linecache` until `forget`."""
    module = types.ModuleType(name)
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    sys.modules[name] = module
    exec(compile(source, filename, "exec"), vars(module))
    return module


def forget(module: types.ModuleType) -> None:
    """Undoes `execute`, so that a long run does not grow."""
    sys.modules.pop(module.__name__, None)
    linecache.cache.pop(f"<{module.__name__}>", None)


EDGES = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-40, 3e38, 2.0]


def sample(type_: Type, rng: np.random.Generator) -> Any:
    """A random value: mostly small numbers, every eighth an edge value; a jax.Array or a scalar."""
    if type_.python is not None:
        return eval(type_.python)
    if type_.is_key:
        seeds = jnp.asarray(rng.integers(0, 1 << 30, type_.shape or (1,)), jnp.uint32)
        keys = jax.vmap(lambda s: jax.random.key(s, impl=KEY_KINDS[type_.dtype]))(seeds.ravel())
        return keys.reshape(type_.shape)
    dtype = jnp.dtype(type_.dtype)
    numbers = np.asarray(rng.normal(size=type_.shape) * 2.0)
    edge = np.asarray(rng.random(type_.shape) < 0.12)
    with np.errstate(all="ignore"):
        if type_.is_float or dtype.kind == "c":
            numbers = np.where(edge, rng.choice(EDGES, type_.shape), numbers)
            if dtype.kind == "c":
                numbers = numbers + 1j * rng.normal(size=type_.shape)
        elif dtype.kind == "b":
            numbers = numbers > 0
        else:
            info = jnp.iinfo(dtype)
            numbers = np.where(edge, rng.choice([info.min, info.max], type_.shape), numbers * 3)
            numbers = np.clip(np.trunc(numbers), float(info.min), float(info.max))
            if dtype.itemsize == 8:  # the largest float64 integer below the end of the range
                numbers = np.clip(numbers, -(2.0**62), 2.0**62)
                numbers = np.abs(numbers) if info.min == 0 else numbers
        return jnp.asarray(numbers.astype(dtype))


# ---------------------------------------------------------------- making a failing program smaller


def without_dead(program: Program) -> Program:
    """The program without statements, constants and leaves that no result needs."""

    def live(statements: tuple[Statement, ...], needed: set[str]) -> tuple[Statement, ...]:
        kept = []
        for s in reversed(statements):
            if s.bound() & needed:
                blocks = tuple(replace(b, statements=live(b.statements, set(b.operands))) for b in s.blocks)
                s = replace(s, blocks=blocks)
                needed |= s.used()
                kept.append(s)
        return tuple(reversed(kept))

    needed = set(program.operands)
    statements = live(program.statements, needed)
    constants = live(program.constants, needed)
    params = tuple(p for p in program.params if any(leaf.name in needed for leaf in p.leaves))
    return replace(program, statements=statements, constants=constants, params=params)


def _smaller_statements(statements: tuple[Statement, ...], needed: set[str]) -> Iterator[tuple[Statement, ...]]:
    """Every list without one unused statement, with one as zeros, or with one smaller block.

    `needed` are the names that are used after the statements.
    """
    for i in reversed(range(len(statements))):
        s = statements[i]
        later = needed.union(*(t.used() for t in statements[i + 1 :]))
        rest = (statements[:i], statements[i + 1 :])
        if not s.bound() & later:
            yield (*rest[0], *rest[1])
        zeros = tuple(
            Statement(f"jnp.zeros({v.type.shape}, {v.type.dtype!r})", (), (v,)) for v in s.targets if not v.type.is_key
        )
        if zeros and len(zeros) == len(s.targets) and not s.template.startswith("jnp.zeros"):
            yield (*rest[0], *zeros, *rest[1])
        for j, block in enumerate(s.blocks):
            for inner in _smaller_statements(block.statements, set(block.operands)):
                blocks = (*s.blocks[:j], replace(block, statements=inner), *s.blocks[j + 1 :])
                yield (*rest[0], replace(s, blocks=blocks), *rest[1])


def _smaller(program: Program) -> Iterator[Program]:
    """Programs that are one step smaller, the largest steps first."""
    if len(program.operands) > 1 or program.results != "{0}":
        for name in program.operands:
            yield replace(program, results="{0}", operands=(name,))
    for statements in _smaller_statements(program.statements, set(program.operands)):
        yield replace(program, statements=statements)
    used = set(program.operands).union(*(s.used() for s in program.statements))
    for i, constant in enumerate(program.constants):
        if not constant.bound() & used:
            yield replace(program, constants=(*program.constants[:i], *program.constants[i + 1 :]))
    for i, param in enumerate(program.params):
        if not used.intersection(leaf.name for leaf in param.leaves):
            yield replace(program, params=(*program.params[:i], *program.params[i + 1 :]))
        leaf = param.leaves[0] if len(param.leaves) == 1 else None
        if leaf and (param.keyword or param.build != "{0}"):
            plain = Param(leaf.name, "{0}", (leaf,), (leaf.name,))
            yield replace(program, params=(*program.params[:i], plain, *program.params[i + 1 :]))


def shrunk(program: Program, fails: Callable[[Program], bool], steps: int = 400) -> Program:
    """A smaller program that still `fails`, found greedily in at most `steps` trials."""
    best = without_dead(program)
    dead_matters = not fails(best)
    if dead_matters:
        best = program
    progress = True
    while progress and steps > 0:
        progress = False
        for candidate in _smaller(best):
            if not dead_matters:
                candidate = without_dead(candidate)
            if candidate == best:
                continue
            steps -= 1
            if fails(candidate):
                best, progress = candidate, True
                break
            if steps <= 0:
                break
    return best
