"""Words from outside made identifiers: whatever a program calls its things, the result is one, and no keyword."""

from __future__ import annotations

import builtins
import functools
import keyword
import re
import unicodedata

# What the written text may refer to. Hiding any other builtin would be legal but would mislead a reader.
MODULE_NAMES = frozenset(
    "jax jnp lax np functools sys os math dataclasses typing primitives pl pltpu sparse primitives random nn "
    "collections io zipfile PartitionSpec ravel_pytree fnmatch hashlib itertools re _checked _spelled_out "
    "_type_of _KNOWN _X64 _placed _answer".split()
)
RESERVED = frozenset(dir(builtins)) | frozenset(keyword.kwlist) | frozenset(keyword.softkwlist) | MODULE_NAMES

_NOT_WORD = re.compile(r"\W+")
_CAPITALS = re.compile(r"([A-Z]+)([A-Z][a-z])")
_CAPITAL = re.compile(r"([a-z0-9])([A-Z])")

LONGEST = 40  # characters of a name


def snake_case(name: str) -> str:
    """`RMSNorm` -> `rms_norm`, `SwiGLU` -> `swi_glu`, `Conv2d` -> `conv2d`."""
    name = _CAPITALS.sub(r"\1_\2", name.strip("_"))
    return _CAPITAL.sub(r"\1_\2", name).lower()


@functools.lru_cache(1 << 13)
def identifier(text: str, fallback: str) -> str:
    """`text` turned into an ASCII identifier of at most `LONGEST` characters; `fallback` where nothing is left of it.

    `text` is data from outside: whatever it holds, the result is [A-Za-z_][A-Za-z0-9_]* and no keyword.
    """
    if not (text.isascii() and text.isidentifier()):
        plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
        text = _NOT_WORD.sub("_", plain).strip("_")
        if not text or not (text[0].isalpha() or text[0] == "_"):
            text = f"{fallback}_{text}" if text else fallback
    text = text[:LONGEST]
    if keyword.iskeyword(text) or text.startswith("__"):
        text = fallback if text.startswith("__") else text + "_"
    return text
