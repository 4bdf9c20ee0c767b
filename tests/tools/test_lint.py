"""`untrace.lint`: each rule where it is and where it only looks so, comments that silence, the command line."""

import importlib.util
import json
import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import checkify

import untrace
from untrace import cli
from untrace.tools.lint.rules.table import NAMES

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCH))
    try:
        yield runpy.run_path(str(BENCH / "lint.py"), run_name="lint")
    finally:
        sys.path.remove(str(BENCH))


@pytest.mark.parametrize("rule", NAMES)
def test_a_rule_finds_its_lines_and_no_others(bench, rule, capfd):
    cases = [c for c in bench["cases"].CASES if c.rule == rule]
    assert sum(c.has for c in cases) >= 3 and sum(not c.has for c in cases) >= 3
    assert {c.marked.__name__: wrong for c in cases if (wrong := bench["judge"](c))} == {}


def module(path: Path, text: str):
    """A fresh module with this text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    name = f"lint_{path.parent.name}_{path.stem}".replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


STEP = """\
import jax.numpy as jnp


def step(x):
    y = jnp.where(x > 0, 1.0, 0.0)
    x = x[jnp.arange(4)]  {comment}
    return x.sum() + y
"""


@pytest.mark.parametrize(
    ("comment", "is_silent"),
    [
        ("", False),
        ("# untrace: ignore", True),
        ("#untrace:ignore[gather-slice]", True),
        ("# as it was  # untrace: ignore[promotion, gather-slice] for now", True),
        ("# untrace: ignore[promotion]", False),
        ("# untrace: ignored", False),
        ('; "# untrace: ignore"', False),
    ],
)
def test_a_comment_silences(tmp_path, comment, is_silent):
    step = module(tmp_path / f"model{abs(hash(comment))}.py", STEP.format(comment=comment)).step
    found = untrace.lint(step)(jnp.ones(6))
    assert [f.rule for f in found] == ([] if is_silent else ["gather-slice"])
    assert found.ignored == is_silent
    assert not found.notes


def test_a_comment_that_names_no_rule_is_told(tmp_path):
    step = module(tmp_path / "m.py", STEP.format(comment="# untrace: ignore[gather-slices]")).step
    found = untrace.lint(step)(jnp.ones(6))
    assert [f.rule for f in found] == ["gather-slice"]
    assert found.notes == (
        "m.py:6 ignores 'gather-slices', which is no rule. Did you mean 'gather-slice'?",
    )  # fmt: skip


def test_a_comment_on_any_line_of_the_expression_silences(tmp_path):
    text = "import jax.numpy as jnp\n\ndef f(x):\n    return jnp.take(\n        x,  # untrace: ignore\n        jnp.arange(3),\n    )\n"
    assert not untrace.lint(module(tmp_path / "lines.py", text).f)(jnp.ones(6))


LOOP = """\
import jax.numpy as jnp

def loop(x):
    for i in range({turns}):
{body}
    return x
"""


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 9), st.integers(1, 5))
def test_equal_turns_are_counted(tmp_path_factory, turns, statements):
    body = "\n".join(["        x = jnp.sin(x)"] * statements)
    text = LOOP.format(turns=turns, body=body)
    loop = module(tmp_path_factory.mktemp("loops") / "m.py", text).loop
    found = untrace.lint(loop, rules="unrolled-loop")(jnp.ones(3))
    if turns < 4 or (turns - 1) * statements < 12:
        assert not found
    else:
        (one,) = found
        assert one.cost == {"turns": turns, "equations": turns * statements}
        assert (one.line, one.source) == (4, f"for i in range({turns}):")


def test_the_turns_of_a_loop_in_a_loop_are_its_own(tmp_path):
    text = LOOP.format(turns=2, body="        for j in range(8):\n            x = jnp.sin(x) + jnp.cos(x) * j")
    (found,) = untrace.lint(module(tmp_path / "nest.py", text).loop)(jnp.ones(3))
    assert (found.line, found.cost["turns"]) == (5, 8)
    assert "gone through 2 times" in found.message


def test_a_loop_says_the_scan_that_it_is(tmp_path):
    text = LOOP.format(turns=20, body="        y = jnp.sin(x)\n        x = x + y * i")
    (found,) = untrace.lint(module(tmp_path / "scan.py", text).loop)(jnp.ones(3))
    assert found.change.split("\n")[-1] == "x, _ = jax.lax.scan(turn, x, jnp.arange(20))"


def test_what_a_library_does_inside_is_none_of_the_authors(tmp_path):
    text = LOOP.format(turns=20, body="        x = jnp.sin(x)[jnp.arange(3)] + jnp.cos(x) * i")
    library = module(tmp_path / "site-packages" / "thelibrary.py", text)

    def called(x):
        return library.loop(x) * 2

    assert not untrace.lint(called)(jnp.ones(3))
    own = module(tmp_path / "own" / "mine.py", text)
    assert {f.rule for f in untrace.lint(own.loop)(jnp.ones(3))} == {"unrolled-loop", "gather-slice"}


def test_a_function_without_source_is_linted_as_far_as_it_goes():
    names: dict = {}
    exec("def f(x):\n    for i in range(20):\n        x = x * 2 + i\n    return x[20]\n", {}, names)
    found = untrace.lint(lambda x: names["f"](x))(jnp.ones(3))
    assert [(f.rule, f.line, f.source) for f in found] == [("out-of-bounds", 4, "")]


def test_of_types_only_what_the_program_knows_is_found():
    def f(x, i):
        return x[7] + x[i]

    wanted = jax.ShapeDtypeStruct((5,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    found = untrace.lint(f)(*wanted)
    assert len(found) == 1 and "index 7" in found[0].message
    assert found.notes == ("indices that depend on arguments were not looked at: they are given as types",)
    both = untrace.lint(f)(jnp.ones(5), jnp.int32(9))
    assert "index 7" in both[0].message and "index 9" in both[1].message


def test_a_loop_of_the_program_is_run_for_its_indices():
    def f(x, n):
        return jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] + x[s[0]]), (0, 0.0))

    assert not untrace.lint(f)(jnp.ones(5), 5)
    (found,) = untrace.lint(f)(jnp.ones(5), 7)
    assert found.cost == {"elements": 2}


def test_constants_without_a_number_are_the_same_in_both_traces():
    def f(x):
        return x + jnp.full(3, jnp.nan, jnp.bfloat16), x * np.array([np.nan, 1.0, -0.0], np.float32)

    assert not untrace.lint(f, rules="frozen-value")(jnp.ones(3))


def test_the_numbers_of_checkify_are_its_own():
    def f(x):
        checkify.check(x[0] < 10, "too large: {x}", x=x[0])
        return jnp.log(x)

    found = untrace.lint(checkify.checkify(f))(jnp.ones(3))
    assert not found and "checkify" in found.notes[0]


def test_a_weak_part_of_a_state_is_found_and_a_weak_count_is_not():
    def step(state, x):
        done = jnp.where(x[0] > 0, 0, 1)
        return {"n": done, "x": state["x"] + x}, done

    found = untrace.lint(step, rules="weak-type")({"n": jnp.int32(0), "x": jnp.ones(3)}, jnp.ones(3))
    assert len(found) == 1
    assert not untrace.lint(lambda n, x: jnp.where(x[0] > n, 0, 1), rules="weak-type")(jnp.int32(0), jnp.ones(3))


def test_a_report_is_a_sequence_and_json():
    def f(x):
        return jnp.where(x > 0, 1.0, 0.0)

    found = untrace.lint(f)(jnp.ones(3))
    assert len(found) == 1 and bool(found) and found[:1] == (found[0],)
    assert isinstance(found[0], untrace.LintFinding) and isinstance(found, untrace.LintReport)
    (data,) = json.loads(found.to_json())["findings"]
    assert data["rule"] == "weak-type" and data["file"] == __file__ and data["source"] == found[0].source
    assert data["cost"] == {"programs": 1}
    assert str(found).splitlines()[-1] == "f: 1 finding"
    assert not untrace.lint(lambda x: x * 2)(jnp.ones(3))


def test_what_is_no_rule_is_refused():
    with pytest.raises(untrace.OptionError, match="Did you mean 'promotion'"):
        untrace.lint(jnp.sin, rules="promotions")
    with pytest.raises(untrace.CaptureError, match="could not be traced"):
        untrace.lint(lambda x: x if x > 0 else -x)(jnp.float32(1))


MODEL = """\
import jax.numpy as jnp


def fine(x):
    return jnp.sin(x)


def step(x, n):
    if n > 2:
        x = x * 2
    return x
"""


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    Path("lintmodel.py").write_text(MODEL)
    yield "lintmodel.py"
    sys.modules.pop("lintmodel", None)


def test_the_exit_code_says_whether_there_is_a_finding(target, capsys):
    assert cli.main(["lint", f"{target}:fine", "f32[3]"]) == 0
    assert capsys.readouterr().out == "fine: no findings\n"
    assert cli.main(["lint", f"{target}:step", "f32[3]", "--static", "n=3"]) == 1
    assert capsys.readouterr().out.startswith("lintmodel.py:9: static-branch: ")
    assert cli.main(["lint", f"{target}:step", "f32[3]", "--static", "n=3", "--rule", "promotion"]) == 0
    assert cli.main(["lint", f"{target}:step", "f32[3]", "--static", "n=3", "--rule", "promotions"]) == 2
    assert "is no rule" in capsys.readouterr().err
    assert cli.main(["lint", f"{target}:step", "f32[3]", "--static", "n=3", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["line"] == 9


def test_indices_of_branches_that_are_not_taken_and_from_the_end():
    def taken(x, i):
        return jax.lax.cond(i < 4, lambda: x[7], lambda: 0.0)

    x = jnp.ones(4)
    assert not untrace.lint(taken)(x, 9)
    assert [f.rule for f in untrace.lint(taken)(x, 1)] == ["out-of-bounds"]
    (found,) = untrace.lint(lambda x: x[-5])(x)
    assert "index -5 is outside" in found.message and "from -4 to 3" in found.message
    assert untrace.lint(lambda x, i: x[i])(jax.ShapeDtypeStruct((4,), jnp.float32), 7)


def test_the_turns_of_a_comprehension_in_a_loop_are_its_own():
    def block(x, p):
        a, b, c = (jnp.tanh(x @ p[n]) * 2.0 + 1.0 for n in ("a", "b", "c"))
        return jnp.sin(a) @ jnp.cos(b).T @ c

    def model(x, ps):
        for p in ps:
            x = block(x, p)
        return x

    p = {name: jnp.eye(3) for name in "abc"}
    assert not untrace.lint(model)(jnp.ones((3, 3)), [p, p])
