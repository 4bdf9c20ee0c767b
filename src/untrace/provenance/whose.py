"""Whose code a frame runs: the user's, a library's, JAX's, or what says nothing to a reader."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sysconfig
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from untrace import jax_compat

# JAX's own functions that start a trace: frames outside them belong to whoever asked for it.
_ENTRIES = frozenset(
    "make_jaxpr make_jaxpr_f trace_to_jaxpr trace_to_jaxpr_dynamic trace_to_jaxpr_nounits _create_pjit_jaxpr".split()
)


# Transformations of `jax/_src/api.py` between a call of the user's and the function that it is about: what they give
# is (value, ...), or ("drop") nothing that holds the function's value.
_WRAPPERS = {
    "value_and_grad.<locals>.value_and_grad_f": "value", "vjp": "value", "jvp": "value", "linearize": "value",
    "grad.<locals>.grad_f": "drop", "grad.<locals>.grad_f_aux": "drop", "jacfwd.<locals>.jacfun": "drop",
    "jacrev.<locals>.jacfun": "drop",
}  # fmt: skip


def _folder(module: str) -> str:
    spec = importlib.util.find_spec(module)
    return os.path.dirname(spec.origin) + os.sep if spec is not None and spec.origin else "\0"


_JAX = (_folder("jax"), _folder("jaxlib"))
# PyTorch, torchax and mpi4jax stand between an author's module and JAX: their frames say nothing about either.
_CUT = (_folder("numpy"), _folder("untrace"), _folder("torch"), _folder("torchax"), _folder("mpi4jax"))
# Functions of JAX's own that are written as a library's are, on top of the rest: optimisers, layers.
_EXAMPLES = os.path.join(_JAX[0], "example_libraries", "")
# But for what has a name to a reader: `batch_norm`.
_TORCH_FUNCTIONS = os.path.join(_folder("torch"), "nn", "functional.py")
_STDLIB = tuple(os.path.join(sysconfig.get_path(p), "") for p in ("stdlib", "platstdlib"))
_API = os.path.join("_src", "api.py")
INSIDE = frozenset(("jax", "jvp", "value", "drop"))
_FILES: dict[str, str] = {}
_AUTHORS: set[str] = set()


@contextlib.contextmanager
def authors(files: Iterable[str]) -> Iterator[None]:
    """Inside, these files count as the user's own, installed or not: a model's source is what is being written back."""
    before = set(_AUTHORS)
    _AUTHORS.update(files)
    _FILES.clear()
    try:
        yield
    finally:
        _AUTHORS.clear()
        _AUTHORS.update(before)
        _FILES.clear()


# Where JAX's functions read like a user's; the rest of it deals with equations and tracers.
NAMING = tuple(os.path.join(_JAX[0], "_src", part) for part in ("nn", "numpy", "scipy", "image", "ops", "random.py"))
_SAYS_NOTHING = frozenset(
    "ans arr arr1 arr2 array args data dtype operand operands out output outputs primal_out primals_out res result results "
    "ret retval tangent_out tmp val value values".split()
)


def tells(name: str) -> bool:
    """Whether a name of JAX's own code says something to a reader of other code."""
    return len(name) > 2 and name.strip("_").lower() not in _SAYS_NOTHING and not any(c.isdigit() for c in name)


def is_library_internal(file: str) -> bool:
    """Whether code of this file is JAX's, PyTorch's, NumPy's, Python's or untrace's own."""
    return file_kind(file) in ("jax", "cut")


def kind_of_code(code: CodeType) -> str:
    """ "user", "library", or "jax", "jvp" (where JAX computes tangents), "value", "drop" (`_WRAPPERS`), "entry" and "cut" for frames that are left out."""  # noqa: E501
    file = code.co_filename
    kind = _FILES.get(file)
    if kind is None:
        kind = _FILES[file] = "library" if file == _TORCH_FUNCTIONS else file_kind(file)
    if kind == "jax":
        if code.co_name in _ENTRIES:
            return "entry"
        if code.co_qualname.startswith("JVPTrace."):
            return "jvp"
        if file.endswith(_API):
            return _WRAPPERS.get(code.co_qualname, "jax")
    return kind


def file_kind(file: str) -> str:
    """Whose a source file is: "user", "library", "jax" or "cut" (NumPy, PyTorch, Python and untrace itself)."""
    if file in _AUTHORS:
        return "user"
    if file.startswith(_EXAMPLES):
        return "library"
    if file.startswith(_JAX):
        return "jax"
    if file.startswith(_CUT) or file.startswith(("<frozen ", "<__array_function__")):
        return "cut"
    if any(part in file for part in jax_compat.INSTALLED) or file.startswith(("<@beartype", "<decorator-gen")):
        return "library"
    if file.startswith(_STDLIB):
        return "cut"
    return "user"


def kind_of_called(function: Any) -> str:
    """Whose the code of a function is, or of an object that is called (`file_kind`)."""
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return file_kind(getattr(code, "co_filename", ""))
