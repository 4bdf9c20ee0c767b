"""The error values of `jax.experimental.checkify`, which hold objects that have no public names.

A checkified function returns an `Error`: dicts whose keys are kinds of errors, and for each place that can fail the
structure of the exception that it would raise. A written module gets the same classes from an error of its own, so that
`error.get()` and `error.throw()` say the original's sentences; the place that they name is in the written module.
Source: jax/_src/checkify.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from untrace import jax_compat
from untrace.module.interface.stand_ins import OTHER_VALUES
from untrace.python.helpers import helper
from untrace.python.tree import Call, Expr, List, Text, Tuple


@helper("functools", "jax", "jnp")
@functools.cache
def _check_kinds():
    """For each kind of error of checkify, by name: its class, the class of its keys, a place in the source."""
    from jax.experimental import checkify

    def every_kind(x, i):
        checkify.check(i > 0, "")
        return jnp.log(x)[i], i // i

    checked = checkify.checkify(every_kind, errors=checkify.all_checks)
    error, _ = jax.eval_shape(checked, jnp.ones(2), 1)
    places = {}
    for tree in jax.tree.structure(error).node_data()[1].values():
        kind, data = tree.node_data()
        places[kind] = data[0] if isinstance(data, tuple) else data
    keys = [path[1].key for path, _ in jax.tree_util.tree_flatten_with_path(error)[0]]
    return {key.error_type.__name__: (key.error_type, type(key), places[key.error_type]) for key in keys}


@helper(needs=("_check_kinds",))
def _check_key(name, *types):
    """The key under which an error of checkify keeps what belongs to one kind of error."""
    kind, key, _ = _check_kinds()[name]
    return key(kind, types)


@helper("jax", needs=("_check_kinds", "_node"))
def _check_error(name, data, children):
    """The structure of an exception of checkify: `data` is its message or the like."""
    kind, _, place = _check_kinds()[name]
    return jax.tree.structure(_node(kind, place if data is None else (place, *data), children))  # noqa: F821


def source(
    value: Any,
    write: Callable[[Any], Expr],
    write_tree: Callable[[Any], Expr],
    need: Callable[[str], Any],
    modules: set[str],
) -> Expr | None:
    """A key of an error, or the structure of an exception, as source; None for everything else."""
    key = jax_compat.check_key(value)
    if key is not None:
        name, types = key
        need("_check_key")
        modules.add("jax")
        structs = [Call("jax.ShapeDtypeStruct", [write(tuple(t.shape)), write(t.dtype)]) for t in types]
        return Call("_check_key", [write(name), *structs])
    error = jax_compat.check_error(value)
    if error is None:
        return None
    name, data, children = error
    need("_check_error")
    written = Text("None") if data is None else Tuple([write(part) for part in data])
    return Call("_check_error", [write(name), written, List([write_tree(child) for child in children])])


OTHER_VALUES.append(source)
