"""What a call passes to the function that it calls, as its author wrote both."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence

from untrace.provenance.frames import LEAF_BY_LEAF, Frame

STATIC = frozenset({"shape", "ndim", "size", "dtype"})


def own_parameters(frame: Frame) -> list[str]:
    """The author's names of the parameters, without `self`: the positional ones, then those that are passed by name."""
    code = frame.code
    named = 0 if code.co_flags & inspect.CO_VARARGS else code.co_kwonlyargcount
    own = list(code.co_varnames[: code.co_argcount + named])
    return own[1:] if own[:1] == ["self"] else own


def passes_variable(frames: Sequence[Frame], keyword: str) -> bool:
    """Whether the innermost call has an expression for an argument that it passes by this name, and no constant."""
    node = frames[-1].node if frames else None
    passed = [k.value for k in node.keywords if k.arg == keyword] if isinstance(node, ast.Call) else []
    return any(not isinstance(value, ast.Constant) for value in passed)


def arguments_by_parameter(node: ast.Call, callee: Frame) -> dict[str, ast.expr]:
    """The arguments of a call by the parameters of the function that it calls; {} where it may call another one that calls this."""
    function = node.func
    if _is_leaf_by_leaf(node, callee):
        return {name: ast.Starred(tree) for name, tree in zip(own_parameters(callee), node.args[1:], strict=False)}
    if isinstance(function, ast.Call) and function.args and last_name(function.func) != "partial":
        called = function.args[0]  # `jax.vmap(f)(x)`, which passes `x` to `f`
    else:
        called = function
    if not _is_called(called, callee):
        return {}
    own = own_parameters(callee)
    found: dict[str, ast.expr] = {}
    for place, argument in enumerate(node.args):
        if isinstance(argument, ast.Starred):
            found.update(_spread(own, node, place, argument.value))
            break
        if place < len(own):
            found[own[place]] = argument
    found.update({k.arg: k.value for k in node.keywords if k.arg is not None})
    if isinstance(function, ast.Attribute) and callee.code.co_varnames[:1] == ("self",):
        found["self"] = function.value
    return found


def arguments_of(node: ast.Call, callee: Frame) -> list[ast.expr]:
    """What a call passes to the function that it calls, in order."""
    return node.args[1:] if _is_leaf_by_leaf(node, callee) else node.args


def _is_leaf_by_leaf(node: ast.Call, callee: Frame) -> bool:
    return last_name(node.func) in LEAF_BY_LEAF and bool(node.args) and _is_called(node.args[0], callee)


def _is_called(node: ast.expr, callee: Frame) -> bool:
    """Whether an expression may be the function that is called."""
    return last_name(node) == callee.name or callee.name == "<lambda>" and isinstance(node, (ast.Lambda, ast.Name))


def _spread(own: Sequence[str], node: ast.Call, place: int, whole: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The parameters that the elements of a spread argument are, and those after it, if all are passed."""
    after = node.args[place + 1 :]
    if node.keywords and after or any(isinstance(a, ast.Starred) for a in after):
        return
    named = {k.arg for k in node.keywords}
    inside = [name for name in own[place : len(own) - len(after)] if name not in named]
    for number, name in enumerate(inside):
        yield name, ast.Subscript(whole, ast.Constant(number))
    yield from zip(own[len(own) - len(after) :], after, strict=True) if after else ()


def last_name(function: ast.AST) -> str | None:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


def operands(node: ast.AST | None) -> list[ast.expr]:
    """What an operation is of, in order."""
    match node:
        case ast.BinOp():
            return [node.left, node.right]
        case ast.Compare():
            return [node.left, *node.comparators]
        case ast.UnaryOp():
            return [node.operand]
        case ast.AugAssign():
            return [node.target, node.value]
        case ast.Subscript():
            return [node.value, *(node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])]
        case ast.Attribute():
            return [] if node.attr in STATIC else [node.value]
        case ast.Call():
            of = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            return [*of, *node.args, *[k.value for k in node.keywords]]
    return []
