"""Trees as vectors: the leaves of a tree, one after the other, are `ravel_pytree(tree)[0]`, and its inverse takes them apart.

Only reshapes, concatenations and splits are read, whatever public functions they have become, so that `optax.flatten` and
what an author writes by hand are the same. Whether there is such a tree, the printer finds out: it knows what is where.
"""

from __future__ import annotations

import ast
import inspect
import math
import os
from collections import Counter
from collections.abc import Sequence

from jax.flatten_util import ravel_pytree

from untrace.ir.nodes import Atom, Equation, Function, Library, Program, TreeRavel, TreeUnravel, Value, walk_functions
from untrace.ir.types import Origin
from untrace.lift.naming.names import provenance_of
from untrace.provenance.returns import name_called
from untrace.provenance.sites import Provenance, climbed, targets

_FEWEST = 3  # leaves, where the author does not call `ravel_pytree`: two are as well told by their names
_FILE = inspect.unwrap(ravel_pytree).__code__.co_filename
_FOLDER = os.path.dirname(_FILE)
_SHAPES = frozenset({"reshape", "squeeze", "expand_dims", "broadcast_in_dim"})


def ravel_trees(program: Program, refused: frozenset[Origin] = frozenset()) -> Program:
    """Puts TreeRavels and TreeUnravels into the functions of `program`, in place."""
    provenance = provenance_of(program)
    functions = [f for f in walk_functions(program.entry) if len(f.equations) > 1]
    made = [e for f in functions for e in _raveled(f, provenance, refused)]
    sizes = {tuple([math.prod(a.aval.shape) for a in e.inputs]) for e in made}
    for function in functions:
        _unravel(function, sizes, provenance, refused)
    return program


def _raveled(function: Function, provenance: Provenance, refused: frozenset[Origin]) -> list[Equation]:
    """The TreeRavels of `function`, which are among its equations then."""
    uses = _uses(function)
    maker = {o: e for e in function.equations for o in e.outputs if o is not None}
    found: dict[Equation, Equation] = {}
    gone: set[Equation] = set()
    for equation in function.equations:
        pieces = _joined(equation) if len(equation.inputs) > 1 and equation.origin not in refused else None
        if pieces is None or len(pieces) < 2:
            continue
        leaves: list[Atom] = []
        reshapes: list[Equation] = []
        for piece in pieces:
            made = maker.get(piece) if type(piece) is Value and uses[piece] == 1 else None
            whole = _joined(made) if made is not None else None
            if made is not None and whole is not None and len(whole) == 1:
                reshapes.append(made)
                leaves.append(whole[0])
            else:
                leaves.append(piece)
        name, inverse = _called(equation.origin, provenance)
        if not inverse and (len(leaves) < _FEWEST or all(len(a.aval.shape) == 1 for a in leaves)):
            continue
        if len(set(leaves)) < len(leaves) or any(type(a) is not Value for a in leaves):
            continue
        output = equation.outputs[0]
        if name and output is not None and not output.named:
            output.hint, output.named = name, True
        gone.update(reshapes)
        callee = TreeRavel([*reshapes, equation], inverse or "unravel")
        found[equation] = Equation(callee, leaves, equation.outputs, {}, equation.origin)
    if found:
        function.equations = [found.get(e, e) for e in function.equations if e not in gone]
    return list(found.values())


def _unravel(
    function: Function, known: set[tuple[int, ...]], provenance: Provenance, refused: frozenset[Origin]
) -> None:
    """Puts TreeUnravels in the place of splits into leaves of the sizes `known`, and of those that a function does that
    `ravel_pytree` gave."""
    uses = _uses(function)
    readers = {a: e for e in function.equations for a in e.inputs if type(a) is Value}
    found: dict[Equation, Equation] = {}
    gone: set[Equation] = set()
    for equation in function.equations:
        sizes = _split(equation)
        if sizes is None or equation.origin in refused:
            continue
        inverse = _inverse(equation.origin, provenance)
        if sizes not in known and not inverse:
            continue
        leaves: list[Value | None] = []
        reshapes: list[Equation] = []
        for piece in equation.outputs:
            reader = readers.get(piece) if piece is not None and uses[piece] == 1 else None
            if reader is not None and _joined(reader) == [piece]:
                reshapes.append(reader)
                leaves.append(reader.outputs[0])
            else:
                leaves.append(piece if piece is not None and uses[piece] else None)
        gone.update(reshapes)
        names = [t for t in targets(provenance.site(equation.origin)) if not t.path and not t.library]
        callee = TreeUnravel([equation, *reshapes], sizes, inverse)
        if names:
            callee.result, callee.own_result = names[0].name, names[0].strong
        found[equation] = Equation(callee, equation.inputs, leaves, {}, equation.origin)
    if found:
        function.equations = [found.get(e, e) for e in function.equations if e not in gone]


def _uses(function: Function) -> Counter[Atom]:
    return Counter([a for e in function.equations for a in e.inputs] + [*function.results])


def _primitives(equation: Equation) -> tuple[Sequence[Equation], dict[Atom, list[Atom]]] | None:
    """What an equation does, in primitives, and of which of its inputs their operands are; None for a call of a function."""
    inputs = equation.inputs
    if type(equation.callee) is not Library:
        return [equation], {a: [a] for a in inputs}
    body = equation.callee.body
    if equation.callee.function is not None or len(body.params) != len(inputs):
        return None
    return body.equations, {p: [a] for p, a in zip(body.params, inputs, strict=True)}


def _joined(equation: Equation) -> list[Atom] | None:
    """The inputs whose numbers, one after the other, are those of the equation's one result; None where it does more.

    One input where it is reshaped only.
    """
    given = _primitives(equation)
    if given is None or len(equation.outputs) != 1 or not given[0]:
        return None
    equations, env = given
    for one in equations:
        parts = [env.get(a) for a in one.inputs]
        output = one.outputs[0] if len(one.outputs) == 1 else None
        if output is None or None in parts:
            return None
        if one.callee.name == "concatenate" and len(output.aval.shape) == 1:
            env[output] = [a for part in parts if part is not None for a in part]
        elif one.callee.name in _SHAPES and len(parts) == 1 and parts[0] is not None and _keeps_order(one):
            env[output] = parts[0]
        else:
            return None
    last = equations[-1].outputs[0]
    return env[last] if last is not None else None


def _keeps_order(equation: Equation) -> bool:
    """Whether a change of the shape leaves all numbers in their order, and repeats none."""
    given, output, params = equation.inputs[0], equation.outputs[0], equation.params
    if output is None or math.prod(given.aval.shape) != math.prod(output.aval.shape):
        return False
    return equation.callee.name != "reshape" or params.get("dimensions") is None


def _split(equation: Equation) -> tuple[int, ...] | None:
    """The sizes of the parts that a vector is split into; None where the equation does something else."""
    given = _primitives(equation)
    if given is None or len(equation.inputs) != 1 or len(equation.inputs[0].aval.shape) != 1:
        return None
    equations, _ = given
    if len(equations) != 1 or equations[0].callee.name != "split" or len(equation.outputs) < 2:
        return None
    sizes = equations[0].params["sizes"]
    return tuple(sizes) if isinstance(sizes, tuple) and len(sizes) == len(equation.outputs) else None


def _called(origin: Origin | None, provenance: Provenance) -> tuple[str, str]:
    """What the author calls the vector and the function that takes it apart, where they call `ravel_pytree`; else "", ""."""
    for frame in reversed(provenance.site(origin).frames) if origin is not None else ():
        node = frame.node
        if isinstance(node, ast.Call) and name_called(node) == "ravel_pytree":
            first, second = [
                next((t.name for t in climbed(frame, (part,)).targets if t.strong and not t.path), "")
                for part in (0, 1)
            ]
            return first, second if second.strip("_") else "unravel"
    return "", ""


def _inverse(origin: Origin | None, provenance: Provenance) -> str:
    """What the author calls the function that `ravel_pytree` gave, where the equation is in a call of it; else ""."""
    if origin is None:
        return ""
    site = provenance.site(origin)
    files = [code.co_filename for code, _ in site.below]
    if _FILE not in files:
        return ""
    is_called_here = all(file.startswith(_FOLDER) for file in files[: files.index(_FILE)])
    node = site.frames[-1].node if site.frames and is_called_here else None
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else "unravel"
