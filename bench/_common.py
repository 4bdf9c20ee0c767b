"""What the benches share: zoo cases, fresh subprocesses, written modules, comparisons of bits.

The parent process of a bench never imports JAX: every measurement runs in a child of its own, whose
environment (number of host devices, 64-bit mode) is fixed before JAX starts. That is why the
functions below import JAX where they use it.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# ----------------------------------------------------------------- the zoo's cases


@dataclasses.dataclass(frozen=True)
class Case:
    """One zoo program and its settings, read as text: they must be known before JAX starts."""

    name: str
    path: Path
    devices: int
    x64: bool
    python: str | None

    @property
    def runs_here(self) -> bool:
        """Whether this interpreter is the one that the case asks for (`PYTHON = "py311"`)."""
        return self.python in (None, f"py{sys.version_info[0]}{sys.version_info[1]}")


def setting(text: str, name: str, default: Any) -> Any:
    """The literal that `NAME = literal` at the start of a line of `text` gives, or the default."""
    match = re.search(rf"^{name} *= *(.+?)(?: *#.*)?$", text, re.MULTILINE)
    return ast.literal_eval(match.group(1)) if match else default


def find_cases(directory: str | Path, only: str | None = None) -> list[Case]:
    """The cases of a zoo directory by name; those whose file name matches the regex `only`."""
    cases = []
    for path in sorted(Path(directory).resolve().glob("*.py")):
        if path.name.startswith("_") or (only and not re.search(only, path.name)):
            continue
        text = path.read_text(encoding="utf-8")
        cases.append(
            Case(
                name=path.stem,
                path=path,
                devices=setting(text, "DEVICES", 1),
                x64=setting(text, "X64", False),
                python=setting(text, "PYTHON", None),
            )
        )
    return cases


def build_case(path: str | Path, prefix: str = "zoo_case_") -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`(fn, args)` of a case's `build()`; the case's folder joins `sys.path` for its helpers.

    With the prefix "" another process can import the module, whose classes the arguments may be of.
    """
    path = Path(path)
    sys.path.append(str(path.parent))
    fn, args = load_module(path, prefix + path.stem).build()
    return fn, tuple(args)


def load_module(path: str | Path, name: str) -> types.ModuleType:
    """The file at `path`, executed as a fresh module called `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------- the written function


@dataclasses.dataclass(frozen=True)
class Written:
    """A decompiled function as it was saved and imported again.

    `timings` are the seconds of each stage as untrace reports them; `seconds` is the whole of
    `decompile`, without the saving and the import that make `function`.
    """

    function: Callable[..., Any]
    proof: str
    timings: dict[str, float]
    seconds: float
    source_bytes: int


def write(fn: Callable[..., Any], args: Sequence[Any], directory: str, oracle: bool, style: str = "exact") -> Written:
    """`fn` decompiled (standalone), saved to `directory` and imported from there.

    With `oracle` the written function is `fn` itself, wrapped: it must pass every comparison, so
    that it tests the bench.
    """
    if oracle:
        return Written(lambda *a: fn(*a), "oracle", {}, 0.0, 0)
    import untrace

    start = time.perf_counter()
    decompiled = untrace.decompile(fn, style=style, standalone=True)(*args)
    seconds = time.perf_counter() - start
    path = Path(directory) / "written_module.py"
    decompiled.save(path, overwrite=True)
    module = load_module(path, "written_module")
    return Written(
        function=getattr(module, decompiled.name),
        proof=decompiled.proof.level,
        timings=dict(getattr(decompiled, "timings", {})),
        seconds=seconds,
        source_bytes=len(decompiled.source.encode()),
    )


# -------------------------------------------------------------------- subprocesses


class Record:
    """A JSON file that is rewritten at every step, so that a killed child leaves what it had."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.data: dict[str, Any] = {}

    def put(self, **items: Any) -> None:
        """Adds items and writes the file in one move."""
        self.data.update(items)
        with open(self.path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(self.data, file, default=str)
        os.replace(self.path + ".tmp", self.path)


def child_environment(devices: int, x64: bool) -> dict[str, str]:
    """The environment of a child: CPU, `devices` host devices, 64-bit mode on or off."""
    environment = dict(
        os.environ,
        JAX_PLATFORMS="cpu",
        KERAS_BACKEND="jax",
        TF_CPP_MIN_LOG_LEVEL="3",
        TOKENIZERS_PARALLELISM="false",
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONHASHSEED="0",
        PYTHONWARNINGS="ignore",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
    )
    environment.pop("JAX_ENABLE_X64", None)
    if x64:
        environment["JAX_ENABLE_X64"] = "1"
    return environment


def run_child(
    script: str,
    options: dict[str, Any],
    seconds: float,
    *,
    devices: int = 1,
    x64: bool = False,
    more: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What `script --child OPTIONS` recorded, with `error` when it failed or ran out of time.

    more: variables of the child's environment beside those of `child_environment`.

    The child gets a directory of its own as `options["work"]`, and is killed with all that it
    started once `seconds` have passed; then `timed_out` is set as well.
    """
    with tempfile.TemporaryDirectory(prefix="untrace_bench_") as work:
        options = dict(options, work=work, record=os.path.join(work, "record.json"))
        log = os.path.join(work, "log")
        with open(log, "w", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, os.path.abspath(script), "--child", json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**child_environment(devices, x64), **(more or {})},
                start_new_session=True,
            )
            try:
                process.wait(seconds)
                timed_out = False
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:  # also when this process is interrupted
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        data: dict[str, Any] = {}
        if os.path.exists(options["record"]):
            with open(options["record"], encoding="utf-8") as file:
                data = json.load(file)
        if timed_out:
            data.update(timed_out=True, error=f"time limit of {seconds:.0f} s: {data.get('stage')}")
        elif process.returncode != 0 and "error" not in data:
            with open(log, encoding="utf-8", errors="replace") as file:
                last = (file.read().strip().splitlines() or ["no output"])[-1]
            data["error"] = f"exit status {process.returncode} in {data.get('stage')}: {last[:200]}"
        return data


def child_main(measure: Callable[[dict[str, Any], Record], None], encoded: str) -> None:
    """Runs `measure(options, record)` in a child; an exception becomes the record's `error`."""
    warnings.filterwarnings("ignore")
    options = json.loads(encoded)
    record = Record(options["record"])
    status = 0
    try:
        measure(options, record)
        record.put(stage="done")
    except Exception as error:  # noqa: BLE001 - whatever is raised is the result
        traceback.print_exc()
        record.put(error=short_error(error))
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # some libraries leave threads that would keep the process alive


def short_error(error: BaseException) -> str:
    """The error on one line of at most 300 characters, with the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300] + where


# --------------------------------------------------------------- comparisons of bits


@dataclasses.dataclass(frozen=True)
class Difference:
    """How two lists of arrays differ; `same` when every bit is equal, any NaN equal to any NaN.

    `ulps` counts representable numbers between the two worst values, `relative` is the largest
    difference over the largest magnitude of its array. Both are None where they mean nothing.
    """

    same: bool
    detail: str = ""
    ulps: int | None = None
    relative: float | None = None


def host_leaves(tree: Any) -> list[np.ndarray]:
    """The leaves of a pytree as NumPy arrays; a typed PRNG key as its raw words."""
    import jax

    def to_host(x: Any) -> np.ndarray:
        if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return np.asarray(x)

    return [to_host(x) for x in jax.tree_util.tree_leaves(tree)]


def compare_bits(expected: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> Difference:
    """How `got` differs from `expected`: count, dtypes, shapes, then all bits but those of NaNs."""
    if len(expected) != len(got):
        return Difference(False, f"{len(got)} leaves instead of {len(expected)}")
    worst = Difference(True)
    for index, (a, b) in enumerate(zip(expected, got, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            detail = f"leaf {index}: {b.dtype}{b.shape} instead of {a.dtype}{a.shape}"
            return Difference(False, detail)
        here = _compare_arrays(a, b, index)
        if not here.same and (worst.same or (here.relative or 0.0) > (worst.relative or 0.0)):
            worst = here
    return worst


def _compare_arrays(a: np.ndarray, b: np.ndarray, index: int) -> Difference:
    if a.tobytes() == b.tobytes():
        return Difference(True)
    kind = _float_kind(a.dtype)
    if kind is None:
        return Difference(False, f"leaf {index}: {int(np.sum(a != b))} {a.dtype} values differ")
    if kind == "complex":
        part = np.float64 if a.dtype == np.complex128 else np.float32
        a, b = np.ascontiguousarray(a).view(part), np.ascontiguousarray(b).view(part)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    nan_a, nan_b = np.isnan(wide_a), np.isnan(wide_b)
    if not np.array_equal(nan_a, nan_b):
        return Difference(False, f"leaf {index}: {int(np.sum(nan_a != nan_b))} NaNs on one side")
    ulps = ulp_distance(a[~nan_a], b[~nan_a])
    if not ulps.size or int(ulps.max()) == 0:
        return Difference(True)
    finite = np.isfinite(wide_a) & np.isfinite(wide_b)
    scale = float(np.max(np.abs(wide_a[finite]), initial=0.0))
    gap = float(np.max(np.abs(wide_a - wide_b)[finite], initial=0.0))
    relative = gap / scale if scale else (float("inf") if gap else 0.0)
    count = int(np.count_nonzero(ulps))
    return Difference(False, f"leaf {index}: {count} of {a.size} values differ", int(ulps.max()), relative)


def _float_kind(dtype: np.dtype) -> str | None:
    """`"complex"`, `"real"` (bfloat16 and the 8-bit floats too) or None for any other dtype."""
    if dtype.kind == "c":
        return "complex"
    import ml_dtypes

    try:
        ml_dtypes.finfo(dtype)
    except ValueError:
        return None
    return "real"


def ulp_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The number of representable values between `a` and `b`, elementwise, uint64[n].

    Floats sort like sign-magnitude integers; `-0.0` and `0.0` are taken to be one apart, because
    their bits differ.
    """
    unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[a.dtype.itemsize]
    sign = np.uint64(1) << np.uint64(8 * a.dtype.itemsize - 1)

    def order(x: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(x).view(unsigned).astype(np.uint64)
        return np.where(bits & sign, (sign - np.uint64(1)) - (bits & ~sign), bits | sign)

    first, second = order(a), order(b)
    return np.maximum(first, second) - np.minimum(first, second)


# ---------------------------------------------------------------------- StableHLO


def stablehlo(lowered: Any) -> str:
    """The StableHLO of a `jax.stages.Lowered` without locations, module and symbol names.

    Private functions with one and the same text count as one.
    """
    text = re.sub(r"\s*loc\((?:[^()]|\([^()]*\))*\)", "", lowered.as_text())
    text = re.sub(r"^#loc.*\n?", "", text, flags=re.MULTILINE)
    text = re.sub(r"module @[\w.$-]+", "module @m", text)
    text = re.sub(r'jax\.(?:result_info|arg_info|buffer_donor_info) = "[^"]*",? ?', "", text)
    text = re.sub(r" \{\}", "", text)
    text = re.sub(r"\b\d{12,}\b", "POINTER", text)  # addresses of callbacks
    text = text.replace("@<<INVALID EMPTY SYMBOL>>", '@"no name"')  # of a function called ""
    text = merge_equal_functions(text)
    names: dict[str, str] = {}
    for name in re.findall(r'func\.func (?:public |private )?@("[^"]+"|[\w.$-]+)', text):
        names.setdefault(name, f"f{len(names)}")
    return re.sub(r'@("[^"]+"|[\w.$-]+)', lambda m: "@" + names.get(m.group(1), m.group(1)), text)


def merge_equal_functions(text: str) -> str:
    """StableHLO with one private function for all that are equal but for their names.

    Which of them JAX shares depends on its caches: the rules by which it lowers a primitive call
    functions of `jax.numpy`, and the program's own calls of these share the result.
    """
    symbol = r'@("[^"]+"|[\w.$-]+)'
    while True:
        first: dict[str, str] = {}
        renamed: dict[str, str] = {}
        for name, body in re.findall(rf"(?ms)^  func\.func private {symbol}(.*?)^  }}\n", text):
            if first.setdefault(body, name) != name:
                renamed[name] = first[body]
        if not renamed:
            return text
        for name in renamed:
            text = re.sub(rf"(?ms)^  func\.func private @{re.escape(name)}\(.*?^  }}\n", "", text)
        text = re.sub(symbol, lambda m: "@" + renamed.get(m.group(1), m.group(1)), text)  # noqa: B023


def with_constants_inlined(text: str) -> str:
    """StableHLO with every constant at its uses.

    In which order the constants of a program stand follows from when JAX met them, and a constant
    that no equation reads is met when it is returned or before: the order means nothing.
    """
    functions = re.split(r"(?m)^(?=  func\.func )", text)
    return "".join(map(_inlined, functions))


def _inlined(function: str) -> str:
    pattern = r"(?m)^ *(%[\w#]+) = (stablehlo\.constant .*)\n"
    values = dict(re.findall(pattern, function))
    rest = re.sub(pattern, "", function)
    return re.sub(r"%[\w#]+", lambda m: f"({values[m[0]]})" if m[0] in values else m[0], rest)


# ------------------------------------------------------------------------- output


def write_json(path: str | None, data: dict[str, Any]) -> None:
    """Writes `data` to `path` (nothing where `path` is None); written again after every row."""
    if path:
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1, default=str)
        os.replace(path + ".tmp", path)


def mark(holds: bool | None) -> str:
    """`"holds"`, `"FAILS"`, or `"not measured"`: the verdict beside a figure and its goal."""
    return {True: "holds", False: "FAILS", None: "not measured"}[holds]
