"""A fault in a lift costs a user readability only; here it is an error.

XLA compiles without LLVM's costly optimisations: tests run what they compile once or twice, and most of their time was this. The
benches run with XLA as it is.
"""

import importlib.metadata
import os

os.environ["UNTRACE_STRICT"] = "1"
_FLAGS = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
if importlib.metadata.version("jaxlib").startswith("0.10."):  # a later one has no such emitters, and refuses the flag
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(_FLAGS))


import functools  # noqa: E402

import hypothesis  # noqa: E402
import pytest  # noqa: E402

import untrace  # noqa: E402

# Timings belong in benches: what compiles takes as long as the machine is busy.
hypothesis.settings.register_profile("untrace", deadline=None)
hypothesis.settings.load_profile("untrace")


@pytest.fixture
def unguarded(monkeypatch):
    """Texts without a guard, for tests that look for something else in them."""
    monkeypatch.setattr(untrace, "decompile", functools.partial(untrace.decompile, guard=False))
    monkeypatch.setattr(untrace, "from_jaxpr", functools.partial(untrace.from_jaxpr, guard=False))


@pytest.fixture
def as_given(monkeypatch):
    """Texts for the sizes of the example alone, without a guard: for tests that look for numbers in them."""
    monkeypatch.setattr(untrace, "decompile", functools.partial(untrace.decompile, guard=False, sizes="fixed"))


@pytest.fixture
def written_out(monkeypatch):
    """Texts without calls of derivatives, for tests of how backward parts are written."""
    monkeypatch.setattr(untrace, "decompile", functools.partial(untrace.decompile, derivatives="written"))
