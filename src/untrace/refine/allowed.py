"""What an editor's answer may consist of, before any of it runs: the words of the text, and those of JAX that only compute.

Whatever is not listed is refused. The list is of syntax; that the answer is the same program is proven afterwards
(`judge`). So an answer may be wrong here, but it cannot do anything beyond computing, nor change anything but its own values.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import types
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from untrace.python import helpers
from untrace.refine.functions import argument_names

# Public modules of JAX whose functions compute, and nothing else; what is in `jax.scipy` besides.
_MODULES = frozenset({
    "jax.numpy", "jax.numpy.linalg", "jax.numpy.fft", "jax.lax", "jax.lax.linalg", "jax.nn", "jax.nn.initializers",
    "jax.random", "jax.tree",
})  # fmt: skip
_SCIPY = "jax.scipy"
_OF_JAX = frozenset({
    "grad", "value_and_grad", "vjp", "jvp", "linearize", "linear_transpose", "jacfwd", "jacrev", "jacobian", "hessian",
    "vmap", "jit", "checkpoint", "remat", "eval_shape", "ShapeDtypeStruct", "Array",
})  # fmt: skip
# Of these modules: what reads, writes, or changes how others see numbers.
_NOT_PURE = frozenset({
    "save", "savez", "load", "fromfile", "set_printoptions", "get_printoptions", "printoptions", "from_dlpack", "frompyfunc",
    "infeed", "outfeed",
})  # fmt: skip
_BUILTINS = frozenset({
    "abs", "all", "any", "bool", "callable", "complex", "dict", "divmod", "enumerate", "float", "frozenset", "hasattr", "int",
    "isinstance", "len", "list", "map", "max", "min", "range", "reversed", "round", "set", "slice", "sorted", "str", "sum",
    "tuple", "type", "zip",
})  # fmt: skip
# Members of arrays, and of Python's containers, that change nothing.
_MEMBERS = frozenset({
    "T", "add", "all", "any", "argmax", "argmin", "argsort", "astype", "at", "clip", "conj", "conjugate", "copy", "cumprod",
    "cumsum", "diagonal", "divide", "dot", "dtype", "flatten", "get", "imag", "items", "itemsize", "keys", "mT", "max", "mean",
    "min", "mul", "multiply", "ndim", "power", "prod", "ptp", "ravel", "real", "repeat", "reshape", "round", "set", "shape",
    "size", "squeeze", "std", "subtract", "sum", "swapaxes", "take", "trace", "transpose", "values", "var",
})  # fmt: skip
# These change the list or dict that they belong to.
_CHANGES = frozenset({"append", "extend", "insert", "pop", "reverse", "setdefault", "sort", "update"})
_SYNTAX = (
    ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign, ast.For, ast.If, ast.While, ast.With,
    ast.withitem, ast.Expr, ast.Pass, ast.Break, ast.Continue, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.keyword,
    ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Starred, ast.Name, ast.List, ast.Tuple, ast.Dict, ast.Set,
    ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.operator, ast.unaryop,
    ast.cmpop, ast.expr_context,
)  # fmt: skip
# May come again where the text has them, and only as they are there.
_AS_THEY_ARE = (ast.Raise, ast.Assert, ast.Try, ast.IfExp, ast.BoolOp, ast.JoinedStr, ast.withitem)
_LOOSE = 4  # whole numbers up to this may be new: axes, indices
_LONGEST = 20_000  # characters of an answer beyond twenty times the function's


class NotAllowed(Exception):
    """Why an answer is refused, in words."""


@dataclass(frozen=True, slots=True)
class Calls:
    """How a text calls a function: with which keywords, and with how many arguments before them at most."""

    keywords: frozenset[str] = frozenset()
    positional: int = 0

    def with_call(self, node: ast.Call) -> Calls:
        count = max(self.positional, len(node.args))
        return Calls(self.keywords | {k.arg or "**" for k in node.keywords}, count)


@dataclass(frozen=True)
class Vocabulary:
    """The words of a module: what a new text of one of its functions may be made of.

    `modules`: what is imported, by its name in the text. `bound`: what the module defines. `paths`: whole dotted names, with
    how each is called. `members`: attributes of values. `numbers`: its whole numbers. `shapes`: statements and expressions
    that decide, raise or enter something, which may come again as they are.
    """

    modules: Mapping[str, str]
    bound: frozenset[str]
    paths: Mapping[str, Calls]
    members: frozenset[str]
    numbers: frozenset[int]
    shapes: frozenset[str]

    @classmethod
    def of(cls, source: str) -> Vocabulary:
        """What stands outside of functions is said once, when the module is loaded: nothing of it is a word that they may use,
        but for its names and its numbers."""
        text = ast.parse(helpers.parted(source)[0])
        modules = dict(_imports(text))
        numbers = {n.value for n in ast.walk(text) if isinstance(n, ast.Constant) and type(n.value) is int}
        paths: dict[str, Calls] = {}
        members: set[str] = set()
        shapes: set[str] = set()
        bodies = [s for f in text.body if isinstance(f, ast.FunctionDef) for s in f.body]
        for node in [n for statement in bodies for n in _whole_names(statement)]:
            chain = _chain(node)
            if chain is not None and chain[0] in modules:
                paths.setdefault(".".join(chain), Calls())
            elif isinstance(node, ast.Attribute):
                members.update([node.attr] if chain is None else chain[1:])
            elif isinstance(node, ast.Call):
                called = _chain(node.func)
                if called is not None and called[0] in modules:
                    path = ".".join(called)
                    paths[path] = paths.get(path, Calls()).with_call(node)
            elif isinstance(node, ast.comprehension):
                shapes.update(map(ast.dump, node.ifs))
            elif isinstance(node, ast.FunctionDef):
                shapes.update(map(ast.dump, node.decorator_list))
            if isinstance(node, (ast.If, ast.While, ast.IfExp)):
                shapes.add(ast.dump(node.test))
            if isinstance(node, _AS_THEY_ARE):
                shapes.add(ast.dump(node))
        bound = frozenset(_bound(ast.parse(source)))
        return cls(modules, bound, paths, frozenset(members), frozenset(numbers), frozenset(shapes))


def _whole_names(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all its parts, but of a dotted name only the whole: `jax.nn.relu` is no word for `jax.nn`."""
    yield node
    if _chain(node) is None:
        for part in ast.iter_child_nodes(node):
            yield from _whole_names(part)


def parsed(answer: str, old: ast.FunctionDef, words: Vocabulary, is_entry: bool, length: int) -> ast.FunctionDef:
    """The function that an answer is. Raises NotAllowed.

    old: the function that it is to replace, of `length` characters; is_entry: whether it is called from outside the module.
    """
    if len(answer) > 20 * length + _LONGEST:
        raise NotAllowed(f"it has {len(answer):,} characters, where the function has {length:,}")
    strange = next(
        (c for c in answer if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t"), ""
    )
    if strange:
        raise NotAllowed(f"it has an invisible character, U+{ord(strange):04X}")
    try:
        module = ast.parse(answer)
        if len(module.body) != 1 or not isinstance(module.body[0], ast.FunctionDef):
            raise NotAllowed("it is not one function and nothing else")
        function = module.body[0]
        _check_head(function, old, is_entry)
        _Checker(words, function, old).check()
        # What is parsed has to be what is compiled, too deep a nesting included.
        compile(answer, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError) as error:
        raise NotAllowed(f"it is no Python: {type(error).__name__}: {str(error)[:200]}") from None
    except RecursionError:
        raise NotAllowed("it is nested too deeply") from None
    return function


def _check_head(new: ast.FunctionDef, old: ast.FunctionDef, is_entry: bool) -> None:
    if new.name != old.name:
        raise NotAllowed(f"it is called `{new.name}`, and not `{old.name}`")
    if list(map(ast.dump, new.decorator_list)) != list(map(ast.dump, old.decorator_list)):
        raise NotAllowed("it has other decorators")
    if getattr(new, "type_params", None):
        raise NotAllowed("it has parameters of types")
    if _kinds(new.args) != _kinds(old.args):
        raise NotAllowed("it has other parameters, or other defaults")
    if _optional(new.returns) != _optional(old.returns):
        raise NotAllowed("it has another annotation of its result")
    renamed = argument_names(new) != argument_names(old)
    if renamed and (is_entry or [a.arg for a in new.args.kwonlyargs] != [a.arg for a in old.args.kwonlyargs]):
        raise NotAllowed("it has other names for parameters that are given by name")
    if _guards(old) != _guards(new):
        raise NotAllowed("it does not begin with what refuses other arguments, as the function does")
    if is_entry and ast.get_docstring(new, clean=False) != ast.get_docstring(old, clean=False):
        raise NotAllowed("it has another docstring, where that says what the module was written for")


def _guards(function: ast.FunctionDef) -> list[tuple[int, str]]:
    """The statements that look at the arguments, by their places: no trace shows whether they are there."""
    looking = set(helpers.names_at_end())
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return [
        (place, ast.dump(statement))
        for place, statement in enumerate(body)
        if any(isinstance(n, ast.Name) and n.id in looking for n in ast.walk(statement))
    ]


def _kinds(args: ast.arguments) -> list[object]:
    """All of a function's parameters but their names."""
    defaults = [_optional(d) for d in [*args.defaults, *args.kw_defaults]]
    groups = [args.posonlyargs, args.args, [args.vararg], args.kwonlyargs, [args.kwarg]]
    return [[a and _optional(a.annotation) for a in group] for group in groups] + [defaults]


def _optional(node: ast.AST | None) -> str:
    return "" if node is None else ast.dump(node)


class _Checker:
    """Goes through a function's parts; raises NotAllowed at the first that may not be."""

    def __init__(self, words: Vocabulary, function: ast.FunctionDef, old: ast.FunctionDef) -> None:
        self._words, self._function = words, function
        own = set(_locals(old))
        self._locals = set(_locals(function))
        for name in self._locals - own:
            if name in words.bound or name in words.modules or hasattr(builtins, name) or name.startswith("__"):
                raise NotAllowed(f"it binds `{name}`, which is something else outside of it")
        self._fresh = {name for name in self._locals if self._is_fresh(name)}

    def check(self) -> None:
        body = self._function.body
        first = body[0]
        documented = (
            isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str
        )
        for statement in body[1:] if documented else body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Raise, ast.Assert, ast.Try)):
            if ast.dump(node) not in self._words.shapes:
                raise self._refusal(node, f"a new `{type(node).__name__.lower()}`")
            return
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call):
            raise self._refusal(node, "an expression that goes nowhere")
        self._node(node)

    def _node(self, node: ast.AST) -> None:
        if isinstance(node, (ast.IfExp, ast.BoolOp, ast.JoinedStr)) and ast.dump(node) in self._words.shapes:
            return self._read_names(node)
        if not isinstance(node, _SYNTAX):
            raise self._refusal(node, f"`{type(node).__name__}`")
        if isinstance(node, (ast.If, ast.While)) and ast.dump(node.test) not in self._words.shapes:
            raise self._refusal(node, "a decision that the text doesn't have")
        if isinstance(node, ast.comprehension) and any(ast.dump(i) not in self._words.shapes for i in node.ifs):
            raise self._refusal(node.target, "a decision that the text doesn't have")
        if isinstance(node, ast.comprehension) and node.is_async:
            raise self._refusal(node.target, "`async`")
        if isinstance(node, ast.withitem) and ast.dump(node) not in self._words.shapes:
            raise self._refusal(node.context_expr, "a `with` that the text doesn't have")
        if isinstance(node, ast.Constant):
            self._constant(node)
        elif isinstance(node, ast.Attribute):
            return self._attribute(node)
        elif isinstance(node, ast.Name):
            self._name(node)
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, (ast.FunctionDef, ast.Lambda)):
            self._inner(node)
        elif isinstance(node, ast.AugAssign):
            self._stored(node.target, anew=False)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._stored(target)
        elif isinstance(node, (ast.For, ast.comprehension)):
            self._stored(node.target)
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.stmt):
                self._statement(part)
            else:
                self._node(part)

    def _read_names(self, node: ast.AST) -> None:
        """Of what may come as it is: it still has to mean the same."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                self._name(part, whole=False)

    def _constant(self, node: ast.Constant) -> None:
        value = node.value
        if type(value) is int and abs(value) > _LOOSE and value not in self._words.numbers:
            raise self._refusal(node, f"a whole number that the text doesn't have, {str(value)[:20]}")
        if type(value) is bytes:
            raise self._refusal(node, "bytes")

    def _name(self, node: ast.Name, whole: bool = True) -> None:
        name, words = node.id, self._words
        if name.startswith("__"):
            raise self._refusal(node, f"`{name}`")
        if name in self._locals or name in words.bound:
            return
        if name in words.modules:
            if whole and name not in words.paths:
                raise self._refusal(node, f"`{name}` by itself")
            if whole and _is_module(words.modules[name]):
                raise self._refusal(node, f"the module `{name}` by itself")
            return
        if name not in _BUILTINS:
            raise self._refusal(node, f"`{name}`, which the text doesn't have")

    def _attribute(self, node: ast.Attribute) -> None:
        chain = _chain(node)
        if chain is not None and chain[0] in self._words.modules and chain[0] not in self._locals:
            path = ".".join(chain)
            if path not in self._words.paths and not is_public(self._words.modules[chain[0]], tuple(chain[1:])):
                raise self._refusal(node, f"`{path}`, which the text doesn't have")
            return
        member = node.attr
        if isinstance(node.ctx, ast.Store) or member.startswith("__"):
            raise self._refusal(node, f"`.{member}`")
        if member in _CHANGES:
            if not (isinstance(node.value, ast.Name) and node.value.id in self._fresh):
                raise self._refusal(node, f"`.{member}` of what it didn't make itself")
        elif member not in _MEMBERS and member not in self._words.members:
            raise self._refusal(node, f"`.{member}`, which the text doesn't have")
        self._node(node.value)

    def _call(self, node: ast.Call) -> None:
        chain = _chain(node.func)
        if chain is None or chain[0] not in self._words.modules or chain[0] in self._locals:
            return
        path, origin = ".".join(chain), self._words.modules[chain[0]]
        if is_public(origin, tuple(chain[1:])):
            return
        known = self._words.paths.get(path, Calls())
        new = {k.arg or "**" for k in node.keywords} - known.keywords
        if new:
            raise self._refusal(node, f"`{path}` with `{min(new)}=`, which the text doesn't have")
        if len(node.args) > known.positional:
            raise self._refusal(node, f"`{path}` with more arguments than anywhere in the text")

    def _inner(self, node: ast.FunctionDef | ast.Lambda) -> None:
        args = node.args
        defaults = [d for d in [*args.defaults, *args.kw_defaults] if d is not None]
        if any(not isinstance(d, (ast.Constant, ast.Name)) for d in defaults):
            raise self._refusal(node, "a default that computes")
        if isinstance(node, ast.FunctionDef):
            if getattr(node, "type_params", None) or node.returns is not None:
                raise self._refusal(node, "an annotation")
            if any(ast.dump(d) not in self._words.shapes for d in node.decorator_list):
                raise self._refusal(node, "a decorator that the text doesn't have")
        parameters = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        if any(a is not None and a.annotation is not None for a in parameters):
            raise self._refusal(node, "an annotation")

    def _stored(self, target: ast.expr, anew: bool = True) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._stored(part, anew)
        elif isinstance(target, ast.Starred):
            self._stored(target.value, anew)
        elif isinstance(target, ast.Subscript):
            if not (isinstance(target.value, ast.Name) and target.value.id in self._fresh):
                raise self._refusal(target, "a change of what it didn't make itself")
        elif isinstance(target, ast.Name):
            if not anew and target.id not in self._fresh:
                raise self._refusal(target, f"`{target.id}` changed in place, where that may be another's")
        else:
            raise self._refusal(target, "a change of an attribute")

    def _is_fresh(self, name: str) -> bool:
        """Whether a variable is bound to nothing but what was just made: no other name stands for the same object."""
        bound = False
        for node in ast.walk(self._function):
            if isinstance(node, ast.arg) and node.arg == name:
                return False
            if isinstance(node, (ast.For, ast.comprehension)) and name in _names_in(node.target):
                return False
            if isinstance(node, ast.Assign) and any(name in _names_in(t) for t in node.targets):
                if len(node.targets) > 1 or not isinstance(node.targets[0], ast.Name) or not self._makes(node.value):
                    return False
                bound = True
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return False
        return bound

    def _makes(self, value: ast.expr) -> bool:
        made = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.List, ast.Dict, ast.ListComp, ast.DictComp)
        if isinstance(value, ast.Call):
            chain = _chain(value.func)
            if chain is None or chain[0] in self._locals:
                return False
            if chain[0] in self._words.modules:
                return self._words.modules[chain[0]].split(".")[0] == "jax" and is_public(
                    self._words.modules[chain[0]], tuple(chain[1:])
                )
            return chain in (["list"], ["dict"])
        return isinstance(value, made)

    def _refusal(self, node: ast.AST, what: str) -> NotAllowed:
        line = getattr(node, "lineno", None)
        return NotAllowed(f"it has {what}" + (f" (line {line})" if line else ""))


@functools.cache
def is_public(module: str, names: tuple[str, ...]) -> bool:
    """Whether `module.names` is something public of JAX that computes and does nothing else.

    module: what an imported name stands for: "jax", "jax.numpy", or "jax.numpy.sum" for what came by `from`.
    """
    words = (*module.split("."), *names)
    if words[0] != "jax" or any(w.startswith("_") for w in words) or len(words) < 2:
        return False
    where = ".".join(words[:-1])
    if where == "jax":
        return words[-1] in _OF_JAX
    if where not in _MODULES and where != _SCIPY and not where.startswith(f"{_SCIPY}."):
        return False
    try:
        found = importlib.import_module(where)
    except ImportError:
        return False
    value = getattr(found, words[-1], None)
    return value is not None and not isinstance(value, types.ModuleType) and words[-1] not in _NOT_PURE


def _is_module(path: str) -> bool:
    """Whether an imported name stands for a module."""
    try:
        return isinstance(importlib.import_module(path), types.ModuleType)
    except ImportError:
        return False


def _imports(module: ast.Module) -> Iterator[tuple[str, str]]:
    """What a module imports: the name there, and what it stands for."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else ((alias.name.split(".")[0],) * 2)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _bound(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from _names_in(target)


def _locals(function: ast.FunctionDef) -> Iterator[str]:
    """What is bound anywhere in a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node.id
        elif isinstance(node, ast.FunctionDef) and node is not function:
            yield node.name


def _names_in(target: ast.AST) -> Iterable[str]:
    return [n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _chain(node: ast.AST) -> list[str] | None:
    """`["jax", "numpy", "sum"]` of that dotted name; None of what is none."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else None
