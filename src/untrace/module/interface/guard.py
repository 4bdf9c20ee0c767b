"""The guard of an entry: it refuses what the text was not written for, in one line that says what that is.

    def grad_loss(w, x, y):
        w, x, y = _checked("w: f32[n]; x: f32[m,n]; y: f32[m]", w, x, y)

A trace fixes the tree of its arguments (classes, keys, lengths, static fields), their dtypes and those sizes that the text
does not read off shapes. Called with something else the text would compute something else, without a word. A program over
devices, and one that asks how many there are, depends on them too: `_placed(device_count=8)` stands above it then.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
from jax.tree_util import PyTreeDef, default_registry

from untrace.ir.types import Aval, PyTree
from untrace.module.interface.signature import Argument
from untrace.module.writer import ModuleWriter
from untrace.python import helpers
from untrace.python.helpers import helper
from untrace.python.statements import Assign, Statement
from untrace.python.tree import WIDTH, Call, Expr, Name, Text, quoted

_KEY = re.compile(r"[\w./-]*")  # of a dict, that stands in a description as it is
_LIST = re.compile(r"\[((?:[^][]|\[[\w,]*\])*)\]")  # without lists in it
_SIZE = re.compile(r"(?<=[\[,])[A-Za-z_]\w*(?=[,\]])")
_LONGEST = 600  # characters; of more without a size in them a hash says as much
_SHORT = 20  # characters, which say as much as "like params"
_PART = 60  # characters of a part that gets a letter where it comes again
_MOST_LETTERS = 3
_SAVED = 400  # characters, which are worth the lines that write letters out


@helper("functools", last="_spelled_out")
@functools.cache
def _spelled_out(types):
    """The types with lists (`[f32[n]] * 2`), what is `like x` and what has a letter (`P = {w: f32[n]}`) written out."""
    import re

    found, letters = {}, {}
    for text in types.split("; "):
        text = re.sub(r"\b[A-Z]\b(?! = )", lambda m: letters.get(m[0], m[0]), text)
        if text[1:4] == " = ":
            letters[text[0]] = text[4:]
            continue
        name, _, text = text.partition(": ")
        text = re.sub(r"\[((?:[^][]|\[[\w,]*\])*)\] \* (\d+)", lambda m: f"[{', '.join([m[1]] * int(m[2]))}]", text)
        found[name] = re.sub(r"like (\w+)", lambda m: found.get(m[1], m[0]), text)
    return "; ".join([f"{name}: {text}" for name, text in found.items()])


def guard_of(
    module: ModuleWriter,
    parameters: Mapping[str, str],
    arguments: Sequence[Argument],
    avals: Sequence[Aval],
    idle: tuple[tuple[PyTree, ...], dict[str, PyTree]] | None = None,
) -> list[Statement]:
    """The first statements of an entry.

    parameters: kinds by name. arguments: as of a Signature. avals: those of the leaves of all arguments. idle: the traced
    arguments with other static fields, on which the program does not depend.
    """
    leaves = iter(avals)
    others = [a.example for a in arguments] if idle is None else [*idle[0], *[idle[1][k] for k in sorted(idle[1])]]
    parts: dict[str, list[_Part]] = {}
    for argument, other in zip(arguments, others, strict=True):
        tree = jax.tree.structure(argument.example)
        types = [next(leaves) for _ in range(tree.num_leaves)]
        part = _Part(argument.path[-1], tree, jax.tree.structure(other), types)
        parts.setdefault(argument.path[0], []).append(part)
    names = [name for name in parameters if name in parts]
    values = [_whole(parameters[name], parts[name]) for name in names]
    describe = module.describes_types or (
        "_type_of" if all([_is_plain(value.tree) for value in values]) else "_type_of_classes"
    )
    texts = {name: _words(module, describe, value) for name, value in zip(names, values, strict=True)}
    assert module.guarded is not None  # else there is no guard
    given, words = module.guarded.settings, module.described.sizes
    found: dict[str, object] = {k: v for k, v in given.items() if k not in ("least", "most", "multiples", "sums")}
    found["least"] = {words[n]: m for n, m in given.get("least", {}).items()}
    found["most"] = {words[n]: m for n, m in given.get("most", {}).items()}
    found["multiples"] = {words[n]: m for n, m in given.get("multiples", {}).items()}
    found["sums"] = {words[n]: _sum_in_words(*terms, words) for n, terms in given.get("sums", {}).items()}
    settings = [(key, Text(_written(setting))) for key, setting in sorted(found.items()) if setting]
    module.helper(describe)
    short = _with_letters(_shortened(texts))
    is_short = any(re.search(r"like \w|\] \* \d|^[A-Z] = ", text) for text in short)
    if is_short:
        module.helper("_spelled_out")
    checked = Checked(names, module.helper("_checked").flat(), short, is_short, settings)
    answers = [(question, Text(_written(answer))) for question, answer in module.guarded.answers.items()]
    statements: list[Statement] = [Assign([], Call(module.helper("_placed").flat(), [], answers))] if answers else []
    statements.append(checked)
    if module.guarded.refuses and names:
        refused = Text(quoted(" ".join(module.guarded.refuses)))
        statements.append(Assign(names, Call(module.helper("_refuses").flat(), [refused, *map(Name, names)])))
    return statements


def _sum_in_words(terms: Sequence[tuple[int, int]], plus: int, words: Mapping[int, str]) -> str:
    several = [words[size] if count == 1 else f"{count}*{words[size]}" for size, count in terms]
    return " + ".join([*several, str(plus)] if plus else several)


def _written(setting: object) -> str:
    if type(setting) is dict:
        return f"{{{', '.join([f'{quoted(key)}: {_written(value)}' for key, value in setting.items()])}}}"
    return quoted(setting) if type(setting) is str else repr(setting)


class Checked(Statement):
    """`w, x = _checked("w: f32[n]; x: f32[m,n]", w, x)`, the types on lines of their own where they are long."""

    __slots__ = ("names", "called", "types", "is_short", "settings")

    def __init__(
        self,
        names: Sequence[str],
        called: str,
        types: Sequence[str],
        is_short: bool,
        settings: Sequence[tuple[str, Expr]],
    ):
        self.names, self.called, self.types, self.is_short, self.settings = names, called, types, is_short, settings
        self.origin = None

    def lines(self, indent: str) -> Iterator[str]:
        start = f"{indent}{', '.join(self.names)} = {self.called}(" if self.names else f"{indent}{self.called}("
        rest = ", ".join([*self.names, *[f"{key}={value.flat()}" for key, value in self.settings]])
        types = "; ".join(self.types)
        opening, closing = ("_spelled_out(", ")") if self.is_short else ("", "")
        line = f"{start}{opening}{quoted(types)}{closing}{', ' * bool(rest)}{rest})"
        if len(line) <= WIDTH:
            yield line
            return
        yield start
        inner = indent + "    "
        rows = [""]
        for word in re.split(r"(?<=[,;] )", types):
            if rows[-1] and len(inner) + len(rows[-1]) + len(word) + len(closing) + 8 > WIDTH:
                rows.append("")
            rows[-1] += word
        if opening:
            yield inner + opening
            yield from (f"{inner}    {quoted(row)}" for row in rows)
            yield f"{inner}),"
        else:
            yield from (f"{inner}{quoted(row)}" for row in rows[:-1])
            yield f"{inner}{quoted(rows[-1])},"
        rows = [""]
        for word in re.split(r"(?<=, )", rest):
            if rows[-1] and len(inner) + len(rows[-1]) + len(word) > WIDTH:
                rows.append("")
            rows[-1] += word
        yield from (inner + row.rstrip() + ("," if row is rows[-1] else "") for row in rows)
        yield f"{indent})"


def _shortened(texts: Mapping[str, str]) -> list[str]:
    """`name: type` of each argument, as short as `_spelled_out` can read it; a hash of what stays very long and has no sizes."""
    found: list[str] = []
    for name, text in texts.items():
        short = text
        for other, known in texts.items():
            if other == name:
                break
            if len(known) > _SHORT:
                short = short.replace(known, f"like {other}")
        short = _LIST.sub(lambda m: _repeated(m[1]) or m[0], short)
        if len(short) > _LONGEST and not _SIZE.search(text) and "*" not in text:  # which matches several
            short = text = "#" + hashlib.sha256(text.encode()).hexdigest()[:12]
        before = "; ".join(found)
        spelled = helpers.function("_spelled_out")("; ".join([*found, f"{name}: {short}"]))
        is_same = spelled.endswith(f"; {name}: {text}" if before else f"{name}: {text}")
        found.append(f"{name}: {short if is_same else text}")
    return found


def _with_letters(texts: list[str]) -> list[str]:
    """The types with a letter for each part of them that comes again, after what it stands for: `P = {w: f32[n]}`."""
    spelled = helpers.function("_spelled_out")
    definitions: list[str] = []
    shorter = texts
    taken = set(re.findall(r"\b[A-Z]\b", "; ".join(texts)))
    for letter in [c for c in "PQRSTABCD" if c not in taken][:_MOST_LETTERS]:
        whole = "; ".join([*definitions, *shorter])
        parts = [p for p in set(_bracketed(whole)) if len(p) > _PART and whole.count(p) > 1]
        if not parts:
            break
        part = max(parts, key=lambda p: (len(p) * (whole.count(p) - 1), p))
        definitions = [text.replace(part, letter) for text in definitions]
        shorter = [text.replace(part, letter) for text in shorter]
        definitions.insert(
            next((i for i, d in enumerate(definitions) if letter in d[4:]), len(definitions)), f"{letter} = {part}"
        )
    found = [*definitions, *shorter]
    is_worth_it = len("; ".join(found)) + _SAVED < len("; ".join(texts))
    return found if is_worth_it and spelled("; ".join(found)) == spelled("; ".join(texts)) else texts


def _bracketed(text: str) -> Iterator[str]:
    """The parts of a text that brackets enclose, with these and the name of a class before them."""
    opened: list[int] = []
    for place, char in enumerate(text):
        if char in "([{":
            opened.append(place)
        elif char in ")]}" and opened:
            begin = opened.pop()
            while begin and (text[begin - 1].isalnum() or text[begin - 1] in "_."):
                begin -= 1
            yield text[begin : place + 1]


def _repeated(inside: str) -> str | None:
    """`[{...}] * 3` for the inside of a list of three equal items."""
    for count in range(len(inside) // 2, 1, -1):
        size, left = divmod(len(inside) - 2 * (count - 1), count)
        if not left and inside == ", ".join([inside[:size]] * count):
            return f"[{inside[:size]}] * {count}"
    return None


@dataclass(frozen=True, slots=True)
class _Part:
    """An argument, or what a parameter takes of several: its tree, the same with other static fields on which nothing
    depends, and the types of its leaves."""

    name: str
    tree: PyTreeDef
    other: PyTreeDef
    avals: Sequence[Aval]


def _whole(kind: str, parts: Sequence[_Part]) -> _Part:
    """What a parameter of this kind gets."""
    if kind not in ("*", "**"):
        return parts[0]
    node = (tuple, None) if kind == "*" else (dict, [part.name for part in parts])
    tree, other = [
        PyTreeDef.from_node_data_and_children(default_registry, node, several)
        for several in ([p.tree for p in parts], [p.other for p in parts])
    ]
    return _Part("", tree, other, [aval for part in parts for aval in part.avals])


def _is_plain(tree: PyTreeDef) -> bool:
    """Whether a pytree is made of Python's own containers."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        kind, fixed = node.node_data() or (None, ())
        if kind not in (None, dict, tuple, list, type(None)):
            return False
        if kind is dict and not all(type(k) is int or type(k) is str and _KEY.fullmatch(k) for k in fixed):
            return False
        nodes += node.children()
    return True


def _words(module: ModuleWriter, describe: str, value: _Part) -> str:
    """The description of a value, with words for sizes, and `*` for static fields on which nothing depends."""
    assert module.guarded is not None
    function, weak = helpers.function(describe), "weak" in module.guarded.settings
    text, second = (function(tree, value.avals, weak) for tree in (value.tree, value.other))
    tokens = [re.findall(r"[^][,]+|.", t) for t in (text, second)]
    if len(tokens[0]) == len(tokens[1]):
        text = "".join([_common(a, b) for a, b in zip(*tokens, strict=True)])
    text = text.replace("__main__.", "*.")  # a module that is run has another name where it is imported
    words = module.described.sizes
    return re.sub(r"(?<=[\[,])[0-9]+(?=[,\]])", lambda m: words.get(int(m[0]), m[0]), text)


def _common(one: str, other: str) -> str:
    """A word, with `*` for each static value in it that is another in `other`."""
    values = [re.split(r"([ (){}]+)", text) for text in (one, other)]
    if len(values[0]) != len(values[1]):
        return one
    return "".join([a if a == b else "*" for a, b in zip(*values, strict=True)])
