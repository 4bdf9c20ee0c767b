"""Collectives over named axes, shard_map and shardings. Source: jax/_src/lax/parallel.py, jax/_src/shard_map.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from untrace import jax_compat
from untrace.ir.nodes import Constant, Function
from untrace.module.rules import DECLINE, Whole
from untrace.python.tree import Binary, Call, List, Name, Star, Text, Tuple
from untrace.targets.jax.rules.calls import result
from untrace.targets.jax.rules.control import closes_naturally
from untrace.targets.jax.rules.table import rule

_FEWEST_ALIKE = 4  # shardings in a row that are written once


def _axis(axes: Any) -> Any:
    return axes[0] if isinstance(axes, tuple) and len(axes) == 1 else axes


def _reduction(name: str) -> Callable[..., Any]:
    def collective(w: Any, *operands: Any, axes: Any, axis_index_groups: Any = None) -> Any:
        if any(isinstance(a, int) for a in axes):
            return DECLINE
        kwargs = {} if axis_index_groups is None else {"axis_index_groups": axis_index_groups}
        if len(operands) == 1:
            return Whole(w.lax(name, operands[0], _axis(axes), **kwargs))
        return w.lax(name, Tuple(operands), _axis(axes), **kwargs)

    return collective


for _name in ("psum", "pmax", "pmin"):
    rule(_name)(_reduction(_name))
rule("psum_invariant")(_reduction("psum"))


@rule("axis_index")
def axis_index(w: Any, *, axis_name: Any) -> Any:
    return w.lax("axis_index", axis_name)


@rule("ppermute")
def ppermute(w: Any, x: Any, *, axis_name: Any, perm: Any) -> Any:
    return w.lax("ppermute", x, _axis(axis_name), tuple(tuple(p) for p in perm))


@rule("pbroadcast")
def pbroadcast(w: Any, x: Any, *, axis_name: Any, source: int) -> Any:
    return w.lax("pbroadcast", x, _axis(axis_name), source)


@rule("pvary")
def pvary(w: Any, *operands: Any, axes: Any, **rest: Any) -> Any:
    if any(v is not None for v in rest.values()):
        return DECLINE
    if len(operands) == 1:
        return Whole(w.lax("pcast", operands[0], _axis(axes), to="varying"))
    return w.lax("pcast", Tuple(operands), _axis(axes), to="varying")


@rule("all_gather")
def all_gather(
    w: Any,
    *operands: Any,
    all_gather_dimension: int,
    axis_name: Any,
    axis_index_groups: Any,
    axis_size: int,
    tiled: bool,
) -> Any:
    kwargs: dict[str, Any] = {}
    if axis_index_groups is not None:
        kwargs["axis_index_groups"] = axis_index_groups
    if all_gather_dimension:
        kwargs["axis"] = all_gather_dimension
    if tiled:
        kwargs["tiled"] = True
    if len(operands) == 1:
        return Whole(w.lax("all_gather", operands[0], _axis(axis_name), **kwargs))
    return w.lax("all_gather", Tuple(operands), _axis(axis_name), **kwargs)


@rule("reduce_scatter")
def reduce_scatter(
    w: Any, x: Any, *, axis_name: Any, scatter_dimension: int, axis_index_groups: Any, axis_size: int, tiled: bool
) -> Any:
    kwargs: dict[str, Any] = {}
    if scatter_dimension:
        kwargs["scatter_dimension"] = scatter_dimension
    if axis_index_groups is not None:
        kwargs["axis_index_groups"] = axis_index_groups
    if tiled:
        kwargs["tiled"] = True
    return Whole(w.lax("psum_scatter", x, _axis(axis_name), **kwargs))


def _closed_over(inputs: Sequence[Any], function: Function) -> int:
    """How many of the first operands are constants that the mapped function closed over."""
    count = 0
    for atom, param in zip(inputs, function.params, strict=True):
        if type(atom) is not Constant or jax_compat.has_typed_mesh(param.aval):
            break
        count += 1
    return count if closes_naturally(function, count, inputs) else 0


@rule("shard_map")
def shard_map(
    w: Any,
    *operands: Any,
    jaxpr: Function,
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    check_vma: bool,
    newly_manual_axes: Any,
    **rest: Any,
) -> Any:
    if any(jax_compat.is_auto_axes(s) for s in (*in_specs, *out_specs)):
        return DECLINE
    closed = _closed_over(w.equation.inputs, jaxpr)
    if closed:  # they have no place in the mesh, as arguments have
        atoms = w.equation.inputs[:closed]
        fixed = {p: w.atom(a) for p, a in zip(jaxpr.params, atoms, strict=False)}
        key = ("shard_map", jaxpr, *(e.flat() for e in fixed.values()))
        name = w.module.named(key, jaxpr.name, lambda n: [w.module.define(jaxpr, n, (), fixed)])
        operands, in_specs = operands[closed:], in_specs[closed:]
    else:
        name = w.module.function(jaxpr)
    function = Name(name)
    kwargs: dict[str, Any] = {"mesh": mesh, "in_specs": _specs(w, in_specs)}
    kwargs["out_specs"] = out_specs[0] if len(jaxpr.results) == 1 else _specs(w, out_specs)
    if set(newly_manual_axes) != set(mesh.axis_names):
        kwargs["axis_names"] = frozenset(newly_manual_axes)
    if not check_vma:
        kwargs["check_vma"] = False
    return result(jaxpr, Call(w.jax("shard_map", function, **kwargs), operands))


def _specs(w: Any, specs: Sequence[Any]) -> Any:
    """Shardings of several arrays: the one that all have, else a tuple, in which many in a row are `*[spec] * n`."""
    parts = [w.source(spec) for spec in specs]
    runs = [list(run) for _, run in itertools.groupby(parts, key=lambda part: part.flat())]
    if len(runs) == 1 and len(parts) > 1:
        return parts[0]
    found: list[Any] = []
    for run in runs:
        short = len(run) < _FEWEST_ALIKE
        found.extend(run if short else [Star(Binary(List(run[:1]), "*", Text(str(len(run)))))])
    return Tuple(found)


@rule("sharding_constraint")
def sharding_constraint(w: Any, x: Any, *, sharding: Any, **rest: Any) -> Any:
    return w.lax("with_sharding_constraint", x, sharding)


@rule("device_put")
def device_put(w: Any, *operands: Any, devices: Any, srcs: Any, copy_semantics: Any) -> Any:
    if any(s is not None for s in srcs) or len(set(copy_semantics)) != 1:
        return DECLINE
    kwargs = jax_compat.device_put_options(copy_semantics[0])
    several = len(operands) > 1
    args: list[Any] = [Tuple(operands) if several else operands[0]]
    if any(d is not None for d in devices):
        args.append(tuple(devices) if several else devices[0])
    call = w.jax("device_put", *args, **kwargs)
    return call if several else Whole(call)


@rule("reshard")
def reshard(w: Any, x: Any, *, dst_sharding: Any, concrete_mesh: Any) -> Any:
    if concrete_mesh is not None and dst_sharding.mesh == concrete_mesh.abstract_mesh:
        # Given the devices, JAX keeps them beside the abstract mesh of the sharding.
        dst_sharding = jax.sharding.NamedSharding(concrete_mesh, dst_sharding.spec)
    return w.jax("sharding.reshard", x, dst_sharding)
