"""The environment of torchax that modules are run in: its tables with ours in them, and tensors that know of views."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from untrace._errors import UnsupportedPrimitiveError
from untrace.torch import arguments, randomness, views
from untrace.torch.bridge import array_of, element, missing, torchax
from untrace.torch.ops.table import ADDED, table


@functools.cache
def environment() -> Any:
    """The torchax environment that modules are run in. One per process: its tables take a second to fill."""
    library = torchax()
    import jax
    import jax.numpy as jnp
    import torch
    from torch.utils import _pytree as torch_pytree

    tensor = library.tensor

    class Tensor(tensor.Tensor):
        """torchax's, whose methods that bypass `dispatch` know of views."""

        def __setitem__(self, key: Any, value: Any) -> None:
            with noticed((self, key, value)):
                super().__setitem__(key, value)

        def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
            views.fresh(self)
            start, end = start_dim % max(self.ndim, 1), end_dim % max(self.ndim, 1)

            def flat(array: Any) -> Any:
                return jnp.reshape(array, (*array.shape[:start], -1, *array.shape[end + 1 :]))

            return views.link(Tensor(flat(self._elem), self._env), self, flat, "flatten")

        def type_as(self, other: Any) -> Any:
            return self.to(other.dtype)  # torchax's changes the tensor itself

        def detach(self) -> Any:
            return views.link(super().detach(), views.fresh(self), jax.lax.stop_gradient, "detach")

        def jax(self) -> Any:
            return views.fresh(self)._elem

    def tensors_in(values: Any) -> list[Any]:
        return [x for x in torch_pytree.tree_leaves(values) if isinstance(x, tensor.Tensor)]

    @contextlib.contextmanager
    def noticed(values: Any) -> Iterator[None]:
        before = views.watched(tensors_in(values))
        yield
        views.notice(before)

    def adopted(x: Any) -> Any:
        if type(x) is tensor.View:
            return Tensor(x.jax(), x._env)
        if type(x) is tensor.Tensor:
            x.__class__ = Tensor
        return x

    class Environment(tensor.Environment):
        """torchax's, where every tensor is a JAX array, and a missing operation is an error of ours."""

        def _should_use_torchax_tensor(self, device: Any) -> bool:
            return True  # `torch.arange(n)` without a device is part of the program as well

        def t2j_iso(self, torchtensors: Any) -> Any:
            def own(x: Any) -> Any:
                return views.fresh(x) if isinstance(x, tensor.Tensor) else self.to_jax(x)

            return super().t2j_iso(torch_pytree.tree_map_only(torch.Tensor, own, torchtensors))

        def to_jax(self, value: Any) -> Any:
            """A tensor of PyTorch that the module holds, as a constant of the program."""
            return Tensor(array_of(value), self)

        def tensor(self, array: Any) -> Any:
            """An array as a tensor of this environment."""
            return Tensor(array, self)

        def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return self._without_gradient(func, types, args, kwargs)
            return self._dispatched(func, types, args, kwargs)

        def _without_gradient(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            """Under `torch.no_grad` nothing is learned through what comes from outside."""
            name = getattr(func, "__name__", "").partition(".")[0]
            in_place = name == "__setitem__" or name.endswith("_") and not name.endswith("__")

            def stopped(x: Any) -> Any:
                array = getattr(x, "_elem", None)
                if not isinstance(x, tensor.Tensor) or getattr(x, "is_stopped", False):
                    return x
                if not isinstance(array, jax.core.Tracer) or not jnp.issubdtype(array.dtype, jnp.inexact):
                    return x
                made = Tensor(jax.lax.stop_gradient(views.fresh(x)._elem), self)
                made.is_stopped = True
                return made

            def mark(x: Any) -> Any:
                if isinstance(x, tensor.Tensor):
                    x.is_stopped = True
                return x

            kept = 1 if in_place else 0  # what is changed stays the object that it is
            args = (*args[:kept], *torch_pytree.tree_map(stopped, tuple(args[kept:])))
            out = self._dispatched(func, types, args, torch_pytree.tree_map(stopped, kwargs or {}))
            return out if in_place else torch_pytree.tree_map(mark, out)

        def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "").partition(".")[0]
            if name in views.RESHAPING and isinstance(args[0], tensor.Tensor):
                return self._reshaped(name, types, args, kwargs)
            try:
                with noticed((args, kwargs)), arguments.marked((*args, *kwargs.values())):
                    with randomness.noted(func, self) as drawn:
                        out = torch_pytree.tree_map(adopted, super().dispatch(func, types, args, dict(kwargs)))
                        drawn.append(out)
                if _is_in_place(func, args, kwargs) and isinstance(out, tensor.Tensor):
                    with noticed(args[0]):
                        args[0]._elem = out._elem
                    return args[0]
                return self._linked(func, name, types, args, kwargs, out)
            except tensor.OperatorNotFound as error:
                if not isinstance(func, torch._ops.OpOverload):  # of functions PyTorch knows what they are made of
                    raise
                if name.endswith("_") and isinstance(args[0], tensor.Tensor):
                    return self._in_place(func, name, types, args, kwargs, error)
                raise UnsupportedPrimitiveError(missing(func)) from error

        def _in_place(self, func: Any, name: str, types: Any, args: Any, kwargs: Any, error: Exception) -> Any:
            """`x.exp_()` as what `x.exp()` gives, written to x."""
            packet = getattr(torch.ops.aten, name[:-1], None)
            overloads = packet.overloads() if packet is not None else ()
            if not overloads:
                raise UnsupportedPrimitiveError(missing(func)) from error
            own = func._overloadname if func._overloadname in overloads else overloads[0]
            out = self._dispatched(getattr(packet, own), types, args, kwargs)
            with noticed(args[0]):
                args[0]._elem = jnp.broadcast_to(out._elem.astype(args[0]._elem.dtype), args[0]._elem.shape)
            return args[0]

        def _reshaped(self, name: str, types: Any, args: Any, kwargs: Any) -> Any:
            """The tensor itself in another shape; a view stays one."""
            made = getattr(views.fresh(args[0]), "untrace_view", None)

            def again(array: Any) -> Any:
                return getattr(torch.Tensor, name[:-1])(Tensor(array, self), *args[1:], **kwargs)._elem

            args[0]._elem = again(args[0]._elem)
            if made is not None:
                before = made.forward
                made.forward = lambda array: again(before(array))
            return args[0]

        def _linked(self, func: Any, name: str, types: Any, args: Any, kwargs: Any, out: Any) -> Any:
            """`out`, which knows whose memory it shares."""
            if not args or not isinstance(args[0], tensor.Tensor):
                return out
            if name.startswith("dropout") and getattr(out, "_elem", None) is args[0]._elem:  # what it is in evaluation
                return views.link(out, args[0], lambda array: array, "alias")
            if name not in views.VIEWS:
                return out
            if name == "__getitem__" and not _is_basic(args[1]):
                return out
            for place, result in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
                if isinstance(result, tensor.Tensor):

                    def forward(array: Any, place: int = place) -> Any:
                        again = super(Environment, self).dispatch(
                            func, types, (Tensor(array, self), *args[1:]), dict(kwargs)
                        )
                        return element(again[place] if isinstance(again, (tuple, list)) else again)

                    views.link(result, args[0], forward, name)
            return out

    made = Environment()
    for function, implementation, options in table():
        operator = library.ops.ops_registry.Operator(
            function, implementation, is_jax_function=not options.get("tensors", False), is_user_defined=True,
            needs_env=options.get("needs_env", False), is_view_op=False,
        )  # fmt: skip
        made._ops[function] = operator
    return made


def _is_in_place(function: Any, args: Any, kwargs: Any) -> bool:
    """Whether a function like `relu(x, inplace=True)` writes to its argument."""
    if "inplace" in kwargs:
        return bool(kwargs["inplace"])
    return len(args) > 1 and any(a is True for a in args) and bool(_bound(function, args, kwargs).get("inplace"))


def _bound(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    try:
        return inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # functions of C have no signature, and no such argument
        return {}


def _is_basic(index: Any) -> bool:
    """Whether an index takes a part, and no elements by their numbers."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(p is None or p is Ellipsis or type(p) in (int, slice) for p in parts)


def torch_op(*functions: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: teaches `from_torch` an operation, as a function of JAX arrays: `@untrace.torch_op(torch.foo)`.

    functions: `torch.nn.functional.foo`, `torch.Tensor.foo`, or `torch.ops.aten.foo.default` as the error names it.
    """

    def register(implementation: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            ADDED.append((function, implementation, options))
        environment.cache_clear()
        return implementation

    return register
