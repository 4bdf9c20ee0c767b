"""The guard of an entry: it refuses what the text was not written for, in one line that says what that is.

    def grad_loss(w, x, y):
        w, x, y = _checked("w: f32[n]; x: f32[m,n]; y: f32[m]", w, x, y)

A trace fixes the tree of its arguments (classes, keys, lengths, static fields), their dtypes and those sizes that the text
does not read off shapes. Called with something else the text would compute something else, without a word. A program over
devices, and one that asks how many there are, depends on them too: `_placed(device_count=8)` stands above it then.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import PyTreeDef, default_registry

from untrace import jax_compat
from untrace.capture.function import Captured
from untrace.targets.jax import runtime
from untrace.targets.jax.runtime import helper
from untrace.python.tree import WIDTH, Assign, Call, Expr, Statement, Text, quoted

_KEY = re.compile(r"[\w./-]*")  # of a dict, that stands in a description as it is
_LIST = re.compile(r"\[((?:[^][]|\[[\w,]*\])*)\]")  # without lists in it
_SIZE = re.compile(r"(?<=[\[,])[A-Za-z_]\w*(?=[,\]])")
_LONGEST = 600  # characters; of more without a size in them a hash says as much
_SHORT = 20  # characters, which say as much as "like params"


@helper("jax", "jnp", last="_checked")
def _checked(types, *values, least={}, most={}, multiples={}, weak=False, x64=False, prng=None):
    """The values, numbers as arrays, where this was written for them: `x: f32[n,3]` may have `n` from 2 (`least`) to `most`."""
    leaves, tree = jax.tree.flatten(values)
    if not all([hasattr(leaf, "aval") for leaf in leaves]):
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        values = jax.tree.unflatten(tree, leaves)
    settings = (jax.config.jax_enable_x64, prng and jax.config.jax_default_prng_impl)
    key = (types, settings, tree, *[leaf.aval for leaf in leaves])
    try:
        is_known = key in _KNOWN
    except (TypeError, ValueError):  # a static field that has no hash
        key, is_known = types, False
    if not is_known:
        import fnmatch, hashlib, itertools, re

        sizes, said = {}, "Decompile the original with such arguments: it may do something else there."
        if settings != (x64, prng):
            raise TypeError(f"this was written for jax_enable_x64={x64}, prng={prng}, not for {settings}. {said}")
        for (name, expected), value in zip([t.split(": ", 1) for t in types.split("; ") if t], values, strict=True):
            inside, tree = jax.tree.flatten(value)
            found = _type_of(tree, [leaf.aval for leaf in inside], weak)
            if expected[0] == "#":
                found = "#" + hashlib.sha256(found.encode()).hexdigest()[:12]
            tokens = [re.findall(r"(?<=[\[,])\w+|[^][,]+|.", text) for text in (expected, found)]
            for old, new in itertools.zip_longest(*tokens, fillvalue=""):
                is_size = old.isidentifier() and new.isdecimal()
                is_size = is_size and least.get(old, 2) <= int(new) <= most.get(old, int(new))
                is_size = is_size and int(new) % multiples.get(old, 1) == 0 and sizes.setdefault(old, new) == new
                if not is_size and not fnmatch.fnmatchcase(new, old):
                    given = [f"{n} = {number}" for n, number in sizes.items()] + [f"{n} ≤ {most[n]}" for n in most]
                    given = ", ".join(given) or "of no size yet"
                    raise TypeError(f"this was written for {name}: {expected} ({given}), not for {found}. {said}")
        _KNOWN.add(key)
    return values[0] if len(values) == 1 else values


_KNOWN: set[Any] = set()


@helper("functools", last="_spelled_out")
@functools.cache
def _spelled_out(types):
    """The types with lists (`[f32[n]] * 2`) and what is `like x` written out."""
    import re

    found = {}
    for text in types.split("; "):
        name, _, text = text.partition(": ")
        text = re.sub(r"\[((?:[^][]|\[[\w,]*\])*)\] \* (\d+)", lambda m: f"[{', '.join([m[1]] * int(m[2]))}]", text)
        found[name] = re.sub(r"like (\w+)", lambda m: found.get(m[1], m[0]), text)
    return "; ".join([f"{name}: {text}" for name, text in found.items()])


@helper("jax", last="_type_of")
def _type_of(tree, avals, weak):
    """The type of a pytree in words: `{w: f32[3,4]}`; of numbers that give way to other types with a `~`, if `weak`."""
    words = ["~" * (weak and aval.weak_type) + aval.str_short(short_dtypes=True) for aval in avals]
    return str(jax.tree.unflatten(tree, words)).replace("'", "")


@helper(last="_type_of")
def _type_of_classes(tree, avals, weak):
    """The type of a pytree in words, with the static fields of its classes: `Body(f32[3,4] | 2.0)`."""
    import re

    types = iter(["~" * (weak and aval.weak_type) + aval.str_short(short_dtypes=True) for aval in avals])

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
            return next(types)
        kind, fixed = tree.node_data()
        if kind is type(None):
            return "None"
        parts = [words(child) for child in tree.children()]
        if kind is dict:
            names = [key if isinstance(key, str) and key.isidentifier() else static(key) for key in fixed]
            parts, fixed = [f"{name}: {part}" for name, part in zip(names, parts, strict=True)], None
        start, end = {dict: "{}", list: "[]", tuple: "()"}.get(kind, (f"{kind.__name__}(", ")"))
        return start + ", ".join(parts) + ("" if fixed is None else f" | {static(fixed)}") + end

    return words(tree)


@helper(needs=("_answer",), last="_placed")
def _placed(**answers):
    """Refuses to run where JAX has another answer: `device_count=8` is that of `jax.device_count()`."""
    for question, answer in answers.items():
        found = _answer(question)
        if found != answer:
            said = "Decompile the original there: it may do something else."
            raise TypeError(f"this was written for {question} = {answer}, not for {found}. {said}")


@helper("jax", last="_answer")
def _answer(question):
    """What JAX says of the place where this runs: a number, or words for devices (`8 cpu`) and a mesh (`i=8 Auto`)."""
    found = (getattr(jax, question, None) or getattr(jax.sharding, question))()
    if isinstance(found, list):
        return f"{len(found)} {', '.join(sorted({device.device_kind for device in found}))}"
    if isinstance(found, jax.sharding.AbstractMesh):
        axes = zip(found.axis_names, found.axis_sizes, found.axis_types, strict=True)
        return ", ".join([f"{name}={size} {kind.name}" for name, size, kind in axes]) or "no mesh"
    return found


@dataclass(frozen=True, slots=True)
class Guarded:
    """What an entry depends on beside its arguments.

    settings: as `_checked` takes it, of sizes by the number that stands for one. answers: as `_placed` takes them.
    """

    settings: Mapping[str, Any]
    answers: Mapping[str, Any]


def guard_of(
    module: Any,
    parameters: Mapping[str, str],
    arguments: Sequence[Any],
    avals: Sequence[Any],
    idle: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
) -> list[Statement]:
    """The first statements of an entry.

    parameters: kinds by name. arguments: as of a Signature. avals: those of the leaves of all arguments. idle: the traced
    arguments with other static fields, on which the program does not depend.
    """
    leaves = iter(avals)
    others = [a.example for a in arguments] if idle is None else [*idle[0], *[idle[1][k] for k in sorted(idle[1])]]
    parts: dict[str, list[_Part]] = {}
    for argument, other in zip(arguments, others, strict=True):
        tree = jax.tree.structure(argument.example)
        types = [next(leaves) for _ in range(tree.num_leaves)]
        part = _Part(argument.path[-1], tree, jax.tree.structure(other), types)
        parts.setdefault(argument.path[0], []).append(part)
    names = [name for name in parameters if name in parts]
    values = [_whole(parameters[name], parts[name]) for name in names]
    describe = module.describes_types or (
        "_type_of" if all([_is_plain(value.tree) for value in values]) else "_type_of_classes"
    )
    texts = {name: _words(module, describe, value) for name, value in zip(names, values, strict=True)}
    found = dict(module.guarded.settings)
    for setting in ("least", "most", "multiples"):
        found[setting] = {module.described.sizes[n]: m for n, m in found.pop(setting, {}).items()}
    settings = [(key, Text(_written(setting))) for key, setting in sorted(found.items()) if setting]
    module.helper(describe)
    short = _shortened(texts)
    is_short = any(re.search(r"like \w|\] \* \d", text) for text in short)
    if is_short:
        module.helper("_spelled_out")
    checked = Checked(names, module.helper("_checked").flat(), short, is_short, settings)
    answers = [(question, Text(_written(answer))) for question, answer in module.guarded.answers.items()]
    return [Assign([], Call(module.helper("_placed").flat(), [], answers)), checked] if answers else [checked]


def _written(setting: Any) -> str:
    if type(setting) is dict:
        return f"{{{', '.join([f'{quoted(key)}: {number}' for key, number in setting.items()])}}}"
    return quoted(setting) if type(setting) is str else repr(setting)


class Checked(Statement):
    """`w, x = _checked("w: f32[n]; x: f32[m,n]", w, x)`, the types on lines of their own where they are long."""

    __slots__ = ("names", "called", "types", "is_short", "settings")

    def __init__(
        self,
        names: Sequence[str],
        called: str,
        types: Sequence[str],
        is_short: bool,
        settings: Sequence[tuple[str, Expr]],
    ):
        self.names, self.called, self.types, self.is_short, self.settings = names, called, types, is_short, settings
        self.origin = None

    def lines(self, indent: str) -> Iterator[str]:
        start = f"{indent}{', '.join(self.names)} = {self.called}(" if self.names else f"{indent}{self.called}("
        rest = ", ".join([*self.names, *[f"{key}={value.flat()}" for key, value in self.settings]])
        types = "; ".join(self.types)
        opening, closing = ("_spelled_out(", ")") if self.is_short else ("", "")
        line = f"{start}{opening}{quoted(types)}{closing}{', ' * bool(rest)}{rest})"
        if len(line) <= WIDTH:
            yield line
            return
        yield start
        inner = indent + "    "
        rows = [""]
        for word in re.split(r"(?<=[,;] )", types):
            if rows[-1] and len(inner) + len(rows[-1]) + len(word) + len(closing) + 8 > WIDTH:
                rows.append("")
            rows[-1] += word
        if opening:
            yield inner + opening
            yield from (f"{inner}    {quoted(row)}" for row in rows)
            yield f"{inner}),"
        else:
            yield from (f"{inner}{quoted(row)}" for row in rows[:-1])
            yield f"{inner}{quoted(rows[-1])},"
        rows = [""]
        for word in re.split(r"(?<=, )", rest):
            if rows[-1] and len(inner) + len(rows[-1]) + len(word) > WIDTH:
                rows.append("")
            rows[-1] += word
        yield from (inner + row.rstrip() + ("," if row is rows[-1] else "") for row in rows)
        yield f"{indent})"


def _shortened(texts: Mapping[str, str]) -> list[str]:
    """`name: type` of each argument, as short as `_spelled_out` can read it; a hash of what stays very long and has no sizes."""
    found: list[str] = []
    for name, text in texts.items():
        short = text
        for other, known in texts.items():
            if other == name:
                break
            if len(known) > _SHORT:
                short = short.replace(known, f"like {other}")
        short = _LIST.sub(lambda m: _repeated(m[1]) or m[0], short)
        if len(short) > _LONGEST and not _SIZE.search(text):
            short = text = "#" + hashlib.sha256(text.encode()).hexdigest()[:12]
        before = "; ".join(found)
        spelled = runtime.function("_spelled_out")("; ".join([*found, f"{name}: {short}"]))
        is_same = spelled.endswith(f"; {name}: {text}" if before else f"{name}: {text}")
        found.append(f"{name}: {short if is_same else text}")
    return found


def _repeated(inside: str) -> str | None:
    """`[{...}] * 3` for the inside of a list of three equal items."""
    for count in range(len(inside) // 2, 1, -1):
        size, left = divmod(len(inside) - 2 * (count - 1), count)
        if not left and inside == ", ".join([inside[:size]] * count):
            return f"[{inside[:size]}] * {count}"
    return None


@dataclass(frozen=True, slots=True)
class _Part:
    """An argument, or what a parameter takes of several: its tree, the same with other static fields on which nothing
    depends, and the types of its leaves."""

    name: str
    tree: Any
    other: Any
    avals: Sequence[Any]


def _whole(kind: str, parts: Sequence[_Part]) -> _Part:
    """What a parameter of this kind gets."""
    if kind not in ("*", "**"):
        return parts[0]
    node = (tuple, None) if kind == "*" else (dict, [part.name for part in parts])
    tree, other = [
        PyTreeDef.from_node_data_and_children(default_registry, node, several)
        for several in ([p.tree for p in parts], [p.other for p in parts])
    ]
    return _Part("", tree, other, [aval for part in parts for aval in part.avals])


def _is_plain(tree: Any) -> bool:
    """Whether a pytree is made of Python's own containers."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        kind, fixed = node.node_data() or (None, ())
        if kind not in (None, dict, tuple, list, type(None)):
            return False
        if kind is dict and not all(type(k) is int or type(k) is str and _KEY.fullmatch(k) for k in fixed):
            return False
        nodes += node.children()
    return True


def _words(module: Any, describe: str, value: _Part) -> str:
    """The description of a value, with words for sizes, and `*` for static fields on which nothing depends."""
    function, weak = runtime.function(describe), "weak" in module.guarded.settings
    text, second = (function(tree, value.avals, weak) for tree in (value.tree, value.other))
    tokens = [re.findall(r"[^][,]+|.", t) for t in (text, second)]
    if len(tokens[0]) == len(tokens[1]):
        text = "".join([_common(a, b) for a, b in zip(*tokens, strict=True)])
    text = text.replace("__main__.", "*.")  # a module that is run has another name where it is imported
    words = module.described.sizes
    return re.sub(r"(?<=[\[,])[0-9]+(?=[,\]])", lambda m: words.get(int(m[0]), m[0]), text)


def _common(one: str, other: str) -> str:
    """A word, with `*` for each static value in it that is another in `other`."""
    values = [re.split(r"([ (){}]+)", text) for text in (one, other)]
    if len(values[0]) != len(values[1]):
        return one
    return "".join([a if a == b else "*" for a, b in zip(*values, strict=True)])


def guarded_by(captured: Captured) -> Guarded:
    """What a program depends on beside its arguments."""
    alive = jax_compat.without_dead_code(captured.jaxpr)
    settings = _settings_of(alive)
    limits = captured.limits.items()
    settings["least"] = {size: 1 for size, limit in limits if limit.least == 1}  # arrays of one row are broadcast
    settings["most"] = {size: limit.most for size, limit in limits if limit.most is not None}
    settings["multiples"] = {size: limit.multiple for size, limit in limits if limit.multiple > 1}
    questions = set(captured.asked)
    if jax_compat.speaks_of_devices(alive):
        questions.add("devices" if "devices" in questions else "device_count")
        if jax.sharding.get_abstract_mesh().axis_names:
            questions.add("get_abstract_mesh")
    return Guarded(settings, {question: runtime.function("_answer")(question) for question in sorted(questions)})


def _settings_of(jaxpr: Any) -> dict[str, Any]:
    """What a program depends on beside its arguments, as `_checked` takes it."""
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
    config: Any = jax.config  # its settings are no attributes to a type checker
    if config.jax_enable_x64:
        found["x64"] = True
    if makes_keys:
        found["prng"] = config.jax_default_prng_impl
    return found
