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
    of_model = {n: p for n, p in alone.named_parameters() if p.grad is not None}
    nothing = of_rounding(model, args, kwargs, of_model)
    both = [(p.grad, params[n].grad) for n, p in of_model.items() if n in params and n not in nothing]
    row["gradients"] = max((apart(a, b) if b is not None else np.inf for a, b in both), default=0.0)
    row["eps"] = max(torch.finfo(p.dtype).eps for p in of_model.values())
    row["parameters"] = f"{len(both)} of {len(of_model)}" + (f", {len(nothing)} zero" if nothing else "")
    record.put(row=row)


def of_rounding(model: Any, args: Any, kwargs: Any, known: dict[str, torch.nn.Parameter]) -> set[str]:
    """Parameters whose gradient is zero, and rounding alone in the module itself: in double precision nothing is left of it
    (the bias of an attention's keys). None are known of a module that PyTorch cannot run so (its grouped products)."""

    def wide(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    torch.set_default_dtype(torch.float64)
    try:
        exact = copy.deepcopy(model).double()
        outputs = exact(*jax.tree.map(wide, args), **jax.tree.map(wide, kwargs))
        weighted_sum(jax.tree.leaves(trees.plain(outputs, lambda t: t))).backward()
    except RuntimeError:
        return set()
    finally:
        torch.set_default_dtype(torch.float32)
    grads = {n: p.grad for n, p in exact.named_parameters() if p.grad is not None}
    return {n for n, p in known.items() if n in grads and grads[n].abs().max() < 1e-6 * p.grad.abs().max()}


def weighted_sum(outputs: Any) -> torch.Tensor:
    """A number that depends on each element otherwise."""
    parts = [
        (wide * torch.linspace(0.5, 1.5, x.numel(), dtype=wide.dtype).reshape(x.shape)).sum()
        for x in outputs
        if x.is_floating_point() and x.requires_grad
        for wide in [x if x.dtype == torch.float64 else x.float()]
    ]
    return sum(parts, torch.zeros((), dtype=parts[0].dtype) if parts else torch.zeros(()))


def apart(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    """The largest difference, relative to the largest number."""
    a, b = (numpy_of(x.detach().float()).astype(np.float64) for x in (theirs, ours))
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max(initial=0.0)) / (float(np.abs(a).max(initial=0.0)) or 1.0)
