"""`Decompiled.refine`: what is proven is taken, and nothing else gets in."""

import ast
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import untrace
from untrace import cli
from untrace.refine.allowed import NotAllowed, Vocabulary, parsed
from untrace.refine.declared import declared_calls, declared_level, entry_name
from untrace.refine.functions import places, replaced, text_of

BENCH = Path(__file__).parents[2] / "bench"
EDITORS = runpy.run_path(str(BENCH / "refine_editors.py"), run_name="refine_editors")


def dense(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])


def loss(params, x, y):
    return jnp.mean((dense(params, x) - y) ** 2)


PARAMS = {"w": jnp.ones((3, 4)), "b": jnp.ones(4)}
ARGS = PARAMS, jnp.ones((8, 3)), jnp.ones((8, 4))


@pytest.fixture(scope="module")
def gradient():
    return untrace.decompile(jax.grad(loss))(*ARGS)


@pytest.fixture(scope="module")
def step():
    def train(params, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return untrace.decompile(train)(*ARGS)


@pytest.mark.parametrize("name", EDITORS["HONEST"])
def test_an_honest_editor_is_taken(step, name):
    refined = step.refine(EDITORS["HONEST"][name])
    assert {a.why for a in refined.answers} == {""}
    assert any(a.taken for a in refined.answers) and refined.source != step.source
    for new, old in zip(jax.tree.leaves(refined(*ARGS)), jax.tree.leaves(step(*ARGS)), strict=True):
        np.testing.assert_array_equal(new, old)
    assert refined.proof == step.proof and refined.source_map.at(places(refined.source)["dense"].end)
    assert len(refined._origins) == len(refined.source.split("\n"))


@pytest.mark.parametrize("name", EDITORS["LAZY"])
def test_of_a_lazy_editor_everything_stays(step, name):
    refined = step.refine(EDITORS["LAZY"][name])
    assert refined.source == step.source and not any(a.taken for a in refined.answers)


def test_nothing_foreign_gets_in_and_nothing_of_it_runs(step, gradient, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    count = 0
    for written in (step, gradient):
        words = Vocabulary.of(written.source)
        for name, place in places(written.source).items():
            text = text_of(written.source, place)
            for what, answer in EDITORS["foreign"](text):
                count += 1
                with pytest.raises(NotAllowed):
                    parsed(answer, place.node, words, name == written.name, len(text))
                    pytest.fail(f"{what}: let in")
    assert count > 300 and not list(tmp_path.iterdir())


def test_of_what_is_another_program_only_what_gives_the_same_is_taken(step):
    left = {
        name: [answer for _, answer in EDITORS["wrong"](text_of(step.source, place), 0, 12)]
        for name, place in places(step.source).items()
    }
    assert sum(map(len, left.values())) >= 20
    refined = step.refine(lambda function: left[function.name].pop() if left[function.name] else None, tries=20)
    assert sum(bool(a.why) for a in refined.answers) >= 15
    again = untrace.verify(getattr(refined.module, refined.name), getattr(step.module, step.name))(*ARGS)
    assert again.proof.at_least("hlo"), again


def answer_to(written, name, old, new, **options):
    """What comes of a text of one function in which something is replaced."""
    place = places(written.source)[name]
    text = text_of(written.source, place)
    assert old in text
    answers = written.refine(lambda f: f.replace(old, new) if f.name == name else None, **options).answers
    (found,) = [a for a in answers if a.function == name]
    return found


def test_a_size_that_follows_has_to_follow(gradient):
    assert "whole number" in answer_to(gradient, "grad_loss", "y.size", "32").why
    assert "another program" in answer_to(gradient, "grad_loss", "y.size", "(y.shape[0] * 4)").why
    assert answer_to(gradient, "grad_loss", "y.size", "(y.shape[0] * y.shape[1])").taken


def test_the_guard_has_to_stay(gradient):
    place = places(gradient.source)["grad_loss"]
    guard = next(
        s
        for s in place.node.body
        if isinstance(s, ast.Assign) and any(n.id == "_checked" for n in ast.walk(s) if isinstance(n, ast.Name))
    )
    lines = gradient.source.split("\n")[guard.lineno - 1 : guard.end_lineno]
    assert "refuses other arguments" in answer_to(gradient, "grad_loss", "\n".join(lines), "").why


def test_a_derivative_is_part_of_what_is_proven():
    def kept(x):
        return jnp.sin(x) * jax.lax.stop_gradient(jnp.cos(x)) * 1.0

    written = untrace.decompile(kept)(jnp.ones(4))
    assert written.proof.level == "hlo"
    # XLA makes the same of it; but its derivative is another one.
    found = answer_to(written, "kept", "lax.stop_gradient(jnp.cos(x))", "jnp.cos(x)")
    assert "another program" in found.why


def test_what_compiles_to_the_same_is_taken_where_the_text_was_proven_so():
    def area(x, y):
        return (x * x + y) * 1

    arguments = jnp.arange(4), jnp.arange(4)
    written = untrace.decompile(area)(*arguments)
    assert written.proof.level == "hlo"
    assert answer_to(written, "area", "x * x", "jnp.square(x)").taken
    exact = untrace.decompile(area, simplify=False)(*arguments)
    assert exact.proof.level == "jaxpr"
    assert "another program" in answer_to(exact, "area", "x * x", "jnp.square(x)").why


def test_a_rule_that_no_trace_reaches_stays():
    @jax.custom_jvp
    def soft(x):
        return jnp.log1p(jnp.exp(x))

    soft.defjvp(lambda primals, tangents: (soft(*primals), tangents[0] * jax.nn.sigmoid(primals[0])))
    written = untrace.decompile(lambda x: soft(x) + 1.0)(jnp.ones(3))
    assert "sigmoid" in written.source
    refined = written.refine(lambda f: f.replace("sigmoid", "tanh"))
    assert any(a.why for a in refined.answers) and refined.source == written.source


def test_an_answer_that_never_ends_and_one_that_needs_all_memory_are_refused(gradient):
    lines = text_of(gradient.source, places(gradient.source)["grad_loss"]).split("\n")
    endless = "\n".join([*lines[:-1], "    k = 3", *["    k = k ** k"] * 9, lines[-1]])
    (found,) = gradient.refine(lambda f: endless, seconds=5.0).answers
    assert "within 5 seconds" in found.why or "memory" in found.why
    doubled = "\n".join([*lines[:-1], "    k = [y]", *["    k = k + k"] * 45, lines[-1]])
    (found,) = gradient.refine(lambda f: doubled, seconds=60.0).answers
    assert found.why


def test_what_an_editor_is_told(step):
    seen = {}

    def editor(function):
        seen[function.name] = function

    step.refine(editor)
    assert seen["loss"].types == "params: {b: f32[4], w: f32[3,4]}; x: f32[8,3]; y: f32[8,4]"
    assert seen["loss"].author.startswith("def loss(params, x, y):\n    return jnp.mean(")
    assert len(seen["dense"].callers) == 1 and "def loss(" in seen["dense"].callers[0]
    assert seen["loss"].module == step.source and isinstance(seen["loss"], str)


def test_an_editor_may_try_again_and_is_told_why(gradient):
    told = []

    def editor(function):
        told.append(function.refused)
        return str(function).replace("2.0", "3.0") if len(told) < 3 else str(function).replace("d_total", "d_sum")

    refined = gradient.refine(editor, tries=5)
    assert [len(t) for t in told] == [0, 1, 2] and "another program" in told[1][0]
    assert [a.taken for a in refined.answers] == [False, False, True] and "d_sum" in refined.source
    assert str(refined.answers).endswith("1 taken, 2 refused, 0 as they were")


def test_a_saved_module_says_at_what_it_is_traced(step):
    assert declared_level(step.source) == step.proof.level and entry_name(step.source) == "train"
    first, second = declared_calls(step.source, "train")
    assert first[0][1].shape == (8, 3) and first[0][0]["w"].shape == (3, 4)
    assert second[0][1].shape != (8, 3)


@pytest.mark.parametrize(
    "command", ["sed s/d_total/d_sum/g", "sed '1i ```python' | sed '$a ```' | sed s/d_total/d_sum/g"]
)
def test_the_command_line(gradient, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    gradient.save("grad.py")
    assert cli.main(["refine", "grad.py", "--with", command, "-o", "refined.py"]) == 0
    assert "grad_loss: taken" in capsys.readouterr().out
    assert Path("refined.py").read_text() == gradient.source.replace("d_total", "d_sum")
    assert cli.main(["refine", "grad.py", "--with", command, "-o", "refined.py"]) == 2


def test_the_command_gets_the_context_and_may_fail(gradient, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    gradient.save("grad.py")
    script = tmp_path / "editor.py"
    script.write_text(
        "import json, os, sys\n"
        "context = json.load(open(os.environ['UNTRACE_CONTEXT']))\n"
        "json.dump(context, open('seen.json', 'w'))\n"
        "sys.exit('no such model')\n"
    )
    command = f"{sys.executable} {script}"
    assert cli.main(["refine", "grad.py:grad_loss", "--with", command, "-o", "refined.py"]) == 0
    assert "no such model" in capsys.readouterr().out
    assert json.loads(Path("seen.json").read_text())["types"].startswith("params: {b: f32[4]")
    assert Path("refined.py").read_text() == gradient.source


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["grad.py", "-o", "out.py"], "--with"),
        (["grad.py", "--with", "cat"], "-o OUT.py"),
        (["none.py", "--with", "cat", "-o", "out.py"], "no file none.py"),
        (["bad.py", "--with", "cat", "-o", "out.py"], "no Python"),
        (["two.py", "--with", "cat", "-o", "out.py"], "Name it"),
        (["one.py", "--with", "cat", "-o", "out.py"], "give ARGS"),
        (["grad.py:other", "--with", "cat", "-o", "out.py"], "other"),
    ],
)
def test_bad_usage_is_said_in_a_sentence(gradient, tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    gradient.save("grad.py")
    Path("bad.py").write_text("def f(:\n")
    Path("two.py").write_text("def f(x):\n    return x\n\n\ndef g(x):\n    return x\n")
    Path("one.py").write_text("def f(x):\n    return x\n")
    assert cli.main(["refine", *argv]) == 2
    assert message in capsys.readouterr().err and not Path("out.py").exists()


def test_any_module_goes_with_arguments(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("import jax.numpy as jnp\n\n\ndef f(x):\n    y = jnp.sin(x)\n    return y + 1.0\n")
    assert cli.main(["refine", "own.py", "f32[3]", "--with", "sed s/y/sine/", "-o", "out.py"]) == 0
    assert "sine = jnp.sin(x)" in Path("out.py").read_text()
    done = subprocess.run([sys.executable, "-c", "import out; print(out.f(0.0))"], capture_output=True, text=True)
    assert done.stdout.strip() == "1.0"


def test_a_replaced_function_is_the_only_change(step):
    place = places(step.source)["dense"]
    text = text_of(step.source, place)
    assert replaced(step.source, place, text) == step.source


def test_what_a_module_says_once_is_no_word_for_its_functions(tmp_path):
    """A rule that is set again, a file that is loaded again, a module that goes by another name."""

    @jax.custom_vjp
    def soft(x):
        return jnp.log1p(jnp.exp(x))

    soft.defvjp(lambda x: (soft(x), x), lambda x, g: (g * jax.nn.sigmoid(x),))
    written = untrace.decompile(jax.value_and_grad(lambda x: jnp.sum(jax.nn.relu(soft(x)))))(jnp.ones(3))
    source = written.source.replace("import jax\n", "import jax\nimport numpy as np\n", 1)
    source = source.replace("\n\n\ndef ", '\n\nTABLE = np.load("table.npy")\n\n\ndef ', 1)
    words = Vocabulary.of(source)
    assert ".defvjp(" in source and "defvjp" not in words.members
    assert "np.load" not in words.paths and "jax" not in words.paths and "jax.nn" not in words.paths
    name = written.name
    place = places(source)[name]
    lines = text_of(source, place).split("\n")
    for statement in (
        "soft.defvjp(soft, soft)", "@soft.defvjp\n    def rule(x): return x", 'seen = np.load("other.npy")', "seen = jax.nn",
    ):  # fmt: skip
        answer = "\n".join([*lines[:-1], f"    {statement}", lines[-1]])
        with pytest.raises(NotAllowed):
            parsed(answer, place.node, words, True, 1000)


class Layer(NamedTuple):
    weight: jax.Array
    bias: jax.Array


class Model(NamedTuple):
    first: Layer
    last: Layer


def test_every_attribute_on_a_way_through_a_tree_is_a_word():
    def apply(model, x):
        hidden = jnp.tanh(x @ model.first.weight + model.first.bias)
        return hidden @ model.last.weight + model.last.bias

    layers = Model(Layer(jnp.ones((3, 4)), jnp.ones(4)), Layer(jnp.ones((4, 2)), jnp.ones(2)))
    written = untrace.decompile(apply)(layers, jnp.ones((5, 3)))
    assert answer_to(written, "apply", "hidden", "h").taken
