"""Finds the text of the Python callables in a program: a jaxpr has host callbacks as objects only.

`describe_callable` says how a written module can have a callable, best first:

* import     it is an attribute of a public module of jax, numpy or the standard library
             (verified by lookup);
* embed      its source can stand in the module by itself. The text is `ast.unparse` of the
             function's own source file, and the file's function is compiled and compared with the
             callable first: a file that was edited since it was imported is refused. What the
             function reads (closure cells, globals, defaults) must be embeddable too;
* import     of the user's own module, where that can be imported and the caller allows it (a
             standalone module imports nothing of the kind);
* parameter  neither: the module gets a named hook that raises until it is given, and `reason`
             says why.

State is not embedded: a callback that changes what it closes over (`seen.append(x)`, `nonlocal
count`) would change a copy, so it is imported or becomes a parameter.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import importlib
import importlib.machinery
import os
import sys
import textwrap
import types
from collections.abc import Callable, Collection
from typing import Any, Literal

import numpy as np

from untrace.capture.sources import (
    NotEmbeddable,
    check_imports,
    drop_foreign_assignments,
    free_values,
    is_public_module,
    names_read,
    no_arguments,
    only_reads,
    source_of,
    unparsed,
)

Kind = Literal["import", "embed", "parameter"]

# Larger captured arrays belong into a data file, not into a literal.
_MAX_ELEMENTS = 256
_STANDARD_IMPORTS = {"np": "numpy", "jnp": "jax.numpy", "jax": "jax", "lax": "jax.lax"}
_PLAIN_CLASS = {"__module__", "__doc__", "__qualname__", "__weakref__", "__dict__"}
_PLAIN_CLASS |= {"__firstlineno__", "__static_attributes__"}  # Python 3.13
_MUTABLE = (list, dict, set, bytearray, np.ndarray)


@dataclasses.dataclass(frozen=True)
class CallableSource:
    """How a written module can have a callable.

    kind "import": `name` is `qualname` of module `module`. kind "embed": after `imports` ((module,
    alias) pairs, as `import module as alias`) and `definitions` (statements, in order), `name` is
    the callable. kind "parameter": `name` is a suggestion for the hook and `reason` says why the
    callable cannot be written. `notes` say what an embedded text leaves out.
    """

    kind: Kind
    name: str
    module: str = ""
    imports: tuple[tuple[str, str], ...] = ()
    definitions: tuple[str, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()


def describe_callable(
    function: Callable[..., Any],
    taken: Collection[str] = (),
    *,
    from_user_modules: bool = False,
) -> CallableSource:
    """How a written module can have `function`; never raises.

    taken: identifiers that the module uses already. The names of `definitions` avoid them, and the
    standard aliases (`np`, `jnp`, `jax`, `lax`), which keep their meaning. from_user_modules:
    whether it may be imported from where it was defined.
    """
    found = public_location(function)
    if found is not None:
        module, name = found
        return CallableSource("import", name, module=module)
    wish = _identifier(getattr(function, "__name__", None) or _partial_name(function) or "callback")
    name = _fresh(wish, {*taken, *_STANDARD_IMPORTS, *dir(builtins)})
    try:
        return _embed(function, name, taken)
    except NotEmbeddable as error:
        reason = str(error)
    except (OSError, SyntaxError, RecursionError, ValueError) as error:
        reason = f"its source could not be read ({error})"
    found = user_location(function) if from_user_modules else None
    if found is not None:
        return CallableSource("import", found[1], module=found[0], reason=reason)
    return CallableSource("parameter", name, reason=reason)


def stand_in(name: str, reason: str) -> str:
    """Source of a function `name` that calls `name.function`, which the reader has to set.

    It asks for it at every call, so that it can be set at any time before the first one, also
    after the written function was compiled.
    """
    sentence = f"Calls `{name}.function`, a Python function that could not be written: {reason}."
    return (
        f"def {name}(*args, **kwargs):\n"
        f"{_docstring(sentence)}\n"
        f"    if {name}.function is None:\n"
        f'        raise NotImplementedError("set {name}.function to the Python function")\n'
        f"    return {name}.function(*args, **kwargs)\n"
        "\n\n"
        f"{name}.function = None  # to be set before the first call"
    )


def _docstring(sentence: str) -> str:
    """A sentence with data from outside as a docstring that nothing in it can end."""
    plain = "".join(c if c.isprintable() and c not in '\\"' else "?" for c in sentence)
    if len(plain) <= 78:
        return f'    """{plain}"""'
    lines = textwrap.wrap(plain, 80, break_long_words=True)
    return "\n".join([f'    """{lines[0]}', *(f"    {line}" for line in lines[1:]), '    """'])


# ---------------------------------------------------------------- public places


def public_location(value: Any) -> tuple[str, str] | None:
    """(module, qualified name) of a public attribute that is this very object, or None."""
    names = [getattr(value, "__qualname__", None), getattr(value, "__name__", None)]
    names = [n for n in names if isinstance(n, str) and all(p.isidentifier() for p in n.split("."))]
    if not names:
        return None
    home: Any = getattr(value, "__module__", None)
    home = {"posixpath": "os.path", "ntpath": "os.path"}.get(home, home)  # one name on every system
    roots = {home.partition(".")[0]} if isinstance(home, str) else {"numpy", "jax"}
    if isinstance(home, str) and is_public_module(home):
        for name in names:
            if _lookup(home, name) is value:
                return home, name
    if not roots & {"jax", "jaxlib"} and not any(is_public_module(r) for r in roots):
        return None
    candidates = sorted((m for m in list(sys.modules) if is_public_module(m)), key=lambda m: (m.count("."), m))
    for module in candidates:
        for name in names:
            if not name.startswith("_") and _lookup(module, name) is value:
                return module, name
    return None


def _lookup(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    if found is None:
        try:
            found = importlib.import_module(module)
        except ImportError:
            return None
    for part in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found


def user_location(function: Any) -> tuple[str, str] | None:
    """(module, qualified name) from which another program can import this very function, or None.

    A method of an object that the function's module has is found too: `counter.add`.
    """
    owner = getattr(function, "__self__", None) if isinstance(function, types.MethodType) else None
    inner = function.__func__ if owner is not None else function
    module, path = getattr(inner, "__module__", None), getattr(inner, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or not _can_import(module):
        return None
    if owner is not None and not isinstance(owner, type):
        holders = vars(sys.modules[module]).items()
        names = sorted(n for n, v in holders if v is owner and n.isidentifier())
        return (module, f"{names[0]}.{function.__name__}") if names else None
    first, *rest = path.split(".")
    found = vars(sys.modules[module]).get(first)
    for part in rest:
        found = getattr(found, part, None)
    return (module, path) if found is function else None


def _can_import(name: str) -> bool:
    """Whether another program that looks in the same places finds this very module."""
    words = name.split(".")
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if words[0] in ("__main__", "jax", "jaxlib") or file is None:
        return False
    if not all(word.isidentifier() and not _is_keyword(word) for word in words):
        return False
    path: Any = None
    spec: Any = None
    for count in range(1, len(words) + 1):
        # Not `importlib.util.find_spec`: that believes what is loaded, also from a bare file.
        part = ".".join(words[:count])
        spec = importlib.machinery.PathFinder.find_spec(part, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    origin = spec.origin
    return origin is not None and os.path.realpath(origin) == os.path.realpath(file)


# ---------------------------------------------------------------- embedding


def _embed(function: Any, name: str, taken: Collection[str]) -> CallableSource:
    scope = _Scope()
    result = scope.reference(function, name)
    imports = [(m, a) for a, m in scope.imports.items() if _STANDARD_IMPORTS.get(a) == m and a not in taken]
    inner = [(m, a) for a, m in scope.imports.items() if (m, a) not in imports]
    notes = tuple(scope.notes)
    plain = list(scope.statements.values())
    if len(plain) == 1 and not inner and isinstance(plain[0], ast.FunctionDef) and result == plain[0].name:
        if not _mentions(plain[0], result):  # not recursive: it can have any name
            plain[0].name = name
            return CallableSource("embed", name, "", tuple(imports), (unparsed(plain[0]),), "", notes)
    # Names that the text reads stand in a scope of their own, so that they cannot meet the
    # module's.
    maker = _fresh(f"_make_{name}", taken)
    body: list[ast.stmt] = [_import(m, a) for m, a in inner]
    body += plain
    body.append(ast.Return(ast.Name(result, ast.Load())))
    made = ast.FunctionDef(maker, no_arguments(), body, [])
    call = ast.parse(f"{name} = {maker}()").body[0]
    return CallableSource("embed", name, "", tuple(imports), (unparsed(made), unparsed(call)), "", notes)


class _Scope:
    """Statements that define what embedded functions read, under the names that they read it by."""

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.statements: dict[str, ast.stmt] = {}
        self.notes: list[str] = []
        self._values: dict[str, Any] = {}

    def reference(self, value: Any, wish: str) -> str:
        """The name under which `value` stands here; `wish` where it has no name of its own."""
        own = getattr(value, "__name__", None)
        if isinstance(value, types.FunctionType) and isinstance(own, str) and own.isidentifier():
            wish = own
        name = wish
        while name in self._values and self._values[name] is not value:
            name += "_"
        self.define(name, value)
        return name

    def define(self, name: str, value: Any) -> None:
        """Makes `name` mean `value`. Raises NotEmbeddable."""
        if name in self._values:
            if self._values[name] is not value:
                raise NotEmbeddable(f"two of the functions behind it read different things by the name {name!r}")
            return
        self._values[name] = value
        if isinstance(value, types.ModuleType):
            if not is_public_module(value.__name__):
                raise NotEmbeddable(f"it uses the module {value.__name__}")
            self.imports[name] = value.__name__
            return
        found = public_location(value) if callable(value) else None
        if found is not None:
            module, qualname = found
            if module == "builtins" and qualname == name:
                return
            self.statements[name] = _import_from(module, qualname, name)
        elif isinstance(value, types.FunctionType):
            self._function(name, value)
        elif isinstance(value, functools.partial):
            self._partial(name, value)
        elif isinstance(value, type) and issubclass(value, BaseException):
            self._exception(name, value)
        else:
            self._assign(name, self._literal(value))

    def _assign(self, name: str, value: ast.expr) -> None:
        self.statements[name] = ast.Assign([ast.Name(name, ast.Store())], value, lineno=0)

    def _literal(self, value: Any) -> ast.expr:
        def module(name: str) -> str:
            alias = {"numpy": "np", "jax.numpy": "jnp"}[name]
            self.define(alias, importlib.import_module(name))
            return alias

        return _literal(value, module)

    def _partial(self, name: str, value: functools.partial[Any]) -> None:
        inner = self.reference(value.func, f"{name}_function")
        self.define("functools", functools)
        call = ast.parse("functools.partial()", mode="eval").body
        assert isinstance(call, ast.Call)
        call.args = [ast.Name(inner, ast.Load()), *[self._literal(v) for v in value.args]]
        call.keywords = [ast.keyword(k, self._literal(v)) for k, v in value.keywords.items()]
        self._assign(name, call)

    def _exception(self, name: str, value: type[BaseException]) -> None:
        if set(vars(value)) - _PLAIN_CLASS or len(value.__bases__) != 1:
            raise NotEmbeddable(f"it uses the exception class {value.__qualname__}, which has code of its own")
        base = self.reference(value.__bases__[0], value.__bases__[0].__name__)
        body: list[ast.stmt] = [ast.Expr(ast.Constant(value.__doc__))] if value.__doc__ else [ast.Pass()]
        self.statements[name] = ast.ClassDef(name, [ast.Name(base, ast.Load())], [], body, [])

    def _function(self, name: str, function: types.FunctionType) -> None:
        node = source_of(function)
        values = free_values(function)
        self.notes += drop_foreign_assignments(node, values, function.__qualname__)
        check_imports(node)
        node.name = name
        arguments = node.args
        arguments.defaults = [self._literal(v) for v in function.__defaults__ or ()]
        keyword_defaults = function.__kwdefaults__ or {}
        arguments.kw_defaults = [
            self._literal(keyword_defaults[a.arg]) if a.arg in keyword_defaults else None for a in arguments.kwonlyargs
        ]
        for free in names_read(node, function.__code__.co_freevars):
            if free in values:
                value = values[free]
                if isinstance(value, _MUTABLE) and not only_reads(node, free):
                    raise NotEmbeddable(f"it may change {free!r}, which stands outside it")
                self.define(free, value)
            elif getattr(builtins, free, None) is None and free not in ("None", "__debug__"):
                raise NotEmbeddable(f"the name {free!r} that it reads is not defined")
        # After what it reads; a function that reads itself is already in `_values`.
        self.statements[name] = node


def _literal(value: Any, module: Callable[[str], str]) -> ast.expr:
    """`value` as an expression; `module(name)` is the alias of a module. Raises NotEmbeddable."""
    kind = type(value)
    known: Any = value  # of those types that are asked for
    if isinstance(value, types.MethodType) or (callable(value) and kind.__name__ == "builtin_function_or_method"):
        raise NotEmbeddable(f"it is a method of an object of type {type(known.__self__).__qualname__}")
    if value is None or value is Ellipsis or kind in (bool, int, str, bytes, float, complex):
        # The parser reads back what repr writes but for `nan`, `inf` and negative zero's complex
        # forms.
        text = repr(value)
        if kind is float and not np.isfinite(known):
            text = f'float("{value}")'
        if kind is complex:
            parts = (unparsed(_literal(part, module)) for part in (known.real, known.imag))
            text = f"complex({', '.join(parts)})"
        return ast.parse(text, mode="eval").body
    if kind in (tuple, list, set, frozenset):
        items = [_literal(v, module) for v in (sorted(value, key=repr) if kind in (set, frozenset) else value)]
        if kind is tuple:
            return ast.Tuple(items, ast.Load())
        if kind is list:
            return ast.List(items, ast.Load())
        whole = ast.List(items, ast.Load())
        return ast.Call(ast.Name(kind.__name__, ast.Load()), [whole], [])
    if kind is dict:
        return ast.Dict([_literal(k, module) for k in value], [_literal(v, module) for v in value.values()])
    if kind in (range, slice):
        parts = (value.start, value.stop, value.step)
        return ast.Call(ast.Name(kind.__name__, ast.Load()), [_literal(p, module) for p in parts], [])
    if isinstance(value, np.dtype) and value.kind in "biufcO?":
        return ast.parse(f"{module('numpy')}.dtype({value.str!r})", mode="eval").body
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        return _array_literal(value, module)
    if type(value).__module__.startswith("jax") and hasattr(value, "addressable_data"):
        concrete = np.asarray(value)
        if concrete.dtype.kind in "biufc":
            inner = _array_literal(concrete, module)
            return ast.Call(
                ast.Attribute(ast.Name(module("jax.numpy"), ast.Load()), "asarray", ast.Load()),
                [inner],
                [],
            )
    raise NotEmbeddable(f"it reads a value of type {kind.__module__}.{kind.__qualname__}, which has no short text")


def _array_literal(value: Any, module: Callable[[str], str]) -> ast.expr:
    if value.size > _MAX_ELEMENTS:
        raise NotEmbeddable(f"it reads an array of {value.size} elements")
    alias = module("numpy")
    if isinstance(value, np.generic):
        scalar = ast.Attribute(ast.Name(alias, ast.Load()), value.dtype.name, ast.Load())
        return ast.Call(scalar, [_literal(value.item(), module)], [])
    data = _literal(value.tolist(), module)
    dtype = ast.keyword("dtype", ast.Constant(value.dtype.name))
    call = ast.Call(ast.Attribute(ast.Name(alias, ast.Load()), "array", ast.Load()), [data], [dtype])
    if 0 in value.shape:  # `tolist` forgets the lengths behind a zero
        shape = _literal(tuple(value.shape), module)
        return ast.Call(ast.Attribute(call, "reshape", ast.Load()), [shape], [])
    return call


# ---------------------------------------------------------------- small things


def _identifier(name: str) -> str:
    name = "callback" if name == "<lambda>" else name
    return name if name.isidentifier() and not _is_keyword(name) else "callback"


def _is_keyword(name: str) -> bool:
    import keyword

    return keyword.iskeyword(name)


def _partial_name(value: Any) -> str | None:
    return getattr(value.func, "__name__", None) if isinstance(value, functools.partial) else None


def _fresh(wish: str, taken: Collection[str]) -> str:
    name, count = wish, 1
    while name in taken:
        count += 1
        name = f"{wish}_{count}"
    return name


def _mentions(node: ast.FunctionDef, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))


def _import(module: str, alias: str) -> ast.stmt:
    return ast.Import([ast.alias(module, None if alias == module else alias)])


def _import_from(module: str, qualname: str, name: str) -> ast.stmt:
    first, _, rest = qualname.partition(".")
    if rest:
        raise NotEmbeddable(f"it uses {module}.{qualname}")
    return ast.ImportFrom(module, [ast.alias(first, None if first == name else name)], 0)
