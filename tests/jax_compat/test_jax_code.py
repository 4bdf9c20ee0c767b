"""Functions of JAX that are others for a while: for one thread, and for that while only."""

import importlib.util
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import pytest

from untrace import jax_compat
from untrace.jax_compat.jax_code import replaced


def test_a_replaced_function_is_another_for_this_thread_alone_and_only_inside() -> None:
    module: Any = types.SimpleNamespace(function=lambda: "own")
    with ThreadPoolExecutor(1) as pool:
        with replaced(module, function=lambda: "other"):
            taken = module.function
            assert taken() == "other"
            assert pool.submit(taken).result() == "own"
        # Another thread may have taken it meanwhile, and hands on what it calls to this one.
        assert taken() == module.function() == "own"


def test_what_a_module_does_not_have_stays_missing() -> None:
    module: Any = types.SimpleNamespace()
    with replaced(module, function=lambda: "other"):
        assert not hasattr(module, "function")


def test_a_module_that_is_loaded_meanwhile_has_its_own_functions_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loaded_late.py").write_text("from jax import device_count\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.find_spec("loaded_late")
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "loaded_late", module)
    spec.loader.exec_module(module)
    asked: list[str] = []
    with jax_compat.intercepted_questions(asked.append):
        module.device_count()
    assert asked == ["device_count"] and module.device_count is jax.device_count
