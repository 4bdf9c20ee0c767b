"""Reads the equations that call back into Python: what a printer needs to write the public call
again.

Sources: `pure_callback` and `io_callback` in jax/_src/callback.py, `debug_callback` and
`debug_print` in jax/_src/debugging.py; the parameters are the same on JAX 0.10 and 0.12.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from untrace import jax_compat

Kind = Literal["pure_callback", "io_callback", "debug_callback", "debug_print"]
CALLBACK_PRIMITIVES: tuple[Kind, ...] = (
    "pure_callback",
    "io_callback",
    "debug_callback",
    "debug_print",
)

# What `np.get_printoptions()` says in a fresh process: only other values need to be written.
_PRINT_DEFAULTS = {
    "edgeitems": 3, "threshold": 1000, "floatmode": "maxprec", "precision": 8, "suppress": False,
    "linewidth": 75, "nanstr": "nan", "infstr": "inf", "sign": "-", "formatter": None,
    "legacy": False, "override_repr": None,
}  # fmt: skip
# A keyword argument of the callback by one of these names would be taken for the option.
_OPTIONS = {
    "debug_callback": {"callback", "ordered", "partitioned"},
    "debug_print": {"fmt", "ordered", "partitioned", "skip_format_check", "_use_logging"},
    "pure_callback": {"callback", "result_shape_dtypes", "sharding", "vmap_method"},
    "io_callback": {"callback", "result_shape_dtypes", "sharding", "ordered"},
}


@dataclasses.dataclass(frozen=True)
class Operand:
    """Stands in `args` and `kwargs` for operand `index` of the equation."""

    index: int


@dataclasses.dataclass(frozen=True)
class CallbackInfo:
    """One callback equation, as the public call that made it.

    function: the user's callable; None for "debug_print", which has `fmt` instead.
    args, kwargs: what the callable is called with: pytrees whose leaves are `Operand`s, each
    operand once, and plain values that are no operands.
    flat_reason: when it is not empty, the pytree has nodes that a written module cannot build; then
    `args` are the operands one by one, and the callable must take them so: `flat_function()`.
    result_avals: types of the results, flat: a tuple of `jax.ShapeDtypeStruct`s makes the same
    equation.
    vmap_method (pure_callback), ordered (all others), partitioned (debug_*), sharding
    (pure_callback and io_callback): as JAX's keyword arguments.
    print_options: NumPy's printing options that differ from its defaults, to be set by
    `with np.printoptions(**print_options):` around the call.
    skip_format_check, logging: options of `jax.debug.print` (`jax.debug.log` for the second).
    option_clash: a name in `kwargs` is one of the call's own options, so that only the two-call
    form (`jax.debug.callback(ordered=...)(f, *args, **kwargs)`) can say it.
    """

    kind: Kind
    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    in_tree: Any
    static_leaves: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    flat_reason: str = ""
    result_avals: tuple[Any, ...] = ()
    vmap_method: str | None = None
    ordered: bool = False
    partitioned: bool = False
    sharding: Any = None
    fmt: str = ""
    print_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    skip_format_check: bool = False
    logging: bool = False
    option_clash: bool = False

    def flat_function(self) -> Callable[..., Any]:
        """The callable as a function of the equation's operands one by one."""
        function = self.function
        if function is None:
            raise ValueError("jax.debug.print has a format, not a function")

        def call(*operands: Any) -> Any:
            args, kwargs = _merged(self.in_tree, operands, self.static_leaves)
            return function(*args, **kwargs)

        return call


def is_callback(eqn: Any) -> bool:
    """Whether an equation calls back into Python."""
    return eqn.primitive.name in CALLBACK_PRIMITIVES


def callback_of(eqn: Any) -> CallbackInfo:
    """What the public call behind a callback equation was. Raises LookupError where JAX does not
    keep it.
    """
    params = eqn.params
    kind = eqn.primitive.name
    if kind == "debug_print":
        return _debug_print(eqn, params)
    if kind not in CALLBACK_PRIMITIVES:
        raise LookupError(f"{kind} is not a callback")
    function, in_tree, static = jax_compat.flat_callback(params["callback"])
    args, kwargs, reason = _arguments(in_tree, len(eqn.invars), static)
    common: dict[str, Any] = {
        "kind": kind,
        "function": function,
        "args": args,
        "kwargs": kwargs,
        "in_tree": in_tree,
        "static_leaves": static,
        "flat_reason": reason,
        "option_clash": bool(_OPTIONS[kind] & set(kwargs)),
    }
    if kind == "debug_callback":
        ordered = jax_compat.is_ordered_debug_effect(params["effect"])
        return CallbackInfo(**common, ordered=ordered, partitioned=params["partitioned"])
    common.update(result_avals=tuple(params["result_avals"]), sharding=params["sharding"])
    if kind == "io_callback":
        return CallbackInfo(**common, ordered=params["ordered"])
    return CallbackInfo(**common, vmap_method=params["vmap_method"])


def _debug_print(eqn: Any, params: Mapping[str, Any]) -> CallbackInfo:
    static = dict(params["static_args"])
    args, kwargs, reason = _arguments(params["in_tree"], len(eqn.invars), static)
    options = dict(params["np_printoptions"])
    missing = object()
    changed = {k: v for k, v in options.items() if _PRINT_DEFAULTS.get(k, missing) != v and not callable(v)}
    return CallbackInfo(
        kind="debug_print",
        function=None,
        args=args,
        kwargs=kwargs,
        in_tree=params["in_tree"],
        static_leaves=static,
        flat_reason=reason,
        ordered=params["ordered"],
        partitioned=params["partitioned"],
        fmt=params["fmt"],
        print_options=changed,
        skip_format_check=not _format_fits(params["fmt"], args, kwargs),
        logging=params["logging_record"] is not None,
        option_clash=bool(_OPTIONS["debug_print"] & set(kwargs)),
    )


def _format_fits(fmt: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `jax.debug.print` would accept the format: it wants every argument to be used."""

    class Checker(string.Formatter):
        def format_field(self, value: Any, format_spec: str) -> str:
            return ""

        def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
            first = field_name.replace("[", ".").partition(".")[0]
            key: int | str = int(first) if first.isdigit() else first
            return self.get_value(key, args, kwargs), key

        def convert_field(self, value: Any, conversion: Any) -> Any:
            return value

        def check_unused_args(self, used_args: Any, args: Any, kwargs: Any) -> None:
            if any(i not in used_args for i in range(len(args))) or any(k not in used_args for k in kwargs):
                raise ValueError("unused")

    try:
        Checker().format(fmt, *args, **kwargs)
    except (ValueError, IndexError, KeyError, AttributeError):
        return False
    return True


def _merged(in_tree: Any, operands: Sequence[Any], static: Mapping[int, Any]) -> tuple[Any, Any]:
    """(args, kwargs) from the operands and the leaves that are none. Source: `merge_callback_args`,
    debugging.py
    """
    import jax

    rest = iter(operands)
    leaves = [static[i] if i in static else next(rest) for i in range(len(operands) + len(static))]
    return jax.tree_util.tree_unflatten(in_tree, leaves)


def _arguments(in_tree: Any, count: int, static: Mapping[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any], str]:
    """(args, kwargs, why they are flat or "")."""
    operands = [Operand(i) for i in range(count)]
    try:
        args, kwargs = _merged(in_tree, operands, static)
    except Exception as error:  # a registered node's own code may dislike our stand-ins
        return tuple(operands), {}, f"its arguments cannot be rebuilt ({type(error).__name__})"
    strange = _strange_node((args, kwargs))
    if strange:
        return tuple(operands), {}, f"it takes a {strange}, which only its library can build"
    return tuple(args), dict(kwargs), ""


def _strange_node(value: Any) -> str:
    """The name of the first class in a pytree that is no plain Python container, "" if there is
    none.
    """
    if value is None or isinstance(value, (Operand, bool, int, float, complex, str, bytes, np.generic)):
        return ""
    if type(value) in (tuple, list):
        return next((name for v in value if (name := _strange_node(v))), "")
    if type(value) is dict:
        return _strange_node([*value.keys(), *value.values()])
    return f"{type(value).__module__}.{type(value).__qualname__}"
