"""Runs candidates in a process of its own, for whatever they do to it: one request after the other on stdin.

Needs JAX and nothing of untrace, so that another Python, with another JAX, can run it: `python worker.py`, with a pipe of
multiprocessing.connection as its stdin and one as its stdout. It says `jax`, its version, and `process`, its number, when it is
ready, and `died`, the exit status, when a program has ended it and another one is about to be. A request is a dict: `path` and
`name` of a module's function, `args`, `callables` (what it calls back, pickled), `places` (where modules that those need may be
found), `how` ("jit", "eager", "compile" or "predicate"), `settings` of jax.config, `predicate`. An answer is a dict with
`outputs`, `seconds`, `holds`, or `raised`: (the exception's type, its message).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, TypedDict


class Request(TypedDict):
    """What the worker is asked."""

    path: str
    name: str
    args: list[Any]
    callables: Mapping[str, bytes]
    places: list[str]
    how: str
    settings: Mapping[str, object]
    predicate: str | bytes


class Answer(TypedDict, total=False):
    """What it answers: that it is ready (`jax`, `process`), that it has `died`, or what came of a request."""

    jax: str
    process: int
    died: int
    outputs: list[Any]
    seconds: float
    holds: bool
    raised: tuple[str, str]


_PREDICATES: dict[str | bytes, Callable[..., object]] = {}


def main() -> None:
    # What the program prints must not stand among the answers.
    requests, answers = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    import jax

    warnings.filterwarnings("ignore", message=".*fork.*")
    while hasattr(os, "fork"):
        # The one that has imported JAX stays as it is: what a program ends is a copy, and the next one starts at once.
        child = os.fork()
        if not child:
            break
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        answers.send(Answer(died=code))
    answers.send(Answer(jax=jax.__version__, process=os.getpid()))
    while True:
        try:
            request = requests.recv()
        except EOFError:
            os._exit(0)
        try:
            answers.send(_answer(request))
        except Exception as error:
            answers.send(Answer(raised=(type(error).__name__, str(error))))


def _answer(request: Request) -> Answer:
    import jax

    sys.path.extend(place for place in request["places"] if place not in sys.path)
    with _settings(request["settings"]):
        function = _function(request)
        args = [_array(value) for value in request["args"]]
        if request["how"] == "predicate":
            return {"holds": bool(_predicate(request["predicate"])(function, args))}
        if request["how"] == "compile":
            lowered = jax.jit(function).lower(*args)
            start = time.perf_counter()
            lowered.compile()
            return {"seconds": time.perf_counter() - start}
        run = function if request["how"] == "eager" else jax.jit(function)
        return {"outputs": [_numpy(value) for value in run(*args)]}


@contextlib.contextmanager
def _settings(settings: Mapping[str, object]) -> Iterator[None]:
    import jax

    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def _function(request: Request) -> Callable[..., Any]:
    path = request["path"]
    names: Any = {"__name__": "candidate", "__file__": path}
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), names)
    for stand_in, function in request["callables"].items():
        names[stand_in].function = pickle.loads(function)
    return names[request["name"]]


def _array(value: Any) -> Any:
    """A value as the program takes it: (implementation, words) of a key."""
    import jax

    if isinstance(value, tuple):
        return jax.random.wrap_key_data(value[1], impl=value[0])
    return value if isinstance(value, (bool, int, float, complex)) else jax.numpy.asarray(value)


def _numpy(value: Any) -> Any:
    import jax
    import numpy as np

    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return str(jax.random.key_impl(value)), np.asarray(jax.random.key_data(value))
    return np.asarray(value)


def _predicate(spec: str | bytes) -> Callable[..., object]:
    """The predicate that `FILE.py:FUNCTION` names, or that was pickled."""
    if spec not in _PREDICATES:
        if isinstance(spec, bytes):
            _PREDICATES[spec] = pickle.loads(spec)
        else:
            path, _, name = spec.rpartition(":")
            found = importlib.util.spec_from_file_location("predicate", path)
            assert found is not None and found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules["predicate"] = module
            found.loader.exec_module(module)
            _PREDICATES[spec] = getattr(module, name)
    return _PREDICATES[spec]


if __name__ == "__main__":
    main()
