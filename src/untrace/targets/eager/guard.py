"""Types in words, for the check of an entry's arguments, and what it knows of the classes among them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from untrace import jax_compat
from untrace._trees import is_namedtuple
from untrace.ir.types import PyTree
from untrace.python.helpers import helper
from untrace.python.pytrees import branches, is_plain_identifier


@helper(last="_each")
def _each(value, change, classes):
    """A tree with each leaf changed; `classes` has the names of their parts, and behind a line those of what is fixed."""
    import copy

    if isinstance(value, dict):
        return {key: _each(part, change, classes) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        make = getattr(value, "_make", type(value))
        return make([_each(part, change, classes) for part in value])
    names = classes.get(type(value).__name__)
    if names is None:
        return None if value is None else change(value)
    made = copy.copy(value)
    for name in names.partition("|")[0].split():
        object.__setattr__(made, name, _each(getattr(value, name), change, classes))
    return made


@helper(last="_in_words")
def _in_words(tree, classes):
    """A tree of words as one: `{w: f32[3,4]}`."""
    import re

    if isinstance(tree, dict):
        names = [key if isinstance(key, str) and re.fullmatch(r"[\w./-]+", key) else repr(key) for key in sorted(tree)]
        parts = [_in_words(tree[key], classes) for key in sorted(tree)]
        words = [f"{re.sub('; ', '', name)}: {part}" for name, part in zip(names, parts, strict=True)]
        return f"{{{', '.join(words)}}}"
    if isinstance(tree, (tuple, list)):
        start = type(tree).__name__ if hasattr(tree, "_make") else ""
        words = ", ".join([_in_words(part, classes) for part in tree])
        return f"[{words}]" if isinstance(tree, list) else f"{start}({words})"
    if type(tree).__name__ in classes:
        names, _, fixed = classes[type(tree).__name__].partition("|")
        words = ", ".join([_in_words(getattr(tree, name), classes) for name in names.split()])
        fixed = ", ".join([re.sub("; | at 0x[0-9a-f]+", "", repr(getattr(tree, name))) for name in fixed.split()])
        return f"{type(tree).__name__}({words}{' | ' * bool(fixed)}{fixed})"
    return str(tree)


@helper(last="_with_parts")
def _with_parts(node, **parts):
    """The same with other parts; its constructor is not asked."""
    import copy

    made = copy.copy(node)
    for name, part in parts.items():
        object.__setattr__(made, name, part)
    return made


def classes_in(tree: PyTree) -> dict[str, str] | type:
    """The names of the parts of each class in a tree, and of what is fixed, as `_each` takes them; or a class that has other
    parts than attributes, or the name of another one."""
    found: dict[str, tuple[type, str]] = {}
    todo = [tree]
    while todo:
        node = todo.pop()
        level = branches(node)
        if level is None or node is None:
            continue
        todo += level.children
        if type(node) in (dict, list, tuple) or is_namedtuple(node):
            continue
        parts = [key.name for key in level.keys if type(key) is jax.tree_util.GetAttrKey and hasattr(node, key.name)]
        are_named = len(parts) == len(level.keys) and all(map(is_plain_identifier, parts))
        if not dataclasses.is_dataclass(node) or not are_named:
            return type(node)
        fixed = [f.name for f in dataclasses.fields(node) if f.name not in parts and hasattr(node, f.name)]
        words = " ".join(parts) + (" | " + " ".join(fixed) if fixed else "")
        if found.setdefault(type(node).__name__, (type(node), words)) != (type(node), words):
            return type(node)
    return {name: words for name, (_, words) in found.items()}


@helper(last="_compared")
def _compared(types, found, least, most, multiples, sums):
    """Raises where types in words are not those that this was written for."""
    import hashlib, itertools, math, re

    sizes: dict[str, str] = {}
    for (name, expected), words in zip([t.split(": ", 1) for t in types.split("; ") if t], found, strict=True):
        if expected[0] == "#":
            words = "#" + hashlib.sha256(words.encode()).hexdigest()[:12]
        tokens = [re.findall(r"(?<=[\[,])\w+|[^][,]+|.", text) for text in (expected, words)]
        for old, new in itertools.zip_longest(*tokens, fillvalue=""):
            is_size = old.isidentifier() and new.isdecimal()
            is_size = is_size and least.get(old, 2) <= int(new) <= most.get(old, int(new))
            is_size = is_size and int(new) % multiples.get(old, 1) == 0 and sizes.setdefault(old, new) == new
            if not is_size and new != old and not re.fullmatch(".*".join(map(re.escape, old.split("*"))), new):
                raise TypeError(
                    f"this was written for {name}: {expected}, not for {words}. Write the original for that."
                )
    for size, text in sums.items():  # `n: "2*m + k"`
        terms = [[int(sizes.get(f, f)) for f in term.split("*")] for term in text.split(" + ")]
        if int(sizes[size]) != sum([math.prod(term) for term in terms]):
            raise TypeError(f"this was written for {size} = {text}, not for {sizes}. Write the original for that.")


@helper()
def types_in_words(tree: Any, avals: Any, weak: bool) -> str:
    """The type of a pytree as the check says it; keys are their words there."""
    words = []
    for aval in avals:
        word = aval.str_short(short_dtypes=True)
        if jax_compat.is_key_dtype(aval.dtype):
            word = f"u32[{','.join(map(str, (*aval.shape, 2)))}]"
        words.append(word)
    example = tree.unflatten(words)
    return _in_words(example, classes_in(example))
