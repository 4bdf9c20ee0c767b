"""Editors for `bench/refine.py` and the tests: honest ones, lazy ones, and what hostile ones answer."""

from __future__ import annotations

import ast
import builtins
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

# ------------------------------------------------------------------ honest: another text of the same program


def formatter(text: str) -> str:
    """Prints the function anew; comments go."""
    return ast.unparse(ast.parse(text))


def renamer(text: str) -> str:
    """Gives every variable of the function's own another name."""
    tree = ast.parse(text)
    function = tree.body[0]
    names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    parameters = {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
    taken = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)} | set(dir(builtins)) | parameters
    new = {name: f"{name}_value" for name in names - parameters if name[0] != "_" and f"{name}_value" not in taken}
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            node.id = new.get(node.id, node.id)
    return ast.unparse(tree)


def inliner(text: str) -> str:
    """Puts what is computed for the next statement alone, and read there once, into that statement."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = _inlined(node.body, node)
    return ast.unparse(tree)


def _inlined(body: list[ast.stmt], function: ast.FunctionDef) -> list[ast.stmt]:
    counts: dict[str, int] = {}
    for n in ast.walk(function):
        if isinstance(n, ast.Name):
            counts[n.id] = counts.get(n.id, 0) + 1
    parameters = {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
    done: list[ast.stmt] = []
    for statement in body:
        last = done[-1] if done else None
        if (
            isinstance(last, ast.Assign)
            and len(last.targets) == 1
            and isinstance(last.targets[0], ast.Name)
            and counts[last.targets[0].id] == 2
            and last.targets[0].id not in parameters
            and isinstance(statement, (ast.Assign, ast.Return))
        ):
            name = last.targets[0].id
            reads = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name]
            lambdas = [n for n in ast.walk(statement) if isinstance(n, (ast.Lambda, ast.comprehension))]
            if len(reads) == 1 and isinstance(reads[0].ctx, ast.Load) and not lambdas:
                done[-1] = _Put(name, last.value).visit(statement)
                continue
        done.append(statement)
    return done


class _Put(ast.NodeTransformer):
    def __init__(self, name: str, value: ast.expr) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.value if node.id == self.name and isinstance(node.ctx, ast.Load) else node


HONEST: dict[str, Callable[[str], str]] = {"formatter": formatter, "renamer": renamer, "inliner": inliner}

# ------------------------------------------------------------------ lazy: no answer at all

LAZY: dict[str, Callable[[str], Any]] = {
    "nothing": lambda text: None,
    "the same": lambda text: text,
    "empty": lambda text: "",
    "an apology": lambda text: "I'm sorry, but I can't help with that.",
    "a number": lambda text: 42,
    "half of it": lambda text: text[: len(text) // 2],
    "the head": lambda text: text.split("\n")[0] + "\n    ...",
    "a stub": lambda text: text.split("\n")[0] + "\n    pass",
    "a comment": lambda text: "# the function is fine as it is",
    "JSON": lambda text: '{"function": "as it was"}',
    "an empty block": lambda text: "Here it is:\n```python\n```",
    "a failure": lambda text: 1 / 0,
    "its body": lambda text: "\n".join(line[4:] for line in text.split("\n")[1:]),
}

# ------------------------------------------------------------------ hostile: what is not to get in

# Statements that do something else than to compute. CANARY is a file that must not come to be.
_STATEMENTS = """
import os
import os; os.system("touch CANARY")
from os import system
from jax._src import config
__import__("os").system("touch CANARY")
open("CANARY", "w")
handle = open("CANARY", "w")
eval('open("CANARY", "w")')
exec('open("CANARY", "w")')
compile("1", "CANARY", "exec")
getattr(jax, "_src")
seen = jax._src
seen = jax.numpy._src
seen = jax.tree_util
seen = jnp.save("CANARY", 1.0)
seen = jnp.load("CANARY")
seen = jnp.savez("CANARY", 1.0)
seen = jax.debug.callback(print, 1.0)
seen = jax.pure_callback(print, None, 1.0)
seen = jax.experimental.io_callback(print, None, 1.0)
seen = jax.config.update("jax_enable_x64", True)
seen = jax.profiler.start_trace("CANARY")
seen = ().__class__.__bases__[0].__subclasses__()
seen = (lambda: 0).__globals__
seen = (lambda: 0).__code__
seen = (i for i in ()).gi_frame.f_globals
seen = "{0.__class__}".format(1)
seen = "%s" % globals()
seen = vars()
seen = globals()["jnp"]
seen = locals()
seen = type("X", (), {"__del__": open})
seen = super()
seen = memoryview(b"1")
seen = breakpoint()
seen = input()
print("seen")
raise SystemExit
raise ValueError("no")
assert False
while True: pass
for i in iter(int, 1): pass
for i in range(10**9): pass
seen = [0] * 10**12
seen = 9**9**9
with open("CANARY", "w"): pass
with open("CANARY", "w") as handle: handle.write("1")
try: open("CANARY", "w")\n    except Exception: pass
global jnp
nonlocal jnp
class A: pass
class A: seen = open("CANARY", "w")
yield 1
seen = yield
await jnp
del jnp
seen: open("CANARY", "w") = 1
(seen := open("CANARY", "w"))
seen = f'{open("CANARY", "w")}'
seen = [open for open in [1]]
seen = [open("CANARY", "w") for i in [1]]
seen = {i: open("CANARY", "w") for i in [1]}
seen = lambda x=open("CANARY", "w"): x
seen = (lambda: open("CANARY", "w"))()
def seen(x=open("CANARY", "w")): return x
def seen(x: open("CANARY", "w")): return x
def seen(x) -> open("CANARY", "w"): return x
def seen(open): return open("CANARY", "w")
async def seen(): pass
@print\n    def seen(): pass
@open("CANARY", "w").write\n    def seen(): pass
jnp = None
jax.seen = 1
jax.numpy.sum = None
jnp.sum.seen = 1
len = None
open = len
__builtins__ = {}
__name__ = "CANARY"
import jax as jnp
from jax import numpy as seen
seen = jax
seen = jnp
seen = jnp.numpy
seen = jnp.linalg
seen = lax.lax
seen = True if jnp.pi > 3 else False
seen = jnp.pi > 3 and 1
if jnp.pi > 3: seen = 1
match jnp.pi:\n        case _: seen = 1
"a docstring"; "seen"
1
...
lambda: 0
seen = b"1"
seen = 123456789
seen = jnp.zeros(97)
seen = [1]; seen.__iadd__([2])
seen = jnp.frompyfunc(print, 1, 1)
seen = jax.named_call
seen = jnp.from_dlpack(1)
seen = jax.random.key.__wrapped__
"""

HEADS: dict[str, Callable[[str], str]] = {
    "a decorator": lambda t: "@print\n" + t,
    "a decorator that computes": lambda t: '@open("CANARY", "w").write\n' + t,
    "jit": lambda t: "@jax.jit\n" + t,
    "a default that computes": lambda t: re.sub(r"\((\w+)", r'(\1=open("CANARY", "w")', t, count=1),
    "a default": lambda t: re.sub(r"\)( ->[^:]*)?:", r"=1):", t, count=1),
    "another parameter": lambda t: re.sub(r"\)( ->[^:]*)?:", r", more=1):", t, count=1),
    "an annotation": lambda t: re.sub(r"\((\w+)", r'(\1: open("CANARY", "w")', t, count=1),
    "a result's annotation": lambda t: re.sub(r"\)( ->[^:]*)?:", r') -> open("CANARY", "w"):', t, count=1),
    "another name": lambda t: re.sub(r"def (\w+)", r"def \1_", t, count=1),
    "a coroutine": lambda t: re.sub(r"def ", "async def ", t, count=1),
    "two functions": lambda t: t + '\n\n\ndef more():\n    open("CANARY", "w")\n',
    "a statement behind it": lambda t: t + '\nopen("CANARY", "w")\n',
    "a statement before it": lambda t: 'open("CANARY", "w")\n' + t,
    "an import before it": lambda t: "import os\n" + t,
    "a global behind it": lambda t: t + "\njnp = None\n",
    "an invisible character": lambda t: t + "  # \u202e",
    "a carriage return": lambda t: t + '  # seen\r    open("CANARY", "w")',
    "a form feed": lambda t: t + "\f",
    "a NUL": lambda t: t + "  # \0",
    "a backslash at the end": lambda t: t + "\\",
    "an open string": lambda t: t + '\n    """',
    "a deep nest": lambda t: t + "\n    return " + "(" * 5000 + ")" * 5000,
    "a deep sum": lambda t: t + "\n    return " + "-" * 9000 + "1",
    "a long text": lambda t: t + "\n    # " + "x" * 2_000_000,
    "a class": lambda t: "class A:\n" + "\n".join("    " + line for line in t.split("\n")),
    "a lambda": lambda t: re.sub(r"def (\w+)\(.*", r"\1 = lambda *a: 0", t.split("\n")[0]),
}


def foreign(text: str) -> Iterator[tuple[str, str]]:
    """Answers that would do something else than to compute, each with what it tries."""
    lines = text.split("\n")
    head, body = _head(text), len(lines)
    for statement in _STATEMENTS.strip().split("\n"):
        put = "    " + statement.replace("\\n", "\n")
        at = head if len(statement) % 2 else max(head, body - 1)
        if at != head and not _is_top(lines[at]):
            at = head
        yield statement, "\n".join([*lines[:at], put, *lines[at:]])
    for what, change in HEADS.items():
        yield what, change(text)


def _is_top(line: str) -> bool:
    return line.startswith("    ") and not line.startswith("     ") and line.strip()[:1] not in ")]}"


def _head(text: str) -> int:
    """The line, from 0, of the first statement behind the docstring."""
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    body = function.body
    first = body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(body) > 1
    node = body[1] if documented else first
    return min([node.lineno, *[d.lineno for d in getattr(node, "decorator_list", [])]]) - 1


_OTHER_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.MatMult: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
_OTHER_WORDS = {
    "sum": "mean", "mean": "sum", "max": "min", "min": "max", "tanh": "sin", "sin": "cos", "cos": "sin", "exp": "expm1",
    "log": "log1p", "sqrt": "square", "square": "sqrt", "zeros": "ones", "ones": "zeros", "zeros_like": "ones_like", "T": "mT",
    "argmax": "argmin", "maximum": "minimum", "minimum": "maximum", "cumsum": "cumprod", "where": "maximum", "relu": "gelu",
}  # fmt: skip


class _Mutator(ast.NodeTransformer):
    """Changes the `chosen`-th thing that can be changed; `count` says how many there are."""

    def __init__(self, chosen: int) -> None:
        self.chosen, self.count = chosen, 0

    def _hit(self) -> bool:
        self.count += 1
        return self.count - 1 == self.chosen

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if type(node.value) in (int, float) and self._hit():
            return ast.Constant(node.value + 1 if type(node.value) is int else node.value * 1.5 + 0.25)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        other = _OTHER_OPERATORS.get(type(node.op))
        if other is not None and self._hit():
            node.op = other()
        if type(node.op) in (ast.Sub, ast.Div, ast.MatMult) and self._hit():
            node.left, node.right = node.right, node.left
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr in _OTHER_WORDS and self._hit():
            node.attr = _OTHER_WORDS[node.attr]
        if node.attr == "shape" and self._hit():
            return ast.Tuple([ast.Constant(k) for k in (2, 3, 4)], ast.Load())
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if len(node.args) > 1 and self._hit():
            node.args = [node.args[1], node.args[0], *node.args[2:]]
        if node.keywords and self._hit():
            node.keywords = node.keywords[1:]
        return node

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        self.generic_visit(node)
        if node.value is not None and self._hit():
            node.value = ast.BinOp(ast.Constant(2.0), ast.Mult(), node.value)
        if isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1 and self._hit():
            node.value.elts = [node.value.elts[1], node.value.elts[0], *node.value.elts[2:]]
        if node.value is not None and self._hit():
            node.value = ast.Subscript(node.value, ast.Slice(None, ast.Constant(3)), ast.Load())
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        if self._hit():
            return []
        if self._hit():
            return [node, node]
        return node


def wrong(text: str, seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Answers that are another program: one thing of the function is changed in each."""
    counter = _Mutator(-1)
    counter.visit(ast.parse(text))
    source = random.Random(seed)
    plain = ast.unparse(ast.parse(text))
    for chosen in source.sample(range(counter.count), min(count, counter.count)):
        try:
            changed = ast.unparse(ast.fix_missing_locations(_Mutator(chosen).visit(ast.parse(text))))
        except (ValueError, IndexError):
            continue
        if changed != plain:
            yield f"change {chosen} of {counter.count}", changed
