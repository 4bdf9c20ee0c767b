"""What a capture brings along that knows more of a program than a trace of JAX's tells (`torch` does)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import JaxprEqn

from untrace.ir.nodes import Program
from untrace.ir.types import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureHooks:
    """Passes and words of a capture of its own, in the place of those that are usual."""

    title: str = ""
    """What the program is, for the docstring of the module; "" for what JAX says of the function."""

    outline: Callable[[Program, frozenset[JaxprEqn]], Program] | None = None
    """The pass that makes functions of the author's calls, which brings the author's words for sizes as well."""

    layout: Callable[..., Any] | None = None
    """What puts blank lines and comments between the statements of a module (`module.comments.Layout`)."""

    share: Sequence[Callable[[Any, Any], bool]] = ()
    """What makes one of functions that differ, and says whether it did: the boldest first, the next where its text is not
    proven, JAX's own where none is left."""

    simplifications: frozenset[str] | None = None
    """Those that may be made, where the author's steps are kept; None for all."""

    apart: Callable[[Origin, Origin], bool] | None = None
    """Whether two equations are of different functions of the author's, so that neither is made of the other."""


NO_HOOKS = CaptureHooks()
