"""The signature of the written function: the original's parameter names, kinds and defaults.

What the trace fixed stays fixed, and says so: a static argument, a default that was not
overridden, an argument that was None. The parameter is kept, and another value for it raises a
ValueError instead of being ignored.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from untrace import jax_compat
from untrace.ir.types import PyTree
from untrace.module.interface.checks import DoubleStar, Refuse, RefuseOthers
from untrace.python import helpers
from untrace.python.pytrees import Path, TreeCalls, is_plain_identifier, leaf_paths, string, suggest_names, unpack
from untrace.python.statements import Def, Lines, Parameter, Return, Statement
from untrace.python.tree import ATOM, UNARY, Binary, Call, Expr, List, Name, Star, Subscript, Text
from untrace.python.values import Unwritable, Values


@dataclass(frozen=True, slots=True)
class Argument:
    """A traced argument: the expression that gives it, an example of it, its name in words."""

    root: Expr
    example: PyTree
    path: Path


@dataclass(frozen=True, slots=True)
class Signature:
    """How the written function is called.

    `parameters` are those of the function that holds the program. `arguments` are the traced
    ones, in the order in which JAX flattens `(args, kwargs)` without the static ones. `checks`
    refuse what the trace did not cover; they come first in the body. `notes` are sentences for
    the proof. Where a parameter's own name cannot be used inside (`jnp`, `float`), `public` has
    the original parameters, and `forwarder` writes the function that takes them. `annotations` are
    the author's, by the names of `parameters`; that of the result is "return".
    """

    parameters: tuple[Parameter, ...]
    arguments: tuple[Argument, ...]
    checks: tuple[Statement, ...] = ()
    notes: tuple[str, ...] = ()
    modules: frozenset[str] = frozenset()
    public: tuple[Parameter, ...] = ()
    annotations: Mapping[str, object] = field(default_factory=dict)

    def forwarder(self, name: str, inner: str) -> Def | None:
        """`def name(<original parameters>): return inner(...)`, or None where it is not needed."""
        if not self.public:
            return None
        args: list[Expr] = []
        kwargs: list[tuple[str, Expr]] = []
        for outer, own in zip(self.public, self.parameters, strict=True):
            if outer.kind == "keyword":
                kwargs.append((own.name, Name(outer.name)))
            else:
                star = {"*": Star, "**": DoubleStar}.get(outer.kind, _same)
                args.append(star(Name(outer.name)))
        return Def(name, self.public, [Return(Call(inner, args, kwargs))])


def _same(expr: Expr) -> Expr:
    return expr


# ---------------------------------------------------------------- static arguments


def static_arguments(
    fn: Callable[..., object],
    args: Sequence[object],
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
) -> tuple[frozenset[int], frozenset[str]]:
    """(positions, names) of static arguments as `jax.jit` reads its two options.

    A parameter that is static by position is static by name as well, and the other way round, as
    far as `fn` has a signature; negative positions count from the last argument. Source:
    `jax.jit`, static_argnums. What `fn` itself was jitted with counts as well.
    """
    own_numbers, own_names = jax_compat.static_of_jitted(fn)
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums or ())
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames or ())
    numbers, names = (*numbers, *own_numbers), (*names, *own_names)
    parameters = _parameters(fn)
    plain = [
        p.name if p.kind is p.POSITIONAL_OR_KEYWORD else None
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    positions = {n + len(args) if n < 0 else n for n in numbers}
    all_names = set(names) | {name for n in positions if n < len(plain) and (name := plain[n])}
    positions |= {i for i, name in enumerate(plain) if name in all_names}
    return frozenset(n for n in positions if n < len(args)), frozenset(all_names)


def _parameters(fn: Callable[..., object]) -> list[inspect.Parameter]:
    """The parameters of `fn`; [] where Python cannot tell (builtins, a broken signature)."""
    try:
        return list(inspect.signature(fn).parameters.values())
    except Exception:  # `__signature__` may be anything
        return []


def _given_before(fn: object) -> set[str]:
    """The names of keyword arguments that `functools.partial` has given, below JAX's transformations too."""
    found: set[str] = set()
    while fn is not None:
        if isinstance(fn, functools.partial):
            found.update(fn.keywords)
            fn = fn.func
        else:
            fn = getattr(fn, "__wrapped__", None)
    return found


# ---------------------------------------------------------------- the signature


def signature_parameters(
    fn: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    static_argnums: Container[int] = (),
    static_argnames: Container[str] = (),
    avoid: Container[str] = frozenset(),
) -> Signature:
    """The signature for `fn`, traced with `fn(*args, **kwargs)`.

    `args` and `kwargs` hold example pytrees, static arguments among them at `static_argnums`
    (positions in `args`) and `static_argnames` (see `static_arguments`). `avoid`: names that the
    body needs for something else. Functions without a signature that fits the call get parameters
    `x0, x1, ...`.
    """
    before = _given_before(fn) - kwargs.keys()
    parameters = [p for p in _parameters(fn) if p.name not in before]
    names = [p.name for p in parameters]
    fits = all(map(is_plain_identifier, names)) and bool(parameters)
    if fits:
        try:
            inspect.Signature(parameters).bind(*args, **kwargs)
        except (TypeError, ValueError):
            fits = False
    if not fits:
        parameters = _made_up(args, kwargs)
    reader = _Reader(parameters, args, kwargs, static_argnums, static_argnames, avoid)
    reader.annotations = _annotations(fn)
    return reader.read()


def _annotations(fn: Callable[..., object]) -> dict[str, object]:
    """The annotations of `fn` by parameter, and of its result as "return"; {} where Python cannot tell."""
    try:
        signature = inspect.signature(fn, eval_str=True)
    except Exception:  # an annotation that is text may fail in any way
        return {}
    found = {p.name: p.annotation for p in signature.parameters.values() if p.annotation is not p.empty}
    if signature.return_annotation is not signature.empty:
        found["return"] = signature.return_annotation
    return found


def _made_up(args: Sequence[object], kwargs: Mapping[str, object]) -> list[inspect.Parameter]:
    kind = inspect.Parameter
    made = [kind(f"x{i}", kind.POSITIONAL_OR_KEYWORD) for i in range(len(args))]
    if any(not is_plain_identifier(k) for k in kwargs) or {p.name for p in made} & set(kwargs):
        if kwargs:  # a name that is no identifier can still be passed with `**`
            made = [p.replace(kind=kind.POSITIONAL_ONLY) for p in made]
            return [*made, kind("options", kind.VAR_KEYWORD)]
    return made + [kind(name, kind.KEYWORD_ONLY) for name in sorted(kwargs)]


# What a body may refer to: what public paths begin with, other modules that rules spell, and the builtins in literals and
# checks. `_` is what it calls a result that nobody uses.
BODY_NAMES = jax_compat.IMPORTS.keys() | frozenset(
    "_ collections dataclasses functools io math operator os primitives sys typing zipfile bool bytes complex dict float "
    "frozenset int len list print set slice sorted str tuple type TypeError ValueError".split()
)


def _is_needed_inside(name: str) -> bool:
    try:
        helpers.needs(name)
    except KeyError:
        return name in BODY_NAMES
    return True  # one of our helpers, which the body may call


_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "plain",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_KEYWORD: "**",
}


# As many arguments that cannot change are checked in a loop.
_MOST_APART = 3


class Setting(Text):
    """The number that a parameter has, and no other: in the module's word for it, where the program is written with one."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: float, text: str):
        super().__init__(text, UNARY if text.startswith("-") else ATOM)
        self.name, self.value = name, value


class _Reader:
    """Goes through the parameters once, in order."""

    def __init__(
        self,
        parameters: Sequence[inspect.Parameter],
        args: Sequence[object],
        kwargs: Mapping[str, object],
        static_argnums: Container[int],
        static_argnames: Container[str],
        avoid: Container[str],
    ):
        self.given, self.args, self.kwargs = parameters, args, dict(kwargs)
        self.static_argnums, self.static_argnames, self.avoid = (
            static_argnums,
            static_argnames,
            avoid,
        )
        self.modules: set[str] = set()
        self.values = Values(self.modules)
        self.parameters: list[Parameter] = []
        self.checks: list[Statement] = []
        self.same: list[
            tuple[str, Expr, Expr, Refuse]
        ] = []  # arguments that must be as they were, and the check of each
        self.notes: list[str] = []
        self.by_position: dict[int, Argument] = {}
        self.by_name: dict[str, Argument] = {}
        self.annotations: dict[str, object] = {}
        self.optional = False  # whether a parameter with a default came already

    def read(self) -> Signature:
        own = self._own_names()
        position = 0
        for parameter in self.given:
            name = own[parameter.name]
            kind = _KINDS[parameter.kind]
            if kind == "*":
                self._rest(name, position)
                position = len(self.args)
            elif kind == "**":
                self._options(name)
            elif kind != "keyword" and position < len(self.args):
                static = position in self.static_argnums
                self._passed(parameter, name, position, self.args[position], static)
                position += 1
            elif kind != "positional" and parameter.name in self.kwargs:
                value = self.kwargs.pop(parameter.name)
                static = parameter.name in self.static_argnames
                self._passed(parameter, name, parameter.name, value, static)
            else:
                self._fixed(parameter, name, parameter.default, passed=False)
        order = [self.by_position[i] for i in sorted(self.by_position)]
        order += [self.by_name[k] for k in sorted(self.by_name)]
        public: tuple[Parameter, ...] = ()
        if any(own[p.name] != p.name for p in self.given if _KINDS[p.kind] in ("plain", "keyword")):
            public = tuple(
                Parameter(p.name, made.default, made.kind) for p, made in zip(self.given, self.parameters, strict=True)
            )
        return Signature(
            tuple(self.parameters),
            tuple(order),
            (*self.checks, *self._same_as_traced()),
            tuple(self.notes),
            frozenset(self.modules),
            public,
            {own.get(name, name): annotation for name, annotation in self.annotations.items()},
        )

    def _own_names(self) -> dict[str, str]:
        """Parameter name -> its name inside: another one only where the body needs it itself."""
        taken = {p.name for p in self.given}
        own = {}
        for name in [p.name for p in self.given]:
            new = name
            while new in self.avoid or _is_needed_inside(new) or (new != name and new in taken):
                new += "_"
            taken.add(new)
            own[name] = new
        return own

    # ------------------------------------------------------------ what was passed

    def _passed(self, parameter: inspect.Parameter, name: str, key: int | str, value: object, static: bool) -> None:
        if static:
            self._fixed(parameter, name, value, passed=True)
            return
        self._traced(key, Argument(Name(name), value, (name,)))
        if value is None:  # no leaves: that it was None is part of the program
            self._fixed(parameter, name, value, passed=True)
            return
        default = None
        if _same_scalar(parameter.default, value):
            default = self.values.source(parameter.default)
        elif self.optional and parameter.kind is not parameter.KEYWORD_ONLY:
            # It was passed, so it is required; only Python wants a default behind a default.
            default = Text("None")
            message = f"the argument {parameter.name!r} is missing"
            self.checks.append(Refuse(Binary(Name(name), "is", default), message, "TypeError"))
        self._add(parameter, name, default)

    def _traced(self, key: int | str, argument: Argument) -> None:
        if isinstance(key, int):
            self.by_position[key] = argument
        else:
            self.by_name[key] = argument

    def _add(self, parameter: inspect.Parameter, name: str, default: Expr | None) -> None:
        self.parameters.append(Parameter(name, default, _KINDS[parameter.kind]))
        self.optional = self.optional or default is not None

    def _rest(self, name: str, position: int) -> None:
        """`*args`: as many as were traced."""
        self.parameters.append(Parameter(name, None, "*"))
        rest = self.args[position:]
        condition: Expr = Name(name)
        if rest:
            condition = Binary(Call("len", [Name(name)]), "!=", Text(str(len(rest))))
        self.checks.append(Refuse(condition, f"this was traced with {len(rest)} arguments in *{name}", "TypeError"))
        for i, value in enumerate(rest):
            item = Subscript(Name(name), Text(str(i)))
            if position + i in self.static_argnums:
                self._check(item, f"{name}[{i}]", value)
            else:
                self._traced(position + i, Argument(item, value, (name, str(i))))
                if value is None:
                    self._check(item, f"{name}[{i}]", value)

    def _options(self, name: str) -> None:
        """`**kwargs`: those that were traced."""
        self.parameters.append(Parameter(name, None, "**"))
        rest = sorted(self.kwargs)
        condition: Expr = Name(name)
        if rest:
            condition = Binary(Call("sorted", [Name(name)]), "!=", List([string(k) for k in rest]))
        listed = ", ".join(rest) or "none"
        message = f"this was traced with these names in **{name}: {listed}"
        self.checks.append(Refuse(condition, message, "TypeError"))
        for key in rest:
            value = self.kwargs[key]
            item = Subscript(Name(name), string(key))
            if key in self.static_argnames:
                self._check(item, f"{name}[{key!r}]", value)
            else:
                self._traced(key, Argument(item, value, (name, key)))
                if value is None:
                    self._check(item, f"{name}[{key!r}]", value)

    # ------------------------------------------------------------ what the trace fixed

    def _fixed(self, parameter: inspect.Parameter, name: str, value: object, passed: bool) -> None:
        """A parameter whose value is part of the program.

        Its default stays the original's, so that a call that leaves it out is refused where the
        original would have run another program.
        """
        written = None
        if parameter.default is not parameter.empty:
            written = self._write(parameter.default, parameter.name) or Text("None")
        elif self.optional and parameter.kind is not parameter.KEYWORD_ONLY:
            written = Text("None")  # only because Python wants a default behind a default
        self._add(parameter, name, written)
        if passed or self._write(value) is not None:
            self._check(Name(name), parameter.name, value)
            return
        # A default that has no source: None stands for it, and nothing else is taken.
        message = f"{parameter.name!r} has the value that it had when this was traced; leave it out"
        self.checks.append(Refuse(Binary(Name(name), "is not", Text("None")), message))

    def _check(self, expr: Expr, name: str, value: object) -> None:
        """Refuses any other value than `value` for what `expr` gives."""
        written = self._write(value, name)
        if written is None:
            # Nothing to compare with: it is said, here and in the proof's notes.
            # `expr` is a name or an item of `*args` or `**kwargs`, whose keys are quoted: one line.
            comment = f"# {expr.flat()} is as it was traced, whatever is passed for it."
            self.checks.append(Lines(comment))
            self.notes.append(f"the static argument {name!r} is built in, and not checked")
            return
        said = f"{name!r} was {_shown(value)} when this was traced, and cannot be anything else"
        if value is None or type(value) is bool or callable(value):
            condition = Binary(expr, "is not", written)
        elif type(value) in (int, float, complex):
            other_type = Binary(Call("type", [expr]), "is not", Text(type(value).__name__))
            condition = Binary(other_type, "or", Binary(expr, "!=", written))
        else:
            condition = Binary(expr, "!=", written)
        if callable(value) or type(value) is tuple:
            self.checks.append(Refuse(condition, said))
        else:
            self.same.append((name, expr, written, Refuse(condition, said)))

    def _same_as_traced(self) -> list[Statement]:
        if len(self.same) < _MOST_APART:
            return [check for *_, check in self.same]
        return [RefuseOthers([row[:3] for row in self.same])]

    def _write(self, value: object, name: str = "") -> Expr | None:
        """`value` as source if it is a literal, or public in JAX or NumPy; else None. `name`: of the parameter that has it."""
        try:
            if (type(value) is int or type(value) is float) and math.isfinite(value):
                return Setting(name, value, self.values.source(value).flat())
            if _is_literal(value):
                return string(value) if type(value) is str else self.values.source(value)
            if isinstance(value, type) or callable(value):
                path = jax_compat.public_path(value)
                if path is not None and jax_compat.is_brought(path):
                    self.modules.add(path.split(".")[0])
                    return Text(path)
        except Unwritable:
            pass
        return None


def _is_literal(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_literal, value))
    kinds = (type(None), bool, int, float, complex, str, bytes)
    return type(value) in kinds and value == value


def _shown(value: object) -> str:
    """A value in a message: short, and the same in every process."""
    text = ascii(value) if _is_literal(value) else getattr(value, "__name__", type(value).__name__)
    return text if len(text) <= 60 else text[:57] + "..."


def _same_scalar(default: object, example: object) -> bool:
    """Whether the default traces the same program: both are Python numbers of one type."""
    return type(default) in (bool, int, float, complex) and type(default) is type(example)


# ---------------------------------------------------------------- the whole of the arguments


def unpack_arguments(
    arguments: Sequence[Argument],
    fresh: Callable[[str], str],
    calls: TreeCalls,
    needed: Container[int] | None = None,
) -> tuple[list[Statement], list[Expr]]:
    """(statements, leaf expressions) for all traced arguments, in the program's order of inputs.

    `fresh(base)` gives a free name inside the function, whose parameters' names it already
    avoids. `needed`: indices of the inputs that the program uses, None for all.
    """
    paths = [p for a in arguments for p in leaf_paths(a.example, a.path)]
    names = suggest_names(paths, frozenset(a.path[0] for a in arguments))
    statements: list[Statement] = []
    leaves: list[Expr] = []
    for argument in arguments:
        first = len(leaves)
        new, expressions = unpack(
            argument.example,
            argument.root,
            lambda i, first=first: fresh(names[first + i]),
            calls,
            None if needed is None else _Shifted(needed, first),
        )
        statements += new
        leaves += expressions
    return statements, leaves


@dataclass(frozen=True, slots=True)
class _Shifted:
    """`index in shifted` is `index + by in whole`."""

    whole: Container[int]
    by: int

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and index + self.by in self.whole
