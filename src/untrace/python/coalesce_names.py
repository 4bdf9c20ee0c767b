"""Which of a function's variables share a name, by what is still read where another one is bound.

`rebind_names`: a value gets its author's name again, where the value that had it before is not read any more.

    x_2 = x + attention(x)             x = x + attention(x)
    x_3 = x_2 + mlp(x_2)       ->      x = x + mlp(x)
    return x_3 / 2                     return x / 2

`count_again`: numbers at the ends of names close up where a name is gone: `x_3` is `x_2` where that went into another line.

`match_residuals`: what a loop saves is called the same in its body and in that of the loop of the backward pass that takes
it. The two are functions of their own, and what has a name in both is numbered by the order in which names are given there:
the `scaled_2` of one would be the `scaled` of the other.

These are the last steps before the text is laid out, for expressions stand inside others by then. A name that a function
inside this one reads keeps its one value: Python looks it up when that runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from untrace.ir.values import Value
from untrace.provenance.sites import Provenance, Site, binds_again
from untrace.python.inline_neighbours import words_of
from untrace.python.names import base_of
from untrace.python.scope_index import Line, Own, every, own_nodes
from untrace.python.statements import Assign, Def, For, If, Loop, Return, Statement, Unpack
from untrace.python.tree import Expr, Name
from untrace.python.walk import parts_of

_NUMBER = re.compile(r"_(\d+)$")


def functions_of(definition: Def) -> Iterator[Def]:
    """A function and those inside it, each before those that it holds."""
    stack: list[Any] = [definition]
    while stack:
        value = stack.pop()
        if type(value) is Def:
            yield value
        if type(value) is Assign or type(value) is Unpack:
            continue  # most statements, and no function stands in them
        if isinstance(value, Statement):
            stack.extend(reversed(parts_of(value)))
        elif type(value) in (list, tuple):
            stack.extend([v for v in reversed(value) if not isinstance(v, Expr)])


# ------------------------------------------------------------------ the author binds a name again


def rebind_names(
    definitions: Sequence[Statement],
    provenance: Provenance,
    words: Mapping[Statement, Counter[str]] = {},  # noqa: B006
) -> dict[Def, Own]:
    """Renames variables of `definitions`. words: how often each word stands in a definition, where that is known, and is
    kept right. Gives the `own_nodes` of every function."""
    found: dict[Def, Own] = {}
    for definition in definitions:
        for function in functions_of(definition) if type(definition) is Def else ():
            own = found[function] = own_nodes(function.body)
            new = _rebound(own, function, provenance)
            if definition in words:
                _rename_words(words[definition], own.counts, new)
            own.rename(new)
            if new:
                function.body = without_idle(function.body)
    return found


def without_idle(body: Sequence[Statement]) -> Sequence[Statement]:
    """Statements without those that bind a name to itself: a loop's variable that took the name of its first value."""
    kept = [s for s in body if not is_idle(s)] or list(body)
    for statement in kept:
        if isinstance(statement, For | Loop | If):
            statement.body = without_idle(statement.body)
        if type(statement) is If:
            statement.otherwise = without_idle(statement.otherwise)
    return kept


def is_idle(statement: Statement) -> bool:
    """Whether it gives a variable what it is: `x = x`."""
    return (
        isinstance(statement, Assign)
        and type(statement.value) is Name
        and len(statement.targets) == 1
        and statement.targets[0] == statement.value.id
    )


def _rename_words(words: Counter[str], counts: Counter[str], new: Mapping[str, str]) -> None:
    for name in new:
        words[name] -= counts[name]
        if not words[name]:
            del words[name]
    for name, other in new.items():
        words[other] += counts[name]


def _rebound(own: Own, definition: Def, provenance: Provenance) -> dict[str, str]:
    """Old name -> new name."""
    wishes = {n.id: n.symbol.author for n in own.names if n.symbol.author is not None}
    parameters = {p.name for p in definition.params}  # most have names of ours, where a library's code is theirs
    parameters -= {n.id for n in own.names if n.symbol.library == n.id}
    for n in own.names:
        if n.symbol.library is not None and n.symbol.library not in parameters:
            wishes.setdefault(n.id, n.symbol.library)
    wishes = {name: wish for name, wish in wishes.items() if wish in (name, base_of(name), name.removesuffix("_in"))}
    if all(name == wish for name, wish in wishes.items()):
        return {}
    sites: dict[str, Site] = {}
    for node in own.statements:
        if node.origin is not None:
            sites.update((t, provenance.site(node.origin)) for t in node.targets if type(t) is str and t in wishes)

    def follows(name: str, held: Sequence[str]) -> bool:
        before = next((sites[h] for h in reversed(held) if h in sites), None)
        if before is not None:
            return name in sites and binds_again(before, sites[name], wishes[name])
        # A parameter, or a part of one, which no equation makes: the author's own if that is his function.
        frames = [f for f in sites[name].frames if not f.library] if name in sites else []
        return bool(frames) and frames[-1].name == base_of(definition.name)

    new = new_names(own, [p.name for p in definition.params], wishes, follows)
    # A variable that stands in a piece of source has that name there as well.
    return new if own.source.isdisjoint(new) else {}


def new_names(
    own: Own, arguments: Sequence[str], wishes: Mapping[str, str], follows: Callable[[str, Sequence[str]], bool]
) -> dict[str, str]:
    """Old name -> new name of the variables of a function that can have another one.

    wishes: variable -> author's name. follows(variable, those that have the name so far): whether the author binds the
    same variable again; what is computed from the value before it counts as such without being asked for.
    """
    bases = {wish for name, wish in wishes.items() if name != wish}
    if not own.is_known or not bases:
        return {}
    use = _Uses({name for name, wish in wishes.items() if wish in bases} | bases)
    at_entry = use.before(own.lines, set())
    # What the function reads without having bound it belongs to the one around it, or to the module.
    fixed = own.closed_over() | (at_entry - set(arguments))
    order = dict.fromkeys([*arguments, *[name for line in every(own.lines) for name in line.binds]])
    new: dict[str, str] = {}
    for base in sorted(bases):
        its = base in arguments or wishes.get(base) == base
        family = [n for n in order if n == base or wishes.get(n) == base and n not in arguments]
        if not its or not fixed.isdisjoint((base, *family[:1])):
            continue
        held = family[:1]  # the variables that are the author's one so far
        for name in family[1:]:
            if name in fixed or not use.clashes.get(name, set()).isdisjoint(held):
                break
            if use.read_for.get(name, set()).isdisjoint(held) and not follows(name, held):
                break
            held.append(name)
        if len(held) > 1 and base in held:
            new |= {name: base for name in held if name != base}
            new.update(_counted_again(base, [n for n in family if n not in fixed], held))
    return new


def _counted_again(base: str, family: Sequence[str], held: Sequence[str]) -> dict[str, str]:
    """Lower numbers for those of a family that keep one, in the order in which they are bound."""
    numbered = sorted([n for n in family if n != base and base_of(n) == base], key=_number)
    return dict(zip([n for n in family if n not in held], numbered, strict=False))


def _number(name: str) -> int:
    found = _NUMBER.search(name)
    return int(found[1]) if found else 0


class _Uses:
    """Which of the watched variables hold a value that is still read where another one is bound."""

    def __init__(self, watched: set[str]):
        self.watched = watched
        self.clashes: dict[str, set[str]] = {}
        self.read_for: dict[str, set[str]] = {}  # variable -> those in the expression that it is bound to

    def before(self, lines: Sequence[Line], live: set[str]) -> set[str]:
        """What is read later at the head of `lines`, where `live` is after them."""
        for line in reversed(lines):
            live = self._before(line, live)
        return live

    def _before(self, line: Line, live: set[str]) -> set[str]:
        read = line.reads & self.watched
        if line.kind is Return:
            return read
        if line.kind is If:
            return read.union(*[self.before(block, live) for block in line.blocks])
        if line.kind is For:
            (body,) = line.blocks
            head, last = live, None
            while head != last:
                last = head
                head = head | self._without(line.binds, self.before(body, head))
            return head | read
        for name in line.binds:
            self.read_for.setdefault(name, set()).update(read)
        return self._without(line.binds, live) | read

    def _without(self, names: Collection[str], live: set[str]) -> set[str]:
        """What is live before `names` are bound, which clash with what else is."""
        bound = self.watched.intersection(names)
        for name in bound:
            others = (live | bound) - {name}
            self.clashes.setdefault(name, set()).update(others)
            for other in others:
                self.clashes.setdefault(other, set()).add(name)
        return live - bound if bound else live


# ------------------------------------------------------------------ names without gaps


def names_bound(definitions: Sequence[Statement]) -> dict[Def, set[str]]:
    """The variables of every function."""
    found: dict[Def, set[str]] = {}
    for definition in definitions:
        for function in functions_of(definition) if type(definition) is Def else ():
            found[function] = _bound(_binding(function.body))
    return found


def _binding(body: Sequence[Statement]) -> Iterator[Assign | Unpack]:
    """The assignments of a function, without those of the functions inside it."""
    stack: list[Any] = [body]
    while stack:
        value = stack.pop()
        if isinstance(value, (Assign, Unpack)):
            yield value
        elif type(value) in (list, tuple):
            stack.extend(value)
        elif isinstance(value, Statement) and type(value) is not Def:
            stack.extend(parts_of(value))


def _bound(statements: Iterable[Assign | Unpack]) -> set[str]:
    return {t for s in statements for t in s.targets if type(t) is str}


def count_again(
    definitions: Sequence[Statement],
    before: Mapping[Def, set[str]],
    nodes: Mapping[Def, Own],
    known: Mapping[Statement, Mapping[str, int]] = {},  # noqa: B006
) -> None:
    """Renames variables of `definitions`. before: what each function bound when its names were given; nodes: the
    `own_nodes` of each; known: the `words_of` a definition, where they are."""
    for definition in definitions:
        if type(definition) is not Def:
            continue
        functions = [f for f in functions_of(definition) if len(before.get(f, ())) > 1]
        now = {f: _bound(nodes[f].statements) for f in functions}
        if all(before[f] <= now[f] for f in functions):
            continue
        words = known.get(definition) or words_of(definition)
        for function in functions:
            free = [name for name in before[function] - now[function] if name not in words]
            if free:
                _close_up(nodes[function], now[function], free, words)


def _close_up(own: Own, bound: Collection[str], free: Sequence[str], words: Mapping[str, int]) -> None:
    first: dict[str, int] = {}
    for base, number in map(_family, free):
        first[base] = min(number, first.get(base, number))
    later: dict[str, set[int]] = {}
    for name in bound:
        base, number = _family(name)
        # Those that a function inside reads as well keep their names.
        if number > first.get(base, number) and own.counts[name] == words[name]:
            later.setdefault(base, set()).add(number)
    new: dict[str, str] = {}
    for base, numbers in later.items():
        place = first[base]
        for number in sorted(numbers):
            new[f"{base}_{number}"] = f"{base}_{place}" if place > 1 else base
            place = number
    own.rename(new)


def _family(name: str) -> tuple[str, int]:
    """`x_3` is number 3 of the family `x`, and `x` its first."""
    return base_of(name), _number(name) or 1


# ------------------------------------------------------------------ what one loop saves for another


def match_residuals(residuals: Mapping[Value, Value], nodes: Mapping[Def, Own]) -> None:
    """Renames variables. residuals: what a loop takes of an earlier one -> what that one saves; nodes: the `own_nodes` of
    every function."""
    if not residuals:
        return
    written = {n.symbol.value: n for own in nodes.values() for n in own.names if n.symbol.value is not None}
    for function, own in nodes.items():
        taken = {n.id: residuals[v] for n in own.names if (v := n.symbol.value) is not None and v in residuals}
        wishes = {name: written[saved].id for name, saved in taken.items() if saved in written}
        if any(name != wish for name, wish in wishes.items()):
            words = words_of(function)
            mine = {name for name, count in own.counts.items() if words[name] == count} & _bound(own.statements)
            own.rename(_exchanged(wishes, mine, words))


def _exchanged(wishes: Mapping[str, str], mine: set[str], words: Mapping[str, int]) -> dict[str, str]:
    """Old name -> new name. mine: variables that can have another one; words: all that stand in the function."""
    new = {name: wish for name, wish in wishes.items() if name in mine and (wish in mine or wish not in words)}
    new = {name: wish for name, wish in new.items() if list(new.values()).count(wish) == 1}
    # What has a wished name, and no wish itself, takes one of its own family that became free.
    while True:
        free = sorted(set(new) - set(new.values()), key=lambda name: (len(name), name))
        losing = [name for name in new.values() if name not in new and name in words]
        if not losing:
            return new
        name = losing[0]
        other = next((f for f in free if base_of(f) == base_of(name)), None)
        if other is not None:
            new[name] = other
        else:  # there is none: the wish is not granted
            new = {old: wish for old, wish in new.items() if wish != name}
