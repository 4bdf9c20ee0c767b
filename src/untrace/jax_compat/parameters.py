"""Parameters of primitives, as the arguments of public functions that they came from."""

from __future__ import annotations

import inspect
import types
from typing import Any

import jax


def inline_option(inline: Any) -> Any:
    """The `inline=` argument of `jax.jit` behind a jit equation: False where it is the default.

    0.10: a bool. 0.12: an enum, whose members are written by their argument values (`"auto"`, ...).
    """
    if isinstance(inline, bool):
        return inline
    if inline.name == "AUTO":
        return False
    return True if inline.name == "JAX_EARLY" else inline


def _policy_types() -> tuple[type, ...]:
    """Classes of checkpoint policies: plain functions, and on 0.10 some frozen dataclasses."""

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
