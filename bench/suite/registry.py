"""The registry of the suite's cases: what a case is, and the decorator that adds one.

Nothing here imports JAX, so that a script can read this module before it sets `XLA_FLAGS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def no_keywords() -> Mapping[str, Any]:
    """The keyword arguments of a case that has none."""
    return {}


@dataclasses.dataclass(frozen=True)
class Case:
    """One program of the suite and what may be done with it.

    `build()` gives `(fn, args)`; call it after JAX was configured (see `devices` and `x64`).
    `kwargs()` gives keyword arguments for `fn`.

    primitives: names (`primitive.name`) that stand in the traced program, or, where the case is
        marked for it, in its gradient or its batched form. The self-check proves the claim.
    grad: the derivative by all inexact arguments may be compared (`derive.gradient`).
    vmap: a batch of two of every argument may be compared (`derive.batched`).
    devices: the number of host devices that the program needs.
    x64: 64-bit mode must be on, while building too.
    jax: the oldest JAX that can trace it, as numbers; `before` is the first that no longer can.
    runs: False where JAX itself traces the program but cannot run it on CPU; `notes` says why.
    lowers: False where JAX itself cannot even lower it.
    refused: what JAX traces here has no meaning that it could lower, and nothing that a text could
        say; the case is excluded with JAX's reason, and fails on a JAX that lowers it.
    deterministic: False where two runs of the original may differ.
    prints: its effects (prints, host calls) matter beside its results.
    """

    name: str
    family: str
    primitives: tuple[str, ...]
    build: Callable[[], Program]
    kwargs: Callable[[], Mapping[str, Any]] = no_keywords
    grad: bool = False
    vmap: bool = False
    devices: int = 1
    x64: bool = False
    jax: tuple[int, ...] = (0, 10)
    before: tuple[int, ...] | None = None
    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    runs: bool = True
    lowers: bool = True
    refused: bool = False
    deterministic: bool = True
    prints: bool = False
    notes: str = ""

    def applies(self, version: str) -> bool:
        """Whether this JAX (`jax.__version__`) can trace the case."""
        numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
        return numbers >= self.jax and (self.before is None or numbers < self.before)


_CASES: dict[str, Case] = {}


def case(*primitives: str, **settings: Any) -> Callable[[Callable[[], Program]], Any]:
    """A decorator: registers a function that builds a program, under the function's name.

    `primitives` and `settings` are the fields of `Case`. The family is the module's name. Raises
    `ValueError` at import when two cases have one name.
    """

    def register(build: Callable[[], Program]) -> Callable[[], Program]:
        family = build.__module__.rsplit(".", 1)[-1]
        notes = settings.pop("notes", " ".join((build.__doc__ or "").split()))
        register_case(Case(build.__name__, family, primitives, build, notes=notes, **settings))
        return build

    return register


def register_case(new: Case) -> None:
    """Adds a case. Raises `ValueError` when another one has its name."""
    if new.name in _CASES:
        raise ValueError(f"two cases of the suite are called {new.name!r}")
    _CASES[new.name] = new


def registered() -> list[Case]:
    """The cases that were registered so far, by name."""
    return [_CASES[name] for name in sorted(_CASES)]
