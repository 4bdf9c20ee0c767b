"""untrace: any JAX function back as a Python module that is proven to be the same program."""

from untrace._api import Decompiled, decompile, from_jaxpr, rule
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
try:
    from untrace.prove.verify import verify
except ImportError: pass

__version__ = "0.1.0"
__all__ = [
    "CaptureError", "Decompiled", "OptionError", "OutputExistsError", "Proof", "ProofError", "TypeStringError",
    "UnsupportedPrimitiveError", "UntraceError", "decompile", "from_jaxpr", "rule", "verify",
]  # fmt: skip
