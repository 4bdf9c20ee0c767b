"""The rule registry: one small function per primitive and target.

A rule gets the writer, the operands as expressions, and *every* parameter of the primitive by keyword, and returns an
expression tree. So its signature documents the parameters, and an unknown parameter of a new JAX is a TypeError, which
makes the writer fall back on the general form; it is never a silent loss. A rule that cannot express a parameter
returns DECLINE.

    @rule("integer_pow")
    def integer_pow(w, x, *, y):
        return w.lax("integer_pow", x, y)

What a rule returns is the primitive's one result; of a primitive with several, an expression that unpacks into them,
or `Whole(expression)` where the call gives its only result bare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from untrace.python.tree import Expr

Rule = Callable[..., Any]


class _Decline:
    def __repr__(self) -> str:
        return "DECLINE"


DECLINE: Any = _Decline()
# What a rule gives that has written its statements, and named the results, by itself.
WRITTEN: Any = object()


class Whole:
    """The call's value is the single result itself, though the primitive has a list of results."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr):
        self.expr = expr


class Groups:
    """The call's value is a tuple of groups of results, as of `lax.scan`: `carry, ys = ...`.

    `sizes`: results per group; a group of one is bare, an empty group is dropped. A single group is the value itself.
    `bases`: for each result, the base of its name where it has no hint. `skip`: how many results the call does not
    give at all, those before all others (the counter of a `fori_loop`): nothing may need them. `bound`: what groups, by
    their number, are bound to, where that is known already.
    """

    __slots__ = ("expr", "sizes", "bases", "skip", "bound")

    def __init__(
        self,
        expr: Expr,
        sizes: tuple[int, ...],
        bases: Sequence[str] = (),
        skip: int = 0,
        bound: Mapping[int, Expr] | None = None,
    ):
        self.expr = expr
        self.sizes = sizes
        self.bases = bases
        self.skip = skip
        self.bound = bound or {}


class RuleTable:
    """The rules of one target. A second, different rule for a key raises, unless the first one is the user's to replace.

    below: the table of a target that this one is on top of, whose rules it has where it has none of its own.
    """

    def __init__(self, target: str, below: RuleTable | None = None):
        self.target = target
        self._below = below
        self._rules: dict[str, Rule] = {}
        self._users: dict[str, Rule] = {}

    def rule(self, *names: str) -> Callable[[Rule], Rule]:
        """Registers a rule of untrace itself for the primitives of these names."""

        def register(function: Rule) -> Rule:
            for name in names:
                if name in self._rules:
                    raise ValueError(f"a second {self.target} rule for {name!r}: {function.__qualname__}")
                self._rules[name] = function
            return function

        return register

    def user_rule(self, *names: str) -> Callable[[Rule], Rule]:
        """Registers a user's rule: it goes before untrace's own, and a later one replaces an earlier one."""

        def register(function: Rule) -> Rule:
            for name in names:
                self._users[name] = function
            return function

        return register

    def find(self, name: str) -> Rule | None:
        own = self._users.get(name) or self._rules.get(name)
        return own if own is not None or self._below is None else self._below.find(name)

    def user_names(self) -> list[str]:
        """Primitive names that have a user's rule, sorted."""
        return sorted(self._users)

    def names(self) -> list[str]:
        """Primitive names that have a rule of untrace's own, sorted."""
        return sorted(self._rules)
