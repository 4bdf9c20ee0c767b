"""What notebooks show: HTML without scripts, light or dark as the reader's system is, readable without its style too.

Text becomes markup in two places only: `element`, which escapes it, and `code`, where Pygments does.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

_STYLE = """
.untrace { --back: #fff; --text: #1f2328; --dim: #656d76; --line: #d0d7de; --mark: #fff8c5; --bad: #cf222e;
  --word: #cf222e; --string: #0a3069; --number: #0550ae; --name: #8250df;
  background: var(--back); color: var(--text); padding: 0.4em 0.8em; }
@media (prefers-color-scheme: dark) { .untrace { --back: #0d1117; --text: #e6edf3; --dim: #8d96a0; --line: #30363d;
  --mark: #3a3000; --bad: #ff7b72; --word: #ff7b72; --string: #a5d6ff; --number: #79c0ff; --name: #d2a8ff; } }
.untrace pre, .untrace code { background: none; color: inherit; font-family: monospace; font-size: 0.9em; }
.untrace pre { margin: 0.4em 0; overflow-x: auto; white-space: pre; }
.untrace summary { cursor: pointer; }
.untrace details > :not(summary) { margin-left: 1em; }
.untrace table { border-collapse: collapse; margin: 0.2em 0; background: none; color: inherit; }
.untrace td, .untrace th { text-align: left; vertical-align: top; padding: 0.1em 0.7em 0.1em 0;
  border-bottom: 1px solid var(--line); background: none; white-space: pre-wrap; }
.untrace .dim, .untrace .linenos, .untrace span[class^=c] { color: var(--dim); }
.untrace .error, .untrace .warning { color: var(--bad); font-weight: bold; }
.untrace .linenos { padding-right: 1em; user-select: none; }
.untrace .hll { background: var(--mark); display: inline-block; min-width: 100%; }
.untrace span[class^=k], .untrace .ow { color: var(--word); }
.untrace span[class^=s] { color: var(--string); }
.untrace span[class^=m] { color: var(--number); }
.untrace .nf, .untrace .nc, .untrace .nd { color: var(--name); }
"""


class Markup(str):
    """Text that is HTML already; every other text is escaped."""

    __slots__ = ()


def element(tag: str, *children: str, kind: str = "", **attributes: str) -> Markup:
    """`<tag class=kind>children</tag>`; children that are no Markup are escaped, as attributes are."""
    given = {"class": kind, **attributes} if kind else attributes
    said = "".join(f' {name}="{html.escape(value)}"' for name, value in given.items())
    return Markup(f"<{tag}{said}>{joined(children)}</{tag}>")


def joined(children: Iterable[str]) -> Markup:
    """The children one after the other, those that are no Markup escaped."""
    return Markup("".join(c if isinstance(c, Markup) else html.escape(c) for c in children))


def display(*children: str) -> Markup:
    """A whole output of a cell, with the style that it needs."""
    return element("div", element("style", Markup(_STYLE)), *children, kind="untrace")


def folded(title: str, *children: str, is_open: bool = False) -> Markup:
    """Children that a click on the title shows or hides."""
    attributes = {"open": ""} if is_open else {}
    return element("details", element("summary", title), *children, **attributes)


def table(rows: Iterable[Iterable[str]], head: Iterable[str] = ()) -> Markup:
    """Rows of cells below a head, which may be none."""
    heads = [element("th", cell) for cell in head]
    body = [element("tr", *[element("td", cell) for cell in row]) for row in rows]
    return element("table", element("tr", *heads), *body) if heads else element("table", *body)


def code(source: str, language: str = "python", marked: Collection[int] | None = None) -> Markup:
    """Highlighted source. marked: lines, from 1, that are set off; each line then has its number."""
    if marked is None:
        formatter = HtmlFormatter(cssclass="source")
    else:
        formatter = HtmlFormatter(cssclass="source", linenos="inline", hl_lines=list(marked))
    # As it stands: the lexer would leave out blank lines of its beginning and end, and numbers would be others.
    lexer = get_lexer_by_name(language, stripnl=False)
    return Markup(highlight(source, lexer, formatter))


def codes(source: str, helpers: str = "", language: str = "python") -> list[Markup]:
    """Highlighted source, and behind it its helpers, which fold."""
    rest = [folded("the helpers at its end", code(helpers, language))] if helpers else []
    return [code(source, language), *rest]


def written(title: str, remarks: Iterable[str], source: str, helpers: str = "", language: str = "python") -> Markup:
    """A text that was written: a title, a line for each remark, the source, and its helpers, which fold."""
    head = element("div", element("b", title), *[element("div", remark, kind="dim") for remark in remarks])
    return display(head, *codes(source, helpers, language))
