"""What comes from outside: inputs that nothing needs, branches that a static argument has decided, large arrays closed over."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType

import jax
import numpy as np

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.ir.nodes import Constant
from untrace.ir.types import Parameter
from untrace.provenance import syntax
from untrace.provenance.whose import file_kind
from untrace.tools.lint.findings import LintFinding, in_units
from untrace.tools.lint.program import Linted, Place, bodies_run, bytes_of, resolved, typed

_LARGE = 1 << 20  # bytes
# What is asked of an array without its values.
_FACTS = frozenset("shape dtype ndim size sharding weak_type aval".split())
_OF_TYPE = frozenset("len shape ndim size zeros_like ones_like empty_like full_like result_type eval_shape".split())


# ---------------------------------------------------------------- inputs that nothing needs


def unused_inputs(linted: Linted) -> Iterator[LintFinding]:
    if linted.captured.summary:
        return  # what a derivative does not need is its mathematics
    code = _code_of(linted)
    definition = syntax.definition(code) if code is not None else None
    if code is None or definition is None:
        return
    closed = jax_compat.without_dead_code(linted.captured.jaxpr)
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    needed = {v for e in jaxpr.eqns for v in e.invars if jax_compat.is_variable(v)}
    needed |= {v for v in jaxpr.outvars if jax_compat.is_variable(v)}
    leaves: dict[
        str, list[tuple[str, bool, int]]
    ] = {}  # by argument: of each leaf its path, whether it is needed, bytes
    for path, var in zip(linted.paths, jaxpr.invars, strict=True):
        argument = path.partition("[")[0].partition(".")[0]
        leaves.setdefault(argument, []).append((path, var in needed, bytes_of(var.aval)))
    results = jax.tree_util.tree_leaves_with_path(linted.captured.out_example)
    given_back = tuple([jax.tree_util.keystr(path) for path, _ in results])
    for argument, parts in leaves.items():
        unused = [(path, size) for path, is_needed, size in parts if not is_needed and size]
        if len(unused) < len(parts):  # a state is given back whole, and of a state some is only written
            unused = [(path, size) for path, size in unused if not _ends_one(given_back, path[len(argument) :])]
        whole = len(unused) == len(parts)
        if not unused or argument.startswith("_") or argument in ("self", "cls"):
            continue
        if whole and _is_asked_for_facts(definition, argument):
            continue
        if not whole and not all(_is_plain(path, argument) for path, _ in unused):
            continue  # parts of a class's state, which has them for others
        names = [argument] if whole else [path for path, _ in unused]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        line = syntax.parameter_line(code, argument)
        yield linted.finding(
            "unused-input",
            Place(code.co_filename, line, line),
            f"no result depends on {shown}: JAX takes {'them' if len(names) > 1 else 'it'}, moves"
            f" {'them' if len(names) > 1 else 'it'} to the device and drops {'them' if len(names) > 1 else 'it'}",
            {"bytes": sum(size for _, size in unused)},
            f"the function without {'them' if len(names) > 1 else 'it'}; or, where the signature is given, a name that begins"
            " with _" if whole else "a tree without what is not needed, or what was to be done with it",
        )  # fmt: skip


def _ends_one(paths: Sequence[str], path: str) -> bool:
    return any(other.endswith(path) for other in paths)


def _is_plain(path: str, argument: str) -> bool:
    """Whether a leaf stands in dicts, lists and tuples alone."""
    return re.fullmatch(r"(\['[^']*'\]|\[\d+\])*", path[len(argument) :]) is not None


def _is_asked_for_facts(definition: ast.AST, argument: str) -> bool:
    """Whether the function asks an argument for its type, which is what it is passed for; or is told to delete it."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Attribute) and node.attr in _FACTS and _is_name(node.value, argument):
            return True
        if isinstance(node, ast.Call) and syntax.dotted(node.func).rpartition(".")[2] in _OF_TYPE:
            if any(_is_name(a, argument) for a in node.args):
                return True
        if isinstance(node, ast.Delete) and any(_is_name(t, argument) for t in node.targets):
            return True
    return False


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _code_of(linted: Linted) -> CodeType | None:
    """The code of the author's function; None where it is no plain one, or a library's."""
    function = inspect.unwrap(linted.captured.function)
    code = getattr(function, "__code__", None) or getattr(getattr(function, "__func__", None), "__code__", None)
    return code if code is not None and file_kind(code.co_filename) == "user" else None


# ---------------------------------------------------------------- branches that are decided


def static_branches(linted: Linted) -> Iterator[LintFinding]:
    code = _code_of(linted)
    definition = syntax.definition(code) if code is not None else None
    if code is None or definition is None:
        return
    fixed = _static_numbers(linted.captured.function, linted.captured.static)
    if not fixed:
        return
    known: set[int] = set()
    for node in ast.walk(definition):
        if not isinstance(node, (ast.If, ast.IfExp)) or node.lineno in known:
            continue
        names = sorted({n.id for n in ast.walk(node.test) if isinstance(n, ast.Name) and n.id in fixed})
        if not names:
            continue
        known.add(node.lineno)
        line = syntax.line_of(code, node)
        given = ", ".join(f"{name}={fixed[name]!r}" for name in names)
        yield linted.finding(
            "static-branch",
            Place(code.co_filename, line, line),
            f"this branch is decided while JAX traces, by the static {given}: the program has one side of it, and each other"
            " value of the argument is traced and compiled anew",
            {"programs": 1},
            "jax.lax.cond(test, one, other, ...), or jnp.where, with a traced argument, where the value changes from call to call",
        )


def _static_numbers(function: Callable[..., object], static: Mapping[int | str, Parameter]) -> dict[str, Parameter]:
    """The static arguments that are numbers, by the names of the parameters. A string, None or a function is a choice of
    the author's, which he makes once."""
    try:
        names = list(inspect.signature(function).parameters)
    except Exception:  # `__signature__` may be anything
        names = []
    found = {}
    for key, value in static.items():
        name = key if isinstance(key, str) else names[key] if key < len(names) else None
        if name is not None and isinstance(value, (bool, int, float, np.number, np.bool_)):
            found[name] = value
    return found


# ---------------------------------------------------------------- large constants


def large_constants(linted: Linted) -> Iterator[LintFinding]:
    known: IdentityMap[object, None] = IdentityMap()
    for seen in linted.seen:
        passed = {a for _, given in bodies_run(seen.equation) for a in given.values()}
        for operand in seen.equation.inputs:
            atom, _ = resolved(operand, seen.scope)
            frame = seen.frame
            if type(atom) is not Constant or operand in passed or frame is None:
                continue  # where it is passed on, it is used further in
            if atom.value in known or bytes_of(atom.aval) < _LARGE:
                continue
            known[atom.value] = None
            linted.captured.name_constants([atom.value])
            name = linted.captured.constant_names.get(atom.value, "")
            size = bytes_of(atom.aval)
            yield linted.finding(
                "large-constant",
                frame,
                f"{f'{name}, ' if name.isidentifier() else 'an array, '}{typed(atom.aval)}, is closed over: its {in_units(size)}"
                " are part of the program, which XLA compiles with them, and which holds them as long as it lives",
                {"bytes": size},
                f"pass {name if name.isidentifier() else 'it'} to the function as an argument",
            )
