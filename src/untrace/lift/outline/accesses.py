"""What an author's function has the values as that it is given: a parameter of its, or a part of one (`params["w"]`).

A jaxpr keeps leaves, in the order in which they are used. Which of them is which parameter is read off the operations
inside: of `x @ p["w"]` the first operand is `x`, the second a part of `p`; what a function is passed that is called
inside is what that one says of it, and where only one value and one operand are left, they belong together.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType

from untrace._identity import IdentityMap
from untrace.ir.calls import function_run, is_call
from untrace.ir.nodes import Atom, Cond, Equation, Function, Passed, Scan, While, functions_called
from untrace.lift.naming.unpacked import Parts, parts_in
from untrace.lift.outline.parameter_kinds import no_trees
from untrace.provenance.arguments import STATIC, arguments_by_parameter, last_name, operands, own_parameters
from untrace.provenance.call_records import Access
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance

# Of the same name as what they are of.
SAME = frozenset({"convert_element_type", "broadcast_in_dim", "copy", "reshape", "squeeze"})
_OF_ARRAYS = STATIC | {"T", "mT", "at", "real", "imag"}
_Run = tuple[Equation, tuple[Frame, ...]]  # an equation, and the frames behind it from some function inwards


def accesses(
    code: CodeType, equations: Iterable[Equation], inputs: Sequence[Passed], provenance: Provenance
) -> list[Access | None]:
    """What the function of `code`, whose equations these are, has each of its inputs as; None where it does not say."""
    runs: list[_Run] = []
    for equation in equations:
        frames = provenance.site(equation.origin).frames
        start = next((i for i, f in enumerate(frames) if f.code is code), None)
        if start is not None:
            runs.append((equation, frames[start:]))
    found = _Reader({a: a for a in inputs}, provenance, runs).function(runs) if runs else {}
    roots = set(own_parameters(runs[0][1][0])) if runs else set()
    plain = no_trees(runs[0][1][0].definition) if runs else ()
    said = {
        a: access for a, access in found.items() if access.root in roots and (access.exact or access.root not in plain)
    }
    taken = [access for access in said.values() if access.exact]
    return [said[a] if a in said and taken.count(said[a]) < 2 else None for a in inputs]


@dataclass(slots=True)
class _Expression:
    """One expression of a function: the values it reads that come from outside, and the parameters among its operands."""

    reads: list[Atom]
    operands: list[Access | None]
    roughly: list[Access | None]
    """What the operands are some part of."""

    paired: bool
    """Whether the one are the other, in this order."""

    beside: list[Access] = field(default_factory=list)
    """What stands inside of operands that nothing is computed for."""

    called: bool = False
    """Whether it is a call of a function that has a say itself."""


class _Reader:
    """known: what is asked for, by what it is called in these equations."""

    def __init__(self, known: Mapping[Atom, Atom], provenance: Provenance, runs: Iterable[_Run]):
        self.known = dict(known)
        self.provenance = provenance
        for equation, _ in runs:
            if equation.callee.name in SAME and equation.inputs[0] in self.known and equation.outputs[0] is not None:
                self.known[equation.outputs[0]] = self.known[equation.inputs[0]]
        self.parts: IdentityMap[CodeType, Parts] = IdentityMap()

    def function(self, runs: Sequence[_Run]) -> dict[Atom, Access]:
        """What the function says whose frames come first."""
        found: dict[Atom, Access] = {}
        expressions: list[_Expression] = []
        # Equations of one expression are neighbours; those of another turn of a loop are not.
        groups = [list(group) for _, group in itertools.groupby(runs, lambda run: run[1][0])]
        evaluated = {group[0][1][0].node for group in groups}
        for group in groups:
            frame, equations = group[0][1][0], [equation for equation, _ in group]
            inside = self._called(frame, group)
            if inside is None:
                inside = {}
                for equation in equations:
                    inside.update(self._in_bodies(frame, equation))
                calls = any(type(e.callee) in (Scan, While, Cond) or is_call(e) for e in equations)
                inside = inside if inside or calls else None
            expression = self._expression(frame, equations, evaluated)
            expression.called = inside is not None
            expressions += [expression] if expression.reads else []
            for value, access in (inside or {}).items():
                found.setdefault(value, access)
        for told in (_told, _told_roughly):
            count = -1
            while count < len(found):  # what is known of one tells the other
                count = len(found)
                for expression in expressions:
                    for value, access in told(expression, found):
                        found.setdefault(value, access)
        return found

    def _called(self, frame: Frame, runs: Sequence[_Run]) -> dict[Atom, Access] | None:
        """What a function says of them that is called here, in the words of the caller; None where none is called."""
        node = frame.node
        callee = runs[0][1][1] if len(runs[0][1]) > 1 else None
        if callee is None or not isinstance(node, ast.Call):
            return None
        if any(len(frames) < 2 or frames[1].code is not callee.code for _, frames in runs):
            return None
        passed = arguments_by_parameter(node, callee)
        return self._said_by_caller(frame, self.function([(e, f[1:]) for e, f in runs]), callee.code, passed)

    def _said_by_caller(
        self, frame: Frame, inside: Mapping[Atom, Access], code: CodeType, passed: Mapping[str, ast.expr]
    ) -> dict[Atom, Access]:
        """In the words of the caller what the function of `code` says, to which these expressions are `passed`."""
        found = {}
        for value, access in inside.items():
            node = passed.get(access.root)
            if node is None and access.root in code.co_freevars:
                node = ast.Name(access.root)
            whole = None if node is None else self._part(frame, node, access)
            if whole is not None:
                found[value] = whole
        return found

    def _part(self, frame: Frame, node: ast.expr, access: Access) -> Access | None:
        """What a part of the value of an expression is, which may put trees together."""
        steps = access.steps
        if isinstance(node, ast.Starred):  # some leaf of it
            return self._some_part(frame, node.value)
        if isinstance(node, (ast.Tuple, ast.List)) and steps:
            kind, place = steps[0]
            plain = kind == "item" and isinstance(place, int) and 0 <= place < len(node.elts)
            plain = plain and not any(isinstance(e, ast.Starred) for e in node.elts)
            rest = replace(access, steps=steps[1:])
            return self._part(frame, node.elts[place], rest) if plain and isinstance(place, int) else None
        if isinstance(node, ast.Dict) and steps:
            values = [v for k, v in zip(node.keys, node.values, strict=True) if _is_key(k, steps[0])]
            return self._part(frame, values[-1], replace(access, steps=steps[1:])) if values else None
        whole = self._access(frame, node)
        if whole is not None:
            return Access(whole.root, (*whole.steps, *steps), access.exact)
        return self._some_part(frame, node)

    def _some_part(self, frame: Frame, node: ast.AST) -> Access | None:
        found = self._parts(frame).some_part(node)
        return None if found is None else Access(*found, exact=False)

    def _in_bodies(self, frame: Frame, equation: Equation) -> dict[Atom, Access]:
        """What the functions say that a loop, a choice or a mapped call runs, in the words of this one."""
        found: dict[Atom, Access] = {}
        for body, inputs in _bodies(equation):
            given = zip(body.params, inputs, strict=False)
            known: dict[Atom, Atom] = {param: self.known[a] for param, a in given if a in self.known}
            runs = [(e, self.provenance.site(e.origin).frames) for e in body.equations] if known else []
            runs = [run for run in runs if run[1]]
            if not runs or any(frames[0].code is not runs[0][1][0].code for _, frames in runs):
                continue  # by whatever function it was traced
            callee = runs[0][1][0]
            passed = _passed_on(frame.node, callee, is_call(equation))
            inside = _Reader(known, self.provenance, runs).function(runs)
            for value, access in self._said_by_caller(frame, inside, callee.code, passed).items():
                found.setdefault(value, access)
        return found

    def _expression(
        self, frame: Frame, equations: Sequence[Equation], evaluated: Container[ast.AST | None]
    ) -> _Expression:
        made = {o for e in equations for o in e.outputs}
        steps = [e for e in equations if e.callee.name not in SAME] or equations
        listed = _listed(frame.node) if steps[0].callee.name in ("concatenate", "stack") else ()
        nodes = listed or operands(frame.node)
        parts = [self._access(frame, o) for o in nodes]
        roughly = [self._some_part(frame, o) for o in nodes]
        ordered = bool(listed) or isinstance(frame.node, (ast.BinOp, ast.Compare, ast.AugAssign))
        if ordered and len(steps) == 1 and len(steps[0].inputs) == len(parts):
            known = [self.known.get(a) for a in steps[0].inputs]
            kept = [i for i, a in enumerate(known) if a is not None]
            reads = [a for a in known if a is not None]
            return _Expression(reads, [parts[i] for i in kept], [roughly[i] for i in kept], True)
        found = dict.fromkeys(self.known[a] for e in equations for a in e.inputs if a in self.known and a not in made)
        computed = [o for o, access in zip(nodes, parts, strict=True) if access is None]
        beside = [a for o in computed for a in self._inside(frame, o, evaluated)]
        return _Expression(list(found), parts, roughly, False, beside)

    def _inside(self, frame: Frame, node: ast.AST, evaluated: Container[ast.AST | None]) -> Iterator[Access]:
        if node in evaluated:
            return
        for child in operands(node) if isinstance(node, (ast.Call, ast.Attribute)) else ast.iter_child_nodes(node):
            found = self._access(frame, child)
            if found is not None:
                yield found
            else:
                yield from self._inside(frame, child, evaluated)

    def _access(self, frame: Frame, node: ast.AST) -> Access | None:
        if isinstance(node, ast.Attribute) and node.attr in _OF_ARRAYS:
            return None
        found = self._parts(frame).part(node)
        return None if found is None else Access(*found)

    def _parts(self, frame: Frame) -> Parts:
        parts = self.parts.get(frame.code)
        if parts is None:
            parts = self.parts[frame.code] = parts_in(frame.definition, frame.code.co_freevars)
        return parts


def _listed(node: ast.AST | None) -> Sequence[ast.expr]:
    """The elements of a list that a call is given: `jnp.concatenate([x, y], axis=-1)`."""
    match node:
        case ast.Call(args=[ast.List(elts=elements) | ast.Tuple(elts=elements), *_]):
            return () if any(isinstance(e, ast.Starred) for e in elements) else elements
    return ()


def _told(expression: _Expression, found: Mapping[Atom, Access]) -> Iterator[tuple[Atom, Access]]:
    if expression.paired:
        yield from [(a, o) for a, o in zip(expression.reads, expression.operands, strict=True) if o is not None]
        return
    if expression.called:
        return
    taken = set(found.values())
    reads = [a for a in expression.reads if a not in found]
    left = {o for o in expression.operands if o is not None} - taken or set(expression.beside) - taken
    if len(reads) == 1 and len(left) == 1:
        yield reads[0], left.pop()


def _told_roughly(expression: _Expression, found: Mapping[Atom, Access]) -> Iterator[tuple[Atom, Access]]:
    """Values that are parts of a parameter: of the only one there is, if it is not known in which order they are read."""
    reads = [a for a in expression.reads if a not in found]
    if expression.paired:
        pairs = zip(expression.reads, expression.roughly, strict=True)
        yield from [(a, access) for a, access in pairs if access is not None and a in reads]
        return
    taken = {access.root for access in found.values() if access.is_whole}
    every = [*expression.roughly, *expression.operands, *expression.beside]
    left = {replace(a, exact=False) for a in every if a is not None and a.root not in taken}
    if len(left) == 1:
        access = left.pop()
        yield from [(a, access) for a in reads]


def _passed_on(node: ast.AST | None, body: Frame, is_call: bool) -> dict[str, ast.expr]:
    """The arguments of a call that gives them to a function, by the parameters of that: `jax.vmap(f)(x)`, `lax.scan(f, x, xs)`."""
    if not isinstance(node, ast.Call) or any(isinstance(a, ast.Starred) for a in node.args):
        return {}
    own = own_parameters(body)
    keywords = {k.arg: k.value for k in node.keywords if k.arg is not None}
    if is_call:
        return {**dict(zip(own, node.args, strict=False)), **{k: v for k, v in keywords.items() if k in own}}
    name = last_name(node.func) or ""
    if name in _OPERANDS:
        first = _OPERANDS[name]
        return dict(zip(own, node.args[first:], strict=False))
    found: dict[str, ast.expr] = {}
    for parameter, (place, word) in zip(own, _GIVEN.get(name, ()), strict=False):
        argument = node.args[place] if 0 <= place < len(node.args) else keywords.get(word)
        if argument is not None:
            found[parameter] = argument
    return found


# By the function of `jax.lax`: the argument that each parameter of its function is, or is one element of; (-1, "") for none.
_GIVEN = {
    "scan": ((1, "init"), (2, "xs")),
    "fori_loop": ((-1, ""), (3, "init_val")),
    "while_loop": ((2, "init_val"),),
    "map": ((1, "xs"),),
}
_OPERANDS = {"cond": 3, "switch": 2}  # from which argument on they are those of the function


def _bodies(equation: Equation) -> Iterator[tuple[Function, Sequence[Atom]]]:
    """The functions that an equation runs, with the operands that their parameters are, or are elements of."""
    callee, inputs = equation.callee, equation.inputs
    if type(callee) is While:
        carry = inputs[callee.consts :]
        yield callee.condition, [*inputs[: callee.condition_consts], *carry]
        yield callee.body, [*inputs[callee.condition_consts : callee.consts], *carry]
    elif type(callee) is Cond:
        yield from [(branch, inputs[1:]) for branch in callee.branches]
    elif type(callee) is Scan or is_call(equation):
        yield functions_called(equation)[0], inputs
    elif (run := function_run(equation, inputs)) is not None:
        yield run


def _is_key(node: ast.expr | None, step: tuple[str, Hashable]) -> bool:
    return isinstance(node, ast.Constant) and step == ("item", node.value)
