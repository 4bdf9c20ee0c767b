"""The only door to JAX's internals.

Everything under `jax._src` that untrace needs is reached through this file, with the reason beside each use, so that
a new JAX line means changes here and nowhere else. Supported lines: 0.10 and 0.12.
It is one long file on purpose: who ports untrace to a new JAX reads it from top to bottom.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import itertools
import logging
import os
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core as _core  # asked for in every equation
from jax.extend import core as jex_core

from untrace._places import place_of

LITERAL_TYPE = jex_core.Literal
DROP_TYPE = jex_core.DropVar
JAXPR_TYPES: tuple[type, ...] = (jex_core.ClosedJaxpr, getattr(jex_core, "Jaxpr", jex_core.ClosedJaxpr))


# ---------------------------------------------------------------- jaxprs


def is_jaxpr(value: Any) -> bool:
    """Whether `value` is a ClosedJaxpr or an open Jaxpr (0.12: one and the same class)."""
    return isinstance(value, JAXPR_TYPES)


def open_jaxpr(closed: Any) -> tuple[Any, Sequence[Any]]:
    """(jaxpr, consts) of a closed or open jaxpr. On 0.12 `ClosedJaxpr is Jaxpr` and `.jaxpr` returns itself."""
    consts = getattr(closed, "consts", ())
    return getattr(closed, "jaxpr", closed), consts


def function_name(closed: Any) -> str:
    """The `__name__` of the function a jaxpr was traced from, "" where JAX did not keep it."""
    jaxpr, _ = open_jaxpr(closed)
    info = getattr(jaxpr, "debug_info", None)
    return (getattr(info, "func_name", None) or "") if info is not None else ""


def bind_equation(eqn: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The outputs of one equation on `args`, as JAX's own `eval_jaxpr` binds it; always a sequence.

    `get_bind_params` turns the jaxprs of call-like primitives back into functions; it has no public counterpart.
    """
    out = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
    return out if eqn.primitive.multiple_results else [out]


# ---------------------------------------------------------------- custom derivative rules


def _trace_flat(function: Any, avals: Sequence[Any]) -> Any:
    """ClosedJaxpr of `function(*flat) -> flat list` on abstract values (kept whole: weak types, shardings)."""
    jaxpr, consts = traced_quickly(function, avals)
    return jax.make_jaxpr(lambda *args: function(*args))(*avals) if consts else close_jaxpr(jaxpr, consts)


def custom_jvp_rule(eqn: Any) -> tuple[Any, list[bool]]:
    """(ClosedJaxpr of the JVP rule with no zero tangents, which tangents out are symbolic zeros).

    `jvp_jaxpr_fun` is the only place that keeps the rule; see `lift_jvp` in jax/_src/custom_derivatives.py.
    """
    params = eqn.params
    thunk = params["jvp_jaxpr_fun"]
    call = getattr(thunk, "call_wrapped", thunk)
    n = len(eqn.invars) - params["num_consts"]
    with tracing_context(eqn):
        jaxpr, consts, out_zeros = call(*([False] * n))
    # The tangent of an integer says nothing, whether it is a symbolic zero or an array of float0.
    outs = len(eqn.outvars)
    tangents = iter(jaxpr.outvars[outs:])
    given = [None if zero else next(tangents) for zero in out_zeros]
    kept = [v for v in given if v is not None and getattr(v.aval, "dtype", None) != FLOAT0]
    zeros = [v is None or getattr(v.aval, "dtype", None) == FLOAT0 for v in given]
    closed = close_jaxpr(jaxpr, consts)
    if len(kept) < len(jaxpr.outvars) - outs:
        closed = rebuilt_jaxpr(closed, jaxpr.eqns, [*jaxpr.outvars[:outs], *kept])
    return _without_float0(closed), zeros


def with_dense_zeros(eqn: Any) -> Any:
    """A custom_jvp equation with symbolic zeros, as one whose rule, and the calls in it, get arrays of zeros.

    `transformation2` keeps the rule's identity, by which its functions are shared. Source: `jvp_jaxpr_thunk` of
    `DynamicJaxprTrace.process_custom_jvp_call`, jax/_src/interpreters/partial_eval.py.
    """
    from jax._src import linear_util as lu

    def with_dense(closed: Any) -> Any:
        jaxpr, _ = open_jaxpr(closed)
        eqns = [with_inner_jaxprs(with_dense_zeros(e), with_dense) for e in jaxpr.eqns]
        same = all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
        return closed if same else rebuilt_jaxpr(closed, eqns, jaxpr.outvars)

    @lu.transformation2
    def dense_zeros(rule: Any, *in_zeros: bool) -> Any:
        jaxpr, *rest = rule(*in_zeros)
        return with_dense(jaxpr), *rest

    if eqn.primitive.name != "custom_jvp_call" or not eqn.params["symbolic_zeros"]:
        return eqn
    rule = dense_zeros(eqn.params["jvp_jaxpr_fun"])
    return eqn.replace(params={**eqn.params, "symbolic_zeros": False, "jvp_jaxpr_fun": rule})


@contextlib.contextmanager
def tracing_context(eqn: Any) -> Iterator[None]:
    """The settings under which an equation was traced: mesh, named axes, and whether values say over which they vary.

    Inside shard_map a rule may use its axes; without them it could not be traced on its own. Source:
    `_shard_map_staging`, jax/_src/shard_map.py.
    """
    from jax._src import config, core

    mesh = getattr(eqn.ctx, "cur_abstract_mesh", None)
    manual = tuple(getattr(mesh, "manual_axes", ()) or ()) if mesh is not None else ()
    varies = any(varying_axes(v.aval) for v in (*eqn.invars, *eqn.outvars))
    with contextlib.ExitStack() as stack:
        stack.enter_context(eqn.ctx.manager)
        if manual:
            sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
            stack.enter_context(core.extend_axis_env_nd([(name, sizes[name]) for name in manual]))
            stack.enter_context(config._check_vma(varies))
        yield


@contextlib.contextmanager
def tracing_inside_mesh(avals: Sequence[Any]) -> Iterator[None]:
    """The settings under which values of these types are traced inside shard_map; nothing where no mesh is part of them.

    The same as `tracing_context`, where there is no equation yet.
    """
    from jax._src import config, core
    from jax._src.mesh import use_abstract_mesh

    mesh = next((a.sharding.mesh for a in avals if has_typed_mesh(a)), None)
    manual = tuple(getattr(mesh, "manual_axes", ()) or ())
    with contextlib.ExitStack() as stack:
        if manual:
            stack.enter_context(use_abstract_mesh(mesh))
            sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
            stack.enter_context(core.extend_axis_env_nd([(name, sizes[name]) for name in manual]))
            stack.enter_context(config._check_vma(any(varying_axes(a) for a in avals)))
        yield


def close_jaxpr(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """The ClosedJaxpr of an open jaxpr and its constants (0.12 closes by replacing)."""
    return jex_core.ClosedJaxpr(jaxpr, list(consts)) if jex_core.ClosedJaxpr is not JAXPR_TYPES[1] or consts else jaxpr


def custom_vjp_rules(
    eqn: Any, perturbed: Sequence[bool] | None = None
) -> tuple[Any, list[int | None], Any, list[bool], list[bool]]:
    """(fwd ClosedJaxpr, residual forwards, bwd ClosedJaxpr, which cotangents out are zeros, which
    operands the rule lets differentiation go through).

    perturbed: the operands that are differentiated (of a rule with symbolic zeros), where that is known.
    Source: `fwd_jaxpr_thunk`, `bwd` and `out_trees` of custom_vjp_call, jax/_src/custom_derivatives.py
    """
    from jax._src import ad_util  # a zero cotangent is an `ad_util.Zero` (0.10) or None (0.12)

    params = eqn.params
    n_consts = params["num_consts"]
    thunk = params["fwd_jaxpr_thunk"]
    with tracing_context(eqn):
        (fwd_jaxpr, consts), perturbed = _forward_rule(
            thunk, eqn.invars[n_consts:], params["symbolic_zeros"], perturbed
        )
    fwd = close_jaxpr(fwd_jaxpr, consts)
    _, res_tree, forwards = params["out_trees"]()
    # `forwards` counts all operands of the equation, constants first.
    in_avals = [v.aval for v in eqn.invars]
    fresh_avals = iter([v.aval for v in fwd_jaxpr.outvars])
    res_avals = [next(fresh_avals) if f is None else in_avals[f] for f in forwards]
    if len(res_avals) != res_tree.num_leaves:
        raise ValueError(f"{len(res_avals)} residuals where the rule has {res_tree.num_leaves}")
    ct_avals = [core_cotangent(v.aval) for v in eqn.outvars]
    # A residual that is a literal is a Python value to the rule (a flag it may branch on), not an array.
    fresh_vars = iter(fwd_jaxpr.outvars)
    fixed = [next(fresh_vars) if f is None else None for f in forwards]
    fixed_values = {i: v.val for i, v in enumerate(fixed) if type(v) is LITERAL_TYPE}
    zeros: list[bool] = []
    bwd = params["bwd"]
    call = getattr(bwd, "call_wrapped", bwd)

    def backward(*args: Any) -> list[Any]:
        for store in getattr(bwd, "stores", ()):
            if store is not None:
                store.reset()
        outs = call(*[fixed_values.get(i, a) for i, a in enumerate(args)])
        if isinstance(outs, tuple) and len(outs) == 2 and isinstance(outs[0], (list, tuple)):
            outs, logs = outs  # 0.12 returns (cotangents, log entries of `defvjp_with_logs`)
            if logs:
                raise ValueError("the backward rule returns log entries")
        outs = list(outs)
        # A cotangent of an integer says nothing, whether it is a symbolic zero or an array of float0.
        zeros[:] = [o is None or type(o) is ad_util.Zero or dtype_of(o) == FLOAT0 for o in outs]
        return [o for o, zero in zip(outs, zeros, strict=True) if not zero]

    with tracing_context(eqn):
        closed = _trace_flat(backward, [*res_avals, *ct_avals])
    return fwd, list(forwards), _without_float0(closed), list(zeros), perturbed


def _forward_rule(
    thunk: Any, operands: Sequence[Any], symbolic: bool, known: Sequence[bool] | None
) -> tuple[Any, list[bool]]:
    """(what `thunk` gives for the `known` perturbed operands, else for the most that it takes; which those are).

    With symbolic zeros a rule is told which operands are differentiated, and may refuse some (as
    equinox's `filter_custom_vjp` does for all arguments but the first). Raises what the rule raises
    where it takes no operand at all.
    """
    stores, memories = _kept_by(thunk)
    trace = getattr(thunk, "call_wrapped", thunk)

    def call(perturbed: Sequence[bool]) -> Any:
        for memory in memories:  # else the result would come back without the trees
            memory.clear()
        return trace(*perturbed)

    every = [True] * len(operands)
    if not symbolic:
        return call(every), every
    if known is not None:
        return call(known), list(known)
    try:
        return call(every), every
    except Exception as error:  # the rule is user code: anything may be raised
        refusal = error
    taken: set[int] = set()
    found: Any = None
    trees: list[Any] = []
    # Halves of halves: what is refused mostly stands together, and a rule that is taken is traced whole.
    pieces = [[i for i, v in enumerate(operands) if has_tangent(v.aval)]]
    while pieces:
        piece = pieces.pop()
        wanted = taken.union(piece)
        try:
            found = call([i in wanted for i in range(len(every))])
        except Exception:
            if len(piece) > 1:
                middle = len(piece) // 2
                pieces += [piece[middle:], piece[:middle]]
        else:
            taken = wanted
            trees = [_stored(store) for store in stores]
    if not taken:
        raise refusal
    for store, tree in zip(stores, trees, strict=True):
        store.reset()
        if tree is not _NOTHING:
            store.store(tree)
    return found, [i in taken for i in range(len(every))]


def perturbed_operands(closed: Any) -> dict[int, tuple[bool, ...]]:
    """Which operands a `custom_vjp` equation with symbolic zeros has differentiated when all inputs of `closed` are.

    By the id of the equation's `fwd_jaxpr_thunk`; those that nothing differentiates are not in it. Such a rule is told
    which operands these are, and may compute something else for others (as equinox's loops do): the right rule is
    the one that JAX asks for. So JAX is asked, on a copy of the jaxpr whose thunks note down how they are called.
    """
    found: dict[int, tuple[bool, ...]] = {}
    copy = _noting(closed, found, {})
    if copy is closed:
        return found
    avals = [v.aval for v in open_jaxpr(closed)[0].invars]
    floats = [i for i, aval in enumerate(avals) if has_tangent(aval)]

    def differentiated(*args: Any) -> list[Any]:
        def of_floats(*given: Any) -> list[Any]:
            full = list(args)
            for i, value in zip(floats, given, strict=True):
                full[i] = value
            return [out for out in evaluate_closed(copy, full) if has_tangent(jax.typeof(out))]

        return jax.vjp(of_floats, *[args[i] for i in floats])[0]

    with contextlib.suppress(Exception):  # a program that JAX cannot differentiate has no rule that is asked for
        trace_on_avals(differentiated, avals)
    return found


def _noting(closed: Any, found: dict[int, tuple[bool, ...]], known: dict[int, Any]) -> Any:
    """A copy of a jaxpr whose `custom_vjp` rules with symbolic zeros note down in `found` how they are called; the same
    object where there is none. Source: `lift_fwd`, jax/_src/custom_derivatives.py."""
    from jax._src import linear_util as lu

    def note(thunk: Any) -> Any:
        def call(*perturbed: bool) -> Any:
            rule = getattr(thunk, "call_wrapped", thunk)(*perturbed)  # not noted where it refuses
            before = found.get(id(thunk), (False,) * len(perturbed))
            found[id(thunk)] = tuple(a or bool(b) for a, b in zip(before, perturbed, strict=True))
            return rule

        return lu.wrap_init(call, debug_info=thunk.debug_info)

    if id(closed) not in known:
        eqns = []
        for eqn in open_jaxpr(closed)[0].eqns:
            params = eqn.params
            if eqn.primitive.name == "custom_vjp_call":
                if params["symbolic_zeros"]:
                    params = {**params, "fwd_jaxpr_thunk": note(params["fwd_jaxpr_thunk"])}
            else:
                params = with_other_jaxprs(params, lambda inner: _noting(inner, found, known))
            eqns.append(eqn if params is eqn.params else eqn.replace(params=params))
        jaxpr = open_jaxpr(closed)[0]
        same = all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
        known[id(closed)] = closed if same else rebuilt_jaxpr(closed, eqns, jaxpr.outvars)
    return known[id(closed)]


_NOTHING: Any = object()


def _stored(store: Any) -> Any:
    try:
        return store.val
    except Exception:  # StoreException: it is empty
        return _NOTHING


def _kept_by(value: Any) -> tuple[list[Any], list[dict[Any, Any]]]:
    """(where the `WrappedFun`s inside a thunk keep what they found out besides their result, where it keeps results).

    A rule's trees are those of its last call, and a refused one forgets them. A program that was evaluated from
    its jaxpr has thunks in thunks. Source: jax/_src/linear_util.py, `_memoize` in jax/_src/interpreters/partial_eval.py.
    """
    from jax._src import linear_util as lu

    stores: list[Any] = []
    memories: list[dict[Any, Any]] = []
    seen: set[int] = set()
    todo = [value]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, lu.WrappedFun):
            stores += [s for s in value.stores if s is not None]
            todo.append(value.f)
            todo += [a for _, args in value.transforms for a in args if callable(a)]
        elif str(getattr(value, "__module__", "")).startswith("jax._src.") and hasattr(value, "__closure__"):
            free = _filled_cells(value)
            if value.__name__ == "memoized" and type(free.get("cells")) is dict:
                memories.append(free["cells"])
            todo += free.values()
    return stores, memories


def _filled_cells(function: Any) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is not filled yet
            found[name] = cell.cell_contents
    return found


def _without_float0(closed: Any) -> Any:
    """A jaxpr without equations that only give float0, which no public function can compute with.

    Batching leaves them in a rule (a broadcast cotangent of an integer), and so does a `jvp` inside of it; nothing reads
    their results but each other.
    """
    jaxpr, _ = open_jaxpr(closed)
    needed = {v for v in jaxpr.outvars if type(v) is not LITERAL_TYPE}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        idle = eqn.outvars and all(getattr(v.aval, "dtype", None) == FLOAT0 for v in eqn.outvars)
        if not idle or eqn.effects or any(v in needed for v in eqn.outvars):
            needed.update(v for v in eqn.invars if type(v) is not LITERAL_TYPE)
            kept.append(eqn)
    if len(kept) == len(jaxpr.eqns):
        return closed
    return rebuilt_jaxpr(closed, kept[::-1], jaxpr.outvars)


def core_cotangent(aval: Any) -> Any:
    """The abstract value of a cotangent of `aval` (float0 for integers)."""
    method = getattr(aval, "to_ct_aval", None) or aval.to_tangent_aval
    return method()


# ---------------------------------------------------------------- values


FLOAT0 = jax.dtypes.float0


def is_key(value: Any) -> bool:
    """Whether `value` is a typed PRNG key array."""
    return hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def key_impl_name(key: Any) -> str:
    """The name of a key array's implementation ("threefry2x32", "rbg", "unsafe_rbg", ...)."""
    return str(key.dtype._impl.name)


def key_data(key: Any) -> Any:
    return jax.random.key_data(key)


def is_ref(value: Any) -> bool:
    """Whether `value` is a mutable array (`jax.new_ref`), concrete or traced."""
    from jax._src.core import Ref  # `jax.Ref` is public from 0.10 on, but a type alias there

    return isinstance(value, Ref)


def is_shaped_array(aval: Any) -> bool:
    return type(aval) is _core.ShapedArray  # jax.core dropped its public name for isinstance checks


def plain_aval(aval: Any) -> Any:
    """The shaped array of the same shape, dtype and weak type that is sharded over nothing; the type itself where a mesh is
    part of it: JAX then makes other equations of the same call."""
    from jax._src.core import ShapedArray

    if getattr(getattr(getattr(aval, "sharding", None), "mesh", None), "axis_names", None):
        return aval
    return ShapedArray(aval.shape, aval.dtype, aval.weak_type)


def is_ref_aval(aval: Any) -> bool:
    from jax._src.state.types import AbstractRef  # no public name

    return isinstance(aval, AbstractRef)


def varying_axes(aval: Any) -> frozenset[str]:
    """Mesh axes over which a value inside shard_map varies."""
    vma = getattr(aval, "vma", None)
    if vma is None:
        vma = getattr(getattr(aval, "mat", None), "varying", None)
    return frozenset(vma) if vma else _NO_AXES


_NO_AXES: frozenset[str] = frozenset()


def is_open(jaxpr: Any) -> bool:
    """Whether a parameter holds an open Jaxpr (0.10 tells them apart; on 0.12 there is one class)."""
    return JAXPR_TYPES[0] is not JAXPR_TYPES[1] and not isinstance(jaxpr, JAXPR_TYPES[0])


_DTYPE_NAMES = {"bool": "jnp.bool_"}


def dtype_path(dtype: Any) -> str:
    """A dotted public expression for a dtype that every dtype argument of JAX and NumPy takes.

    Raises ValueError for a dtype without one (typed keys: those are written by rules, not as dtypes).
    """
    import jax.numpy as jnp

    if dtype == FLOAT0:
        return "jax.dtypes.float0"
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return f"jax.random.key(0, impl={str(dtype._impl.name)!r}).dtype"
    name = np.dtype(dtype).name
    if name in _DTYPE_NAMES:
        return _DTYPE_NAMES[name]
    if hasattr(jnp, name):
        return f"jnp.{name}"
    return f"np.dtype({name!r})"


def user_line(eqn: Any) -> str:
    """`file.py:12 (function)` of the user's statement behind an equation, "" where JAX did not keep it."""
    if eqn is None:
        return ""
    from jax._src import source_info_util  # the only place that tells user frames from JAX's own

    return source_info_util.summarize(eqn.source_info) if eqn.source_info is not None else ""


# ---------------------------------------------------------------- public paths of objects


_PUBLIC_MODULES = (
    "jax", "jax.numpy", "jax.lax", "jax.nn", "jax.random", "jax.numpy.linalg", "jax.scipy", "jax.scipy.special",
    "jax.scipy.linalg", "jax.sharding", "jax.dtypes", "jax.tree_util", "jax.ad_checkpoint", "jax.custom_derivatives",
    "jax.checkpoint_policies", "jax.experimental", "jax.experimental.sparse", "jax.experimental.layout",
    "jax.experimental.pallas", "jax.experimental.pallas.tpu", "jax.lax.linalg", "jax.ffi", "jax.ops", "jax.image", "jax.memory", "jax.experimental.sparse.util", "numpy", "math", "operator", "functools",  # noqa: E501
)  # fmt: skip
_PRIMITIVE_MODULES = (
    "jax.extend.core.primitives", "jax.lax", "jax.experimental.sparse", "jax.lax.linalg", "jax.interpreters.ad",
    "jax.custom_derivatives", "jax.interpreters.pxla", "jax.experimental.custom_partitioning", "jax.experimental.roofline",
)  # fmt: skip
_ALIASES = {
    "jax.numpy": "jnp", "jax.lax": "lax", "numpy": "np", "jax.experimental.pallas": "pl",
    "jax.experimental.pallas.tpu": "pltpu", "jax.experimental.sparse": "sparse",
}  # fmt: skip


def is_internal_module(name: str) -> bool:
    """Whether a module is one of those that JAX moves as it likes: a written module imports none of them."""
    return name.startswith(("jax._src", "jaxlib"))


def public_path(value: Any) -> str | None:
    """The dotted public path of a class or function as a written module spells it (`lax.GatherScatterMode`).

    Looked up, not guessed: the object found there is this very object. None where no public module has it.
    """
    import builtins

    try:
        return _PUBLIC_PATHS[id(value)]
    except KeyError:
        pass
    name = getattr(value, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        return None
    found = _PUBLIC_PATHS[id(value)] = name if getattr(builtins, name, None) is value else _search_public(value, name)
    _KEPT.append(value)
    return found


_PUBLIC_PATHS: dict[int, str | None] = {}
_KEPT: list[Any] = []  # ids are only unique while the objects live


def _search_public(value: Any, name: str) -> str | None:
    import importlib

    for module_name in _PUBLIC_MODULES:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            module = jax
            for part in module_name.split(".")[1:]:
                module = getattr(module, part, None)
        if module is None:
            continue
        if getattr(module, name, None) is value:
            return f"{_ALIASES.get(module_name, module_name)}.{name}"
        for alias, found in vars(module).items():  # exported under another name (jax.memory.Space)
            if found is value and alias.isidentifier() and not alias.startswith("_"):
                return f"{_ALIASES.get(module_name, module_name)}.{alias}"
    return None


def public_primitive(prim: Any) -> str | None:
    """The dotted path under which a primitive object can be imported from a public module, verified by lookup."""
    import importlib

    for module_name in _PRIMITIVE_MODULES:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        for name in (f"{prim.name}_p", f"{prim.name.replace('-', '_')}_p", f"mpl_{prim.name}_p"):
            if name.isidentifier() and getattr(module, name, None) is prim:
                return f"{module_name}.{name}"
        for name, value in vars(module).items():
            if value is prim and name.isidentifier() and not name.startswith("_"):
                return f"{module_name}.{name}"
    return None


def value_writers() -> list[tuple[type, Any]]:
    """(type, writer) pairs of parameter types whose classes JAX does not export; see `print/jax/params.py`."""
    return VALUE_WRITERS


VALUE_WRITERS: list[tuple[type, Any]] = []


# ---------------------------------------------------------------- primitives of other libraries


_JAX_PRIMITIVES: dict[int, Any] = {}
_JAX_MODULES_SEEN: set[str] = set()


def _is_jax_module(name: str) -> bool:
    return name == "jax" or name.startswith("jax.")


def is_jax_primitive(primitive: Any) -> bool:
    """Whether `primitive` comes with JAX itself.

    A Primitive does not say where it was made. JAX's own ones are attributes of its modules (looked up by identity);
    the few that are not are told by the module that defined their implementation.
    """
    import sys

    if id(primitive) in _JAX_PRIMITIVES:
        return True
    base = jex_core.Primitive
    for name in [n for n in sys.modules if _is_jax_module(n) and n not in _JAX_MODULES_SEEN]:
        _JAX_MODULES_SEEN.add(name)
        for value in list(getattr(sys.modules[name], "__dict__", {}).values()):
            if isinstance(value, base):
                _JAX_PRIMITIVES[id(value)] = value
    if id(primitive) in _JAX_PRIMITIVES:
        return True
    if type(primitive).__module__.startswith("jax.") and type(primitive) is not base:
        return True  # a subclass of JAX's own (custom_jvp_call, ...); libraries instantiate the base
    return _is_jax_module(home_module(primitive))


def home_module(primitive: Any) -> str:
    """The module that defined a primitive's lowering or implementation, "" where neither tells."""
    found = lowering_function(primitive)
    functions = [found[0]] if found else []
    functions.append(vars(primitive).get("impl"))  # not the method of Primitive itself, which raises
    for function in functions:
        module = _function_module(function)
        # `dispatch.apply_primitive` is what JAX installs when there is no implementation of its own.
        if module and module != "jax._src.dispatch":
            return module
    return ""


@functools.cache
def library_of(primitive: Any) -> str:
    """The top-level package that owns a primitive ("lineax"), "" where it cannot be told.

    The module that holds the primitive goes before the one that defined its rules: those may be another library's
    (lineax makes its `linear_solve` with equinox).
    """
    import sys

    home = home_module(primitive).partition(".")[0]
    owners = set()
    # All modules of the process are looked through only where none of its own has it.
    for own in (True, False):
        for name, module in list(sys.modules.items()):
            package = name.partition(".")[0]
            values = getattr(module, "__dict__", None) if (package == home) is own else None
            if values and not _is_jax_module(name) and any(v is primitive for v in list(values.values())):
                owners.add(package)
        if owners:
            break
    others = sorted(owners - {home})
    return others[0] if others and home not in owners else home


def _function_module(function: Any) -> str:
    seen = 0
    while hasattr(function, "func") and seen < 10:  # functools.partial
        function, seen = function.func, seen + 1
    return getattr(function, "__module__", None) or ""


def lowering_function(primitive: Any) -> tuple[Any, bool] | None:
    """(traceable function, whether it returns a list) behind a `mlir.lower_fun` lowering rule, or None.

    The lowering, not `impl`, is what a jitted program runs. `lower_fun` keeps its function in a closure, and there is
    no public way to ask for it. A rule of the CPU goes before the general one, as in `mlir.lower_jaxpr_to_fun`.
    """
    from jax._src.interpreters import mlir

    platform = getattr(mlir, "_platform_specific_lowerings", {})
    entry = platform.get(jax.default_backend(), {}).get(primitive) if platform else None
    entry = entry or getattr(mlir, "_lowerings", {}).get(primitive)
    rule = getattr(entry, "rule", entry)
    if rule is None or getattr(rule, "__qualname__", "") != "lower_fun.<locals>.f_lowered":
        return None
    cells = dict(zip(rule.__code__.co_freevars, rule.__closure__ or (), strict=True))
    try:
        return cells["fun"].cell_contents, bool(cells["multiple_results"].cell_contents)
    except (KeyError, ValueError):
        return None


def trace_on_avals(function: Any, avals: Sequence[Any], ctx: Any = None) -> Any:
    """ClosedJaxpr of `function(*flat) -> flat list` on abstract values, taken whole (weak types, varying axes).

    `ctx` is the context of the equation that the function stands for. Nothing of the caller's trace is closed over.
    """

    manager = getattr(ctx, "manager", None)
    with manager if manager is not None else tracing_inside_mesh(avals):
        return jax.make_jaxpr(lambda *args: function(*args))(*avals)


def trace_library_call(function: Any, avals: Sequence[Any]) -> Any:
    """`trace_on_avals` of calls of JAX's own functions on arrays, which binds no rules of anyone's: in a fifth of the time."""
    with tracing_inside_mesh(avals):
        jaxpr, consts = traced_quickly(function, avals)
    return close_jaxpr(jaxpr, consts) if not consts else trace_on_avals(function, avals)


def with_weak_type(value: Any, weak_type: bool) -> Any:
    """`value` with the weak type asked for. `lax.convert_element_type` can only make strong types."""
    from jax._src.lax import lax as lax_internal

    return lax_internal._convert_element_type(value, value.dtype, weak_type=weak_type)


def equation_inside(eqn: Any, outer: Any, substitute: dict[Any, Any]) -> Any:
    """`eqn` as it stands where `outer` stood: its operands replaced, `outer`'s traceback, both name stacks.

    The user's line of a library primitive is that of the equation which it replaces, not of our trace of it. Where it
    stood before, `inner_traceback` still tells.
    """
    info = outer.source_info
    stack = info.name_stack
    if eqn.source_info is not None and stack is not None:
        stack = stack + eqn.source_info.name_stack
    return eqn.replace(
        invars=substituted(eqn.invars, substitute),
        source_info=_moved_source()(info.traceback, stack, inner_traceback(eqn)) if info is not None else None,
    )


@functools.cache
def _moved_source() -> Any:
    from jax._src import source_info_util

    class MovedSource(source_info_util.SourceInfo):
        """The source of an equation that stands in another function now; `inner` is its traceback before."""

        def __init__(self, traceback: Any, name_stack: Any, inner: Any):
            super().__init__(traceback, name_stack)
            self.inner = inner

        def replace(self, *, traceback: Any = None, name_stack: Any = None) -> Any:
            stack = self.name_stack if name_stack is None else name_stack
            return MovedSource(traceback or self.traceback, stack, self.inner)

    return MovedSource


def inner_traceback(eqn: Any) -> Any:
    """The traceback of an equation in the function that it was traced for, also where that was inlined since."""
    info = eqn.source_info
    return None if info is None else getattr(info, "inner", None) or info.traceback


def substituted(atoms: Sequence[Any], substitute: dict[Any, Any]) -> list[Any]:
    """`atoms` with variables replaced; literals (which do not hash) are left as they are."""
    return [a if type(a) is LITERAL_TYPE else substitute.get(a, a) for a in atoms]


def rebuilt_jaxpr(
    closed: Any,
    eqns: Sequence[Any],
    outvars: Sequence[Any],
    constvars: Sequence[Any] = (),
    consts: Sequence[Any] = (),
    invars: Sequence[Any] | None = None,
    kept: Sequence[int] | None = None,
) -> Any:
    """A closed or open jaxpr with other equations and results, and more constants behind those that it has.

    invars: other inputs, whose names are forgotten where there are more or fewer. kept: which of its results it still has.
    """
    jaxpr, old_consts = open_jaxpr(closed)
    changes: dict[str, Any] = {
        "eqns": list(eqns),
        "outvars": list(outvars),
        "effects": frozenset(jaxpr.effects).union(*[_plain_effects(e.effects) for e in eqns]),
        "debug_info": jaxpr.debug_info,
    }
    if invars is not None:
        changes["invars"] = list(invars)
        if len(invars) != len(jaxpr.invars):
            changes["debug_info"] = jaxpr.debug_info.with_unknown_names()
    paths = getattr(changes["debug_info"], "result_paths", None)
    if kept is not None and type(paths) is tuple:
        changes["debug_info"] = changes["debug_info"]._replace(result_paths=tuple([paths[i] for i in kept]))
    if constvars:
        changes["constvars"] = [*jaxpr.constvars, *constvars]
    if JAXPR_TYPES[0] is JAXPR_TYPES[1]:  # 0.12: constants are part of the one class
        if constvars:
            changes["consts"] = [*old_consts, *consts]
        return jaxpr.replace(**changes)
    new = jaxpr.replace(**changes)
    return new if closed is jaxpr else jex_core.ClosedJaxpr(new, [*old_consts, *consts])


def with_results(eqn: Any, kept: Sequence[int], params: Mapping[str, Any]) -> Any:
    """A call with these parameters, of which only some results are left; `kept`: their places."""
    each = {k: tuple([eqn.params[k][i] for i in kept]) for k in ("out_shardings", "out_layouts") if k in eqn.params}
    return eqn.replace(outvars=[eqn.outvars[i] for i in kept], params={**eqn.params, **each, **params})


def with_names(closed: Any, place: str, inputs: Sequence[str], results: Sequence[str]) -> Any:
    """A closed jaxpr of which JAX says that another function was traced: `step at model.py:12`, with these paths."""
    jaxpr, consts = open_jaxpr(closed)
    info = jaxpr.debug_info._replace(func_src_info=place, arg_names=tuple(inputs), result_paths=tuple(results))
    new = jaxpr.replace(debug_info=info)
    return new if JAXPR_TYPES[0] is JAXPR_TYPES[1] or closed is jaxpr else jex_core.ClosedJaxpr(new, consts)


def with_constants(closed: Any, consts: Sequence[Any]) -> Any:
    """A closed jaxpr with other values for its constants."""
    if JAXPR_TYPES[0] is JAXPR_TYPES[1]:  # 0.12: constants are part of the one class
        return closed.replace(consts=list(consts))
    return jex_core.ClosedJaxpr(closed.jaxpr, list(consts))


def _plain_effects(effects: Any) -> set[Any]:
    """Effects that do not count operands: those of refs do, and the jaxpr already has them."""
    from jax._src.effects import JaxprInputEffect

    return {e for e in effects if not isinstance(e, JaxprInputEffect)}


def hi_primitive(eqn: Any) -> Any:
    """The object in a `call_hi_primitive` equation (SearchSorted, Nonzero, CustomRoot, ...), None for any other."""
    return eqn.params.get("_prim") if eqn.primitive.name == "call_hi_primitive" else None


def hi_primitive_function(prim: Any) -> Any:
    """`flat operands -> flat results` in plain JAX: `to_lojax`, which is what lowering calls."""
    from jax._src import hijax

    return lambda *args: hijax.call_hi_primitive_p.to_lojax(*args, _prim=prim)


def root_functions(eqn: Any) -> tuple[list[Any], list[int], int] | None:
    """(jaxprs of `f`, `solve` and `tangent_solve`, numbers of their constants, leaves of the root) of a `custom_root`.

    Each jaxpr takes its constants first; then `f` the root, `solve` the guess, `tangent_solve` the root and what to
    solve for. None for every other equation, where the guess is not of the root's types (a `vmap` over the constants
    alone), and where it has effects. Source: `CustomRoot`, jax/_src/lax/control_flow/solves.py (0.12), whose operands
    are (constants of solve, guess, constants of f, constants of tangent_solve).
    """
    prim = hi_primitive(eqn)
    if type(prim).__name__ != "CustomRoot" or prim.effects:
        return None
    solve_consts, guess, f_consts, tangent_consts = prim.in_avals
    root = prim.out_aval[0] if prim.has_aux else prim.out_aval
    leaves = jax.tree_util.tree_leaves
    if [aval_key(a) for a in leaves(guess)] != [aval_key(a) for a in leaves(root)]:
        return None
    tangent = jax.tree_util.tree_map(lambda a: a.to_tangent_aval(), root)
    calls = [
        (prim.f, (f_consts, root)),
        (prim.solve, (solve_consts, guess)),
        (prim.tangent_solve, (tangent_consts, root, tangent)),
    ]
    jaxprs = [_trace_tree(function, avals, eqn.ctx) for function, avals in calls]
    return jaxprs, [len(leaves(avals[0])) for _, avals in calls], len(leaves(root))


def root_map_function(eqn: Any) -> tuple[Any, bool, int] | None:
    """(jaxpr of the function, transposed?, number of its constants) of a `_RootLinearMap` equation, None for others.

    It stands for the derivative of `f`, which a `tangent_solve` of `custom_root` is given. Its operands are (constants
    of f, the root, the tangent). Source: as of `root_functions`.
    """
    if not is_root_map(eqn):
        return None
    prim = hi_primitive(eqn)
    consts, root = prim.in_avals[:2]
    return (
        _trace_tree(prim.f, (consts, root), eqn.ctx),
        bool(prim.transposed),
        len(jax.tree_util.tree_leaves(consts)),
    )


def is_root_map(eqn: Any) -> bool:
    """Whether an equation applies the `g` that a `tangent_solve` of `custom_root` is given."""
    return type(hi_primitive(eqn)).__name__ == "_RootLinearMap"


def _trace_tree(function: Any, avals: Any, ctx: Any) -> Any:
    """ClosedJaxpr of `function(*avals)`, flat; of a function that JAX has converted, the jaxpr inside it."""
    flat, tree = jax.tree_util.tree_flatten(avals)

    def run(*args: Any) -> list[Any]:
        return jax.tree_util.tree_leaves(function(*jax.tree_util.tree_unflatten(tree, args)))

    closed = trace_on_avals(run, flat, ctx)
    jaxpr, _ = open_jaxpr(closed)
    if len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name == "eval_jaxpr":
        (eqn,) = jaxpr.eqns
        if list(eqn.invars) == list(jaxpr.invars) and list(eqn.outvars) == list(jaxpr.outvars):
            return eqn.params["call_jaxpr"]
    return closed


def jvp_rule(primitive: Any) -> Any:
    """The function that `ad.primitive_jvps` has for a primitive, or None."""
    from jax.interpreters import ad

    return ad.primitive_jvps.get(primitive)


def transpose_rule(primitive: Any) -> Any:
    """The function that `ad.primitive_transposes` has for a primitive, or None."""
    from jax.interpreters import ad

    return ad.primitive_transposes.get(primitive)


def dtype_of(value: Any) -> Any:
    """The dtype of an array, tracer or Python scalar as JAX sees it."""
    return getattr(jax.typeof(value), "dtype", None)


def is_weak(value: Any) -> bool:
    """Whether JAX sees a value as weakly typed."""
    return bool(getattr(jax.typeof(value), "weak_type", False))


# ---------------------------------------------------------------- comparing two programs


def ordering_effect(effect: Any) -> Any:
    """What keeps an effect in its place: those with the same key keep their order; None: any order.

    A read or write of a ref is keyed "ref", whichever ref it is. An axis name is only in scope,
    nothing happens, and `InternalMutableArrayEffect` says that a ref is made or unmade: data
    dependencies keep those in place.
    Source: `dceable_effects`, jax/_src/interpreters/partial_eval.py.
    """
    from jax._src import core, effects  # effects have no public names

    if isinstance(effect, effects.JaxprInputEffect):
        return "ref"
    if isinstance(effect, (core.NamedAxisEffect, core.InternalMutableArrayEffect)):
        return None
    return effect


def effect_kind(effect: Any) -> Any:
    """`effect` without the variable that it acts on: its class for a ref effect, else itself."""
    from jax._src import effects

    return type(effect) if isinstance(effect, effects.JaxprInputEffect) else effect


_CONTEXT_FIELDS = (
    "compute_type", "threefry_partitionable", "cur_layout_mode",
    "remove_size_one_mesh_axis", "no_collectives", "xla_metadata",
)  # fmt: skip


def same_context(left: Any, right: Any) -> bool:
    """Whether two equations were bound under the same settings (compute type, metadata...).

    `JaxprEqnContext` is interned, so identity nearly always answers; the fields differ by JAX line. The mesh of the
    context is left out: it acts through the types of values alone, and those are compared; a jaxpr from JAX's trace
    cache can carry the context of its first caller.
    """
    if left is right:
        return True
    missing = object()
    return all(getattr(left, f, missing) == getattr(right, f, missing) for f in _CONTEXT_FIELDS)


def leaf_counts(value: Any) -> tuple[int, ...] | None:
    """Leaves in each part of one of 0.12's FlatTrees (`ft_in`, `ft_out` of scan), else None."""
    if type(value).__module__ != "jax._src.flattree":
        return None
    try:
        return tuple(len(part) for part in value.unpack())
    except (AssertionError, AttributeError, TypeError):  # a tree with one part
        return (len(value),)


def without_dead_code(closed: Any) -> Any:
    """`closed` after JAX's own dead code elimination, which also looks into scan, jit, cond...

    All inputs stay.
    """
    from jax._src.interpreters import partial_eval  # `dce_jaxpr` has no public name

    jaxpr, consts = open_jaxpr(closed)
    used = [True] * len(jaxpr.outvars)
    new, used_consts, _ = partial_eval.dce_jaxpr_consts(jaxpr, used, True)
    if not consts:
        return close_jaxpr(new, ())
    if getattr(new, "jaxpr", None) is new:  # 0.12 keeps the constants with the jaxpr
        return new
    return close_jaxpr(new, [c for c, keep in zip(consts, used_consts, strict=True) if keep])


def is_pruned_copy(copy: Any, closed: Any) -> bool:
    """Whether JAX's dead code elimination gives `copy` for the jaxpr of a jitted function; it gives the same one each time.

    Source: `dce_jaxpr_pjit_rule`, jax/_src/pjit.py.
    """
    from jax._src.interpreters import partial_eval  # as above

    return partial_eval.dce_jaxpr(open_jaxpr(closed)[0], True)[0] is open_jaxpr(copy)[0]


def custom_rule_key(eqn: Any) -> tuple[Any, ...] | None:
    """A hashable value on which alone the rules of a custom_jvp/vjp equation depend, or None.

    Two calls of `jax.nn.relu` get two closures but the same rule; tracing it once is enough. The
    closures are those of `DynamicJaxprTrace.process_custom_jvp_call` and `..._vjp_call` in
    jax/_src/interpreters/partial_eval.py; None (no sharing) when they do not look as expected.
    """
    params = eqn.params
    try:
        thunk = params["jvp_jaxpr_fun"] if "jvp_jaxpr_fun" in params else params["fwd_jaxpr_thunk"]
        trace = _freevars(thunk.f)["fn"]
        inside = _freevars(trace)
        rule = inside["jvp"] if "jvp" in inside else inside["fwd"]
        key: tuple[Any, ...] = (eqn.primitive, eqn.ctx, tuple(inside["in_avals"]))
        key += (params["num_consts"], params["symbolic_zeros"])
        key += (_wrapped_key(rule),)
        if "bwd" in params:
            key += (_wrapped_key(params["bwd"]),)
        hash(key)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return key


def _freevars(function: Any) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return {n: c.cell_contents for n, c in zip(function.__code__.co_freevars, cells, strict=True)}


def _wrapped_key(wrapped: Any) -> tuple[Any, ...]:
    """A WrappedFun as (function, transformations with their arguments), without result thunks."""
    if wrapped.params:
        raise ValueError("keyword arguments")
    forward = _remat_optimized(wrapped.f)
    parts: list[Any] = [wrapped.f] if forward is None else [forward, "optimize_remat"]
    for generator, args in wrapped.transforms:
        parts.append(generator)
        for arg in args:
            if getattr(arg, "__qualname__", "").startswith("transformation_with_aux"):
                continue
            if type(arg).__name__ == "DebugInfo":
                continue
            # 1, 1.0 and True are one dictionary key, but not one argument.
            parts.append((type(arg), arg if not isinstance(arg, float) else repr(arg)))
    return tuple(parts)


def is_tracer(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


def variable_of(tracer: Any) -> Any:
    """The variable of a jaxpr that a traced value is; None for one of another kind of trace.

    Source: `DynamicJaxprTracer.val`, jax/_src/interpreters/partial_eval.py.
    """
    from jax._src.interpreters import partial_eval

    return tracer.val if isinstance(tracer, partial_eval.DynamicJaxprTracer) else None


def weakly_typed(value: Any) -> Any:
    """`value` as a weakly typed array; only Python scalars are weak in the public API."""
    from jax._src.lax import lax as lax_internal

    return lax_internal._convert_element_type(value, weak_type=True)


# ---------------------------------------------------------------- parameters of primitives


PRIMITIVE_TYPE = jex_core.Primitive


def binds_functions(prim: Any) -> bool:
    """Whether a primitive is bound with Python functions in place of the jaxprs that its equations have."""
    return type(prim).get_bind_params is not PRIMITIVE_TYPE.get_bind_params


def is_unspecified(sharding: Any) -> bool:
    """Whether a sharding parameter says nothing (`UnspecifiedValue` has no public name)."""
    return type(sharding).__name__ == "UnspecifiedValue"


def is_auto_axes(spec: Any) -> bool:
    return type(spec).__name__ == "AUTO"


def inline_option(inline: Any) -> Any:
    """The `inline=` argument of `jax.jit` behind a jit equation: False where it is the default.

    0.10: a bool. 0.12: an enum, whose members are written by their argument values (`"auto"`, ...).
    """
    if isinstance(inline, bool):
        return inline
    if inline.name == "AUTO":
        return False
    return True if inline.name == "JAX_EARLY" else inline


def prng_impl_name(impl: Any) -> str | None:
    """The public name of a PRNG implementation parameter; None for one that is not registered under a name."""
    name = getattr(impl, "name", None)
    if name is None:
        return None
    try:
        key = jax.eval_shape(lambda: jax.random.key(0, impl=name))
    except ValueError:
        return None
    return str(name) if key.dtype._impl == impl else None


def partitions(spec: Any) -> tuple[Any, ...]:
    """The entries of a PartitionSpec (iterating over one is deprecated on newer lines)."""
    return tuple(getattr(spec, "_partitions", None) or spec)


def default_memory_kind(sharding: Any) -> str | None:
    """The memory kind that a sharding has when none is asked for; None over an abstract mesh."""
    if isinstance(sharding.mesh, jax.sharding.AbstractMesh):
        return None
    return next(iter(sharding.mesh.devices.flat)).default_memory().kind


def _policy_types() -> tuple[type, ...]:
    """Classes of checkpoint policies: plain functions, and on 0.10 some frozen dataclasses."""
    import types

    from jax._src import ad_checkpoint  # the dataclasses have no public name

    names = ("SaveOnlyTheseNames", "SaveAnyNamesButThese", "DotsSaveable")
    return (types.FunctionType, *(getattr(ad_checkpoint, n) for n in names if hasattr(ad_checkpoint, n)))


POLICY_TYPES = _policy_types()


def policy_call(policy: Any) -> tuple[str, tuple[Any, ...] | None, dict[str, Any]] | None:
    """(name, args, kwargs) of a policy in `jax.checkpoint_policies`, args None for one that is there as it is, else those
    of the function there that made it; None for a user's own.

    A maker returns a closure: its free variables are the maker's parameters, by name.
    """

    for name, value in vars(jax.checkpoint_policies).items():
        if value is policy and name.isidentifier():
            return name, None, {}
    kind = type(policy).__name__
    if kind == "SaveOnlyTheseNames":
        return "save_only_these_names", tuple(sorted(policy.saveable_names)), {}
    if kind == "SaveAnyNamesButThese":
        return "save_any_names_but_these", tuple(sorted(policy.names)), {}
    maker, local, _ = getattr(policy, "__qualname__", "").partition(".<locals>.")
    function = getattr(jax.checkpoint_policies, maker, None) if local else None
    if function is None:
        return None
    cells = inspect.getclosurevars(policy).nonlocals
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in cells:
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
                return None
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += tuple(sorted(cells[name]))
        elif parameter.kind is parameter.KEYWORD_ONLY:
            value = cells[name]
            kwargs[name] = sorted(value) if isinstance(value, (set, frozenset)) else value
        else:
            args += (cells[name],)
    return maker, args, kwargs


def scan_counts(eqn: Any) -> tuple[int, int]:
    """(constants, carries) of a scan equation. 0.12 keeps them as a tree of (constants, carry, xs)."""
    params = eqn.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def inner_places(eqn: Any) -> list[tuple[str, int | None, range]]:
    """(parameter, place in it where it is a tuple, which operands) of the jaxprs of a loop, a choice or a jitted function.

    Raises ValueError for other equations.
    """
    name, params, count = eqn.primitive.name, eqn.params, len(eqn.invars)
    if name in ("scan", "jit", "pjit", "closed_call", "checkpoint", "remat2"):
        return [("jaxpr", None, range(count))]
    if name == "cond":
        return [("branches", i, range(1, count)) for i in range(len(params["branches"]))]
    if name == "while":
        first, both = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        return [("cond_jaxpr", None, range(first)), ("body_jaxpr", None, range(first, both))]
    if name == "custom_linear_solve":
        ends = list(itertools.accumulate(params["const_lengths"]))
        places = [range(end - length, end) for end, length in zip(ends, params["const_lengths"], strict=True)]
        return [("jaxprs", i, place) for i, place in enumerate(places) if params["jaxprs"][i] is not None]
    raise ValueError(f"what {name} closes over is not known")


def inner_jaxpr(params: Mapping[str, Any], key: str, number: int | None) -> Any:
    """One of `inner_places`."""
    return params[key] if number is None else params[key][number]


def put_inner_jaxpr(params: dict[str, Any], key: str, number: int | None, jaxpr: Any) -> None:
    several = params[key]
    if number is None:
        params[key] = jaxpr
        return
    items = [*several[:number], jaxpr, *several[number + 1 :]]
    params[key] = several._make(items) if hasattr(several, "_make") else tuple(items)


def with_operands_spread(eqn: Any, params: dict[str, Any], several: Mapping[int, int]) -> dict[str, Any]:
    """The parameters of an equation where each of some operands becomes several (or none), by place.

    Raises ValueError where such an operand is carried through a loop.
    """
    name, count = eqn.primitive.name, len(eqn.invars)
    more = lambda places: sum(several.get(i, 1) for i in places)  # noqa: E731
    if name == "scan":
        consts, carry = scan_counts(eqn)
        if any(i >= consts for i in several):
            raise ValueError("a pullback is carried through a loop")
        xs, ys = count - consts - carry, len(eqn.outvars) - carry
        return recounted_scan(params, more(range(consts)), carry, xs, ys)
    if name == "while":
        first, both = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        if any(i >= both for i in several):
            raise ValueError("a pullback is carried through a loop")
        return {**params, "cond_nconsts": more(range(first)), "body_nconsts": more(range(first, both))}
    if name == "custom_linear_solve":
        lengths, places = params["const_lengths"], [place for _, _, place in inner_places(eqn)]
        counts = [more(next((p for p in places if p.stop == end), ())) for end in itertools.accumulate(lengths)]
        return {**params, "const_lengths": lengths._make(counts)}
    for key, value in params.items():
        if key in ("in_shardings", "in_layouts", "donated_invars"):
            params[key] = tuple([v for i, v in enumerate(value) for _ in range(several.get(i, 1))])
    return params


def closed_as_used(eqn: Any) -> Any:
    """A loop that closes over what its functions need, each value once, in the order in which they need it: as JAX does."""
    if eqn.primitive.name == "scan":
        count, carry = scan_counts(eqn)
        places, jaxpr = _closed_as_used(eqn.params["jaxpr"], eqn.invars[:count])
        rest = eqn.invars[count:]
        params = {**eqn.params, "jaxpr": jaxpr}
        params = recounted_scan(params, len(places), carry, len(rest) - carry, len(eqn.outvars) - carry)
        return eqn.replace(invars=[*(eqn.invars[i] for i in places), *rest], params=params)
    if eqn.primitive.name == "custom_linear_solve":
        params, counts, kept = dict(eqn.params), list(eqn.params["const_lengths"]), []
        for _, number, place in inner_places(eqn):
            own = range(place.start, place.start + counts[number])
            order, jaxpr = _closed_as_used(params["jaxprs"][number], [eqn.invars[i] for i in own])
            put_inner_jaxpr(params, "jaxprs", number, jaxpr)
            counts[number] = len(order)
            kept += [own[i] for i in order]
        params["const_lengths"] = eqn.params["const_lengths"]._make(counts)
        rest = eqn.invars[sum(eqn.params["const_lengths"]) :]
        return eqn.replace(invars=[*(eqn.invars[i] for i in kept), *rest], params=params)
    if eqn.primitive.name != "while":
        return eqn
    params, first = eqn.params, eqn.params["cond_nconsts"]
    both = first + params["body_nconsts"]
    of_condition, condition = _closed_as_used(params["cond_jaxpr"], eqn.invars[:first])
    of_body, body = _closed_as_used(params["body_jaxpr"], eqn.invars[first:both])
    changed = {
        "cond_jaxpr": condition,
        "body_jaxpr": body,
        "cond_nconsts": len(of_condition),
        "body_nconsts": len(of_body),
    }
    invars = [*(eqn.invars[i] for i in of_condition), *(eqn.invars[first + i] for i in of_body), *eqn.invars[both:]]
    return eqn.replace(invars=invars, params={**params, **changed})


def _closed_as_used(closed: Any, operands: Sequence[Any]) -> tuple[list[int], Any]:
    """(which of the first operands a function needs, the function of those)."""
    jaxpr, _ = open_jaxpr(closed)
    count = len(operands)
    first: dict[Any, int] = {}
    keys = [id(v) if type(v) is LITERAL_TYPE else v for v in operands]
    same = {jaxpr.invars[i]: jaxpr.invars[first.setdefault(key, i)] for i, key in enumerate(keys)}
    own = {v: i for i, v in enumerate(jaxpr.invars[:count])}
    eqns = [e.replace(invars=substituted(e.invars, same)) for e in jaxpr.eqns]
    outvars = substituted(jaxpr.outvars, same)
    read = [v for e in eqns for v in e.invars if type(v) is not LITERAL_TYPE]
    read += [v for v in outvars if type(v) is not LITERAL_TYPE]
    order = list(dict.fromkeys([own[v] for v in read if v in own]))
    if order == list(range(count)):
        return order, closed
    invars = [*(jaxpr.invars[i] for i in order), *jaxpr.invars[count:]]
    return order, rebuilt_jaxpr(closed, eqns, outvars, invars=invars)


def recounted_scan(params: Mapping[str, Any], consts: int, carry: int, xs: int, ys: int) -> dict[str, Any]:
    """The parameters of a scan that has so many constants, carries, inputs and outputs, as `jax.lax.scan` counts them."""
    if "num_consts" in params:
        return {**params, "num_consts": consts, "num_carry": carry}

    def template(consts: Any, init: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            return [v + sum(consts) for v in c], [sum(c + x + consts, 0.5)] * ys

        return jax.lax.scan(step, init, xs, length=1)

    traced = jax.make_jaxpr(template)([1.0] * consts, [1.0] * carry, [jax.numpy.ones(1)] * xs)
    trees = {k: v for k, v in open_jaxpr(traced)[0].eqns[-1].params.items() if k.startswith("ft_")}
    return {**params, **trees}


def tangent_aval(aval: Any) -> Any:
    method = getattr(aval, "to_tangent_aval", None)
    return method() if method else aval


def device_put_options(semantics: Any) -> dict[str, Any]:
    """The keywords of `jax.device_put` behind a copy-semantics parameter."""
    name = getattr(semantics, "name", str(semantics))
    return {"ALWAYS_COPY": {"may_alias": False}, "DONATE_INPUT": {"donate": True}}.get(name, {})


def ref_index(tree: Any, count: int) -> list[tuple[Any, ...]] | None:
    """The parts of a ref index, one a dimension, of a `get`/`swap`/`addupdate` equation; None where it is not one indexer.

    ("all",), ("operand", i), ("slice", start, size, stride) or ("ds", i, size, stride): i counts the index operands.
    Source: NDIndexer and Slice in jax/_src/state/indexing.py.
    """
    from jax._src.state import indexing  # no public name

    transforms = jax.tree_util.tree_unflatten(tree, [_Operand(i) for i in range(count)])
    if not transforms:
        return []
    if len(transforms) != 1 or not isinstance(transforms[0], indexing.NDIndexer):
        return None
    indexer = transforms[0]
    parts: list[tuple[Any, ...]] = []
    for entry, extent in zip(indexer.indices, indexer.shape, strict=True):
        if isinstance(entry, _Operand):
            parts.append(("operand", entry.index))
        elif isinstance(entry, indexing.Slice):
            start, size, stride = entry.start, entry.size, entry.stride
            if isinstance(size, _Operand) or isinstance(stride, _Operand):
                return None
            if isinstance(start, _Operand):
                parts.append(("ds", start.index, size, stride))
            elif start == 0 and size == extent and stride == 1:
                parts.append(("all",))
            else:
                parts.append(("slice", start, size, stride))
        else:
            return None
    return parts


class _Operand:
    """Stands for an index operand while its tree is read."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index


def is_traceable(leaf: Any) -> bool:
    """Whether JAX can trace a leaf: an array, a number, a ShapeDtypeStruct, a ref or a key."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return is_key(leaf) or getattr(leaf.dtype, "kind", "") not in "OUSM"
    return (
        isinstance(leaf, (bool, int, float, complex)) or jex_core.valid_jaxtype(leaf) or is_ref(leaf) or is_aval(leaf)
    )


def is_aval(value: Any) -> bool:
    """Whether `value` is an abstract value of JAX (a ShapedArray, an AbstractRef, ...)."""
    from jax._src.core import AbstractValue  # no public name

    return isinstance(value, AbstractValue)


def rule_key(eqn: Any, *rules: Any) -> Any:
    """A hashable identity of a custom_jvp/custom_vjp function as this equation calls it.

    Equal keys: the same rule function objects, with the same static arguments, over a body of the same shape, called
    with the same types. The function object itself stands at the bottom of the `WrappedFun`s that the equation keeps.
    """
    closed = eqn.params["call_jaxpr"]
    jaxpr, consts = open_jaxpr(closed)
    body = tuple((e.primitive.name, tuple(aval_key(v.aval) for v in e.outvars), literal_key(e)) for e in jaxpr.eqns)
    types = tuple(aval_key(v.aval) for v in eqn.invars)
    return (eqn.primitive.name, tuple(_rule_identity(r) for r in rules), types, body, tuple(id(c) for c in consts))


def is_call_of(function: Any, eqn: Any) -> bool:
    """Whether a `custom_jvp_call` is one of that function: of its very rule."""
    return isinstance(function, jax.custom_jvp) and _users_rule(eqn.params["jvp_jaxpr_fun"])[0] is function.jvp


def has_rule_of_jax(eqn: Any) -> bool:
    """Whether the rule of a `custom_jvp_call` was written by JAX's authors: `jnp.logaddexp` has one, whose call is not public.

    Rules of `defjvps` are not told from each other: JAX makes a function of its own of each.
    """
    module = getattr(_users_rule(eqn.params["jvp_jaxpr_fun"])[0], "__module__", None) or ""
    return module.startswith("jax.") and not module.endswith(".custom_derivatives")


def has_batched_rule(eqn: Any) -> bool:
    """Whether `vmap` batched the rule of a `custom_jvp_call`."""
    return any("batch" in name for name, _ in _users_rule(eqn.params["jvp_jaxpr_fun"])[1])


def aval_key(aval: Any) -> Any:
    """A hashable description of an abstract value: shape, dtype, weak type."""
    return getattr(aval, "shape", None), str(getattr(aval, "dtype", aval)), getattr(aval, "weak_type", False)


def literal_key(eqn: Any) -> tuple[str, ...]:
    return tuple(str(v.val) for v in eqn.invars if type(v) is LITERAL_TYPE)


def _rule_identity(rule: Any) -> Any:
    """(id of the user's function, what was fixed on the way to it)."""
    function, fixed = _users_rule(rule)
    return id(function), fixed


def _users_rule(rule: Any) -> tuple[Any, frozenset[Any]]:
    """(the user's function below closures and `WrappedFun`s, what was fixed on the way).

    What was fixed is a set: a rule that calls its own function is wrapped once more at every level, in the same way.
    """
    from jax._src import linear_util as lu  # WrappedFun: the transformations and the function below them

    fixed: set[Any] = set()
    inner = rule
    while inner is not None:
        rule = inner
        if isinstance(rule, lu.WrappedFun):
            for transformation, args in rule.transforms:
                fixed.add((transformation.__name__, tuple(_static_key(a) for a in args if _is_fixed(a))))
            inner = rule.f
        elif (forward := _remat_optimized(rule)) is not None:
            fixed.add(("optimize_remat", ()))
            inner = forward
        else:
            inner = _wrapped_inside(rule)
    return rule, frozenset(fixed)


def _remat_optimized(rule: Any) -> Any:
    """The forward rule that every call of a function with `optimize_remat=True` wraps anew; None for other functions.

    Source: `optimize_remat_of_custom_vjp_fwd`, jax/_src/custom_derivatives.py.
    """
    code = getattr(rule, "__code__", None)
    own = code is not None and code.co_name == "wrapped_fwd" and code.co_filename.endswith("custom_derivatives.py")
    return getattr(rule, "__wrapped__", None) if own else None


def _wrapped_inside(function: Any, depth: int = 0) -> Any:
    """The `WrappedFun` that a closure of JAX's own holds, through closures of closures; None where there is none."""
    from jax._src import linear_util as lu

    if depth > 3 or not getattr(function, "__module__", "").startswith("jax._src."):
        return None
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        found = value if isinstance(value, lu.WrappedFun) else _wrapped_inside(value, depth + 1)
        if found is not None:
            return found
    return None


def _is_fixed(arg: Any) -> bool:
    """Static arguments and trees, not the stores and debug records that every call makes anew."""
    return not callable(arg) and type(arg).__name__ not in ("DebugInfo",)


def _static_key(arg: Any) -> Any:
    if isinstance(arg, (tuple, list)):  # a list: the mapped axes of a batched rule
        return tuple(_static_key(a) for a in arg if _is_fixed(a) or type(a).__name__ in ("Unhashable", "Hashable"))
    value = getattr(arg, "val", arg)
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return type(value).__name__, repr(value)
    if type(value).__name__ == "PyTreeDef":
        return str(value)
    if is_aval(value):
        return aval_key(value)
    return id(value)


# What JAX says of a function that was traced; a name may have "at" in it.
_PLACE = re.compile(r"(?P<name>.*) at (?P<file>.*):(?P<line>\d+)$", re.DOTALL)


def function_source(closed: Any) -> str:
    """`model.py:6` of the function that a jaxpr was traced from, without its folders; "" where JAX does not know."""

    jaxpr, _ = open_jaxpr(closed)
    info = getattr(jaxpr, "debug_info", None)
    match = _PLACE.match(getattr(info, "func_src_info", None) or "")
    return place_of(match["file"], match["line"]) if match else ""


# ---------------------------------------------------------------- host callbacks


def flat_callback(callback: Any) -> tuple[Any, Any, dict[int, Any]]:
    """(the user's callable, the pytree of its (args, kwargs), {index of a leaf that is no operand: its value}).

    `callback` is the parameter of `pure_callback`, `io_callback` and `debug_callback`: a `_FlatCallback`
    (jax/_src/callback.py), or for `debug_callback` a closure that keeps the three (jax/_src/debugging.py). Raises
    LookupError for anything else.
    """
    if hasattr(callback, "callback_func"):
        return callback.callback_func, callback.in_tree, {}
    code = getattr(callback, "__code__", None)
    if code is not None and callback.__closure__:
        cells = dict(zip(code.co_freevars, callback.__closure__, strict=True))
        if {"callback", "in_tree"} <= set(cells):
            static = cells["static_args"].cell_contents if "static_args" in cells else {}
            return cells["callback"].cell_contents, cells["in_tree"].cell_contents, dict(static)
    raise LookupError(f"a callback of type {type(callback).__name__} does not say which function it calls")


def is_ordered_debug_effect(effect: Any) -> bool:
    """Whether a debugging effect is the ordered one."""
    from jax._src import debugging

    return effect is debugging.ordered_debug_effect or effect == debugging.ordered_debug_effect


# ---------------------------------------------------------------- derivative rules of library primitives


def has_tangent(aval: Any) -> bool:
    """Whether values of this type have derivatives (floats and complex numbers do, integers and keys do not)."""
    return getattr(aval.to_tangent_aval(), "dtype", FLOAT0) != FLOAT0


def call_jvp_rule(rule: Any, eqn: Any, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(results, their tangents) by a primitive's own JVP rule; a tangent is None where a value has none.

    tangents: one for each operand, None for those without. Zeros come back as arrays.
    """
    from jax.interpreters import ad

    given = [ad.Zero(v.aval.to_tangent_aval()) if t is None else t for v, t in zip(eqn.invars, tangents, strict=True)]
    outs, out_tangents = rule(list(primals), given, **eqn.params)
    if not eqn.primitive.multiple_results:
        outs, out_tangents = [outs], [out_tangents]
    filled = [
        ad.instantiate_zeros(t) if has_tangent(v.aval) else None for v, t in zip(eqn.outvars, out_tangents, strict=True)
    ]
    return list(outs), filled


def call_transpose_rule(rule: Any, eqn: Any, operands: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Cotangents of the linear operands (None stands for them in `operands`) by a primitive's own transpose rule.

    cotangents: one for each result, None where it has none. Zeros come back as arrays.
    """
    from jax.interpreters import ad

    given = [ad.Zero(core_cotangent(v.aval)) if c is None else c for v, c in zip(eqn.outvars, cotangents, strict=True)]
    args = [ad.UndefinedPrimal(v.aval) if o is None else o for v, o in zip(eqn.invars, operands, strict=True)]
    outs = rule(given if eqn.primitive.multiple_results else given[0], *args, **eqn.params)
    found = []
    for var, operand, out in zip(eqn.invars, operands, outs, strict=True):
        if operand is None:
            found.append(ad.instantiate_zeros(ad.Zero(core_cotangent(var.aval)) if out is None else out))
    return found


def evaluate_closed(closed: Any, args: Sequence[Any]) -> list[Any]:
    """The results of a ClosedJaxpr; under a trace, its equations are recorded one by one."""
    return list(jex_core.jaxpr_as_fun(closed)(*args))


def with_unused_dropped(eqn: Any, used: set[Any]) -> Any:
    """`eqn` with its results that are not in `used` marked as dropped."""
    if all(v in used for v in eqn.outvars):
        return eqn
    return eqn.replace(outvars=[v if v in used else DROP_TYPE(v.aval) for v in eqn.outvars])


def is_dropped(var: Any) -> bool:
    """Whether a result of an equation is not used."""
    return type(var) is DROP_TYPE


def primitive_label(eqn: Any) -> str:
    """The name of what an equation applies: the primitive's, or of a primitive object its class's ("custom_root")."""
    prim = hi_primitive(eqn)
    if prim is None:
        return str(eqn.primitive.name)
    name = type(prim).__name__.lstrip("_")
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def typeof(value: Any) -> Any:
    """The abstract value of an array."""
    return jax.typeof(value)


def ffi_layouts(layouts: Any) -> tuple[Any, ...] | None:
    """The `input_layouts`/`output_layouts` arguments behind an ffi_call's: minor-to-major orders turned round."""
    if any(layout is not None and not isinstance(layout, tuple) for layout in layouts):
        return None
    return tuple(None if layout is None else tuple(reversed(layout)) for layout in layouts)


def ffi_attribute(value: Any) -> Any:
    """An attribute as `ffi_call` takes it, from what the equation keeps (arrays and dicts are made hashable there)."""
    return composite_attribute(value)


def composite_attribute(value: Any) -> Any:
    """An attribute as it was given, from the hashable stand-in that an equation keeps for arrays and dicts."""
    for name in ("val", "array"):
        inner = getattr(value, name, None)
        if inner is not None and type(value).__module__.startswith("jax._src"):
            return inner
    if type(value).__name__ == "FrozenDict":
        return dict(value.items())
    return value


def batching_rule(rule: Any) -> Any:
    """The user's function behind the rule of a custom_vmap equation."""
    return getattr(rule, "rule", rule)


def is_flat_call(in_tree: Any, out_tree: Any, count: int) -> bool:
    """Whether a custom_vmap call takes `count` plain positional arguments and gives one result or a tuple of them.

    Its `in_tree` is (closed-over values, arguments).
    """
    leaf = jax.tree_util.tree_structure(0)
    consts, args = in_tree.children()
    flat = not consts.num_leaves and args.num_nodes == count + 1 and args.num_leaves == count
    tuples = jax.tree_util.tree_structure((0,) * out_tree.num_leaves)
    return flat and (out_tree == leaf or (out_tree == tuples and out_tree.num_leaves != 1))


def composite_attributes(attributes: Any) -> list[tuple[str, Any]]:
    """(name, value) of a composite's attributes, which 0.10 keeps flattened as (name, leaves, tree)."""
    found = []
    for name, *value in attributes:
        if len(value) == 2:
            leaves, tree = value
            found.append((name, jax.tree_util.tree_unflatten(tree, [composite_attribute(x) for x in leaves])))
        else:
            found.append((name, composite_attribute(value[0])))
    return found


def is_jax_array(value: Any) -> bool:
    return isinstance(value, jax.Array)


def trace_settings() -> tuple[Any, ...]:
    """The settings of JAX that change what a library function traces to."""
    config = jax.config
    names = ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion",
             "jax_numpy_rank_promotion", "jax_softmax_custom_jvp", "jax_random_seed_offset",
             "jax_threefry_partitionable", "jax_default_prng_impl", "jax_debug_nans")  # fmt: skip
    return tuple(getattr(config, name, None) for name in names)


def jaxpr_name(closed: Any) -> str:
    """The name of the Python function that a jaxpr was traced from, "" where JAX does not know."""
    if closed is None:
        return ""
    jaxpr, _ = open_jaxpr(closed)
    info = getattr(jaxpr, "debug_info", None)
    return getattr(info, "func_name", None) or ""


# ---------------------------------------------------------------- checkify

# The kinds of errors that a written module can make again; `BatchedError` stands in no program.
_CHECK_ERRORS = ("DivisionByZeroError", "NaNError", "OOBError", "FailedCheckError")


def check_key(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """(name of the kind of error, types of its payload) of a key in an error of checkify: `ErrorEffect`, which is private."""
    from jax._src import checkify

    if type(value) is not checkify.ErrorEffect or value.error_type.__name__ not in _CHECK_ERRORS:
        return None
    return value.error_type.__name__, tuple(value.shape_dtypes)


def check_error(treedef: Any) -> tuple[str, tuple[Any, ...] | None, list[Any]] | None:
    """(name, metadata without the traceback or None, children) of the structure of an exception of checkify."""
    from jax._src import checkify

    found = treedef.node_data() if isinstance(treedef, jax.tree_util.PyTreeDef) else None
    if found is None or not (isinstance(found[0], type) and issubclass(found[0], checkify.JaxException)):
        return None
    kind, data = found
    if kind.__name__ not in _CHECK_ERRORS:
        return None
    children = [jax.tree_util.tree_unflatten(child, [0] * child.num_leaves) for child in treedef.children()]
    return kind.__name__, tuple(data[1:]) if isinstance(data, tuple) else None, children


# ---------------------------------------------------------------- provenance


def equation_source(eqn: Any) -> tuple[Any, Any]:
    """(traceback, name stack) of an equation; both are hashable, equal for equal places. (None, ()) without either."""
    info = eqn.source_info
    if info is None:
        return None, ()
    stack = getattr(info, "name_stack", None)
    return info.traceback, stack.stack if stack is not None else ()


def raw_frames(traceback: Any) -> tuple[Sequence[Any], Sequence[int]]:
    """(code objects, instruction offsets in bytes) of jaxlib's traceback, innermost first; empty where there is none."""
    return traceback.raw_frames() if traceback is not None else ((), ())


def scope_names(stack: Any) -> tuple[str, ...]:
    """The entries of a name stack as strings: scopes as they are, transformations as `jvp()`, `transpose()`, `vmap()`.

    Source: `Scope` and `Transform`, jax/_src/source_info_util.py.
    """
    return tuple(f"{e.name}()" if type(e).__name__ == "Transform" else str(getattr(e, "name", e)) for e in stack)


_DISTRIBUTIONS = (
    "norm", "bernoulli", "beta", "betabinom", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma", "gennorm", "geom",
    "gumbel_l", "gumbel_r", "laplace", "logistic", "multinomial", "multivariate_normal", "nbinom", "pareto", "poisson", "t",
    "truncnorm", "uniform", "vonmises", "wrapcauchy",
)  # fmt: skip
# Those that a program does not import it does not call either: none is imported for the sake of looking.
_FUNCTION_MODULES = (
    "jax.numpy", "jax.nn", "jax.random", "jax.lax", "jax.numpy.linalg", "jax.numpy.fft", "jax.nn.initializers",
    "jax.scipy.special", "jax.scipy.linalg", "jax.scipy.signal", "jax.scipy.stats",
    "jax.lax.linalg", "jax.image", "jax.ops", "jax", *[f"jax.scipy.stats.{name}" for name in _DISTRIBUTIONS],
)  # fmt: skip


def _loaded_modules() -> tuple[str, ...]:
    import sys

    return _loaded_of(len(sys.modules))


@functools.lru_cache(1)
def _loaded_of(count: int) -> tuple[str, ...]:
    import sys

    return tuple(path for path in _FUNCTION_MODULES if path in sys.modules)


@functools.cache
def _public_by_name(modules: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """`jax.numpy.mean` -> ("jax.numpy", "mean") for every public function of the modules."""
    import sys

    found: dict[str, tuple[str, str]] = {}
    for path in modules:
        for name, value in sorted(vars(sys.modules[path]).items()):
            if not name.startswith("_") and callable(value):
                found[f"{path}.{name}"] = (path, name)
    return found


def public_functions() -> dict[int, tuple[str, str]]:
    """id of a code object -> (public module, name) of JAX's own functions, below their decorators.

    The code objects live as long as the modules do; the first module that has a function comes first.
    """
    return _public_functions(_loaded_modules())


@functools.cache
def _public_functions(modules: tuple[str, ...]) -> dict[int, tuple[str, str]]:
    import sys

    found: dict[int, tuple[str, str]] = {}
    for path, name in _public_by_name(modules).values():
        function = vars(sys.modules[path])[name]
        while function is not None:
            code = getattr(function, "__code__", None)
            if code is not None and code.co_name == getattr(function, "__name__", None):
                found.setdefault(id(code), (path, name))
            function = getattr(function, "__wrapped__", None) or getattr(function, "fun", None)
    return found


def public_function_named(dotted: str) -> tuple[str, str] | None:
    """("jax.numpy", "add") of `jnp.add` as a user would write it; None for other names."""
    head, _, name = dotted.rpartition(".")
    for short, path in (("jnp", "jax.numpy"), ("lax", "jax.lax"), ("nn", "jax.nn"), ("random", "jax.random")):
        if head == short or head.startswith(short + "."):
            head = path + head[len(short) :]
            break
    return _public_by_name(_loaded_modules()).get(f"{head}.{name}")


def array_operation(code: Any) -> tuple[str, str] | None:
    """("operator", "add") or ("method", "sum") for the functions behind operators and methods of arrays.

    Source: jax/_src/numpy/array_methods.py, where `_operator_add` is `x + y` and `_sum` is `x.sum`.
    """
    file = code.co_filename
    if not file.endswith(("numpy/array_methods.py", "numpy\\array_methods.py")) or "<locals>" in code.co_qualname:
        return None
    name = code.co_name
    if name.startswith("_operator_"):
        word = name.removeprefix("_operator_")
        return "operator", word[1:] if word in _REFLECTED else word
    if name in ("_getitem", "__getitem__"):
        return "operator", "getitem"
    if code.co_qualname.startswith("_IndexUpdateRef."):
        return "at", name
    return ("method", name.lstrip("_")) if name.startswith("_") else None


_REFLECTED = frozenset(
    "radd rsub rmul rtruediv rfloordiv rmod rpow rmatmul rand ror rxor rlshift rrshift rdivmod".split()
)


def literal(value: Any, aval: Any) -> Any:
    """A Literal operand of a jaxpr's equation: `value` is a NumPy scalar of `aval`'s dtype."""
    return LITERAL_TYPE(value, aval)


def zeros_equation(like: Any, pattern: Any, beside: Any) -> Any:
    """The equation of `jnp.zeros` of the type of a variable. pattern: any equation. beside: the one whose place in the source
    it has, or None."""
    from jax._src import source_info_util

    scalar = like.aval.update(shape=())
    return pattern.replace(
        primitive=jax.lax.broadcast_in_dim_p,
        invars=[literal(np.zeros((), like.aval.dtype)[()], scalar)],
        outvars=[fresh_variable(like)],
        params={"shape": like.aval.shape, "broadcast_dimensions": (), "sharding": None},
        source_info=source_info_util.new_source_info() if beside is None else beside.source_info,
    )


def is_key_dtype(dtype: Any) -> bool:
    """Whether `dtype` is that of typed PRNG keys."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def argument_names(closed: Any) -> Sequence[str] | None:
    """The names that JAX keeps of a jaxpr's inputs, as paths (`params['w']`), "" for values that were closed over.

    None where there are none (after a transformation). Source: DebugInfo, jax/_src/core.py.
    """
    jaxpr, _ = open_jaxpr(closed)
    names = getattr(getattr(jaxpr, "debug_info", None), "arg_names", None)
    return [n or "" for n in names] if names is not None and len(names) == len(jaxpr.invars) else None


def rule_argument_names(rule: Any) -> Sequence[str] | None:
    """The same for the inputs of a derivative rule's forward function: those of the function itself, without what it
    closes over and without arguments that are not differentiated. The jaxpr of a `custom_vjp` function has none."""
    names = getattr(getattr(rule, "debug_info", None), "arg_names", None)
    return [n or "" for n in names] if names is not None else None


def result_paths(closed: Any) -> Sequence[str] | None:
    """Where the outputs of a jaxpr stand in what its function returned, as paths (`result[0]['x']`); None if not known."""
    jaxpr, _ = open_jaxpr(closed)
    paths = getattr(getattr(jaxpr, "debug_info", None), "result_paths", None)
    return list(paths) if paths is not None and len(paths) == len(jaxpr.outvars) and all(paths) else None


def function_place(closed: Any) -> tuple[str, int, str] | None:
    """(file, line, name) of the function that a jaxpr was traced from; None where JAX does not know."""

    jaxpr, _ = open_jaxpr(closed)
    info = getattr(jaxpr, "debug_info", None)
    match = _PLACE.match(getattr(info, "func_src_info", None) or "")
    return (match["file"], int(match["line"]), match["name"]) if match else None


def is_body_of_fori_loop(closed: Any) -> bool:
    """Whether a jaxpr was traced from the body of a `fori_loop`, also where JAX made a `scan` of the loop."""
    jaxpr, _ = open_jaxpr(closed)
    return getattr(getattr(jaxpr, "debug_info", None), "traced_for", None) == "fori_loop"


def copy_of_scalar(var: Any, value: Any, like: Any) -> Any:
    """An equation that binds `var`, a jaxpr's constant, to a copy of a literal; None where `value` cannot be one.

    Lowering gives a copy no operation of its own. `like`: an equation whose context and source it has.
    """
    aval = var.aval
    if not is_shaped_array(aval) or aval.shape or aval.weak_type or is_tracer(value) or is_ref(value):
        return None
    if is_key(value) or aval.dtype == FLOAT0:
        return None
    scalar = np.asarray(value)[()]
    closed = jax.make_jaxpr(lambda: jex_core.primitives.copy_p.bind(scalar))()
    (eqn,) = closed.jaxpr.eqns
    if type(eqn.invars[0]) is not LITERAL_TYPE:
        return None
    return eqn.replace(outvars=[var], ctx=like.ctx, source_info=like.source_info)


# What the docstrings begin with that JAX gives to transformed functions (jax/_src/api.py).
_TRANSFORMED = ("Gradient of", "Value and gradient of", "Vectorized version of", "Jacobian of", "Hessian of")


def transformation(function: Any) -> str:
    """ "Gradient of `loss` with respect to positional argument(s) 0" of what `jax.grad` gave; "" of a plain function."""
    code = getattr(function, "__code__", None)
    doc = getattr(function, "__doc__", None)
    name = getattr(function, "__name__", None)
    if code is None or not isinstance(doc, str) or not isinstance(name, str) or not doc.startswith(_TRANSFORMED):
        return ""
    if not _is_jax_module(_module_of(code)):
        return ""
    sentence = " ".join(doc.split()).split(". ")[0].rstrip(".")
    head, _, rest = sentence.partition(" of ")
    inner = re.match(r"[\w<>]+", rest)
    # A later name may say the one transformation that there was: `grad_loss`.
    if inner is None or not re.fullmatch(
        r"(|grad_|value_and_grad_|vmap_|jac\w{3}_|hessian_)" + re.escape(inner.group()), name
    ):
        return ""
    name = inner.group()
    rest, _, numbers = rest[len(name) :].partition(" with respect to positional argument(s) ")
    names = list(inspect.signature(function).parameters) if numbers else []
    places = [int(n) for n in re.findall(r"\d+", numbers)]
    if places and all(p < len(names) for p in places):
        rest = f"{rest} with respect to " + ", ".join(f"`{names[p]}`" for p in places)
    return f"{head} of `{name}`{rest}"


def _module_of(code: Any) -> str:
    """`jax._src.api` for code that stands in JAX's own folder."""

    return "jax" if os.path.abspath(code.co_filename).startswith(_jax_folder()) else ""


def is_library_jaxpr(closed: Any) -> bool:
    """Whether a jaxpr was traced from a function of JAX itself."""

    jaxpr, _ = open_jaxpr(closed)
    return _is_place_in_jax(getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None) or "")


@functools.lru_cache(4096)
def _is_place_in_jax(place: str) -> bool:
    match = _PLACE.match(place)
    return match is not None and match["file"].startswith(_jax_folder())


@functools.cache
def _jax_folder() -> str:
    return os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


def with_inner_jaxprs(eqn: Any, function: Callable[[Any], Any]) -> Any:
    """An equation with `function(jaxpr)` for each jaxpr among its parameters; the very same where it gives them back."""
    params = with_other_jaxprs(eqn.params, function)
    return eqn if params is eqn.params else eqn.replace(params=params)


# Parameter types that can never hold a jaxpr: most parameters, so they are passed over first.
PLAIN_TYPES = frozenset({int, float, bool, str, type(None), np.dtype, np.int64, complex, bytes})


def _is_plain(value: Any) -> bool:
    """Whether a parameter holds no jaxpr at first sight: every pass asks this of every equation."""
    kind = type(value)
    return kind in PLAIN_TYPES or kind is tuple and PLAIN_TYPES.issuperset(map(type, value))


def with_other_jaxprs(params: Mapping[str, Any], change: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Parameters with `change(jaxpr)` for each jaxpr in them, those in containers too; the very same object where that
    changes none."""
    changed: dict[str, Any] | None = None
    if PLAIN_TYPES.issuperset(map(type, params.values())):
        return params
    for key, value in params.items():
        if _is_plain(value):
            continue
        new = _with_other_jaxprs(value, change)
        if new is not value:
            changed = dict(params) if changed is None else changed
            changed[key] = new
    return params if changed is None else changed


def _with_other_jaxprs(value: Any, change: Callable[[Any], Any]) -> Any:
    if is_jaxpr(value):
        return change(value)
    if isinstance(value, (tuple, list)):
        if PLAIN_TYPES.issuperset(map(type, value)):
            return value
        new = [v if type(v) in PLAIN_TYPES else _with_other_jaxprs(v, change) for v in value]
        if all(a is b for a, b in zip(new, value, strict=True)):
            return value
        # A namedtuple (custom_linear_solve's jaxprs) takes its fields one by one.
        return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)
    if type(value) is dict:
        items = {k: _with_other_jaxprs(v, change) for k, v in value.items()}
        if any(items[k] is not value[k] for k in value):
            return items
    return value


def fresh_variable(like: Any, shape: tuple[int, ...] | None = None, typed: Any = None) -> Any:
    """A new variable of a jaxpr, of the type of `like`, or of another shape of the same rank, or of the dtype of `typed`."""
    if type(like) is DROP_TYPE:
        return like
    aval = like.aval if shape is None else like.aval.update(shape=shape)
    if typed is not None:
        aval = aval.update(dtype=typed.aval.dtype, weak_type=typed.aval.weak_type)
    return type(like)(aval)


def is_canonical(dtype: Any) -> bool:
    """Whether JAX keeps arrays of this dtype as they are (without 64-bit mode it narrows some; float0 is none of its own)."""
    return dtype != FLOAT0 and jax.dtypes.canonicalize_dtype(dtype) == dtype


def tracer_variable(value: Any) -> Any:
    """The variable of the jaxpr being traced that a tracer stands for; None for other values. `val` in
    `DynamicJaxprTracer`, jax/_src/interpreters/partial_eval.py: it is how one finds an argument again in the jaxpr."""
    return getattr(value, "val", None) if isinstance(value, jax.core.Tracer) else None


def is_variable(atom: Any) -> bool:
    """Whether an atom is a variable of a jaxpr, and no literal or array."""
    return isinstance(atom, _core.Var)


@dataclasses.dataclass(slots=True)
class MappedCall:
    """A call of a function that `jax.vmap` gave, as it is made: flat arguments, results and axes.

    `function(*args, **kwargs)` for one element, whose arguments `in_tree` rebuilds from leaves. `variable(tracer)` is what
    stands for a tracer in the jaxpr that is being traced (a variable or a literal), also for one of a trace further out. `caller` is a file.
    """

    function: Any
    in_tree: Any
    args: Sequence[Any]
    in_axes: Sequence[Any]
    outs: Sequence[Any]
    out_axes: Sequence[Any]
    source_info: Any
    variable: Callable[[Any], Any]
    caller: str


_fresh_traces = itertools.count()


def fresh_caches() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """What gives a context in which JAX traces all functions again, and forgets nothing of what it had traced before.

    What is traced in one such context, the next ones of the same know.

    Its caches of traces are keyed by what is set around a trace, which the named axes are part of: one that nobody uses
    is in no jaxpr. Source: `trace_context` in jax/_src/config.py.
    """
    from jax._src import core

    axis = f"untrace_{next(_fresh_traces)}"
    return lambda: core.extend_axis_env_nd([(axis, 1)])


def is_mapped(closed: Any) -> bool:
    """Whether a program has equations that `jax.vmap` batched, outside of what is differentiated."""
    seen: set[int] = set()
    stack = [closed]
    while stack:
        jaxpr, _ = open_jaxpr(stack.pop())
        if id(jaxpr) in seen:
            continue
        seen.add(id(jaxpr))
        for eqn in jaxpr.eqns:
            scopes = equation_source(eqn)[1]
            transforms = [s for s in scope_names(scopes) if s in ("vmap()", "jvp()", "transpose()")] if scopes else []
            if transforms[:1] == ["vmap()"]:
                return True
            if not transforms:
                stack.extend(jaxprs_in(eqn))
    return False


def is_differentiated(closed: Any) -> bool:
    """Whether a program has equations that differentiation made."""
    return any(
        not {"jvp()", "transpose()"}.isdisjoint(scope_names(equation_source(eqn)[1] or ()))
        for eqn in equations_in(closed)
    )


@contextlib.contextmanager
def intercepted_vmap(note: Callable[[MappedCall], None]) -> Iterator[None]:
    """Calls `note` after every call of a mapped function that is made by code outside JAX while a jaxpr is traced.

    A jaxpr keeps nothing of `jax.vmap`, and a user's mapped function may be older than this context: so the one place
    where all go through is replaced while it is open. Source: `vmap_f` in jax/_src/api.py. Left out are calls with
    named axes and those inside another transformation.
    """
    from jax._src import core, source_info_util
    from jax._src.interpreters import batching, partial_eval

    flatten_before, batch_before = batching.flatten_fun_for_vmap, batching.batch
    functions: dict[int, tuple[Any, Any, Any]] = {}
    own = _jax_folder()

    def flatten(f: Any, in_tree: Any) -> Any:
        result = flatten_before(f, in_tree)
        functions[id(result[0])] = (result[0], f, in_tree)
        return result

    def batch(fun: Any, axis_data: Any, in_dims: Any, out_dim_dests: Any, **options: Any) -> Any:
        whole = batch_before(fun, axis_data, in_dims, out_dim_dests, **options)
        _, wrapped, in_tree = functions.pop(id(fun), (None, None, None))
        trace = core.trace_ctx.trace
        if (
            wrapped is None
            or not isinstance(trace, partial_eval.DynamicJaxprTrace)
            or axis_data.name is not core.no_axis_name
            or axis_data.spmd_name is not None
            or axis_data.explicit_mesh_axis is not None
        ):
            return whole
        caller = _caller_of_vmap(own, sys._getframe(1))
        if caller is None:
            return whole

        def call_wrapped(*args: Any) -> Any:
            result = whole.call_wrapped(*args)
            info = source_info_util.current()
            axes = out_dim_dests() if callable(out_dim_dests) else out_dim_dests

            def variable(tracer: Any) -> Any:
                staged = isinstance(tracer, partial_eval.DynamicJaxprTracer)
                return trace.to_jaxpr_tracer(tracer, info).val if staged else None

            note(MappedCall(wrapped.f, in_tree, args, in_dims, result[0], axes, info, variable, caller))
            return result

        return types.SimpleNamespace(call_wrapped=call_wrapped)

    batching.flatten_fun_for_vmap, batching.batch = flatten, batch
    try:
        yield
    finally:
        batching.flatten_fun_for_vmap, batching.batch = flatten_before, batch_before


@contextlib.contextmanager
def intercepted_bodies(note: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """Calls `note(jaxpr, args, out)` for every function that is traced to a jaxpr of its own, as the body of a loop is.

    args, out: functions that give `((args), kwargs)` and the result as pytrees of abstract values. A jaxpr keeps its leaves
    only. Source: `trace_to_jaxpr` in jax/_src/interpreters/partial_eval.py, which all of them go through; what it has
    traced before it does not call again, but gives.
    """
    from jax._src.interpreters import partial_eval

    before = partial_eval.trace_to_jaxpr

    def trace_to_jaxpr(function: Any, avals: Any, *args: Any, **kwargs: Any) -> Any:
        result = before(function, avals, *args, **kwargs)
        # Of another JAX this may be another thing: then nothing is known, and nothing is lost.
        with contextlib.suppress(Exception):
            closed, out = result
            note(closed, avals.unflatten, out.unflatten)
        return result

    _copy_cache(before, trace_to_jaxpr)
    partial_eval.trace_to_jaxpr = trace_to_jaxpr
    try:
        yield
    finally:
        partial_eval.trace_to_jaxpr = before


@contextlib.contextmanager
def noted_reuse() -> Iterator[list[Any]]:
    """While the context is open, the jaxprs of functions that JAX had traced before go to the list that it gives.

    What JAX takes from its caches it does not call. Source: there are two that go by the function, `_infer_params` in
    jax/_src/pjit.py and `trace_to_jaxpr` in jax/_src/interpreters/partial_eval.py.
    """
    from jax._src import pjit
    from jax._src.interpreters import partial_eval

    reused: list[Any] = []
    made: dict[int, Any] = {}  # by id: what was traced here
    trace, trace_for_jit, infer = partial_eval.trace_to_jaxpr, pjit._trace_for_jit, pjit._infer_params

    def traced(*args: Any, **kwargs: Any) -> Any:
        misses = trace.cache_info().misses
        result = trace(*args, **kwargs)
        if trace.cache_info().misses > misses:
            made[id(result[0])] = result[0]
        elif id(result[0]) not in made:
            reused.append(result[0])
        return result

    def traced_for_jit(*args: Any, **kwargs: Any) -> Any:
        found = trace_for_jit(*args, **kwargs)
        made[id(found)] = found
        return found

    def inferred(*args: Any, **kwargs: Any) -> Any:
        found, operands = infer(*args, **kwargs)
        if id(found) not in made:
            reused.append(found.params["jaxpr"])
        return found, operands

    _copy_cache(trace, traced)
    partial_eval.trace_to_jaxpr, pjit._trace_for_jit, pjit._infer_params = traced, traced_for_jit, inferred
    try:
        yield reused
    finally:
        partial_eval.trace_to_jaxpr, pjit._trace_for_jit, pjit._infer_params = trace, trace_for_jit, infer


def _copy_cache(cached: Any, wrapper: Any) -> None:
    """A wrapper of a cached function is one as well."""
    for name in ("cache_clear", "cache_info", "evict_weakref"):
        if hasattr(cached, name):
            setattr(wrapper, name, getattr(cached, name))


@contextlib.contextmanager
def intercepted_checkpoints(note: Callable[[Any], None]) -> Iterator[None]:
    """Calls `note(jaxpr)` for every function that `jax.checkpoint` marked, when it is called in what is traced.

    Source: `fun_remat` in jax/_src/ad_checkpoint.py, which binds the primitive before anything differentiates it.
    """
    from jax.extend.core import primitives

    before = primitives.remat_p.bind

    def bind(*args: Any, **params: Any) -> Any:
        if params.get("differentiated") is False and is_jaxpr(params.get("jaxpr")):
            note(params["jaxpr"])
        return before(*args, **params)

    primitives.remat_p.bind = bind
    try:
        yield
    finally:
        del primitives.remat_p.bind  # the class has it


# What JAX can be asked of the place where it runs, by public names.
_QUESTIONS = (
    "default_backend", "device_count", "devices", "get_abstract_mesh", "local_device_count", "local_devices",
    "process_count", "process_index",
)  # fmt: skip


@contextlib.contextmanager
def intercepted_questions(note: Callable[[str], None]) -> Iterator[None]:
    """Calls `note("device_count")` where code outside JAX asks that while the context is open.

    Some of these functions remember their answers, so that what they call says nothing. So every module that has one of
    them under its own name, by `from jax import devices` too, gets another.
    """
    own = _jax_folder()
    plain = {name: getattr(jax, name, None) or getattr(jax.sharding, name) for name in _QUESTIONS}

    def noting(name: str, function: Any) -> Any:
        @functools.wraps(function)
        def asked(*args: Any, **kwargs: Any) -> Any:
            if not sys._getframe(1).f_code.co_filename.startswith(own):
                note(name)
            return function(*args, **kwargs)

        return asked

    others = {name: noting(name, function) for name, function in plain.items()}

    def exchange(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        for place, module in list(sys.modules.items()):
            if isinstance(module, types.ModuleType) and not place.startswith("jax._src."):
                names = object.__getattribute__(module, "__dict__")  # which loads none that waits to be used
                names.update({name: new[name] for name in _QUESTIONS if names.get(name) is old[name]})

    exchange(plain, others)
    try:
        yield
    finally:
        exchange(others, plain)  # in modules too that were imported meanwhile


def body_names(closed: Any) -> tuple[Any, tuple[str, ...], tuple[str, ...] | None] | None:
    """(what function a jaxpr is of, the paths of its inputs, those of its results), None where JAX does not know.

    The paths of the results alone are None where a loop was batched.
    """
    info = open_jaxpr(closed)[0].debug_info
    if info is None or info.arg_names is None or callable(info.result_paths):
        return None
    paths = tuple(info.result_paths) if info.result_paths is not None else None
    return (info.traced_for, info.func_src_info), tuple(info.arg_names), paths


@dataclasses.dataclass(slots=True)
class DerivativeCall:
    """A call that asks JAX for a derivative, as it is made: of `function(*args, **kwargs)`.

    transform: "value_and_grad", "grad", "vjp", "linearize", "linear_transpose", "jvp", "jacfwd", "jacrev" or "hessian".
    argnums: what is differentiated, as it was given; all of `args` where it is None. tangents: of `jvp`, like `args`. caller: the file of the
    code outside JAX that called, or (`by_jax`) that called a function of JAX's, written on top of it, which asks. opens: for
    who is asked to say: whether calls inside are asked about too, though JAX takes this derivative.
    """

    transform: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    argnums: int | tuple[int, ...] | None
    has_aux: bool
    holomorphic: bool
    allow_int: bool
    tangents: tuple[Any, ...]
    caller: str
    by_jax: bool = False
    opens: bool = False


@dataclasses.dataclass(slots=True)
class Differentiated:
    """What stands in for a derivative that JAX would have taken: the function's result (of Jacobians: those), and how it varies.

    pushed: gives, for `residuals` and the tangents of those arguments that have some, the tangents of those results that
    have some, by primitives that can be transposed. tangents: of `jvp`, like `out`.
    """

    out: Any
    aux: Any
    residuals: Sequence[Any] = ()
    pushed: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] = lambda residuals, tangents: ()
    tangents: Any = None


def _as_linear(stand: Differentiated) -> Callable[..., Any]:
    """The linear function that tangents of the arguments are pushed through."""
    structure = jax.tree.structure(stand.out)
    return lambda *args: jax.tree.unflatten(structure, stand.pushed(stand.residuals, jax.tree.leaves(args)))


_STAND_IN = jex_core.Primitive("stand_in")  # for a whole function, while its derivative is taken
_STAND_IN.multiple_results = True


def _linearized_stand_in(is_vjp: bool, varying: Sequence[bool], *given: Any, stand: Differentiated) -> Any:
    return _linearized(stand, [i for i, x in enumerate(given) if is_continuous(x)])


def register_linearization(primitive: Any, rule: Callable[..., tuple[Differentiated, Sequence[int]]]) -> None:
    """Tells JAX how a primitive is linearized: `rule(varying, *operands, **params)` gives what stands for it, and the places
    of the operands whose tangents that is pushed, in their order. varying: which operands have tangents."""
    from jax._src.interpreters import ad

    def linearized(is_vjp: bool, varying: Sequence[bool], *operands: Any, **params: Any) -> Any:
        return _linearized(*rule(varying, *operands, **params))

    ad.primitive_linearizations[primitive] = linearized


def varies(value: Any) -> bool:
    """Whether JAX differentiates with respect to what a value is computed from."""
    from jax._src.interpreters import ad

    return isinstance(value, ad.LinearizeTracer) and type(value.tangent) is not ad.Zero


def _linearized(stand: Differentiated, places: Sequence[int]) -> Any:
    """See `LinearizeTrace.process_primitive` in jax/_src/interpreters/ad.py; in JAX 0.12 there are residuals of another kind."""
    from jax._src.interpreters import ad

    outs = jax.tree.leaves(stand.out)
    moves = [is_continuous(x) for x in outs]
    others = (None,) if JAXPR_TYPES[0] is JAXPR_TYPES[1] else ()

    def linear(residuals: Any, *tangents: Any) -> Any:
        tangents = tangents[len(others) :]
        given = [ad.instantiate_zeros(tangents[p]) for p in places]
        found = iter(stand.pushed(residuals, given))
        return [next(found) if m else ad.Zero(typeof(x).to_tangent_aval()) for x, m in zip(outs, moves, strict=True)]

    return outs, moves, list(stand.residuals), *others, linear


def register_transpose(primitive: Any, rule: Callable[..., Sequence[Any]]) -> None:
    """Tells JAX how a primitive is transposed that is linear in all operands but the first: `rule(first, cotangents,
    **params)` gives a cotangent for each of the others."""
    from jax._src.interpreters import ad

    def transpose(cotangents: Any, *operands: Any, **params: Any) -> Any:
        given = [ad.instantiate_zeros(ct) for ct in cotangents]
        first = [x for x in operands if not ad.is_undefined_primal(x)]
        return [*(None for _ in first), *rule(first, given, **params)]

    ad.primitive_transposes[primitive] = transpose


def register_as_function(primitive: Any, function: Callable[..., Sequence[Any]]) -> None:
    """Tells JAX to map and to differentiate equations of a primitive as `function(*operands, **params)`."""
    from jax._src.interpreters import ad, batching

    def batched(operands: Any, axes: Any, **params: Any) -> Any:
        whole = jax.vmap(lambda *xs: list(function(*xs, **params)), tuple(axes), 0)
        outs = whole(*operands)
        return outs, [0] * len(outs)

    def pushed(primals: Any, tangents: Any, **params: Any) -> Any:
        given = [ad.instantiate_zeros(t) for t in tangents]
        return jax.jvp(lambda *xs: list(function(*xs, **params)), list(primals), given)

    batching.primitive_batchers[primitive] = batched
    ad.primitive_jvps[primitive] = pushed


def is_continuous(value: Any) -> bool:
    """Whether a value, or one of this type, varies continuously."""
    dtype = getattr(value, "dtype", None)
    dtype = jax.typeof(value).dtype if dtype is None else dtype
    return bool(jax.dtypes.issubdtype(dtype, np.inexact))


def no_tangent(value: Any) -> Any:
    """What stands for the tangent of a value, or of one of this type, that has none."""
    return np.zeros(np.shape(value), FLOAT0)


def dropped(like: Sequence[Any]) -> list[Any]:
    """What stands for results of these types that nobody takes."""
    return [DROP_TYPE(v.aval) for v in like]


def new_variables(like: Sequence[Any]) -> list[Any]:
    """Variables of a jaxpr that are in none yet, of the types of others."""
    return [_core.Var(v.aval) for v in like]


@contextlib.contextmanager
def intercepted_derivatives(replace: Callable[[DerivativeCall], Differentiated | None]) -> Iterator[None]:
    """Asks `replace` about every derivative that code outside JAX asks for, while a jaxpr is traced; where it gives
    something, that stands for what JAX would have traced.

    Whatever a user calls ends in one of two functions, also what was made before: `linearize` and `jvp` in
    jax/_src/interpreters/ad.py. What was called stands in the frames above (jax/_src/api.py). Jacobians and transposed
    functions are seen where they are made while the context is open: what makes them is a cell of the function that everybody
    has. Those derivatives are left as they are that JAX's rules and solvers ask for, and those inside another transformation,
    but for a derivative of which `replace` says that it `opens`.
    """
    from jax._src import api, core
    from jax._src.interpreters import ad, partial_eval

    linearize_before, jvp_before = ad.linearize, ad.jvp
    if _STAND_IN not in ad.primitive_linearizations:
        ad.primitive_linearizations[_STAND_IN] = _linearized_stand_in

    def asked(frame: Any) -> tuple[Differentiated | None, bool]:
        call = _derivative_call(frame) if is_seen() else None
        return (None, False) if call is None else (replace(call), call.opens)

    is_open = False

    def is_seen() -> bool:
        trace = core.trace_ctx.trace
        if is_open and isinstance(trace, ad.LinearizeTrace):
            trace = trace.parent_trace
        return isinstance(trace, partial_eval.DynamicJaxprTrace) and not _AS_THEY_ARE.get()

    def linearize(traceable: Any, primals: Any, has_aux: bool = False, *args: Any, **options: Any) -> Any:
        nonlocal is_open
        stand, opens = asked(sys._getframe(1))
        if stand is None:
            before, is_open = is_open, opens
            try:
                return linearize_before(traceable, primals, has_aux, *args, **options)
            finally:
                is_open = before

        def stood_in(*moving: Any) -> Any:
            outs = _STAND_IN.bind(*jax.tree.leaves(moving), stand=stand)
            out = jax.tree.unflatten(jax.tree.structure(stand.out), outs)
            return (out, stand.aux) if has_aux else out

        return linearize_before(stood_in, primals, has_aux, *args, **options)

    def jvp(fun: Any, primals: Any, tangents: Any, has_aux: bool = False, *args: Any, **options: Any) -> Any:
        stand, _ = asked(sys._getframe(1))
        if stand is None:
            return jvp_before(fun, primals, tangents, has_aux, *args, **options)
        aux = (stand.aux,) if has_aux else ()
        return (ad.ft.flatten(stand.out), ad.ft.flatten(stand.tangents), *aux)

    inside = False  # a Jacobian: what it is made of is no call of the user's

    def noting(name: str, make: Any) -> Any:
        def jacobian(
            fun: Any, argnums: Any = 0, has_aux: bool = False, holomorphic: bool = False, **options: Any
        ) -> Any:
            whole = make(fun, argnums, has_aux, holomorphic, **options)

            @functools.wraps(whole)
            def called(*args: Any, **kwargs: Any) -> Any:
                nonlocal inside
                allow_int = bool(options.get("allow_int"))
                number = argnums if isinstance(argnums, int) else tuple(argnums)
                given = name, fun, args, kwargs, number, has_aux, holomorphic, allow_int, ()
                caller = None if inside else _caller_of_derivative(sys._getframe(1))
                if caller is not None and is_seen():
                    stand = replace(DerivativeCall(*given, *caller))
                    if stand is not None:
                        return (stand.out, stand.aux) if has_aux else stand.out
                outside, inside = inside, True
                try:
                    return whole(*args, **kwargs)
                finally:
                    inside = outside

            return called

        return jacobian

    def transposed(fun: Any, *primals: Any, **options: Any) -> Any:
        caller = _caller_of_derivative(sys._getframe(1)) if is_seen() else None
        if caller is not None:
            given = fun, primals, {}, None, False, False, False, ()
            stand = replace(DerivativeCall("linear_transpose", *given, *caller))
            fun = fun if stand is None else _as_linear(stand)
        return makers["linear_transpose"](fun, *primals, **options)

    cells = {name: _made_by(getattr(api, name)) for name in ("jacfwd", "jacrev", "hessian", "linear_transpose")}
    makers = {name: cell.cell_contents for name, cell in cells.items()}
    ad.linearize, ad.jvp = linearize, jvp
    for name, cell in cells.items():
        cell.cell_contents = transposed if name == "linear_transpose" else noting(name, makers[name])
    try:
        yield
    finally:
        ad.linearize, ad.jvp = linearize_before, jvp_before
        for name, cell in cells.items():
            cell.cell_contents = makers[name]


def _made_by(boundary: Any) -> Any:
    """The cell with the function that one of JAX's API calls (`api_boundary` in jax/_src/traceback_util.py)."""
    return boundary.__closure__[boundary.__code__.co_freevars.index("fun")]


@contextlib.contextmanager
def as_called() -> Iterator[None]:
    """Inside, equations say where Python is, and not that they are part of a derivative which JAX takes."""
    from jax._src import source_info_util

    state = source_info_util._source_info_context
    before, stack = state.context, source_info_util.current_name_stack()
    names = scope_names(stack.stack)
    count = next((i for i, name in enumerate(names) if name in ("jvp()", "transpose()")), len(names))
    state.context = type(before)(None, type(stack)(stack.stack[:count]))
    try:
        yield
    finally:
        state.context = before


# Whether nobody is asked about derivatives, for the time being.
_AS_THEY_ARE = contextvars.ContextVar("derivatives_as_they_are", default=False)


@contextlib.contextmanager
def derivatives_as_they_are() -> Iterator[None]:
    """Inside, JAX takes all derivatives itself again."""
    before = _AS_THEY_ARE.set(True)
    try:
        yield
    finally:
        _AS_THEY_ARE.reset(before)


def _derivative_call(frame: Any) -> DerivativeCall | None:
    """What was called, where the frame is one of a derivative of jax/_src/api.py; None where JAX called for its own sake."""
    api = os.path.join(_jax_folder(), "_src", "api.py")
    name = frame.f_code.co_name
    if frame.f_code.co_filename != api or name not in ("vjp", "linearize", "_jvp"):
        return None
    found, transform = frame.f_locals, name.lstrip("_")
    outer = _frame_above(frame)
    if name == "_jvp" and outer is not None and outer.f_code.co_name == "jvp":
        outer = _frame_above(outer)
    args = tuple(found["primals"])
    kwargs: dict[str, Any] = {}
    argnums, holomorphic, allow_int = None, False, False
    if outer is not None and outer.f_code.co_filename == api:
        if outer.f_code.co_name != "value_and_grad_f":
            return None
        found, transform = outer.f_locals, "value_and_grad"
        args, kwargs, argnums = tuple(found["args"]), dict(found["kwargs"]), found["argnums"]
        argnums = argnums if isinstance(argnums, int) else tuple(argnums)
        holomorphic, allow_int = found["holomorphic"], found["allow_int"]
        outer = _frame_above(outer)
        if outer is not None and outer.f_code.co_name in ("grad_f", "grad_f_aux"):
            outer, transform = _frame_above(outer), "grad"
    function, has_aux = found["fun"], bool(found["has_aux"])
    caller = _caller_of_derivative(outer)
    tangents = tuple(found["tangents"]) if transform == "jvp" else ()
    given = function, args, kwargs, argnums, has_aux, holomorphic, allow_int, tangents
    return None if caller is None else DerivativeCall(transform, *given, *caller)


def _frame_above(frame: Any) -> Any:
    """The next frame that is not there for the traceback's sake, nor for ours."""
    frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.endswith(("traceback_util.py", os.path.abspath(__file__))):
        frame = frame.f_back
    return frame


def _caller_of_derivative(frame: Any) -> tuple[str, bool] | None:
    """(the file of the code outside JAX that this frame, or what JAX calls it for, belongs to; whether a function that is
    written on top of JAX asks for it); None where JAX has a purpose of its own."""
    on_top = os.path.join(_jax_folder(), "_src", "scipy", "")
    by_jax = False
    while frame is not None and frame.f_code.co_filename.startswith(_jax_folder()):
        if frame.f_code.co_filename.startswith(_solvers()):
            return None
        by_jax = by_jax or frame.f_code.co_filename.startswith(on_top)
        frame = _frame_above(frame)
    return frame.f_code.co_filename if frame is not None else "", by_jax


@functools.cache
def _solvers() -> tuple[str, ...]:
    """Where JAX differentiates for a purpose of its own: in its rules and solvers."""
    own = os.path.join(_jax_folder(), "_src", "")
    places = (
        "custom_derivatives.py",
        "custom_transpose.py",
        "interpreters/ad.py",
        "lax/control_flow/solves.py",
    )
    return tuple([own + place for place in places]) + (os.path.join(_jax_folder(), "experimental", ""),)


def _caller_of_vmap(folder: str, frame: Any) -> str | None:
    """The file of the code outside JAX's folder that called the `vmap_f` of this frame, or of untrace, which calls one of
    `vmap(vmap(f))` and what it is given to decompile; None where JAX itself did."""
    if frame.f_code.co_name != "vmap_f":
        return None
    depth = 0
    frame = frame.f_back
    passing = os.path.abspath(__file__)  # what is intercepted goes through here
    while frame is not None and frame.f_code.co_filename.startswith((folder, passing)):
        depth += not frame.f_code.co_filename.endswith(("traceback_util.py", passing))
        frame = frame.f_back
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "capture")
    ours = [os.path.join(folder, name) for name in ("vmaps.py", "function.py")]
    file = frame.f_code.co_filename if frame is not None else ""
    return file if file and (depth == 0 or file in ours) else None


def traced_constants_as_inputs(closed: Any) -> tuple[Any, list[Any]]:
    """(a closed jaxpr that takes those of its constants that are tracers as its first inputs, these tracers)."""
    return constants_as_inputs(closed, is_tracer)


def constants_as_inputs(closed: Any, which: Callable[[Any], bool] = lambda value: True) -> tuple[Any, list[Any]]:
    """(a closed jaxpr that takes these of its constants as its first inputs, their values)."""
    jaxpr, consts = open_jaxpr(closed)
    pairs = list(zip(jaxpr.constvars, consts, strict=True))
    moved = [(v, c) for v, c in pairs if which(c)]
    kept = [(v, c) for v, c in pairs if not which(c)]
    names = jaxpr.debug_info.arg_names
    changes: dict[str, Any] = {
        "constvars": [v for v, _ in kept],
        "invars": [*(v for v, _ in moved), *jaxpr.invars],
        "debug_info": jaxpr.debug_info._replace(arg_names=names and ("",) * len(moved) + tuple(names)),
    }
    values = [c for _, c in kept]
    tracers = [c for _, c in moved]
    if JAXPR_TYPES[0] is JAXPR_TYPES[1]:  # 0.12: constants are part of the one class
        return jaxpr.replace(**changes, consts=values), tracers
    return jex_core.ClosedJaxpr(jaxpr.replace(**changes), values), tracers


def has_typed_mesh(aval: Any) -> bool:
    """Whether an abstract value's sharding is on a mesh with manual or explicit axes, which its type then depends on."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return any(t.name in ("Manual", "Explicit") for t in getattr(mesh, "axis_types", None) or ())


def speaks_of_devices(closed: Any) -> bool:
    """Whether types or parameters in a program are of a mesh or of devices: it is another program on others."""
    for jaxpr in bodies_in(closed):
        if any(has_typed_mesh(v.aval) for v in jaxpr.invars):
            return True
        for eqn in jaxpr.eqns:
            if any(has_typed_mesh(v.aval) for v in eqn.outvars):
                return True
            # Of a jitted function that is the mesh around it, and no fact of the program.
            if any(_is_of_devices(value) for key, value in eqn.params.items() if key != "ctx_mesh"):
                return True
    return False


def _is_of_devices(value: Any) -> bool:
    if _is_plain(value):
        return False
    if isinstance(value, jax.sharding.Sharding):
        return not is_trivial_sharding(value)
    if isinstance(value, (tuple, list)):
        return any(map(_is_of_devices, value))
    if isinstance(value, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
        return bool(value.axis_names)
    return isinstance(value, jax.Device)


def jaxprs_in(eqn: Any) -> list[Any]:
    """The jaxprs among the parameters of an equation, those in tuples and lists too."""
    plain = PLAIN_TYPES
    # `_is_plain`, without a call for each parameter.
    stack = [
        value
        for value in eqn.params.values()
        if not (type(value) in plain or type(value) is tuple and plain.issuperset(map(type, value)))
    ]
    found = []
    while stack:
        value = stack.pop()
        if is_jaxpr(value):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            stack.extend(value)
    return found


def equations_in(closed: Any) -> Iterator[Any]:
    """Every equation of a jaxpr and of the jaxprs in it, each of those once."""
    for jaxpr in bodies_in(closed):
        yield from jaxpr.eqns


def bodies_in(closed: Any, goes_into: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """A jaxpr and the jaxprs in it, each once. goes_into: whether those of an equation count; None for all."""
    seen: set[int] = set()
    stack = [closed]
    while stack:
        jaxpr, _ = open_jaxpr(stack.pop())
        if id(jaxpr) in seen:
            continue
        seen.add(id(jaxpr))
        yield jaxpr
        for eqn in jaxpr.eqns:
            if goes_into is None or goes_into(eqn):
                stack.extend(jaxprs_in(eqn))


def constants_in(closed: Any) -> list[Any]:
    """The values of the constants of a jaxpr and of the jaxprs in it, each once, the outer ones first."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    stack = [closed]
    while stack:
        jaxpr, consts = open_jaxpr(stack.pop())
        found.update({id(c): c for c in consts})
        if id(jaxpr) not in seen:
            seen.add(id(jaxpr))
            stack.extend([inner for eqn in reversed(jaxpr.eqns) for inner in reversed(jaxprs_in(eqn))])
    return list(found.values())


def is_trivial_sharding(sharding: Any) -> bool:
    """Whether a sharding is over a mesh without axes: what 0.10 writes where there is no mesh."""
    mesh = getattr(sharding, "mesh", None)
    return mesh is not None and not getattr(mesh, "axis_names", ("?",))


def is_manual_sharding(sharding: Any) -> bool:
    """Whether a sharding names no axis of a mesh of which all axes are manual."""
    mesh, spec = getattr(sharding, "mesh", None), getattr(sharding, "spec", None)
    types = getattr(mesh, "axis_types", None) or ()
    return spec is not None and bool(types) and all(t.name == "Manual" for t in types) and all(p is None for p in spec)


@contextlib.contextmanager
def unfiltered_tracebacks() -> Iterator[None]:
    """Inside, JAX leaves tracebacks as they are: filtering one costs ten times a small trace that fails.

    Source: `api_boundary` in jax/_src/traceback_util.py, which reads the files of the whole stack before it looks at what
    is set.
    """
    from jax._src import config, traceback_util

    before = traceback_util._is_under_reraiser
    traceback_util._is_under_reraiser = lambda error: True
    try:
        with config.traceback_filtering("off"):
            yield
    finally:
        traceback_util._is_under_reraiser = before


@contextlib.contextmanager
def one_traceback() -> Iterator[None]:
    """Inside a function that is being traced, all its equations get one traceback: to take one each costs a fourteenth of a
    trace. What JAX traces to a jaxpr of its own meanwhile, which it may keep, has tracebacks as ever.

    Source: `current` and `reset_name_stack` in jax/_src/source_info_util.py; with that every trace begins.
    """
    from jax._src import source_info_util

    scope, reset = source_info_util._source_info_context, source_info_util.reset_name_stack
    outside = scope.context

    @contextlib.contextmanager
    def reset_all() -> Iterator[None]:
        before = scope.context
        scope.context = source_info_util.SourceInfo(outside.traceback, before.name_stack)
        try:
            with reset():
                yield
        finally:
            scope.context = before

    source_info_util.reset_name_stack = reset_all
    scope.context = outside.replace(traceback=source_info_util.current().traceback)
    try:
        yield
    finally:
        scope.context, source_info_util.reset_name_stack = outside, reset


def traced_quickly(function: Any, avals: Sequence[Any]) -> tuple[Any, list[Any]]:
    """(jaxpr, constants) of `function(*tracers) -> flat list` on shaped arrays.

    What `jax.make_jaxpr` does inside of its call of `jit`, whose handling of signatures, shardings and caches takes five
    times as long as a small trace does.
    """
    from jax._src import linear_util
    from jax._src.interpreters import partial_eval

    wrapped = linear_util.wrap_init(function, debug_info=_info_of_inputs(len(avals)))
    jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(wrapped, avals)
    return jaxpr, list(consts)


@functools.lru_cache(64)
def _info_of_inputs(count: int) -> Any:
    """What JAX says of a function of so many arrays in its messages, which takes as long to find out as many a trace."""
    from jax._src import api_util

    def inputs(*arrays: Any) -> None: ...

    return api_util.debug_info("trace", inputs, (None,) * count, {})


def constants_and_inputs(jaxpr: Any, consts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The variables of the constants and of the inputs of what `traced_quickly` gave: JAX 0.12 has them in one list."""
    inside = len(consts) - len(jaxpr.constvars)
    return [*jaxpr.constvars, *jaxpr.invars[:inside]], list(jaxpr.invars[inside:])


_JITTED = jax.jit(lambda: None)


def name_of_call(function: Any) -> str | None:
    """The name of the one call that a jitted function leaves in every trace; None where it leaves its equations, or is no
    jitted function. Its settings have no public name, and the value that stands for inlining differs between the lines.
    """
    if type(function) is not type(_JITTED):  # `custom_jvp` copies the attributes of the function that it wraps
        return None
    inline = getattr(getattr(function, "_jit_info", None), "inline", None)
    stays = inline is False or getattr(inline, "name", "") == "AUTO"
    return function.__name__ if stays and not jax.config.jax_disable_jit else None


@contextlib.contextmanager
def arrays_without_compiling() -> Iterator[None]:
    """Inside, `jnp.asarray` of NumPy's arrays and `jnp.copy` give what they always do, and have XLA compile nothing for that:
    one of those compilations takes as long as to trace a small program.

    Source: `stage_p` and `copy_p` in jax/_src/lax/lax.py, both of which compute nothing.
    """
    from jax._src.lax import lax as lax_internal

    stage, copy = _core.stage_p.impl, lax_internal.copy_p.impl

    def staged(x: Any) -> Any:
        plain = isinstance(x, np.ndarray) and not getattr(x, "weak_type", False)
        return jax.device_put(np.array(x)) if plain else stage(x)

    def copied(x: Any) -> Any:
        plain = isinstance(x.dtype, np.dtype) and not x.weak_type and not x.committed
        return jax.device_put(np.array(x)) if plain else copy(x)

    _core.stage_p.impl, lax_internal.copy_p.impl = staged, copied
    try:
        yield
    finally:
        _core.stage_p.impl, lax_internal.copy_p.impl = stage, copy


# Printed constants are some four times as long as the constants themselves.
_MOST_PRINTED = 16 << 20  # bytes of a compiled program


_STOPPED: dict[bytes, list[bytes]] = {}


def _stop(module: bytes) -> None:
    found = _STOPPED.get(module[2 : 2 + module[1]])  # its name is the first field of the message
    if found is not None:
        found.append(module)
        raise RuntimeError("its optimised HLO is all that was asked for")


# The thread that compiled lets go of the hook without Python's lock. It must not be the last to hold it, and a count that
# goes wrong by one must not matter.
_HOLDERS = [_stop] * 10_000


def stops_before_code() -> bool:
    """Whether XLA can be stopped: not on a backend that has no such stage, nor where JAX has no `jax.extend.xla`."""
    try:
        import jax.extend.xla  # noqa: F401
    except ImportError:
        return False
    return jax.default_backend() == "cpu"


@contextlib.contextmanager
def stopped_before_code(name: str) -> Iterator[list[bytes]]:
    """Inside, XLA gives up a module of that name once its HLO is optimised, all but scheduled: it comes into the list,
    serialised.

    Machine code takes four fifths of a compilation, and nobody runs it. Where `stops_before_code` says no, it goes on to the
    end: then the list stays empty.
    """
    if not stops_before_code():
        yield []
        return
    from jax.extend import xla

    hook: dict[str, Any] = {"name": name, "stage": xla.PipelineStage.PRE_SCHEDULER, "platforms": "cpu"}
    found = _STOPPED[name.encode()] = []
    xla.register_hlo_module_transformation(_stop, **hook)
    try:
        yield found
    finally:
        xla.clear_hlo_module_transformation(**hook)
        del _STOPPED[name.encode()]


_REPLACING = threading.RLock()


@contextlib.contextmanager
def _replaced(module: Any, **functions: Callable[..., Any]) -> Iterator[None]:
    """Inside, those functions of a module are others for this thread; those that it does not have stay missing."""
    me = threading.get_ident()

    def dispatch(before: Any, function: Any) -> Any:
        return lambda *args, **kwargs: (function if threading.get_ident() == me else before)(*args, **kwargs)

    with _REPLACING:
        before = {name: getattr(module, name) for name in functions if hasattr(module, name)}
        for name, value in before.items():
            setattr(module, name, dispatch(value, functions[name]))
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(module, name, value)


class TooManyEquations(Exception):
    """A trace that grew longer than it may."""


@contextlib.contextmanager
def at_most_equations(most: int) -> Iterator[None]:
    """Inside, tracing more than `most` equations raises TooManyEquations: a loop over a size that JAX unrolls.

    All equations of a trace, of inner jaxprs too, are added to a frame. Source: `JaxprStackFrame.add_eqn` in
    jax/_src/interpreters/partial_eval.py.
    """
    from jax._src.interpreters import partial_eval

    left = most
    before = partial_eval.JaxprStackFrame.add_eqn

    def add_eqn(frame: Any, eqn: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise TooManyEquations
        before(frame, eqn)

    with _replaced(partial_eval.JaxprStackFrame, add_eqn=add_eqn):
        yield


def count_of_equations(closed: Any) -> int:
    """How many equations a jaxpr has, those of inner jaxprs too, shared ones once."""
    return sum(1 for _ in equations_in(closed))


class _Prepared(BaseException):
    """Thrown where JAX would call XLA. Not an Exception: JAX spends long on the tracebacks of those."""


def prepared_compilation(lowered: Any, options: dict[str, Any]) -> Callable[[], list[bytes]]:
    """What is left of `lowered.compile(options)` after JAX has done its own part of it: XLA's, for another thread.

    It gives the optimised HLO, serialised, of which the compiled program has no public name. JAX's part is Python, and takes
    five times as long where another thread wants Python's lock as well. Its cache of compiled programs on disk is left alone:
    the key to that takes most of the time. Source: `backend_compile_and_load` in jax/_src/compiler.py, the last function
    before XLA, and `_get_cache_key`, which gives None where there is no cache.
    """
    from jax._src import compiler

    call_xla = getattr(compiler, "backend_compile_and_load", None)
    if call_xla is None:
        return lambda: _serialised(lowered.compile(options).runtime_executable())

    def prepared(*args: Any, **kwargs: Any) -> Any:
        raise _Prepared(args, kwargs)

    try:
        with _replaced(compiler, backend_compile_and_load=prepared, _get_cache_key=lambda *_, **__: None):
            compiled = lowered.compile(options)
    except _Prepared as found:
        args, kwargs = found.args
        return lambda: _serialised(call_xla(*args, **kwargs))
    return lambda: _serialised(compiled.runtime_executable())


def _serialised(executable: Any) -> list[bytes]:
    return [m.as_serialized_hlo_module_proto() for m in executable.hlo_modules()]


def text_of_modules(serialised: Sequence[bytes]) -> str | None:
    """HLO as text with the values of all constants; None where it would be too long.

    `compiled.as_text()` leaves out the values of constants of more than ten elements. What prints them has no public name.
    """
    from jaxlib import _hlo

    if sum(map(len, serialised)) > _MOST_PRINTED:
        return None
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    options.print_metadata = False
    return "\n\n".join(_hlo.HloModule.from_serialized_hlo_module_proto(m).to_string(options) for m in serialised)


def lowered(closed: Any, args: Sequence[Any], keep_unused: bool, name: str) -> Any:
    """A closed jaxpr lowered as the function of that name on arrays or their types, without being traced once more.

    Source: `Traced` in jax/_src/stages.py, which holds what was traced among the parameters of the call.
    """
    count = len(open_jaxpr(closed)[0].outvars)

    def call(*_: Any) -> list[float]:
        return [0.0] * count

    call.__name__ = name
    traced = jax.jit(call, keep_unused=keep_unused).trace(*args)
    traced._params["jaxpr"] = closed
    large = sum(getattr(c, "nbytes", 0) for c in open_jaxpr(closed)[1]) > _MOST_INTERNED
    with _without_locations(), contextlib.nullcontext() if large else _reused_ir_context():
        return traced.lower()


def _without_locations() -> contextlib.AbstractContextManager[None]:
    """Inside, JAX lowers without saying where operations come from, which nobody asks and XLA carries along.

    Source: `source_info_to_location` in jax/_src/interpreters/mlir.py.
    """
    from jax._src.interpreters import mlir

    return _replaced(mlir, source_info_to_location=lambda *_: mlir.ir.Location.unknown())


# An MLIR context, and how many lowerings it may still serve: what they intern stays in it, their constants too.
_MOST_INTERNED = 1 << 20  # bytes
_IR_CONTEXT: tuple[Any, int] = (None, 0)


@contextlib.contextmanager
def _reused_ir_context() -> Iterator[None]:
    """Inside, JAX 0.10 lowers in the MLIR context of lowerings before: to make one takes as long as a small program takes.

    Source: `make_ir_context` in jax/_src/interpreters/mlir.py, and the same in JAX 0.12, which uses each ten times itself.
    """
    from jax._src.interpreters import mlir

    if hasattr(mlir, "_thread_local_context"):
        yield
        return
    before = mlir.make_ir_context

    def make_ir_context() -> Any:
        global _IR_CONTEXT
        context, left = _IR_CONTEXT
        _IR_CONTEXT = (context, left - 1) if left else (before(), 10)
        return _IR_CONTEXT[0]

    with _replaced(mlir, make_ir_context=make_ir_context):
        yield


def side_by_side(first: Any, second: Any) -> Any:
    """One closed jaxpr of two: the inputs of the first, then those of the second, and their results likewise.

    None where one has an effect, which would be one of both.
    """
    (jaxpr, _), (other, consts) = open_jaxpr(first), open_jaxpr(second)
    if jaxpr.effects or other.effects:
        return None
    # What a rewrite left alone is of the same variables in both.
    renamed: dict[Any, Any] = {}

    def rename(variables: Sequence[Any]) -> list[Any]:
        renamed.update({v: fresh_variable(v) for v in variables})
        return [renamed.get(v, v) for v in variables]

    constvars, invars = rename(other.constvars), rename(other.invars)
    eqns = [eqn.replace(invars=substituted(eqn.invars, renamed), outvars=rename(eqn.outvars)) for eqn in other.eqns]
    results = [*jaxpr.outvars, *substituted(other.outvars, renamed)]
    inputs = [*jaxpr.invars, *invars]
    return rebuilt_jaxpr(first, [*jaxpr.eqns, *eqns], results, constvars, consts, inputs)


def called_side_by_side(first: Any, second: Any) -> Any:
    """The same, each as a call of a function of its own, into which XLA does not look from outside: it is not inlined.

    Source: `CallInliner` in xla/service/call_inliner.cc, which leaves calls with this attribute.
    """
    from jax.experimental.xla_metadata import set_xla_metadata

    halves = [open_jaxpr(first)[0], open_jaxpr(second)[0]]
    if halves[0].effects or halves[1].effects:
        return None

    def call(x: Any) -> list[Any]:
        with set_xla_metadata(inlineable="false"):
            return [jax.jit(lambda x: x)(x)]

    # A call of as many arguments as a program has takes JAX longer than all else here.
    small = trace_library_call(call, [_core.ShapedArray((), np.dtype(np.float32))])
    (eqn,) = open_jaxpr(small)[0].eqns
    invars = [fresh_variable(v) for jaxpr in halves for v in jaxpr.invars]
    count = len(halves[0].invars)
    eqns = []
    for jaxpr, closed, operands in zip(halves, (first, second), (invars[:count], invars[count:]), strict=True):
        outvars = [_core.Var(v.aval) for v in jaxpr.outvars]
        counts = {"in": len(operands), "donated": len(operands), "out": len(outvars)}
        each = {k: v * counts[k.split("_")[0]] for k, v in eqn.params.items() if type(v) is tuple and len(v) == 1}
        params = {**eqn.params, **each, "jaxpr": closed}
        eqns.append(eqn.replace(invars=operands, outvars=outvars, params=params))
    return rebuilt_jaxpr(small, eqns, [v for eqn in eqns for v in eqn.outvars], invars=invars)


def kept_arguments(lowered: Any) -> tuple[int, ...]:
    """The places of those arguments that a lowered function takes: `jit` drops what the program does not read."""
    return tuple(sorted(lowered._lowering.compile_args["kept_var_idx"]))


@contextlib.contextmanager
def quiet_callbacks() -> Iterator[None]:
    """Inside, JAX does not log what a callback raises: where both of two functions refuse a sampled input, that is no news."""
    logger = logging.getLogger("jax._src.callback")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
