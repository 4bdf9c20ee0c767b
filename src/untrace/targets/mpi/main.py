"""What stands at the end of a module: `mpirun -n 4 python step.py inputs.npz outputs.npz` hands whole arrays out and collects them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import numpy as np

from untrace.ir.nodes import Value
from untrace.ir.types import PyTree
from untrace.module.interface.entry import PytreeEntry
from untrace.module.interface.signature import Argument
from untrace.python.pytrees import key_source, string
from untrace.python.statements import Assign, Statement
from untrace.python.tree import Attribute, Call, Dict, Expr, List, Name, Subscript, Text, Tuple
from untrace.targets.mpi.sharded import Sharding, Spec


class _NoWords(Exception):
    """The module cannot name an argument: who wants to run it calls the entry."""


def main_of(name: str, entry: PytreeEntry, params: Sequence[Value], sharding: Sharding) -> str:
    """The text; "" where arguments are such that only Python can make them. name: the entry's. params: of the program."""
    try:
        lines = [line for s in _statements(name, entry, params, sharding) for line in s.lines("    ")]
    except _NoWords:
        return ""
    run = f"mpirun -n {sharding.ranks} python this.py inputs.npz outputs.npz"
    return "\n".join(["", "", f'if __name__ == "__main__":  # {run}', *lines, ""])


def _statements(name: str, entry: PytreeEntry, params: Sequence[Value], sharding: Sharding) -> Iterator[Statement]:
    signature = entry.signature
    outer = dict(zip([p.name for p in signature.parameters], signature.public or signature.parameters, strict=True))
    specs: list[tuple[Expr, Expr]] = []
    args: list[Expr] = []
    kwargs: list[tuple[str, Expr]] = []
    leaves = iter(zip(params, sharding.inputs, strict=True))
    for argument in signature.arguments:
        root = argument.root.flat()
        if root not in outer or outer[root].kind not in ("plain", "positional", "keyword"):
            raise _NoWords
        given, named = _given(argument, outer[root].name, leaves)
        specs += named
        if outer[root].kind == "positional":
            args.append(given)
        else:
            kwargs.append((outer[root].name, given))
    if len({key.flat() for key, _ in specs}) < len(specs):
        raise _NoWords
    yield Assign(["given"], Call("_handed_out", [Name("mesh"), Dict(specs)]))
    yield Assign(["result"], Call(name, args, kwargs))
    found: list[tuple[Expr, Expr]] = []
    for path, _ in jax.tree_util.tree_leaves_with_path(entry.result):
        found.append((string(_dotted("result", path)), _reached(Name("result"), path)))
    outputs = List([_written(spec) for spec in sharding.outputs])
    yield Assign([], Call("_collected", [Name("mesh"), Dict(found), outputs]))


def _given(argument: Argument, name: str, leaves: Iterator[tuple[Value, Spec]]) -> tuple[Expr, list[tuple[Expr, Expr]]]:
    """(an argument of what was read, the names of its arrays and how each is cut)."""
    named: list[tuple[Expr, Expr]] = []
    read: list[Expr] = []
    for path, _ in jax.tree_util.tree_leaves_with_path(argument.example):
        value, spec = next(leaves)
        key = string(_dotted(name, path))
        named.append((key, _written(spec)))
        found: Expr = Subscript(Name("given"), key)
        if isinstance(value.aval.dtype, np.dtype) and value.aval.dtype.isbuiltin != 1:  # of which a file has the bits
            found = Call(Attribute(found, "view"), [Text(f'__import__("ml_dtypes").{value.aval.dtype.name}')])
        read.append(found)
    return _built(argument.example, iter(read)), named


def _built(node: PyTree, leaves: Iterator[Expr]) -> Expr:
    """A tree like `node`, with these leaves."""
    if node is None:
        return Text("None")
    if type(node) is dict:
        return Dict([(_key(key), _built(node[key], leaves)) for key in sorted(node)])
    if type(node) is tuple:
        return Tuple([_built(part, leaves) for part in node])
    if type(node) is list:
        return List([_built(part, leaves) for part in node])
    if isinstance(node, tuple):  # whose class is elsewhere
        raise _NoWords
    return next(leaves)


def _key(key: object) -> Expr:
    found = key_source(key)
    if found is None:
        raise _NoWords
    return found


def _reached(expr: Expr, path: Sequence[object]) -> Expr:
    for step in path:
        if isinstance(step, jax.tree_util.GetAttrKey):
            expr = Attribute(expr, step.name)
        else:
            expr = Subscript(expr, _key(_word(step)))
    return expr


def _word(step: object) -> object:
    for kind, field in _STEPS.items():
        if isinstance(step, kind):
            return getattr(step, field)
    raise _NoWords


_STEPS = {jax.tree_util.DictKey: "key", jax.tree_util.SequenceKey: "idx", jax.tree_util.GetAttrKey: "name"}


def _dotted(name: str, path: Sequence[object]) -> str:
    return ".".join([name, *[str(_word(step)) for step in path]])


def _written(spec: Spec) -> Expr:
    return Text(repr(spec))
