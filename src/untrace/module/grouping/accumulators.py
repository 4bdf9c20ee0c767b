"""Trees that a loop adds up: the gradient of the parameters that a `scan` closes over, as one value of its carry.

    def step_bwd(carry, inputs):
        d_params, d_hidden = carry
        ...
        return (jax.tree.map(jnp.add, d_params, {"w": x.T @ d_y, "b": d_y.sum(axis=0)}), d_hidden_2), None

    (d_params, _), _ = lax.scan(step_bwd, (jax.tree.map(jnp.zeros_like, params), ...), ..., reverse=True)

Which carried values are the leaves of one tree is seen from where the last ones go (`result_trees`); each must be a sum over
the turns. The carry has them in the order of the tree: the proof knows that this is the same (`jaxprs.equal.carries`), but XLA may
round otherwise then, so that such a text is proven by running it.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence

from jax.extend.core import JaxprEqn

from untrace._identifiers import identifier
from untrace._trees import is_plain
from untrace.ir.callees import callee_of, output_of
from untrace.ir.nodes import Atom, Equation, Function, Scan, Value
from untrace.ir.scans import is_plain_scan
from untrace.lift.naming.words import clean
from untrace.module.access_paths import last_word
from untrace.module.grouping.kinds import Place, Sum, Way
from untrace.module.interface.put_together import rebuilt
from untrace.module.interface.writing import Contents, Writer
from untrace.module.nested import Body, group, plain_equation, unpacked
from untrace.python.statements import Assign, Parameter
from untrace.python.tree import Call, Expr, Leaf, Name

_FEWEST = 2  # leaves
_SHORT = 44  # what is added stands in the call that adds it up to this width


def sums(module: Contents, equation: Equation, places: Mapping[Atom, Place]) -> list[Sum]:
    """The trees that a loop adds up. places: where in which tree a value goes (`kinds.Place`)."""
    loop = callee_of(equation, Scan)
    body, consts, carries = loop.body, loop.consts, loop.carries
    if body.facts.trees is not None or not is_plain_scan(equation):
        return []
    trees: dict[Hashable, dict[Way, int]] = {}
    for number, output in enumerate(equation.outputs[:carries]):
        if output is not None and output in places:
            trees.setdefault(places[output].tree, {})[places[output].way] = number
    found = []
    for numbers in trees.values():
        nodes = places[output_of(equation, next(iter(numbers.values())))].nodes
        taken: set[int] = set()
        for prefix, (node, count) in sorted(nodes.items(), key=lambda item: len(item[0])):
            inside = {way: n for way, n in numbers.items() if way[: len(prefix)] == prefix and n not in taken}
            if len(inside) != count or count < _FEWEST or not is_plain(node):
                continue
            ways = _in_order(node, [way[len(prefix) :] for way in inside])
            order = [inside[(*prefix, *way)] for way in ways]
            added = [_chain(body, body.params[consts + n], body.results[n], module.forced) for n in order]
            if not all(added) or len({len(a) for a in added}) > 1:
                continue
            if order != list(range(order[0], order[0] + count)) and module.keeps_carries:
                module.kept_carries = True
                continue
            taken.update(order)
            additions = tuple([e for chain in added for e, _ in chain])
            terms = tuple([tuple([term for _, term in turn]) for turn in zip(*added, strict=True)])
            found.append(Sum(tuple(order), tuple(ways), node, prefix, additions, terms))
    return found


def _in_order(node: object, ways: Sequence[Way]) -> list[Way]:
    from untrace.module.access_paths import reach

    wanted = set(ways)
    return [leaf.steps for leaf in reach(node, Name("x")) or () if leaf.steps in wanted]


def _chain(body: Function, carry: Value, result: object, forced: Container[JaxprEqn]) -> list[tuple[Equation, Value]]:
    """The equations by which `carry` becomes `result` by additions alone, with what each adds; nothing where it does not."""
    found: list[tuple[Equation, Value]] = []
    total: Atom | None = carry
    while total is not result:
        users = [e for e in body.equations if any(a is total for a in e.inputs)]
        if len(users) != 1 or any(r is total for r in body.results) or users[0].origin in forced:
            return []
        plain = plain_equation(users[0])
        if plain.callee.name != "add" or len(plain.inputs) != 2 or list(plain.outputs) != list(users[0].outputs):
            return []
        if plain.inputs[0] is not total or type(plain.inputs[1]) is not Value:
            return []
        found.append((users[0], plain.inputs[1]))
        total = plain.outputs[0]
    return found if sum(r is result for r in body.results) == 1 else []


class Carry:
    """What a loop carries, with trees in it, while the loop is written."""

    def __init__(self, w: Writer, body: Body, found: Sequence[Sum], consts: int, carries: int):
        self.w, self.body, self.sums = w, body, found
        function = body.function
        self.state = function.params[consts : consts + carries]
        self.carries = carries
        starts = {min(s.places): s for s in found}
        inside = {p for s in found for p in s.places}
        self.items: list[Sum | int] = [starts.get(p, p) for p in range(carries) if p in starts or p not in inside]
        self.roots: dict[Sum, Name] = {}
        self.words = {s: _word(w, s, self.state) for s in found}

    def bind(self, names: Sequence[str], whole: str, used: set[Value]) -> None:
        """Adds the parameter of the body."""
        body, inner = self.body, self.body.writer
        body.types.append(None)
        targets = []
        if len(self.items) > 1:
            body.params.append(Parameter(inner.scope.fresh(identifier(whole, "carry"))))
        for item in self.items:
            if isinstance(item, Sum):
                root = self.roots[item] = Name(inner.scope.fresh(self.words[item]))
                inner.trees.add(root, item.example, [self.state[p] for p in item.places])
                targets.append(root.id)
            elif self.state[item] in used:
                targets.append(inner.bind_parameter(self.state[item], names[item]).id)
            else:
                inner.names[self.state[item]] = Name("_")
                targets.append("_")
        if len(self.items) > 1:
            inner.statements.append(Assign(targets, Name(body.params[-1].name)))
        else:
            body.params.append(Parameter(targets[0]))

    def equations(self) -> None:
        """Writes what the body does, but for the sums."""
        function = self.body.function
        added = {e for s in self.sums for e in s.additions}
        places = {p for s in self.sums for p in s.places}
        terms = [t for s in self.sums for turn in s.terms for t in turn]
        results = [r for p, r in enumerate(function.results) if p not in places]
        self.body.writer.equations([e for e in function.equations if e not in added], [*terms, *results])

    def value(self) -> Expr:
        """What the body gives back as its carry."""
        inner = self.body.writer
        return group(
            [self._sum(x) if isinstance(x, Sum) else inner.atom(self.body.function.results[x]) for x in self.items]
        )

    def _sum(self, item: Sum) -> Expr:
        inner = self.body.writer
        total: Expr = self.roots[item]
        for turn in item.terms:
            tree = rebuilt(inner, item.example, [inner.atom(t) for t in turn])
            if not isinstance(tree, Leaf) and len(tree.flat()) > _SHORT:
                name = Name(inner.scope.fresh("grads" if self.words[item].startswith("d_") else "terms"))
                inner.statements.append(Assign([name.id], tree))
                tree = name
            total = inner.added_trees(total, tree)
        return total

    def init(self, operands: Sequence[Expr]) -> Expr:
        """What the loop is given: `operands`, one for each leaf."""
        found = []
        for item in self.items:
            if isinstance(item, Sum):
                parts = [operands[p] for p in item.places]
                zeros = self.w.zeros_like(item.example, parts, item.prefix)
                found.append(zeros if zeros is not None else rebuilt(self.w, item.example, parts))
            else:
                found.append(operands[item])
        return group(found)

    def targets(self, bases: Sequence[str]) -> Expr:
        """What the last carry is bound to."""
        w, outputs = self.w, self.w.equation.outputs
        found = []
        for item in self.items:
            if not isinstance(item, Sum):
                output = outputs[item]
                read = output is not None and w.is_read_later(output)
                found.append(Name(w._target(output, bases[item]) if output is not None and read else "_"))
                continue
            root = Name(w.scope.fresh(self.words[item]))
            values = [output_of(w.equation, p) for p in item.places]
            w.names.update((v, Leaf(root, way)) for v, way in zip(values, item.ways, strict=True))
            w.trees.add(root, item.example, values)
            found.append(root)
        return unpacked(found)


def _word(w: Writer, item: Sum, state: Sequence[Value]) -> str:
    """`d_dense` for the sums that become `d_dense_w` and `d_dense_b`; else after the tree that they are like."""
    hints = [output_of(w.equation, p).hint or state[p].hint or "" for p in item.places]
    common: list[str] = []
    for words in zip(*[h.split("_") for h in hints], strict=False):
        if len(set(words)) > 1:
            break
        common.append(words[0])
    word = "_".join(common)
    if word not in ("", "d"):
        return identifier(clean(word), "sums")
    alike = w.zeros_like(item.example, None, item.prefix)
    parameter = alike.args[1] if type(alike) is Call and word == "d" else None
    if isinstance(parameter, Leaf):
        return identifier(clean(f"d_{last_word(parameter)}"), "sums")
    return "grads" if word == "d" else "sums"
