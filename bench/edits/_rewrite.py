"""One edit of a module's source, made without knowing whether the author or untrace wrote it.

A pattern is an expression in which a single capital letter stands for anything: `jax.nn.relu(A)`. What means the same is
one pattern: `x.sum(axis=-1)` is `jnp.sum(x, axis=-1)`, `lax.f` is `jax.lax.f`, `x % y` is `jnp.mod(x, y)`, 2 is 2.0.
`A["w1"]` stands for the entry or the field `w1` of anything; inside a pattern, also for a variable that was given such an
entry or is called `w1`. `A` is that entry.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import re
from collections.abc import Iterator

REDUCTIONS = ("sum", "mean", "max", "min")
SPELLINGS = {"nn.": "jax.nn.", "lax.": "jax.lax.", "jax.numpy.": "jnp."}
OPERATORS = {"jnp.mod": ast.Mod, "jnp.remainder": ast.Mod}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.Module


class NoSuchPlace(Exception):
    """The module has no place, or no clear one, that the edit is for."""


@dataclasses.dataclass(frozen=True)
class Replace:
    """In the first of the functions `within` that the module has, else in all of it: `pattern` becomes `by`.

    All places of one function at the module's level are edited; with `everywhere` those of the whole module. Where the
    function does not have it, it may be a number of the module.
    """

    within: tuple[str, ...]
    pattern: str
    by: str
    everywhere: bool = False


@dataclasses.dataclass(frozen=True)
class Loss:
    """What the function `within` returns (the first of a tuple) becomes `by`, in which `V` is what it was.

    Where the module has no such function, the value that is assigned to `loss` is meant. `PARAMS` is the
    parameter that the author calls `params`; with another name, the function's first; `params["w1"]` may be a `w1`.
    """

    within: str
    by: str
    params: str = "params"


def edited(source: str, edit: Replace | Loss) -> tuple[str, int]:
    """The source with the edit made, and at how many places; or `NoSuchPlace`."""
    module = ast.parse(source)
    places = 1
    if isinstance(edit, Replace):
        places = _replace(module, edit)
    else:
        _change_loss(module, edit)
    _import_jax(module)
    return ast.unparse(ast.fix_missing_locations(module)) + "\n", places


# ------------------------------------------------------------------ replacing an expression


def _replace(module: ast.Module, edit: Replace) -> int:
    pattern, by = _expression(edit.pattern), _expression(edit.by)
    roots: list[Scope] = []
    for name in () if edit.everywhere else edit.within:
        roots = list(_functions(module, name))
        if roots:
            break
    where = f"in {' or '.join(f.name for f in roots if not isinstance(f, ast.Module))}" if roots else "anywhere"
    edited_in: dict[int, int] = {}
    for root in roots or [module]:
        for number, outer in enumerate(root.body if isinstance(root, ast.Module) else [root]):
            if getattr(outer, "name", "").startswith("_"):
                continue  # the helpers of a guard
            rewriter = _Rewriter(pattern, by, _aliases(outer))
            rewriter.visit(outer)
            if rewriter.places:
                key = number if isinstance(root, ast.Module) else id(root)
                edited_in[key] = edited_in.get(key, 0) + rewriter.places
    for number, outer in enumerate(module.body if roots and not edited_in else ()):
        if isinstance(outer, ast.Assign):
            rewriter = _Rewriter(pattern, by, {})
            outer.value = rewriter.visit(outer.value)
            if rewriter.places:
                edited_in[number] = rewriter.places
    if not edited_in:
        raise NoSuchPlace(f"no `{edit.pattern}` {where}")
    if len(edited_in) > 1 and not edit.everywhere:
        raise NoSuchPlace(f"`{edit.pattern}` in {len(edited_in)} functions")
    return sum(edited_in.values())


class _Rewriter(ast.NodeTransformer):
    """Puts `by` in the place of what the pattern matches, from the inside out, and counts the places."""

    def __init__(self, pattern: ast.expr, by: ast.expr, aliases: dict[str, object]) -> None:
        self.pattern, self.by, self.aliases, self.places = pattern, by, aliases, 0

    def visit(self, node: ast.AST) -> ast.AST:
        node = self.generic_visit(node)
        found: dict[str, ast.expr] = {}
        is_read = not isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
        if isinstance(node, ast.expr) and is_read and _matches(self.pattern, node, found, self.aliases, True):
            self.places += 1
            return _filled(self.by, found)
        return node


def _matches(
    pattern: ast.AST, node: ast.AST, found: dict[str, ast.expr], aliases: dict[str, object], is_root: bool = False
) -> bool:
    """Whether the node is what the pattern says; `found` gets what its letters stand for."""
    pattern, node = _canonical(pattern), _canonical(node)
    if isinstance(pattern, ast.Name) and _is_letter(pattern.id):
        if pattern.id in found:
            return ast.dump(found[pattern.id]) == ast.dump(node)
        found[pattern.id] = node  # type: ignore[assignment]
        return isinstance(node, ast.expr)
    if isinstance(pattern, ast.Subscript) and isinstance(pattern.slice, ast.Constant):
        return _is_entry(pattern, node, aliases, is_root) and _matches(pattern.value, node, found, aliases)
    if isinstance(pattern, ast.Constant) and isinstance(node, ast.Constant):
        return _same_constant(pattern.value, node.value)
    if type(pattern) is not type(node):
        return False
    for field in pattern._fields:
        one, other = getattr(pattern, field), getattr(node, field)
        if field in ("ctx", "kind", "type_comment"):
            continue
        ones, others = (one, other) if isinstance(one, list) else ([one], [other])
        if len(ones) != len(others):
            return False
        for a, b in zip(ones, others, strict=True):
            if not (_matches(a, b, found, aliases) if isinstance(a, ast.AST) and isinstance(b, ast.AST) else a == b):
                return False
    return True


def _is_entry(pattern: ast.Subscript, node: ast.AST, aliases: dict[str, object], is_root: bool) -> bool:
    key = getattr(pattern.slice, "value", None)
    if isinstance(node, ast.Name) and not is_root:
        return key in (aliases.get(node.id), _base(node.id))
    if isinstance(node, ast.Attribute):
        return node.attr == key
    return isinstance(node, ast.Subscript) and getattr(node.slice, "value", None) == key


def _canonical(node: ast.AST) -> ast.AST:
    """What means the same in one form: `x.sum(...)` as `jnp.sum(x, ...)`, `lax.f` as `jax.lax.f`, `jnp.mod(x, y)` as
    `x % y`, `scan(f, init, None)` as `scan(f, init)`.
    """
    if isinstance(node, ast.Attribute):
        dotted = ast.unparse(node)
        for short, long in SPELLINGS.items():
            if dotted.startswith(short):
                return _expression(long + dotted[len(short) :])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REDUCTIONS:
        if ast.unparse(node.func.value) not in ("jnp", "np", "lax", "jax.numpy", "jax.lax"):
            function = _expression(f"jnp.{node.func.attr}")
            return ast.Call(function, [node.func.value, *node.args], node.keywords)
    if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
        called = ast.unparse(_canonical(node.func))
        if called in OPERATORS and len(node.args) == 2 and not node.keywords:
            return ast.BinOp(node.args[0], OPERATORS[called](), node.args[1])
        if called == "jax.lax.scan" and [getattr(x, "value", 0) for x in node.args[2:]] == [None]:
            return ast.Call(node.func, node.args[:2], node.keywords)
    return node


def _same_constant(one: object, other: object) -> bool:
    numbers = [isinstance(c, (int, float)) and not isinstance(c, bool) for c in (one, other)]
    if all(numbers):
        return abs(one - other) <= 1e-6 * abs(one)  # type: ignore[operator, arg-type]
    return type(one) is type(other) and one == other


def _filled(template: ast.expr, found: dict[str, ast.expr]) -> ast.expr:
    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return copy.deepcopy(found[node.id]) if node.id in found else node

    return Fill().visit(copy.deepcopy(template))


# ------------------------------------------------------------------ changing what a loss function gives


def _change_loss(module: ast.Module, edit: Loss) -> None:
    functions = list(_functions(module, edit.within))
    if len(functions) > 1:
        raise NoSuchPlace(f"{len(functions)} functions called {edit.within}")
    if functions:
        returns = [s for s in _own_statements(functions[0]) if isinstance(s, ast.Return)]
        if len(returns) != 1 or returns[0].value is None:
            raise NoSuchPlace(f"{len(returns)} returns in {edit.within}")
        value, place = returns[0].value, functions[0]
        if isinstance(value, ast.Tuple):
            value.elts[0] = _with_value(module, place, edit, value.elts[0])
        else:
            returns[0].value = _with_value(module, place, edit, value)
        return
    assigned = [
        (function, s)
        for function in ast.walk(module)
        if isinstance(function, Function)
        for s in _own_statements(function)
        if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) and _base(s.targets[0].id) == "loss"
    ]
    if len(assigned) != 1:
        raise NoSuchPlace(f"no function {edit.within}, and {len(assigned)} times `loss = ...`")
    function, statement = assigned[0]
    statement.value = _with_value(module, function, edit, statement.value, is_loss_function=False)


def _with_value(
    module: ast.Module, function: Function, edit: Loss, value: ast.expr, is_loss_function: bool = True
) -> ast.expr:
    """The template with the value, and with the names that this function has for what it reads."""
    parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    visible = parameters
    if not is_loss_function:
        visible = [name for scope in _around(module, function) for name in _bound(scope, before=value.lineno)]
    named = [name for name in visible if _base(name) == edit.params]
    if named:
        params = named[0]
    elif is_loss_function and parameters:
        params = parameters[0]
    else:
        params = ""

    class Resolve(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
            key = getattr(node.slice, "value", None)
            leaf = [name for name in visible if _base(name) == key]
            if getattr(node.value, "id", None) == "PARAMS" and not named and leaf:
                return ast.Name(leaf[0], ast.Load())
            return self.generic_visit(node)  # type: ignore[return-value]

        def visit_Name(self, node: ast.Name) -> ast.expr:
            if node.id == "PARAMS" and not params:
                raise NoSuchPlace(f"no `{edit.params}` in {function.name}")
            return ast.Name(params, ast.Load()) if node.id == "PARAMS" else node

    return _filled(Resolve().visit(_expression(edit.by)), {"V": value})


def _around(module: ast.Module, function: Function) -> list[Function]:
    """The functions that the function stands in, itself first."""
    chain = [f for f in ast.walk(module) if isinstance(f, Function) and function in ast.walk(f)]
    return chain[::-1]


def _bound(function: Function, before: int) -> Iterator[str]:
    """The parameters of a function, and what it assigns above a line."""
    for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        yield argument.arg
    for statement in _own_statements(function):
        for node in ast.walk(statement) if isinstance(statement, ast.Assign) and statement.lineno < before else ():
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


# ------------------------------------------------------------------ what a module has


def _functions(module: ast.Module, name: str) -> Iterator[Function]:
    """The functions of this name; where there are none, those whose name differs by case or a number at its end."""
    all_of_them = [f for f in ast.walk(module) if isinstance(f, Function)]
    exact = [f for f in all_of_them if f.name == name]
    yield from exact or [f for f in all_of_them if _base(f.name).lower() == name.lower()]


def _own_statements(function: Function) -> Iterator[ast.stmt]:
    """The statements of a function, without those of the functions in it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.stmt) and not isinstance(node, (*Function.__args__, ast.ClassDef)):
            yield node
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def _aliases(tree: ast.AST) -> dict[str, object]:
    """Of each variable that was given an entry (`w1 = params["w1"]`), the entry's key."""
    found: dict[str, object] = {}
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                pairs = list(zip(target.elts, value.elts, strict=True))
            for name, entry in pairs:
                if isinstance(name, ast.Name) and isinstance(entry, ast.Subscript):
                    found[name.id] = getattr(entry.slice, "value", None)
    return found


def _import_jax(module: ast.Module) -> None:
    """Imports what the templates read, where the module has not."""
    lines = [ast.unparse(s) for s in module.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    start = 1 if ast.get_docstring(module) is not None else 0
    start += sum(line.startswith("from __future__") for line in lines)
    for line in ("import jax.numpy as jnp", "import jax"):
        if line not in lines:
            module.body[start:start] = ast.parse(line).body


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _is_letter(name: str) -> bool:
    return len(name) == 1 and name.isupper()


def _base(name: str) -> str:
    """The name without a number at its end: `loss_2` is `loss`."""
    return re.sub(r"_\d+$", "", name)
