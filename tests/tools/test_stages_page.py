"""The page of `untrace.stages` in a real browser: Chromium, without a window."""

import shutil
from pathlib import Path

import pytest

import untrace
from untrace.tools.stages import page
from untrace.tools.stages.model import Computation, Line, Stage

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("there is no Chromium", allow_module_level=True)

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    """The page of the gradient of the GPT, `docs/stages_gpt.html`, with the style and the script of today."""
    written = (Path(__file__).parents[2] / "docs" / "stages_gpt.html").read_text(encoding="utf-8")
    data = written.partition('id="data">')[2].partition("</script>")[0]
    today = page.html("", (), (), ())
    empty = today.partition('id="data">')[2].partition("</script>")[0]
    path = tmp_path_factory.mktemp("page") / "gpt.html"
    path.write_text(today.replace(empty, data), encoding="utf-8")
    return path


@pytest.fixture
def tab(browser):
    """A page with a clean storage; what its script raises, or asks of a network, fails the test."""
    context = browser.new_context(viewport={"width": 1600, "height": 900}, color_scheme="light")
    opened, wrong = context.new_page(), []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    opened.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
    yield opened
    context.close()
    assert not wrong


def pane(tab, title):
    return tab.get_by_role("region", name=title, exact=True)


def row(tab, title, text):
    return pane(tab, title).locator(".row", has_text=text).first


def strong(tab, title):
    return pane(tab, title).locator(".row.strong").all_text_contents()


def test_the_gradient_of_the_gpt(tab, gpt):
    tab.goto(gpt.as_uri())
    assert tab.title() == "grad(loss) · stages"
    titles = tab.locator(".pane:visible h2").evaluate_all("all => all.map(h => h.firstChild.textContent)")
    assert titles == ["source", "jaxpr of grad(loss)", "grad(loss), written", "optimised HLO"]

    # Hovering marks the same computation everywhere.
    row(tab, "source", "query = (x @ params").hover()
    assert any("params[" in text for text in strong(tab, "source"))
    assert tab.locator("#said").inner_text().startswith("source:32")
    assert "dot_general" in tab.locator("#said").inner_text()
    assert tab.locator("#link").is_hidden()
    row(tab, "source", "gathered = jnp.einsum").hover()
    assert "gathered" in strong(tab, "source")[0] and len(strong(tab, "source")) == 1

    # A click pins it, scrolls the other panes to it, and makes a link.
    row(tab, "source", "weights = jax.nn.softmax").click()
    tab.wait_for_timeout(100)
    assert strong(tab, "jaxpr of grad(loss)") and strong(tab, "optimised HLO")
    assert any("softmax" in text for text in strong(tab, "grad(loss), written"))
    row(tab, "source", "mean = jnp.mean").hover()
    assert "softmax" in strong(tab, "source")[0]
    link = tab.url
    assert "#source:" in link

    # The link leads another reader there.
    other = tab.context.new_page()
    other.goto(link)
    assert "softmax" in other.locator(".row.pinned").first.inner_text()
    assert strong(other, "optimised HLO")
    other.close()

    tab.keyboard.press("Escape")
    assert not tab.locator(".row.pinned").count() and "#" not in tab.url

    # Folding by function.
    assert row(tab, "source", "length, width = x.shape").count()
    row(tab, "source", "def causal_attention").locator(".fold").click()
    assert not row(tab, "source", "length, width = x.shape").count()
    assert "12 lines" in row(tab, "source", "def causal_attention").inner_text()
    tab.keyboard.press("F")
    assert row(tab, "source", "length, width = x.shape").count()
    tab.keyboard.press("F")
    assert not row(tab, "source", "mean = jnp.mean").count()
    tab.keyboard.press("F")

    # Search in all panes, and on to the next match.
    tab.keyboard.press("/")
    tab.keyboard.type("RSQRT")
    assert tab.locator("#found").inner_text().startswith("1 of ")
    assert tab.locator(".row.current mark").inner_text() == "rsqrt"
    tab.keyboard.press("Escape")
    tab.keyboard.press("/")
    tab.keyboard.type("gelu")
    tab.keyboard.press("Enter")
    assert tab.locator("#found").inner_text().startswith("2 of ")

    # Themes, and a stage that was hidden.
    tab.keyboard.press("Escape")
    before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.keyboard.press("t")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != before
    tab.get_by_role("button", name="StableHLO").click()
    assert pane(tab, "StableHLO").locator(".row").count() > 20

    # From a kernel to all lines that were fused into it.
    tab.evaluate("""() => {
        const hlo = stages.find(s => s.key === "hlo");
        const line = hlo.lines.findIndex((text, i) => text.includes(" fusion(") && hlo.computes[i].length > 6);
        pin(hlo, line, true);
    }""")
    assert len(tab.evaluate("[...source.marks].filter(([, s]) => s > 1)")) > 1


def test_arrows_go_from_line_to_line_and_from_pane_to_pane(tab, gpt):
    tab.goto(gpt.as_uri())
    row(tab, "source", "query = (x @ params").click()
    tab.keyboard.press("ArrowDown")
    assert "key = (x @ params" in tab.locator(".row.pinned").inner_text()
    tab.keyboard.press("ArrowRight")
    pinned = pane(tab, "jaxpr of grad(loss)").locator(".row.pinned").inner_text()
    assert "dot_general[" in pinned or "reshape[" in pinned
    tab.keyboard.press("?")
    assert tab.get_by_text("search in all panes that are shown").is_visible()


HOSTILE = '</script><script>document.title = "taken"</script><img src=x onerror=\'document.title = "taken"\'>'


def staged(key, text, count):
    lines = [Line(f"{text} line {i}", i + 1, frozenset({i})) for i in range(count)]
    return Stage(key, text, "python", tuple(lines), ((0, count // 2),), "")


def test_hostile_words_stay_words(tab, tmp_path):
    path = tmp_path / "hostile.html"
    source = staged("source", HOSTILE, 3)
    path.write_text(
        page.html(HOSTILE, [source], [Computation(i, HOSTILE, HOSTILE, HOSTILE, False, 1) for i in range(3)], [HOSTILE])
    )
    tab.goto(path.as_uri())
    tab.locator(".row").nth(1).hover()
    tab.locator(".row").nth(1).click()
    tab.locator("#find").fill("<img")
    assert tab.title().startswith("</script>") and tab.locator("img").count() == 0
    assert tab.locator(".row mark").first.inner_text() == "<img"


def test_twenty_thousand_lines_open_and_scroll(tab, tmp_path):
    count = 20_000
    path = tmp_path / "long.html"
    computations = [Computation(i, "add", "f32[8]", "model.py:1", False, 8) for i in range(count)]
    both = [staged("source", "y = x + 1.0", count), staged("hlo", "%add = f32[8]{0} add(%a, %b)", count)]
    path.write_text(page.html("long", both, computations, ()))
    tab.goto(path.as_uri())
    assert tab.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart") < 10_000
    worst = tab.evaluate("""async () => {
        let worst = 0;
        const body = source.scroll;
        activate(source);
        for (let i = 1; i <= 60; i++) {
            const start = performance.now();
            body.scrollTop = i * 6000;
            await new Promise(requestAnimationFrame);
            await new Promise(requestAnimationFrame);
            worst = Math.max(worst, performance.now() - start);
        }
        return worst;
    }""")
    assert worst < 1000  # two frames, on a machine that does other things as well
    assert tab.locator(".row").count() < 400  # only what is seen is in the page
    for stage in both:  # they go in step
        row(tab, stage.title, f"line {6000 * 60 // 19 + 20}").wait_for(timeout=10_000)


def test_in_a_notebook(tab, gpt, tmp_path):
    found = untrace.Stages(
        "f", (staged("source", "x + 1.0", 5),), tuple([Computation(i, "add", "", "", False, 0) for i in range(5)])
    )
    path = tmp_path / "notebook.html"
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{found._repr_html_()}", encoding="utf-8")
    tab.goto(path.as_uri())
    frame = tab.frame_locator("iframe")
    frame.locator(".row", has_text="x + 1.0 line 2").click()
    assert frame.locator(".row.strong").count() == 1 and frame.locator("#link").is_hidden()
