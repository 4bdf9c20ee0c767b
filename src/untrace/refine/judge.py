"""Judges answers in a process of its own, for whatever they do to it: does the edited text come back as the program that it was?

An answer that was let in (`allowed`) is traced beside the text that it changes, on every set of arguments at which that was
proven and on one more of sizes drawn anew. It is taken where the jaxprs are the same. Where the text itself was proven less,
the compiled programs, or the bits, may be what agrees, of the function and of its derivative.
"""

from __future__ import annotations

import ast
import contextlib
import os
import pickle
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from types import CodeType, FrameType
from typing import Any, TypeAlias

import numpy as np

from untrace._errors import OptionError
from untrace._processes import Ended, Process, Silent
from untrace.refine.functions import places
from untrace.refine.sizes import TracedCall

_STARTS = 180.0  # seconds in which a process has to import JAX and to trace the text
_MEMORY = 6 << 30  # bytes that an answer may take beside what was there before


@dataclass(frozen=True)
class Text:
    """A module to be changed. `name`: its entry. `level`: at which it was proven. `calls`: at which arguments."""

    source: str
    name: str
    arrays: Mapping[str, np.ndarray]
    level: str
    calls: Sequence[TracedCall]


class Judge:
    """Asks the process, and starts another where one hangs or dies. seconds: the limit of one answer."""

    def __init__(self, text: Text, seconds: float) -> None:
        self._text, self._seconds = text, seconds
        self._process: Process | None = None

    def refusal(self, function: str, source: str) -> str:
        """Why `source`, with another text of `function`, is not the same program; "" where it is."""
        process = self._process = self._process or self._begun()
        try:
            process.send((function, source))
            return process.answer(self._seconds)
        except Silent:
            why = f"it is not traced within {self._seconds:g} seconds"
        except Ended as error:
            why = f"it ended the process that traced it: {_last_line(error)}"
        self.close()
        return why

    def change(self, source: str) -> None:
        """From now on `source`, which was not refused, is the text that is changed."""
        self._text = replace(self._text, source=source)
        if self._process is not None:
            try:
                self._process.send(("", source))
            except Ended:
                self.close()

    def _begun(self) -> Process:
        pickled = _pickled(self._text)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        process = Process([sys.executable, "-m", "untrace.refine.judge"], environment)
        try:
            process.send((_settings(), pickled))
            wrong = process.answer(_STARTS)
        except Silent:
            wrong = "it takes too long"
        except Ended as error:
            wrong = _last_line(error)
        if wrong:
            process.close()
            raise OptionError(f"the text cannot be traced in another process, where answers are judged: {wrong}")
        return process

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _last_line(error: Ended) -> str:
    """What the process said last, or how it ended."""
    lines = error.said.strip().splitlines()
    return lines[-1] if lines else str(error)


def _pickled(text: Text) -> bytes:
    """Raises OptionError where the arguments cannot go to another process."""
    try:
        return pickle.dumps(text)
    except Exception as error:  # whatever a class of the user's raises
        raise OptionError(
            "answers are judged in another process, and the arguments cannot be sent there: "
            f"{type(error).__name__}: {str(error)[:200]}. Put their classes into a module that can be imported."
        ) from None


def _settings() -> dict[str, bool | int | float | str | None]:
    import jax

    return {k: v for k, v in jax.config.values.items() if isinstance(v, (bool, int, float, str, type(None)))}


# ------------------------------------------------------------------ in the process


def main() -> None:
    # What is printed must not stand among the answers.
    requests, answers = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    import jax

    settings, data = requests.recv()
    for name, value in settings.items():
        if jax.config.values.get(name, value) != value:
            jax.config.update(name, value)
    try:
        reference = _Reference(pickle.loads(data))
    except Exception as error:
        answers.send(f"{type(error).__name__}: {str(error)[:500]}")
        return
    _limit_memory()
    answers.send("")
    while True:
        try:
            function, source = requests.recv()
        except EOFError:
            return
        if not function:
            reference.change(source)
            continue
        try:
            answers.send(reference.refusal(function, source))
        except MemoryError:
            answers.send("it takes too much memory")
        except RecursionError:
            answers.send("it never comes to an end: RecursionError")


def _limit_memory() -> None:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + _MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


class _Reference:
    """The text as it is, traced, and candidates held against it."""

    def __init__(self, text: Text) -> None:
        from untrace.refine.sizes import with_another_size

        self._text = text
        self._source = text.source
        self._known: list[_Programs] | None = None
        self._compiled: dict[Callable[..., Any], str] = {}
        module = self._loaded(text.source)
        self._function = getattr(module, text.name)
        self._calls = list(text.calls)
        self._traces = [self._trace(self._function, call) for call in self._calls]
        another = with_another_size(self._calls)
        if another is not None:
            with contextlib.suppress(Exception):  # these sizes may not go together
                self._traces.append(self._trace(self._function, another))
                self._calls.append(another)

    def change(self, source: str) -> None:
        self._source = source

    def _loaded(self, source: str) -> Any:
        from untrace.prove.load import load_text

        return load_text(source, self._text.name, dict(self._text.arrays))

    def _trace(self, function: Callable[..., Any], call: TracedCall) -> Any:
        import jax

        from untrace.prove.retrace import whole_call

        args, kwargs, static = call
        return jax.make_jaxpr(whole_call(function, static))(*args, **kwargs)

    def refusal(self, name: str, source: str) -> str:
        from untrace.jaxprs.equal.compare import compare, count_equations

        try:
            module = self._loaded(source)
        except Exception as error:
            return f"the text does not load with it: {type(error).__name__}: {str(error)[:200]}"
        function = getattr(module, self._text.name)
        differs = ""
        with _ran(str(module.__file__)) as ran:
            for call, trace in zip(self._calls, self._traces, strict=True):
                try:
                    again = self._trace(function, call)
                except (MemoryError, RecursionError):
                    raise
                except Exception as error:
                    return f"it does not trace: {type(error).__name__}: {str(error)[:200]}"
                difference = compare(trace, again).difference
                differs = differs or (difference.why if difference is not None else "")
                if count_equations(again) > count_equations(trace):
                    return "it computes more than the text does"
        unseen = _unseen(self._source, source, name, ran)
        if unseen:
            return unseen
        if differs and not self._agrees(function):
            return f"it is another program: {differs}"
        return ""

    def _agrees(self, function: Callable[..., Any]) -> bool:
        """Whether what was less than the same jaxpr before is as much as that again, at all arguments."""
        if self._text.level not in ("hlo", "bits"):
            return False
        from untrace.prove import hlo
        from untrace.prove.run import compare_runs

        for programs, theirs in zip(self._programs(), _programs(function, self._calls), strict=True):
            for (known, inputs), (candidate, _) in zip(programs, theirs, strict=True):
                if known not in self._compiled:
                    self._compiled[known] = hlo.optimised_text(known, inputs)
                if self._compiled[known] == hlo.optimised_text(candidate, inputs) != "":
                    continue
                if self._text.level == "hlo" or compare_runs(known, candidate, inputs).differences:
                    return False
        return True

    def _programs(self) -> list[_Programs]:
        if self._known is None:
            self._known = _programs(self._function, self._calls)
        return self._known


_Programs: TypeAlias = list[tuple[Callable[..., Any], Sequence[Any]]]


def _programs(function: Callable[..., Any], calls: Sequence[TracedCall]) -> list[_Programs]:
    """For each call the function of its flat arguments, and the derivative of that where it has one, with their inputs."""
    import jax

    from untrace.prove.retrace import whole_call

    found: list[_Programs] = []
    for args, kwargs, static in calls:
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        flat = _flat(whole_call(function, static), tree)
        found.append([(flat, leaves)])
        cotangents = _cotangents(flat, leaves)
        if cotangents:
            found[-1].append((_derivative(flat, len(leaves)), [*leaves, *cotangents]))
    return found


def _flat(function: Callable[..., Any], tree: Any) -> Callable[..., Any]:
    import jax

    def flat(*leaves: Any) -> Any:
        args, kwargs = jax.tree_util.tree_unflatten(tree, leaves)
        return jax.tree_util.tree_leaves(function(*args, **kwargs))

    return flat


def _is_real(aval: Any) -> bool:
    import jax.numpy as jnp

    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def _cotangents(function: Callable[..., Any], leaves: Sequence[Any]) -> list[Any]:
    """The types of the results that have cotangents; none where nothing can be differentiated."""
    import jax

    if not any(map(_is_real, leaves)):
        return []
    return [x for x in jax.eval_shape(function, *leaves) if _is_real(x)]


def _derivative(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The cotangents of the first `count` arguments, from those arguments and the cotangents of the results."""
    import jax

    def derivative(*inputs: Any) -> Any:
        leaves, cotangents = list(inputs[:count]), list(inputs[count:])
        places = [i for i, x in enumerate(leaves) if _is_real(x)]

        def of_some(*some: Any) -> Any:
            whole = list(leaves)
            for i, x in zip(places, some, strict=True):
                whole[i] = x
            return [y for y in function(*whole) if _is_real(y)]

        return jax.vjp(of_some, *[leaves[i] for i in places])[1](cotangents)

    return derivative


@dataclass(frozen=True, slots=True)
class _Ran:
    """What ran of a file: lines, and code objects by name and first line."""

    lines: set[int]
    codes: set[tuple[str, int]]


@contextlib.contextmanager
def _ran(path: str) -> Iterator[_Ran]:
    found = _Ran(set(), set())

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            found.lines.add(frame.f_lineno)
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        code: CodeType = frame.f_code
        if code.co_filename != path:
            return None
        found.codes.add((code.co_name, code.co_firstlineno))
        return line

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield found
    finally:
        sys.settrace(before)


def _unseen(before: str, after: str, name: str, ran: _Ran) -> str:
    """What of an edited function is new and did not run, so that nothing is known of it."""
    old = {ast.dump(n) for n in ast.walk(places(before)[name].node) if isinstance(n, (ast.stmt, ast.Lambda))}
    function = places(after)[name].node
    body = ast.walk(function)
    for node in body:
        if node is function or not isinstance(node, (ast.stmt, ast.Lambda)) or ast.dump(node) in old:
            continue
        if isinstance(node, ast.Lambda):
            reached = ("<lambda>", node.lineno) in ran.codes
        else:
            reached = not ran.lines.isdisjoint(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            reached = reached or isinstance(node, ast.Pass) or _is_docstring(node)
        if not reached:
            return f"it is not reached when the program is traced, so that nothing is known of it (line {node.lineno})"
    if not any(code[0] == name for code in ran.codes):
        return "the function is not called when the program is traced, so that nothing is known of it"
    return ""


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and type(node.value.value) is str


if __name__ == "__main__":
    main()
