"""The written text against PyTorch itself, on the inputs that it was written from."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from untrace.torch import randomness, trees
from untrace.torch import state as states
from untrace.torch.bridge import numpy_of
from untrace.torch.capture import Capture, call, draws_of

Gap = tuple[float, float]  # (relative error, ULPs)


_MOST_NAMED = 6  # outputs that are spoken of one by one
_FAR, _FAR_IN_ULPS = 1e-3, 64


@dataclass(frozen=True)
class Agreement:
    """How far the text is from PyTorch. `outputs`: by the path of each result; `gradients`: relative error by tensor.

    `why`: what kept one of them from being compared.
    """

    outputs: dict[str, Gap]
    gradients: dict[str, float]
    why: tuple[str, ...] = ()

    @property
    def worst(self) -> Gap:
        return max((g[0] for g in self.outputs.values()), default=0.0), max(
            (g[1] for g in self.outputs.values()), default=0.0
        )

    @property
    def worst_gradient(self) -> float:
        return max(self.gradients.values(), default=0.0)

    @property
    def is_far(self) -> bool:
        """Whether an output is further from PyTorch than rounding goes."""
        return any(relative > _FAR and ulps > _FAR_IN_ULPS for relative, ulps in self.outputs.values())

    def sentences(self) -> list[str]:
        """For people: one line for the outputs, one for the gradients, one for what was not compared."""
        import torch

        found = []
        if self.outputs:
            error, ulps = self.worst
            found.append(
                f"against PyTorch {torch.__version__.partition('+')[0]} on the example: outputs within "
                f"{error:.1e} relative ({ulps:.0f} ULP at most)"
            )
            if 1 < len(self.outputs) <= _MOST_NAMED:
                said = [f"{name} {gap:.1e} ({ulp:.0f} ULP)" for name, (gap, ulp) in self.outputs.items()]
                found.append("by output: " + ", ".join(said))
        if self.gradients:
            found.append(f"gradients of a weighted sum of the outputs within {self.worst_gradient:.1e} of autograd's")
        return [*found, *self.why]


def against_torch(text: Any, found: Capture, args: Any, kwargs: Any, gradients: bool = True) -> Agreement:
    """Runs `text` (the written function) and the module on the same inputs, with the same random numbers."""
    if not found.random:
        return _agreement(text, found, args, kwargs, gradients, contextlib.nullcontext)
    draws = draws_of(found)
    try:
        made = _agreement(text, found, args, kwargs, gradients, lambda: randomness.replayed(draws))
    except randomness.Unaligned:
        return Agreement({}, {}, ("not compared with PyTorch: the two draw different random numbers",))
    return dataclasses.replace(made, why=(*made.why, "PyTorch was given the random numbers that JAX drew"))


def _agreement(
    text: Any, found: Capture, args: Any, kwargs: Any, gradients: bool, drawing: Callable[[], Any]
) -> Agreement:
    """drawing: the context that PyTorch runs in, which says what it draws."""
    import torch

    module = copy.deepcopy(found.module)
    given = copy.deepcopy((args, kwargs))
    with torch.no_grad(), drawing():
        reference = trees.plain(call(found, module, *given), numpy_of)
    ours = jax.jit(text)(*found.args)
    names = jax.tree_util.tree_flatten_with_path(reference)[0]
    buffers: Any = {}
    if found.changed:
        ours, buffers = ours
    outputs = _gaps(names, jax.tree.leaves(ours))
    if found.changed:
        slots = {s.name: s for s in states.read_state(module).slots}
        after = {name: numpy_of(states.current(found.state, slots[name])) for name in found.changed}
        # The mean of what a batch norm before it has centred is zero but for rounding.
        least = 1e-2 * max(
            [float(np.abs(a).max(initial=0.0)) for a in after.values() if a.dtype.kind == "f"], default=0.0
        )
        for name, value in after.items():
            outputs[name] = _gap(value, np.asarray(states.lookup(buffers, name)), least)
    if not gradients:
        return Agreement(outputs, {})
    try:
        return Agreement(outputs, _gradients(text, found, args, kwargs, drawing))
    except (
        RuntimeError,
        TypeError,
    ) as error:  # of PyTorch's or JAX's: an operation that one of them cannot differentiate
        return Agreement(outputs, {}, (f"gradients not compared: {str(error).splitlines()[0][:120]}",))


def _gaps(reference: Any, ours: list[Any]) -> dict[str, Gap]:
    found = {}
    for (path, value), own in zip(reference, ours, strict=True):
        name = "output" + jax.tree_util.keystr(path)
        found[name] = _gap(np.asarray(value), np.asarray(own))
    return found


def _gap(reference: Any, ours: Any, least: float = 0.0) -> Gap:
    """Relative to the largest value of the tensor, or to `least` where that is larger; ULPs of its own dtype at that size
    (a small difference of large numbers has no ULPs of its own)."""
    if reference.shape != ours.shape:
        return float("inf"), float("inf")
    if not reference.size or reference.dtype.kind in "biu":
        same = np.array_equal(reference, ours)
        return (0.0, 0.0) if same else (float("inf"), float("inf"))
    wide = np.complex128 if reference.dtype.kind == "c" else np.float64
    left, right = reference.astype(wide), ours.astype(wide)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(left - right)).max()
    scale = np.abs(left[np.isfinite(left)]).max(initial=least)
    if not difference:
        return 0.0, 0.0
    precision = float(jnp.finfo(reference.dtype).eps)
    relative = float(difference / scale) if scale else float("inf")
    return relative, relative / precision


def _weights(leaves: list[Any]) -> list[np.ndarray]:
    """Fixed weights of the outputs, so that no gradient vanishes by symmetry (a softmax sums to one)."""
    return [np.cos(np.arange(x.numel()) + i).reshape(tuple(x.shape)).astype(np.float32) for i, x in enumerate(leaves)]


def _gradients(text: Any, found: Capture, args: Any, kwargs: Any, drawing: Callable[[], Any]) -> dict[str, float]:
    import torch

    module = copy.deepcopy(found.module)
    for parameter in module.parameters():
        parameter.requires_grad_(parameter.dtype.is_floating_point or parameter.dtype.is_complex)
    given = copy.deepcopy((args, kwargs))
    leaves: list[Any] = []
    with drawing():
        trees.plain(call(found, module, *given), leaves.append)
    reals = [torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in leaves]
    chosen = [i for i, x in enumerate(reals) if x.is_floating_point() and x.requires_grad]
    if not chosen:
        return {}
    weights = _weights([reals[i].detach() for i in chosen])
    loss: Any = sum((reals[i].float() * torch.from_numpy(w)).sum() for i, w in zip(chosen, weights, strict=True))
    loss.backward()

    order = _order_of((args, kwargs), found, drawing)

    def total(params: Any) -> Any:
        out = text(params, *found.args[1:])
        out = out[0] if found.changed else out
        own = [x for x in jax.tree.leaves(out)]
        own = [own[i] for i in order]
        own = [jnp.stack([x.real, x.imag], -1) if jnp.iscomplexobj(x) else x for x in own]
        return sum(jnp.sum(own[i].astype(jnp.float32) * w) for i, w in zip(chosen, weights, strict=True))

    ours = jax.jit(jax.grad(total))(found.args[0])
    named = dict(module.named_parameters())
    largest = max(
        (float(p.grad.abs().max()) for p in named.values() if p.grad is not None and p.grad.numel()), default=0.0
    )
    result = {}
    for name, parameter in named.items():
        is_complex = parameter.dtype.is_complex
        own = np.asarray(states.lookup(ours, name)).astype(np.complex128 if is_complex else np.float64)
        own = own.conj()  # JAX gives the derivative, PyTorch the direction of steepest ascent
        theirs = np.zeros_like(own)
        if parameter.grad is not None:
            theirs = numpy_of(parameter.grad if is_complex else parameter.grad.float()).astype(own.dtype)
        # Against the tensor's own size, but where that is nothing but rounding of the others: the gradient of a
        # key's bias in attention is zero in exact arithmetic.
        scale = max(np.abs(theirs).max(initial=0.0), 1e-2 * largest)
        result[name] = float(np.abs(own - theirs).max(initial=0.0) / scale) if scale else 0.0
    return result


def _order_of(given: Any, found: Capture, drawing: Callable[[], Any]) -> list[int]:
    """For each tensor of the module's result in its own order, its place among JAX's leaves (which sorts keys)."""
    import torch

    count = iter(range(10**6))
    with torch.no_grad(), drawing():
        numbered = trees.plain(call(found, copy.deepcopy(found.module), *copy.deepcopy(given)), lambda t: next(count))
    flat = jax.tree.leaves(numbered)
    return [flat.index(i) for i in range(len(flat))]
