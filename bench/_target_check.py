"""The side of `targets` that has JAX: writes programs for a target, and compares what the texts give."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.extend
import numpy as np
from _check import Corpus, Subject, Suite, first_line, with_own_refs
from _common import Record, build_case, compare_bits, host_leaves, ulp_distance
from _worker import CORPUS
from readability import author_tokens, count_tokens, equations_of

import untrace
from untrace.jax_compat import equations_in
from untrace.prove.execute import leaves_an_order_open
from untrace.prove.sample import distinct

CLOSE = 4  # units in the last place
CALLS = 5  # of which the time is the median


@dataclasses.dataclass(frozen=True)
class Made:
    """A text for a target, None where there is none, and what is said of it."""

    text: Any
    row: dict[str, Any]


def written(
    fn: Callable[..., Any], args: Any, kwargs: Any, target: str, static_argnums: Any, static_argnames: Any
) -> Made:
    """What comes of writing a program for a target."""
    try:
        write = untrace.decompile(fn, target=target, static_argnums=static_argnums, static_argnames=static_argnames)
        text = write(*args, **kwargs)
    except untrace.UnsupportedPrimitiveError as error:
        missing = re.findall(r"`([\w-]+)`", str(error))
        return Made(None, {"level": "refused", "detail": str(error), "missing": missing})
    except (untrace.ProofError, untrace.CaptureError) as error:
        return Made(None, {"level": "failed", "detail": f"{type(error).__name__}: {error}"})
    if target == "c":
        from untrace.targets.c.compiled import STRICT, CompilerError, build

        try:
            build(text.program, (*STRICT, "-O1"))
        except CompilerError as error:
            return Made(None, {"level": "failed", "detail": f"warnings: {error}", "source": text.source})
    return Made(text, {"level": text.proof.level, "detail": str(text.proof), "source": text.source})


def in_c(made: Made, args: Any, kwargs: Any, options: dict[str, Any]) -> dict[str, Any]:
    """What the checks of a text in C say, where they are asked for; see `_c_checks.checked`."""
    if not options.get("cc") or made.text is None or options["target"] != "c":
        return {}
    from _c_checks import checked

    try:
        return {"c": checked(made.text, args, kwargs, options["cc"], options["sanitize"])}
    except Exception as error:  # a fault of the checks, or no time for them
        return {"c": {"failed": first_line(error)}}


# ------------------------------------------------------------------ a program and its gradient


def measure_program(options: dict[str, Any], record: Record) -> None:
    """Records a program of a zoo, and its gradient where JAX has one."""
    from suite import derive

    fn, args = build_case(options["path"])
    source = Path(options["path"]).read_text(encoding="utf-8")
    facts = equations_of(jax.make_jaxpr(fn)(*args), str(Path(options["path"]).resolve())) if options["own"] else None

    def row(function: Callable[..., Any]) -> dict[str, Any]:
        made = written(function, args, {}, options["target"], (), ())
        found = dict(made.row)
        if made.text is not None:
            found["tokens"] = tokens_of(made.text.source)
            if facts is not None:
                python = "" if options["target"] == "c" else made.text.source
                found["author"] = author_tokens(source, facts["functions"], facts["inside"], python)
            jitted = jax.jit(function)
            found["text_seconds"] = seconds(lambda: made.text(*args))
            found["jitted_seconds"] = seconds(lambda: jax.block_until_ready(jitted(*args)))
            found |= in_c(made, args, {}, options)
        return found

    record.put(stage="forward", forward=row(fn))
    gradient = derive.gradient(fn)
    try:
        found = jax.make_jaxpr(gradient)(*args)
        assert found.jaxpr.outvars, "no inexact argument"
        jax.block_until_ready(jax.jit(gradient)(*args))
    except Exception as error:  # the program has none
        record.put(no_gradient=first_line(error))
        return
    record.put(stage="gradient", gradient=row(gradient))


def seconds(call: Callable[[], Any]) -> float:
    """How long a call takes, after one that pays for what is made once."""
    call()
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def tokens_of(text: str) -> int:
    """Tokens of a text without the helpers at its end, which are the same in each; of one in C with those that it has."""
    import ast

    from untrace.python import helpers

    try:
        tree = ast.parse(text)
    except SyntaxError:
        return len(_OF_C.findall(_SILENT_IN_C.sub(" ", text)))
    known = set(helpers.names_at_end())
    lines = text.splitlines(keepends=True)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in known:
            first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
            lines[first - 1 : node.end_lineno] = ["\n"] * ((node.end_lineno or first) - first + 1)
    return count_tokens("".join(lines))


_SILENT_IN_C = re.compile(r"/\*.*?\*/|^#include[^\n]*$", re.DOTALL | re.MULTILINE)
_OF_C = re.compile(r"[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*|->|\+\+|--|<<=?|>>=?|&&|\|\||[-+*/%&|^<>=!]=|\S")


# ------------------------------------------------------------------ cases of the corpus


class _TooLong(BaseException):
    """A case has had its time; no `except Exception` may take this for its own."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises _TooLong in what takes longer."""

    def stop(number: int, frame: Any) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measure_cases(options: dict[str, Any], record: Record) -> None:
    """Records a row for each case, one after the other."""
    rows: list[dict[str, Any]] = []
    sources: dict[int, Corpus | Suite] = {}
    for part, group, name in options["cases"]:
        record.put(stage=name)
        start = time.perf_counter()
        try:
            with limited(options["seconds"]):
                if part not in sources:
                    sources[part] = Corpus() if part == CORPUS else Suite()
                found = of_case(sources[part], name, options)
        except _TooLong:
            found = {"level": "failed", "detail": f"time limit of {options['seconds']:.0f} s"}
        except Exception as error:  # a fault of ours, and of this case alone
            found = {"level": "failed", "detail": f"a fault: {first_line(error)}"}
        rows.append({"part": part, "group": group, "name": name, **found, "seconds": time.perf_counter() - start})
        record.put(rows=rows)
        jax.clear_caches()


def of_case(source: Corpus | Suite, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The row of a case."""
    try:
        subject = source.subject(name)
        if subject.refused or not subject.runs or not subject.lowers or not subject.deterministic:
            return {"level": "excluded", "detail": subject.refused or "it has no results that can be compared"}
        subject = without_ties(subject)
        args, kwargs = with_own_refs((subject.args, subject.kwargs))
        expected = host_leaves(jax.block_until_ready(jax.jit(subject.fn, **subject.static)(*args, **kwargs)))
    except Exception as error:  # JAX itself cannot run it
        return {"level": "excluded", "detail": first_line(error)}
    nums, names = subject.static.get("static_argnums", ()), subject.static.get("static_argnames", ())
    made = written(subject.fn, subject.args, subject.kwargs, options["target"], nums, names)
    row = {k: v for k, v in made.row.items() if k != "source"}
    if made.text is None:
        return row
    row["source_lines"] = made.text.source.count("\n")
    try:
        found = [as_array(x) for x in jax.tree.leaves(made.text(*subject.args, **subject.kwargs))]
    except Exception as error:
        return {**row, "detail": f"the text raises {first_line(error)}"}
    row |= in_c(made, subject.args, subject.kwargs, options)
    return {**row, **agreement(subject, expected, found)}


def without_ties(subject: Subject) -> Subject:
    """A case that leaves the order of equal elements open, on arguments that have none: with them it has no one result."""
    made = jax.make_jaxpr(subject.fn, static_argnums=subject.static.get("static_argnums", ()))
    equations = equations_in(made(*subject.args, **subject.kwargs))
    if not any(leaves_an_order_open(e.primitive.name, e.params, len(e.invars)) for e in equations):
        return subject
    generator = np.random.default_rng(0)
    args, kwargs = jax.tree.map(
        lambda x: distinct(x, generator) if isinstance(x, np.ndarray | jax.Array) else x, (subject.args, subject.kwargs)
    )
    return dataclasses.replace(subject, args=args, kwargs=kwargs)


def as_array(x: Any) -> np.ndarray:
    """What a text gives, as NumPy has it; PyTorch's own conversion has no bfloat16."""
    from untrace.targets.torch.tensors import array_of

    tensor = array_of(x) if type(x).__module__ == "torch" else None
    return np.asarray(x) if tensor is None else tensor


def agreement(subject: Subject, expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> dict[str, Any]:
    """Whether results are the same bits, whether they agree, by which of the two measures, and how far they are apart."""
    same = compare_bits(expected, found)
    types = [(x.shape, x.dtype) for x in expected] == [(x.shape, x.dtype) for x in found]
    if same.same or not types:
        return {"bits": same.same, "agrees": same.same, "ulps": 0.0, **({} if types else {"detail": same.detail})}
    ulps = max(ulps_apart(a, b) for a, b in zip(expected, found, strict=True))
    if ulps <= CLOSE:
        return {"bits": False, "agrees": True, "ulps": ulps}
    terms = terms_of(jax.make_jaxpr(subject.fn, static_argnums=subject.static.get("static_argnums", ()))(
        *subject.args, **subject.kwargs).jaxpr)  # fmt: skip
    detail = f"{ulps:.4g} ULP; {same.detail}"
    try:
        wide = in_float64(subject)
    except Exception as error:  # it has types in its parameters that do not change
        wide, detail = None, f"{detail}; in float64: {first_line(error)}"
    if wide is not None and all(ulps_apart(a.astype(b.dtype), b) <= CLOSE for a, b in zip(wide, found, strict=True)):
        return {"bits": False, "agrees": True, "ulps": CLOSE}
    off = math.inf if wide is None else max(map(eps_apart, wide, found), default=0.0)
    theirs = math.inf if wide is None else max(map(eps_apart, wide, expected), default=0.0)
    if wide is not None and off <= max(terms, theirs):
        return {"bits": False, "agrees": True, "as_sum": True, "ulps": ulps}
    words = f"{detail}; {off:.3g} eps from float64, for {terms} terms (JAX itself {theirs:.3g})"
    return {"bits": False, "agrees": False, "ulps": ulps, "detail": words}


def ulps_apart(a: np.ndarray, b: np.ndarray) -> float:
    """The most units in the last place between two numbers; infinite where one is NaN alone, or where integers differ."""
    if not jax.dtypes.issubdtype(a.dtype, np.inexact):
        return 0.0 if np.array_equal(a, b) else math.inf
    if np.iscomplexobj(a):
        finite = np.isfinite(a) & np.isfinite(b)
        parts = [ulps_apart(x[~finite], y[~finite]) for x, y in ((a.real, b.real), (a.imag, b.imag))]
        info, (a, b) = np.finfo(a.dtype), (x[finite].astype(np.complex128) for x in (a, b))
        size = np.maximum(np.abs(a), float(info.tiny)) * float(info.eps)
        return max(*parts, float((np.abs(a - b) / size).max(initial=0.0)))
    info = jax.numpy.finfo(a.dtype)
    a, b = (np.where(np.abs(x.astype(np.float64)) < float(info.tiny), np.copysign(x.dtype.type(0), x), x).astype(x.dtype)
            for x in (a, b))  # fmt: skip
    nans = np.isnan(a.astype(np.float64)), np.isnan(b.astype(np.float64))
    if not np.array_equal(*nans):
        return math.inf
    return float(ulp_distance(a[~nans[0]], b[~nans[0]]).max(initial=0))


def eps_apart(wide: np.ndarray, found: np.ndarray) -> float:
    """How far a result is from that in float64, in eps of its type, of the largest number."""
    if not jax.dtypes.issubdtype(found.dtype, np.inexact):
        return 0.0 if np.array_equal(wide, found) else math.inf
    kind = np.complex128 if np.iscomplexobj(found) else np.float64
    with np.errstate(all="ignore"):
        exact, given = np.asarray(wide, kind), found.astype(kind)
        finite = np.isfinite(exact.astype(found.dtype))  # what is too large for the type is infinite there
    if exact.shape != given.shape or not np.array_equal(finite, np.isfinite(given)):
        return math.inf
    unit = float(jax.numpy.finfo(found.dtype).eps) * float(np.abs(exact[finite]).max(initial=0.0))
    gap = float(np.abs(exact - given)[finite].max(initial=0.0))
    return gap / unit if unit else (math.inf if gap else 0.0)


def in_float64(subject: Subject) -> list[np.ndarray]:
    """What the original gives in float64: traced there; or, where its parameters name types, equation by equation."""
    with jax.enable_x64(True):
        args, kwargs = jax.tree.map(_wide, (subject.args, subject.kwargs))
        try:
            return host_leaves(jax.jit(subject.fn, **subject.static)(*args, **kwargs))
        except TypeError:
            with jax.enable_x64(False):
                closed = jax.make_jaxpr(subject.fn)(*subject.args, **subject.kwargs)
            return host_leaves(_evaluated(closed.jaxpr, closed.consts, jax.tree.leaves((args, kwargs))))


def _evaluated(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """A jaxpr on arguments of other types, with each inexact type in its parameters in 64 bits."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*map(_wide, consts), *args], strict=True))
    for equation in jaxpr.eqns:
        given = [
            _wide(np.asarray(v.val)) if isinstance(v, jax.extend.core.Literal) else values[v] for v in equation.invars
        ]
        inner = equation.params.get("jaxpr")
        if equation.primitive.name in ("jit", "pjit", "closed_call"):
            found = _evaluated(inner.jaxpr, inner.consts, given)
        else:
            found = equation.primitive.bind(*given, **{k: _wide_type(v) for k, v in equation.params.items()})
            found = found if equation.primitive.multiple_results else [found]
        values.update(zip(equation.outvars, found, strict=True))
    return [values[v] for v in jaxpr.outvars]


def _wide_type(value: Any) -> Any:
    if isinstance(value, (np.dtype, type)) and jax.dtypes.issubdtype(value, np.inexact):
        return np.dtype(np.complex128 if np.issubdtype(value, np.complexfloating) else np.float64)
    return value


def _wide(x: Any) -> Any:
    if not hasattr(x, "dtype") or not jax.dtypes.issubdtype(x.dtype, np.inexact):
        return x
    return jax.numpy.asarray(np.asarray(x), np.complex128 if np.iscomplexobj(x) else np.float64)


_REDUCTIONS = frozenset({"reduce_sum", "reduce_prod", "reduce_window_sum", "reduce_window", "reduce"})
_ALONG = frozenset({"cumsum", "cumprod", "cumlogsumexp"})
_FACTORS = frozenset(
    "cholesky eig eigh hessenberg householder_product lu qr geqrf svd schur triangular_solve tridiagonal_solve "
    "tridiagonal fft".split()
)


def terms_of(jaxpr: Any) -> int:
    """How many terms the longest sum or product of a program has; 0 where it has none."""
    most = 0
    for equation in jaxpr.eqns:
        name, ins = equation.primitive.name, [v.aval for v in equation.invars]
        if name in _REDUCTIONS:
            windows = equation.params.get("window_dimensions")
            found = math.prod(windows) if windows else ins[0].size // max(1, equation.outvars[0].aval.size)
        elif name in _ALONG:
            found = ins[0].shape[equation.params["axis"]]
        elif name == "dot_general":
            found = math.prod(ins[0].shape[a] for a in equation.params["dimension_numbers"][0][0])
        elif name == "conv_general_dilated":
            found = ins[1].size // max(1, ins[1].shape[equation.params["dimension_numbers"].rhs_spec[0]])
        elif name.startswith(("scatter-", "scatter_")) or name == "select_and_scatter_add":
            found = ins[-1].size if name.startswith("scatter") else ins[0].size
        elif name in _FACTORS:
            found = max(math.prod(equation.params.get("fft_lengths", ())), *ins[0].shape[-2:])
        else:
            found = 0
            for value in equation.params.values():
                for inner in value if isinstance(value, (tuple, list)) else (value,):
                    inner = getattr(inner, "jaxpr", inner)
                    found = max(found, terms_of(inner) if hasattr(inner, "eqns") else 0)
        most = max(most, int(found))
    return most
