"""Mutable arrays. Source: jax/_src/state/primitives.py, jax/_src/state/indexing.py, jax/_src/core.py.

Reads and writes carry their index as a tree (`NDIndexer`) whose dynamic parts are operands; it is written back as
an ordinary index: `ref[i, 2:5, idx]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace import jax_compat
from untrace.ir.nodes import Function
from untrace.module.rules import DECLINE, WRITTEN
from untrace.python.statements import Def, Parameter, Store, Unpack
from untrace.python.tree import Call, Expr, Name, Slice, Subscript, Text, Tuple
from untrace.targets.jax.rules.table import rule


@rule("new_ref")
def new_ref(w: Any, x: Any, *, memory_space: Any, kind: Any = None, pin: bool = False) -> Any:
    kwargs = {k: v for k, v in (("memory_space", memory_space), ("kind", kind)) if v is not None}
    if pin:
        kwargs["pin"] = True
    return w.jax("new_ref", x, **kwargs)


@rule("empty_ref")
def empty_ref(w: Any, *, ty: Any, memory_space: Any, pin: bool = False) -> Any:
    kwargs = {} if memory_space is None else {"memory_space": memory_space}
    if pin:
        kwargs["pin"] = True
    return w.jax("ref.empty_ref", w.aval(ty), **kwargs)


@rule("run_state")
def run_state(w: Any, *operands: Any, jaxpr: Function, which_linear: Any, is_initialized: Any) -> Any:
    """`pl.run_state(body)((a, b))`: `body` writes to references that start with these values.

    A reference without a first value has no public form. Which operands are linear means nothing to what is computed,
    and is lost (then the proof is of a lower level). Source: jax/_src/state/discharge.py.
    """
    if not all(is_initialized):
        return DECLINE
    w.module.modules.add("pl")
    name = w.module.named(("run_state", jaxpr), "body", lambda written: [_body(w, jaxpr, written)])
    return Call(Call("pl.run_state", [Name(name)]), [Tuple(operands)])


def _body(w: Any, function: Function, name: str) -> Def:
    """A function of a tuple of references, which returns nothing."""
    inner = w.module.writer()
    targets = [inner.bind_parameter(p, "ref").id for p in function.params]
    whole = inner.scope.fresh("refs")
    inner.statements.append(Unpack(targets, Name(whole)))
    inner.equations(function.equations, function.results)
    return Def(name, [Parameter(whole)], inner.statements)


@rule("broadcast_to")
def broadcast_to(w: Any, x: Any, *, shape: Any) -> Any:
    """The broadcast of an index of a reference, as JAX makes it itself for indices of several shapes."""
    w.module.modules.add("pl")
    return Call("pl.broadcast_to", [x, w.source(shape)])


@rule("freeze")
def freeze(w: Any, ref: Any) -> Any:
    return w.jax("ref.freeze", ref)


@rule("free_ref")
def free_ref(w: Any, ref: Any) -> Any:
    return w.jax("ref.free_ref", ref)


def index(w: Any, tree: Any, operands: Sequence[Expr]) -> Expr:
    """The index of one indexer, or DECLINE where there is another transform, or several."""
    parts = jax_compat.ref_index(tree, len(operands))
    if parts is None:
        return DECLINE
    dynamic = list(operands)
    out: list[Expr] = []
    for part in parts:
        if part == ("all",):
            out.append(Slice(None, None))
        elif part[0] == "operand":
            out.append(dynamic[part[1]])
        elif part[0] == "slice":  # static bounds
            _, start, size, stride = part
            stop = start + size * stride
            out.append(Slice(w.source(start), w.source(stop), w.source(stride) if stride != 1 else None))
        elif part[0] == "ds":
            _, place, size, stride = part
            w.module.modules.add("pl")
            kwargs = [("stride", w.source(stride))] if stride != 1 else []
            out.append(Call("pl.ds", [dynamic[place], w.source(size)], kwargs))
        else:
            return DECLINE
    if not out:
        return Text("...")
    return out[0] if len(out) == 1 else Tuple(out)


@rule("get")
def get(w: Any, ref: Any, *indices: Any, tree: Any) -> Any:
    where = index(w, tree, indices)
    return DECLINE if where is DECLINE else Subscript(ref, where)


@rule("swap")
def swap(w: Any, ref: Any, value: Any, *indices: Any, tree: Any) -> Any:
    where = index(w, tree, indices)
    if where is DECLINE:
        return DECLINE
    if w.module.idiomatic and not w.retreating and not any(o is not None and w.is_read(o) for o in w.equation.outputs):
        w.names.update((o, Name("_")) for o in w.equation.outputs if o is not None)
        w.statements.append(Store(Subscript(ref, where), value, w.equation.origin))
        return WRITTEN
    return w.jax("ref.swap", ref, _as_argument(w, where), value)


@rule("addupdate")
def addupdate(w: Any, ref: Any, value: Any, *indices: Any, tree: Any) -> Any:
    where = index(w, tree, indices)
    if where is DECLINE:
        return DECLINE
    return w.jax("ref.addupdate", ref, _as_argument(w, where), value)


def _as_argument(w: Any, where: Expr) -> Expr:
    """An index as an argument of a call, where slices must be `slice(a, b)`."""
    if type(where) is Tuple:
        return Tuple([_as_argument(w, e) for e in where.elements])
    if type(where) is Slice:
        bounds = [e if e is not None else Text("None") for e in (where.start, where.stop)]
        if where.step is not None:
            bounds.append(where.step)
        return Call("slice", bounds)
    return where
