"""Types in words, for the check of an entry's arguments."""

from __future__ import annotations

from typing import Any

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


@helper(last="_compared")
def _compared(types, found, least, most, multiples):
    """Raises where types in words are not those that this was written for."""
    import hashlib, itertools, re

    sizes = {}
    for (name, expected), words in zip([t.split(": ", 1) for t in types.split("; ") if t], found, strict=True):
        if expected[0] == "#":
            words = "#" + hashlib.sha256(words.encode()).hexdigest()[:12]
        tokens = [re.findall(r"(?<=[\[,])\w+|[^][,]+|.", text) for text in (expected, words)]
        for old, new in itertools.zip_longest(*tokens, fillvalue=""):
            is_size = old.isidentifier() and new.isdecimal()
            is_size = is_size and least.get(old, 2) <= int(new) <= most.get(old, int(new))
            is_size = is_size and int(new) % multiples.get(old, 1) == 0 and sizes.setdefault(old, new) == new
            if not is_size and new != old:
                raise TypeError(
                    f"this was written for {name}: {expected}, not for {words}. Write the original for that."
                )


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
