"""What the functions of a program are called: the author's word for a call."""

from __future__ import annotations

import ast
import inspect

from untrace._identifiers import snake_case
from untrace.lift.naming import words
from untrace.lift.outline.activations import Call
from untrace.provenance.frames import Frame

# What libraries call the method that a layer's `__call__` ends in.
_CALLS = frozenset({"call", "forward"})


def is_module_call(frame: Frame) -> bool:
    """`Dense.__call__`: a layer of a library; not `_Wrapped.__call__`."""
    owner = owner_of(frame)
    return frame.name == "__call__" and owner is not None and not owner.startswith("_") and "Wrap" not in owner


def calls_another(caller: Frame | None, callee: Frame, name: str) -> bool:
    """Whether the author's function `name`, and no lambda, calls another one of his: no object, which runs a method of its class."""
    if caller is None or caller.library or callee.library or caller.name != name or name.startswith("<"):
        return False
    return owner_of(callee) is None or callee.name not in ("__call__", *_CALLS)


def owner_of(frame: Frame) -> str | None:
    """The class of a method, by its qualified name."""
    words_ = frame.function.split(".")
    return words_[-2] if len(words_) > 1 and words_[-2] != "<locals>" else None


def function_name(call: Call) -> str:
    """`attention` for `Attention.__call__`, else the method's or the function's own name; for a library the caller's word."""
    call = _behind_wrappers(call)
    frame = _callee(call)
    owner = owner_of(frame)
    name = frame.name
    if owner is not None and (name.startswith("__") or frame.library and name in _CALLS):
        return words.clean(snake_case(owner), "inner")
    node = call.frame.node if call.frame is not None and frame.library and not call.frame.library else None
    if isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    return words.clean(name.strip("_") or "inner", "inner")


def _callee(call: Call) -> Frame:
    """The first frame inside of a call, which every one but a function's own root has."""
    assert call.callee is not None
    return call.callee


def owner_of_call(call: Call) -> str | None:
    """The class of the method that a call is of."""
    return owner_of(_callee(_behind_wrappers(call)))


def _behind_wrappers(call: Call) -> Call:
    """The call of a method, where `call` is that of an object around it."""
    while _callee(call).library and _callee(call).name == "__call__" and len(call.items) == 1:
        (inner,) = call.items
        if type(inner) is not Call or _callee(inner).name.startswith("<") or _callee(inner).name == "__call__":
            break
        call = inner
    return call


def variadic_parameter(frame: Frame) -> str | None:
    """The author's name of the parameter that takes all further arguments, if there is one."""
    code = frame.code
    if frame.library or not code.co_flags & inspect.CO_VARARGS:
        return None
    return code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
