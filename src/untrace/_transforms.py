"""The command line's transformations: `--grad`, `--vmap`, … applied in the order of the flags."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from untrace._errors import OptionError

# JAX is imported where it is used: the command line reads its flags with this module, and
# `untrace --help` should not wait for JAX.

Function = Callable[..., Any]

# Transformation -> its options, each of them a keyword of the function in jax.
OPTIONS: dict[str, tuple[str, ...]] = {
    "grad": ("argnums", "has_aux"),
    "value_and_grad": ("argnums", "has_aux"),
    "jvp": (),
    "vmap": ("in_axes", "out_axes"),
    "jit": (),
}


@dataclass(frozen=True)
class Transform:
    """One transformation of jax: its name there and the keywords it gets."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


def apply(
    transforms: Sequence[Transform], function: Function, args: tuple[Any, ...]
) -> tuple[Function, tuple[Any, ...]]:
    """`function` under `transforms`, the first one innermost, and the arguments for the result.

    `args` are the arguments of the result but for the tangents of `jvp`, which are added here.

    Raises `OptionError` for an option that JAX refuses.
    """
    import jax

    from untrace.capture.function import name_of

    name = name_of(function)
    for transform in transforms:
        if transform.name == "jvp":
            function = _jvp(function, len(args))
            args = (*args, *_tangents(args))
        else:
            try:
                function = getattr(jax, transform.name)(function, **transform.options)
            except (TypeError, ValueError) as error:
                flag = transform.name.replace("_", "-")
                raise OptionError(f"--{flag} has a wrong option: {error}") from error
        if transform.name != "jit":
            name = f"{transform.name}_{name}"
    return _renamed(function, name) if transforms else function, args


def bind(function: Function, values: dict[str, Any]) -> Function:
    """`function` with the parameters in `values` fixed, and gone from its signature.

    Unlike with `functools.partial`, parameters after a fixed one can still be given by position.

    Raises `OptionError` for a name that is no parameter of `function`.
    """
    if not values:
        return function
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise OptionError("--static: the function's parameters are not known to Python.") from None
    parameters = signature.parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in values:
        if name not in parameters and not takes_any:
            has = ", ".join(parameters) or "none"
            raise OptionError(f"the function has no parameter {name!r}; it has {has}.")
    free = inspect.Signature([p for p in parameters.values() if p.name not in values])
    more = {name: value for name, value in values.items() if name not in parameters}

    def bound(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind_partial()
        call.arguments.update(free.bind(*args, **kwargs).arguments)
        call.arguments.update({name: values[name] for name in values if name in parameters})
        return function(*call.args, **call.kwargs, **more)

    return _standing_for(function, bound, free)


def _jvp(function: Function, count: int) -> Function:
    """The function of `count` primals and then their tangents, as `_tangents` makes them."""
    import jax

    def jvp(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten(args[:count])

        def of_differentiable(*differentiable: Any) -> Any:
            rest = iter(differentiable)
            merged = [next(rest) if _is_differentiable(leaf) else leaf for leaf in leaves]
            return function(*tree.unflatten(merged), **kwargs)

        primals = [leaf for leaf in leaves if _is_differentiable(leaf)]
        return jax.jvp(of_differentiable, primals, jax.tree.leaves(args[count:]))

    return _standing_for(function, jvp, _jvp_signature(function, count))


def _tangents(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """One tangent for each of `args`, of the same type.

    It has None where the argument is not differentiable (integers, Booleans, keys).
    """
    import jax

    return jax.tree.map(lambda leaf: leaf if _is_differentiable(leaf) else None, args)


def _is_differentiable(leaf: Any) -> bool:
    import jax.numpy as jnp

    return jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.inexact)


def _jvp_signature(function: Function, count: int) -> inspect.Signature:
    """`(x, y, x_dot, y_dot)` for a function of `(x, y)`; `(*args)` where no names are known."""
    unknown = inspect.signature(lambda *args: None)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return unknown
    primals = parameters[:count]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(primals) < count or any(p.kind not in positional for p in primals):
        return unknown
    names = [p.name for p in primals]
    names += [f"{name}_dot" for name in names]
    if len(set(names)) < len(names):
        return unknown
    keyword_only = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    return inspect.Signature(
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names] + keyword_only
    )


def _standing_for(function: Function, wrapper: Function, signature: inspect.Signature) -> Function:
    """`wrapper`, with the name and the source line of `function` and a signature of its own."""
    made: Any = functools.wraps(function)(wrapper)
    made.__signature__ = signature
    return wrapper


def _renamed(function: Function, name: str) -> Function:
    """`function`, called `name` from now on where Python allows it."""
    try:
        function.__name__ = name
        function.__qualname__ = name
    except (AttributeError, TypeError):
        pass  # a jitted function keeps its own name
    return function
