"""What bench/torch_zoo.py says of a written text: how long it is beside PyTorch's, and which names and classes are in it.

PyTorch's side is what ran: the functions of the model's own files that one call entered, each counted once.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any


@dataclass
class Ran:
    """What one call of a model ran. `functions`: by (file, first line); `names`: what held tensors in each."""

    classes: set[type]
    functions: dict[tuple[str, int], ast.FunctionDef] = field(default_factory=dict)
    names: dict[tuple[str, int], set[str]] = field(default_factory=dict)

    def tokens(self) -> int:
        """Tokens of the functions that ran."""
        return sum(tokens(ast.unparse(f)) for f in self.functions.values())

    def constructors(self) -> int:
        """Tokens of the `__init__`s of the classes that ran: sizes, strides, heads stand there."""
        found = [c.__dict__["__init__"] for c in self.classes if "__init__" in c.__dict__]
        sources = sorted({inspect.cleandoc("\n" + _dedented(f)) for f in found})
        return sum(tokens(s) for s in sources)

    def local_names(self) -> set[str]:
        """Names that the functions bind, but their parameters, and that held a tensor (or several)."""
        found: set[str] = set()
        for place, function in self.functions.items():
            stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            found |= stored & self.names[place]
        return {n for n in found if n.strip("_")}


def watch(model: Any, args: Any, kwargs: Any) -> Ran:
    """Runs `model(*args, **kwargs)` and writes down what it enters."""
    import torch

    entered: set[type] = set()

    def enter(module: Any, inputs: Any, named: Any, out: Any) -> None:
        # What only hands on what it gets (dropout of paths in evaluation) has nothing to write.
        if not any(out is x for x in (*inputs, *named.values())):
            entered.add(type(module))

    hooks = [m.register_forward_hook(enter, with_kwargs=True) for m in model.modules()]
    files = {inspect.getsourcefile(type(m)) for m in model.modules() if is_author(type(m))}
    ran = Ran(set())
    trees = {f: _functions(f) for f in files if f}

    def look(frame: FrameType, event: str, _: Any) -> None:
        code: CodeType = frame.f_code
        if event != "return" or code.co_filename not in trees:
            return
        function = trees[code.co_filename].get((code.co_name, code.co_firstlineno))
        if function is not None:
            place = (code.co_filename, code.co_firstlineno)
            ran.functions[place] = function
            held = {n for n, v in frame.f_locals.items() if _holds_tensor(v)}
            ran.names.setdefault(place, set()).update(held)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        sys.setprofile(before)
        for hook in hooks:
            hook.remove()
    ran.classes = {c for c in entered if is_author(c)}
    return ran


def is_author(kind: type) -> bool:
    return not kind.__module__.startswith("torch.")


def _functions(file: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """Functions and methods of a file, those inside functions not, by name and by the line where Python says they start."""
    with open(file, encoding="utf-8") as text:
        body = ast.parse(text.read()).body
    methods = [m for c in body if isinstance(c, ast.ClassDef) for m in c.body]
    found = {}
    for node in (*body, *methods):
        if isinstance(node, ast.FunctionDef):
            line = min([node.lineno, *[d.lineno for d in node.decorator_list]])
            found[node.name, line] = node
    return found


def _holds_tensor(value: Any, depth: int = 2) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, dict):
        value = list(value.values())
    return depth > 0 and isinstance(value, (list, tuple)) and any(_holds_tensor(v, depth - 1) for v in value)


def _dedented(function: Any) -> str:
    import textwrap

    return textwrap.dedent(inspect.getsource(function))


def tokens(source: str) -> int:
    """Tokens of Python without comments, docstrings and line ends."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Module, ast.ClassDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = io.StringIO(ast.unparse(tree)).readline
    return sum(t.type not in skipped for t in tokenize.generate_tokens(lines))


def without_loader(source: str) -> str:
    return source.split("# PyTorch's tensors")[0]


def layers(source: str) -> int:
    """Tokens of those functions that stand for layers of PyTorch, whose own code is not in the model's files."""
    tree = ast.parse(source)
    lines = source.split("\n")
    found = 0
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            said = "\n".join(lines[node.lineno - 1 : node.body[min(1, len(node.body) - 1)].lineno])
            found += tokens(ast.unparse(node)) if "# PyTorch's " in said else 0
    return found


def names_in(source: str) -> set[str]:
    tree = ast.parse(source)
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    found |= {a.arg for n in ast.walk(tree) if isinstance(n, ast.arguments) for a in n.args}
    return found | {re.sub(r"_\d+$", "", n) for n in found}


def heads(text: str) -> dict[str, int]:
    """How many functions say that they are a class."""
    found: dict[str, int] = {}
    for name in re.findall(r"^    # class (\w+)", text, re.M):
        found[name] = found.get(name, 0) + 1
    return found


@dataclass(frozen=True)
class Score:
    source_ratio: float  # text ÷ functions and constructors
    forward_ratio: float  # text ÷ functions
    own_ratio: float  # text without PyTorch's layers ÷ functions and constructors
    names: float
    classes: float
    lost_names: tuple[str, ...]
    split_classes: tuple[str, ...]


def score(source: str, model: Any, args: Any, kwargs: Any) -> Score:
    text = without_loader(source)
    ran = watch(model, args, kwargs)
    written, theirs, made = tokens(text), ran.tokens(), ran.constructors()
    own = ran.local_names()
    lost = sorted(own - names_in(text))
    split = sorted(c.__name__ for c in ran.classes if heads(text).get(c.__name__, 0) != 1 and c is not type(model))
    return Score(
        written / (theirs + made), written / theirs, (written - layers(text)) / (theirs + made),
        1 - len(lost) / max(1, len(own)), 1 - len(split) / len(ran.classes), tuple(lost), tuple(split),
    )  # fmt: skip
