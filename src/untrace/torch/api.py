"""`from_torch`: a PyTorch module as a JAX module with one function per module class."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from untrace._api import Decompiled, _decompiled, _Job, _options, _translated
from untrace._errors import ProofError
from untrace._garbage import no_collections
from untrace.capture.hooks import CaptureHooks
from untrace.driver.attempts import write_and_prove
from untrace.driver.in_c import InC
from untrace.driver.translated import Translated
from untrace.lift.rewrite.simplify import REWRITES
from untrace.module.merge import instances
from untrace.provenance import sites as provenance
from untrace.provenance import whose
from untrace.torch import capture as captures
from untrace.torch import general, weights
from untrace.torch.call_tree import author_frame, in_other_calls, is_author
from untrace.torch.compare import against_torch
from untrace.torch.ops import parts
from untrace.torch.printing import TorchLayout, statement_of
from untrace.torch.structure import CallOrigin, ModuleOutliner, head_of


def from_torch(
    module: Any,
    *,
    also: Sequence[Any] = (),
    style: str = "idiomatic",
    prove: bool = True,
    simplify: bool = True,
    comments: str = "some",
    annotations: str = "none",
    guard: bool = True,
) -> Callable[..., Decompiled]:
    """A function of the module's inputs (tensors of PyTorch) that gives the module as JAX source.

    `untrace.from_torch(model)(tokens)` -> Decompiled, whose entry is `def model(params, tokens)`, with `buffers` where
    the module has state and `key` where it draws random numbers. The module is taken in the mode it is in
    (`model.eval()`, `model.train()`); new running statistics are returned beside the result. Options as of `decompile`.

    also: further inputs of other shapes at which the text has to hold as well: a tensor, a tuple of arguments or a
    dict of keyword arguments each. Without them PyTorch is asked which sizes may differ; the module's head says.

    guard: the written module refuses other dtypes, parameters of other shapes, and sizes that were built in or not proven
        (those of one row are tried), with a TypeError; `False` leaves that out.

    Raises OptionError (the extra `untrace[torch]` is missing), CaptureError, UnsupportedPrimitiveError, ProofError.
    """
    options = _options(style, False, prove, simplify, comments, annotations, guard=guard)

    def from_torch_on(*args: Any, **kwargs: Any) -> Decompiled:
        return _written(module, args, kwargs, options, also)[0]

    return from_torch_on


def written_from_torch(
    module: Any, args: Any, kwargs: dict[str, Any], prove: bool = True
) -> tuple[Decompiled, list[tuple[int, str, int]]]:
    """The module as JAX, and (line of the text from 0, the author's file, its line) for each statement that has one."""
    return _written(module, args, kwargs, _options("idiomatic", False, prove, True, "none", guard=False))


def _written(
    module: Any, args: Any, kwargs: dict[str, Any], options: Any, also: Sequence[Any] = ()
) -> tuple[Decompiled, list[tuple[int, str, int]]]:
    start = time.perf_counter()

    def hooks(found: captures.Capture) -> CaptureHooks:
        outliner = ModuleOutliner(found)
        return CaptureHooks(
            title=_title(module),
            outline=outliner,
            layout=functools.partial(TorchLayout, silent=outliner.silent),
            share=(instances.share, instances.share_alike),
            simplifications=_SIMPLIFICATIONS,
            apart=functools.partial(in_other_calls, found),
        )

    captures.check_module(module)
    with whose.authors(_files(module)), no_collections():
        example = general.example_of(module, args, kwargs, hooks)
        others = [general.example_of(module, *more, hooks) for more in general.also_of(also)]
        found, captured = example.found, example.captured
        timings = {"capture": time.perf_counter() - start}
        many = None
        if options.prove and options.style == "idiomatic":
            many = general.written_for_all_sizes(module, example, others, options, timings, hooks)
        if many is None and others:
            raise ProofError(
                f"no text for {type(module).__name__} was proven at the sizes of the example and of `also` at once: "
                "its program changes with them (a loop over a length, a decision on a size). "
                "Write a module for each, without also=."
            )
        result = many.result if many else write_and_prove(captured, example.entry, captured.name, options, timings)
        made = _decompiled(captured, result, timings)
        captured_origins = made._origins
        places = _places(captured_origins)
    start = time.perf_counter()
    before = made.source.count("\n")
    made.source = weights.with_loader(made.source, found.state, found.names, found.changed)
    made._module = None
    if options.prove:
        _ = made.module  # loaded here: inside a trace its constants would be tracers
        first = against_torch(made, found, args, kwargs)
        sentences = first.sentences()
        for other in others:
            agreement = against_torch(made, other.found, other.args, other.kwargs, gradients=False)
            first = first if first.is_far else agreement
            sentences += [f"the same text at {other.types}: {s}" for s in agreement.sentences()]
        if first.is_far:
            warnings.warn(
                f"the text of {type(module).__name__} is further from PyTorch than rounding goes: {sentences[0]}. "
                "Either the example is at a tie or a pole, or torchax has another meaning for one of the operations.",
                stacklevel=4,
            )
        sentences.append(_about_sizes(many.free if many else ()))
        made.proof = dataclasses.replace(made.proof, notes=(*sentences, *made.proof.notes))
        made.source = _with_words(made.source, sentences)
        made._module = None
    # The loader stands behind everything, so what was added above is all that the lines moved.
    end = made.source.index(weights.HEAD)
    moved = made.source[:end].rstrip("\n").count("\n") + 1 - before
    named = {line: f"{os.path.basename(file)}:{number}" for line, file, number in places}
    made._origins = [""] * moved
    for line, origin in enumerate(captured_origins):
        made._origins.append(named.get(line, made._origins[-1] if origin is not None and made._origins else ""))
    timings["torch"] = time.perf_counter() - start

    def translate(target: str) -> Translated | InC:
        job = _Job(getattr(made.module, made.name), (), (), (), options)
        text = _translated(job, captured.args, {}, target)
        if target == "torch" and isinstance(text, Translated):
            source = weights.with_loader(text.source, found.state, found.names, found.changed, target)
            return dataclasses.replace(text, source=source, _module=None)
        return text

    made._translate = translate
    return made, [(line + moved, file, number) for line, file, number in places]


def _about_sizes(free: Sequence[Sequence[str]]) -> str:
    """Which sizes of the inputs may differ, for people."""
    if not any(free):
        return "all sizes are those of the example"
    several = "; ".join(" = ".join(group) for group in free if group)
    return f"any sizes: {several}; all others are built in"


def _places(origins: Sequence[Any]) -> list[tuple[int, str, int]]:
    known = provenance.Provenance()
    found = []
    before: Any = None
    for line, origin in enumerate(origins):
        if origin is None or origin is before:
            before = origin
            continue
        before = origin
        frame = author_frame(origin.site if type(origin) is CallOrigin else known.site(origin))
        if frame is not None:
            found.append((line, frame.file, statement_of(frame)[1]))
    return found


# The author's own steps are kept: `x.transpose(1, 2) @ y` does not become one product of another layout.
_SIMPLIFICATIONS = (
    frozenset(f.__name__ for fs in REWRITES.values() for f in fs) - {"transposed_twice", "reshaped_twice"}
) | {"equal_constants"}


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
    return [*[f for f in found if f], parts.FILE]
