"""Arrays that the author's module or function computes: written by that expression, where it gives the same bits."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace

SOURCE = """
import jax
import jax.numpy as jnp
import numpy as np

STEPS = 12
BETA_MIN, BETA_MAX = 1e-4, 0.02
LEAST = 0.001
BETAS = jnp.linspace(LEAST, 0.02, STEPS)
ALPHA_BAR = jnp.cumprod(1.0 - BETAS)
SPACING = 0.5
WAVES = 2 * np.pi * np.fft.fftfreq(STEPS, d=SPACING)
LAPLACIAN = -(WAVES**2)
Z = np.array([[1.0, 0.0], [0.0, -1.0]])
ZZ = np.kron(Z, Z)
ORDER = np.arange(STEPS).reshape(3, -1).T.ravel()
INSIDE = (jnp.arange(STEPS) < STEPS // 2)[None, :]
CHANGED = np.linspace(0.0, LEAST, STEPS)
CHANGED[0] = 7.0
SHUFFLED = np.random.default_rng(0).permutation(np.linspace(0.0, LEAST, STEPS))
HALVES = 0.5 ** jnp.arange(4)
DATA = np.random.default_rng(0).normal(size=(100, STEPS))
MEANS = DATA.mean(axis=0)
LIST = [BETAS, ALPHA_BAR]
PICKED = LIST[0] + 1.0


def noised(x):
    return jnp.sqrt(ALPHA_BAR[3]) * x + BETAS[2]


def gradient(x):
    return jax.grad(lambda x: jnp.sum(jax.lax.scan(lambda c, a: (c * a, None), x, ALPHA_BAR)[0]))(x)


def spectral(x):
    return jnp.fft.ifft(LAPLACIAN * jnp.fft.fft(x)).real


def parity(x):
    return ZZ @ x[:4]


def halved(x):
    return x[:4] * HALVES


def ordered(x):
    return jnp.where(INSIDE, x[ORDER], 0.0)


def windowed(x):
    window = np.hamming(STEPS) * LEAST
    return x * window + x * np.outer(window, window).sum(0)


def others(x):
    return x * CHANGED + SHUFFLED - PICKED * MEANS
"""


def module_of(text: str, path: Path) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


X = jnp.linspace(0.1, 1.0, 12)


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return module_of(SOURCE, tmp_path_factory.mktemp("author") / "schedules_of_an_author.py")


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(np.asarray(jax.jit(one)(X)), np.asarray(jax.jit(other)(X)))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("noised", ["LEAST = 0.001", "STEPS = 12", "BETAS = jnp.linspace(LEAST, 0.02, STEPS)", "ALPHA_BAR = jnp.cumprod(1.0 - BETAS)"]),
        ("gradient", ["ALPHA_BAR = jnp.cumprod(1.0 - BETAS)"]),
        ("spectral", ["WAVES = 2 * np.pi * np.fft.fftfreq(STEPS, d=SPACING)", "LAPLACIAN = jnp.asarray(-WAVES**2)"]),
        ("parity", ["Z = np.array([[1.0, 0.0], [0.0, -1.0]])", "ZZ = jnp.asarray(np.kron(Z, Z))"]),
        ("ordered", ["ORDER = np.arange(STEPS).reshape(3, -1).T.ravel()", "INSIDE = (jnp.arange(STEPS) < STEPS // 2)[None, :]"]),
        ("halved", ["HALVES = 0.5 ** jnp.arange(4)"]),
        ("windowed", ["window = jnp.asarray(np.hamming(STEPS) * LEAST)"]),
    ],
)  # fmt: skip
def test_by_the_expression(author: ModuleType, tmp_path: Path, name: str, lines: list[str]) -> None:
    """And an edit of a number in the text is the same edit in the source."""
    written = untrace.decompile(getattr(author, name))(X)
    assert written.proof.level == "jaxpr"
    missing = [line for line in lines if not re.search(f"^{re.escape(line)}$", written.source, re.MULTILINE)]
    assert not missing, written.source
    same(getattr(module_of(written.source, tmp_path / f"written_{name}.py"), written.name), getattr(author, name))
    edits = [("LEAST = 0.001", "LEAST = 0.003"), ("SPACING = 0.5", "SPACING = 0.25")]
    for number, (old, new) in enumerate(edits):
        source = module_of(SOURCE.replace(old, new), tmp_path / f"source_edited_{number}.py")
        text = module_of(written.source.replace(old, new), tmp_path / f"written_{name}_edited_{number}.py")
        same(getattr(text, written.name), getattr(source, name))


def test_what_gives_other_bits_is_a_table(author: ModuleType) -> None:
    """An array that was changed after, one of random numbers, one of data, one that is picked of a list: by its numbers."""
    source = untrace.decompile(author.others)(X).source
    assert "linspace" not in source and "LEAST" not in source and "mean" not in source and "7.0" in source


def test_nothing_else_of_the_author_is_run(tmp_path: Path) -> None:
    """What stands beside names that are known is not called again: only NumPy's and JAX's own functions are."""
    text = (
        "import numpy as np, jax.numpy as jnp\nCALLS = []\n\n\ndef table(n):\n    CALLS.append(n)\n    return np.arange(n) * 0.5\n\n\n"
        "TABLE = table(4) * 1.5\n\n\ndef scaled(x):\n    return x * TABLE\n"
    )
    author = module_of(text, tmp_path / "calls_of_an_author.py")
    source = untrace.decompile(author.scaled)(jnp.ones(4)).source
    assert author.CALLS == [4]
    assert "TABLE = jnp.array(" in source and "2.25" in source


@pytest.mark.parametrize("name", ["spectral", "parity", "ordered", "windowed"])
def test_in_numpy(author: ModuleType, tmp_path: Path, name: str) -> None:
    written = untrace.decompile(getattr(author, name), target="numpy")(X)
    assert "jnp" not in written.source and "STEPS" in written.source or name == "parity"
    module = module_of(written.source, tmp_path / f"numpy_{name}.py")
    got = getattr(module, written.name)(np.asarray(X))
    np.testing.assert_allclose(got, getattr(author, name)(X), rtol=1e-4, atol=1e-5)


def test_an_array_that_only_happens_to_be_equal_is_another(tmp_path: Path) -> None:
    text = (
        "import jax.numpy as jnp\nRAMP = jnp.linspace(1.0, 3.0, 3)\nGONE = jnp.ones(3) * 2\nGONE.delete()\n\n\n"
        "def scaled_by(scale):\n    def scaled(x):\n        return x * scale\n\n    return scaled\n"
    )
    author = module_of(text, tmp_path / "ramps_of_an_author.py")
    source = untrace.decompile(author.scaled_by(jnp.array([1.0, 2.0, 3.0])))(jnp.ones(3)).source
    assert "scale = jnp.array([1.0, 2.0, 3.0]" in source and "RAMP" not in source, source
