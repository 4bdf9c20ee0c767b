"""`untrace.stages`: which lines of which stage are the same computation, what the page is made of, what is refused."""

import functools
import html.parser
import json
import re

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import untrace
from untrace import cli, jax_compat
from untrace.provenance.sites import Provenance
from untrace.tools.stages import page
from untrace.tools.stages.matching import Matcher
from untrace.tools.stages.model import Computation, Line, Stage, indented_folds, safe
from untrace.tools.stages.program import Numbered, flops_of


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def loss(w, x):
    hidden = jnp.tanh(x @ w)
    return jnp.sum(hidden * hidden)


def scanned(w, x):
    def body(c, _):
        c = jnp.sin(c @ w)
        return c, c.mean()

    c, means = lax.scan(body, x, None, length=3)
    return c.sum() + means[-1]


def elementwise(x):
    y = jnp.exp(x)
    z = y + 1.0
    return z * jnp.cos(z)


@jax.jit
def squashed(x):
    return jnp.tanh(x) * 2.0


def twice(x):
    first = squashed(x)
    return squashed(first + 1.0)


def chosen(p, x):
    return lax.cond(p, lambda x: jnp.sinh(x), lambda x: -x, x)


def step(w, x):
    value, gradient = jax.value_and_grad(loss)(w, x)
    return value, w - 0.1 * gradient


def masked(x):
    kept = jnp.where(x > 0.0, x, 0.5)
    return jnp.sum(jnp.where(kept > 1.0, kept, x) ** 2)


@functools.cache
def stages_of(name):
    made = {
        "loss": (loss, (f32(3, 4), f32(5, 3))),
        "grad": (jax.grad(loss), (f32(3, 4), f32(5, 3))),
        "scanned": (scanned, (f32(3, 3), f32(5, 3))),
        "elementwise": (elementwise, (f32(64),)),
        "twice": (twice, (f32(8),)),
        "chosen": (chosen, (jax.ShapeDtypeStruct((), jnp.bool_), f32(3))),
        "step": (step, (f32(3, 4), f32(5, 3))),
        "masked": (jax.grad(masked), (f32(5),)),
        "nested": (jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0))), (f32(3, 4), f32(7, 5, 3))),
    }
    function, args = made[name]
    return untrace.stages(function)(*args)


def line_of(stages, text, key="source"):
    (found,) = [line for line in stages[key].lines if text in line.text]
    return found.number


def linked(stages, text, other):
    numbers = stages.linked("source", line_of(stages, text), other)
    return [stages[other].at(number).text.strip() for number in numbers]


# For a line of the source: what stands on the lines of each stage that are linked with it, as patterns, one for each line
# but for StableHLO and HLO, where these have to be among them, and must not be what stands behind the bar.
MAPS = [
    ("loss", "jnp.tanh(x @ w)", "jaxpr", ["dot_general", "dimension_numbers", "preferred", "b a", "tanh"]),
    ("loss", "jnp.sum(hidden", "jaxpr", ["mul", "reduce_sum"]),
    ("loss", "jnp.tanh(x @ w)", "text", [r"hidden = jnp.tanh\(x @ w\)"]),
    ("loss", "jnp.sum(hidden", "text", [r"return \(hidden \* hidden\).sum\(\)"]),
    ("loss", "jnp.tanh(x @ w)", "stablehlo", ["stablehlo.dot_general", "stablehlo.tanh"]),
    ("loss", "jnp.tanh(x @ w)", "hlo", [r" dot\(", r" tanh\("]),
    ("loss", "jnp.sum(hidden", "hlo", [r" multiply\(", r" reduce\("]),
    ("scanned", "jnp.sin(c @ w)", "jaxpr", ["dot_general", "dimension_numbers", "preferred", "f e|g f", "sin"]),
    ("scanned", "jnp.sin(c @ w)", "text", [r"c = jnp.sin\(c @ w\)"]),
    ("scanned", "return c, c.mean()", "text", [r"return c, c.mean\(\)"]),
    ("scanned", "lax.scan(body", "text", [r"lax.scan\(body"]),
    ("scanned", "jnp.sin(c @ w)", "stablehlo", ["stablehlo.dot_general", "stablehlo.sine"]),
    ("scanned", "lax.scan(body", "stablehlo", ["stablehlo.while"]),
    ("scanned", "jnp.sin(c @ w)", "hlo", [r" dot\(", r" sine\("]),
    ("scanned", "lax.scan(body", "hlo", [r" while\("]),
    ("elementwise", "y = jnp.exp(x)", "hlo", [r" exponential\(", r" fusion\("]),
    ("elementwise", "z = y + 1.0", "hlo", [r" add\(", r" fusion\("]),
    ("elementwise", "z * jnp.cos(z)", "hlo", [r" cosine\(", r" multiply\(", r" fusion\("]),
    ("twice", "jnp.tanh(x) * 2.0", "jaxpr", ["tanh", "mul"]),
    ("twice", "jnp.tanh(x) * 2.0", "hlo", [r" tanh\("]),
    ("twice", "squashed(first + 1.0)", "stablehlo", ["stablehlo.add", "call @squashed"]),
    ("chosen", "lax.cond(p", "stablehlo", ["stablehlo.case|stablehlo.if", "sinh|exponential", "negate"]),
    ("step", "jnp.tanh(x @ w)", "text", [r"hidden = jnp.tanh\(x @ w\)"]),  # of a derivative that stays a call
    ("step", "0.1 * gradient", "text", [r"0.1 \* gradient"]),
    ("grad", "jnp.tanh(x @ w)", "hlo", [r" tanh\(", r" dot\("]),
]


@pytest.mark.parametrize(("name", "line", "stage", "expected"), MAPS)
def test_hand_made_maps(name, line, stage, expected):
    found = linked(stages_of(name), line, stage)
    if stage in ("jaxpr", "text"):
        assert len(found) == len(expected) and all(map(re.search, expected, found)), found
    else:
        assert all(any(re.search(pattern, text) for text in found) for pattern in expected), found


@pytest.mark.parametrize(
    ("name", "line", "others"),
    [
        ("loss", "jnp.tanh(x @ w)", r" reduce\(|stablehlo.reduce|reduce_sum"),
        ("loss", "jnp.sum(hidden", r" dot\(|dot_general"),
        ("scanned", "jnp.sin(c @ w)", r"\.mean\(| while\(|stablehlo.while|reduce_sum|stablehlo.divide"),
        ("elementwise", "y = jnp.exp(x)", r" cosine\(| multiply\(|stablehlo.(?:cosine|add)| cos "),
        ("twice", "first = squashed(x)", r"stablehlo.add| add "),
    ],
)
def test_what_belongs_to_another_line_is_not_linked(name, line, others):
    found = stages_of(name)
    wrong = [t for stage in ("jaxpr", "text", "stablehlo", "hlo") for t in linked(found, line, stage)]
    assert wrong and not [text for text in wrong if re.search(others, text) and "fusion(" not in text]


def test_a_library_function_that_was_inlined_belongs_to_the_line_that_called_it():
    found = stages_of("masked")
    first, second = linked(found, "jnp.where(x > 0.0", "text"), linked(found, "jnp.where(kept > 1.0", "text")
    assert any("kept = jnp.where(" in text for text in first) and any("d_kept = " in text for text in first)
    assert any("return jnp.where(" in text for text in second)


def test_a_fused_kernel_points_at_all_its_lines():
    found = stages_of("elementwise")
    kernel = next(line for line in found["hlo"].lines if " fusion(" in line.text and "ROOT" in line.text)
    lines = [found["source"].at(n).text.strip() for n in found.linked("hlo", kernel.number, "source")]
    assert lines == ["y = jnp.exp(x)", "z = y + 1.0", "return z * jnp.cos(z)"]


def test_calls_and_heads_lead_to_what_is_inside():
    found = stages_of("scanned")
    loop = found["source"].at(line_of(found, "lax.scan(body"))
    inside = [found.computations[n].name for n in sorted(loop.holds)]
    assert inside == ["dot_general", "sin", "reduce_sum", "div"] and not loop.holds & loop.computes
    assert [found.computations[n].name for n in loop.computes] == ["scan"]
    head = found["text"].at(line_of(found, "def scanned(", "text"))
    assert not head.computes and len(head.holds) == len(found.computations)


def test_transformations_in_the_order_in_which_they_were_composed():
    found = stages_of("nested")
    assert [stage.title for stage in found] == [
        "source", "jaxpr of loss", "loss, written", "jaxpr of grad(loss)", "grad(loss), written",
        "jaxpr of vmap(grad(loss))", "vmap(grad(loss)), written", "jaxpr of jit(vmap(grad(loss)))",
        "jit(vmap(grad(loss))), written", "StableHLO", "optimised HLO",
    ]  # fmt: skip
    assert "f32[7,5,3]" in found["jaxpr2"].text and "f32[7," not in found["jaxpr1"].text
    assert found["jaxpr"].same_as == "jaxpr of vmap(grad(loss))"
    # The forward pass of the function inside is the one of the gradient, and its lines lead to the backward pass too.
    numbers = found.linked("source", line_of(found, "jnp.tanh(x @ w)"), "jaxpr0")
    assert any("tanh" in found["jaxpr0"].at(n).text for n in numbers)
    (tanh,) = [line for line in found["jaxpr0"].lines if " tanh " in line.text]
    assert {found.computations[n].name for n in tanh.computes} == {"tanh"}


def test_an_inner_function_that_does_not_stand_alone_is_said():
    def summed(x):
        return x + lax.psum(x, "batch")

    found = untrace.stages(jax.vmap(summed, axis_name="batch"))(f32(4))
    assert [note.split(":")[0] for note in found.notes] == ["summed does not stand alone"]
    assert [stage.key for stage in found] == ["source", "jaxpr", "text", "stablehlo", "hlo"]
    with pytest.raises(untrace.CaptureError, match="could not be traced"):
        untrace.stages(summed)(f32(4))


def test_every_equation_is_on_lines_of_each_stage_before_the_compiler():
    for name in ("loss", "scanned", "grad", "twice", "chosen"):
        found = stages_of(name)
        every = set(range(len(found.computations)))
        for key in ("source", "jaxpr"):
            assert set().union(*[line.computes for line in found[key].lines]) == every, (name, key)
        assert all(c.place.startswith("test_stages.py:") for c in found.computations)


def test_turns_of_an_unrolled_loop_are_told_apart():
    @jax.make_jaxpr
    def unrolled(x, w):
        for _ in range(8):
            x = jnp.sin(x @ w) * 2 + jnp.cos(x)
        return x

    whole = Numbered(unrolled(jnp.ones((3, 3)), jnp.ones((3, 3))), Provenance())
    kept = [n for n in range(len(whole.equations)) if n % 3]
    others = [whole.equations[n].replace() for n in kept]
    places = [whole.origins[n] for n in kept]
    assert Matcher(whole).behind(others, places, whole.jaxpr) == [{n} for n in kept]
    lost = [() if turn % 5 == 2 else place for turn, place in enumerate(places)]  # from nowhere, as under a derivative
    assert Matcher(whole).behind(others, lost, whole.jaxpr) == [{n} for n in kept]


def test_values_of_a_run():
    found = untrace.stages(elementwise, values=True)(jnp.zeros(3))
    assert found["text"].at(line_of(found, "jnp.exp(x)", "text")).values[0].endswith("f32[3]  all 1")
    assert not found.notes
    none = untrace.stages(elementwise, values=True)(f32(3))
    assert "there are no values: watch runs the function" in none.notes[0]


def test_in_a_terminal():
    text = str(stages_of("loss"))
    assert text.startswith("loss: 4 equations\n  source ")
    row = next(row for row in text.splitlines() if "jnp.tanh(x @ w)    (" in row)
    assert row.endswith("(2 equations, 140 flop)")
    assert "(and " in str(stages_of("elementwise"))  # a kernel of several lines says so


def test_flops_are_those_of_products_and_loops():
    found = stages_of("scanned")
    flops = {c.name: c.flops for c in found.computations}
    assert flops["dot_general"] == 3 * 2 * 5 * 3 * 3 and flops["sin"] == 3 * 15 and flops["slice"] == 0

    def convolved(x, k):
        return lax.conv(x, k, (1, 1), "VALID")

    (eqn,) = jax.make_jaxpr(convolved)(f32(2, 3, 8, 8), f32(4, 3, 3, 3)).eqns
    cost = jax.jit(convolved).lower(f32(2, 3, 8, 8), f32(4, 3, 3, 3)).compile().cost_analysis()
    assert flops_of(eqn) == cost["flops"] == 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 999), max_size=4), st.sampled_from(["", ":", "/add", "/while/body/add"]))
def test_the_innermost_mark_of_a_name_counts(numbers, end):
    name = "/".join(["jit(f)", *[f"untrace_equation_{n}" for n in numbers]]) + end
    assert jax_compat.marks_in([name, "jit(g)/tanh"]) == set(numbers[-1:])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=20))
def test_folds_are_nested_or_apart(depths):
    texts = ["  " * depth + "x" for depth in depths]
    folds = indented_folds(texts, [True] * len(texts))
    assert all(start < end for start, end in folds) and len({start for start, _ in folds}) == len(folds)
    for start, end in folds:
        assert all(depths[i] > depths[start] for i in range(start + 1, end + 1))
        assert not [1 for a, b in folds if a < start <= b < end]


# ---- the page


class Tags(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.data, self._in = [], "", None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._in = dict(attrs)

    def handle_data(self, data):
        if self._in and self._in.get("id") == "data":
            self.data += data

    def handle_endtag(self, tag):
        self._in = None


HOSTILE = '</script><script>alert(1)</script><!-- <img src=x onerror="alert(2)"> &lt; ]]> \u2028 \u202e'


def page_of(text):
    line = Line(safe(text), 1, frozenset({0}), values=(text,))
    stage = Stage("source", text, "python", (line,), same_as=text)
    return page.html(text, [stage], [Computation(0, text, text, text, False, 0)], [text])


PLAIN = Tags(page_of("plain")).tags


@settings(max_examples=20, deadline=None)
@given(st.text(max_size=60) | st.text("</script>&;!-", max_size=20) | st.just(HOSTILE))
def test_nothing_in_the_page_can_become_markup(text):
    hostile = Tags(page_of(text))
    assert hostile.tags == PLAIN
    data = json.loads(hostile.data)
    assert data["name"] == text and data["notes"] == [text]


def test_lines_show_as_what_they_are():
    assert safe("a\tb\x1b[31m\u202e\u200b") == "a   b\ufffd[31m\ufffd\ufffd"
    assert safe("größe = ∂x") == "größe = ∂x"
    assert len(safe("x" * 10**6)) < 2100


def test_a_hostile_program(tmp_path):
    def inner(x):
        return x + 1.0

    inner.__name__ = HOSTILE
    found = untrace.stages(lambda x: jax.jit(inner)(x) * 2.0)(f32(2))
    text = found.html()
    assert Tags(text).tags == PLAIN and "alert(1)</script>" not in text
    assert "srcdoc=" in found._repr_html_() and 'sandbox="allow-scripts"' in found._repr_html_()
    assert HOSTILE not in found._repr_html_()


def test_the_page_needs_nothing_from_elsewhere():
    text = page_of("plain")
    assert not re.search(r"https?://|\bsrc=|@import|url\(", text) and "default-src 'none'" in text


def test_saved_whole_and_never_over_another_file(tmp_path):
    found = stages_of("loss")
    path = tmp_path / "page.html"
    assert found.save(path) == str(path) and path.read_text(encoding="utf-8") == found.html()
    with pytest.raises(untrace.OutputExistsError, match="overwrite=True"):
        found.save(path)
    found.save(path, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    for wrong, why in (("page.py", "an .html file"), ("none/page.html", "there is no folder")):
        with pytest.raises(untrace.OptionError, match=why):
            found.save(tmp_path / wrong)


def test_what_is_refused():
    with pytest.raises(untrace.OptionError, match="target= does not go with it"):
        untrace.stages(loss, target="numpy")
    with pytest.raises(untrace.OptionError, match="the function itself"):
        untrace.stages(untrace.decompile(elementwise)(f32(3)))
    with pytest.raises(KeyError, match="there are source, jaxpr, text, stablehlo, hlo"):
        stages_of("loss")["torch"]
    with pytest.raises(KeyError, match="source has no line 0"):
        stages_of("loss").linked("source", 0, "hlo")


def test_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "staged_model.py").write_text("import jax.numpy as jnp\n\ndef f(x):\n    return jnp.sin(x) * 2.0\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["stages", "staged_model.py:f", "f32[3]"]) == 0
    assert "return jnp.sin(x) * 2.0    (2 equations, 6 flop)" in capsys.readouterr().out
    assert cli.main(["stages", "staged_model.py:f", "f32[3]", "--grad", "-o", "page.html"]) == 3
    assert "could not be traced" in capsys.readouterr().err
    assert cli.main(["stages", "staged_model.py:f", "f32[3]", "--vmap", "--values", "-o", "page.html"]) == 0
    assert "wrote page.html" in capsys.readouterr().err
    assert cli.main(["stages", "staged_model.py:f", "f32[3]", "-o", "page.html"]) == 2
    assert "page.html exists" in capsys.readouterr().err
