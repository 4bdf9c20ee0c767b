"""PyTorch models written as JAX: the table that docs/torch.md cites.

    python bench/torch_zoo.py [--only REGEX] [--keep FOLDER] [--markdown]

Needs the extra `untrace[torch]`, and transformers for the models that begin with `hf_`; it installs nothing. Each model
is written by `untrace.from_torch`, saved, and run in a process of its own where neither torch nor untrace can be
imported, with weights that `load_params` reads from a safetensors file. Columns:

    proof      of the text against torchax's function
    outputs    largest difference from PyTorch, relative to the largest value of the tensor; of the saved module
    gradients  the same for the gradient of a weighted sum of the outputs, against autograd
    tokens     Python tokens written ÷ tokens of the classes' own `forward`s and of what they call in their file;
               comments, docstrings and `load_params` do not count
    names      of the author's local names in those functions: the share that stands in the text
    classes    of the author's module classes that ran: the share that came back as exactly one function
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import io
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODELS = {
    "llama_block": ("llama_block", ""), "llama_block_bf16": ("llama_block", "bf16"), "llama": ("llama", ""),
    "vit": ("vit", ""), "resnet_eval": ("resnet", ""), "resnet_train": ("resnet", "train"), "unet": ("unet", ""),
    "lstm": ("recurrent", ""), "gru": ("recurrent", "gru"), "seq2seq": ("seq2seq", ""), "moe": ("moe", ""),
    **{f"hf_{n}": ("transformers_models", f"hf_{n}") for n in ("llama", "gpt2", "bert", "t5", "mixtral")},
}  # fmt: skip

_ALONE = """
import importlib, json, sys
for name in ("torch", "torchax", "untrace", "transformers", "safetensors"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
module = importlib.import_module(sys.argv[2])
loaded = module.load_params(sys.argv[1] + "/weights.safetensors")
given = np.load(sys.argv[1] + "/inputs.npz")
inputs = [given[k] for k in sorted(given.files, key=lambda k: int(k[1:]))]
bf16 = json.loads(sys.argv[3])
inputs = [x.view("bfloat16") if i in bf16 else x for i, x in enumerate(inputs)]
out = getattr(module, sys.argv[2])(*(loaded if type(loaded) is tuple else (loaded,)), *inputs)
np.savez(sys.argv[1] + "/outputs.npz", *[np.asarray(x, "float32") if x.dtype.name == "bfloat16" else np.asarray(x) for x in jax.tree.leaves(out)])
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the written modules there")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path.insert(0, str(HERE / "torch_models"))
    columns = ("model", "proof", "outputs", "gradients", "tokens", "names", "classes", "seconds")
    rows = [columns]
    failed = 0
    for name in MODELS:
        if not re.search(options.only, name):
            continue
        try:
            row = measure(name, options.keep)
        except Exception as error:  # one model must not hide the others
            row = (name, f"{type(error).__name__}: {str(error).splitlines()[0][:60]}", *[""] * 6)
            failed += 1
        rows.append(row)
        print("  ".join(str(c) for c in row), flush=True) if not options.markdown else None
    if options.markdown:
        for i, row in enumerate(rows):
            print("| " + " | ".join(map(str, row)) + " |")
            if i == 0:
                print("|" + "---|" * len(columns))
    return 1 if failed else 0


def measure(name: str, keep: Path | None) -> tuple[Any, ...]:
    import torch

    import untrace
    from untrace.torch.capture import capture

    file, suffix = MODELS[name]
    module = importlib.import_module(file)
    torch.manual_seed(0)
    model = getattr(module, f"build_{suffix}" if suffix else "build")()
    inputs = getattr(module, f"inputs_{suffix}" if suffix else "inputs", getattr(module, "inputs", None))()
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    start = time.perf_counter()
    written = untrace.from_torch(model)(*args, **kwargs)
    seconds = time.perf_counter() - start
    gradients = [re.search(r"within ([\d.e+-]+)", n) for n in written.proof.notes if "autograd" in n]
    found = capture(model, args, kwargs)
    modules = [c.module for c in found.calls if isinstance(c.module, torch.nn.Module)]  # a part of a layer is none
    classes = {type(m) for m in modules if not type(m).__module__.startswith("torch.")}
    with tempfile.TemporaryDirectory() as folder:
        error = alone(written, model, found, args, kwargs, Path(folder))
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        written.save(keep / f"{name}.py", overwrite=True)
    text = written.source.split("# PyTorch's tensors")[0]
    sources = list(sources_of(classes, found))
    ratio = tokens(text) / max(1, sum(tokens(s) for s in sources))
    own = {n for s in sources for n in locals_of(s)}
    kept = own & names_in(text)
    one = [c for c in classes if heads(text).get(c.__name__, 0) == 1 or c is type(model)]
    return (
        name, written.proof.level, f"{error:.1e}", gradients[0][1] if gradients and gradients[0] else "-", f"{ratio:.2f}",
        f"{100 * len(kept) / max(1, len(own)):.0f} %", f"{100 * len(one) / len(classes):.0f} %", f"{seconds:.1f}",
    )  # fmt: skip


def alone(written: Any, model: Any, found: Any, args: Any, kwargs: Any, folder: Path) -> float:
    """Runs the saved module without PyTorch; the largest relative difference of its outputs."""
    import copy

    import jax
    import numpy as np
    import torch

    from untrace.torch import trees
    from untrace.torch.bridge import numpy_of

    written.save(folder / f"{written.name}.py")
    state = {n: t for n, t in model.state_dict().items() if n not in found.state.aliases}
    save_safetensors(folder / "weights.safetensors", state)
    count = len(found.inputs)
    arrays = [np.asarray(x) for x in jax.tree.leaves(found.args[len(found.args) - count :])]
    bf16 = [i for i, a in enumerate(arrays) if a.dtype.name == "bfloat16"]
    np.savez(folder / "inputs.npz", **{f"x{i}": a.view(np.int16) if i in bf16 else a for i, a in enumerate(arrays)})
    command = [sys.executable, "-c", _ALONE, str(folder), written.name, json.dumps(bf16)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""}, capture_output=True)
    with torch.no_grad():
        out = trees.plain(
            copy.deepcopy(model)(*args, **kwargs), lambda t: numpy_of(t.float() if t.dtype == torch.bfloat16 else t)
        )
    results = np.load(folder / "outputs.npz")
    worst = 0.0
    for place, theirs in enumerate(jax.tree.leaves(out)):
        ours = results[f"arr_{place}"]
        assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
        scale = float(np.abs(theirs).max()) or 1.0
        worst = max(worst, float(np.abs(ours.astype(theirs.dtype) - theirs).max()) / scale)
    return worst


def save_safetensors(path: Path, tensors: dict[str, Any]) -> None:
    from untrace.torch.bridge import numpy_of

    kinds = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64", "bool": "BOOL"}
    header: dict[str, Any] = {}
    data = bytearray()
    for name, tensor in tensors.items():
        raw = numpy_of(tensor).tobytes()
        kind = kinds[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))


# ---------------------------------------------------------------- what the text is compared with


def sources_of(classes: set[type], found: Any) -> Iterator[str]:
    """The `forward`s of the classes, and the functions and methods of the same files that they name, however deep."""
    seen: set[str] = set()
    by_file: dict[str, dict[str, str]] = {}
    todo: list[tuple[str, str]] = []
    for kind in sorted(classes, key=lambda k: k.__qualname__):
        file = inspect.getsourcefile(kind) or ""
        by_file.setdefault(file, definitions(file))
        source = _source(inspect.unwrap(kind.forward))
        if source and source not in seen:
            seen.add(source)
            todo.append((file, source))
            yield source
    while todo:
        file, source = todo.pop()
        for name in sorted({n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)} | attributes(source)):
            called = by_file[file].get(name)
            if called and called not in seen:
                seen.add(called)
                todo.append((file, called))
                yield called


def _source(function: Any) -> str:
    import textwrap

    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def attributes(source: str) -> set[str]:
    """Names of methods called on self."""
    return {
        n.func.attr
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and getattr(n.func.value, "id", "") == "self"
    }


def definitions(file: str) -> dict[str, str]:
    """Functions of a file, and methods that are no `forward`, by name."""
    text = Path(file).read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__") and node.name != "forward":
            found.setdefault(node.name, ast.unparse(node))
    return found


def tokens(source: str) -> int:
    """Tokens of Python without comments, docstrings, blank lines, annotations' own names kept as they are."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Module, ast.ClassDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = io.StringIO(ast.unparse(tree)).readline
    return sum(t.type not in skipped for t in tokenize.generate_tokens(lines))


def locals_of(source: str) -> set[str]:
    """Names that a function binds: its parameters but self, and what it assigns."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {n for n in found if n != "_"}


def names_in(source: str) -> set[str]:
    found = {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}
    found |= {a.arg for n in ast.walk(ast.parse(source)) if isinstance(n, ast.arguments) for a in n.args}
    return found | {re.sub(r"_\d+$", "", n) for n in found}


def heads(text: str) -> dict[str, int]:
    """How many functions say that they are a class."""
    found: dict[str, int] = {}
    for name in re.findall(r"^    # class (\w+)", text, re.M):
        found[name] = found.get(name, 0) + 1
    return found


if __name__ == "__main__":
    sys.exit(main())
