"""The lists of passes: what each makes of a text is shown, and what a broken one leaves is found."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import untrace
from untrace.ir.passes import BrokenPass, Course, Pass, run_passes
from untrace.lift import passes as lifts
from untrace.module import passes as statements
from untrace.python.statements import Return
from untrace.python.tree import Name

ROOT = Path(__file__).parents[2]
NAMES = ["capture", "simplify", *[p.name for p in (*lifts.PASSES, *statements.PASSES)], "proof"]
X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)


def dense(layer, x):
    return jnp.tanh(x @ layer["w"] + layer["b"])


def loss(layers, x):
    for layer in layers:
        x = dense(layer, x)
    return jnp.mean(x**2)


LAYERS = [{"w": 0.1 * jnp.eye(4), "b": jnp.zeros(4)} for _ in range(3)]


def rnn(w, xs):
    return jnp.sum(lax.scan(lambda h, x: (jnp.tanh(h @ w + x),) * 2, jnp.zeros(4), xs)[1] ** 2)


def step(layers, x):
    value, grads = jax.value_and_grad(loss)(layers, x)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, layers, grads)


def repeated(x):
    """Equal pullbacks, of which one is called."""
    return jax.vjp(lambda x: jax.nn.logsumexp(x, axis=-1), x)[1](jnp.ones(3))[0] + jax.grad(
        lambda x: jnp.sum(jax.nn.logsumexp(x, axis=-1))
    )(x)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (loss, (LAYERS, X)), (jax.grad(loss), (LAYERS, X)), (jax.grad(rnn), (jnp.eye(4), X)), (step, (LAYERS, X)),
        (jax.vmap(loss, (None, 0)), (LAYERS, X)), (repeated, (X,)),
    ],
    ids=["loss", "gradient", "scan", "step", "vmap", "pullbacks"],
)  # fmt: skip
def test_the_passes_one_by_one_give_the_text_of_all(function, args):
    found = list(untrace.steps(function, guard=False)(*args))
    assert [s.name for s in found] == NAMES
    text = untrace.decompile(function, guard=False)(*args).source
    assert found[-1].text == text
    assert text.endswith(found[-2].text) or found[-2].text.split("\n\n\n")[1:] == text.split("\n\n\n")[1:]
    assert found[0].text == found[0].diff
    for before, after in zip(found, found[1:], strict=False):
        assert bool(after.diff) == (before.text != after.text), after.name


def shown(*options):
    command = [sys.executable, "-m", "untrace", "show", f"{ROOT / 'examples/loss.py'}:loss"]
    types = ["(f32[4,5], f32[5])", "f32[3,4]", "f32[3,5]", "--grad"]
    return subprocess.run([*command, *types, *options], capture_output=True, text=True)


def test_the_command_line_shows_each_pass_under_a_heading():
    found = shown("--steps")
    assert found.returncode == 0, found.stderr
    headings = [line for line in found.stdout.splitlines() if line.startswith("# pass ")]
    assert [h.removeprefix("# pass ").partition(":")[0] for h in headings] == NAMES


def test_until_gives_the_text_after_that_pass():
    early, late = shown("--until", "simplify"), shown("--until", "library-calls")
    assert "lax.dot_general" in early.stdout and "@" not in early.stdout.replace("@jax", "")
    assert " @ " in late.stdout and "_checked" not in late.stdout
    assert "# pass" not in early.stdout + late.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--until", "outlines"], "'outlines' is no pass; the passes are capture, "), (["--steps", "--jaxpr"], "--jaxpr")],
)
def test_bad_usage_is_a_sentence(options, said):
    found = shown(*options)
    assert found.returncode == 2 and said in found.stderr and not found.stdout, found.stderr


def test_a_text_in_style_exact_has_no_passes():
    with pytest.raises(untrace.OptionError, match="no passes"):
        untrace.steps(loss, style="exact")(LAYERS, X)


def broken(monkeypatch, module, name, fault):
    """Has a pass of a list do something wrong after its work."""
    index = [p.name for p in module.PASSES].index(name)
    right = module.PASSES[index]

    def wrong(state):
        right.run(state)
        fault(state)

    passes = list(module.PASSES)
    passes[index] = dataclasses.replace(right, run=wrong)
    monkeypatch.setattr(module, "PASSES", tuple(passes))


def forget_a_definition(state):
    state.program.entry.equations = state.program.entry.equations[1:]


def read_what_nothing_binds(state):
    entry = next(d for d in state.definitions if getattr(d, "name", "") == "loss")
    entry.body = [Return(Name("nowhere"))]


FAULTS = [
    (lifts, "prune", forget_a_definition, "after the pass 'prune': .*uses a variable that is not bound yet"),
    (lifts, "outline", forget_a_definition, "after the pass 'outline'"),
    (statements, "merge-equal", read_what_nothing_binds, "after the pass 'merge-equal': `loss` reads `nowhere`"),
]


@pytest.mark.parametrize(("module", "name", "fault", "said"), FAULTS, ids=[f[1] for f in FAULTS])
def test_the_check_names_the_pass_that_broke_the_program(module, name, fault, said, monkeypatch):
    broken(monkeypatch, module, name, fault)
    with pytest.raises(BrokenPass, match=said):
        untrace.decompile(loss)(LAYERS, X)


@pytest.mark.parametrize(("module", "name", "fault", "said"), FAULTS, ids=[f[1] for f in FAULTS])
def test_a_broken_pass_costs_a_user_readability_only(module, name, fault, said, monkeypatch):
    monkeypatch.delenv("UNTRACE_STRICT")
    broken(monkeypatch, module, name, fault)
    found = untrace.decompile(loss)(LAYERS, X)
    assert found.proof.at_least("bits")
    assert jnp.array_equal(found(LAYERS, X), loss(LAYERS, X))


def test_a_course_ends_with_a_pass_and_leaves_others_out():
    passes = [Pass(n, "", lambda s, n=n: s.append(n)) for n in "abc"]
    for course, expected in [
        (Course(), "abc"),
        (Course(until="b"), "ab"),
        (Course(until=""), ""),
        (Course(without=frozenset("b")), "ac"),
    ]:
        done: list[str] = []
        assert run_passes(passes, done, lambda s: None, course) == ("c" in expected)
        assert "".join(done) == expected


def test_names_of_passes_are_words_for_the_command_line():
    assert len(set(NAMES)) == len(NAMES)
    assert all(name.replace("-", "").isalpha() and name == name.lower() for name in NAMES)
