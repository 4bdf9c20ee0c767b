"""The bench scripts run end to end in a tiny setting, and their comparisons see what they must."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import untrace
from untrace import Decompiled

BENCH = Path(__file__).resolve().parent.parent / "bench"

SOFTPLUS = """
import jax, jax.numpy as jnp

def fn(x, scale):
    return jax.nn.softplus(x * scale["value"]), jnp.argmax(x)

def build():
    return fn, (jnp.linspace(-2.0, 2.0, 5), {"value": 1.5})
"""

WHILE = """
import jax, jax.numpy as jnp

X64 = True  # a comment after the setting

def halve(x):
    return jax.lax.while_loop(lambda x: jnp.sum(x) > 1.0, lambda x: 0.5 * x, x)

def build():
    return halve, (jnp.arange(4.0),)
"""

OTHER_PYTHON = 'PYTHON = "py39"\n'


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A zoo of three programs: one of them forbids reverse mode, one asks for another Python."""
    directory = tmp_path / "zoo"
    directory.mkdir()
    (directory / "softplus.py").write_text(SOFTPLUS)
    (directory / "halve.py").write_text(WHILE)
    (directory / "old.py").write_text(OTHER_PYTHON)
    (directory / "_helper.py").write_text("raise AssertionError('not a case')\n")
    return directory


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that the benches share."""
    monkeypatch.syspath_prepend(str(BENCH))
    import _common

    return _common


def run(script: str, *options: str) -> tuple[str, dict]:
    """`(stdout, the JSON that was written)` of a bench; its own tracebacks fail the test."""
    out = options[options.index("--json") + 1]
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout, json.loads(Path(out).read_text())


@pytest.mark.parametrize("tool", [[], ["--oracle"]], ids=["untrace", "oracle"])
def test_transforms_fills_every_cell(zoo: Path, tmp_path: Path, tool: list[str]) -> None:
    out = str(tmp_path / "out.json")
    text, data = run("transforms.py", str(zoo), "--json", out, *tool)
    cells = {
        row["case"]: [row["cells"][t]["cell"] for t in ("jit", "jvp", "vmap", "grad", "grad2")] for row in data["rows"]
    }
    assert cells["softplus"] == ["same"] * 5, text
    assert cells["halve"] == ["same", "same", "same", "raises", "raises"], text
    assert cells["old"] == ["-"] * 5
    assert text.splitlines()[-1] == "8 passed, 0 failed, 7 skipped"


def test_transforms_says_when_writing_fails(zoo: Path, tmp_path: Path) -> None:
    (zoo / "softplus.py").write_text(SOFTPLUS.replace("return fn, (", "return fn, (None, "))
    text, _ = run("transforms.py", str(zoo), "--only", "soft", "--json", str(tmp_path / "out.json"))
    assert text.splitlines()[-1] == "0 passed, 5 failed, 0 skipped"
    assert "failed softplus [jit, jvp, vmap, grad, grad2]: write: " in text


def test_evaluate_runs_programs_as_captured_and_as_lifted(zoo: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out.json")
    text, data = run("evaluate.py", "--of", str(zoo), "--json", out)
    assert {row["name"]: (row["captured"], row["lifted"]) for row in data["rows"]} == {
        "softplus": ("same", "same"), "halve": ("same", "same"),
    }  # fmt: skip
    assert text.splitlines()[-1] == "2 passed, 0 failed"


def test_ablation_says_what_a_pass_is_worth(zoo: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out.json")
    text, data = run("ablation.py", "--of", str(zoo), "--only", "soft", "--passes", "library-calls", "--json", out)
    (row,) = data["figures"]
    assert set(row["without"]) == {"library-calls"} and "name-values" in row["fired"]
    assert row["without"]["library-calls"]["tokens"] > row["whole"]["tokens"]
    assert "library-calls                             1 " in text
    assert text.splitlines()[-1] == "1 passed, 0 failed"

    text, data = run("ablation.py", "--of", str(zoo), "--only", "soft", "--count", "--json", out)
    assert "without" not in data["figures"][0] and "library-calls                             1\n" in text


def test_speed_measures_both_kinds(zoo: Path, tmp_path: Path) -> None:
    options = ("--sizes", "60", "--repeats", "1", "--zoo", str(zoo), "--only", "softplus")
    text, data = run("speed.py", *options, "--json", str(tmp_path / "out.json"))
    (straight,), (case,) = data["straight_line"], data["zoo"]
    assert straight["equations"] == 60
    assert case["name"] == "softplus"
    for row in (straight, case):
        assert row["total"] >= row["write"] > 0 < row["proof"], text
        assert row["peak_bytes"] > 2**20
    assert "goal <= 2.5" in text


def test_paper_compares_both_modes(tmp_path: Path) -> None:
    options = ("--quick", "--runs", "2", "--only", "simulate|train")
    text, data = run("paper.py", *options, "--json", str(tmp_path / "out.json"))
    assert len(data["rows"]) == 2
    for row in data["rows"]:
        assert row["jitted_bits"] == "same", text
        assert row["unjitted"]["ratio"] > 0, text
    assert text.splitlines()[-1].startswith("goals that do not hold:")


F32 = np.float32


@pytest.mark.parametrize(
    ("first", "second", "ulps"),
    [
        (F32([1.0]), np.nextafter(F32([1.0]), F32(2.0)), 1),
        (F32([0.0]), F32([-0.0]), 1),
        (F32([1e-45]), F32([-1e-45]), 3),
        (np.float64([1.0]), np.float64([1.0 + 2**-50]), 4),
        (np.complex64([1 + 0j]), np.complex64([1 + 1e-45j]), 1),
    ],
)
def test_bits_that_differ_are_counted(common: ModuleType, first: np.ndarray, second: np.ndarray, ulps: int) -> None:
    difference = common.compare_bits([first], [second])
    assert not difference.same
    assert difference.ulps == ulps


def test_any_nan_equals_any_nan(common: ModuleType) -> None:
    quiet = np.array([0x7FC00000, 0x3F800000], np.uint32).view(F32)
    other = np.array([0xFFC00001, 0x3F800000], np.uint32).view(F32)
    assert common.compare_bits([quiet], [other]).same
    assert not common.compare_bits([quiet], [F32([1.0, 1.0])]).same


@pytest.mark.parametrize(
    "other",
    [[], [F32([1.0]), F32([1.0])], [np.float64([1.0])], [F32(1.0)], [np.int32([1])]],
    ids=["none", "one more", "dtype", "shape", "integer"],
)
def test_other_arrays_differ(common: ModuleType, other: list[np.ndarray]) -> None:
    assert not common.compare_bits([F32([1.0])], other).same


def test_settings_are_read_without_running_the_case(common: ModuleType, zoo: Path) -> None:
    cases = {case.name: case for case in common.find_cases(zoo)}
    assert sorted(cases) == ["halve", "old", "softplus"]
    assert cases["halve"].x64
    assert cases["halve"].devices == 1
    assert not cases["old"].runs_here


@pytest.fixture
def transforms(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/transforms.py as a module."""
    monkeypatch.syspath_prepend(str(BENCH))
    import transforms

    return transforms


def test_only_what_jax_itself_cannot_keep_is_excused(transforms: ModuleType) -> None:
    one, two = F32([1.0]), F32([2.0])
    outcome = transforms.Outcome
    cell = transforms.judge(outcome([one]), outcome([two]))
    assert (cell["cell"], cell["status"]) == ("1e+00", "failed")
    assert transforms.excuse(cell, outcome([one]), outcome([two])) is cell
    excused = transforms.excuse(cell, outcome([two]), outcome([two]))
    assert (excused["cell"], excused["status"]) == ("jaxpr", "skipped")
    assert "max 8388608 ulp, relative 1.0e+00" in excused["reason"]


def test_errors_of_one_side_alone(transforms: ModuleType) -> None:
    fine, error = transforms.Outcome([F32([1.0])]), transforms.Outcome(error="ValueError: no")
    only_written = transforms.judge(fine, error)
    assert (only_written["cell"], only_written["status"]) == ("RAISES", "failed")
    assert transforms.excuse(only_written, fine, error) is only_written
    assert transforms.excuse(only_written, error, error)["status"] == "skipped"
    assert transforms.judge(error, fine)["cell"] == "loose"
    assert transforms.judge(error, error)["written"] == "raises the same"


def test_rules_and_host_functions_are_the_authors_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rules and host functions leave no equations; they count where the written text has them, and only there."""
    monkeypatch.syspath_prepend(str(BENCH))
    import jax
    import readability

    path = tmp_path / "case.py"
    path.write_text(RULES)
    source = path.read_text()
    space: dict = {}
    exec(compile(source, str(path), "exec"), space)
    row = readability.equations_of(jax.make_jaxpr(space["fn"])(1.0), str(path))
    assert [name for _, name, _ in row["inside"]][:2] == ["host", "<lambda>"]
    alone = readability.count_tokens(source[source.index("def fn") :])

    def counted(text: str) -> int:
        return readability.author_tokens(source, row["functions"], row["inside"], text)

    assert counted("") == alone
    host = readability.count_tokens("def host(x):\n    return x * 2\n")
    assert counted("def host(x): ...") == alone + host
    rules = source[source.index("@jax.custom_vjp") : source.index("def host")]
    assert counted("f.defvjp(f_fwd, f_bwd)") == alone + readability.count_tokens(rules)


RULES = """
import jax, jax.numpy as jnp

@jax.custom_vjp
def f(x):
    return x

f.defvjp(lambda x: (x, None), lambda _, d: (-d,))

def host(x):
    return x * 2

def fn(x):
    return f(x) + jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x)
"""


@pytest.fixture
def same_text(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/same_text.py as a module."""
    monkeypatch.syspath_prepend(str(BENCH))
    import same_text

    return same_text


@pytest.mark.skipif(not (BENCH.parent / ".git").exists(), reason="revisions are those of a checkout")
def test_same_text_writes_a_program_by_two_revisions(tmp_path: Path) -> None:
    options = ("--against", "HEAD", "--of", "examples", "--only", "/loss", "--styles", "exact", "--derivatives", "auto")
    for _ in range(2):  # the second time with what was kept
        text, data = run("same_text.py", *options, "--cache", str(tmp_path / "c"), "--json", str(tmp_path / "out.json"))
        assert [row["name"] for row in data["rows"]] == ["examples/loss"], text
        kept = list((tmp_path / "c").rglob("*.json"))
        assert len(kept) == 1
    (texts,) = [json.loads(path.read_text()) for path in kept]
    assert "def loss(" in texts["exact/auto"]["text"]
    texts["exact/auto"]["text"] += "# another line\n"
    kept[0].write_text(json.dumps(texts))
    done = subprocess.run(
        [sys.executable, str(BENCH / "same_text.py"), *options, "--cache", str(tmp_path / "c"), "--keep", str(tmp_path)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "-# another line" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 same, 1 different"


@pytest.mark.parametrize(
    ("old", "new", "verdict", "detail"),
    [
        ([{"w": {"text": "a"}}], [{"w": {"text": "a"}}], "same", ""),
        ([{"w": {"text": "a\n"}}], [{"w": {"text": "b\n"}}], "different", "text: -1 +1 lines"),
        ([{"w": {"text": "a", "proof": "hlo"}}], [{"w": {"text": "a", "proof": "bits"}}], "different", "proof hlo -> bits"),
        ([{"w": {"error": "E: no"}}], [{"w": {"error": "E: no"}}], "same", "both fail: E: no"),
        ([{"w": {"text": "a"}}], [{"w": {"error": "E: no"}}], "different", "the old one does not and the new one fails: E: no"),
        ([{"unbuilt": {"error": "E: no"}}], [{"unbuilt": {"error": "E: no"}}], "skipped", "E: no"),
        ([{"w": {"text": "a"}}] * 2, [{"w": {"text": "a"}}, {"w": {"text": "b"}}], "varies", "another text in another run"),
    ],
)  # fmt: skip
def test_same_text_compares(same_text: ModuleType, old: list, new: list, verdict: str, detail: str) -> None:
    result = same_text.compare(same_text.Program("zoo", "p", 1, False, ""), old, new)
    assert result.verdict == verdict
    assert list(result.details.values()) == [detail] * bool(detail)


SPARE = "\nint32_t spare(double x);\nint32_t spare(double x)\n{\n    const int32_t y = x;\n    return y;\n}\n"


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("", "", None),
        ("x[i] +", "x[i + 1] +", "heap-buffer-overflow"),
        ("x[i] +", "(float)(int32_t)x[i] +", "is outside the range of representable values"),
    ],
    ids=["clean", "outside", "cast"],
)
def test_checks_of_c_see_faults(monkeypatch: pytest.MonkeyPatch, before: str, after: str, found: str | None) -> None:
    import untrace
    from untrace.targets.c.compiled import compiler

    monkeypatch.syspath_prepend(str(BENCH))
    from _c_checks import checked

    x = np.ones(3, np.float32)
    text = untrace.decompile(lambda x: x + 1.0, target="c", prove=False)(x)
    if found is not None:
        assert before in text.source
        source = text.source.replace(before, after) + SPARE
        text = dataclasses.replace(text, program=dataclasses.replace(text.program, source=source))
    row = checked(text, [x], {}, compiler(), sanitize=True)
    if found is None:
        assert row == {"warnings": {}, "exports": [], "findings": {}, "endless": False, "apart": 0.0}
    else:
        assert "-Wfloat-conversion" in row["warnings"] and row["exports"] == ["spare"]
        assert any(found in first for _, first in row["findings"].values())


LOSS = """
import jax, jax.numpy as jnp

def layer(w, x):
    return jnp.tanh(x @ w)

def loss(w, x):
    hidden = layer(w, x)
    scale = jnp.sum(hidden) + 1.0
    return jnp.sum(hidden**2 / scale) + scale

def build():
    return jax.grad(loss), (jnp.ones((3, 2)), jnp.ones((4, 3)))
"""


@pytest.fixture(scope="module")
def gradient(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decompiled, str]:
    """What is written of a gradient, and the file of the function that it is of."""
    path = tmp_path_factory.mktemp("gradient") / "loss.py"
    path.write_text(LOSS)
    spec = importlib.util.spec_from_file_location("loss_of_the_lies", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fn, args = module.build()
    return untrace.decompile(fn)(*args), str(path)


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("", "", []),
        ("scale =", "d_scale_7 =", ["cotangent"]),
        ("scale =", "hidden_7 =", ["value"]),
        ("d_hidden =", "hidden_7 =", ["value"]),
        ("d_scale =", "scale_7 =", ["value"]),
        ("# forward\n", "# backward\n", ["pass"]),
        ("scale =", "a_name_that_is_long_and_ended_with_scale =", []),
        ("scale =", "a_name_that_is_long_and_ended_with_scalx =", ["cut"]),
    ],
)
def test_names_that_lie_are_counted(
    common: ModuleType, gradient: tuple[Decompiled, str], old: str, new: str, kinds: list[str]
) -> None:
    from _lies import lies

    d, path = gradient
    assert old in d.source
    told = SimpleNamespace(source=d.source.replace(old, new, 1), source_map=d.source_map)
    assert [lie.split()[1] for lie in lies(told, path)] == kinds


def test_a_function_of_another_name_lies(common: ModuleType, gradient: tuple[Decompiled, str]) -> None:
    from _lies import lies

    d, path = gradient
    body = d.source.replace("def grad_loss(", "def layer(", 1)  # which has others' equations too
    assert lies(SimpleNamespace(source=body, source_map=d.source_map), path) == []
    away = [e for e in d.source_map if e.author is not None and e.author.function == "loss"]
    found = lies(SimpleNamespace(source=body, source_map=away), path)
    assert [lie.split()[1:] for lie in found] == [["function", "layer"]]
