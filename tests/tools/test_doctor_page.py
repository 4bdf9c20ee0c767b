"""The parts of docs/doctor.md that a program made say what the doctor says today."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not jax.__version__.startswith("0.10"), reason="the page is made on the default line of JAX")
def test_the_page_is_up_to_date() -> None:
    # It has errors in the last bits, of a program that XLA optimises.
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "docs" / "make_doctor.py"), "--check"]
    assert subprocess.run(command, check=False, env=environment).returncode == 0, "run: python docs/make_doctor.py"
