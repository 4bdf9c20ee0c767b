"""What the tests of C share: programs that are written, compiled with all warnings as errors, and run under sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np

import untrace
from untrace.driver.in_c import InC
from untrace.targets.c.compiled import STRICT, build, compiler

SANITIZED = ("-g", "-O1", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")


def written(fn: Any, *args: Any, **options: Any) -> InC:
    """The text of a function in C, proven, and free of warnings."""
    text = untrace.decompile(fn, target="c", **options)(*args)
    assert text.proof.at_least("close")
    build(text.program, (*STRICT, "-O1"))
    return text


def same(text: InC, fn: Any, *args: Any, tolerance: float = 1e-5) -> None:
    """What the text gives is close to what the function gives."""
    found, expected = jax.tree.flatten(text(*args)), jax.tree.flatten(fn(*args))
    assert found[1] == expected[1]
    for got, wanted in zip(found[0], expected[0], strict=True):
        scale = np.abs(np.asarray(wanted, np.float64)).max(initial=1e-30)
        np.testing.assert_allclose(
            np.asarray(got, np.float64) / scale, np.asarray(wanted, np.float64) / scale, atol=tolerance
        )


def runs_clean(text: InC, folder: Path) -> None:
    """The saved project's example runs under sanitizers, which find nothing."""
    text.save(folder)
    command = [compiler(), *STRICT, *SANITIZED, "main.c", f"{text.name}.c", "-o", "example", "-lm"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=200)
    done = subprocess.run(["./example"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr[:2000]
