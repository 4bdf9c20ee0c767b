"""`load_params` in the written module: a state dict or a safetensors file -> the nested dicts, without PyTorch."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence

from untrace.torch.bridge import numpy_of
from untrace.torch.state import State, current

# Fixed text but for the words in angle brackets; the table is data, and is quoted.
HEAD = "# PyTorch's tensors: name, "
_LOADER = '''# PyTorch's tensors: name, where it goes, dtype, shape; `0-3` stands for 0, 1, 2, 3. `a = b`: tied, `a` is another
# name of `b`. `=0.0`: not in a state dict, but starts so.
_TENSORS = """\\
<table>
"""


def load_params(source):
    """The <what> from a state dict or a .safetensors file, by PyTorch's names.

    Raises ValueError with a list of the tensors that are missing, unexpected, or of another shape or dtype.
    """
    given = dict(source) if hasattr(source, "keys") else _read_safetensors(source)
    trees = {"params": {}, "buffers": {}, "unused": {}}
    entries = list(_entries())
    for name, kind, *rest in entries:
        if kind == "=" and name in given:
            given.setdefault(rest[0], given.pop(name))
    problems = []
    for name, kind, dtype, *sizes in entries:
        if kind == "=":
            continue
        shape = tuple(int(n) for n in sizes if n[0] != "=")
        if name not in given and len(sizes) > len(shape):
            given[name] = np.full(shape, float(sizes[-1][1:]), jnp.dtype(dtype))
        if name not in given:
            problems += [f"missing: {name} ({dtype} {shape})"] if kind != "unused" else []
            continue
        value = given.pop(name)
        found = str(value.dtype).removeprefix("torch."), tuple(value.shape)
        if found != (dtype, shape):
            problems.append(f"{name} is {found[0]} {found[1]}, not {dtype} {shape}")
            continue
        if hasattr(value, "detach"):  # a tensor of PyTorch, which cannot give NumPy its bfloat16
            value = value.detach().cpu()
            value = (value.float() if dtype == "bfloat16" else value).numpy()
        *path, last = name.split(".")
        node = trees[kind]
        for key in path:
            node = node.setdefault(key, {})
        node[last] = jnp.asarray(value, jax.dtypes.canonicalize_dtype(dtype))
    problems += [f"unexpected: {name}" for name in given]
    if problems:
        raise ValueError("these tensors do not fit this model:\\n  " + "\\n  ".join(problems))
    return <result>


def _entries():
    for line in _TENSORS.splitlines():
        name, *rest = line.split()
        parts = [part.split("-") if re.fullmatch(r"\\d+-\\d+", part) else part for part in name.split(".")]
        ranges = [[p] if isinstance(p, str) else range(int(p[0]), int(p[1]) + 1) for p in parts]
        for path in itertools.product(*ranges):
            yield ".".join(map(str, path)), *rest


def _read_safetensors(path):
    """{name: array}: the length of the header, the header as JSON, the raw bytes."""
    kinds = {
        "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
        "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    }
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = np.frombuffer(file.read(), np.uint8)
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        found[name] = data[start:stop].view(jnp.dtype(kinds[entry["dtype"]])).reshape(entry["shape"])
    return found
'''
_STANDARD = ("import itertools", "import json", "import re")
_OTHERS = ("import jax", "import jax.numpy as jnp", "import numpy as np")
# The same in a text for PyTorch, which takes the tensors as they are.
_FOR_TORCH = (
    (' if hasattr(source, "keys") else _read_safetensors(source)', ""),
    (" or a .safetensors file", ""),
    (
        "np.full(shape, float(sizes[-1][1:]), jnp.dtype(dtype))",
        "torch.full(shape, float(sizes[-1][1:]), dtype=getattr(torch, dtype))",
    ),
    ("jnp.asarray(value, jax.dtypes.canonicalize_dtype(dtype))", "value"),
)
_TORCH_IMPORTS = ("import itertools", "import re", "import torch")


def with_loader(source: str, state: State, names: Sequence[str], changed: Sequence[str], target: str = "jax") -> str:
    """The module's text with `load_params` at its end, and the imports that it needs."""
    both = "buffers" in names
    table = "\n".join(_table(state, changed, both)).replace("\\", "\\\\").replace('"', '\\"')
    loader = _LOADER
    if target == "torch":
        for old, new in _FOR_TORCH:
            loader = loader.replace(old, new)
        loader = _without(loader, '        if hasattr(value, "detach")', "        *path, last")
        loader = loader.partition("\n\n\ndef _read_safetensors")[0] + "\n"
    text = (
        loader.replace("<table>" if table else "<table>\n", table)
        .replace("<what>", "params and buffers" if both else "params")
        .replace("<result>", 'trees["params"], trees["buffers"]' if both else 'trees["params"]')
    )
    return f"{_with_imports(source, _STANDARD + _OTHERS if target == 'jax' else _TORCH_IMPORTS)}\n\n\n{text}"


def _without(text: str, start: str, end: str) -> str:
    """A text without the lines from one to another."""
    return text[: text.index(start)] + text[text.index(end) :]


def _table(state: State, changed: Sequence[str], both: bool) -> list[str]:
    """Every tensor of the state dict, and state that is not in it but changes."""
    found: list[tuple[str, str]] = []
    for slots in state.slots:
        name = slots.name
        if name in state.unsaved and name not in changed:
            continue
        value = current(state, slots)
        kind = state.kinds[name]
        words = [kind if kind == "params" or both else "unused", str(value.dtype).removeprefix("torch.")]
        words += [str(n) for n in value.shape]
        if name in state.unsaved:
            array = numpy_of(value.float() if value.dtype.is_floating_point else value)
            if array.size and (array == array.ravel()[0]).all():
                words.append(f"={float(array.ravel()[0])}")
        found.append((name, " ".join(words)))
    lines = [f"{name} {rest}" for name, rest in _folded(found)]
    return lines + [f"{alias} = {name}" for alias, name in state.aliases.items()]


def _folded(entries: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Numbered siblings of one type as one entry: `layers.0-3.weight`."""
    depth = max((name.count(".") for name, _ in entries), default=0)
    for place in range(depth, -1, -1):
        groups: dict[tuple[str, ...], list[int]] = {}
        for name, rest in entries:
            parts = name.split(".")
            number = parts[place] if place < len(parts) - 1 and parts[place].isdigit() else None
            key = (name, rest) if number is None else (".".join(parts[:place]), ".".join(parts[place + 1 :]), rest)
            groups.setdefault(key, []).extend([] if number is None else [int(number)])
        entries = []
        for key, numbers in groups.items():
            if len(key) == 2:
                entries.append((key[0], key[1]))
                continue
            for start, stop in _runs(numbers):
                middle = f"{start}-{stop}" if stop > start else f"{start}"
                entries.append((".".join(p for p in (key[0], middle, key[1]) if p), key[2]))
    return entries


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _with_imports(source: str, imports: Sequence[str]) -> str:
    """`source` with the loader's imports among its own."""
    lines = source.rstrip("\n").split("\n")
    # Only what stands before the first definition: a docstring's line may begin with these words as well.
    at = [i for i, line in enumerate(lines) if re.match(r"(import|from) [\w.]+( as \w+| import \w+)?$", line)]
    top = [
        i for i in at if i < next((j for j, x in enumerate(lines) if x.startswith(("def ", "@", "class "))), len(lines))
    ]
    own = [lines[i] for i in top]
    every = list(dict.fromkeys([*own, *imports]))
    standard = sorted(line for line in every if line.split()[1].split(".")[0] in sys.stdlib_module_names)
    rest = [line for line in every if line not in standard]
    rest.sort(key=lambda line: (_OTHERS.index(line) if line in _OTHERS else len(_OTHERS), line))
    if not top:  # arithmetic of Python's own only
        start = ast.parse(source).body[0].end_lineno or 0
        return "\n".join([*lines[:start], "", *standard, "", *rest, *lines[start:]])
    return "\n".join([*lines[: top[0]], *standard, "", *rest, *lines[top[-1] + 1 :]])
