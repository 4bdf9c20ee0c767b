"""The table of docs/targets.md on C, row by row: what the text gives is what JAX gives, what one would write is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from c_texts import SANITIZED

import untrace
from untrace.targets.c.compiled import compiler
from untrace.targets.c.expressions import c_type, literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from c_differences import DIFFERENCES, Difference, shown


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that prints what one would write without a thought, of the row that it is asked for."""
    cases = "\n".join([f"    case {k}: {{\n{_case(d)}        break;\n    }}" for k, d in enumerate(DIFFERENCES)])
    folder = tmp_path_factory.mktemp("plain")
    (folder / "plain.c").write_text(
        "#include <math.h>\n#include <stdbool.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
        f"int main(int n, char **words)\n{{\n    switch (n > 1 ? atoi(words[1]) : 0) {{\n{cases}\n    }}\n    return 0;\n}}\n"
    )
    subprocess.run([compiler(), *SANITIZED, "plain.c", "-o", "plain", "-lm"], cwd=folder, check=True, timeout=100)
    return folder / "plain"


def _case(difference: Difference) -> str:
    lines = ""
    for index in range(len(difference.args[0])):
        lines += "        {\n"
        for name, array in zip("xy", difference.args, strict=False):
            # What the compiler knows it need not compute.
            kind = c_type(array.dtype)
            lines += f"            volatile {kind} {name}_ = {literal(array[index].item(), array.dtype)};\n"
            lines += f"            {kind} {name} = {name}_;\n"
        lines += f'            printf("%.17g\\n", (double)({difference.plain}));\n        }}\n'
    return lines


@pytest.mark.parametrize("number", range(len(DIFFERENCES)), ids=[d.name for d in DIFFERENCES])
def test_the_text_gives_what_jax_gives_and_plain_c_does_not(number: int, plain: Path) -> None:
    difference = DIFFERENCES[number]
    text = untrace.decompile(difference.program, target="c", prove=False)(*difference.args)
    wanted = np.asarray(shown(difference))
    np.testing.assert_array_equal(text(*difference.args), wanted)
    if wanted.dtype.kind == "f":
        numbers = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(text(*difference.args))[numbers], np.signbit(wanted)[numbers])
    assert difference.written in text.source
    done = subprocess.run([str(plain), str(number)], capture_output=True, text=True, timeout=20)
    if done.returncode == 0:
        found = np.array([float(line) for line in done.stdout.split()])
        same = np.isnan(found) & np.isnan(wanted) | (found == wanted) & (np.signbit(found) == np.signbit(wanted))
        assert not same.all()
    else:
        assert "runtime error" in done.stderr or "AddressSanitizer" in done.stderr or done.returncode < 0
