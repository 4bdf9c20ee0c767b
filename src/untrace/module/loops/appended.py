"""What the author calls the lists that a loop of his fills: `outs` of `outs.append(weights @ values)`."""

from __future__ import annotations

import ast
from collections.abc import Callable

from untrace.module.loops.align_turns import Carry, Own
from untrace.python.tree import Dict, Expr, Tuple


class Appended:
    """The lists and dicts that a loop of the author's puts values into. `author(hole)`: his name for one, or ""."""

    def __init__(self, loop: ast.For | None, author: Callable[[Own | Carry], str]):
        self.author = author
        # By what goes into them, in his words; those of a loop inside are its own, if there are others.
        self.lists: dict[str, str] = {}
        if loop is not None:
            self.lists = _filled(loop, False) or _filled(loop, True)

    def of_words(self, value: Expr) -> str:
        """The list that variables of his go into, or a tuple of them; "" where there is none."""
        parts = value.elements if type(value) is Tuple else [value]
        words = [self.author(part) for part in parts if type(part) is Own]
        if len(words) < len(parts):
            return ""
        return self.lists.get(f"({', '.join(words)})" if type(value) is Tuple else words[0], "")

    def of(self, value: Expr) -> str:
        """The same for an expression: the list of one that looks like it, of the variable that a tree of his has, or the only
        one."""
        found = self.of_words(value)
        if found or isinstance(value, Own | Carry) and self.author(value):
            return found
        alike = {name for text, name in self.lists.items() if _form(text) == _form(value.flat())}
        if len(alike) == 1:
            return alike.pop()
        parts = [v for _, v in value.pairs] if type(value) is Dict else value.elements if type(value) is Tuple else []
        words = {self.author(part) for part in parts if type(part) is Own} - {""}
        named = {self.lists[word] for word in words if word in self.lists} or {*self.lists.values()}
        return named.pop() if len(named) == 1 else ""


def _filled(loop: ast.For, inside: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    stack: list[ast.AST] = [*loop.body]
    while stack:
        node = stack.pop()
        if inside or not isinstance(node, ast.For | ast.While):
            stack += ast.iter_child_nodes(node)
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value]):
                found[ast.unparse(value)] = name
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))], value=value):
                found[ast.unparse(value)] = name
    return found


def _form(text: str) -> str:
    """An expression without its variables; "" for what is none."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = "x"
    return ast.dump(tree)
