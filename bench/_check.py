"""One case through a decompiler and back; the process that `_worker.Worker` starts.

A case is a function with arguments: from JAX's own primitive corpus (part 1) or from `suite` (part
2). `check` lets JAX trace, lower and run the original, lets the tool write it, imports the *saved
text*, and compares StableHLO, bits, types and pytrees.

This module also runs in the older environments of `peers.py`: Python 3.10, JAX 0.4.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import io
import json
import os
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _common import compare_bits, host_leaves, load_module, stablehlo
from _worker import CORPUS, SUITE, CaseName, Row, Setting, case_name

# --------------------------------------------------------------------------- the cases


@dataclasses.dataclass(frozen=True)
class Subject:
    """A case with its program.

    forms: the derived programs to compare, of `"grad"` and `"vmap"`.
    runs, lowers: False where JAX itself cannot run (or lower) what it traces.
    deterministic: False where two runs of the original may differ; then only types are compared.
    refused: JAX's reason for not running the case at all, empty where it may be tried.
    may_import: modules that the text may name beside jax, numpy and the standard library.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    static: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    forms: tuple[str, ...] = ()
    runs: bool = True
    lowers: bool = True
    deterministic: bool = True
    refused: str = ""
    may_import: tuple[str, ...] = ()


class Corpus:
    """JAX's own primitive corpus, `jax._src.internal_test_util.test_harnesses`."""

    def __init__(self) -> None:
        from jax._src.internal_test_util import test_harnesses

        self.harnesses = {h.fullname: h for h in test_harnesses.all_harnesses}

    def names(self) -> list[CaseName]:
        """All cases by name; the order of the corpus itself varies between processes."""
        return sorted(CaseName(CORPUS, n, h.group_name) for n, h in self.harnesses.items())

    def subject(self, name: str) -> Subject:
        """The case called `name`; its arguments depend on nothing but the name."""
        import jax
        import numpy as np

        harness = self.harnesses[name]
        random = np.random.RandomState(zlib.crc32(name.encode()))
        # As NumPy arrays they would make `a * b` in a written module run NumPy.
        args = tuple(
            jax.device_put(np.asarray(a)) if isinstance(a, (np.ndarray, np.generic)) else a
            for a in harness.dyn_args_maker(random)
        )
        skipped = [
            limitation.description
            for limitation in harness.jax_unimplemented
            if limitation.skip_run and "cpu" in limitation.devices
            if limitation.filter(device="cpu", dtype=harness.dtype)
        ]
        return Subject(harness.dyn_fun, args, refused="; ".join(skipped))


class Suite:
    """The programs of `bench/suite`: what the corpus never reaches."""

    def __init__(self) -> None:
        import jax
        from suite import all_cases

        self.cases = {c.name: c for c in all_cases() if c.applies(jax.__version__)}

    def names(self) -> list[CaseName]:
        """The cases that this JAX can trace, by name; the family is the group."""
        return [
            CaseName(SUITE, name, case.family, Setting(case.devices, case.x64))
            for name, case in sorted(self.cases.items())
        ]

    def subject(self, name: str) -> Subject:
        """The case called `name`, built."""
        case = self.cases[name]
        fn, args = case.build()
        refused = refusal(fn, args) if case.refused else ""
        static = {"static_argnums": case.static_argnums, "static_argnames": case.static_argnames}
        return Subject(
            fn,
            tuple(args),
            dict(case.kwargs()),
            {key: value for key, value in static.items() if value},
            forms=tuple(form for form in ("grad", "vmap") if getattr(case, form)),
            runs=case.runs,
            lowers=case.lowers,
            deterministic=case.deterministic,
            refused=refused,
            may_import=("suite",),
        )


def refusal(fn: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """JAX's reason for not lowering what it traces. Raises `AssertionError` where it has none."""
    import jax

    traced = jax.jit(fn).trace(*args)
    try:
        traced.lower()
    except Exception as error:
        return first_line(error)
    raise AssertionError("this JAX lowers the case: it has to be compared like the others")


# ------------------------------------------------------------------- running a program


@dataclasses.dataclass(frozen=True)
class Run:
    """A program's results: leaves on the host, types and tree, and what it printed."""

    leaves: list[Any]
    types: list[str]
    tree: Any
    printed: str = ""


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program lowered: its normalised StableHLO, and `run()` that compiles and runs it."""

    text: str
    run: Callable[[], Run]


class StageError(Exception):
    """A promise that was broken, or an exception of the tool; the message is the reason."""


def lower(subject: Subject, fn: Callable[..., Any], form: str = "") -> Lowered:
    """`fn` (the original or the written function) on the subject's arguments, jitted.

    `form` "grad" or "vmap" takes that transformation of it.
    """
    import jax

    (args, kwargs), static = with_own_refs((subject.args, subject.kwargs)), dict(subject.static)
    if form:
        from suite import derive

        derived = derive.gradient(fn) if form == "grad" else derive.batched(fn)
        if form == "vmap":
            args, kwargs = derive.batch(args), derive.batch(kwargs)
        fn = derived
    jitted = jax.jit(fn, **static)
    if not (subject.lowers and subject.runs):
        text = stablehlo(jitted.lower(*args, **kwargs)) if subject.lowers else ""
        out = jax.eval_shape(jitted if subject.lowers else fn, *args, **kwargs)
        return Lowered(text, lambda: Run([], _types(out), jax.tree_util.tree_structure(out)))
    lowered = jitted.lower(*args, **kwargs)

    def run() -> Run:
        # A compiled function takes the dynamic arguments only.
        compiled = jitted if static else lowered.compile()
        with printed() as stream:
            out = jax.block_until_ready(compiled(*args, **kwargs))
            jax.effects_barrier()
        leaves = host_leaves((out, ref_contents((args, kwargs)))) if subject.deterministic else []
        return Run(leaves, _types(out), jax.tree_util.tree_structure(out), stream.getvalue())

    return Lowered(stablehlo(lowered), run)


def with_own_refs(tree: Any) -> Any:
    """The arguments with a copy of every mutable reference: a run changes it in place."""
    import jax

    refs = getattr(jax, "Ref", ())
    return jax.tree_util.tree_map(lambda leaf: jax.new_ref(leaf[...]) if isinstance(leaf, refs) else leaf, tree)


def ref_contents(tree: Any) -> list[Any]:
    """What the references among the arguments hold."""
    import jax

    refs = getattr(jax, "Ref", ())
    return [leaf[...] for leaf in jax.tree_util.tree_leaves(tree) if isinstance(leaf, refs)]


@contextlib.contextmanager
def printed() -> Iterator[io.StringIO]:
    """The stream that takes what host callbacks print in the meantime."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        yield stream


def _types(tree: Any) -> list[str]:
    import jax

    def name(leaf: Any) -> str:
        aval = getattr(leaf, "aval", leaf)
        weak = " weak" if getattr(aval, "weak_type", False) else ""
        return f"{aval.dtype}{list(aval.shape)}{weak}"

    return [name(leaf) for leaf in jax.tree_util.tree_leaves(tree)]


def of_leaves(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of pytrees that hands the leaves of its arguments to `function`."""
    import jax

    return lambda *args, **kwargs: function(*jax.tree_util.tree_leaves((args, kwargs)))


def same_tree(expected: Any, got: Any) -> bool:
    """Whether two tree structures are equal, a twin of a private class of JAX being as good.

    `EigResult` and its like stand in `jax._src`, which no written module may name.
    """
    nodes = expected.node_data(), got.node_data()
    if expected == got or None in nodes:
        return expected == got
    (cls, aux), (other, other_aux) = nodes
    twin = (
        cls.__module__.startswith("jax._src.")
        and cls.__name__ == other.__name__
        and getattr(cls, "_fields", ()) == getattr(other, "_fields", None)
    )
    if not twin and not (cls is other and same_data(aux, other_aux)):
        return False
    children = expected.children(), got.children()
    if len(children[0]) != len(children[1]):
        return False
    return all(same_tree(a, b) for a, b in zip(*children))  # noqa: B905 - just counted


def same_data(expected: Any, got: Any) -> bool:
    """Whether the metadata of two nodes is equal, places in the source aside.

    The errors of `checkify` hold tracebacks, which differ between two traces of one program.
    """
    if isinstance(expected, dict) and isinstance(got, dict):
        return expected.keys() == got.keys() and all(same_data(v, got[k]) for k, v in expected.items())
    if isinstance(expected, tuple) and isinstance(got, tuple):
        return len(expected) == len(got) and all(map(same_data, expected, got))
    if hasattr(expected, "node_data") and hasattr(got, "node_data"):
        return same_tree(expected, got)
    places = type(expected).__name__ == "Traceback" and type(got) is type(expected)
    return places or bool(expected == got)


def difference(expected: Run, got: Run, flat: bool = False) -> str:
    """How the results differ, empty where all bits, types, trees and printed texts are the same.

    With `flat` neither trees nor weak types are compared.
    """
    if not flat and not same_tree(expected.tree, got.tree):
        return f"pytree {got.tree} instead of {expected.tree}"
    for a, b in zip(expected.types, got.types):  # noqa: B905 - compare_bits counts
        if flat:
            a, b = a.removesuffix(" weak"), b.removesuffix(" weak")
        if a != b:
            return f"type {b} instead of {a}"
    bits = compare_bits(expected.leaves, got.leaves)
    if not bits.same:
        return f"bits: {bits.detail}"
    if expected.printed != got.printed:
        return f"printed {got.printed!r:.80} instead of {expected.printed!r:.80}"
    return ""


# ----------------------------------------------------------------------- one case


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a tool made of a function: the path of the saved module, the name in it, its claim.

    flat: the written function takes and returns leaves, as those of the peers do; then pytrees,
    weak types and the imports of the text are not looked at.
    callables: Python functions that have no text, by the name of what the module has for each: they
    are given to it, as its reader has to.
    """

    path: Path
    name: str
    proof: str = ""
    flat: bool = False
    callables: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)


Writer = Callable[[Subject, Path], Outcome]


def untrace_writer(style: str) -> Writer:
    """The tool under test: `untrace.decompile` with a style."""

    def write(subject: Subject, directory: Path) -> Outcome:
        import untrace

        decompile = untrace.decompile(subject.fn, style=style, **subject.static)
        decompiled = decompile(*subject.args, **subject.kwargs)
        path = directory / "written.py"
        decompiled.save(path, overwrite=True)
        return Outcome(path, decompiled.name, decompiled.proof.level, False, decompiled.callables)

    return write


@dataclasses.dataclass(frozen=True)
class Demands:
    """What a case must hold beside the same results.

    stablehlo: the same StableHLO too, as the exact style promises.
    run_derived: gradients and batches are run even where their StableHLO is the same.
    """

    stablehlo: bool = True
    run_derived: bool = True


def check(case: CaseName, subject: Subject, write: Writer, directory: Path, demands: Demands = Demands()) -> Row:
    """The row of a case: the original through JAX, the same through the tool, compared."""
    row = Row(case.part, case.name, case.group, forms=subject.forms)
    if subject.refused:
        return Row(case.part, case.name, case.group, "excluded", subject.refused)
    try:
        lowered = {form: lower(subject, subject.fn, form) for form in ("", *subject.forms)}
        runs = {form: lowered[form].run() for form in lowered if not form or demands.run_derived}
    except Exception as error:
        return unusable(case, first_line(error))
    try:
        outcome, function = _written(row, subject, write, directory)
        with stage("run"):
            got = lower(subject, function)
            row.stablehlo = lowered[""].text == got.text
            differs = difference(runs[""], got.run(), outcome.flat)
        if differs:
            raise StageError(differs)
        for form in subject.forms:
            with stage(form):
                derived = lower(subject, function, form)
                if demands.run_derived or derived.text != lowered[form].text:
                    original = runs.get(form) or lowered[form].run()
                    differs = difference(original, derived.run())
            if differs:
                raise StageError(f"{form}: {differs}")
        row.bits = True
        if demands.stablehlo and not row.stablehlo:
            different = _first_different_line(lowered[""].text, got.text)
            raise StageError(f"stablehlo: {different}")
    except StageError as error:
        row.reason = str(error)
    else:
        row.outcome = "passed"
    return row


def unusable(case: CaseName, reason: str) -> Row:
    """The row of a case that JAX itself cannot run: excluded, or a fault of our own suite."""
    if case.part == SUITE:
        return Row(case.part, case.name, case.group, "failed", f"the original itself: {reason}")
    return Row(case.part, case.name, case.group, "excluded", reason)


def _written(row: Row, subject: Subject, write: Writer, directory: Path) -> tuple[Outcome, Callable[..., Any]]:
    """What the tool made, and its function, imported from the saved text."""
    with stage("write"):
        outcome = write(subject, directory)
    row.written, row.proof = True, outcome.proof
    with stage("import"):
        if not outcome.flat:
            check_imports(outcome.path.read_text(encoding="utf-8"), subject.may_import)
        module = load_module(outcome.path, f"written_{zlib.crc32(row.name.encode())}")
        for name, callback in outcome.callables.items():
            getattr(module, name).function = callback
        function = getattr(module, outcome.name)
        del sys.modules[module.__name__]
    row.imported = True
    return outcome, of_leaves(function) if outcome.flat else function


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Turns whatever is raised inside into a StageError that names the stage."""
    try:
        yield
    except Exception as error:
        raise StageError(f"{name}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """`Type: message`, the first line of it, at most 300 characters."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def check_imports(text: str, also: Sequence[str] = ()) -> None:
    """Raises `ImportError` where a text imports more than jax, numpy and the standard library."""
    for node in ast.walk(ast.parse(text)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            root = name.split(".")[0]
            known = root in ("jax", "numpy", *also) or root in sys.stdlib_module_names
            if not known or name.startswith("jax._src"):
                raise ImportError(f"the written module imports {name}")


def _first_different_line(expected: str, got: str) -> str:
    pairs = zip(expected.splitlines(), got.splitlines())  # noqa: B905 - the shorter one decides
    for a, b in pairs:
        if a != b:
            return f"`{b.strip()[:140]}` instead of `{a.strip()[:140]}`"
    return f"{got.count(chr(10))} lines instead of {expected.count(chr(10))}"


# --------------------------------------------------------------------- the worker's side


def serve(options: Mapping[str, Any]) -> None:
    """Answers the requests that stand on standard input, a JSON line for a JSON line.

    `["version", null]` is answered by JAX's version, `["list", part]` by the cases,
    `["check", case]` by its row.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what C code prints must not stand between the answers
    warnings.filterwarnings("ignore")
    import jax

    done = 0
    with tempfile.TemporaryDirectory(prefix="untrace_conformance_") as directory:
        demands = Demands(options["style"] == "exact", options.get("run_derived", True))
        desk = Desk(_writer(options), demands, Path(directory))
        for line in sys.stdin:
            verb, value = json.loads(line)
            try:
                answer = desk.answer(verb, value)
            except Exception as error:
                answer = {"error": first_line(error)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
            done += 1
            if done % 250 == 0:
                jax.clear_caches()  # compiled programs would fill the memory
    os._exit(0)


@dataclasses.dataclass
class Desk:
    """What a worker process keeps from request to request."""

    write: Writer
    demands: Demands
    directory: Path
    sources: dict[int, Corpus | Suite] = dataclasses.field(default_factory=dict)

    def answer(self, verb: str, value: Any) -> Any:
        """The answer to a request, as JSON takes it."""
        if verb == "version":
            import jax

            return jax.__version__
        if verb == "list":
            return [dataclasses.asdict(case) for case in self.source(value).names()]
        case = case_name(value)
        start = time.perf_counter()
        try:
            subject = self.source(case.part).subject(case.name)
        except Exception as error:
            row = unusable(case, f"build: {first_line(error)}")
        else:
            row = check(case, subject, self.write, self.directory, self.demands)
        row.seconds = time.perf_counter() - start
        return dataclasses.asdict(row)

    def source(self, part: int) -> Corpus | Suite:
        """The cases of a part, loaded when they are first asked for."""
        if part not in self.sources:
            self.sources[part] = Corpus() if part == CORPUS else Suite()
        return self.sources[part]


def _writer(options: Mapping[str, Any]) -> Writer:
    """The tool that `options` name: untrace, or what `MODULE:FUNCTION` gives for the options."""
    if options["tool"] == "untrace":
        return untrace_writer(options["style"])
    module, function = options["tool"].split(":")
    return getattr(importlib.import_module(module), function)(options)


if __name__ == "__main__":
    import _check  # by its name, so that `peers` and this process share the classes

    _check.serve(json.loads(sys.argv[1]))
