"""Public paths of objects, as a written module imports them, and of functions, by their code."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from types import CodeType
from typing import Any

import jax

from untrace._identity import IdentityMap

_PUBLIC_MODULES = (
    "jax", "jax.numpy", "jax.lax", "jax.nn", "jax.random", "jax.numpy.linalg", "jax.scipy", "jax.scipy.special",
    "jax.scipy.linalg", "jax.sharding", "jax.dtypes", "jax.tree_util", "jax.ad_checkpoint", "jax.custom_derivatives",
    "jax.checkpoint_policies", "jax.experimental", "jax.experimental.sparse", "jax.experimental.layout",
    "jax.experimental.pallas", "jax.experimental.pallas.tpu", "jax.lax.linalg", "jax.ffi", "jax.ops", "jax.image", "jax.memory", "jax.experimental.sparse.util", "numpy", "math", "operator", "functools",  # noqa: E501
)  # fmt: skip

_PRIMITIVE_MODULES = (
    "jax.extend.core.primitives", "jax.lax", "jax.experimental.sparse", "jax.lax.linalg", "jax.interpreters.ad",
    "jax.custom_derivatives", "jax.interpreters.pxla", "jax.experimental.custom_partitioning", "jax.experimental.roofline",
)  # fmt: skip

_ALIASES = {
    "jax.numpy": "jnp", "jax.lax": "lax", "numpy": "np", "jax.experimental.pallas": "pl",
    "jax.experimental.pallas.tpu": "pltpu", "jax.experimental.sparse": "sparse",
}  # fmt: skip

# How a text imports what public paths begin with, line by line.
IMPORTS: Mapping[str, str] = {
    "jax": "import jax", "jnp": "import jax.numpy as jnp", "np": "import numpy as np", "lax": "from jax import lax",
    "pl": "from jax.experimental import pallas as pl", "pltpu": "from jax.experimental.pallas import tpu as pltpu",
    "sparse": "from jax.experimental import sparse", "ode": "from jax.experimental import ode",
    "PartitionSpec": "from jax.sharding import PartitionSpec",
}  # fmt: skip
# Those of them that are imported for nothing but their names.
ALIASES = frozenset({"jnp", "np", "lax"})

# What these lines bring of the modules above; `jax.experimental` and its like are imported by name.
_BROUGHT = ("jnp.", "lax.", "np.", "jax.tree_util.", "jax.nn.", "jax.random.", "jax.sharding.")
_ROOTS = {"jax": jax, "jnp": jax.numpy, "lax": jax.lax}


def is_internal_module(name: str) -> bool:
    """Whether a module is one of those that JAX moves as it likes: a written module imports none of them."""
    return name.startswith(("jax._src", "jaxlib"))


def is_brought(path: str) -> bool:
    """Whether a public path needs no import but the one of what it begins with."""
    return path.startswith(_BROUGHT)


def imported_for(path: str) -> str:
    """The module that a text imports for a dotted public path: what it begins with, or all of it where that would not load it."""
    module = path.rpartition(".")[0]
    return module if module.startswith("jax.experimental") else path.split(".")[0]


def other_homes(module: str) -> tuple[str, ...]:
    """Public modules beside those around it that may have what `module` defines."""
    if module.split(".")[0] != "jax":
        return ()
    return "jax.tree_util", "jax.experimental.sparse", "jax.sharding", "jax.experimental.checkify"


def is_of_jax(module: str) -> bool:
    """Whether a module is JAX's, public or not."""
    return module.split(".")[0] in ("jax", "jaxlib")


def signature_of(path: str) -> Mapping[str, inspect.Parameter]:
    """The parameters of a public function of JAX that a text calls: `lax.scan`. Empty where they are not known."""
    root, *rest = path.split(".")
    found: Any = functools.reduce(lambda whole, word: getattr(whole, word, None), rest, _ROOTS.get(root))
    try:
        return inspect.signature(found).parameters
    except (TypeError, ValueError):
        return {}


def public_path(value: Any) -> str | None:
    """The dotted public path of a class or function as a written module spells it (`lax.GatherScatterMode`).

    Looked up, not guessed: the object found there is this very object. None where no public module has it.
    """
    import builtins

    try:
        return _PUBLIC_PATHS[value]
    except KeyError:
        pass
    name = getattr(value, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        return None
    found = _PUBLIC_PATHS[value] = name if getattr(builtins, name, None) is value else _search_public(value, name)
    return found


_PUBLIC_PATHS: IdentityMap[Any, str | None] = IdentityMap()


def _search_public(value: Any, name: str) -> str | None:
    import importlib

    for module_name in _PUBLIC_MODULES:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            module = jax
            for part in module_name.split(".")[1:]:
                module = getattr(module, part, None)
        if module is None:
            continue
        if getattr(module, name, None) is value:
            return f"{_ALIASES.get(module_name, module_name)}.{name}"
        for alias, found in vars(module).items():  # exported under another name (jax.memory.Space)
            if found is value and alias.isidentifier() and not alias.startswith("_"):
                return f"{_ALIASES.get(module_name, module_name)}.{alias}"
    return None


def public_primitive(prim: Any) -> str | None:
    """The dotted path under which a primitive object can be imported from a public module, verified by lookup."""
    import importlib

    for module_name in _PRIMITIVE_MODULES:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        for name in (f"{prim.name}_p", f"{prim.name.replace('-', '_')}_p", f"mpl_{prim.name}_p"):
            if name.isidentifier() and getattr(module, name, None) is prim:
                return f"{module_name}.{name}"
        for name, value in vars(module).items():
            if value is prim and name.isidentifier() and not name.startswith("_"):
                return f"{module_name}.{name}"
    return None


def value_writers() -> list[tuple[type, Any]]:
    """(type, writer) pairs of parameter types whose classes JAX does not export; see `targets/jax/rules/params.py`."""
    return VALUE_WRITERS


VALUE_WRITERS: list[tuple[type, Any]] = []
_DISTRIBUTIONS = (
    "norm", "bernoulli", "beta", "betabinom", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma", "gennorm", "geom",
    "gumbel_l", "gumbel_r", "laplace", "logistic", "multinomial", "multivariate_normal", "nbinom", "pareto", "poisson", "t",
    "truncnorm", "uniform", "vonmises", "wrapcauchy",
)  # fmt: skip

# Those that a program does not import it does not call either: none is imported for the sake of looking.
_FUNCTION_MODULES = (
    "jax.numpy", "jax.nn", "jax.random", "jax.lax", "jax.numpy.linalg", "jax.numpy.fft", "jax.nn.initializers",
    "jax.scipy.special", "jax.scipy.linalg", "jax.scipy.signal", "jax.scipy.stats", "jax.scipy.fft", "jax.scipy.integrate",
    "jax.scipy.ndimage", "jax.scipy.cluster.vq", "jax.lax.linalg", "jax.image", "jax.ops", "jax",
    *[f"jax.scipy.stats.{name}" for name in _DISTRIBUTIONS],
)  # fmt: skip


def _loaded_modules() -> tuple[str, ...]:

    return _loaded_of(len(sys.modules))


@functools.lru_cache(1)
def _loaded_of(count: int) -> tuple[str, ...]:

    return tuple(path for path in _FUNCTION_MODULES if path in sys.modules)


@functools.cache
def _public_by_name(modules: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """`jax.numpy.mean` -> ("jax.numpy", "mean") for every public function of the modules."""

    found: dict[str, tuple[str, str]] = {}
    for path in modules:
        for name, value in sorted(vars(sys.modules[path]).items()):
            if not name.startswith("_") and callable(value):
                found[f"{path}.{name}"] = (path, name)
    return found


def public_functions() -> IdentityMap[CodeType, tuple[str, str]]:
    """A code object -> (public module, name) of JAX's own functions, below their decorators.

    The code objects live as long as the modules do; the first module that has a function comes first.
    """
    return _public_functions(_loaded_modules())


@functools.cache
def _public_functions(modules: tuple[str, ...]) -> IdentityMap[CodeType, tuple[str, str]]:

    found: IdentityMap[CodeType, tuple[str, str]] = IdentityMap()
    for path, name in _public_by_name(modules).values():
        function = vars(sys.modules[path])[name]
        while function is not None:
            code = getattr(function, "__code__", None)
            if code is not None and code.co_name == getattr(function, "__name__", None):
                found.setdefault(code, (path, name))
            function = getattr(function, "__wrapped__", None) or getattr(function, "fun", None)
    return found


def public_function_at(place: tuple[str, int, str]) -> tuple[str, str] | None:
    """("jax.scipy.stats.poisson", "entropy") of the function that stands there: a file, a line and its name."""
    return _functions_by_place(_loaded_modules()).get(place)


@functools.cache
def _functions_by_place(modules: tuple[str, ...]) -> dict[tuple[str, int, str], tuple[str, str]]:
    found = _public_functions(modules)
    return {(code.co_filename, code.co_firstlineno, code.co_name): found[code] for code in found}


def public_function_named(dotted: str) -> tuple[str, str] | None:
    """("jax.numpy", "add") of `jnp.add` as a user would write it; None for other names."""
    head, _, name = dotted.rpartition(".")
    for short, path in (("jnp", "jax.numpy"), ("lax", "jax.lax"), ("nn", "jax.nn"), ("random", "jax.random")):
        if head == short or head.startswith(short + "."):
            head = path + head[len(short) :]
            break
    return _public_by_name(_loaded_modules()).get(f"{head}.{name}")


def array_operation(code: Any) -> tuple[str, str] | None:
    """("operator", "add") or ("method", "sum") for the functions behind operators and methods of arrays.

    Source: jax/_src/numpy/array_methods.py, where `_operator_add` is `x + y` and `_sum` is `x.sum`.
    """
    file = code.co_filename
    if not file.endswith(("numpy/array_methods.py", "numpy\\array_methods.py")) or "<locals>" in code.co_qualname:
        return None
    name = code.co_name
    if name.startswith("_operator_"):
        word = name.removeprefix("_operator_")
        return "operator", word[1:] if word in _REFLECTED else word
    if name in ("_getitem", "__getitem__"):
        return "operator", "getitem"
    if code.co_qualname.startswith("_IndexUpdateRef."):
        return "at", name
    return ("method", name.lstrip("_")) if name.startswith("_") else None


_REFLECTED = frozenset(
    "radd rsub rmul rtruediv rfloordiv rmod rpow rmatmul rand ror rxor rlshift rrshift rdivmod".split()
)
