"""Random programs keep every promise of the written text.

A small, fixed number of examples; `UNTRACE_EXAMPLES=500 pytest tests/prove/test_properties.py` for more,
`bench/fuzz.py` for a long run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import random_programs
import roundtrip
from hypothesis import HealthCheck, given, settings
from random_programs import Program
from strategies import programs, seeded_program

import untrace

EXAMPLES = int(os.environ.get("UNTRACE_EXAMPLES", "10"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def _check(program: Program, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:
        try:
            roundtrip.check(program, Path(directory), **options)
        except roundtrip.Refused:
            return  # see test_few_random_programs_are_refused


@SETTINGS
@given(programs(size=6))
def test_a_random_program_comes_back_as_itself(program: Program) -> None:
    """Text, proof, StableHLO, bits, types, gradients, determinism, and its own text again."""
    _check(program)


@SETTINGS
@given(programs(size=6))
def test_a_random_program_comes_back_in_idiomatic_style(program: Program) -> None:
    """Lifts, names and simplifications keep text, bits, types and gradients right."""
    _check(program, style="idiomatic", fixpoint=False)


@settings(SETTINGS, max_examples=max(3, EXAMPLES // 3))
@given(programs(size=5, wide=True))
def test_a_random_program_comes_back_as_itself_with_64_bits(program: Program) -> None:
    """The same in 64-bit mode, with float64, int64, uint64 and complex128 values."""
    with jax.enable_x64(True):
        _check(program)


# ---------------------------------------------------------------- several processes, one text

HASH_SEEDS = 6
HASHED_PROGRAMS = 20

_CHILD = f"""
import hashlib, sys, warnings
warnings.simplefilter("ignore")
import untrace
from strategies import seeded_program
for i in range({HASHED_PROGRAMS}):
    program = seeded_program(f"hash:{{i}}", size=2)
    module = program.module()
    args, kwargs = program.arguments(module)
    try:
        text = untrace.decompile(module.program, prove=False)(*args, **kwargs).source
    except untrace.UntraceError as error:
        text = str(error)
    print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_one_text_under_any_hash_seed() -> None:
    """20 programs, written in processes with hash seeds of their own: the same bytes in all."""
    root = Path(__file__).parents[2]
    folders = [str(root / "src"), str(root / "tests"), *sys.path]
    outputs = []
    for first in range(0, HASH_SEEDS, 2):
        children = []
        for hash_seed in (first, first + 1):
            environment = {
                **os.environ,
                "PYTHONHASHSEED": str(hash_seed),
                "PYTHONPATH": os.pathsep.join(folders),
                "JAX_PLATFORMS": "cpu",
            }
            command = [sys.executable, "-c", _CHILD]
            children.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        for child in children:
            output, _ = child.communicate(timeout=300)
            assert child.returncode == 0
            outputs.append(output.split())
    assert len(outputs[0]) == HASHED_PROGRAMS
    for i, digests in enumerate(zip(*outputs, strict=True)):
        assert len(set(digests)) == 1, f"program hash:{i} has {len(set(digests))} texts"


# ---------------------------------------------------------------- the tools of these tests


def test_a_seed_gives_one_program() -> None:
    """Drawing again gives the same source, so a failure of a long run can be had again."""
    first = seeded_program("again:3", size=5)
    random_programs.forget(first.module())
    assert seeded_program("again:3", size=5).source() == first.source()


def test_few_random_programs_are_refused() -> None:
    """At least nine of ten random programs trace: the properties are not checked on thin air."""
    traced = 0
    for i in range(20):
        program = seeded_program(f"refused:{i}", size=4)
        module = program.module()
        args, kwargs = program.arguments(module)
        try:
            jax.make_jaxpr(module.program)(*args, **kwargs)
            traced += 1
        except Exception:
            pass
        finally:
            random_programs.forget(module)
    assert traced >= 18


def test_shrinking_finds_a_small_program() -> None:
    """A program that fails for one statement shrinks to little more than that statement."""

    def fails(program: Program) -> bool:
        return "lax.scan(" in program.source()

    program = next(p for i in range(200) if fails(p := seeded_program(f"small:{i}")))
    small = random_programs.shrunk(program, fails)
    assert fails(small)
    assert small.size() <= 6


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (lambda x, n: x - n, "stablehlo"),
        (lambda x, n: (x + n,), "tree"),
        (lambda x, n: x + n + jnp.float32(0) * n, "stablehlo"),
    ],
)
def test_a_wrong_text_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: Any, kind: str) -> None:
    """The checks fail where untrace would write another program: they can fail."""
    decompile = untrace.decompile
    monkeypatch.setattr(untrace, "decompile", lambda function, **options: decompile(wrong))
    with pytest.raises(roundtrip.Mismatch) as caught:
        roundtrip.check_function(lambda x, n: x + n, (jnp.arange(3.0), 2.0), {}, tmp_path)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import jax._src.core\n", "imports"),
        ("from untrace import decompile\n", "imports"),
        ("import os\n", "imports"),
        ("def f(:\n", "syntax"),
        ("def f(x):\n    return eval('x')\n", "text"),
        ("print(1) if 1 else 2\nfor i in ():\n    pass\n", "text"),
    ],
)
def test_a_bad_text_is_found(text: str, kind: str) -> None:
    """Imports of other packages, of internals, broken syntax and running of text are seen."""
    with pytest.raises(roundtrip.Mismatch) as caught:
        roundtrip.check_text(text)
    assert caught.value.kind == kind
