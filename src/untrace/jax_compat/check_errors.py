"""Errors of checkify: in keys, and in the structures of exceptions."""

from __future__ import annotations

from typing import Any

import jax

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
