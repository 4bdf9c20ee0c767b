"""`untrace write --torch`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:  # not imported here: by itself it does not load under PyTorch 2.13
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)


def test_command_line(tmp_path):
    (tmp_path / "net.py").write_text("from torch import nn\nnet = nn.Sequential(nn.Linear(4, 3), nn.Tanh())\n")
    command = [sys.executable, "-m", "untrace", "write", "--torch", "net.py:net", "f32[2,4]", "-o", "out.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "against PyTorch" in done.stdout + done.stderr
    assert "jnp.tanh(" in (tmp_path / "out.py").read_text()
    assert "_checked(" in (tmp_path / "out.py").read_text()
    done = subprocess.run([*command, "--force", "--no-guard"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "_checked(" not in (tmp_path / "out.py").read_text()


def test_command_line_with_a_second_example(tmp_path):
    (tmp_path / "net.py").write_text("from torch import nn\nnet = nn.Sequential(nn.Linear(4, 3), nn.Tanh())\n")
    command = [sys.executable, "-m", "untrace", "write", "--torch", "net.py:net", "f32[2,4]", "--force", "-o", "out.py"]
    done = subprocess.run([*command, "--also", "f32[5,4]"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the same text at" in (tmp_path / "out.py").read_text()
    refused = subprocess.run([*command, "--also", "x=f32[5,4] f32[2]"], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode != 0 and "all of them by name" in refused.stderr
