"""`untrace dump`: all that there is to know of a program, as numbered files of one folder."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from untrace import _locate
from untrace._api import Decompiled, decompile
from untrace._errors import OptionError, OutputExistsError, UntraceError
from untrace._version import __version__
from untrace.prove.hlo import without_places
from untrace.tools.doctor.api import doctor
from untrace.tools.lint.api import lint
from untrace.tools.stages.api import stages
from untrace.tools.values import with_values
from untrace.tools.watch import watch
from untrace.tools.watched import Watched

INDEX = "00_index.txt"
_FILES = "What each file was, by its SHA-256: a later dump replaces these, and nothing else."
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, eq=False)
class Subject:
    """A program, and what several of the files are made of. `file`: the author's; `seed`: of values that are drawn."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    file: Path | None = None
    seed: int = 0

    @cached_property
    def exact(self) -> Decompiled:
        return decompile(self.function, style="exact")(*self.args, **self.kwargs)

    @cached_property
    def written(self) -> Decompiled:
        return decompile(self.function)(*self.args, **self.kwargs)

    @cached_property
    def watched(self) -> Watched:
        args, kwargs, _ = with_values(self.args, self.kwargs, self.seed)
        return watch(self.written)(*args, **kwargs)

    @cached_property
    def lowered(self) -> jax.stages.Lowered:
        return jax.jit(self.function).lower(*self.args, **self.kwargs)


@dataclass(frozen=True)
class Part:
    """A file or folder of a dump. `write` makes it at a path, under `name` there, and gives a remark for the index, or ""."""

    number: int
    name: str
    what: str
    write: Callable[[Subject, Path], str]

    @property
    def path(self) -> str:
        return f"{self.number:02}_{self.name}"


def _text(of: Callable[[Subject], str]) -> Callable[[Subject, Path], str]:
    """Writes a text, without addresses: those are others in each run."""

    def write(subject: Subject, path: Path) -> str:
        path.write_text(_ADDRESS.sub("", of(subject)).rstrip("\n") + "\n", encoding="utf-8", newline="\n")
        return ""

    return write


def _module(of: Callable[[Subject], Any]) -> Callable[[Subject, Path], str]:
    """Saves a text of ours, with its data; the remark is what was proven."""

    def write(subject: Subject, path: Path) -> str:
        text = of(subject)
        text.save(path)
        return str(text.proof)

    return write


def _page(subject: Subject, path: Path) -> str:
    stages(subject.function)(*subject.args, **subject.kwargs).save(path)
    return ""


def _source(subject: Subject, path: Path) -> str:
    if subject.file is None:
        raise OptionError("the function comes from no file")
    shutil.copyfile(subject.file, path)
    return ""


def _jaxpr(subject: Subject) -> str:
    return jax.make_jaxpr(subject.function)(*subject.args, **subject.kwargs).pretty_print(use_color=False)


def _annotated(subject: Subject) -> str:
    return subject.written.source_map.annotated(subject.written.source)


def _values(subject: Subject) -> str:
    return str(subject.watched)


def _json(subject: Subject) -> str:
    return "\n".join(subject.watched.json_lines())


# What a tool has to say of a program is one line here, and in the index and the documentation by that.
PARTS = (
    Part(1, "source.py", "the file that the function comes from", _source),
    Part(2, "jaxpr.txt", "what JAX traces", _text(_jaxpr)),
    Part(3, "written_exact.py", "the program, one statement for each equation", _module(lambda s: s.exact)),
    Part(4, "written.py", "the program as a person would write it", _module(lambda s: s.written)),
    Part(5, "map.txt", "04_written.py with your expression behind each line", _text(_annotated)),
    Part(6, "values.txt", "a run, statement by statement of 04_written.py", _text(_values)),
    Part(6, "values.jsonl", "the same run, a line of JSON for each record", _text(_json)),
    Part(7, "doctor.txt", "where numbers go wrong", _text(lambda s: str(doctor(s.function)(*s.args, **s.kwargs)))),
    Part(7, "lint.txt", "JAX's sharp bits", _text(lambda s: str(lint(s.function)(*s.args, **s.kwargs)))),
    Part(8, "stablehlo.mlir", "what JAX hands to XLA", _text(lambda s: s.lowered.as_text())),
    Part(9, "hlo.txt", "what XLA makes of it", _text(lambda s: without_places(s.lowered.compile().as_text() or ""))),
    Part(10, "numpy.py", "the program for NumPy", _module(lambda s: s.written.to("numpy"))),
    Part(10, "torch.py", "the program for PyTorch", _module(lambda s: s.written.to("torch"))),
    Part(10, "c", "the program in C, with an example and a CMakeLists.txt", _module(lambda s: s.written.to("c"))),
    Part(10, "mpi4py.py", "the program for MPI", _module(lambda s: s.written.to("mpi4py"))),
    Part(11, "stages.html", "all stages side by side, for a browser", _page),
)


@dataclass
class Dumped:
    """What a dump wrote. `made`: parts with their remarks; `missing`: those that could not be made, with the reasons."""

    folder: Path
    made: dict[Part, str] = field(default_factory=dict)
    missing: dict[Part, str] = field(default_factory=dict)

    @property
    def text(self) -> bool:
        """Whether the program could be written at all."""
        return any(part.name.startswith("written") for part in self.made)


def dump(
    subject: Subject, folder: Path, title: str, overwrite: bool = False, progress: Callable[[str], None] | None = None
) -> Dumped:
    """Writes all parts of a dump into `folder`, which is made, and an index; a part that fails stands there with the reason.

    The same program gives the same bytes. Files that an earlier dump wrote are replaced. Raises OutputExistsError where there are
    others, or some were changed, unless `overwrite`: then those of the same names are replaced. progress: is called with each part.
    """
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file; name a folder to write into")
    earlier = _earlier(folder)
    if not overwrite:
        _check(folder, earlier)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"the folder {folder} cannot be made: {error.strerror}") from error
    dumped = Dumped(folder)
    with tempfile.TemporaryDirectory(prefix=".untrace_", dir=folder) as staging:
        for part in PARTS:
            _make(part, subject, Path(staging), dumped)
            if progress is not None:
                progress(
                    f"{part.path}: {dumped.made.get(part, '') or dumped.missing.get(part, 'written')}".split("\n")[0]
                )
        for name, digest in earlier.items():  # what this dump may not have
            if _digest(folder / name) == digest:
                (folder / name).unlink()
        digests = {name: _digest(Path(staging, name)) for name in _files(Path(staging))}
        index = "\n".join(_index(title, dumped, digests)) + "\n"
        Path(staging, INDEX).write_text(index, encoding="utf-8", newline="\n")
        for name in (*digests, INDEX):  # the index last: what it names is there
            _move(Path(staging, name), folder / name)
    return dumped


def _move(made: Path, to: Path) -> None:
    try:
        to.parent.mkdir(exist_ok=True)
        os.replace(made, to)
    except OSError as error:
        raise OptionError(f"{to} cannot be written: {error.strerror}") from error


def _make(part: Part, subject: Subject, staging: Path, dumped: Dumped) -> None:
    """Makes a part in a folder of its own, so that one that fails half-way leaves nothing."""
    with tempfile.TemporaryDirectory(dir=staging) as own:
        try:
            remark = part.write(subject, Path(own, part.path))
        except Exception as error:  # of the function itself, of XLA, of ours: the other parts are made all the same
            reason = str(error) if isinstance(error, UntraceError) else _locate.describe(error)
            same = [earlier.path for earlier, theirs in dumped.missing.items() if theirs == reason]
            dumped.missing[part] = f"as {same[0]}" if same else reason
            return
        dumped.made[part] = remark
        for made in sorted(Path(own).iterdir()):
            os.replace(made, staging / made.name)


def _index(title: str, dumped: Dumped, digests: dict[str, str | None]) -> Iterator[str]:
    yield f"{_safe(title)}, by untrace {__version__} and jax {jax.__version__}"
    width = max(len(part.path) for part in PARTS) + 2
    for heading, parts in (("", dumped.made), ("Could not be made:", dumped.missing)):
        if parts:
            yield from ("", heading, "") if heading else ("",)
        for part, remark in parts.items():
            yield f"{part.path:{width}}{part.what}"
            yield from (f"{'':{width}}{_safe(line)}".rstrip() for line in remark.splitlines())
    yield from ("", _FILES, "")
    yield from (f"{digest}  {name}" for name, digest in digests.items())


def _safe(line: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in _ADDRESS.sub("", line))


def _files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def _digest(path: Path) -> str | None:
    """Of a file's bytes; None where there is none."""
    if path.is_symlink() or not path.is_file():
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _earlier(folder: Path) -> dict[str, str]:
    """The files that an earlier dump wrote, with their digests, as its index has them."""
    try:
        _, _, lines = (folder / INDEX).read_text(encoding="utf-8").partition(f"\n{_FILES}\n")
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = [line.split("  ", 1) for line in lines.splitlines() if "  " in line]
    return {name: digest for digest, name in pairs if _OURS.fullmatch(name)}


# An index may be anybody's: what it names is removed, and so it can name only what a dump writes.
_OURS = re.compile("|".join(rf"{re.escape(p.path)}(/\w[\w.]*)?|{re.escape(Path(p.path).stem)}\.npz" for p in PARTS))


def _check(folder: Path, earlier: dict[str, str]) -> None:
    """Raises OutputExistsError for files in the folder that no dump wrote, or that were changed since."""
    if not folder.is_dir():
        return
    folders = {name.partition("/")[0] for name in earlier if "/" in name}
    present = [INDEX] if not earlier and (folder / INDEX).exists() else []
    present += sorted(p.name for p in folder.iterdir() if p.name not in folders | {INDEX})
    present += [f"{name}/{inner}" for name in sorted(folders) for inner in _files(folder / name)]
    foreign = [name for name in present if name not in earlier or _digest(folder / name) != earlier[name]]
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise OutputExistsError(
            f"{folder} holds what no dump wrote, or what was changed since: {', '.join(foreign[:3])}{more}; choose another "
            "folder, or write over files of the same names with --overwrite"
        )
