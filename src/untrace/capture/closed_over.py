"""Names for the arrays that a function closes over, from the shortest way by which Python itself reaches each.

`scale` for a variable around the function or of its module, `layers_0_bias` for `model.net.layers[0].bias`. Only what lies
there is looked at (cells, globals that the code names, items, instance dictionaries, slots): no property is called, and
no `__getattr__`, `__iter__` or `__getitem__` of anybody's. The walk goes breadth first and is bounded.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.provenance.whose import is_library_internal

Path = tuple[str, ...]

_MOST = 20_000  # objects that are looked at
_DEEPEST = 12  # steps from the function
_WIDEST = 512  # items of one container
_LARGEST = 100_000  # elements of an array that is compared by value
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.CodeType)
_NAMELESS = frozenset({"__wrapped__", "self", "cls"})  # no step of a name


def names_of(function: Any, constants: Iterable[Any]) -> IdentityMap[Any, str]:
    """{a constant: its name}, for those of `constants` that `function` closes over. Two may have one name.

    An array is known again by its identity; one of NumPy's, which JAX wraps, by its memory; and where JAX has converted
    it, by its values, if these say something and one array alone has them.
    """
    wanted: dict[Any, list[Any]] = {}
    by_values: dict[Any, dict[Path, None]] = {}
    constants = list(constants)
    for value in constants:
        if (key := _key(value)) is not None:
            wanted.setdefault(key, []).append(value)
        if (key := _values(value)) is not None:
            by_values[key] = {}
    found: IdentityMap[Any, Path] = IdentityMap()
    for path, value in _reachable(function) if constants else ():
        path = _words(path)
        for constant in wanted.get(_key(value), ()) if path else ():
            found.setdefault(constant, path)
        if len(found) == len(constants):
            break
        if path and (key := _values(value)) in by_values:
            by_values[key][path] = None
    for value in constants:
        paths = by_values.get(_values(value), {})
        if value not in found and len(paths) == 1:
            found[value] = next(iter(paths))
    return _shortened(found)


def _shortened(found: IdentityMap[Any, Path]) -> IdentityMap[Any, str]:
    """Of each path as many of the last steps as tell it from the others, but two words where it has them."""
    ends: dict[Path, set[Path]] = {}
    for path in found.values():
        for start in range(len(path)):
            ends.setdefault(path[start:], set()).add(path)
    names: IdentityMap[Any, str] = IdentityMap()
    for constant, path in found.items():
        starts = [i for i in reversed(range(len(path))) if not path[i][0].isdigit()]
        enough = [i for i in starts[1:] if len(ends[path[i:]]) == 1] or [0]
        names[constant] = "_".join(path[enough[0] :])
    return names


def _key(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return id(value)
    return (value.__array_interface__["data"][0], value.shape, value.strides, value.dtype.str) if value.size else None


def _values(value: Any) -> Any:
    """By what an array of NumPy's is known again after a conversion; None where many an array is like it."""
    if not isinstance(value, np.ndarray) or not 2 < value.size <= _LARGEST or value.dtype.kind not in "fiuc":
        return None
    array = value.astype(jax.dtypes.canonicalize_dtype(value.dtype))
    same = not (array != array.reshape(-1)[0]).any()
    return None if same else (array.shape, array.dtype.str, array.tobytes())


def _words(path: Path) -> Path:
    """The steps of a path that can stand in a name, the first of them a word."""
    steps = tuple(s for s in (re.sub(r"\W+", "_", p, flags=re.ASCII).strip("_") for p in path) if s)
    while steps and steps[0][0].isdigit():
        steps = steps[1:]
    return steps


def _reachable(function: Any) -> Iterator[tuple[Path, Any]]:
    """(path, array) for what can be reached from `function`, the shortest paths first."""
    todo: deque[tuple[Path, int, Any]] = deque([((), 0, function)])
    seen: IdentityMap[Any, None] = IdentityMap()
    while todo and len(seen) < _MOST:
        path, depth, value = todo.popleft()
        if isinstance(value, _PLAIN) or value in seen:
            continue
        seen[value] = None
        if jax_compat.is_tracer(value):
            continue
        if isinstance(value, np.ndarray) or jax_compat.is_jax_array(value):
            yield path, value
            continue
        if depth < _DEEPEST:
            for step, item in _steps(value):
                todo.append(((*path, step) if step else path, depth + 1, item))


def _steps(value: Any) -> Iterator[tuple[str, Any]]:
    """(step of the path, what lies there) for one object; "" for a step that has no name."""
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
        yield "", value.__func__
    elif isinstance(value, functools.partial):
        yield "", value.func
        code = getattr(value.func, "__code__", None)
        names = code.co_varnames[: code.co_argcount] if isinstance(code, types.CodeType) else ()
        for i, item in enumerate(value.args):
            yield (names[i] if i < len(names) else ""), item
        yield from value.keywords.items()
    elif isinstance(value, dict):
        for key, item in itertools.islice(dict.items(value), _WIDEST):
            yield (key if type(key) is str else str(key) if type(key) is int else ""), item
    elif isinstance(value, (list, tuple)):
        items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
        fields = getattr(type(value), "_fields", None)
        for i, item in enumerate(itertools.islice(items, _WIDEST)):
            yield (fields[i] if type(fields) is tuple and i < len(fields) else str(i)), item
    elif not isinstance(value, (types.ModuleType, types.BuiltinFunctionType)):
        yield from _of_object(value)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            item = cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
        yield ("" if name in _NAMELESS or _is_code(item) else name), item
    if "__wrapped__" in function.__dict__:
        yield "", function.__dict__["__wrapped__"]
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    if is_library_internal(code.co_filename):
        return
    for name in _names_in(code):
        item = function.__globals__.get(name)
        if isinstance(item, types.ModuleType):
            if not is_library_internal(getattr(item, "__file__", None) or "<frozen >"):
                for inner in _names_in(code):
                    found = vars(item).get(inner)
                    if not isinstance(found, types.ModuleType):
                        yield ("" if _is_code(found) else inner), found
        elif item is not None:
            yield ("" if _is_code(item) else name), item


def _names_in(code: types.CodeType) -> list[str]:
    """The global and attribute names in a function, those in functions and comprehensions inside it as well."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(dict.fromkeys(_names_in(constant)))
    return list(names)


def _is_code(value: Any) -> bool:
    """Whether it is a function of some kind: what it closes over is known by the names of that."""
    return isinstance(value, (types.FunctionType, types.MethodType, functools.partial)) or (
        "__wrapped__" in _instance_dict(value)
    )


def _instance_dict(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except Exception:  # a class may forbid it
        return {}
    return found if isinstance(found, dict) else {}


def _of_object(value: Any) -> Iterator[tuple[str, Any]]:
    own = _instance_dict(value)
    if type(value).__module__.startswith("jaxlib") and "__wrapped__" in own:  # what `jax.jit` gives
        yield "", own["__wrapped__"]
        return
    for name, item in itertools.islice(dict.items(own), _WIDEST):
        if type(name) is str:
            yield ("" if name in _NAMELESS else name), item
    for owner in type(value).__mro__:
        for name, member in vars(owner).items():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield ("" if name in _NAMELESS else name), member.__get__(value)
                except AttributeError:  # a slot without a value
                    continue
    # What a method would find on its class: functions and arrays, by the names that stand there.
    for owner in type(value).__mro__[:-1]:
        if is_library_internal(getattr(_module_of(owner), "__file__", None) or "<frozen >"):
            break
        for name, member in vars(owner).items():
            if isinstance(member, np.ndarray) or jax_compat.is_jax_array(member):
                yield name, member
            elif isinstance(member, types.FunctionType):
                yield "", member


def _module_of(owner: type) -> Any:
    name = vars(owner).get("__module__")
    return sys.modules.get(name) if isinstance(name, str) else None
