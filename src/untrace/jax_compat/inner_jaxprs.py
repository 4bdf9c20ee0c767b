"""Jaxprs among the parameters of equations: found, walked and replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from untrace._identity import IdentityMap
from untrace.jax_compat.jaxprs import is_jaxpr, open_jaxpr


def with_inner_jaxprs(eqn: Any, function: Callable[[Any], Any]) -> Any:
    """An equation with `function(jaxpr)` for each jaxpr among its parameters; the very same where it gives them back."""
    params = with_other_jaxprs(eqn.params, function)
    return eqn if params is eqn.params else eqn.replace(params=params)


# Parameter types that can never hold a jaxpr: most parameters, so they are passed over first.
PLAIN_TYPES = frozenset({int, float, bool, str, type(None), np.dtype, np.int64, complex, bytes})


def is_plain(value: Any) -> bool:
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
        if is_plain(value):
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


def jaxprs_in(eqn: Any) -> list[Any]:
    """The jaxprs among the parameters of an equation, those in tuples and lists too."""
    plain = PLAIN_TYPES
    # `is_plain`, without a call for each parameter.
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


class JaxprRewriter:
    """Makes others of jaxprs that may share parts: of each, by identity, one. `rewritten` says what."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def jaxpr(self, closed: Any) -> Any:
        """What was made of a jaxpr, which may be the jaxpr itself."""
        known = self._made.get(closed)
        if known is None:
            known = self._made[closed] = self.rewritten(closed)
        return known

    def rewritten(self, closed: Any) -> Any:
        raise NotImplementedError(type(self).__name__)


def equations_in(closed: Any) -> Iterator[Any]:
    """Every equation of a jaxpr and of the jaxprs in it, each of those once."""
    for jaxpr in bodies_in(closed):
        yield from jaxpr.eqns


def bodies_in(closed: Any, goes_into: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """A jaxpr and the jaxprs in it, each once. goes_into: whether those of an equation count; None for all."""
    seen: set[Any] = set()
    stack = [closed]
    while stack:
        jaxpr, _ = open_jaxpr(stack.pop())
        if jaxpr in seen:
            continue
        seen.add(jaxpr)
        yield jaxpr
        for eqn in jaxpr.eqns:
            if goes_into is None or goes_into(eqn):
                stack.extend(jaxprs_in(eqn))


def constants_in(closed: Any) -> list[Any]:
    """The values of the constants of a jaxpr and of the jaxprs in it, each once, the outer ones first."""
    found: IdentityMap[Any, None] = IdentityMap()
    seen: set[Any] = set()
    stack = [closed]
    while stack:
        jaxpr, consts = open_jaxpr(stack.pop())
        found.update(IdentityMap((c, None) for c in consts))
        if jaxpr not in seen:
            seen.add(jaxpr)
            stack.extend([inner for eqn in reversed(jaxpr.eqns) for inner in reversed(jaxprs_in(eqn))])
    return list(found)


def count_of_equations(closed: Any) -> int:
    """How many equations a jaxpr has, those of inner jaxprs too, shared ones once."""
    return sum(1 for _ in equations_in(closed))
