"""Names for constants: where the function has them from, else what the author calls them where they are used, else
what they hold (`zeros_2x6`, `indices_0_2`, `mask`). All are identifiers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from untrace import jax_compat
from untrace.ir.calls import function_run
from untrace.ir.nodes import Atom, Constant, Equation, Program, Scan, Value, functions_called, walk_functions
from untrace.ir.said import SaidArray, SaidComputed
from untrace.ir.structured import Map, derivative_in
from untrace.lift.naming import words
from untrace.lift.naming.computed import ModuleArrays, is_array, said_inside
from untrace.lift.naming.numbers import said_array
from untrace.provenance.arguments import operands
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance

_MODULES = frozenset("jax jnp np numpy lax nn random math functools self cls".split())
_CONVERSIONS = frozenset("asarray array float32 astype".split())
_LISTED = 64  # elements of arrays of floats that an author lists
_SPELLED = 4  # elements of integer arrays that a name may list


def name_constants(program: Program, provenance: Provenance) -> Program:
    """Gives every constant a name, in place."""
    uses: dict[Constant, list[Equation]] = {}
    constants: dict[Constant, None] = {}
    frames: dict[Frame, None] = {}
    for function in walk_functions(program.entry):
        for equation in function.equations:
            frames.update(dict.fromkeys(provenance.site(equation.origin).frames))
            for atom in equation.inputs:
                if type(atom) is Constant:
                    constants[atom] = None
                    uses.setdefault(atom, []).append(equation)
        for atom in function.results:
            if type(atom) is Constant:
                constants[atom] = None
    modules = ModuleArrays(frames)
    for constant in constants:
        used = uses.get(constant, ())
        users = [inner for equation in used for inner in _users(equation, constant)]
        made = next(_made_of(constant, users, provenance), None)
        constant.said = made or _computed(constant, users, modules, provenance)
        if type(constant.said) is SaidComputed and constant.said.name:
            constant.hint = constant.said.name
        if constant.hint is not None:
            constant.hint = words.clean(constant.hint)
            continue
        plain, said = content(constant.value, constant.aval)
        if not plain:
            said = next(_used_as(constant, used, provenance), said)
        constant.hint = said
    return program


def _users(equation: Equation, atom: Atom) -> Iterator[Equation]:
    """An equation that takes a value, and those inside of what it calls that take it there."""
    yield equation
    callee = equation.callee
    run = function_run(equation, equation.inputs)
    if type(callee) is Scan:
        run = callee.body, equation.inputs[: callee.consts]
    elif type(callee) is Map or derivative_in(callee) is not None:
        run = functions_called(equation)[0], equation.inputs
    if run is not None:
        function, given = run
        for param in [p for p, other in zip(function.params, given, strict=False) if other is atom]:
            for inner in [e for e in function.equations if param in e.inputs]:
                yield from _users(inner, param)


def _made_of(constant: Constant, uses: Sequence[Equation], provenance: Provenance) -> Iterator[SaidArray]:
    """The author's expressions for a small array of floats, as they stand where equations use it."""
    dtype, size = getattr(constant.aval, "dtype", None), int(np.prod(np.shape(constant.value)))
    if not isinstance(dtype, np.dtype) or dtype.kind != "f" or not 0 < size <= _LISTED or not np.ndim(constant.value):
        return
    array = np.asarray(constant.value).astype(dtype)
    for part, frames in _author_operands(uses, provenance):
        if (said := said_array(part, frames, array)) is not None:
            yield said


def _computed(
    constant: Constant, uses: Sequence[Equation], modules: ModuleArrays, provenance: Provenance
) -> SaidComputed | None:
    """The author's expression for an array that his module computes, or a function of his by NumPy."""
    if not is_array(constant.value) or not np.size(constant.value):
        return None
    found = modules.said(constant.value, constant.hint)
    if found is None and np.size(constant.value) < 2:
        return None
    operand = _author_operands(uses, provenance)
    return found or next((s for n, f in operand if (s := said_inside(n, f, constant.value)) is not None), None)


def _author_operands(uses: Sequence[Equation], provenance: Provenance) -> Iterator[tuple[ast.expr, tuple[Frame, ...]]]:
    """What equations take, as the author wrote it, and where."""
    for equation in uses:
        site = provenance.site(equation.origin) if equation.origin is not None else None
        if site is not None and site.frames and not site.frames[-1].library:
            for operand in operands(site.frames[-1].node):
                for part in (operand, *(operand.elts if isinstance(operand, ast.List | ast.Tuple) else ())):
                    yield part, site.frames


def content(value: Any, aval: Any) -> tuple[bool, str]:
    """(whether it says all that there is to say, a name) for an array by what it holds."""
    if jax_compat.is_key(value):
        return False, "keys" if np.ndim(value) else "key"
    if jax_compat.is_ref(value) or not isinstance(getattr(aval, "dtype", None), np.dtype):
        return False, "state"
    array = np.asarray(value)
    integers, truths = array.dtype.kind in "iu", array.dtype == bool
    shape = "x".join(map(str, array.shape))
    kind = "_int" if integers else ""
    if not array.ndim:
        return False, "flag" if truths else "count" if integers else "scalar"
    if not array.size:
        return True, f"empty_{shape}" + ("_bool" if truths else kind)
    whole = array.reshape(-1)
    if integers and array.shape == (1,) and 0 <= int(whole[0]) < 1000:
        return True, f"index_{int(whole[0])}"
    if truths and (whole == whole[0]).all():
        return True, f"all_{'true' if whole[0] else 'false'}_{shape}"
    for number, word in ((0, "zeros"), (1, "ones")):
        if not truths and (whole == number).all() and not np.signbit(whole.real).any():
            return True, f"{word}_{shape}{kind}"
    if integers and array.ndim == 1 and (whole == np.arange(array.size)).all():
        return True, f"arange_{array.size}"
    if integers and array.ndim == 1 and array.size <= _SPELLED and 0 <= int(whole.min()) and int(whole.max()) < 100:
        return True, "indices_" + "_".join(str(int(n)) for n in whole)
    if array.ndim == 2 and array.shape[0] > 1 and (array == np.eye(*array.shape)).all():
        return True, f"identity_{shape if array.shape[0] != array.shape[1] else array.shape[0]}"
    if truths:
        return False, "mask"
    if integers:
        return False, "indices" if 0 <= int(whole.min()) and int(whole.max()) < 10_000 else "integers"
    axis = _axis(whole) if array.ndim == 1 else None
    if axis is not None:
        return True, f"{'xyz'[axis]}_axis" if array.size == 3 else f"one_hot_{axis}_of_{array.size}"
    return False, {1: "coefficients", 2: "matrix"}.get(array.ndim, "table") + f"_{shape}"


def _axis(row: np.ndarray) -> int | None:
    """The place of the one in an array of zeros with a single one."""
    places = np.flatnonzero(row)
    one = len(row) > 1 and len(places) == 1 and row[places[0]] == 1
    return int(places[0]) if one else None


def _used_as(constant: Constant, uses: Sequence[Equation], provenance: Provenance) -> Iterator[str]:
    """What the author calls it in the expressions of the equations that use it."""
    for equation in uses:
        if equation.origin is None or functions_called(equation):
            continue  # what a loop closes over is no argument of the call that makes the loop
        site = provenance.site(equation.origin)
        if not site.frames:
            continue
        node = site.frames[-1].node
        if node is None:
            continue
        traced = {a.hint for a in equation.inputs if type(a) is Value and a.hint}
        traced |= {o.hint for o in equation.outputs if o is not None and o.hint}
        place = next(i for i, a in enumerate(equation.inputs) if a is constant)
        if isinstance(node, ast.BinOp) and len(equation.inputs) == 2:
            parts: list[ast.AST] = [(node.left, node.right)[place]]
        elif isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
            if any(_said(p) is None and not isinstance(p, ast.Constant) for p in parts):
                code = site.frames[-1].code  # `jnp.array([1.0, 0.1]) * state`: it may be the side without a name
                traced |= set(code.co_varnames[: code.co_argcount])
        elif isinstance(node, ast.Call | ast.Subscript):
            parts = [*operands(node)]
        else:
            continue
        names = dict.fromkeys(n for p in parts if (n := _said(p)) is not None and n not in traced)
        if len(names) == 1:
            yield next(iter(names))


def _said(node: ast.AST) -> str | None:
    """The name that an operand has in the source: a variable, an attribute, an item by a string."""
    match node:
        case ast.Name(id=name) if name not in _MODULES and name.strip("_"):
            return words.clean(name)
        case ast.Attribute(value=ast.Name(id=base), attr=attr) if base not in _MODULES and attr not in (
            "T",
            "mT",
            "at",
        ):
            return words.clean(f"{base}_{attr}")
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            return words.clean(attr)
        case ast.Subscript(slice=ast.Constant(value=str() as key)) if key.strip("_"):
            return words.clean(key)
        case ast.Call(func=ast.Attribute(attr=made), args=[only, *_]) if made in _CONVERSIONS:
            return _said(only)
    return None
