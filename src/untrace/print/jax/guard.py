"""The guard of an entry: it refuses what the text was not written for, in one line that says what that is.

    def grad_loss(w, x, y):
        w, x, y = _checked("w: f32[n]; x: f32[m,n]; y: f32[m]", w, x, y)

A trace fixes the tree of its arguments (classes, keys, lengths, static fields), their dtypes and those sizes that the text
does not read off shapes. Called with something else the text would compute something else, without a word.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from untrace import jax_compat
from untrace.print.jax import runtime
from untrace.print.jax.runtime import helper
from untrace.print.tree import Assign, Call, Name, Statement, Text, quoted

# These stand at the end of the module, out of the reader's way, under these names.
GUARDS = {"_checked": "_checked", "_type_of": "_type_of", "_type_of_classes": "_type_of"}
_KEY = re.compile(r"[\w./-]*")  # of a dict, that stands in a description as it is
_MANY = 16  # arrays, of which a description would be long


@helper("fnmatch", "itertools", "re", "jax", "jnp")
def _checked(types, *values, least=1, weak=False, x64=False, prng=None):
    """The values, numbers as arrays, where a function was written for them: `x: f32[n,3]` is of any size `n` from `least` on."""
    leaves, tree = jax.tree.flatten(values)
    if not all([hasattr(leaf, "aval") for leaf in leaves]):
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        values = jax.tree.unflatten(tree, leaves)
    settings = (jax.config.jax_enable_x64, prng and jax.config.jax_default_prng_impl)
    key = (types, settings, tree, *[leaf.aval for leaf in leaves])
    if key not in _KNOWN:
        sizes, said = {}, "the original may do something else there; decompile it with such arguments"
        if settings != (x64, prng):
            raise TypeError(f"this was written for jax_enable_x64={x64}, prng={prng}, not for {settings}: {said}")
        for (name, expected), value in zip([text.split(": ", 1) for text in types.split("; ")], values):
            found = _type_of(value, weak)
            tokens = [re.findall(r"[^][,]+|.", text) for text in (expected, found)]
            for old, new in itertools.zip_longest(*tokens, fillvalue=""):
                is_size = old.isidentifier() and new.isdecimal() and int(new) >= least
                if not fnmatch.fnmatchcase(new, old) and not (is_size and sizes.setdefault(old, new) == new):
                    raise TypeError(f"this was written for {name}: {expected}, not for {found} (sizes {sizes}): {said}")
        _KNOWN.add(key)
    return values if len(values) > 1 else values[0]


_KNOWN: set[Any] = set()


@helper("jax")
def _type_of(value, weak):
    """The type of a pytree in words: `{w: f32[3,4]}`; of numbers that give way to other types with a `~`, if `weak`."""
    word = lambda leaf: "~" * (weak and leaf.aval.weak_type) + leaf.aval.str_short(short_dtypes=True)
    return str(jax.tree.map(word, value)).replace("'", "")


@helper("hashlib", "re", "jax")
def _type_of_classes(value, weak):
    """The type of a pytree in words, with the static fields of its classes: `Body(f32[3,4] | 2.0)`, or a hash of them."""
    leaves, tree = jax.tree.flatten(value)
    avals = iter([leaf.aval for leaf in leaves])

    def static(value, depth=3):
        if isinstance(value, (tuple, list, set, frozenset)):
            parts = [static(v, depth) for v in value]
            return f"({', '.join(sorted(parts) if isinstance(value, (set, frozenset)) else parts)})"
        name = getattr(value, "__qualname__", None)
        if name is None:
            return re.sub("; | at 0x[0-9a-f]+", "", repr(value))
        cells = [c.cell_contents for c in getattr(value, "__closure__", None) or () if c != type(c)()]
        return f"{value.__module__}.{name}" + (static(cells, depth - 1) if cells and depth else "")

    def words(tree):
        if tree.node_data() is None:
            aval = next(avals)
            return "~" * (weak and aval.weak_type) + aval.str_short(short_dtypes=True)
        kind, fixed = tree.node_data()
        parts = ", ".join([words(child) for child in tree.children()])
        return f"{kind.__name__}({parts})" if fixed is None else f"{kind.__name__}({parts} | {static(fixed)})"

    text = words(tree)
    return text if len(text) < 240 else f"#{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def guard_of(
    module: Any,
    parameters: Mapping[str, str],
    arguments: Sequence[Any],
    avals: Sequence[Any],
    idle: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
) -> Statement | None:
    """The first statement of an entry; None where nothing is traced.

    parameters: kinds by name. arguments: as of a Signature. avals: those of the leaves of all arguments. idle: the traced
    arguments with other static fields, on which the program does not depend.
    """
    leaves = iter(avals)
    others = [a.example for a in arguments] if idle is None else [*idle[0], *[idle[1][k] for k in sorted(idle[1])]]
    trees: dict[str, list[tuple[str, tuple[Any, Any]]]] = {}
    for argument, other in zip(arguments, others, strict=True):
        tree = jax.tree.structure(argument.example)
        typed = [_Typed(next(leaves)) for _ in range(tree.num_leaves)]
        both = jax.tree.unflatten(tree, typed), jax.tree.unflatten(jax.tree.structure(other), typed)
        trees.setdefault(argument.path[0], []).append((argument.path[-1], both))
    names = [name for name in parameters if name in trees]
    if not names:
        return None
    values = [[_value(parameters[name], [(k, v[i]) for k, v in trees[name]]) for i in (0, 1)] for name in names]
    describe = "_type_of" if all([_is_plain(value) for value, _ in values]) else "_type_of_classes"
    types = [f"{name}: {_words(module, describe, *both)}" for name, both in zip(names, values, strict=True)]
    settings = [(key, Text(repr(setting))) for key, setting in sorted(module.guarded.items())]
    module.helper(describe)
    called = Call(module.helper("_checked").flat(), [Text(quoted("; ".join(types))), *map(Name, names)], settings)
    return Assign(names, called)


def _value(kind: str, parts: Sequence[tuple[str, Any]]) -> Any:
    """The value of a parameter of this kind."""
    if kind == "*":
        return tuple(part for _, part in parts)
    return dict(parts) if kind == "**" else parts[0][1]


def _is_plain(value: Any) -> bool:
    """Whether a pytree is made of Python's own containers, and short."""
    nodes = [jax.tree.structure(value)]
    while nodes:
        node = nodes.pop()
        data = node.node_data()
        if data is not None and data[0] not in (dict, tuple, list, type(None)):
            return False
        if data is not None and data[0] is dict and not all(type(key) is int or type(key) is str and _KEY.fullmatch(key) for key in data[1]):
            return False
        nodes += node.children()
    return len(jax.tree.leaves(value)) <= _MANY


def _words(module: Any, describe: str, value: Any, other: Any) -> str:
    """The description of a value, with words for sizes, and `*` for what is another in `other`."""
    function, weak = runtime.function(describe), "weak" in module.guarded
    text, second = function(value, weak), function(other, weak)
    tokens = [re.findall(r"[^][,]+|.", t) for t in (text, second)]
    if len(tokens[0]) == len(tokens[1]) and not text.startswith("#"):
        text = "".join([_common(a, b) for a, b in zip(*tokens, strict=True)])
    words = module.described.sizes
    return re.sub(r"(?<=[\[,])[0-9]+(?=[,\]])", lambda m: words.get(int(m[0]), m[0]), text)


def _common(one: str, other: str) -> str:
    """A word, with `*` for each static value in it that is another in `other`."""
    values = [re.split(r"([ (){}]+)", text) for text in (one, other)]
    if len(values[0]) != len(values[1]):
        return one
    return "".join([a if a == b else "*" for a, b in zip(*values, strict=True)])


@dataclass(frozen=True, slots=True)
class _Typed:
    """What stands for an array of a type."""

    aval: Any


def settings_of(jaxpr: Any, smallest: int) -> dict[str, Any]:
    """What a program depends on beside its arguments, as `_checked` takes it. smallest: the least size it was traced at."""
    kinds: set[tuple[str, Any]] = set()
    makes_keys = False
    for eqn in jax_compat.equations_in(jaxpr):
        makes_keys = makes_keys or eqn.primitive.name in ("random_seed", "random_wrap")
        for atom in (*eqn.invars, *eqn.outvars):
            dtype = getattr(atom.aval, "dtype", None)
            if dtype is not None and dtype != jax_compat.FLOAT0 and not jax_compat.is_key_dtype(dtype):
                kind = "f" if jnp.issubdtype(dtype, jnp.inexact) else "i" if jnp.issubdtype(dtype, jnp.integer) else ""
                kinds.add((kind, jnp.finfo(dtype).dtype if kind == "f" else dtype))
    found: dict[str, Any] = {}
    # A number that gives way to other types, and one that does not, are two programs where there are other types.
    if any(len([k for k, _ in kinds if k == kind]) > 1 for kind in "fi"):
        found["weak"] = True
    if smallest > 1:
        found["least"] = smallest
    if jax.config.jax_enable_x64:
        found["x64"] = True
    if makes_keys:
        found["prng"] = jax.config.jax_default_prng_impl
    return found
