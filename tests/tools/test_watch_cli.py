"""`untrace watch` on the command line."""

import json

import pytest

from untrace import cli

SOURCE = """
import jax.numpy as jnp

def f(x):
    y = jnp.sin(x)
    return y / x

def args():
    return (jnp.arange(3.0),)
"""


@pytest.fixture
def target(tmp_path, monkeypatch):
    (tmp_path / "watched_model.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return "watched_model.py:f"


def test_text_and_json(target, capsys):
    assert cli.main(["watch", target, "@watched_model.py:args"]) == 0
    out, err = capsys.readouterr()
    assert "y = jnp.sin(x)   f32[3]" in out and "watched_model.py:5" in out and "nan: 1" in out
    assert "drawn" not in err
    assert cli.main(["watch", target, "@watched_model.py:args", "--json", "--only", "first non-finite"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["nan"] == 1


def test_runs_are_saved_and_compared(target, capsys):
    assert cli.main(["watch", target, "f32[3]", "--save", "run.npz"]) == 0
    assert "values that are drawn, with --seed 0" in capsys.readouterr().err
    assert cli.main(["watch", target, "f32[3]", "--compare", "run.npz"]) == 0
    assert "no statement differs" in capsys.readouterr().out
    assert cli.main(["watch", target, "f32[3]", "--compare", "run.npz", "--seed", "1"]) == 1
    assert "the first statement that differs: x" in capsys.readouterr().out
    assert cli.main(["watch", target, "f32[3]", "--save", "run.npz"]) == 2
    assert "--force" in capsys.readouterr().err
    assert cli.main(["watch", target, "f32[3]", "--compare", "none.npz"]) == 2
