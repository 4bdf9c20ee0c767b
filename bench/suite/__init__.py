"""Our own programs for what JAX's test corpus never reaches.

`all_cases()` gives them by name. A case builds `(fn, args)`; how it may be transformed stands in
its fields (see `registry.Case`). `python -m suite`, run in `bench/`, lets JAX itself run them all
and counts the primitives that they reach.
"""

from __future__ import annotations

import importlib
import pkgutil

from suite.registry import Case, Program, case, registered

__all__ = ["Case", "Program", "all_cases", "case"]

_NOT_FAMILIES = {"__main__", "derive", "registry", "required"}


def all_cases() -> list[Case]:
    """Every case of the suite, sorted by name. Imports JAX: set its environment before."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        if module.name not in _NOT_FAMILIES:
            importlib.import_module(f"{__name__}.{module.name}")
    return registered()
