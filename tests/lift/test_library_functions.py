"""Public functions of JAX: each comes back as the call that it is, and not as what is inside of it."""

from __future__ import annotations

import contextlib
import importlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lift_idioms import lifted

from untrace.ir.nodes import Library

V, W, U = np.linspace([0.15, 0.9, 1.2], [0.85, 0.2, 2.9], 6, axis=1).astype(np.float32)
M = (4 * np.eye(4) + np.linspace(0.1, 1.3, 16).reshape(4, 4)).astype(np.float32)
# Arguments to try, until a function takes some.
GIVEN = [(V,), (M,), (V, W), (M, M), (V, W, U), (U, V, W, V), (np.arange(6),), (V > 0.5,), (V, 2), (2, V), (V * 1j,)]

MODULES = [
    "jax.numpy.linalg", "jax.numpy.fft", "jax.nn", "jax.scipy.special", "jax.scipy.linalg", "jax.scipy.signal",
    "jax.scipy.fft", "jax.scipy.stats",
]  # fmt: skip
# What is inside of these is written: a derivative rule has the order of `expn`, the others' numbers stand on the author's line.
WITHOUT_A_CALL = {"expn", "multigammaln", "one_hot", "polygamma", "stft"}


def functions(path):
    """(name, function) of the functions of a module and of those in it, as `norm.logpdf`."""
    module = importlib.import_module(path)
    for name, value in vars(module).items():
        if inspect.ismodule(value) and value.__name__.startswith("jax.scipy.stats"):
            yield from [(f"{name}.{inner}", function) for inner, function in functions(value.__name__)]
        elif callable(value) and not name.startswith("_") and not isinstance(value, type):
            yield name, value


def program_of_call(function):
    """The program of a call of it, after library calls were found; None where it takes no arguments of these."""
    for given in GIVEN:
        arrays = [a for a in given if isinstance(a, np.ndarray)]

        def call(*xs, given=given):
            rest = iter(xs)
            return function(*[next(rest) if isinstance(a, np.ndarray) else a for a in given])

        with contextlib.suppress(Exception):
            if jax.make_jaxpr(call)(*arrays).eqns:
                return lifted(call, [jnp.asarray(a) for a in arrays])[1]
    return None


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("path", MODULES)
def test_a_public_function_is_called(path):
    found = {name: program_of_call(function) for name, function in functions(path)}
    tried = {name: program.entry.equations for name, program in found.items() if program is not None}
    assert len(tried) > len(found) / 3
    long = [
        n
        for n, equations in tried.items()
        if len(equations) > 2 or any(type(e.callee) is not Library for e in equations)
    ]
    assert not {name.rpartition(".")[2] for name in long} - WITHOUT_A_CALL
