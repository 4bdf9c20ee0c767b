"""What a function's own code calls the values that it is given, read off its operations.

A library's function seldom is passed variables that its parameters could be named after: the state of an optimiser
comes out of a list, or the function reads it from `self`. But what it computes says it: of `b1 * m` with a product
of a number and an input, that input is `m`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence
from types import CodeType

from untrace.ir.nodes import Atom, Constant, Equation, Literal
from untrace.lift.naming import words
from untrace.lift.outline.accesses import SAME
from untrace.provenance import syntax
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance


def names_of_operands(
    code: CodeType, equations: Iterable[Equation], inputs: Sequence[Atom], provenance: Provenance
) -> list[str | None]:
    """What the function of `code`, whose equations these are, calls each of its inputs, or of the numbers and arrays that
    it reads; None where it does not say."""
    by_expression: dict[Frame, list[tuple[Equation, bool]]] = {}
    # Inputs, and what is an input but for its type or shape.
    known: dict[Atom, Atom] = dict(zip(inputs, inputs, strict=True))
    for equation in equations:
        frames = provenance.site(equation.origin).frames
        frame = next((f for f in frames if f.code is code), None)
        if frame is not None:
            by_expression.setdefault(frame, []).append((equation, frame is frames[-1]))
        if equation.callee.name in SAME and equation.inputs[0] in known and equation.outputs[0] is not None:
            known[equation.outputs[0]] = known[equation.inputs[0]]
    counts: dict[Atom, Counter[str]] = {}
    for frame, made in by_expression.items():
        for value, word in _said(frame, made):
            if value in known and word is not None:
                counts.setdefault(known[value], Counter())[word] += 1
    found = [counts[value].most_common(1)[0][0] if value in counts else None for value in inputs]
    return [
        None if word is None or found.index(word) < place else words.clean(word) for place, word in enumerate(found)
    ]


def name_of_changed(frame: Frame) -> str | None:
    """The variable that a call changes in place, if the call is a statement: `self.assign_add(m, ...)`."""
    node = frame.node
    if not isinstance(node, ast.Call) or not isinstance(syntax.parent(frame.code, node)[0], ast.Expr):
        return None
    first = node.args[0] if len(node.args) > 1 else getattr(node.func, "value", None)
    return words.clean(first.id) if isinstance(first, ast.Name) and first.id != "self" else None


def _said(frame: Frame, equations: Sequence[tuple[Equation, bool]]) -> list[tuple[Atom, str | None]]:
    """(a value that comes from outside an expression, what it is called there). Each equation comes with whether nothing
    but JAX is called to make it."""
    steps = [pair for pair in equations if pair[0].callee.name not in SAME] or equations
    if len(steps) > 1 and isinstance(frame.node, ast.Subscript):
        return _of_subscript(frame.node, [e for e, _ in steps])
    if len(steps) > 1:
        return []  # several steps may read what they are given in any order
    equation, is_plain = steps[0]
    operands = _operands(frame.node, equation.callee.name, is_plain)
    if len(operands) != len(equation.inputs):
        return []
    return [(a, _word(o)) for a, o in zip(equation.inputs, operands, strict=True)]


def _of_subscript(node: ast.Subscript, steps: Sequence[Equation]) -> list[tuple[Atom, str | None]]:
    """The same of `x[i]`: an array, and an index that is known."""
    made = {o for e in steps for o in e.outputs}
    read = dict.fromkeys(a for e in steps for a in e.inputs if type(a) is not Literal and a not in made)
    indices = [a for a in read if type(a) is Constant and a.aval.dtype.kind in "iu"]
    arrays = [a for a in read if a not in indices and str(getattr(a.aval, "dtype", "")) != "bool"]
    found: list[tuple[Atom, str | None]] = [(a, _word(node.value)) for a in arrays if len(arrays) == 1]
    return found + [(a, _word(node.slice)) for a in indices if len(indices) == 1]


def _operands(node: ast.AST | None, primitive: str, is_plain: bool) -> list[ast.expr]:
    """What an operation is of, in order; [] of what is none."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Subscript):
        return [node.value, *(node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.Compare) and len(node.comparators) == 1:
        return [node.left, *node.comparators]
    if not isinstance(node, ast.Call) or node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
        return []
    function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    # `ops.subtract(a, b)` takes its operands as `sub` does; of what has another name that is not known.
    return node.args if primitive in function or is_plain and len(node.args) == 1 else []


def _word(operand: ast.expr) -> str | None:
    """The variable that an operand is, or the attribute (`self.iterations`); of a variable of a library: the variable."""
    while isinstance(operand, ast.Attribute) and operand.attr in ("value", "raw_value"):
        operand = operand.value
    if isinstance(operand, ast.Name):
        return operand.id if operand.id != "self" else None
    return operand.attr if isinstance(operand, ast.Attribute) else None
