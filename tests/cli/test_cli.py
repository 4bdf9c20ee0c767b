"""The command line: what each verb prints and writes, its messages, its exit codes."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from untrace import _demo, _locate, _transforms, cli
from untrace._errors import OptionError
from untrace._terminal import Terminal

MODEL = """\
import jax.numpy as jnp


def loss(w, x, power=2, *, scale=1.0):
    return scale * jnp.sum(jnp.tanh(x @ w) ** power)


def cube(x):
    return x**3


def pick(index, x):
    return x[index] * 2.0


def impossible(x):
    return 1.0 if x > 0 else 0.0


def make_args():
    return jnp.arange(3.0), jnp.ones((2, 3))


def failing_args():
    raise ValueError("no data today")


table = {"a": 1}
"""

RULED = """\
import jax


@jax.custom_vjp
def square(x):
    return x * x


square.defvjp(lambda x: (x * x, x), lambda x, d_y: (3.0 * x * d_y,))


def f(x):
    return square(x) + 1.0
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with only `model.py` in it; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "model.py").write_text(MODEL)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


COMMAND = [sys.executable, "-m", "untrace.cli"]
# The tests change the folder, and a PYTHONPATH may be relative.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}


# -- starting --------------------------------------------------------------------------------------
def test_help_and_usage_errors_do_not_import_jax() -> None:
    code = (
        "import sys; from untrace.cli import main; main(['--help']); main(['--version']);"
        "main(['writ']); main(['write', 'model.py:loss']); sys.exit('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, env=ENVIRONMENT)
    assert done.returncode == 0


def test_help_shows_the_commands_and_the_arguments(run: Run) -> None:
    for argv in ((), ("--help",), ("-h",), ("help",)):
        code, out, err = run(*argv)
        assert code == 0 and err == ""
        for word in ("demo", "write", "show", "verify", "f32[8,128]", "@file.py:make_args"):
            assert word in out


# -- write -----------------------------------------------------------------------------------------
def test_write_writes_a_module_that_computes_the_same(run: Run, folder: Path) -> None:
    code, out, err = run("write", "model.py:loss", "f32[3]", "f32[2,3]", "-o", "out.py")
    assert (code, out) == (0, "")
    assert err.startswith("wrote out.py: loss, ")
    written = _locate.load_function("out.py:loss")
    original = _locate.load_function("model.py:loss")
    args = original.__globals__["make_args"]()
    np.testing.assert_array_equal(written(*args), original(*args))
    assert "untrace" not in _imports(folder / "out.py")


def test_write_takes_arguments_from_a_function(run: Run) -> None:
    code, _, err = run("write", "model.py:loss", "@model.py:make_args", "-o", "out.py", "--grad")
    assert code == 0, err
    written = _locate.load_function("out.py:grad_loss")
    original = _locate.load_function("model.py:loss")
    args = original.__globals__["make_args"]()
    np.testing.assert_array_equal(written(*args), jax.grad(original)(*args))


def test_a_module_path_names_a_function(run: Run) -> None:
    code, out, err = run("show", "jax.nn:selu", "f32[3]", "--no-prove")
    assert code == 0, err
    assert "def selu(" in out


def test_64_bit_types(folder: Path) -> None:
    command = [*COMMAND, "show", "model.py:cube", "f64[]", "--x64", "--jaxpr"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "f64[]" in done.stdout


def test_an_existing_file_is_kept_without_force(run: Run, folder: Path) -> None:
    (folder / "out.py").write_text("precious")
    code, _, err = run("write", "model.py:cube", "f32[]", "-o", "out.py")
    assert code == 2
    assert err == "untrace: out.py exists; choose another -o, or overwrite with --force.\n"
    assert (folder / "out.py").read_text() == "precious"
    code, _, err = run("write", "model.py:cube", "f32[]", "-o", "out.py", "--force")
    assert code == 0, err
    assert "def cube(" in (folder / "out.py").read_text()


def test_the_source_itself_is_kept_even_with_force(run: Run, folder: Path) -> None:
    code, _, err = run("write", "model.py:cube", "f32[]", "-o", "./model.py", "--force")
    assert code == 2
    assert err == "untrace: model.py holds the function itself; choose another -o.\n"
    assert (folder / "model.py").read_text() == MODEL


def test_a_failure_writes_nothing(run: Run, folder: Path) -> None:
    code, _, err = run("write", "model.py:impossible", "f32[]", "-o", "out.py")
    assert code == 3
    assert err.startswith("untrace: ") and "Traceback" not in err
    assert sorted(p.name for p in folder.iterdir() if p.suffix) == ["model.py"]


# -- show ------------------------------------------------------------------------------------------
def test_show_prints_source_on_stdout_and_the_proof_on_stderr(run: Run) -> None:
    code, out, err = run("show", "model.py:cube", "f32[]")
    assert code == 0, err
    compile(out, "shown", "exec")
    assert "def cube(" in out and "def cube(" not in err
    assert err.strip()


def test_show_with_the_map_says_what_each_line_was(run: Run) -> None:
    code, out, _ = run("show", "model.py:cube", "f32[]", "--map")
    line = next(text for text in out.split("\n") if text.lstrip().startswith("return"))
    assert code == 0 and re.search(r"  # model\.py:\d+  x ?\*\* ?3", line), out
    compile(out, "out", "exec")
    code, _, error = run("show", "model.py:cube", "f32[]", "--map", "--steps")
    assert code == 2 and "--map goes with none of" in error


def test_show_with_the_jaxpr_is_still_a_module(run: Run) -> None:
    code, out, _ = run("show", "model.py:cube", "f32[]", "--jaxpr")
    assert code == 0
    compile(out, "shown", "exec")
    assert "# The jaxpr:" in out and "integer_pow[y=3]" in out


# -- verify ----------------------------------------------------------------------------------------
def test_verify_tells_same_from_different(run: Run, folder: Path) -> None:
    run("write", "model.py:cube", "f32[4]", "-o", "same.py")
    code, out, err = run("verify", "same.py:cube", "model.py:cube", "f32[4]")
    assert code == 0, (out, err)
    (folder / "edited.py").write_text("def cube(x):\n    return x * x + x\n")
    code, out, err = run("verify", "edited.py:cube", "model.py:cube", "f32[4]")
    assert code == 1, (out, err)
    assert out.strip()


def test_verify_transforms_the_original_only(run: Run) -> None:
    run("write", "model.py:cube", "f32[]", "--grad", "-o", "grad_cube.py")
    code, out, err = run("verify", "grad_cube.py", "model.py:cube", "f32[]", "--grad")
    assert code == 0, (out, err)


def test_verify_with_bad_usage_exits_with_2(run: Run) -> None:
    assert run("verify", "edited.py:cube", "model.py:cube", "f32[]")[0] == 2
    assert run("verify", "model.py:cube", "model.py:cub", "f32[]")[0] == 2
    assert run("verify", "model.py:cube")[0] == 2


# -- transformations -------------------------------------------------------------------------------
def test_transformations_apply_in_the_order_given(run: Run) -> None:
    in_order = ("model.py:cube", "f32[5]", "--grad", "--vmap")
    code, out, err = run("show", *in_order)
    assert code == 0, err
    assert "def vmap_grad_cube(" in out
    # The gradient of the whole batch has no scalar to start from.
    assert run("show", "model.py:cube", "f32[5]", "--vmap", "--grad")[0] == 3


def test_a_transformation_can_be_given_twice(run: Run) -> None:
    code, _, err = run("write", "model.py:cube", "f32[]", "--grad", "--grad", "-o", "out.py")
    assert code == 0, err
    assert _locate.load_function("out.py:grad_grad_cube")(jnp.float32(5.0)) == 30.0


def test_options_belong_to_the_transformation_before_them(run: Run) -> None:
    flags = ("--grad", "--argnums", "0,1", "--vmap", "--in-axes", "None,0", "--out-axes", "1")
    code, _, err = run("write", "model.py:loss", "f32[3]", "f32[7,2,3]", *flags, "-o", "out.py")
    assert code == 0, err
    written = _locate.load_function("out.py:vmap_grad_loss")
    d_w, d_x = written(jnp.ones(3), jnp.ones((7, 2, 3)))
    assert d_w.shape == (3, 7) and d_x.shape == (2, 7, 3)


@pytest.mark.parametrize("allow", ["grad,vmap", "vmap", "none"])
def test_rules_are_left_out_that_the_text_need_not_have(run: Run, folder: Path, allow: str) -> None:
    (folder / "ruled.py").write_text(RULED)
    code, out, err = run("show", "ruled.py:f", "f32[3]", "--allow", allow)
    assert code == 0, err
    assert ("def square_bwd" in out) == (allow == "grad,vmap") != ("without rules for jax.grad" in out)


def test_jvp_gets_a_tangent_for_each_differentiable_argument() -> None:
    def pick(index: jax.Array, x: jax.Array, pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        return x[index] * pair[1]

    index, x = jnp.int32(1), jnp.arange(3.0)
    function, args = _transforms.apply([_transforms.Transform("jvp")], pick, (index, x, (index, jnp.float32(3.0))))
    assert function.__name__ == "jvp_pick"
    assert list(inspect.signature(function).parameters) == [
        "index", "x", "pair", "index_dot", "x_dot", "pair_dot",
    ]  # fmt: skip
    assert args[3] is None and args[5] == (None, jnp.float32(3.0))
    value, tangent = jax.jit(function)(*args)
    assert (value, tangent) == (3.0, 6.0)


def test_jvp_on_the_command_line(run: Run) -> None:
    code, out, err = run("show", "model.py:cube", "f32[]", "--jvp")
    assert code == 0, err
    assert "def jvp_cube(x, x_dot" in out


def test_an_object_that_can_be_called_goes_by_its_class(run: Run) -> None:
    Path("layers.py").write_text(
        "class DenseBlock:\n    def __call__(self, x):\n        return x * 2.0\n\n\nblock = DenseBlock()\n"
    )
    for flags, name in (((), "dense_block"), (("--jvp",), "jvp_dense_block")):
        code, out, err = run("show", "layers.py:block", "f32[2]", *flags)
        assert code == 0, err
        assert f"def {name}(x" in out


def test_static_and_keyword_arguments(run: Run) -> None:
    flags = ("--static", "power=3", "--kw", "scale=f32[]")
    code, _, err = run("write", "model.py:loss", "f32[3]", "f32[2,3]", *flags, "-o", "out.py")
    assert code == 0, err
    written = _locate.load_function("out.py:loss")
    assert list(inspect.signature(written).parameters) == ["w", "x", "scale"]
    original = _locate.load_function("model.py:loss")
    args = original.__globals__["make_args"]()
    np.testing.assert_array_equal(written(*args, scale=jnp.float32(2.0)), original(*args, 3, scale=jnp.float32(2.0)))


def test_bind_takes_a_parameter_out_of_the_middle() -> None:
    def three(a: int, b: int, /, c: int, *, d: int = 4) -> tuple[int, ...]:
        return a, b, c, d

    bound = _transforms.bind(three, {"b": 2})
    assert bound(1, 3) == (1, 2, 3, 4) and bound(1, c=3, d=5) == (1, 2, 3, 5)
    assert list(inspect.signature(bound).parameters) == ["a", "c", "d"]
    assert bound.__name__ == "three"
    with pytest.raises(OptionError, match="no parameter 'e'; it has a, b, c, d"):
        _transforms.bind(three, {"e": 1})


# -- messages --------------------------------------------------------------------------------------
WRITE = ("-o", "out.py")


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["writ"], 2, "'writ' is no command; the commands are demo, write, show, verify, watch, stages, doctor, lint,"
         " minimize, dump, refine. Did you mean 'write'?"),
        (["show"], 2, "the following arguments are required: FILE.py:FN"),
        (["show", "model.py:cube", "--grda"], 2, "--grda is no option here. Did you mean '--grad'?"
         " See untrace show --help."),
        (["show", "none.py:f"], 2, "there is no file none.py."),
        (["show", "modle.py:f"], 2, "there is no file modle.py. Did you mean 'model.py'?"),
        (["show", "a/b.py:f"], 2, "there is no folder a, and so no file a/b.py."),
        (["show", "model.py:cub"], 2, "model.py has no function 'cub'; it has loss, cube, pick,"
         " impossible, make_args, failing_args. Did you mean 'cube'?"),
        (["show", "model.py"], 2, "say which function of model.py is meant, as model.py:NAME; it"
         " has loss, cube, "),
        (["show", "model.py:table"], 2, "model.py:table is no function but a value of type dict."),
        (["show", "model.py:"], 2, "'model.py:' names no function; write it as FILE.py:NAME."),
        (["show", "no_such_module:f"], 2, "there is no module 'no_such_module'."),
        (["show", "jax.no_such:f"], 2, "there is no module 'jax.no_such'."),
        (["show", "model.py:loss", "f32[3]", "f32[2,3]", "scale=f32[]"], 2, "given as --kw scale=f32[]"),
        (["show", "model.py:cube", "f3[2]"], 2, "cannot read the type string 'f3[2]': at column 1,"
         " 'f3' is not a type that is known here"),
        (["show", "model.py:cube", "f64[]"], 2, "'f64' needs JAX's 64-bit mode"),
        (["show", "model.py:cube", "@model.py:failing_args"], 3, "model.py:failing_args failed"
         " (line 25): ValueError: no data today"),
        (["show", "model.py:cube", "f32[]", "--argnums", "0"], 2, "--argnums belongs behind"
         " --grad or --value-and-grad."),
        (["show", "model.py:cube", "f32[]", "--vmap", "--in-axes", "x"], 2,
         "--in-axes 'x' is no Python value such as 0 or 0,None."),
        (["show", "model.py:cube", "f32[]", "--static", "power"], 2,
         "argument --static: 'power' is not of the form NAME=VALUE."),
        (["show", "model.py:cube", "f32[]", "--static", "n=1"], 2,
         "the function has no parameter 'n'; it has x."),
        (["show", "model.py:cube", "f32[]", "--style", "baroque"], 2, "baroque"),
        (["show", "model.py:cube", "f32[]", "--allow", "grad,jvp"], 2, "'jvp' is not known; this version has 'grad', 'vmap'"),
        (["write", "model.py:cube", "f32[]"], 2, "the file to write is missing: -o OUT.py."),
        (["write", "model.py:cube", "f32[]", "-o", "no/out.py"], 2,
         "there is no folder no to write out.py in."),
        (["write", "model.py:cube", "f32[]", "-o", "."], 2,
         ". is a folder; name the file to write in it."),
    ],
)  # fmt: skip
def test_bad_usage_is_one_sentence(run: Run, argv: list[str], code: int, message: str) -> None:
    actual_code, out, err = run(*argv)
    assert err.startswith("untrace: ") and message in err
    assert (actual_code, out) == (code, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = z\n", "broken.py could not be imported (line 2): NameError: name 'z' is not"),
        ("def f(:\n", "broken.py could not be imported (line 1): SyntaxError: "),
        ("import sys\nsys.exit(3)\n", "broken.py could not be imported (line 2): SystemExit: 3"),
        ("import no_such\n", "(line 1): ModuleNotFoundError: No module named 'no_such'"),
    ],
)
def test_a_file_that_cannot_be_imported(run: Run, folder: Path, text: str, message: str) -> None:
    (folder / "broken.py").write_text(text)
    code, out, err = run("show", "broken.py:f")
    assert (code, out) == (3, "")
    assert message in err


def test_two_files_of_one_name_are_two_modules(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "same.py").write_text(f"def f():\n    return {name!r}\n")
    first, second = (_locate.load_function(f"{name}/same.py:f") for name in ("one", "two"))
    assert (first(), second()) == ("one", "two")
    assert _locate.load_function("one/same.py:f") is first


def test_a_file_named_like_a_module_of_python_does_not_hide_it(folder: Path) -> None:
    (folder / "random.py").write_text("def f():\n    return 'mine'\n")
    assert _locate.load_function("random.py:f")() == "mine"
    import random

    assert random.random() < 1


def test_a_reader_that_stops_early_is_no_error(folder: Path) -> None:
    command = [*COMMAND, "show", "model.py:loss", "@model.py:make_args"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 0


# -- demo ------------------------------------------------------------------------------------------
def test_demo_writes_prints_proves_and_measures(run: Run, folder: Path) -> None:
    code, out, err = run("demo")
    assert code == 0, (out, err)
    written = folder / "demo_out" / "grad_loss.py"
    assert "def grad_loss(params, tokens, targets" in written.read_text()
    for part in ("def grad_loss(", "run, not jitted", "trace", "Outputs jitted: the same bits"):
        assert part in out


@pytest.mark.parametrize(
    ("before", "length", "after", "left_out"),
    [
        (60, 10, 60, [51, 60]),
        (100, 61, 0, [91]),  # the function to its end, and nothing twice
        (100, 62, 0, [91, 1]),
        (100, 80, 5, [91, 19, 5]),
        (4, 20, 90, [90]),  # it begins in the top
    ],
)  # fmt: skip
def test_an_excerpt_shows_the_function_and_no_line_twice(
    capsys: pytest.CaptureFixture[str], before: int, length: int, after: int, left_out: list[int]
) -> None:
    above, below = (
        [f"{word}_{n} = {n}" for n in range(count)] for word, count in (("above", before), ("below", after))
    )
    function = ["@jax.jit", "def loss(x):", *[f"    x_{n} = {n}" for n in range(length - 3)], "    return x"]
    lines = [*above, *function, *below]
    Terminal().show_excerpt("\n".join([*lines, ""]), "loss", "out.py")
    shown = capsys.readouterr().out.splitlines()
    assert [int(n) for n in re.findall(r"… (\d+) lines more", "\n".join(shown))] == left_out
    kept = [line for line in shown if line in lines]
    assert len(kept) == len(set(kept)) == len(lines) - sum(left_out)
    assert kept == [line for line in lines if line in kept]
    assert {function[0], function[-1]} <= set(kept)


def test_the_demo_keeps_what_a_person_has_edited(folder: Path) -> None:
    output = folder / "grad_loss.py"
    assert _demo._keep_edited(output) is None  # nothing there
    output.write_text("written")
    _demo._remember(output)
    assert _demo._keep_edited(output) is None  # nothing changed
    output.write_text("edited")
    kept = _demo._keep_edited(output)
    assert kept is not None and kept.read_text() == "edited" and not output.exists()
    output.write_text("a person's own file")
    assert _demo._keep_edited(output) == folder / "grad_loss.2.py"


def _imports(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if "import" in line.split()]


def test_the_gradient_that_a_flag_asked_for_has_its_title(capsys, tmp_path):
    source = tmp_path / "model.py"
    source.write_text("import jax.numpy as jnp\n\ndef loss(w, x):\n    return jnp.sum((x @ w) ** 2)\n")
    assert cli.main(["show", f"{source}:loss", "f32[3]", "f32[2,3]", "--grad"]) == 0
    text = capsys.readouterr().out
    assert "Gradient of `loss` with respect to `w` (model.py:3)." in text and "def grad_loss(w, x):" in text
