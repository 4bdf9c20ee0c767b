"""Breakpoints in a saved module: `python -m pdb` stops there, called as it is, and under `vmap`, `grad` and `jit`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
from jax import lax

import untrace


def layer(w, x):
    hidden = jnp.tanh(x @ w)
    scale = jnp.sqrt(jnp.mean(hidden**2) + 1.0)
    return hidden / scale


def loss(w, x):
    def relax(state, _):
        moved = state - 0.5 * jnp.sin(state)
        return moved, jnp.abs(moved).max()

    last, sizes = lax.scan(relax, layer(w, x), length=4)
    return jnp.sum(last**2) + sizes[-1]


CALLS = {
    "plain": "loss(w, x)",
    "vmap": "jax.vmap(loss, (None, 0))(w, jnp.stack([x, x]))",
    "grad": "jax.grad(loss)(w, x)",
    "jit": "jax.jit(loss)(w, x)",
}
DRIVER = """\
import jax
import jax.numpy as jnp
from saved_loss import loss

w, x = jnp.eye(3) / 2, jnp.arange(3.0)
"""


def line_of(file: Path, statement: str) -> int:
    (found,) = [n for n, line in enumerate(file.read_text().splitlines(), 1) if line.strip().startswith(statement)]
    return found


def test_pdb_stops_in_a_saved_module(tmp_path: Path) -> None:
    saved = tmp_path / "saved_loss.py"
    untrace.decompile(loss)(jnp.eye(3), jnp.ones(3)).save(saved)
    places = {"layer": line_of(saved, "scale = "), "relax": line_of(saved, "return moved, ")}
    calls = "".join(f"print('== {how}')\n{call}\n" for how, call in CALLS.items())
    (tmp_path / "driver.py").write_text(f"{DRIVER}{calls}print('== end')\n")
    breakpoints = [f"b saved_loss.py:{line}" for line in places.values()]
    stops = ["c", "p hidden.shape", "p type(hidden).__name__", "where", "c", "p moved.shape"] * len(CALLS)
    ran = subprocess.run(
        [sys.executable, "-m", "pdb", "driver.py"], cwd=tmp_path, text=True, timeout=300, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": "", "JAX_PLATFORMS": "cpu"},  # the module needs nothing of ours
        input="\n".join([*breakpoints, *stops, "c", "q", ""]),
    )  # fmt: skip
    shown = dict(part.split("\n", 1) for part in ran.stdout.split("== ")[1:])
    assert list(shown) == [*CALLS, "end"], ran.stdout
    for how in CALLS:
        for function, line in places.items():
            assert f"saved_loss.py({line}){function}()" in shown[how], ran.stdout
        assert shown[how].count("(3,)") == 2, ran.stdout
        assert "driver.py(" in shown[how] and f"saved_loss.py({line_of(saved, 'last, sizes = ')})loss()" in shown[how]
    assert "ArrayImpl" in shown["plain"] and "Tracer" in shown["grad"] and "Tracer" in shown["vmap"]
