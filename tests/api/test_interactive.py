"""Functions that are not from a file: cells of a notebook, the REPL, `exec`, lambdas. Names where there is source."""

from __future__ import annotations

import code
import importlib.util
import linecache
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import untrace
from untrace._places import place_of

SOURCE = """\
def attention(q, v):
    scores = q @ q.T / 3.0
    weights = jax.nn.softmax(scores, axis=-1)
    return weights @ v

def run(params, x):
    hidden = x @ params["w"]
    shifted = hidden - hidden.mean(axis=-1, keepdims=True)

    mixed = attention(shifted, x)
    return jnp.tanh(mixed) + shifted.sum()
"""
ARGS = ({"w": jnp.ones((8, 8)) / 7}, jnp.linspace(0.0, 1.0, 32).reshape(4, 8))
CELLS = {"terminal": "<ipython-input-3-0bfc1a6d2c6d>", "kernel": "/tmp/ipykernel_4711/1234567.py"}


def in_cell(source: str, name: str) -> dict[str, Any]:
    """What a cell defines. IPython keeps the text of cells in linecache, under names that are no files."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec(compile(source, name, "exec"), namespace)
    return namespace


def same(d: Any, function: Any, *args: Any) -> None:
    assert jax.tree.all(jax.tree.map(jnp.array_equal, jax.jit(d.__call__)(*args), jax.jit(function)(*args)))


@pytest.mark.parametrize("kind", sorted(CELLS))
def test_a_cell_of_a_notebook_has_its_names(kind: str) -> None:
    run = in_cell(SOURCE, CELLS[kind])["run"]
    d = untrace.decompile(run, comments="full")(*ARGS)
    for statement in (
        "scores = q @ q.T",
        "weights = jax.nn.softmax(",
        "hidden = x @ ",
        "mixed = attention(shifted, x)",
    ):
        assert statement in d.source, d.source
    place = {"terminal": "In [3]", "kernel": "a notebook cell"}[kind]
    assert d.source.startswith(f'"""`run` ({place}:6).') and f"{place}:7" in d.source
    assert "4711" not in d.source and "1234567" not in d.source and "0bfc1a" not in d.source
    same(d, run, *ARGS)


def test_a_cell_that_was_run_again_has_the_names_of_its_new_text() -> None:
    name = "<ipython-input-5-0123456789ab>"
    first = untrace.decompile(in_cell(SOURCE, name)["run"])(*ARGS)
    second = untrace.decompile(in_cell(SOURCE.replace("hidden", "projected"), name)["run"])(*ARGS)
    assert "hidden =" in first.source and "projected =" in second.source and "hidden" not in second.source


def test_a_text_that_no_longer_fits_gives_no_wrong_names() -> None:
    name = "<ipython-input-6-0123456789ab>"
    run = in_cell(SOURCE, name)["run"]
    in_cell("# another cell\n" * 2 + "total = 1\n", name)
    d = untrace.decompile(run)(*ARGS)
    assert d.proof.at_least("hlo") and "total = 1" not in d.source
    same(d, run, *ARGS)


@pytest.mark.parametrize("name", ["<string>", "<stdin>", "<unknown>", "no such file.py"])
def test_without_source_it_falls_back_quietly(name: str, recwarn: Any) -> None:
    namespace: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec(compile(SOURCE, name, "exec"), namespace)
    d = untrace.decompile(namespace["run"], comments="full")(*ARGS)
    assert d.proof.at_least("hlo") and "def attention(" in d.source and "def run(params, x):" in d.source
    assert not d.notes and not recwarn.list
    same(d, namespace["run"], *ARGS)
    gradient = untrace.decompile(jax.grad(lambda p, x: namespace["run"](p, x).sum()))(*ARGS)
    assert gradient.proof.at_least("hlo")


def test_the_repl(capsys: Any) -> None:
    console = code.InteractiveConsole({"jax": jax, "jnp": jnp, "untrace": untrace, "ARGS": ARGS})
    blank = SOURCE.replace("\n\n    mixed", "\n    mixed")  # an empty line ends a definition in the REPL
    for line in [*blank.split("\n"), "", "d = untrace.decompile(run)(*ARGS)", "print(d.source)", "print(d.proof)"]:
        console.push(line)
    out, err = capsys.readouterr()
    assert "def run(params, x):" in out and "proven: same" in out and not err


def test_python_from_standard_input() -> None:
    lines = "import jax, jax.numpy as jnp, untrace\nf = lambda w, x: jnp.tanh(x @ w)\n"
    lines += "d = untrace.decompile(f)(jnp.ones((3, 4)), jnp.ones(3))\nprint(d.source, d.proof)\n"
    done = subprocess.run([sys.executable, "-i", "-q"], input=lines, capture_output=True, text=True)
    assert "def lambda_(w, x):" in done.stdout and "proven: same" in done.stdout, done.stderr


def test_a_lambda_has_the_name_that_it_is_bound_to() -> None:
    project = lambda w, x: jnp.tanh(x @ w) * 2.0  # noqa: E731
    jitted = jax.jit(lambda w, x: jnp.tanh(x @ w) * 3.0)
    args = jnp.ones((3, 4)), jnp.ones(3)
    for function, name in ((project, "project"), (jitted, "jitted")):
        d = untrace.decompile(function)(*args)
        assert d.name == name and d.proof.at_least("hlo"), d.source
        same(d, function, *args)
    assert untrace.decompile(lambda w, x: x @ w)(*args).name == "lambda_"
    assert untrace.decompile(jax.grad(lambda w, x: (x @ w).sum()))(*args).name == "grad_lambda"
    pair = (lambda x: x + 1, lambda x: x * 2)
    assert untrace.decompile(pair[1])(args[1]).name == "lambda_"


def test_places_have_no_folders_and_no_numbers_of_a_process() -> None:
    assert place_of("/home/me/model.py", 6) == "model.py:6"
    assert place_of(CELLS["terminal"], 6) == "In [3]:6"
    assert place_of(CELLS["kernel"], 6) == "a notebook cell:6"
    assert place_of("<string>", 6) == "<string>:6"


@pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="IPython is not installed")
def test_ipython_itself() -> None:
    script = "from IPython.core.interactiveshell import InteractiveShell\nshell = InteractiveShell.instance()\n"
    script += f"shell.run_cell('import jax, jax.numpy as jnp, untrace')\nshell.run_cell({SOURCE!r})\n"
    run = "d = untrace.decompile(run)({'w': jnp.ones((8, 8))}, jnp.ones((4, 8))); print(d.source)"
    script += f"shell.run_cell({run!r})\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "mixed = attention(shifted, x)" in done.stdout, done.stdout + done.stderr
