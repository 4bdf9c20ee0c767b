"""What PyTorch's random numbers leave behind in a process: nothing of a trace."""

from __future__ import annotations

import importlib.util
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'untrace[torch]' (Python 3.11)")
if importlib.util.find_spec("torchax") is None:  # not imported here: by itself it does not load under PyTorch 2.13
    pytest.skip("torchax is not installed: pip install 'untrace[torch]'", allow_module_level=True)

import untrace  # noqa: E402
from untrace.torch.environment import environment  # noqa: E402


def test_the_keys_of_a_thread_are_no_tracers() -> None:
    found = []

    def work() -> None:
        torch.manual_seed(0)
        untrace.from_torch(torch.nn.Linear(3, 2).eval())(torch.randn(4, 3))
        env = environment()
        with env:
            found.append(env.t2j_iso(torch.zeros(5).normal_()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == 1 and found[0].shape == (5,)
