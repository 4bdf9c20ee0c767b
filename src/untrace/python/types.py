"""Types of arguments and results in words: the docstring of a function, `params: {"w": f32[3,4]}; x: f32[8,3]`.

What is long is said in short: equal parts once (`[{...}] * 12`), deep parts not at all (`{...}`), a result that is built
like an argument by that argument's name (`like params`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from untrace import jax_compat
from untrace._trees import parts_by_name
from untrace.ir.nodes import PullbackType, TupleType
from untrace.ir.types import Aval, PyTree
from untrace.python.pytrees import DICTS, branches, is_plain_identifier, key_source, labelled
from untrace.python.tree import WIDTH

# A part of a docstring that is longer is written less deep.
_LONGEST = 76
# One line of a docstring may be longer than the formatters' lines, which they leave alone.
_LINE = 104
# More lines of arguments than this help nobody.
_MOST_LINES = 5
_ARRAY = re.compile(r"([^\[]+)\[([^\]]*)\](.*)")
_BRACKETS = {"dict": "{}", "list": "[]", "tuple": "()"}


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value, or of a pytree. `kind`: "array", "None", "dict", "list", "tuple" or the name of a class,
    "" where that is not known.

    `text`: an array as JAX prints it (`f32[8,3]`). `parts`: (key as source or name of the field, "" for a position,
    type), in flatten order. `aval`: JAX's abstract value of an array; `others`: those of the other arrays of which it is
    the type, which have other sizes.
    """

    kind: str
    text: str = ""
    parts: tuple[tuple[str, Type], ...] = ()
    aval: Any = None
    others: tuple[Any, ...] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not Type or (self.kind, self.text) != (other.kind, other.text):
            return False
        return [t for _, t in self.parts] == [t for _, t in other.parts] and (
            self.kind in ("tuple", "list") or [k for k, _ in self.parts] == [k for k, _ in other.parts]
        )

    def merged(self, other: Type) -> Type | None:
        """The type that both are of, sizes that differ written `_`; of dicts the keys that both have; of a Python number
        and a scalar that of the scalar. None where they are of two kinds."""
        if self == other and self._is_of_one and other._is_of_one:
            return self
        for number, scalar in ((self, other), (other, self)):
            if number.text in ("int", "float") and scalar.kind == number.kind == "array" and scalar.text.endswith("[]"):
                return scalar
        if self.kind == other.kind == "array":
            mine, theirs = _ARRAY.fullmatch(self.text), _ARRAY.fullmatch(other.text)
            if mine is None or theirs is None or mine.group(1, 3) != theirs.group(1, 3):
                return None
            dims, others = mine.group(2).split(","), theirs.group(2).split(",")
            if len(dims) != len(others) or "" in (dims[0], others[0]):
                return None
            both = ",".join([d if d == o else "_" for d, o in zip(dims, others, strict=True)])
            others = (*self.others, other.aval, *other.others)
            return Type("array", f"{mine.group(1)}[{both}]{mine.group(3)}", aval=self.aval, others=others)
        if self.kind == other.kind == "dict":
            keys = [k for k, _ in other.parts]
            mine_too = [k for k, _ in self.parts if k in keys]
            if mine_too and (len(keys) != len(mine_too) or len(self.parts) != len(mine_too)):
                return self._with(mine_too).merged(other._with(mine_too))
        if self.kind != other.kind or [k for k, _ in self.parts] != [k for k, _ in other.parts]:
            return None
        parts = []
        for (key, mine_part), (_, their_part) in zip(self.parts, other.parts, strict=True):
            part = mine_part.merged(their_part)
            if part is None:
                return None
            parts.append((key, part))
        return Type(self.kind, self.text, tuple(parts))

    @property
    def _is_of_one(self) -> bool:
        """Whether all arrays of this type have the same sizes."""
        return not self.others and all([part._is_of_one for _, part in self.parts])

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """The shape of an array; None for a size that not all arrays of this type have."""
        shapes = [tuple(aval.shape) for aval in (self.aval, *self.others)]
        return tuple([n if all([n == s[axis] for s in shapes]) else None for axis, n in enumerate(shapes[0])])

    def _with(self, keys: Sequence[str]) -> Type:
        """A dict with these keys only, in their order."""
        parts = dict(self.parts)
        return Type(self.kind, self.text, tuple((k, parts[k]) for k in keys))

    def sized(self, words: Mapping[int, str]) -> Type:
        """The same with words for sizes that may differ: `f32[batch,8]`."""
        if self.kind != "array":
            return Type(self.kind, self.text, tuple((key, part.sized(words)) for key, part in self.parts))
        shape = getattr(self.aval, "shape", ())
        found = _ARRAY.fullmatch(self.text)
        if found is None or not any(n in words for n in shape):
            return self
        dims = [words.get(int(d), d) if d.isdigit() else d for d in found.group(2).split(",")]
        return Type("array", f"{found.group(1)}[{','.join(dims)}]{found.group(3)}", aval=self.aval, others=self.others)

    @property
    def count(self) -> int:
        """How many arrays it holds."""
        return 1 if self.kind == "array" else sum(t.count for _, t in self.parts)

    @property
    def height(self) -> int:
        return 1 + max((t.height for _, t in self.parts), default=-1)

    def at_depth(self, depth: int, like: Sequence[tuple[str, Type]] = ()) -> str:
        """Its text, with what lies deeper than `depth` left out; `like`: trees that are said by name."""
        if self.kind in ("array", "None"):
            return self.text
        if self.count > 1:
            for name, other in like:
                if other == self:
                    return f"like {name}"
        opening, closing = _BRACKETS.get(self.kind, (f"{self.kind}(", ")"))
        if not self.parts:
            return opening + closing
        if depth == 0:
            return f"{opening}...{closing}"
        if self.kind in ("tuple", "list") and len(self.parts) > 2 and all(t == self.parts[0][1] for _, t in self.parts):
            if not any(key for key, _ in self.parts):
                one = self.parts[0][1].at_depth(depth - 1, like)
                return f"{opening}{one}{',' if self.kind == 'tuple' else ''}{closing} * {len(self.parts)}"
        equals = ": " if self.kind in _BRACKETS else "="
        parts = self.parts
        if self.kind not in _BRACKETS:  # the other fields of a class say nothing about arrays
            parts = tuple((key, part) for key, part in parts if part.count)
        shown = [(key + equals if key else "") + part.at_depth(depth - 1, like) for key, part in parts]
        comma = "," if self.kind == "tuple" and len(shown) == 1 else ""
        return f"{opening}{', '.join(shown)}{comma}{closing}"

    def short(self, like: Sequence[tuple[str, Type]] = (), room: int = _LONGEST) -> str:
        """Its text in so many characters: as deep as fits, in the end only how many arrays there are."""
        for depth in range(min(self.height, 6), 0, -1) if self.height else (0,):
            text = self.at_depth(depth, like)
            if len(text) <= room or not self.height:
                return text
        kind = self.kind if self.kind in _BRACKETS else f"`{self.kind}`" if self.kind else "pytree"
        return f"a {kind} of {self.count} arrays"


def array_type(aval: Aval) -> Type:
    """The type of one value: `f32[8,3]`, `key<fry>[]`; of a tuple, those of its parts."""
    if type(aval) is TupleType:
        return Type("tuple", parts=tuple(("", array_type(part)) for part in aval.parts))
    if type(aval) is PullbackType:
        return Type("array", "a pullback", aval=aval)
    if not jax_compat.is_shaped_array(aval):
        text = str(aval)
        return Type("array", text if text.isprintable() and len(text) < 40 else "an object", aval=aval)
    if aval.dtype == jax_compat.FLOAT0 and not aval.shape:  # a token (`capture.calls.differentiated`)
        return Type("array", "a derivative", aval=aval)
    return Type("array", str(aval.str_short(short_dtypes=True)), aval=aval)


def tree_type(example: PyTree, avals: Sequence[Aval], names: Sequence[str] = ()) -> Type:
    """The type of a pytree whose leaves have these abstract values. `names`: the author's for the leaves, "" for none."""
    tree, _ = labelled(example)
    rest = iter(zip(avals, names or [""] * len(avals), strict=True))
    return _tree_type(tree, rest)[0]


def _tree_type(node: PyTree, rest: Iterator[tuple[Aval, str]]) -> tuple[Type, str]:
    """(the type, the author's name of a leaf)."""
    level = branches(node)
    if level is None:
        aval, name = next(rest)
        return array_type(aval), name
    if node is None:
        return Type("None", "None"), ""
    found = [_tree_type(child, rest) for child in level.children]
    kind = "dict" if isinstance(node, DICTS) else level.kind.__name__
    if kind == "dict":
        sources = [key_source(getattr(key, "key", None)) for key in level.keys]
        keys = [source.flat() if source is not None else "..." for source in sources]
    elif level.kind in (tuple, list):
        given = [name for _, name in found]
        keys = given if all(given) and len(set(given)) == len(given) else [""] * len(found)
    else:
        kind = kind if is_plain_identifier(kind) else ""
        words = [getattr(key, "name", None) for key in level.keys]
        fields = getattr(node, "_fields", ())
        if len(fields) == len(words):
            words = list(fields)
        keys = [word if is_plain_identifier(word) else "" for word in words]
        if not all(keys):
            keys = [""] * len(found)
    return Type(kind, parts=tuple((key, part) for key, (part, _) in zip(keys, found, strict=True))), ""


def ways_type(ways: Sequence[Sequence[tuple[str, str, int]]], avals: Sequence[Aval], example: PyTree = None) -> Type:
    """The type of the part of a tree that has leaves at the end of these ways (see `leaves.Step`).

    example: one of the tree, where there is one, which says of what has places whether it is a tuple, and of what has
    attributes which class, if all of them are there, and their order.
    """
    if len(ways) == 1 and not ways[0]:
        return array_type(avals[0])
    groups: dict[tuple[str, str, int], list[int]] = {}
    for i, way in enumerate(ways):
        groups.setdefault(way[0], []).append(i)
    parts = []
    for step, places in groups.items():
        part = ways_type([ways[i][1:] for i in places], [avals[i] for i in places], _part_at(example, step))
        parts.append((step[1], part))
    first = next(iter(groups))
    if first[0] == "attribute":
        fields = [name for name, part in (parts_by_name(example) or {}).items() if part is not None]
        if not {word for word, _ in parts}.issubset(fields):
            return Type("", parts=tuple(sorted(parts, key=lambda pair: pair[0])))
        name = type(example).__name__
        kind = name if len(parts) == len(fields) and is_plain_identifier(name) else ""
        return Type(kind, parts=tuple(sorted(parts, key=lambda pair: fields.index(pair[0]))))
    if first[2]:
        if all(text.isdecimal() for text, _ in parts):
            parts.sort(key=lambda pair: int(pair[0]))
        whole = [text for text, _ in parts] == [str(i) for i in range(first[2])]
        kind = "tuple" if whole and type(example) is tuple else "list"
        return Type(kind, parts=tuple(("" if whole else text, part) for text, part in parts))
    return Type("dict", parts=tuple(sorted(parts, key=lambda pair: pair[0])))


def _part_at(example: PyTree, step: tuple[str, str, int]) -> PyTree:
    """The part of a tree that one step leads to; None where that is not known."""
    try:
        return getattr(example, step[1]) if step[0] == "attribute" else example[ast.literal_eval(step[1])]
    except Exception:  # a library's tree, or a key that is no literal
        return None


def tuple_type(types: Sequence[Type]) -> Type:
    """What a function with these results returns: the one, or a tuple of them."""
    return types[0] if len(types) == 1 else Type("tuple", parts=tuple(("", t) for t in types))


def docstring(arguments: Sequence[tuple[str, Type]], result: Type, what: str = "") -> str:
    """`Args: params: {...}; x: f32[3,4].  Returns: f32[3].`; "" where it would be too long to help.

    what: what the result is, in words, said where it is like an argument.
    """
    said: list[tuple[list[str], str]] = []  # neighbours of one type are named together
    for name, kind in arguments:
        text = kind.short(room=_LONGEST - len(name))
        if said and said[-1][1] == text and kind.count == 1:
            said[-1][0].append(name)
        else:
            said.append(([name], text))
    pieces = [f"{', '.join(names)}: {text}" for names, text in said]
    like = [(name, kind) for name, kind in arguments if kind.count > 1]
    returned = result.short(like)
    if what and returned.startswith("like "):
        returned = f"{what}, {returned}"
    last = f"Returns: {returned}."
    if not pieces:
        return last
    line = f"Args: {'; '.join(pieces)}.  {last}"
    if len(line) + 10 <= _LINE:
        return line
    lines = [f"Args: {pieces[0]}"]
    for piece in pieces[1:]:
        if len(lines[-1]) + len(piece) + 8 <= WIDTH:
            lines[-1] += f"; {piece}"
        else:
            lines[-1] += ";"
            lines.append(piece)
    lines[-1] += "."
    return "\n".join([*lines, last]) if len(lines) <= _MOST_LINES else ""
