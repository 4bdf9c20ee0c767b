"""The check of a NumPy entry's arguments, which makes arrays of the right type of what JAX would take."""

from __future__ import annotations

from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.python.helpers import helper


@helper(last="_in_words")
def _in_words(tree):
    """A tree of words as one: `{w: f32[3,4]}`."""
    import re

    if isinstance(tree, dict):
        names = [key if isinstance(key, str) and re.fullmatch(r"[\w./-]+", key) else repr(key) for key in sorted(tree)]
        parts = [_in_words(tree[key]) for key in sorted(tree)]
        words = [f"{re.sub('; ', '', name)}: {part}" for name, part in zip(names, parts, strict=True)]
        return f"{{{', '.join(words)}}}"
    if isinstance(tree, (tuple, list)):
        start = type(tree).__name__ if hasattr(tree, "_make") else ""
        words = ", ".join([_in_words(part) for part in tree])
        return f"[{words}]" if isinstance(tree, list) else f"{start}({words})"
    return str(tree)


@helper("np", needs=("_in_words",), last="_checked")
def _checked_arrays(types, *values, least={}, most={}, multiples={}, x64=False):
    """The values, as arrays of JAX's types, where this was written for them: `x: f32[n,3]` is of any size `n` from 2 on."""
    import hashlib, itertools, re

    short = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}
    narrow = {} if x64 else {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}

    def walk(value, leaf):
        if isinstance(value, dict):
            return {key: walk(part, leaf) for key, part in value.items()}
        if isinstance(value, (tuple, list)):
            make = getattr(value, "_make", type(value))
            return make([walk(part, leaf) for part in value])
        return None if value is None else leaf(value)

    def array(value):
        made = np.asarray(value)
        return made.astype(narrow.get(made.dtype.name, made.dtype))[()]

    def word(value):
        kind = re.sub("[a-z]+(?=[0-9])", lambda m: short.get(m[0], m[0]), value.dtype.name)
        return f"{kind}[{','.join(map(str, value.shape))}]"

    sizes = {}
    values = [walk(value, array) for value in values]
    for (name, expected), value in zip([t.split(": ", 1) for t in types.split("; ") if t], values, strict=True):
        found = _in_words(walk(value, word))
        if expected[0] == "#":
            found = "#" + hashlib.sha256(found.encode()).hexdigest()[:12]
        tokens = [re.findall(r"(?<=[\[,])\w+|[^][,]+|.", text) for text in (expected, found)]
        for old, new in itertools.zip_longest(*tokens, fillvalue=""):
            is_size = old.isidentifier() and new.isdecimal()
            is_size = is_size and least.get(old, 2) <= int(new) <= most.get(old, int(new))
            is_size = is_size and int(new) % multiples.get(old, 1) == 0 and sizes.setdefault(old, new) == new
            if not is_size and new != old:
                raise TypeError(
                    f"this was written for {name}: {expected}, not for {found}. Write the original for that."
                )
    return values[0] if len(values) == 1 else values


@helper()
def types_in_words(tree: Any, avals: Any, weak: bool) -> str:
    """The type of a pytree as the check says it; keys are their words there."""
    words = []
    for aval in avals:
        word = aval.str_short(short_dtypes=True)
        if jax_compat.is_key_dtype(aval.dtype):
            word = f"u32[{','.join(map(str, (*aval.shape, 2)))}]"
        words.append(word)
    return _in_words(tree.unflatten(words))


_ = np  # the helper's text needs it
