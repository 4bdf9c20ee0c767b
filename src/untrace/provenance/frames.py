"""One call on the stack of an equation: a Frame, and what the author calls the values of the expressions in it, a Target."""

from __future__ import annotations

import ast
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

from untrace._identity import IdentityMap
from untrace.provenance import syntax
from untrace.provenance.call_records import Settings, last_line

Position = tuple[Any, Any, Any, Any]  # line, end line, column, end column

_NO_POSITION: Position = (None, None, None, None)

# Functions that apply their first argument to each leaf of the others.
LEAF_BY_LEAF = frozenset({"map", "tree_map", "tree_map_with_path", "map_with_path", "tree_multimap"})


class Target(NamedTuple):
    """A name for a value, or for the part `path` of a tuple of values.

    `kind`: "assign" (a name, attribute or key that it is bound to), "key" (its key in a dict display), "for" (a loop's
    variable), and, weaker, "keyword" and "argument" (the parameter that it is passed for), "element" (of the list that
    is bound to the name), "container" (of the structure that is bound to the name), "return" (the function's name).
    """

    name: str
    path: tuple[int | str, ...]
    kind: str
    library: bool = False  # whether the name stands in a third-party library's code

    @property
    def strong(self) -> bool:
        return self.kind in ("assign", "key", "for")


@dataclass(slots=True)
class Climb:
    """What becomes of an expression's value in its function: names, and its place in what is returned, if it is.

    A step of a path is an index or a key; ".1" is the second argument of a class that is called, "?" some key, "*" any element.
    """

    targets: list[Target]
    returned: bool
    path: tuple[int | str, ...]


class Frame:
    """One call: `code` stopped at instruction offset `lasti`. One object per (code, lasti) of a Provenance.

    `function` is the qualified name; `library` says whether it belongs to a third-party library and not to the user.
    """

    __slots__ = (
        "code",
        "lasti",
        "file",
        "function",
        "library",
        "settings",
        "_position",
        "_positions",
        "_node",
        "_over_leaves",
        "_targets",
    )

    def __init__(
        self,
        code: CodeType,
        lasti: int,
        library: bool,
        positions: IdentityMap[CodeType, Sequence[Position]],
        settings: Settings | None = None,
    ):
        self.code = code
        self.lasti = lasti
        self.file = code.co_filename
        self.function: str = code.co_qualname
        self.library = library
        self.settings = settings or Settings()  # of the whole program
        self._position: Position | None = None
        self._positions = positions  # of all instructions of the codes, by their ids, as they become known
        self._node: Any = False
        self._over_leaves: bool | None = None
        self._targets: Climb | None = None

    @property
    def position(self) -> Position:
        """(line, end line, column, end column) of the expression. Columns count UTF-8 bytes, as in `ast`; all are None where
        Python runs without them (-X no_debug_ranges)."""
        if self._position is None:  # most frames are on the way to others, and nobody asks
            self._position = _position(self.code, self.lasti // 2, self._positions)
        return self._position

    @property
    def line(self) -> Any:
        return self.position[0]

    @property
    def end_line(self) -> Any:
        return self.position[1]

    @property
    def column(self) -> Any:
        return self.position[2]

    @property
    def end_column(self) -> Any:
        return self.position[3]

    @property
    def node(self) -> ast.AST | None:
        """The AST node whose range is the instruction's; None where the source is not to be had."""
        if self._node is False:
            line, end_line, column, end_column = self.position
            self._node = syntax.node_at(self.code, (line, column, end_line, end_column))
        return self._node

    @property
    def definition(self) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None:
        """The AST node of the function that this frame runs."""
        return syntax.definition(self.code)

    def encloses(self, node: ast.expr) -> bool:
        """Whether an expression of the same file stands in the function that this frame runs."""
        return self.code.co_firstlineno <= node.lineno <= last_line(self.code)

    def around_call(self, call: ast.Call) -> tuple[Frame, ...]:
        """Frames of the functions, of those that were called, in which a call in this file stands, the innermost last."""
        codes = self.settings.codes_at(self.file, call.lineno)
        return tuple([Frame(code, -1, False, IdentityMap(), self.settings) for code in codes])

    @property
    def maps_leaves(self) -> bool:
        """Whether the call is one of `jax.tree.map` and its like, which run their first argument for each leaf."""
        return isinstance(self.node, ast.Call) and _word(self.node.func) in LEAF_BY_LEAF

    @property
    def sums_leaves(self) -> bool:
        """Whether the call is `sum` of what is called leaves, or one of `jax.tree.reduce`."""
        if not isinstance(self.node, ast.Call):
            return False
        if _word(self.node.func) == "sum":
            return any("leaves" in _word(node) for node in ast.walk(self.node))
        return ast.unparse(self.node.func).endswith(("tree.reduce", "tree_reduce"))

    @property
    def is_over_leaves(self) -> bool:
        """Whether the call is one of these."""
        if self._over_leaves is None:
            self._over_leaves = self.maps_leaves or self.sums_leaves
        return self._over_leaves

    @property
    def name(self) -> str:
        """The plain name of the function; `<lambda>`, `<listcomp>` as Python calls them."""
        return self.code.co_name

    def __repr__(self) -> str:
        return f"Frame({os.path.basename(self.file)}:{self.line}:{self.column} {self.function})"


def _word(node: ast.AST) -> str:
    return getattr(node, "attr", None) or getattr(node, "id", "")


def _position(code: CodeType, index: int, known: IdentityMap[CodeType, Sequence[Position]]) -> Position:
    """The place of an instruction; Nones where it is not known. `known`: by code those of all of its instructions."""
    if index < 0:
        return _NO_POSITION
    if code not in known:  # of most functions one place is asked for: no further than there
        known[code] = ()
        return next(itertools.islice(code.co_positions(), index, None), _NO_POSITION)
    positions = known[code] = known[code] or list(code.co_positions())
    return positions[index] if index < len(positions) else _NO_POSITION
