"""JAX's own code: where it stands, what is told from that, and its functions exchanged for a while."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax


@functools.cache
def own_folder() -> str:
    """The folder of this package: frames of functions in it may stand between JAX's own where calls are intercepted."""
    return os.path.dirname(os.path.abspath(__file__)) + os.sep


def is_jax_module(name: str) -> bool:
    return name == "jax" or name.startswith("jax.")


# What the docstrings begin with that JAX gives to transformed functions (jax/_src/api.py).
_TRANSFORMED = ("Gradient of", "Value and gradient of", "Vectorized version of", "Jacobian of", "Hessian of")


def transformation(function: Any) -> str:
    """ "Gradient of `loss` with respect to positional argument(s) 0" of what `jax.grad` gave; "" of a plain function."""
    code = getattr(function, "__code__", None)
    doc = getattr(function, "__doc__", None)
    name = getattr(function, "__name__", None)
    if code is None or not isinstance(doc, str) or not isinstance(name, str) or not doc.startswith(_TRANSFORMED):
        return ""
    if not is_jax_module(_module_of(code)):
        return ""
    sentence = " ".join(doc.split()).split(". ")[0].rstrip(".")
    head, _, rest = sentence.partition(" of ")
    inner = re.match(r"[\w<>]+", rest)
    # A later name may say the one transformation that there was: `grad_loss`.
    if inner is None or not re.fullmatch(
        r"(|grad_|value_and_grad_|vmap_|jac\w{3}_|hessian_)" + re.escape(inner.group()), name
    ):
        return ""
    name = inner.group()
    rest, _, numbers = rest[len(name) :].partition(" with respect to positional argument(s) ")
    names = list(inspect.signature(function).parameters) if numbers else []
    places = [int(n) for n in re.findall(r"\d+", numbers)]
    if places and all(p < len(names) for p in places):
        rest = f"{rest} with respect to " + ", ".join(f"`{names[p]}`" for p in places)
    return f"{head} of `{name}`{rest}"


def _module_of(code: Any) -> str:
    """`jax._src.api` for code that stands in JAX's own folder."""

    return "jax" if os.path.abspath(code.co_filename).startswith(jax_folder()) else ""


@functools.cache
def jax_folder() -> str:
    return os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


def copy_cache(cached: Any, wrapper: Any) -> None:
    """A wrapper of a cached function is one as well."""
    for name in ("cache_clear", "cache_info", "evict_weakref"):
        if hasattr(cached, name):
            setattr(wrapper, name, getattr(cached, name))


_REPLACING = threading.RLock()


@contextlib.contextmanager
def replaced(module: Any, **functions: Callable[..., Any]) -> Iterator[None]:
    """Inside, those functions of a module are others for this thread; those that it does not have stay missing.

    What another thread takes out of the module meanwhile is the module's own function again afterwards, for every thread.
    """
    inside: int | None = threading.get_ident()

    def dispatch(before: Any, function: Any) -> Any:
        return lambda *args, **kwargs: (function if threading.get_ident() == inside else before)(*args, **kwargs)

    with _REPLACING:
        before = {name: getattr(module, name) for name in functions if hasattr(module, name)}
        for name, value in before.items():
            setattr(module, name, dispatch(value, functions[name]))
        try:
            yield
        finally:
            inside = None
            for name, value in before.items():
                setattr(module, name, value)


# By the qualified names of JAX's own functions, and what a user calls that.
_NAMES = {
    "grad.<locals>.grad_f": "grad", "grad.<locals>.grad_f_aux": "grad",
    "value_and_grad.<locals>.value_and_grad_f": "value_and_grad",
    "value_and_grad.<locals>.value_and_grad_f_aux": "value_and_grad", "vmap.<locals>.vmap_f": "vmap",
    "jacfwd.<locals>.jacfun": "jacfwd", "jacrev.<locals>.jacfun": "jacrev",
    "checkpoint.<locals>.fun_remat": "checkpoint",
}  # fmt: skip
_JITTED = type(jax.jit(lambda: None))


@dataclasses.dataclass(frozen=True, slots=True)
class Inside:
    """A call of the function in a transformation. `how`: "grad", "vmap" and so on. The arguments are values where the
    transformation hands them on, and types where it takes an axis away."""

    how: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def differentiated(
    function: Any,
) -> tuple[Callable[..., Any], Callable[[Callable[..., Any]], Callable[..., Any]]] | None:
    """What `jax.grad` or `jax.value_and_grad` differentiates (behind `jax.jit` too), and what takes the same derivative of
    another function; None of another function."""
    jitted = getattr(function, "__wrapped__", None)
    if isinstance(function, _JITTED) and callable(jitted):
        return differentiated(jitted)
    how, own = _own(function)
    if how == "grad":
        _, own = _own(_closed_over(own, "value_and_grad_f"))
    inner = _closed_over(own, "fun")
    if how not in ("grad", "value_and_grad") or not callable(inner):
        return None
    options = {name: _closed_over(own, name) for name in ("argnums", "has_aux", "holomorphic", "allow_int")}
    return inner, functools.partial(getattr(jax, how), **options)


def inside_transformation(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inside | None:
    """What a call of what `jax.grad`, `vmap`, `jit` and so on gave calls inside; None of another function."""
    jitted = getattr(function, "__wrapped__", None)
    if isinstance(function, _JITTED) and callable(jitted):
        return Inside("jit", jitted, args, dict(kwargs))
    how, own = _own(function)
    if how == "grad":
        _, own = _own(_closed_over(own, "value_and_grad_f"))
    inner = _closed_over(own, "fun")
    if not callable(inner):
        return None
    return _of_one_element(inner, own, args, kwargs) if how == "vmap" else Inside(how, inner, args, dict(kwargs))


def _own(function: Any) -> tuple[str, Any]:
    """The transformation that gave a function, and JAX's own function behind it; ("", None) of another function."""
    code = getattr(function, "__code__", None)
    while code is not None and code.co_filename.startswith(jax_folder()):
        if code.co_qualname in _NAMES:
            return _NAMES[code.co_qualname], function
        function = _closed_over(function, "fun")  # around it stands what makes JAX's errors short
        code = getattr(function, "__code__", None)
    return "", None


def _closed_over(function: Any, name: str) -> Any:
    code = getattr(function, "__code__", None)
    if code is None or name not in code.co_freevars:
        return None
    return function.__closure__[code.co_freevars.index(name)].cell_contents


class _Seen(Exception):
    """Ends a trace whose arguments are known."""


def _of_one_element(inner: Any, own: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inside | None:
    """The call of a mapped function for one element, of the types that `jax.vmap` itself hands on; None where it refuses."""
    seen: list[Any] = []

    def function(*inner: Any, **named: Any) -> Any:
        seen.extend(jax.tree.map(_type_of, (inner, named)))
        raise _Seen

    options = {name: _closed_over(own, name) for name in ("in_axes", "axis_name", "axis_size")}
    with contextlib.suppress(Exception):  # what JAX refuses here, it refuses where the function itself is traced
        jax.eval_shape(jax.vmap(function, **options), *args, **kwargs)
    return Inside("vmap", inner, *seen) if seen else None


def _type_of(leaf: Any) -> Any:
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
