"""Pallas kernels, with their bodies as source. Source: jax/_src/pallas/{pallas_call,core,primitives}.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from untrace.ir.nodes import Function
from untrace.module.rules import DECLINE, Whole
from untrace.python.statements import Def, Parameter, Return
from untrace.python.tree import Call, Expr, Lambda, List, Name, Text, Tuple
from untrace.targets.jax.rules.table import rule

_LONGEST_INDEX = 40


@rule("program_id")
def program_id(w: Any, *, axis: int) -> Any:
    w.module.modules.add("pl")
    return Call("pl.program_id", [w.source(axis)])


@rule("num_programs")
def num_programs(w: Any, *, axis: int) -> Any:
    w.module.modules.add("pl")
    return Call("pl.num_programs", [w.source(axis)])


@rule("pallas_call")
def pallas_call(
    w: Any,
    *operands: Any,
    jaxpr: Function,
    index_maps: Sequence[Function],
    grid_mapping: Any,
    out_avals: Sequence[Any],
    debug: bool,
    interpret: Any,
    input_output_aliases: Sequence[tuple[int, int]],
    name: str | None,
    **options: Any,
) -> Any:
    grid = grid_mapping
    if grid.vmapped_dims or grid.num_index_operands or any(b.transforms for b in grid.block_mappings):
        return DECLINE
    w.module.modules.add("pl")
    specs = [_block_spec(w, b, f) for b, f in zip(grid.block_mappings, index_maps, strict=True)]
    shapes, out_specs = [w.aval(a) for a in out_avals], specs[grid.num_inputs :]
    alone = len(shapes) == 1 and w.module.idiomatic
    kwargs: list[tuple[str, Expr]] = [
        ("out_shape", shapes[0] if alone else List(shapes)),
        ("grid", w.source(tuple(grid.grid))),
        ("in_specs", List(specs[: grid.num_inputs])),
        ("out_specs", out_specs[0] if alone else List(out_specs)),
    ]
    if grid.scratch_avals:
        kwargs.append(("scratch_shapes", List([_scratch(w, a) for a in grid.scratch_avals])))
    if input_output_aliases:
        kwargs.append(("input_output_aliases", w.source(dict(input_output_aliases))))
    for key, value in (("debug", debug), ("interpret", interpret), ("name", name), *sorted(options.items())):
        if value is not None and value is not False:
            kwargs.append((key, w.source(value)))
    kernel = w.module.named(("kernel", jaxpr), jaxpr.name, lambda written: [_kernel(w, jaxpr, written)])
    call = Call(Call("pl.pallas_call", [Name(kernel)], kwargs), operands)
    return Whole(call) if alone else call


def _kernel(w: Any, function: Function, name: str) -> Def:
    """A kernel returns nothing: it writes to its references."""
    inner = w.module.writer()
    params = [Parameter(inner.bind_parameter(p, "ref").id) for p in function.params]
    inner.equations(function.equations, function.results)
    return Def(name, params, inner.statements)


def _block_spec(w: Any, block: Any, index_map: Function) -> Expr:
    shape = Tuple([_block_dim(w, d) for d in block.block_shape])
    index = _index_lambda(w, index_map)
    if index is None:
        index = Name(w.module.named(("index_map", index_map), index_map.name, lambda n: [_index_map(w, index_map, n)]))
    kwargs: list[tuple[str, Expr]] = []
    space = getattr(block.transformed_block_aval, "memory_space", None)
    if space is not None and getattr(space, "name", "") not in ("DEFAULT", "default"):
        kwargs.append(("memory_space", w.source(space)))
    if block.pipeline_mode is not None:
        kwargs.append(("pipeline_mode", w.source(block.pipeline_mode)))
    return Call("pl.BlockSpec", [shape, index], kwargs)


def _block_dim(w: Any, dim: Any) -> Expr:
    kind = type(dim).__name__
    if kind == "Blocked":
        return w.source(dim.block_size)
    if kind == "Squeezed":
        return Text("None")
    return w.source(dim)


def _index_lambda(w: Any, function: Function) -> Expr | None:
    """`lambda i: (i, 0)`, where an index map is such an expression."""
    if not w.module.idiomatic:
        return None
    inner = w.module.writer()
    names = [inner.bind_parameter(p, "i").id for p in function.params]
    inner.equations(function.equations, function.results)
    place = Tuple([inner.atom(r) for r in function.results])
    return None if inner.statements or len(place.flat()) > _LONGEST_INDEX else Lambda(names, place)


def _index_map(w: Any, function: Function, name: str) -> Def:
    """An index map gives a tuple, one entry a dimension of the block, also where there is only one."""
    inner = w.module.writer()
    params = [Parameter(inner.bind_parameter(p, "i").id) for p in function.params]
    inner.equations(function.equations, function.results)
    inner.statements.append(Return(Tuple([inner.atom(r) for r in function.results])))
    return Def(name, params, inner.statements)


def _scratch(w: Any, aval: Any) -> Expr:
    """`pltpu.VMEM(shape, dtype)`: a memory space called with a shape makes a scratch reference."""
    space = w.source(aval.memory_space)
    return Call(space, [w.source(tuple(aval.shape)), w.module.values.dtype(aval.dtype)])
