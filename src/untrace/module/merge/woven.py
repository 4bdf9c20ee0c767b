"""Functions of one class in one, each part with the functions that have it (its *variants*)."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

from untrace.module.merge.choices import (
    Choice,
    Guarded,
    Let,
    Named,
    Variants,
    bound_in,
    inlined,
    parts_below,
    renamed,
)
from untrace.python.anti_unify import Different
from untrace.python.statements import Assign, Def, For, Lines, Return, Statement
from untrace.python.tree import Expr, Lambda, Tuple
from untrace.python.walk import nodes_of, rebuilt


class Woven:
    """Functions of one class in one.

    `params`: (name, its default, the variants that have it). `body`: statements with the variants that have them.
    `results`: (value, the variants that return it), of which there are `several`, or one that is no tuple.
    """

    def __init__(self, definition: Def, names: Collection[str] = ()):
        """names: of values that stand in statements of their own even if they are used once."""
        self.variants: Variants = frozenset([definition.name])
        if any(p.kind != "plain" for p in definition.params) or definition.decorators:
            raise Different
        self.params = [(p.name, p.default, self.variants) for p in definition.params]
        self.head = [s for s in definition.body if type(s) is Lines]
        body = inlined([s for s in definition.body if type(s) is not Lines], names)
        last = body[-1] if body else None
        if type(last) is not Return:
            raise Different
        value = last.value
        self.several = type(value) is Tuple
        several = value.elements if type(value) is Tuple else [value]
        self.results: list[tuple[Expr, Variants]] = [(e, self.variants) for e in several]
        self.body: list[Guarded] = [(self.variants, s) for s in body[:-1]]

    def with_names(self, names: Mapping[str, str]) -> Woven:
        """A copy with other names of variables."""
        made = object.__new__(Woven)
        made.variants, made.params, made.head, made.several = self.variants, self.params, self.head, self.several
        made.body = [(g, renamed(s, names)) for g, s in self.body]
        made.results = [(renamed(e, names), v) for e, v in self.results]
        return made

    def names(self) -> set[str]:
        """All names that it gives."""
        every = [s for _, s in self.body] + [e for e, _ in self.results]
        found = {p[0] for p in self.params} | {n for _, s in self.body for n in bound_in(s)}
        found |= {p for n in nodes_of(every) if type(n) is Lambda for p in n.params}
        return found | {n.name for n in nodes_of(every) if isinstance(n, (Named, Let))}

    def unfolded(self, names: Collection[str]) -> Woven:
        """A copy where values of these names are given before they are used."""
        made = self.with_names({})
        body: list[Guarded] = []

        def out_of(node: Expr, guard: Variants) -> Expr:
            if type(node) in (Choice, Let, Lambda):
                return node
            if type(node) is Named and node.name in names:
                statement = Assign([node.name], out_of(node.value, guard), getattr(node.statement, "origin", None))
                body.append((guard, statement))
                return node.use
            return rebuilt(node, lambda n: part_out_of(n, guard))

        def part_out_of(node: object, guard: Variants) -> object:
            if isinstance(node, Expr):
                return out_of(node, guard)
            return node if type(node) in (For, Def) else rebuilt(node, lambda n: part_out_of(n, guard))

        for guard, statement in made.body:
            if type(statement) not in (For, Def):
                statement = rebuilt(statement, functools.partial(part_out_of, guard=guard))
            body.append((guard, statement))
        made.results = [(out_of(e, made.variants) if v == made.variants else e, v) for e, v in made.results]
        made.body = body
        return made

    def names_of(self, variant: Variants) -> set[str]:
        """The names that one variant gives."""
        found: set[str] = set()

        def look(node: object) -> None:
            if type(node) is Choice:
                for variants, way in node.ways:
                    if variants & variant:
                        look(way)
                return
            if isinstance(node, (Named, Let)):
                found.add(node.name)
            if isinstance(node, Statement):
                found.update(bound_in(node))
            if type(node) is Lambda:
                found.update(node.params)
            for part in parts_below(node):
                look(part)

        for variants, part in [*self.body, *[(v, e) for e, v in self.results]]:
            if variants & variant:
                look(part)
        return found
