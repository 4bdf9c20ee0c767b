"""Names: every identifier of a written module passes through here.

Three invariants, kept by `Scope`: a name means one thing in its scope and the scopes inside it; a name is an
identifier and no keyword (`untrace._identifiers`); a name never hides a module, builtin or helper that the written text
needs.
"""

from __future__ import annotations

import re

from untrace._identifiers import RESERVED

_NUMBERED = re.compile(r"_\d+$")  # what `Scope.fresh` gives


class Scope:
    """Names in one function; it never reuses a name that an enclosing scope has taken so far."""

    __slots__ = ("_parent", "_taken", "_around", "_next", "_root", "_inside", "_kept")

    def __init__(self, parent: Scope | None = None):
        self._parent = parent
        self._root: Scope = parent._root if parent is not None else self
        # Names of all inner scopes: a function that is hoisted to the root while an inner scope is still open may not
        # take a name that the inner scope already uses for something else.
        self._inside: set[str] = set()
        self._taken: set[str] = set()
        self._kept: set[str] = set()  # of the root: for functions that are yet to come
        self._around: set[str] = set()  # those of them that belong to a function around this one
        self._next: dict[str, int] = {}

    def taken(self, name: str) -> bool:
        return name in self._inside or self.taken_outside(name)

    def taken_outside(self, name: str) -> bool:
        """Whether `name` means something in this scope or around it, whatever those inside it use."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._taken:
                return True
            scope = scope._parent
        return name in RESERVED or name in self._root._kept

    def fresh(self, base: str) -> str:
        """A name that is free here: `base`, else `base_2`, `base_3`, ... `base` must be an identifier already."""
        count = self._next.get(base, 0)
        taken = self._taken
        if count == 0:
            self._next[base] = 1
            if not self.taken(base):
                taken.add(base)
                self._root._inside.add(base)
                return base
            count = 1
        while True:
            count += 1
            name = f"{base}_{count}"
            if name not in taken and not self.taken(name):
                self._next[base] = count
                taken.add(name)
                self._root._inside.add(name)
                return name

    def keep(self, name: str) -> None:
        """Keeps a name for a function: no variable gets it before (`fresh_function`)."""
        if not self.taken(name):
            self._root._kept.add(name)

    def fresh_function(self, base: str) -> str:
        """A free name for a function: what was kept for it, where nothing has that."""
        self._root._kept.discard(base)
        if self.taken(base):
            return self.fresh(base)
        self._next.setdefault(base, 1)
        return self.claim_parameter(base)

    def give_back(self, name: str) -> None:
        """Makes a name free again that nothing bears after all."""
        self._taken.discard(name)
        self._root._inside.discard(name)
        base, _, number = name.rpartition("_")
        base = base if number.isdigit() else name
        self._next[base] = max(0, self._next.get(base, 1) - 1)

    def outside(self) -> Scope:
        """The scope around this one."""
        return self._parent if self._parent is not None else self

    def names(self) -> frozenset[str]:
        """Every name that this scope or one inside it uses so far."""
        return frozenset(self._taken | self._inside)

    def claim_closed_over(self, name: str) -> None:
        """Takes a name that the function reads from around it: it may not bind that one."""
        self.claim_parameter(name)
        self._around.add(name)

    def may_rebind(self, name: str) -> bool:
        """Whether `name` is a variable of this function itself."""
        return name in self._taken and name not in self._around

    def claim_parameter(self, name: str) -> str:
        """`name` itself, now taken: parameters keep their names, and those hide nothing that the body needs."""
        self._taken.add(name)
        self._root._inside.add(name)
        return name


def base_of(name: str) -> str:
    """A name without the number behind it."""
    return _NUMBERED.sub("", name)
