"""`from_torch`: a PyTorch module as a JAX module with one function per module class."""

from __future__ import annotations

import dataclasses
import inspect
import os
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any

from untrace._api import Decompiled, _decompiled, _options
from untrace._pipeline import write_and_prove
from untrace.capture import provenance
from untrace.capture.function import trace
from untrace.lift.simplify import REWRITES
from untrace.print.jax.entry import entry_of
from untrace.torch import capture as captures
from untrace.torch import weights
from untrace.torch.compare import against_torch
from untrace.torch.printing import TorchLayout, statement_of
from untrace.torch.structure import CallOrigin, ModuleOutliner, head_of, is_author


def from_torch(
    module: Any,
    *,
    style: str = "idiomatic",
    prove: bool = True,
    simplify: bool = True,
    comments: str = "some",
    annotations: str = "none",
) -> Callable[..., Decompiled]:
    """A function of the module's inputs (tensors of PyTorch) that gives the module as JAX source.

    `untrace.from_torch(model)(tokens)` -> Decompiled, whose entry is `def model(params, tokens)`, with `buffers` where
    the module has state and `key` where it draws random numbers. The module is taken in the mode it is in
    (`model.eval()`, `model.train()`); new running statistics are returned beside the result. Options as of `decompile`.

    Raises OptionError (the extra `untrace[torch]` is missing), CaptureError, UnsupportedPrimitiveError, ProofError.
    """
    options = _options(style, False, prove, simplify, comments, annotations)

    def from_torch_on(*args: Any, **kwargs: Any) -> Decompiled:
        return _written(module, args, kwargs, options)[0]

    return from_torch_on


def written_from_torch(
    module: Any, args: Any, kwargs: dict[str, Any], prove: bool = True
) -> tuple[Decompiled, list[tuple[int, str, int]]]:
    """The module as JAX, and (line of the text from 0, the author's file, its line) for each statement that has one."""
    return _written(module, args, kwargs, _options("idiomatic", False, prove, True, "none"))


def _written(
    module: Any, args: Any, kwargs: dict[str, Any], options: Any
) -> tuple[Decompiled, list[tuple[int, str, int]]]:
    start = time.perf_counter()
    found = captures.capture(module, args, kwargs)
    with provenance.authors(_files(module)):
        captured = captures._explained(module, lambda: trace(found.function, found.args, {}))
        captured.extra.update(
            title=_title(module), outline=ModuleOutliner(found), layout=TorchLayout, simplifications=_SIMPLIFICATIONS
        )
        timings = {"capture": time.perf_counter() - start}
        entry = entry_of(found.function, captured, found.args, {}, frozenset(), frozenset())
        result = write_and_prove(captured, entry, captured.name, options, timings)
        made = _decompiled(captured, result, timings)
        captured_origins = made._origins
        places = _places(captured_origins)
    start = time.perf_counter()
    before = made.source.count("\n")
    made.source = weights.with_loader(made.source, found.state, found.names, found.changed)
    made._module = None
    if options.prove:
        _ = made.module  # loaded here: inside a trace its constants would be tracers
        agreement = against_torch(made, found, args, kwargs)
        made.proof = dataclasses.replace(made.proof, notes=(*agreement.sentences(), *made.proof.notes))
        made.source = _with_words(made.source, agreement.sentences())
        made._module = None
    # The loader stands behind everything, so what was added above is all that the lines moved.
    end = made.source.index(weights.HEAD)
    moved = made.source[:end].rstrip("\n").count("\n") + 1 - before
    named = {line: f"{os.path.basename(file)}:{number}" for line, file, number in places}
    made._origins = [""] * moved
    for line, origin in enumerate(captured_origins):
        made._origins.append(named.get(line, made._origins[-1] if origin is not None and made._origins else ""))
    timings["torch"] = time.perf_counter() - start
    return made, [(line + moved, file, number) for line, file, number in places]


def _places(origins: Sequence[Any]) -> list[tuple[int, str, int]]:
    known = provenance.Provenance()
    found = []
    before: Any = None
    for line, origin in enumerate(origins):
        if origin is None or origin is before:
            before = origin
            continue
        before = origin
        frames = origin.site.user_frames if type(origin) is CallOrigin else known.site(origin).user_frames
        if frames:
            number = statement_of(frames[-1])[1]
            found.append((line, frames[-1].file, number))
    return found


# The author's own steps are kept: `x.transpose(1, 2) @ y` does not become one product of another layout.
_SIMPLIFICATIONS = frozenset(f.__name__ for fs in REWRITES.values() for f in fs) - {
    "transposed_twice",
    "reshaped_twice",
}


def _with_words(source: str, sentences: Sequence[str]) -> str:
    """The module's docstring with more sentences at its end."""
    at = source.index('"""', 3)
    lines = [line for s in sentences for line in textwrap.wrap(s, 88)]
    return source[:at] + "".join(line + "\n" for line in lines) + source[at:]


def _title(module: Any) -> str:
    where = head_of(type(module)).partition(", ")[2]
    return f"`{type(module).__name__}`{f' ({where})' if where else ''}, a PyTorch module, in JAX"


def _files(module: Any) -> list[str]:
    """The files of the author's: those of the module's classes, a library's models included, PyTorch's layers not."""
    found: dict[str, None] = {}
    for part in module.modules():
        if is_author(part):
            try:
                found[inspect.getsourcefile(type(part)) or ""] = None
            except TypeError:
                pass
    return [f for f in found if f]
