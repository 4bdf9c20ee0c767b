"""Functions of JAX that are others for a while: for one thread, and for that while only."""

import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
