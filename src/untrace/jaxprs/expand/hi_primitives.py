"""The public calls behind JAX 0.12's primitive objects
(`call_hi_primitive[_prim=SearchSorted(...)]`).

A guess is made by the object's class and then proven: the call is traced on the equation's
operands, and must give that one equation again. What each makes: `searchsorted` and `nonzero` in
jax/_src/numpy/hijax.py, `ldexp` and `frexp` in jax/_src/numpy/ufuncs.py, `checkpoint_name` in
jax/_src/ad_checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from untrace import jax_compat


@dataclass(frozen=True)
class Operand:
    """Stands in `kwargs` for operand `index` of the equation."""

    index: int


@dataclass(frozen=True)
class HiPrimitiveCall:
    """`path(*[operands[i] for i in positions], **kwargs)`, inside `jax.vmap` once for each of
    `vmaps`, outermost first.

    path: dotted, as a written module spells it (`jnp.nonzero`). A jitted library function would add
    a `jit` equation, so it is called through `.__wrapped__`, which `functools.wraps` gives every
    jitted function. kwargs: plain values, `Operand`s and tuples of them. vmaps: `in_axes` tuples
    over `positions`; none of the kwargs is mapped. sequence: whether the call returns a tuple of
    all results, or the only one bare.
    """

    path: str
    positions: tuple[int, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    vmaps: tuple[tuple[int | None, ...], ...] = ()
    sequence: bool = False

    def function(self) -> Callable[..., Any]:
        """`f(*operands) -> list of results`: this call as a Python function."""
        import jax

        target = _resolve(self.path)

        def call(*operands: Any) -> list[Any]:
            kwargs = {k: _filled(v, operands) for k, v in self.kwargs.items()}
            function: Callable[..., Any] = lambda *args: target(*args, **kwargs)  # noqa: E731
            for axes in reversed(self.vmaps):
                function = jax.vmap(function, in_axes=axes)
            out = function(*[operands[i] for i in self.positions])
            return list(out) if self.sequence else [out]

        return call


def hi_primitive_call(eqn: Any) -> HiPrimitiveCall | None:
    """The public call that traces to exactly this `call_hi_primitive` equation, or None where there
    is none.

    Proven on the installed JAX by tracing the call on the equation's operand types; remembered by
    the object and types.
    """
    prim = jax_compat.hi_primitive(eqn)
    guess = _GUESSES.get(type(prim).__name__)
    if guess is None:
        return None
    literals = tuple(
        (i, v.val.item() if hasattr(v.val, "item") else v.val)
        for i, v in enumerate(eqn.invars)
        if type(v) is jax_compat.LITERAL_TYPE
    )
    try:
        key = (prim, tuple(str(v.aval) for v in eqn.invars), repr(literals))
        known = _PROVEN.get(key, _UNKNOWN)
    except TypeError:  # unhashable parameters
        key, known = None, _UNKNOWN
    if known is _UNKNOWN:
        try:
            call = guess(prim, eqn)
            known = call if call is not None and _reproduces(call, eqn, prim) else None
        except Exception:  # a wrong guess may raise anything; it is then no call
            known = None
        if key is not None:
            _PROVEN[key] = known
    return known


_UNKNOWN: Any = object()
_PROVEN: dict[Any, HiPrimitiveCall | None] = {}


def _reproduces(call: HiPrimitiveCall, eqn: Any, prim: Any) -> bool:
    """Whether tracing `call` gives the equation and nothing else."""
    function = call.function()
    literal = jax_compat.LITERAL_TYPE
    variables = [i for i, v in enumerate(eqn.invars) if type(v) is not literal]

    def run(*args: Any) -> list[Any]:
        operands: list[Any] = [getattr(v, "val", None) for v in eqn.invars]
        for i, arg in zip(variables, args, strict=True):
            operands[i] = arg
        return function(*operands)

    avals = [eqn.invars[i].aval for i in variables]
    jaxpr, _ = jax_compat.open_jaxpr(jax_compat.trace_on_avals(run, avals, eqn.ctx))
    if len(jaxpr.eqns) != 1:
        return False
    (new,) = jaxpr.eqns
    other = jax_compat.hi_primitive(new)
    if other is None or type(other) is not type(prim) or other != prim:
        return False
    if list(jaxpr.outvars) != list(new.outvars):
        return False
    if [str(v.aval) for v in new.outvars] != [str(v.aval) for v in eqn.outvars]:
        return False
    expected = iter(jaxpr.invars)
    for old, got in zip(eqn.invars, new.invars, strict=True):
        if type(old) is literal:
            if type(got) is not literal or old.val != got.val or str(old.aval) != str(got.aval):
                return False
        elif got is not next(expected):
            return False
    return True


def _search_sorted(prim: Any, eqn: Any) -> HiPrimitiveCall | None:
    """`jnp.searchsorted`, mapped: shared batch axes stand first, axes of the sorted array alone
    after them.
    """
    ndim = len(eqn.invars[0].aval.shape)
    shared, alone = prim.batch_dims, ndim - 1 - prim.batch_dims
    return HiPrimitiveCall(
        "jnp.searchsorted.__wrapped__",
        (0, 1),
        {"side": prim.side, "method": prim.method},
        ((0, 0),) * shared + ((0, None),) * alone,
    )


def _nonzero(prim: Any, eqn: Any) -> HiPrimitiveCall | None:
    """`jnp.nonzero(a, size=...)`, mapped over leading axes; the fill values are operands."""
    ndim = len(eqn.invars[0].aval.shape)
    mapped = ndim - len(prim.axes)
    if tuple(prim.axes) != tuple(range(mapped, ndim)):
        return None
    kwargs: dict[str, Any] = {"size": prim.size}
    if len(eqn.invars) > 1:
        kwargs["fill_value"] = tuple(Operand(i) for i in range(1, len(eqn.invars)))
    return HiPrimitiveCall("jnp.nonzero", (0,), kwargs, ((0,),) * mapped, sequence=True)


def _checkpoint_name(prim: Any, eqn: Any) -> HiPrimitiveCall | None:
    return HiPrimitiveCall("jax.ad_checkpoint.checkpoint_name", (0,), {"name": prim.name})


_GUESSES: dict[str, Callable[[Any, Any], HiPrimitiveCall | None]] = {
    "SearchSorted": _search_sorted,
    "Nonzero": _nonzero,
    "Ldexp": lambda prim, eqn: HiPrimitiveCall("jnp.ldexp.__wrapped__", (0, 1)),
    "Frexp": lambda prim, eqn: HiPrimitiveCall("jnp.frexp.__wrapped__", (0,), sequence=True),
    "CheckpointName": _checkpoint_name,
}


def _filled(value: Any, operands: tuple[Any, ...]) -> Any:
    if isinstance(value, Operand):
        return operands[value.index]
    if isinstance(value, tuple):
        return tuple(_filled(v, operands) for v in value)
    return value


def _resolve(path: str) -> Any:
    import jax
    import jax.numpy as jnp
    from jax import ad_checkpoint  # noqa: F401  (a submodule that `import jax` alone does not bind)

    first, *rest = path.split(".")
    found: Any = {"jax": jax, "jnp": jnp}[first]
    for name in rest:
        found = getattr(found, name)
    return found
