"""The check of a NumPy entry's arguments, which makes arrays of the right type of what JAX would take."""

from __future__ import annotations

import numpy as np

from untrace.print.jax.guard import GUARDS
from untrace.print.jax.runtime import helper

GUARDS["_checked_arrays"] = "_checked"


@helper("np")
def _checked_arrays(types, *values, least={}, multiples={}, most={}, weak=False, x64=False, prng=None):
    """The values, as arrays of JAX's types, where this was written for them: `x: f32[n,3]` is of any size `n` from 2 on."""
    import hashlib, itertools, re

    short = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}
    narrow = {} if x64 else {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}

    def walk(value):
        if isinstance(value, dict):
            pairs = {key: walk(value[key]) for key in sorted(value)}
            words = [f"{re.sub('; ', '', repr(key))}: {word}" for key, (_, word) in pairs.items()]
            return {key: array for key, (array, _) in pairs.items()}, f"{{{', '.join(words)}}}"
        if isinstance(value, (tuple, list)):
            pairs = [walk(part) for part in value]
            is_named = hasattr(value, "_make")
            start = type(value).__name__ if is_named else ""
            words = ", ".join([word for _, word in pairs])
            arrays = [array for array, _ in pairs]
            array = value._make(arrays) if is_named else type(value)(arrays)
            return array, f"[{words}]" if isinstance(value, list) else f"{start}({words})"
        if value is None:
            return None, "None"
        array = np.asarray(value)
        array = array.astype(narrow.get(array.dtype.name, array.dtype))[()]
        kind = re.sub("[a-z]+(?=[0-9])", lambda m: short.get(m[0], m[0]), array.dtype.name)
        return array, f"{kind}[{','.join(map(str, array.shape))}]"

    sizes, made = {}, []
    for (name, expected), value in zip([t.split(": ", 1) for t in types.split("; ") if t], values, strict=True):
        array, found = walk(value)
        made.append(array)
        words = re.sub(r"key<fry>\[(.*?)\]", lambda m: f"u32[{m[1] and m[1] + ','}2]", expected)
        plain = [re.sub("[~'\"]|,(?=\\))", "", text) for text in (words, found)]
        if expected[0] == "#":
            plain[1] = "#" + hashlib.sha256(found.encode()).hexdigest()[:12]
        tokens = [re.findall(r"(?<=[\[,])\w+|[^][,]+|.", text) for text in plain]
        for old, new in itertools.zip_longest(*tokens, fillvalue=""):
            is_size = old.isidentifier() and new.isdecimal() and int(new) >= least.get(old, 2)
            is_size = is_size and int(new) <= most.get(old, int(new))
            is_size = is_size and int(new) % multiples.get(old, 1) == 0 and sizes.setdefault(old, new) == new
            if not is_size and new != old:
                raise TypeError(
                    f"this was written for {name}: {expected}, not for {found}. Write the original for that."
                )
    return made[0] if len(made) == 1 else made


_ = np  # the helper's text needs it
