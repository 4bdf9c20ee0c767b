"""What stands at the head of a function: a docstring with types, and annotations of jaxtyping where they are asked for.

def predict(w: Float[Array, "3 4"], x: Float[Array, "8 3"]) -> Float[Array, "8 4"]:
    \"\"\"Args: w: f32[3,4]; x: f32[8,3].  Returns: f32[8,4].\"\"\"
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp

from untrace import jax_compat
from untrace.ir.nodes import Atom, Value
from untrace.ir.types import Aval
from untrace.python.names import Scope
from untrace.python.statements import Def, Statement
from untrace.python.tree import Expr, Text, quoted
from untrace.python.types import Type, array_type, docstring, tuple_type
from untrace.python.walk import nodes_of

# The names that annotations need, from jaxtyping; no function and no variable of the module is called so.
WORDS = ("Array", "Bool", "Complex", "Float", "Int", "Key", "PyTree", "Shaped", "UInt")
# A tuple with more parts than this is a PyTree.
_LONGEST_TUPLE = 4
_LONGEST = 72
_DIMENSION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+")


class _Module(Protocol):
    """What it asks of a module."""

    scope: Scope
    imports: set[str]
    notes: list[str]
    annotation_words: set[str]


class Described:
    """Describes the functions of one module: see `start`."""

    def __init__(self, module: _Module):
        self.module = module
        self.docstrings = False
        self.annotations = False
        self.sizes: dict[int, str] = {}  # the words for sizes that may differ
        self.hidden = False  # whether a parameter around nested functions has the name of an annotation
        self._types: dict[Def, tuple[list[tuple[str, Type]], Type]] = {}

    def start(self, docstrings: bool, annotations: bool) -> None:
        """Says what functions get from now on; before the first name is taken."""
        self.docstrings = docstrings
        self.annotations = annotations
        if annotations:
            for word in WORDS:
                self.module.scope.claim_parameter(word)

    def finish(self, statements: Sequence[Statement]) -> None:
        """Imports what annotations need; takes them back where a class of the arguments has such a name. Says of backward
        parts what they are.

        statements: all of the module's.
        """
        for node in nodes_of(statements) if self.docstrings else ():
            if type(node) is Def and node.name.endswith("_bwd") and node.docstring:
                of = node.name.removesuffix("_bwd")
                node.docstring = (
                    f"The backward part of `{of}`, written out: an edit of that does not change it.\n{node.docstring}"
                )
        words = self.module.annotation_words
        if not words:
            return
        if any(line.split()[-1] in words for line in self.module.imports):
            for node in nodes_of(statements):
                if type(node) is Def:
                    _strip(node)
            self.module.notes.append("there are no annotations, for a class that is imported has a name that they need")
            return
        self.module.imports.add(f"from jaxtyping import {', '.join(sorted(words))}")

    def flat(self, definition: Def, params: Sequence[Value], results: Sequence[Atom], documented: bool = True) -> Def:
        """`definition`, whose parameters are `params` one by one, with its description."""
        names = [p.name for p in definition.params]
        arguments = [(name, array_type(value.aval)) for name, value in zip(names, params, strict=True)]
        result = tuple_type([array_type(r.aval) for r in results])
        return self.describe(definition, arguments, result, documented=documented)

    def describe(
        self,
        definition: Def,
        arguments: Sequence[tuple[str, Type]],
        result: Type,
        what: str = "",
        dims: Mapping[str, Sequence[str]] | None = None,
        documented: bool = True,
    ) -> Def:
        """`definition` with a docstring and annotations.

        `arguments`: types by the name of the parameter. what: the result in words. dims: the author's names for the
        axes of a parameter, and of the result as "".
        """
        if self.sizes:
            arguments = [(name, kind.sized(self.sizes)) for name, kind in arguments]
            result = result.sized(self.sizes)
        self._types[definition] = (list(arguments), result)
        if self.docstrings and documented:
            definition.docstring = docstring(arguments, result, what)
        if self.annotations:
            types, dims = dict(arguments), dims or {}
            for parameter in definition.params:
                if parameter.name in types and parameter.kind not in ("*", "**"):
                    parameter.annotation = self._annotation(types[parameter.name], dims.get(parameter.name))
            definition.returns = self._annotation(result, dims.get(""))
        return definition

    def shared(self, definition: Def, other: Def) -> None:
        """`definition` stands for `other` as well, which has the same text but may have other types."""
        arguments, result = self._types[definition]
        others, other_result = self._types[other]
        merged = [(name, mine.merged(theirs)) for (name, mine), (_, theirs) in zip(arguments, others, strict=True)]
        returned = result.merged(other_result)
        both = [(name, kind) for name, kind in merged if kind is not None]
        if returned is not None and len(both) == len(merged):
            self.describe(definition, both, returned)
            return
        self._types[definition] = ([(n, kind or Type("array", "an array")) for n, kind in merged], returned or result)
        definition.docstring = ""
        _strip(definition)

    def joined(self, definition: Def, others: Sequence[Def], options: Mapping[str, str]) -> None:
        """`definition` stands for all of `others`, each with some of its parameters and results; `options` are new, with
        their types in words."""
        known = [self._types[d] for d in others]
        arguments: list[tuple[str, Type]] = []
        for name in [p.name for p in definition.params]:
            kinds = [kind for types, _ in known for other, kind in types if other == name]
            arguments.append((name, Type("array", options[name]) if name in options else _of_all(kinds)))
        results = [result for _, result in known]
        most = max(len(r.parts) if r.kind == "tuple" else 1 for r in results)
        result = _of_all([r for r in results if (len(r.parts) if r.kind == "tuple" else 1) == most])
        self.describe(definition, arguments, result)

    def types_of(self, definition: Def) -> list[tuple[str, Type]] | None:
        """The types of the parameters of a function that was described, by name."""
        found = self._types.get(definition)
        return None if found is None else found[0]

    def result_of(self, definition: Def) -> Type:
        """The type of the result of a function that was described."""
        return self._types[definition][1]

    def in_words(self, definition: Def, names: Sequence[str], text: str) -> None:
        """Says of some parameters what they are in words, where their types are not those of every call."""
        arguments, result = self._types[definition]
        self.describe(definition, [(n, Type("array", text) if n in names else t) for n, t in arguments], result)

    def retold(self, definition: Def, arguments: Sequence[tuple[str, Type]]) -> None:
        """Describes a function that has other parameters now, where it is described."""
        if definition in self._types:
            self.describe(definition, arguments, self._types[definition][1])

    def also(self, definition: Def, arguments: Sequence[tuple[str, Type]]) -> None:
        """Describes parameters that `definition` got later, as far as it is described."""
        if arguments and (definition.docstring or definition.returns is not None):
            others, result = self._types[definition]
            self.describe(definition, [*others, *arguments], result)

    def nested(self, definition: Def, arguments: Sequence[Type | None], result: Type | None) -> Def:
        """Annotates a function inside a function; None for what has no type."""
        if self.annotations and not self.hidden:
            for parameter, kind in zip(definition.params, arguments, strict=True):
                parameter.annotation = None if kind is None else self._annotation(kind)
            definition.returns = None if result is None else self._annotation(result)
        return definition

    # ------------------------------------------------------------ jaxtyping

    def _annotation(self, kind: Type, dims: Sequence[str] | None = None) -> Expr | None:
        """`Float[Array, "8 3"]`, `tuple[...]`, `PyTree[...]`; None for what jaxtyping has no word for."""
        text = self._text(kind, dims)
        if len(text) > _LONGEST and kind.kind == "tuple":
            text = self._pytree(kind)
        return Text(text) if text else None

    def _text(self, kind: Type, dims: Sequence[str] | None) -> str:
        if kind.kind == "None":
            return "None"
        if kind.kind == "array":
            word = _word(kind.aval)
            if not word:
                return ""
            sizes = kind.text.partition("[")[2].partition("]")[0].split(",")
            shape = [str(s) for s in kind.aval.shape]
            shape = [s if size.isdigit() else size for s, size in zip(shape, sizes, strict=False)]
            return f"{self._use(word)}[{self._use('Array')}, {quoted(' '.join(dims or shape))}]"
        if kind.kind == "tuple" and 0 < len(kind.parts) <= _LONGEST_TUPLE:
            parts = [self._text(part, None) for _, part in kind.parts]
            return f"tuple[{', '.join(parts)}]" if all(parts) else ""
        return self._pytree(kind)

    def _pytree(self, kind: Type) -> str:
        words = {_word(aval) for aval in _avals(kind)}
        if not words:
            return self._use("PyTree")
        if "" in words:
            return ""
        word = words.pop() if len(words) == 1 else "Shaped"
        return f'{self._use("PyTree")}[{self._use(word)}[{self._use("Array")}, "..."]]'

    def _use(self, word: str) -> str:
        self.module.annotation_words.add(word)
        return word


def _of_all(kinds: Sequence[Type]) -> Type:
    found: Type | None = kinds[0]
    for kind in kinds[1:]:
        found = None if found is None else found.merged(kind)
    if found is None:
        return Type("array", "a dict of arrays" if kinds[0].kind == "dict" else "an array")
    return found


def _strip(definition: Def) -> None:
    definition.returns = None
    for parameter in definition.params:
        parameter.annotation = None


def _avals(kind: Type) -> list[Aval]:
    return [kind.aval] if kind.kind == "array" else [a for _, part in kind.parts for a in _avals(part)]


def _word(aval: Aval) -> str:
    """jaxtyping's word for the dtype of an array; "" where it has none."""
    if not jax_compat.is_shaped_array(aval) or aval.dtype == jax_compat.FLOAT0:
        return ""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return "Key"
    kinds = (
        ("Bool", jnp.bool_), ("UInt", jnp.unsignedinteger), ("Int", jnp.signedinteger), ("Float", jnp.floating),
        ("Complex", jnp.complexfloating),
    )  # fmt: skip
    return next((word for word, kind in kinds if jnp.issubdtype(aval.dtype, kind)), "")


def author_dims(annotation: object, shape: Sequence[int]) -> tuple[str, ...] | None:
    """The names in an author's own `Float[Array, "batch dim"]`, where they fit a shape; None without any."""
    text = getattr(annotation, "dim_str", None)
    if type(text) is not str:
        return None
    words = tuple(text.split())
    if len(words) != len(shape) or not all(_DIMENSION.fullmatch(w) for w in words):
        return None  # an expression is Python that jaxtyping would evaluate: none is copied
    if any(w.isdigit() and int(w) != size for w, size in zip(words, shape, strict=True)):
        return None
    return words
