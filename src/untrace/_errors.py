"""The errors that untrace raises, all below `UntraceError`.

    UntraceError
    ├── CaptureError               the function could not be traced by JAX
    ├── UnsupportedPrimitiveError  a primitive can be written neither by rule, nor by expansion, nor as a `bind`
    ├── OptionError                an option has a value that untrace does not know
    ├── TypeStringError            an argument's type string (`"f32[8,128]"`) could not be read
    ├── OutputExistsError          `save` would have overwritten a file
    └── ProofError                 the written text is not the same program, and nothing could be taken back

A message says what could not be done, where (the user's file and line), why, and what to do now.
"""

from __future__ import annotations

import re


class UntraceError(Exception):
    """Base of every error that untrace raises on purpose."""


class CaptureError(UntraceError):
    """The function could not be traced; JAX's own message stands below ours."""


class UnsupportedPrimitiveError(UntraceError):
    """A primitive, or one of its parameters, cannot be written as Python source."""


class OptionError(UntraceError, ValueError):
    """An option has a value that untrace does not know."""


class TypeStringError(UntraceError, ValueError):
    """An argument's type string (`"f32[8,128]"`) could not be read."""


class OutputExistsError(UntraceError, FileExistsError):
    """A file that exists would have been overwritten."""


class ProofError(UntraceError):
    """The written text is not the same program, and no step could be taken back to make it so."""


def raised_in(message: str) -> str:
    """The exception at the end of a traceback that is in a message, `ValueError: too large`; "" where there is none."""
    return next(iter(re.findall(r"^[A-Za-z_][\w.]*: .*", message, re.MULTILINE)[-1:]), "")
