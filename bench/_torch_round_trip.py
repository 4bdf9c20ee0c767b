"""A PyTorch model written as JAX and from there as PyTorch again, beside the model: for `targets.py --torch-zoo`."""

from __future__ import annotations

import copy
import re
from typing import Any

import jax
import numpy as np
import torch
import torch_zoo
from _check import first_line
from _common import Record

import untrace
from untrace.torch import trees
from untrace.torch.bridge import numpy_of
from untrace.torch.capture import capture


def measure_module(name: str, record: Record) -> None:
    """Records how far the text is from the model: largest differences of outputs and of gradients, relative to the largest
    number of each tensor. Its weights come from the model's state dict, by name."""
    model, args, kwargs = torch_zoo.built(name)
    found = capture(model, args, kwargs)
    made = untrace.from_torch(model)(*args, **kwargs)
    record.put(stage="to torch")
    try:
        text = made.to("torch")
    except untrace.UnsupportedPrimitiveError as error:
        missing = re.findall(r"`([\w-]+)`", str(error))
        record.put(row={"level": "refused", "detail": first_line(error), "missing": missing})
        return
    except untrace.ProofError as error:
        record.put(row={"level": "failed", "detail": first_line(error)})
        return
    row: dict[str, Any] = {"level": text.proof.level, "detail": str(text.proof), "source": text.source}
    state = {n: t for n, t in model.state_dict().items() if n not in found.state.aliases}
    loaded = text.module.load_params(state)
    loaded = loaded if type(loaded) is tuple else (loaded,)
    given = [*loaded, *[jax.tree.map(text._given, part) for part in found.args[len(loaded) :]]]
    params = {
        ".".join(str(key.key) for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(given[0])
    }
    for tensor in params.values():
        if tensor.is_floating_point():  # a parameter's own tensor: its gradient is that of the text
            tensor.requires_grad_()
    ours = jax.tree.leaves(getattr(text.module, text.name)(*given))
    alone = copy.deepcopy(model)
    theirs = jax.tree.leaves(trees.plain(alone(*args, **kwargs), lambda t: t))
    row["outputs"] = max(apart(a, b) for a, b in zip(theirs, ours, strict=False))
    weighted_sum(theirs).backward()
    weighted_sum(ours[: len(theirs)]).backward()
    of_model = dict(alone.named_parameters())
    both = [(p.grad, params[n].grad) for n, p in of_model.items() if n in params and p.grad is not None]
    row["gradients"] = max((apart(a, b) if b is not None else np.inf for a, b in both), default=0.0)
    row["parameters"] = f"{len(both)} of {sum(p.grad is not None for p in of_model.values())}"
    record.put(row=row)


def weighted_sum(outputs: Any) -> torch.Tensor:
    """A number that depends on each element otherwise."""
    parts = [
        (x.float() * torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape)).sum()
        for x in outputs
        if x.is_floating_point() and x.requires_grad
    ]
    return sum(parts, torch.zeros(()))


def apart(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    """The largest difference, relative to the largest number."""
    a, b = (numpy_of(x.detach().float()).astype(np.float64) for x in (theirs, ours))
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max(initial=0.0)) / (float(np.abs(a).max(initial=0.0)) or 1.0)
