"""PyTorch models written as JAX: the table that docs/torch.md cites.

    python bench/torch_zoo.py [--only REGEX] [--keep FOLDER] [--markdown]

Needs the extra `untrace[torch]`, and transformers for the models that begin with `hf_`; it installs nothing. Each model
is written by `untrace.from_torch`, saved, and run in a process of its own where neither torch nor untrace can be
imported, with weights that `load_params` reads from a safetensors file. Columns:

    proof      of the text against torchax's function
    outputs    largest difference from PyTorch, relative to the largest value of the tensor; of the saved module
    gradients  the same for the gradient of a weighted sum of the outputs, against autograd
    tokens     Python tokens written ÷ tokens of PyTorch's source: the functions of the model's own files that ran, and
               the constructors of the classes that ran (strides, heads and sizes stand there, and in the text).
               Comments, docstrings, `load_params` and the helpers of the guard do not count
    forwards   the same ÷ the functions alone, without constructors
    own        the same as `tokens`, without those functions written that stand for layers of PyTorch (an LSTM, a
               convolution), whose own code is not in the model's files
    names      of the local names of those functions that held tensors: the share that stands in the text
    classes    of the author's module classes that ran, and gave something else than what they got: the share that came
               back as exactly one function
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch_text
from readability import without_guard

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
    columns = ("model", "proof", "outputs", "gradients", "tokens", "forwards", "own", "names", "classes", "seconds")
    rows = [columns]
    failed = 0
    for name in MODELS:
        if not re.search(options.only, name):
            continue
        try:
            row = measure(name, options.keep)
        except Exception as error:  # one model must not hide the others
            row = (name, f"{type(error).__name__}: {str(error).splitlines()[0][:60]}", *[""] * 8)
            failed += 1
        rows.append(row)
        print("  ".join(str(c) for c in row), flush=True) if not options.markdown else None
    if options.markdown:
        for i, row in enumerate(rows):
            print("| " + " | ".join(map(str, row)) + " |")
            if i == 0:
                print("|" + "---|" * len(columns))
    return 1 if failed else 0


def built(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(model, arguments, keyword arguments); the weights are the same each time."""
    import torch

    sys.path.insert(0, str(HERE / "torch_models"))
    file, suffix = MODELS[name]
    module = importlib.import_module(file)
    sys.path.pop(0)
    torch.manual_seed(0)
    model = getattr(module, f"build_{suffix}" if suffix else "build")()
    inputs = getattr(module, f"inputs_{suffix}" if suffix else "inputs", getattr(module, "inputs", None))()
    return (model, (), inputs) if isinstance(inputs, dict) else (model, inputs, {})


def measure(name: str, keep: Path | None) -> tuple[Any, ...]:
    import untrace
    from untrace.torch.capture import capture

    model, args, kwargs = built(name)
    start = time.perf_counter()
    written = untrace.from_torch(model)(*args, **kwargs)
    seconds = time.perf_counter() - start
    gradients = [re.search(r"within ([\d.e+-]+)", n) for n in written.proof.notes if "autograd" in n]
    found = capture(model, args, kwargs)
    with tempfile.TemporaryDirectory() as folder:
        error = alone(written, model, found, args, kwargs, Path(folder))
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        written.save(keep / f"{name}.py", overwrite=True)
    found_out = torch_text.score(without_guard(written.source)[0], model, args, kwargs)
    ratios = found_out.source_ratio, found_out.forward_ratio, found_out.own_ratio
    return (
        name, written.proof.level, f"{error:.1e}", gradients[0][1] if gradients and gradients[0] else "-",
        *[f"{r:.2f}" for r in ratios], f"{100 * found_out.names:.0f} %", f"{100 * found_out.classes:.0f} %",
        f"{seconds:.1f}",
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


if __name__ == "__main__":
    sys.exit(main())
