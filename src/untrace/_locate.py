"""Finds what the command line names: `model.py:loss`, `package.module:loss`, `@args.py:make`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from untrace._errors import CaptureError, OptionError


def load(spec: str) -> Any:
    """The object that `spec` names: `FILE.py:NAME` or `module.path:NAME`, dots in NAME allowed.

    Without `:NAME`, the only public function of the file.  The file's folder is importable while it
    runs and afterwards, as if Python had been started on the file.

    Raises `OptionError` when there is no such file, module or name, and `CaptureError` when the
    file cannot be imported.
    """
    place, name = _split(spec)
    module = load_module(place)
    if not name:
        name = _only_function(module, place)
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise OptionError(_missing(place, name, part, found)) from None
    return found


def load_module(place: str) -> ModuleType:
    """The module that `FILE.py` or `module.path` names; raises as `load` does."""
    return _import_file(Path(place)) if is_file(place) else _import_module(place)


def load_function(spec: str) -> Callable[..., Any]:
    """The callable that `spec` names; see `load`."""
    found = load(spec)
    if not callable(found):
        kind = type(found).__name__
        raise OptionError(f"{spec} is no function but a value of type {kind}.")
    return found


def load_args(spec: str) -> tuple[Any, ...]:
    """The positional arguments that `@FILE.py:NAME` stands for (`spec` is without the `@`).

    A function is called without arguments.  A tuple stands for several positional arguments,
    anything else for one.
    """
    made = load(spec)
    if callable(made):
        place, _ = _split(spec)
        try:
            made = made()
        except Exception as error:
            where = _line_in(error, place)
            raise CaptureError(f"{spec} failed{where}: {describe(error)}") from error
    return made if isinstance(made, tuple) else (made,)


def source_file(spec: str) -> Path | None:
    """The file that `spec` names, or None for a module path."""
    place, _ = _split(spec)
    return Path(place) if is_file(place) else None


def defining_file(spec: str) -> Path | None:
    """The file of the module that `spec` names, also where that is a dotted path; None where it has none."""
    place, _ = _split(spec)
    file = Path(load_module(place).__file__ or "")
    return file if file.is_file() else None


def is_file(place: str) -> bool:
    """Is `place` a file's path rather than a dotted module path?"""
    return place.endswith(".py") or "/" in place or "\\" in place


def describe(error: BaseException) -> str:
    """`error` as Python prints it on its last line: its type and its message."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def closest(word: str, known: list[str]) -> str:
    """A "did you mean" for `word`, with a space before it, or the empty text."""
    matches = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def _split(spec: str) -> tuple[str, str]:
    if ":" not in spec:
        return spec, ""
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise OptionError(f"{spec!r} names no function; write it as FILE.py:NAME.")
    return place, name


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise OptionError(_missing_file(path))
    path = path.resolve()
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path):
            return module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    # Under its own name, so that a class of the file can be imported by what is written; under
    # another one where that name is taken (a `random.py`, or two files of one name).
    name = path.stem
    while name in sys.modules or name in sys.stdlib_module_names:
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path} is no Python file; its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        where = _line_in(error, str(path))
        raise CaptureError(f"{path} could not be imported{where}: {describe(error)}") from error
    return module


def _import_module(place: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # Only when the module itself is missing, not one that it imports.
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            hint = f" Did you mean the file {place}.py?" if Path(f"{place}.py").is_file() else ""
            raise OptionError(f"there is no module {error.name!r}.{hint}") from None
        raise CaptureError(f"{place} could not be imported: {describe(error)}") from error
    except (Exception, SystemExit) as error:
        raise CaptureError(f"{place} could not be imported: {describe(error)}") from error


def _functions(owner: Any) -> list[str]:
    """The public functions that `owner` defines itself, in its own order."""
    home = getattr(owner, "__name__", None)
    return [
        name
        for name, value in vars(owner).items()
        if not name.startswith("_")
        and callable(value)
        and not isinstance(value, type)
        and (not isinstance(owner, ModuleType) or getattr(value, "__module__", None) == home)
    ]


def _only_function(module: ModuleType, place: str) -> str:
    names = _functions(module)
    if len(names) == 1:
        return names[0]
    has = f"it has {', '.join(names)}" if names else "it has none"
    raise OptionError(f"say which function of {place} is meant, as {place}:NAME; {has}.")


def _missing(place: str, name: str, part: str, owner: Any) -> str:
    names = _functions(owner) if hasattr(owner, "__dict__") else []
    message = f"{place} has no function {name!r}"
    message += f"; it has {', '.join(names)}." if names else " (and no public function at all)."
    return message + closest(part, names)


def _missing_file(path: Path) -> str:
    folder = path.parent
    if path.is_dir():
        return f"{path} is a folder; name a file in it."
    if not folder.is_dir():
        return f"there is no folder {folder}, and so no file {path}."
    beside = sorted(p.name for p in folder.glob("*.py"))
    return f"there is no file {path}." + closest(path.name, beside)


def _line_in(error: BaseException, place: str) -> str:
    """ " (line N)": the last line of the file `place` that ran before `error`, or the empty text."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f" (line {error.lineno})"
    line = None
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_file(place) and Path(file).name == Path(place).name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" (line {line})" if line is not None else ""
