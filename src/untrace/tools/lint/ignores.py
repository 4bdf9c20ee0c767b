"""Comments of the author's that silence findings: `# untrace: ignore[rule]`, or `# untrace: ignore` for all rules."""

from __future__ import annotations

import functools
import io
import linecache
import re
import tokenize
from collections.abc import Collection, Mapping

from untrace._locate import closest
from untrace._places import place_of

_COMMENT = re.compile(r"#\s*untrace:\s*ignore(?:\[(?P<rules>[^\]]*)\])?(?![\w\[])")


@functools.lru_cache(64)
def _comments(text: str) -> Mapping[int, frozenset[str]]:
    """The rules that are silenced, by line; no rules where that is all of them."""
    found: dict[int, frozenset[str]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if match is not None:
                words = (match["rules"] or "").split(",")
                found[token.start[0]] = frozenset(w.strip() for w in words if w.strip())
    except (tokenize.TokenError, SyntaxError):
        pass  # what was read before holds
    return found


def comments_of(file: str) -> Mapping[int, frozenset[str]]:
    """The comments of a file; none where its source is not to be had."""
    return _comments("".join(linecache.getlines(file)))


def is_ignored(rule: str, file: str, first: int, last: int) -> bool:
    """Whether a comment on one of the lines silences a rule."""
    comments = comments_of(file)
    return any(not words or rule in words for line, words in comments.items() if first <= line <= last)


def unknown_rules(file: str, known: Collection[str]) -> list[str]:
    """Sentences about comments that name no rule."""
    return [
        f"{place_of(file, line)} ignores {word!r}, which is no rule.{closest(word, list(known))}"
        for line, words in comments_of(file).items()
        for word in sorted(words - set(known))
    ]
