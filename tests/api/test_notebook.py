"""What a notebook shows of results: in a notebook that is run, and of texts that try to become markup."""

from __future__ import annotations

from html.parser import HTMLParser

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import untrace
from untrace import _html
from untrace.driver.in_c import InC
from untrace.driver.translated import Translated
from untrace.prove.report import Proof
from untrace.tools.doctor.diagnosis import Diagnosis, Finding, Range
from untrace.tools.minimize.minimal import Minimal
from untrace.tools.probe import Frame
from untrace.tools.records import Record
from untrace.tools.statistics import statistics
from untrace.tools.watched import Watched

VOID = {"br", "hr", "img", "input", "link", "meta"}
HOSTILE = '</pre><script>alert(1)</script><img src=x onerror="a()"> & "\'></summary>'

CELLS = (
    """\
import jax
import jax.numpy as jnp
import untrace

def unstable(x):
    def halve(state, _):
        state = state / 2
        return state, state.sum()

    last, sizes = jax.lax.scan(halve, x, length=3)
    return jnp.log(1 + jnp.exp(last)) + sizes[-1]
""",
    "d = untrace.decompile(unstable)(jnp.arange(3.0))\nd",
    "untrace.watch(d, turns=2)(jnp.arange(3.0))",
    "untrace.doctor(lambda x: jnp.log(1 + jnp.exp(x)))(jnp.arange(3.0))",
)


class Parsed(HTMLParser):
    """The elements of a display, and its text without the style; balanced, or it is a failure."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data


def is_harmless(parsed: Parsed) -> bool:
    tags = {"div", "style", "b", "pre", "span", "code", "details", "summary", "table", "tr", "td", "th"}
    return set(parsed.tags) <= tags and {name for name, _ in parsed.attributes} <= {"class", "open"}


def test_a_notebook_shows_them() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    _, *shown = [[output["data"] for output in cell.outputs if "data" in output] for cell in notebook.cells]
    written, watched, diagnosis = [Parsed(data["text/html"]) for (data,) in shown]
    assert "the helpers at its end" in written.text and written.text.index("helpers at") < written.text.index(
        "def _checked"
    )
    assert all(map(is_harmless, (written, watched, diagnosis)))
    assert "def unstable(x):" in written.text and "proven: same jaxpr" in written.text
    assert "a notebook cell:" in written.text and "k" in {value for _, value in written.attributes}
    assert "unstable.halve  turn 0 of 3" in watched.text and "unstable.halve  turn 2 of 3" in watched.text
    assert "state = state / 2" in watched.text and "a notebook cell:7" in watched.text and "details" in watched.tags
    assert "overflow" in diagnosis.text and "jnp.logaddexp(x, 0.0)" in diagnosis.text
    assert ("class", "hll") in diagnosis.attributes and ("class", "error") in diagnosis.attributes


def record(name: str, depth: int = 1) -> Record:
    value = np.ones(3, np.float32)
    frames = tuple([Frame(name, 3) for _ in range(depth)])
    return Record(
        0, name, "value", frames, (), (), (), 1, f"{name} = 1", name, "f32[3]", (3,), (), False,
        statistics(value), "", 0, value,
    )  # fmt: skip


def displays(text: str) -> list[str]:
    """Each display with a text in every place that there is."""
    finding = Finding(text, text, 1, text, (text,), text, text, text, text, 3.0, text, text)
    ranges = (Range(text, 1, 1.0, 1.0),)
    decompiled = untrace.decompile(lambda x: jnp.sin(x), prove=False, guard=False)(1.0)
    decompiled.source, decompiled.name, decompiled.notes = text, text, (text,)
    records = [record(text), record(text, 2), record(text, 3), record(text)]
    return [
        decompiled._repr_html_(),
        Watched(text, None, text, (text,), records)._repr_html_(),
        Diagnosis(text, text, 1, (finding,), text, text, ranges, (text,), (text,), text)._repr_html_(),
        Minimal(text, text, (), (2, 1), text, text, True, 3, decompiled)._repr_html_(),
        Translated(text, text, text, Proof("bits", text), {}, (text,))._repr_html_(),
        InC(text, text, text, Proof("bits", text), None, None, None, (text,))._repr_html_(),
    ]


def test_a_hostile_text_is_text() -> None:
    for shown in displays(HOSTILE):
        parsed = Parsed(shown)
        assert is_harmless(parsed), parsed.tags
        assert "<script>alert(1)</script>" in parsed.text


@given(st.text(st.sampled_from("<>&\"'/=ab\n \t;#-![]\u202e\x00"), max_size=40))
def test_elements_escape_and_keep_their_text(text: str) -> None:
    shown = _html.element("b", text, kind=text, title=text)
    parsed = Parsed(shown)
    assert parsed.tags == ["b"] and [name for name, _ in parsed.attributes] == ["class", "title"][not text :]
    assert parsed.text == text
    assert is_harmless(Parsed(_html.code(text))) and is_harmless(Parsed(_html.code(text, marked=[1])))


def test_one_style_for_light_and_dark_and_no_script() -> None:
    shown = _html.written("f", [], "x = 1\n")
    assert "details" not in Parsed(shown).tags
    assert "prefers-color-scheme: dark" in shown and "<script" not in shown and "http" not in shown


def test_lines_that_are_marked_keep_their_numbers() -> None:
    shown = _html.code("\n\nx = 1\n", marked=[3])
    marked = shown.partition('class="hll"')[2]
    assert '<span class="linenos">3</span>' in marked and '<span class="linenos">1</span>' not in marked


def test_a_long_run_says_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("untrace.tools.folded._MOST", 2)
    shown = Watched("f", None, "", (), [record("a"), record("b"), record("c")])._repr_html_()
    assert "only the first 2 rows" in shown and "b = 1" in shown and "c = 1" not in shown
