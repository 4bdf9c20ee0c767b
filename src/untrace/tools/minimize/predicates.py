"""What has to hold of a program while it is made smaller: the faults that there are words for, and the user's own."""

from __future__ import annotations

import abc
import ast
import dataclasses
import importlib.util
import inspect
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np

from untrace._errors import OptionError, raised_in
from untrace.ir.types import Data
from untrace.tools.minimize.case import Case
from untrace.tools.minimize.runner import Died, Outcome, Raised, Ran, Runner, TimedOut


class Predicate(abc.ABC):
    """What has to hold. A fault is the same one where it has the same signature."""

    @property
    @abc.abstractmethod
    def words(self) -> str:
        """The predicate, as a person would write it."""

    @abc.abstractmethod
    def signature(self, runner: Runner, case: Case) -> Hashable | None:
        """What the fault of a program looks like; None where it has none."""

    @property
    def limit(self) -> float | None:
        """Seconds after which a run of a candidate says nothing more; None where the program's own time tells."""
        return None

    def eagerly(self) -> Predicate | None:
        """The same, operation by operation, for programs that XLA does not come to an end with; None where that is another fault."""
        return None

    def is_suspect(self, inputs: Sequence[Data], outputs: Sequence[Data]) -> bool:
        """Whether an equation that gives this for that may be the fault alone: such ones are tried first."""
        return False

    def why_not(self, runner: Runner, case: Case) -> str:
        """Why it does not hold of a program, where there is more to say than that."""
        return ""

    def shown(self, name: str) -> Sequence[str]:
        """Statements that show the fault of a function of this name, called on `ARGS`."""
        return [f"print(jax.jit({name})(*ARGS))"]


@dataclass(frozen=True)
class Crashes(Predicate):
    """The jitted program raises, or its process dies. `how`: "jit", or "eager" for operation by operation."""

    how: str = "jit"

    @property
    def words(self) -> str:
        return f"crashes({'' if self.how == 'jit' else repr(self.how)})"

    def signature(self, runner: Runner, case: Case) -> Hashable | None:
        return _crash(runner.run(case, self.how))


@dataclass(frozen=True)
class Hangs(Predicate):
    """The jitted program gives nothing in `seconds`."""

    seconds: float = 20.0
    how: str = "jit"

    @property
    def words(self) -> str:
        return f"hangs({self.seconds:g})"

    @property
    def limit(self) -> float | None:
        return self.seconds

    def signature(self, runner: Runner, case: Case) -> Hashable | None:
        return "hangs" if isinstance(runner.run(case, self.how, seconds=self.seconds), TimedOut) else None


@dataclass(frozen=True)
class NonFinite(Predicate):
    """A result is a NaN or an infinity, where all arguments are finite. `kind`: "nan", "inf", or "" for either."""

    kind: str = ""
    how: str = "jit"

    @property
    def words(self) -> str:
        return f"nonfinite({self.kind!r})" if self.kind else "nonfinite()"

    def signature(self, runner: Runner, case: Case) -> Hashable | None:
        if any(_kinds(a) for a in case.args):
            return None
        outcome = runner.run(case, self.how)
        if not isinstance(outcome, Ran):
            return None
        found = set().union(*map(_kinds, outcome.outputs)) if outcome.outputs else set()
        if self.kind:
            return self.kind if self.kind in found else None
        # The same fault: a NaN is one wherever there is one.
        return "nan" if "nan" in found else "inf" if found else None

    def eagerly(self) -> Predicate | None:
        return dataclasses.replace(self, how="eager") if self.how == "jit" else None

    def is_suspect(self, inputs: Sequence[Data], outputs: Sequence[Data]) -> bool:
        return any(map(_kinds, outputs)) and not any(map(_kinds, inputs))


@dataclass(frozen=True)
class Setting:
    """A way to run a program. `config`: settings of jax.config. `python`: an executable with JAX; this one for ""."""

    how: str = "jit"
    config: Mapping[str, object] = field(default_factory=dict)
    python: str = ""

    def run(self, runner: Runner, case: Case) -> Outcome:
        return runner.run(case, self.how, self.config, self.python)

    def shown(self, name: str) -> Sequence[str]:
        """Statements that print what a function gives so. Another Python runs the file by itself."""
        call = f"{name}(*ARGS)" if self.how == "eager" else f"jax.jit({name})(*ARGS)"
        before = [f"before_{n} = jax.config.{key}" for n, key in enumerate(self.config)]
        begun = [f"jax.config.update({key!r}, {value!r})" for key, value in self.config.items()]
        after = [f"jax.config.update({key!r}, before_{n})" for n, key in enumerate(self.config)]
        return [*before, *begun, f"print({str(dict(self.config) or self.how)!r}, {call})", *after]


@dataclass(frozen=True)
class Differs(Predicate):
    """Two ways to run the program give other results: further than `tolerance` of the largest number of a result, or NaNs and
    infinities in other places, or one of them crashes alone."""

    left: Setting
    right: Setting
    tolerance: float = 1e-3
    said: str = "differs()"

    @property
    def words(self) -> str:
        return self.said

    def signature(self, runner: Runner, case: Case) -> Hashable | None:
        ones, others = self.left.run(runner, case), self.right.run(runner, case)
        if not isinstance(ones, Ran) or not isinstance(others, Ran):
            left, right = _crash(ones), _crash(others)
            return None if left == right else ("fails", left, right)
        pairs = zip(ones.outputs, others.outputs, strict=True)
        return "differs" if any(self._far(a, b) for a, b in pairs) else None

    def shown(self, name: str) -> Sequence[str]:
        ways = [setting for setting in (self.left, self.right) if not setting.python]
        return [line for setting in ways or [Setting()] for line in setting.shown(name)]

    def _far(self, one: Data, other: Data) -> bool:
        a, b = np.asarray(_words(one)), np.asarray(_words(other))
        if a.shape != b.shape:
            return True
        if a.dtype.kind in "biu":
            return bool((a != b).any())
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        a, b = a.astype(wide), b.astype(wide)
        finite = np.isfinite(a)
        if (finite != np.isfinite(b)).any() or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return True
        scale = float(np.max(np.abs(a[finite]), initial=0.0))
        return bool((np.abs(a - b)[finite] > self.tolerance * max(scale, 1e-30)).any())


@dataclass(frozen=True)
class CompilesSlowerThan(Predicate):
    """XLA takes longer than `seconds` for the program."""

    seconds: float

    @property
    def words(self) -> str:
        return f"compiles_slower_than({self.seconds:g})"

    def signature(self, runner: Runner, case: Case) -> Hashable | None:
        outcome = runner.run(case, "compile")
        is_slow = isinstance(outcome, TimedOut) or isinstance(outcome, Ran) and outcome.seconds > self.seconds
        return "slow" if is_slow else None


@dataclass(frozen=True)
class Own(Predicate):
    """The user's predicate: `holds(fn, args)`. spec: `file.py:name`, or the function pickled."""

    spec: str | bytes
    said: str

    @property
    def words(self) -> str:
        return self.said

    def signature(self, runner: Runner, case: Case) -> Hashable | None:
        outcome = runner.run(case, "predicate", predicate=self.spec)
        return "holds" if isinstance(outcome, Ran) and outcome.holds else None

    def why_not(self, runner: Runner, case: Case) -> str:
        outcome = runner.run(case, "predicate", predicate=self.spec)
        return f"it raised {outcome.kind}: {outcome.message}" if isinstance(outcome, Raised) else ""


def crashes(how: str = "jit") -> Predicate:
    """The program raises an exception or ends its process. how: "jit", or "eager" for operation by operation."""
    return Crashes(_how(how))


def hangs(seconds: float = 20.0) -> Predicate:
    """The jitted program gives nothing in `seconds`."""
    return Hangs(_positive("hangs", seconds))


def nonfinite(kind: str = "") -> Predicate:
    """A result of the jitted program is a NaN ("nan") or an infinity ("inf"), or either; its arguments are not."""
    if kind not in ("", "nan", "inf"):
        raise OptionError(f'nonfinite({kind!r}) is not known; kinds are "nan", "inf" and "" for either')
    return NonFinite(kind)


def differs(
    left: str | Mapping[str, object] = "jit", right: str | Mapping[str, object] = "eager", tolerance: float = 1e-3
) -> Predicate:
    """Two ways to run the program give results further apart than `tolerance` of the largest number of a result.

    left, right: "jit", "eager" (operation by operation), a dict of settings of jax.config
    (`{"jax_default_matmul_precision": "highest"}`), or the path of another Python, with another JAX.
    """
    said = f"differs({left!r}, {right!r}, {tolerance:g})"
    return Differs(_setting(left), _setting(right), tolerance, said)


def compiles_slower_than(seconds: float) -> Predicate:
    """XLA takes longer than `seconds` to compile the program."""
    return CompilesSlowerThan(_positive("compiles_slower_than", seconds))


BUILT_IN: Mapping[str, Callable[..., Predicate]] = {
    f.__name__: f for f in (crashes, hangs, nonfinite, differs, compiles_slower_than)
}


def predicate_of(given: Predicate | Callable[..., object] | str) -> Predicate:
    """The predicate that a user means: one of the built-in ones, also as source (`hangs(5)`), a function, `file.py:name`.

    Raises OptionError for what is none.
    """
    if isinstance(given, str):
        name, bracket, rest = given.partition("(")
        if name not in BUILT_IN:
            return _in_file(given)
        try:
            call = ast.parse(given if bracket else f"{given}()", mode="eval").body
            assert isinstance(call, ast.Call)
            args = [ast.literal_eval(a) for a in call.args]
            return BUILT_IN[name](*args, **{k.arg or "": ast.literal_eval(k.value) for k in call.keywords})
        except (SyntaxError, ValueError, TypeError, AssertionError) as error:
            raise OptionError(f"{given!r} is no call of {name} with numbers and words: {error}") from error
    if isinstance(given, Predicate):
        return given
    if not callable(given):
        raise OptionError(f"{given!r} is no predicate; there are {', '.join(BUILT_IN)}, and functions of (fn, args)")
    built_in = next((f for f in BUILT_IN.values() if f is given), None)
    return own(given) if built_in is None else built_in()


def _in_file(place: str) -> Predicate:
    path, colon, name = place.rpartition(":")
    if not colon or not name.isidentifier() or not Path(path).is_file():
        known = ", ".join(BUILT_IN)
        raise OptionError(f"{place!r} is no predicate; there are {known}, and one's own as FILE.py:FUNCTION")
    return Own(f"{Path(path).resolve()}:{name}", place)


def own(predicate: Callable[..., object]) -> Predicate:
    """A predicate of the user's, a function of (fn, args). Raises OptionError for one that no other process can have."""
    name = getattr(predicate, "__name__", "predicate")
    if importlib.util.find_spec("cloudpickle") is not None:
        import cloudpickle

        return Own(cloudpickle.dumps(predicate), name)
    file = inspect.getsourcefile(predicate) if inspect.isfunction(predicate) else None
    if file is None or not Path(file).is_file() or predicate.__qualname__ != name or not name.isidentifier():
        raise OptionError(
            f"the predicate {name} cannot be sent to another process: define it at the top of a file,"
            " or install cloudpickle: pip install 'untrace[minimize]'"
        )
    return Own(f"{Path(file).resolve()}:{name}", name)


def _how(how: str) -> str:
    if how not in ("jit", "eager"):
        raise OptionError(f'{how!r} is no way to run a program; there are "jit" and "eager"')
    return how


def _setting(word: str | Mapping[str, object]) -> Setting:
    if isinstance(word, Mapping):
        for name, value in word.items():
            _check_setting(name, value)
        return Setting(config=dict(word))
    if word in ("jit", "eager"):
        return Setting(word)
    if Path(word).is_file():
        return Setting(python=word)
    raise OptionError(f'{word!r} is neither "jit" nor "eager", settings of jax.config, or the path of a Python')


def _check_setting(name: str, value: object) -> None:
    try:
        before = getattr(jax.config, name)
        jax.config.update(name, value)
    except (AttributeError, ValueError, TypeError) as error:
        raise OptionError(f"jax.config takes no {name}={value!r}: {error}") from error
    jax.config.update(name, before)


def _positive(name: str, seconds: float) -> float:
    if not seconds > 0:
        raise OptionError(f"{name}({seconds}): seconds must be positive")
    return seconds


def _crash(outcome: Outcome) -> Hashable | None:
    if isinstance(outcome, Raised):
        return "raised", outcome.kind, _normal(outcome.message)
    if isinstance(outcome, Died):
        reasons = re.findall(r"(?:Check failed|Assertion|LLVM ERROR|Fatal).*", outcome.said)
        return "died", outcome.code, _normal(reasons[-1]) if reasons else ""
    return None


def _normal(message: str) -> str:
    """The first line of a message, and of a traceback in it the exception, without what differs between programs: numbers,
    addresses, names in quotes."""
    line, _, rest = message.strip().partition("\n")
    raised = raised_in(rest)[:200] if "Traceback" in line else ""
    line = f"{line[:200]} {raised}".strip()
    return re.sub(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"|\[[^\]]*\]|%[\w.]+", "…", line)


def _words(value: Data) -> Data:
    return value[1] if isinstance(value, tuple) else value


def _kinds(value: Data) -> set[str]:
    """What an array has of "nan" and "inf"."""
    try:
        array = np.asarray(_words(value))
        if array.dtype.kind in "biuO":
            return set()
        array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    except (TypeError, ValueError):
        return set()  # of keys
    found = {"nan"} if np.isnan(array).any() else set()
    return found | ({"inf"} if np.isinf(array).any() else set())
