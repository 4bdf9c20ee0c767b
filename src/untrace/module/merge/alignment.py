"""Two functions of one class laid beside each other: where their texts differ.

`Aligned` walks both trees together. What differs may be a constant (a stride, a number of heads), or statements that one
of them lacks (a shortcut that is there only where the sizes change); anything else keeps them apart.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from untrace import jax_compat
from untrace.module.access_paths import Leaf
from untrace.module.merge.choices import bound_in, is_constant
from untrace.python.anti_unify import AntiUnifier, Different, Node, Position
from untrace.python.statements import Assign, Def, For, Lines, Return, Statement, Unpack
from untrace.python.tree import (
    Attribute,
    Binary,
    Call,
    Dict,
    Expr,
    Lambda,
    Name,
    Slice,
    Star,
    Subscript,
    Text,
    Tuple,
    Unary,
)
from untrace.python.walk import nodes_of

_WORD = re.compile(r"[A-Za-z_]\w*")
# Options of convolutions that are None where they are this for each axis.
_ONES = {"rhs_dilation": (1,), "lhs_dilation": (1,)}


def defaults_of(function: str) -> dict[str, object]:
    """The defaults of the parameters of a public function that a text calls: `lax.scan`."""
    return {
        n: p.default for n, p in jax_compat.signature_of(function).items() if p.default is not inspect.Parameter.empty
    }


class Aligned(AntiUnifier):
    """`other` beside `base`. Raises Different.

    `constants`: (place in base, expression there, that of other). `missing`: the statements of base that other lacks.
    `instead`: {variable that they bind: what other has in its place}. `pairs`: (dict of base, number of an item) that
    other's dict lacks. `keys`: (place in base, leaf there, that of other) of leaves with another name in `params`, such as
    the weights of two layers of one LSTM. `residual`: (place in base, `x + y`, `y`, whether it is base that adds).
    """

    def __init__(
        self, base: Def, other: Def, shapes: Sequence[Mapping[str, tuple[int, ...]]] = ({}, {}), folded: bool = False
    ):
        """shapes: of the parameters of both, those without sizes that may differ between calls where it says -1.

        folded: whether a value may have a name in one of them and stand where it is used in the other.
        """
        self._shapes = shapes
        self._folded = folded
        self._open: tuple[dict[str, Assign], dict[str, Assign]] = {}, {}  # named in one of them only, by name
        self._once = [_used_once(d) if folded else frozenset() for d in (base, other)]
        self.residual: tuple[Position, Expr, Expr, bool] | None = None
        last = base.body[-1] if base.body else None
        self._result = last.value if type(last) is Return and type(last.value) is Tuple else last
        self.constants: list[tuple[Position, Expr, Expr]] = []
        self.missing: list[Statement] = []
        self.instead: dict[str, Expr] = {}
        self.pairs: list[tuple[Dict, int]] = []
        self.keys: list[tuple[Position, Leaf, Leaf]] = []
        self._names: dict[str, str] = {}  # other's word -> base's
        self._left_out: set[str] = set()
        if len(base.params) != len(other.params):
            raise Different
        for mine, theirs in zip(base.params, other.params, strict=True):
            if mine.kind != theirs.kind or mine.default is not None or theirs.default is not None:
                raise Different
            self._names[theirs.name] = mine.name
        self._bodies(base, "body", base.body, other.body)
        if any(self._open):
            raise Different
        uses = [n.id for s in base.body if s not in self.missing for n in nodes_of(s) if type(n) is Name]
        in_pairs = [n.id for d, i in self.pairs for n in nodes_of(d.pairs[i][1]) if type(n) is Name]
        for name in self._left_out:
            if name not in self.instead and uses.count(name) != in_pairs.count(name):
                raise Different

    # ------------------------------------------------------------ statements

    def _bodies(self, node: object, slot: str, base: Sequence[Statement], other: Sequence[Statement]) -> None:
        pairs: list[tuple[int, int]] = []
        if slot == "body" and type(node) is Def and base and other:  # what they return stands at their ends
            pairs.append((len(base) - 1, len(other) - 1))
        left, right = [[_skeleton(s) for s in body[: len(body) - len(pairs)]] for body in (base, other)]
        for kind, i, j, k, m in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
            if kind != "equal" and self._folded:
                mine = [n for n in range(i, j) if not self._set_aside(base[n], 0)]
                theirs = [n for n in range(k, m) if not self._set_aside(other[n], 1)]
                if len(mine) != len(theirs):
                    raise Different
                pairs.extend(zip(mine, theirs, strict=True))
            elif kind == "equal" or kind == "replace" and j - i == m - k:
                pairs.extend(zip(range(i, j), range(k, m), strict=True))
            elif kind == "delete" and slot == "body" and type(node) is Def and not self.missing:
                self.missing.extend(base[i:j])
                if any(type(s) is not Assign and type(s) is not Unpack for s in self.missing):
                    raise Different
                self._left_out.update(name for s in self.missing for name in bound_in(s))
            else:
                raise Different
        for i, k in sorted(pairs):
            self._statement(base[i], other[k])

    def _set_aside(self, statement: Statement, which: int) -> bool:
        """Keeps a value that is used once until its use is met; whether it is one."""
        if (
            type(statement) is not Assign
            or len(statement.targets) != 1
            or statement.targets[0] not in self._once[which]
        ):
            return False
        self._open[which][statement.targets[0]] = statement
        return True

    def _statement(self, base: Statement, statement: Statement) -> None:
        if type(base) is not type(statement):
            raise Different
        other = statement
        if type(base) is Lines and type(other) is Lines:
            if base.text != other.text:
                raise Different
        elif isinstance(base, (Assign, Unpack)) and isinstance(other, (Assign, Unpack)):
            self.part((base, "value", ()), (base.value, other.value))
            self._bind(base.targets, other.targets)
        elif type(base) is For and type(other) is For:
            self.part((base, "iterable", ()), (base.iterable, other.iterable))
            self._words(base.target, other.target)
            self._bodies(base, "body", base.body, other.body)
        elif type(base) is Def and type(other) is Def:
            if len(base.params) != len(other.params) or base.decorators or other.decorators:
                raise Different
            for mine, theirs in zip(base.params, other.params, strict=True):
                self._names[theirs.name] = mine.name
            self._names[other.name] = base.name
            self._bodies(base, "body", base.body, other.body)
        else:
            self.common((base, other))

    def _bind(self, base: Sequence[str | Tuple], other: Sequence[str | Tuple]) -> None:
        if len(base) != len(other):
            raise Different
        for mine, theirs in zip(base, other, strict=True):
            self._words(*[t if isinstance(t, str) else t.flat() for t in (mine, theirs)])

    def _words(self, base: str, other: str) -> None:
        mine, theirs = _WORD.findall(base), _WORD.findall(other)
        if len(mine) != len(theirs) or _WORD.sub("", base) != _WORD.sub("", other):
            raise Different
        self._names.update(zip(theirs, mine, strict=True))

    # ------------------------------------------------------------ expressions

    def part(self, position: Position, nodes: Sequence[Node]) -> Node:
        base, other = nodes
        if not isinstance(base, Expr) or not isinstance(other, Expr):
            raise Different
        self._expression(position, base, other)
        return base

    def word(self, position: Position, words: Sequence[object]) -> object:
        base, other = words
        return super().word(position, (base, self._names.get(other, other) if type(other) is str else other))

    def _expression(self, place: Position, base: Expr, other: Expr) -> None:
        if is_constant(base) and is_constant(other):
            if base.flat() != other.flat():
                self.constants.append((place, base, other))
            return
        if type(base) is Name and base.id in self._left_out:
            found = self._renamed(other)
            if self.instead.setdefault(base.id, found).flat() != found.flat():
                raise Different
            return
        if self._opened(place, base, other) or self._residual(place, base, other):
            return
        if type(base) is not type(other):
            raise Different
        self._same_kind(place, base, other)

    def _same_kind(self, place: Position, base: Expr, other: Expr) -> None:
        """Lays two expressions of one class over each other."""
        if type(base) is Name and type(other) is Name:
            if self._names.get(other.id, other.id) != base.id:
                raise Different
        elif isinstance(base, Leaf) and isinstance(other, Leaf):
            if self._names.get(other.root.id, other.root.id) != base.root.id:
                raise Different
            if base.steps != other.steps:
                if len(base.steps) != 1 or len(other.steps) != 1:
                    raise Different
                self.keys.append((place, base, other))
        elif type(base) is Dict and type(other) is Dict:
            self._dict(base, other)
        elif type(base) is Lambda and type(other) is Lambda and len(base.params) == len(other.params):
            self._names.update(zip(other.params, base.params, strict=True))
            self.part((base, "body", ()), (base.body, other.body))
        else:
            if type(base) is Call and type(other) is Call:
                if type(base.func) is str and base.func != other.func:
                    raise Different
                if len(base.args) != len(other.args):
                    self._spell_shape(base, other, self._shapes[0])
                    self._spell_shape(other, base, self._shapes[1])
                self._add_defaults(base, other)
                self._add_defaults(other, base)
            self.common((base, other))

    def _opened(self, place: Position, base: Expr, other: Expr) -> bool:
        """Goes on with the value of a name that only one of the two has; whether there was one."""
        mine = self._open[0].pop(base.id, None) if type(base) is Name else None
        theirs = self._open[1].pop(other.id, None) if type(other) is Name else None
        if mine is None and theirs is None:
            return False
        if mine is not None:
            place, base = (mine, "value", ()), mine.value
        self._expression(place, base, theirs.value if theirs is not None else other)
        return True

    def _residual(self, place: Position, base: Expr, other: Expr) -> bool:
        """Whether one of the two returns `x + y` where the other returns `y`, which has a name in base."""
        if not self._folded or place[0] is not self._result or self.residual is not None:
            return False
        sums = [e if type(e) is Binary and e.op == "+" else None for e in (base, other)]
        adds = sums[0] or sums[1]
        if adds is None or sums[0] is not None and sums[1] is not None:
            return False
        for plain, added in ((adds.right, adds.left), (adds.left, adds.right)):
            if not isinstance(added, (Name, Leaf)):
                continue
            before = dict(self._names), len(self.constants), len(self.keys), [dict(o) for o in self._open]
            try:
                if sums[0] is not None:
                    self._expression((base, "right" if plain is adds.right else "left", ()), plain, other)
                    self.residual = place, base, plain, True
                else:
                    self._expression(place, base, plain)
                    both = (self._renamed(added), base) if plain is adds.right else (base, self._renamed(added))
                    self.residual = place, Binary(both[0], "+", both[1]), base, False
                if type(self.residual[2]) is not Name:
                    raise Different
                return True
            except Different:
                self.residual = None
                self._names, *_ = before
                del self.constants[before[1] :], self.keys[before[2] :]
                self._open = (before[3][0], before[3][1])
        return False

    @staticmethod
    def _spell_shape(call: Call, other: Call, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """`reshape(x.shape)` as `reshape(*x.shape[:2], 32)` where the other function has it so."""
        first = call.args[0] if len(call.args) == 1 else None
        longer = other.args[0] if len(other.args) > 1 else None
        if type(first) is not Attribute or first.name != "shape" or type(first.value) is not Name:
            return
        if type(longer) is not Star or type(longer.value) is not Subscript or type(longer.value.index) is not Slice:
            return
        shape = shapes.get(first.value.id, ())
        last = shape[len(shape) - len(other.args) + 1 :]
        if len(last) == len(other.args) - 1 and -1 not in last:
            leading = Star(Subscript(first, Slice(None, Text(str(len(shape) - len(last))), None)))
            call.args = [leading, *[Text(str(n)) for n in last]]

    @staticmethod
    def _add_defaults(call: Call, other: Call) -> None:
        """`scan(f, h, xs)` as `scan(f, h, xs, reverse=False)` where the other function has another value."""
        given = [name for name, _ in call.kwargs]
        if type(call.func) is not str or [n for n, _ in other.kwargs if n in given] != given:
            return
        missing = [name for name, value in other.kwargs if name not in given and is_constant(value)]
        known = dict(defaults_of(call.func)) if missing else {}
        for name, value in other.kwargs:
            if name in _ONES and name in missing and type(value) is Tuple:
                known[name] = _ONES[name] * len(value.elements)
        if all(type(known.get(name)) in (bool, int, float, str, tuple) for name in missing):
            mine = dict(call.kwargs)
            call.kwargs = [
                (n, mine.get(n) or Text(repr(known[n]))) for n, _ in other.kwargs if n in mine or n in missing
            ]

    def _dict(self, base: Dict, other: Dict) -> None:
        mine = [(key.flat(), value) for key, value in base.pairs if key is not None]
        theirs = {key.flat(): value for key, value in other.pairs if key is not None}
        if len(mine) < len(base.pairs) or any(key is None for key, _ in other.pairs):  # `**part`
            raise Different
        if [k for k, _ in mine if k in theirs] != [k.flat() for k, _ in other.pairs if k is not None]:
            raise Different
        for i, (key, value) in enumerate(mine):
            if key in theirs:
                self.part((base, "pairs", (i, 1)), (value, theirs[key]))
            elif {n.id for n in nodes_of(value) if type(n) is Name} <= self._left_out:
                self.pairs.append((base, i))
            else:
                raise Different

    def _renamed(self, expr: Expr) -> Expr:
        if type(expr) is Name:
            return Name(self._names.get(expr.id, expr.id))
        if isinstance(expr, Leaf):
            return Leaf(Name(self._names.get(expr.root.id, expr.root.id)), expr.steps)
        raise Different


def _used_once(definition: Def) -> frozenset[str]:
    """The names that a function gives once and reads once."""
    given = [t for s in nodes_of(definition.body) if type(s) is Assign for t in s.targets if type(t) is str]
    read = Counter([n.id for n in nodes_of(definition.body) if type(n) is Name])
    read.update(n.root.id for n in nodes_of(definition.body) if isinstance(n, Leaf))
    return frozenset(t for t in given if given.count(t) == 1 and read[t] == 1)


def _skeleton(statement: Statement) -> str:
    """A statement without what may differ: the words for its own variables, and constants."""
    said: list[str] = [type(statement).__name__]
    for node in nodes_of(statement):
        if isinstance(node, Leaf):
            said.append("".join(step[1] for step in node.steps) if len(node.steps) > 1 else "Leaf")
        elif type(node) is Call and type(node.func) is str:
            said.append(node.func)
        elif type(node) is Lines:
            said.append(node.text)
        elif type(node) not in (Name, Text, Tuple, Unary):
            said.append(type(node).__name__)
    return " ".join(said)
