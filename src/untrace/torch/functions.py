"""The author's subclasses of `torch.autograd.Function`: functions with a derivative of their own, as `jax.custom_vjp`."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from untrace._identifiers import identifier, snake_case
from untrace.torch.bridge import array_of, lacks
from untrace.torch.environment import environment


@contextlib.contextmanager
def with_derivatives() -> Iterator[None]:
    """Inside, `apply` of the author's functions is a call with their backward pass as its derivative."""
    import torch

    function = torch.autograd.Function
    original = function.__dict__.get("apply")

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith("torch.") or cls.backward is function.backward:
            return super(function, cls).apply(*args, **kwargs)
        return _applied(cls, args)

    function.apply = classmethod(apply)
    try:
        yield
    finally:
        if original is None:
            del function.apply
        else:
            function.apply = original


class Context:
    """What `forward` hands to `backward`: tensors, and anything else as attributes."""

    def __init__(self, count: int):
        self.needs_input_grad = (True,) * count
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """For a derivative forwards, which PyTorch's modules do not need."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Integers have no derivative in JAX anyway; of the others `backward` ignores the gradient."""

    def set_materialize_grads(self, value: bool) -> None:
        """Gradients are always arrays here."""

    def mark_dirty(self, *tensors: Any) -> None:
        raise lacks("torch.autograd.Function", "where it writes to its arguments (ctx.mark_dirty)")


def _sets_up(cls: Any) -> bool:
    """Whether a function fills its context apart from `forward`."""
    import torch

    return cls.setup_context is not torch.autograd.Function.setup_context


def _applied(cls: Any, args: Sequence[Any]) -> Any:
    import torch
    from torch.utils import _pytree

    env = environment()
    places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
    arrays = [env.t2j_iso(args[i]) if hasattr(args[i], "_elem") else array_of(args[i]) for i in places]

    def active() -> Any:
        return contextlib.nullcontext() if env.enabled else env  # derivatives are traced later

    def run(values: Sequence[Any]) -> tuple[Any, Context]:
        given = list(args)
        for place, value in zip(places, values, strict=True):
            given[place] = env.tensor(value)
        context = Context(len(args))
        with active():
            if _sets_up(cls):
                out = cls.forward(*given)
                cls.setup_context(context, tuple(given), out)
            else:
                out = cls.forward(context, *given)
            return _pytree.tree_map_only(torch.Tensor, env.t2j_iso, out), context

    # What `forward` keeps beside tensors is the same whenever it runs.
    kept: list[Any] = []

    def primal(*values: Any) -> Any:
        return run(values)[0]

    def forward(*values: Any) -> tuple[Any, Any]:
        out, context = run(values)
        with active():
            held, structure = _pytree.tree_flatten(vars(context))
            tensors = [i for i, x in enumerate(held) if isinstance(x, torch.Tensor)]
            residuals = [env.t2j_iso(held[i]) for i in tensors]
        kept[:] = [held, structure, tensors, values]
        return out, residuals

    def backward(residuals: Any, gradients: Any) -> tuple[Any, ...]:
        held, structure, tensors, values = kept
        with active():
            again = list(held)
            for place, value in zip(tensors, residuals, strict=True):
                again[place] = env.tensor(value)
            context = Context(len(args))
            vars(context).update(_pytree.tree_unflatten(again, structure))
            several = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
            found = cls.backward(context, *[env.tensor(g) for g in several])
            found = found if isinstance(found, tuple) else (found,)
            out = []
            for place, value in zip(places, values, strict=True):
                gradient = found[place] if place < len(found) else None
                if not jnp.issubdtype(value.dtype, jnp.inexact):
                    out.append(jax.custom_derivatives.zero_from_primal(value))
                elif gradient is None:
                    out.append(jnp.zeros(value.shape, value.dtype))
                else:
                    out.append(env.t2j_iso(gradient))
        return tuple(out)

    names = [n for n in inspect.signature(cls.forward).parameters][0 if _sets_up(cls) else 1 :]
    names = names if len(names) >= len(args) else []  # the rest have defaults
    if names:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(names[i], kind) for i in places]
        described: list[Any] = [primal, forward]
        for function in described:
            function.__signature__ = inspect.Signature(parameters)
    for function, suffix in ((primal, ""), (forward, "_fwd"), (backward, "_bwd")):
        function.__name__ = function.__qualname__ = function_name(cls) + suffix
    call = jax.custom_vjp(primal)
    call.defvjp(forward, backward)
    return _pytree.tree_map_only(jax.Array, env.tensor, call(*arrays))


def function_name(kind: type) -> str:
    return identifier(re.sub(r"\W", "_", snake_case(kind.__name__)), "module")
