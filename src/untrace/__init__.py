"""untrace: any JAX function back as a Python module that is proven to be the same program."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from untrace._version import __version__ as __version__

if TYPE_CHECKING:
    from untrace._api import Decompiled, decompile, from_jaxpr, rule, steps
    from untrace._errors import (
        CaptureError,
        OptionError,
        OutputExistsError,
        ProofError,
        TypeStringError,
        UnsupportedPrimitiveError,
        UntraceError,
    )
    from untrace.prove.report import Proof
    from untrace.prove.verify import verify
    from untrace.refine.functions import FunctionText
    from untrace.tools.doctor.api import doctor
    from untrace.tools.doctor.diagnosis import Diagnosis, Finding
    from untrace.tools.lint.api import lint
    from untrace.tools.lint.findings import LintFinding, LintReport
    from untrace.tools.minimize.minimal import Minimal, minimize
    from untrace.tools.minimize.predicates import compiles_slower_than, crashes, differs, hangs, nonfinite
    from untrace.tools.stages.api import stages
    from untrace.tools.stages.shown import Stages
    from untrace.tools.watch import watch
    from untrace.tools.watched import Watched, load_run
    from untrace.torch.annotate import annotate_torch
    from untrace.torch.api import from_torch
    from untrace.torch.environment import torch_op

__all__ = [
    "CaptureError", "Decompiled", "Diagnosis", "Finding", "FunctionText", "LintFinding", "LintReport", "Minimal", "OptionError",
    "OutputExistsError", "Proof", "ProofError", "Stages", "TypeStringError", "UnsupportedPrimitiveError", "UntraceError",
    "Watched", "annotate_torch", "compiles_slower_than", "crashes", "decompile", "differs", "doctor", "from_jaxpr",
    "from_torch", "hangs", "lint", "load_run", "minimize", "nonfinite", "rule", "stages", "steps", "torch_op", "verify",
    "watch",
]  # fmt: skip

_HOMES = {
    "Proof": "untrace.prove.report",
    "verify": "untrace.prove.verify",
    "FunctionText": "untrace.refine.functions",
    "watch": "untrace.tools.watch",
    **dict.fromkeys(("Minimal", "minimize"), "untrace.tools.minimize.minimal"),
    **dict.fromkeys(
        ("compiles_slower_than", "crashes", "differs", "hangs", "nonfinite"), "untrace.tools.minimize.predicates"
    ),
    **dict.fromkeys(("Watched", "load_run"), "untrace.tools.watched"),
    "doctor": "untrace.tools.doctor.api",
    "lint": "untrace.tools.lint.api",
    **dict.fromkeys(("LintFinding", "LintReport"), "untrace.tools.lint.findings"),
    "stages": "untrace.tools.stages.api",
    "Stages": "untrace.tools.stages.shown",
    **dict.fromkeys(("Diagnosis", "Finding"), "untrace.tools.doctor.diagnosis"),
    # These need the extra untrace[torch] when they are called.
    "annotate_torch": "untrace.torch.annotate",
    "from_torch": "untrace.torch.api",
    "torch_op": "untrace.torch.environment",
    **dict.fromkeys(("Decompiled", "decompile", "from_jaxpr", "rule", "steps"), "untrace._api"),
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used: `untrace --help` need not wait for JAX."""
    if name not in __all__:
        raise AttributeError(f"module 'untrace' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "untrace._errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
