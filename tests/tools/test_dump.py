"""`untrace dump`: numbered files with stable names, the same bytes each time, and nobody else's files touched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from untrace import cli
from untrace._errors import OptionError, OutputExistsError, UntraceError
from untrace.tools import dump as dumps

# A constant that goes into a file of its own, a rule, and a random number.
SOURCE = """
import jax
import jax.numpy as jnp
import numpy as np

TABLE = np.random.default_rng(0).random(300).astype(np.float32)


@jax.custom_vjp
def clipped(x):
    return jnp.tanh(x)


clipped.defvjp(lambda x: (clipped(x), x), lambda x, g: (jnp.clip(g, -1, 1),))


def loss(x, key):
    noise = jax.random.uniform(key, x.shape)
    return jnp.sum(jax.nn.relu(clipped(x)) * TABLE + noise)
"""
NAMES = [
    "00_index.txt", "01_source.py", "02_jaxpr.txt", "03_written_exact.npz", "03_written_exact.py", "04_written.npz",
    "04_written.py", "05_map.txt", "06_values.jsonl", "06_values.txt", "07_doctor.txt", "07_lint.txt",
    "08_stablehlo.mlir", "09_hlo.txt", "10_c", "10_numpy.npz", "10_numpy.py", "11_stages.html",
]  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_all_of_it_twice_in_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "dumped_model.py"
    model.write_text(SOURCE)
    argv = [f"{model}:loss", "f32[300]", "key"]
    assert cli.main(["dump", str(tmp_path / "a" / "deep"), *argv]) == 0
    err = capsys.readouterr().err
    assert "04_written.py: proven: same jaxpr" in err and "00_index.txt says what is there" in err
    first = contents(tmp_path / "a" / "deep")
    assert [n for n in sorted({name.split("/")[0] for name in first}) if "torch" not in n] == NAMES
    # The folder is another there, and a PYTHONPATH may be relative.
    environment = {**os.environ, "PYTHONHASHSEED": "5", "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    again = [sys.executable, "-m", "untrace", "dump", "b", *argv]
    subprocess.run(again, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=300)
    second = contents(tmp_path / "b")
    assert [name for name in first if first[name] != second.get(name)] == []
    assert list(second) and set(second) == set(first)

    texts = {name: text.decode() for name, text in first.items() if not name.endswith(".npz")}
    assert texts["01_source.py"] == SOURCE
    for name, text in texts.items():
        assert str(tmp_path) not in text, name
    assert "def clipped(" in texts["04_written.py"] and "dumped_model.py:17" in texts["05_map.txt"]
    records = [json.loads(line) for line in texts["06_values.jsonl"].splitlines()]
    (noise,) = [record for record in records if record["name"] == "noise"]
    assert texts["04_written.py"].splitlines()[noise["line"] - 1].strip().startswith("noise = ")
    assert "stablehlo." in texts["08_stablehlo.mlir"] and texts["09_hlo.txt"].startswith("HloModule")
    index = texts["00_index.txt"]
    assert re.search(r"^04_written.py .*\n +proven: same jaxpr", index, re.M)
    assert re.search(
        r"^10_mpi4py.py .*\n +this program cannot be written for mpi4py", index.partition("Could not")[2], re.M
    )


def test_texts_have_no_addresses(tmp_path: Path) -> None:
    dumps._text(lambda subject: f"eqn[f={object()!r}]\n\n")(SUBJECT, tmp_path / "jaxpr.txt")
    assert (tmp_path / "jaxpr.txt").read_text() == "eqn[f=<object object>]\n"


def parts(monkeypatch: pytest.MonkeyPatch, **writers: object) -> None:
    """A dump of these parts alone, by their names: texts, or errors that are raised."""

    def writer(given: object):
        def write(subject: dumps.Subject, path: Path) -> str:
            path.write_text("half of it" if isinstance(given, BaseException) else str(given))
            if isinstance(given, BaseException):
                raise given
            return "a remark"

        return write

    made = [dumps.Part(n, f"{name}.txt", name, writer(w)) for n, (name, w) in enumerate(writers.items(), 1)]
    monkeypatch.setattr(dumps, "PARTS", tuple(made))


SUBJECT = dumps.Subject(lambda x: x, (1.0,), {})


def test_a_part_that_fails_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts(
        monkeypatch,
        one="1",
        two=ValueError("no\x1b[31m such <f at 0x7f00deadbeef>"),
        three=UntraceError("why not"),
        four="4",
    )
    dumped = dumps.dump(SUBJECT, tmp_path / "d", "f")
    assert sorted(contents(tmp_path / "d")) == ["00_index.txt", "01_one.txt", "04_four.txt"]
    assert [part.number for part in dumped.missing] == [2, 3]
    missing = (tmp_path / "d" / "00_index.txt").read_text().partition("Could not be made:")[2]
    assert "ValueError: no?[31m such <f>" in missing and "why not" in missing


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts(monkeypatch, one="1", two=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        dumps.dump(SUBJECT, tmp_path / "d", "f")
    assert list((tmp_path / "d").iterdir()) == []


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a dump of 01_source.py and 07_doctor.txt."""
    folder = tmp_path / "d"
    known = [p for p in dumps.PARTS if p.number in (1, 7)]
    made = [dumps.Part(p.number, p.name, "", lambda s, path: path.write_text("made") and "") for p in known]
    monkeypatch.setattr(dumps, "PARTS", tuple(made))
    dumps.dump(SUBJECT, folder, "f")
    return folder


def test_files_of_an_earlier_dump_are_replaced(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "PARTS", dumps.PARTS[:1])
    dumps.dump(SUBJECT, here, "f")
    assert sorted(contents(here)) == ["00_index.txt", "01_source.py"]


@pytest.mark.parametrize("name", ["notes.txt", "01_source.py", "10_c/mine.c", "00_index.txt"])
def test_other_files_are_refused(here: Path, name: str) -> None:
    """A person's own file, one that was changed since, one in a folder, an index that is none."""
    (here / name).parent.mkdir(exist_ok=True)
    (here / name).write_text("mine")
    before = contents(here)
    with pytest.raises(OutputExistsError, match=f"{name.partition('/')[0]}.*--overwrite"):
        dumps.dump(SUBJECT, here, "f")
    assert contents(here) == before
    dumps.dump(SUBJECT, here, "f", overwrite=True)
    after = contents(here)
    assert (after[name] == b"mine") == (name in ("notes.txt", "10_c/mine.c")) and after["07_doctor.txt"] == b"made"


def test_an_index_cannot_name_what_is_not_a_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    folder = tmp_path / "d"
    (folder / "10_c").mkdir(parents=True)
    digest = dumps._digest(precious)
    names = ("../precious.txt", "10_c/../../precious.txt", str(precious), "10_c/..")
    (folder / "00_index.txt").write_text("\n".join([f"\n{dumps._FILES}\n", *[f"{digest}  {n}" for n in names]]))
    parts(monkeypatch, one="1")
    dumps.dump(SUBJECT, folder, "f", overwrite=True)
    assert precious.read_text() == "mine"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("")
    with pytest.raises(OptionError, match="is a file"):
        dumps.dump(SUBJECT, tmp_path / "d", "f")
    with pytest.raises(OptionError, match="cannot be made: Not a directory"):
        dumps.dump(SUBJECT, tmp_path / "d" / "e", "f")


def test_a_function_that_cannot_be_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "untraceable_model.py").write_text("def f(x):\n    return 1.0 if x > 0 else 0.0\n")
    assert cli.main(["dump", "d", "untraceable_model.py:f", "f32[]"]) == 3
    assert sorted(contents(tmp_path / "d")) == ["00_index.txt", "01_source.py"]
    index = (tmp_path / "d" / "00_index.txt").read_text()
    assert (
        index.count("f could not be traced by JAX (untraceable_model.py:2)") == 1 and "as 03_written_exact.py" in index
    )
