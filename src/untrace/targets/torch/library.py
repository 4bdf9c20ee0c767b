"""PyTorch as a library of arrays: which of its functions may be JAX's."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np

from untrace.ir.nodes import Library
from untrace.lift.recognise.library import resolve
from untrace.python import helpers
from untrace.targets.eager.library import ArrayLibrary, Candidate, attribute, is_basic_update, with_type
from untrace.targets.torch.rules.table import TORCH
from untrace.targets.torch.tensors import INSIDE, array_of, has_type, inside

# Where PyTorch has what JAX has in a module.
_MODULES = {
    "jnp.linalg": "torch.linalg", "jnp.fft": "torch.fft", "jnp": "torch", "jax.nn": "F",
    "jax.scipy.special": "torch.special", "jax.scipy.linalg": "torch.linalg",
}  # fmt: skip
# What it calls by another name.
_NAMES = {
    "concatenate": "cat", "max": "amax", "min": "amin", "power": "pow", "expand_dims": "unsqueeze",
    "transpose": "permute", "astype": "to", "invert": "bitwise_not", "matrix_transpose": "mT", "swish": "silu",
}  # fmt: skip
_KEYWORDS = {"axis": "dim", "keepdims": "keepdim", "axes": "dims"}
# Functions that are not tried: the signs of their vectors are another library's, and `eigvals` of NaN ends the process.
_UNTRIED = frozenset(f"torch.linalg.{name}" for name in ("eig", "eigh", "eigvals", "svd"))
# Functions that want tensors alone.
_WITHOUT_NUMBERS = frozenset("atan2 nextafter igamma igammac zeta polygamma complex dot_general stack".split())

# What `x.at[index].add(y)` and its like do with both; "" where `y` takes the place of the other.
UPDATES = {
    "set": "", "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "power": "pow", "min": "minimum",
    "max": "maximum",
}  # fmt: skip

# Primitives whose derivatives are others where two cases meet: at 0, at a bound, at equal elements.
_OTHER_DERIVATIVES = frozenset(
    {"abs", "clamp", "cummax", "cummin", "reduce_window", "reduce_window_max", "reduce_window_min"}
)
# Functions of which that is so as well, and whose bodies have JAX's derivative.
_BY_THEIR_BODIES = frozenset({"clip"})


def _candidates(callee: Library) -> Iterator[Candidate]:
    """The function of the same name, and that which PyTorch calls otherwise; with its words for axes."""
    import torch

    kwargs = {_KEYWORDS.get(k, k): v for k, v in callee.kwargs.items()}
    callee = Library(callee.name, jax.tree.map(_within_float32, callee.args), callee.kwargs, callee.body)
    kind, _, rest = callee.name.partition(".")
    if callee.name.rpartition(".")[2] in _BY_THEIR_BODIES:
        return
    if kind == "at" and rest in UPDATES and is_basic_update(callee):
        combine = getattr(torch, UPDATES[rest]) if UPDATES[rest] else None
        yield Candidate(Library(callee.name, callee.args, {}, callee.body), functools.partial(_put(), combine=combine))
        return
    if kind in ("operator", "unpack"):
        function = resolve(callee.name)
        if function is not None:
            yield Candidate(Library(callee.name, callee.args, kwargs, callee.body), function)
    elif kind in ("method", "attribute"):
        for name in dict.fromkeys((_NAMES.get(rest, rest), rest)):
            path = f"{kind}.{name}"
            function = resolve(path)
            if function is not None and (kind == "attribute" or callable(getattr(torch.Tensor, name, None))):
                yield Candidate(Library(path, callee.args, kwargs, callee.body), function)
    else:
        module, _, word = callee.name.rpartition(".")
        below = _MODULES.get(module)
        if below is not None:
            for name in dict.fromkeys((_NAMES.get(word, word), word)):
                path = f"{below}.{name}"
                root = torch.nn.functional if below == "F" else torch
                function = attribute(root, path.split(".")[1:])
                if function is not None and path not in _UNTRIED:
                    yield from with_type(Candidate(Library(path, callee.args, kwargs, callee.body), function))
                    if "dim" in kwargs:  # `torch.roll` has it in the plural
                        plural = {"dims" if k == "dim" else k: v for k, v in kwargs.items()}
                        yield Candidate(Library(path, callee.args, plural, callee.body), function)
                    axis = {} if "dim" in kwargs else _axis_by_default(callee.name)
                    if axis:  # PyTorch's `softmax` warns where no axis is said
                        yield Candidate(Library(path, callee.args, kwargs | axis, callee.body), function)


def _within_float32(value: Any) -> Any:
    """A number as PyTorch takes it: the largest of float32, written with its few digits, is more than that, and an error."""
    is_over = type(value) is float and float(np.finfo(np.float32).max) < abs(value) < np.inf
    return float(np.float32(value)) if is_over and np.isfinite(np.float32(value)) else value


def _axis_by_default(name: str) -> dict[str, int]:
    """Along which axis a function of JAX goes where nothing is said: nothing where that is none, or all."""
    function = resolve(name)
    try:
        axis = inspect.signature(function).parameters.get("axis") if function is not None else None
    except ValueError:  # it does not say what it takes
        return {}
    return {"dim": axis.default} if axis is not None and type(axis.default) is int else {}


@functools.cache
def _put() -> Callable[..., Any]:
    """The helper of that name, as it stands in a text."""
    import torch

    module = ModuleType("helpers")
    vars(module)["torch"] = torch
    exec(helpers.text(helpers.key("_put", "torch")), vars(module))
    return vars(module)["_put"]


def _typed(dtype: np.dtype) -> Any:
    import torch

    return bool if dtype == np.bool_ else getattr(torch, INSIDE[dtype.name])


@contextlib.contextmanager
def _with_another_default() -> Iterator[None]:
    """A default type that no program has: what takes the default names its type in the text."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _goes_back(call: Callable[[Sequence[Any]], Any], values: Sequence[Any]) -> bool:
    """`torch.vander` is one that writes over what its own derivative needs, and `x.any(dim=())` another one under `vmap`."""
    import torch

    tracked = [
        v.detach().clone().requires_grad_() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for v in values
    ]
    found = call(tracked)
    parts = found if isinstance(found, (tuple, list)) else [found]
    sums = [p.sum() for p in parts if isinstance(p, torch.Tensor) and p.requires_grad]
    if sums:
        torch.autograd.backward(sums)
    return _is_mapped(call, values, [p.detach() if isinstance(p, torch.Tensor) else p for p in parts])


def _is_mapped(call: Callable[[Sequence[Any]], Any], values: Sequence[Any], parts: Sequence[Any]) -> bool:
    """Whether `torch.func.vmap` of a call gives the same, each time. It raises what PyTorch does."""
    import torch

    places = [place for place, v in enumerate(values) if isinstance(v, torch.Tensor)]

    def one(*tensors: Any) -> Any:
        given = dict(zip(places, tensors, strict=True))
        found = call([given.get(place, v) for place, v in enumerate(values)])
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)

    if not places or not all(isinstance(p, torch.Tensor) for p in parts):
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a slow way
        several = torch.func.vmap(one)(*[torch.stack([values[place]] * 2) for place in places])
    return all(
        s[1].shape == p.shape and s.dtype == p.dtype and torch.allclose(s[1], p, rtol=1e-3, atol=1e-5, equal_nan=True)
        for s, p in zip(several, parts, strict=True)
    )


LIBRARY = ArrayLibrary(
    "PyTorch",
    TORCH,
    _candidates,
    into=inside,
    out_of=array_of,
    typed=_typed,
    has_type=has_type,
    takes_numbers=lambda dtype: True,
    without_numbers=_WITHOUT_NUMBERS,
    bare=True,
    other_derivatives=_OTHER_DERIVATIVES,
    quietly=_with_another_default,
    goes_back=_goes_back,
)
