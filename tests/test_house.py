"""The lint of the house: what it counts, that its numbers only fall, and that the package is as its table says."""

import runpy
import tomllib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def house() -> Any:
    return SimpleNamespace(**runpy.run_path(str(ROOT / "bench" / "house.py"), run_name="house"))


def package(folder: Path, **files: str) -> Path:
    """A package with these files; `ir__nodes` is ir/nodes.py."""
    for name, text in files.items():
        path = folder / "untrace" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "untrace"


def test_the_package_is_as_the_table_says(house):
    now = house.counted(house.sources(ROOT / "src" / "untrace"))
    table = tomllib.loads((ROOT / "bench" / "house.toml").read_text())
    assert house.complaints(now, table) == []


@pytest.mark.parametrize(
    ("counter", "text", "count"),
    [
        ("id_calls", "seen = {id(x)}\n", 1),
        ("id_calls", "key = id\nseen = {key(x), key(y)}\n", 3),
        ("id_calls", "import builtins\nsame = builtins.id(x)\n", 1),
        ("id_calls", "from builtins import id as key\nkey(x)\n", 1),
        ("id_calls", "seen = set(map(id, xs))\n", 1),
        ("id_calls", "def name(id):\n    return id\n", 0),
        ("id_calls", "node.id = name.id\n", 0),
        ("extra_uses", "program.extra['sizes'] = {}\nextra = 1\n", 1),
        ("open_dictionaries", "facts: dict[str, Any] = {}\n", 1),
        ("open_dictionaries", "def facts() -> Mapping[str, Any] | None: ...\n", 1),
        ("open_dictionaries", "def write(params: dict[str, Any], kwargs: dict[str, Any]): ...\n", 0),
        ("any_in_signatures", "def value(x: Any, y: int) -> list[Any]: ...\n", 2),
        ("ignored_types", "x = f()  # type: ignore[misc]\ny = '# type: ignore'\n", 1),
        ("jax_internals", "from jax._src import core\nimport jaxlib.xla\nfrom jax import lax\n", 2),
        ("long_files", "x = 1\n" * 601, 1),
        ("long_files", "x = 1\n" * 600, 0),
    ],
)
def test_what_is_counted(house, tmp_path, counter, text, count):
    now = house.counted(house.sources(package(tmp_path, ir__nodes=text)))
    assert sum(now[counter].values()) == count


def test_signatures_of_other_folders_may_be_open(house, tmp_path):
    text = "def value(x: Any) -> Any: ...\n"
    files = dict.fromkeys(("lift__names", "targets__writer", "targets__jax__writer", "module__merge__weave"), text)
    now = house.counted(house.sources(package(tmp_path, **files)))
    assert now["any_in_signatures"] == {"module/merge": 2, "targets": 2}


def test_crowded_folders_and_circles(house, tmp_path):
    files = {f"lift__file{i}": "" for i in range(21)}
    files["lift__file0"] = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from untrace.lift import file1\n"
    files["lift__file1"] = "def late():\n    from untrace.lift.file0 import x\n"
    found = house.sources(package(tmp_path, **files))
    now = house.counted(found)
    assert now["crowded_folders"] == {"lift": 21}
    assert now["circles"] == {"lift": 2}
    assert house.circles(house.imports(found)) == [["untrace.lift.file0", "untrace.lift.file1"]]


def test_numbers_fall_and_never_rise(house):
    table = {"id_calls": {"lift": 3, "print": 2}}
    assert house.complaints({"id_calls": {"lift": 3, "print": 2}}, table) == []
    (higher,) = house.complaints({"id_calls": {"lift": 4, "print": 2}}, table)
    assert higher == "id_calls in lift: 4, where 3 are allowed (--list id_calls shows them)"
    (lower,) = house.complaints({"id_calls": {"lift": 3}}, table)
    assert lower == "id_calls in print: 0, fewer than the 2 in the table (--lower writes that)"
    (new,) = house.complaints({"id_calls": {"lift": 3, "print": 2, "ir": 1}}, table)
    assert new.startswith("id_calls in ir: 1, where 0 are allowed")


def test_the_table_is_lowered_only(house):
    now = {"id_calls": {"lift": 4, "print": 1, "ir": 1}, "circles": {"lift": 2}}
    lowered = house.lowered(now, {"id_calls": {"lift": 3, "print": 2, "prove": 5}})
    assert lowered == {"id_calls": {"lift": 3, "print": 1}, "circles": {"lift": 2}}
    assert tomllib.loads(house.written(lowered)) == lowered


def test_lines_of_code_are_counted_without_words(house, tmp_path):
    text = '"""What this is.\n\nAnd why.\n"""\n\n# A comment.\nx = [\n    1,  # one\n\n    2,\n]\n\n\n'
    text += 'def f():\n    """Says so."""\n    return """text\nof two lines"""\n'
    (source,) = house.sources(package(tmp_path, ir__nodes=text))
    assert house.lines_of_code(source) == 4 + 1 + 2
    assert Counter([source.folder]) == {"ir": 1}


def test_each_folder_of_the_source_has_its_folder_of_tests():
    """But for `torch`, whose tests are in `from_torch`: the folder of tests is on the path, where PyTorch has that name."""
    folders = {path.parent.name for path in (ROOT / "src" / "untrace").glob("*/__init__.py")}
    tested = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders - {"torch"} <= tested and "from_torch" in tested
