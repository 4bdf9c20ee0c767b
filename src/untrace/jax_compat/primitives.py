"""Primitives, those of other libraries too: whose they are, what their lowering computes, how they are differentiated."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

from untrace.jax_compat.jax_code import is_jax_module
from untrace.jax_compat.values import FLOAT0, core_cotangent, has_tangent

_JAX_PRIMITIVES: set[Any] = set()
_JAX_MODULES_SEEN: set[str] = set()


def is_jax_primitive(primitive: Any) -> bool:
    """Whether `primitive` comes with JAX itself.

    A Primitive does not say where it was made. JAX's own ones are attributes of its modules (looked up by identity);
    the few that are not are told by the module that defined their implementation.
    """

    if primitive in _JAX_PRIMITIVES:
        return True
    base = jex_core.Primitive
    for name in [n for n in sys.modules if is_jax_module(n) and n not in _JAX_MODULES_SEEN]:
        _JAX_MODULES_SEEN.add(name)
        for value in list(getattr(sys.modules[name], "__dict__", {}).values()):
            if isinstance(value, base):
                _JAX_PRIMITIVES.add(value)
    if primitive in _JAX_PRIMITIVES:
        return True
    if type(primitive).__module__.startswith("jax.") and type(primitive) is not base:
        return True  # a subclass of JAX's own (custom_jvp_call, ...); libraries instantiate the base
    return is_jax_module(home_module(primitive))


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

    home = home_module(primitive).partition(".")[0]
    owners = set()
    # All modules of the process are looked through only where none of its own has it.
    for own in (True, False):
        for name, module in list(sys.modules.items()):
            package = name.partition(".")[0]
            values = getattr(module, "__dict__", None) if (package == home) is own else None
            if values and not is_jax_module(name) and any(v is primitive for v in list(values.values())):
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


def lowering_function(primitive: Any, of_platform: bool = True) -> tuple[Any, bool] | None:
    """(traceable function, whether it returns a list) behind a `mlir.lower_fun` lowering rule, or None.

    The lowering, not `impl`, is what a jitted program runs. `lower_fun` keeps its function in a closure, and there is
    no public way to ask for it. A rule of the platform goes before the general one, as in `mlir.lower_jaxpr_to_fun`;
    of_platform=False: the general one.
    """
    from jax._src.interpreters import mlir

    platform = getattr(mlir, "_platform_specific_lowerings", {})
    entry = platform.get(jax.default_backend(), {}).get(primitive) if platform and of_platform else None
    entry = entry or getattr(mlir, "_lowerings", {}).get(primitive)
    rule = getattr(entry, "rule", entry)
    if rule is None or getattr(rule, "__qualname__", "") != "lower_fun.<locals>.f_lowered":
        return None
    cells = dict(zip(rule.__code__.co_freevars, rule.__closure__ or (), strict=True))
    try:
        return cells["fun"].cell_contents, bool(cells["multiple_results"].cell_contents)
    except (KeyError, ValueError):
        return None


def jvp_rule(primitive: Any) -> Any:
    """The function that `ad.primitive_jvps` has for a primitive, or None."""
    from jax.interpreters import ad

    return ad.primitive_jvps.get(primitive)


def transpose_rule(primitive: Any) -> Any:
    """The function that `ad.primitive_transposes` has for a primitive, or None."""
    from jax.interpreters import ad

    return ad.primitive_transposes.get(primitive)


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


def identity_primitive(
    name: str,
    of_tangent: Callable[[Any], Any],
    of_cotangent: Callable[[Any], Any],
    of_batch: Callable[[Any, int], Any],
) -> Any:
    """A primitive that gives back its operand, with one parameter, `probed`, and stays in a program with whatever JAX does to it.

    of_tangent, of_cotangent, of_batch: what the parameter is on the operand's tangent, on its cotangent, and where `jax.vmap`
    has put in an axis.
    """
    from jax.interpreters import ad, batching, mlir

    identity = jex_core.Primitive(name)
    identity.def_impl(lambda value, *, probed: value)
    identity.def_abstract_eval(lambda aval, *, probed: aval)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, probed: Any) -> tuple[Any, Any]:
        (primal,), (tangent,) = primals, tangents
        out = identity.bind(primal, probed=probed)
        if type(tangent) is ad.Zero or getattr(tangent, "dtype", None) == FLOAT0:
            return out, tangent
        return out, identity.bind(tangent, probed=of_tangent(probed))

    def transpose(cotangent: Any, operand: Any, *, probed: Any) -> list[Any]:
        return [cotangent if type(cotangent) is ad.Zero else identity.bind(cotangent, probed=of_cotangent(probed))]

    def batch(args: Sequence[Any], dims: Sequence[int], *, probed: Any) -> tuple[Any, int]:
        return identity.bind(args[0], probed=of_batch(probed, dims[0])), dims[0]

    ad.primitive_jvps[identity] = jvp
    ad.primitive_transposes[identity] = transpose
    batching.primitive_batchers[identity] = batch
    mlir.register_lowering(identity, lambda ctx, value, *, probed: [value])
    return identity
