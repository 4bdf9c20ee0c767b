"""Loops as a person writes them: `lax.scan`, `lax.map`, `lax.fori_loop`, `lax.while_loop` around nested functions.

Each function here gives what the rule of its primitive should return, or None where the loop cannot be said this way;
then the exact form is written. Where the public function would make another equation (it turns a carry that the body
only forwards into a constant, drops an output that is an input), it gives None.

What the function of a loop takes and gives is the author's trees where these are known and can be written
(`loop_trees`), and arrays and tuples of them otherwise, which are trees as well (`flat`): both are printed by one code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from untrace import jax_compat
from untrace._errors import UnsupportedPrimitiveError
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Atom, Equation, Function, Literal, Scan, Value
from untrace.ir.scans import closes_around, closes_simply, is_plain_scan, used_values
from untrace.ir.trees import BodyTrees, Tree
from untrace.lift.naming import parameters
from untrace.lift.naming.words import clean, singular
from untrace.module.access_paths import last_word
from untrace.module.grouping import stacked
from untrace.module.grouping.accumulators import Carry
from untrace.module.library_calls import argument, with_author_numbers
from untrace.module.nested import group, hint_of, plain_equation, plural, root_name, scan_options
from untrace.module.rules import Groups
from untrace.provenance.arguments import passes_variable
from untrace.python.statements import Parameter
from untrace.python.tree import Call, Expr, Name, Tuple
from untrace.python.types import array_type, tuple_type
from untrace.targets.jax.loop_trees import CARRIED, LoopBody, TreeBody, trees_of

_NUMBERED = re.compile(r"\w*_\d+")


def scan(w: Any, operands: Sequence[Expr], jaxpr: Function, length: int, reverse: bool, unroll: int) -> Any:
    """`lax.scan` or `lax.map`; `lax.fori_loop` of one that only counts."""
    equation = w.equation
    operands = with_author_numbers(w, equation, operands)
    loop = callee_of(equation, Scan)
    consts, first = loop.consts, loop.consts + loop.carries  # the place of the first element
    xs = equation.inputs[first:]

    def written(carry: Tree, x: Tree, last: Tree, ys: Tree, known: bool = False) -> Any:
        plain_map = not carry.places and bool(xs) and not reverse and unroll == 1 and len(jaxpr.results) > 0
        body = _body(w, jaxpr, "one" if plain_map else "step", carry, consts, operands, 0, known)
        used = used_values(jaxpr)
        if not plain_map:
            body.take(carry, "carry", used, "_" if xs else "_carry")
        body.take(x, "inputs", used)
        body.equations()
        if plain_map:
            return body.bound(w.lax("map", body.finish(body.value(ys)), body.given(x)), [ys])
        function = body.finish(Tuple([body.value(last), body.value(ys)]))
        arguments = [body.given(carry), *([body.given(x)] if xs else [])]
        says_reverse = passes_variable(w.module.provenance.site(equation.origin).frames, "reverse")
        kwargs = scan_options(None if xs else argument(w, length, ()), reverse, unroll, says_reverse)
        return body.bound(w.lax("scan", function, *arguments, **kwargs), [last, ys])

    trees = _known(w, jaxpr, "scan")
    if trees is not None and len(trees.args) == 2 and len(trees.out.parts()) == 2:
        is_plain = is_plain_scan(equation, trees.args[0].places)
        found = _attempt(w, written, *trees.args, *trees.out.parts()) if is_plain else None
        if found is not None:
            return found
    if not is_plain_scan(equation):
        return None
    found = None if xs or reverse else _static_fori(w, operands, jaxpr, length, unroll, consts, loop.carries)
    if found is not None:
        return found
    carry, x = flat(jaxpr.params, consts, first), flat(jaxpr.params, first)
    return written(carry, x, flat(jaxpr.results, 0, loop.carries), flat(jaxpr.results, loop.carries))


def while_(
    w: Any,
    operands: Sequence[Expr],
    cond_jaxpr: Function,
    body_jaxpr: Function,
    cond_nconsts: int,
    body_nconsts: int,
    params: dict[str, Any],
) -> Any:
    """`lax.while_loop`; `lax.fori_loop` of one that counts up to a bound."""
    equation = w.equation
    operands = with_author_numbers(w, equation, operands)
    inputs = equation.inputs
    state, seen = body_jaxpr.params[body_nconsts:], cond_jaxpr.params[cond_nconsts:]
    read = used_values(cond_jaxpr)
    # What the body only hands on JAX leaves in the carry where the condition reads it.
    forwarded = [other for r, p, other in zip(body_jaxpr.results, state, seen, strict=True) if r is p]
    if any(v is not None for v in params.values()) or not closes_simply(cond_jaxpr, range(cond_nconsts), inputs):
        return None

    def written(carry: Tree, last: Tree, known: bool = False) -> Any:
        body = _body(w, body_jaxpr, "body", carry, body_nconsts, operands, cond_nconsts, known)
        check = body.beside(cond_jaxpr, "keep_going", cond_nconsts, operands)
        check.take(carry, "state", read)
        check.equations()
        condition = check.finish(check.writer.atom(cond_jaxpr.results[0]))
        body.take(carry, "state", used_values(body_jaxpr))
        body.equations()
        function = body.finish(body.value(last))
        return body.bound(w.lax("while_loop", condition, function, body.given(carry)), [last])

    def is_plain(carried: Sequence[int]) -> bool:
        return closes_around(body_jaxpr, inputs[cond_nconsts:], body_nconsts, carried)

    trees = _known(w, body_jaxpr, "while_body")
    if trees is not None and len(trees.args) == 1 and not forwarded and is_plain(trees.args[0].places):
        found = _attempt(w, written, trees.args[0], trees.out)
        if found is not None:
            return found
    carry = flat(body_jaxpr.params, body_nconsts)
    if any(p not in read for p in forwarded) or not is_plain(carry.places):
        return None
    found = _dynamic_fori(w, operands, cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts)
    if found is not None:
        return found
    _share_names(state, seen)
    return written(carry, flat(body_jaxpr.results, 0))


def _known(w: Any, body: Function, kind: str) -> BodyTrees | None:
    """The trees of a loop's function, as JAX traced it for a loop of this kind."""
    trees = trees_of(w, body)
    return trees if trees is not None and trees.kind == kind else None


def _body(
    w: Any,
    function: Function,
    fallback: str,
    carry: Tree,
    consts: int,
    operands: Sequence[Expr],
    shift: int,
    known: bool,
) -> TreeBody | ArrayBody:
    """The function of a loop, which closes over the constants that are not in the carry. shift: how many operands the loop
    has before these constants; known: whether the author's trees are."""
    own, inside = operands[shift:], set(carry.places)
    closed = [(function.params[i], own[i]) for i in range(consts) if i not in inside]
    return (TreeBody if known else ArrayBody)(w, function, fallback, closed, consts, own, shift)


def _attempt(w: Any, write: Callable[..., Any], *trees: Tree) -> Any:
    """What `write` gives for trees of the author's; None, and nothing is written, where one has no source form."""
    count = len(w.statements)
    try:
        return write(*trees, known=True)
    except UnsupportedPrimitiveError:
        del w.statements[count:]
        return None


# ------------------------------------------------------------------ fori_loop


def _static_fori(
    w: Any, operands: Sequence[Expr], jaxpr: Function, length: int, unroll: int, consts: int, carries: int
) -> Any:
    """A scan that only counts: `fori_loop` with bounds that were known."""
    inputs, outputs = w.equation.inputs, w.equation.outputs
    if carries < 2 or len(jaxpr.results) != carries or not _unread(w, outputs[0]):
        return None
    counter, lower = jaxpr.params[consts], inputs[consts]
    step = _increment(jaxpr, counter)
    if step is None or type(lower) is not Literal or not counter.aval.weak_type:
        return None
    start = int(lower.value)
    bounds = [argument(w, start, ()), argument(w, start + length, ())]
    kwargs = {"unroll": unroll} if unroll != 1 else {}
    return _fori(w, operands, jaxpr, step, bounds, 0, consts, 1, kwargs)


def _dynamic_fori(
    w: Any, operands: Sequence[Expr], cond: Function, body: Function, cond_consts: int, body_consts: int
) -> Any:
    """A while loop that counts up to a bound: `fori_loop` with a bound that is computed."""
    inputs, outputs = w.equation.inputs, w.equation.outputs
    consts = cond_consts + body_consts
    if cond_consts or len(inputs) - consts < 3 or len(cond.equations) != 1:
        return None
    less = plain_equation(cond.equations[0])
    if less.callee.name != "lt" or list(less.inputs) != list(cond.params[:2]):
        return None
    if cond.results[0] is not cond.equations[0].outputs[0]:
        return None
    counter, bound = body.params[body_consts : body_consts + 2]
    lower, upper = inputs[consts : consts + 2]
    step = _increment(body, counter)
    reads = sum(a is bound for e in body.equations for a in e.inputs) + sum(r is bound for r in body.results)
    if step is None or body.results[1] is not bound or reads != 1 or not all(_unread(w, o) for o in outputs[:2]):
        return None
    if type(upper) is not Value and type(lower) is not Value:
        return None  # known bounds make a scan
    return _fori(w, operands, body, step, operands[consts : consts + 2], cond_consts, body_consts, 2, {})


def _fori(
    w: Any,
    operands: Sequence[Expr],
    jaxpr: Function,
    step: Equation,
    bounds: Sequence[Expr],
    shift: int,
    consts: int,
    skipped: int,
    kwargs: dict[str, Any],
) -> Any:
    """shift: how many operands the equation has before the constants of the body. Of the body's other parameters, the
    first `skipped` belong to the loop itself. `step` is the equation that counts."""
    equations = [e for e in jaxpr.equations if e is not step]

    def written(counter: Tree, state: Tree, last: Tree, known: bool = False) -> Any:
        body = _body(w, jaxpr, "body", state, consts, operands, shift, known)
        results = [jaxpr.results[p] if p >= 0 else jaxpr.params[-1 - p] for p in last.places]
        used = used_values(Function(jaxpr.name, (), equations, results))
        body.take(counter, "i", used)
        body.take(state, "state", used, "_state")
        body.equations(equations, results)
        function = body.finish(body.value(last))
        call = w.lax("fori_loop", *bounds, function, body.given(state), **kwargs)
        return body.bound(call, [last])

    trees = _known(w, jaxpr, "fori_loop")
    if trees is not None:
        counter, *_, state = trees.args[0].parts()
        out = trees.out if len(trees.args) == 1 else trees.out.parts()[0]
        if state.nested() and closes_around(jaxpr, w.equation.inputs[shift:], consts, state.places):
            found = _attempt(w, written, counter, state, out.parts()[-1])
            if found is not None:
                return found
    first = consts + skipped
    state, last = flat(jaxpr.params, first), flat(jaxpr.results, skipped)
    return written(flat(jaxpr.params, consts, consts + 1), state, last)


def _increment(function: Function, counter: Value) -> Equation | None:
    """The equation that computes the first result as `counter + 1`, where nothing else reads its result."""
    wanted = function.results[0]
    if counter.aval.shape or str(counter.aval.dtype)[:3] not in ("int", "uin"):
        return None
    for equation in function.equations:
        if wanted not in equation.outputs:
            if any(a is wanted for a in equation.inputs):
                return None
            continue
        plain = plain_equation(equation)
        if plain.callee.name != "add" or plain.inputs[0] is not counter:
            return None
        one = plain.inputs[1]
        if type(one) is not Literal or one.value != 1 or plain.outputs[0] is not wanted:
            return None
        reads = sum(a is wanted for e in function.equations for a in e.inputs) + sum(
            r is wanted for r in function.results
        )
        return equation if reads == 1 else None
    return None


def _unread(w: Any, output: Value | None) -> bool:
    return output is None or not w.is_live(output)


def _share_names(state: Sequence[Value], seen: Sequence[Value]) -> None:
    """What one function of a loop only numbers (`s_0`) has the name that the other knows it by."""
    for left, right in zip(state, seen, strict=True):
        for own, other in ((left, right), (right, left)):
            if own.hint and other.hint and _NUMBERED.fullmatch(own.hint) and not _NUMBERED.fullmatch(other.hint):
                own.hint = other.hint


# ------------------------------------------------------------------ arrays


def flat(atoms: Sequence[Atom], start: int, stop: int | None = None) -> Tree:
    """The parameters or results of a function from place `start` on as a tree: None, an array, or a tuple of arrays."""
    avals = tuple([a.aval for a in atoms[start:stop]])
    places = tuple(range(start, start + len(avals)))
    return Tree(avals if len(avals) > 1 else avals[0] if avals else None, places)


class ArrayBody(LoopBody):
    """A nested function of which no trees are known: it takes and gives those of `flat`, in which arrays may be found to be
    the leaves of one tree after all (`stacked`, `accumulators`)."""

    def __init__(self, w: Any, function: Function, *args: Any):
        super().__init__(w, function, *args)
        self.state: list[Value] = []
        self.sums: Carry | None = None
        self.rows: Sequence[stacked.Row] = ()  # trees among what it goes through
        self.bases: Mapping[int, str] = {}
        self.made: Sequence[stacked.Row] = w.module.rows.get(w.equation, [])
        self.other: ArrayBody | None = None  # the loop's other function, which knows names too

    def beside(self, function: Function, fallback: str, consts: int, operands: Sequence[Expr]) -> ArrayBody:
        self.other = other = super().beside(function, fallback, consts, operands)
        if not any(root for root, _ in self.words[self.consts :]):
            self.words[self.consts :] = other.words[consts:]
        return other

    def take(self, tree: Tree, role: str, used: set[Value], empty: str = "_") -> None:
        w, places = self.outer, tree.places
        values = [v for p in places if (v := self.value_of(p)) is not None]
        words = [self.model.words[p] for p in places]
        names, whole = self.model._names_of(places, role), root_name(words, role)
        if role in CARRIED:
            self.state = values
        sums = w.module.sums.get(w.equation) if role == "carry" else None
        if sums:
            self.sums = Carry(w, self, sums, self.consts, len(values))
            self.sums.bind(names, whole, used)
            return
        self.rows = stacked.gone_through(w, [self.operands[p] for p in places]) if role == "inputs" else []
        for row in self.rows:
            root = root_name([words[p] for p in row.places], "")
            names[row.places.start] = root or clean(singular(last_word(row.node)), "tree")
        self.bases = dict(zip(places, names, strict=True))
        parts = stacked.as_trees([Tree(v.aval, (p,)) for p, v in zip(places, values, strict=True)], self.rows)
        self.types.append(None if self.rows or not values else tuple_type([array_type(v.aval) for v in values]))
        if len(parts) == 1:
            bound = self.bind(parts[0], (0,), names[0], used, empty)
        else:
            bound = self.bind(Tree(tuple([p.example for p in parts]), places), (), whole, used, empty)
        self.params.append(Parameter(bound))

    def elements(self, tree: Tree, path: parameters.Path) -> list[tuple[Tree, str]]:
        return [] if path else [(part, self.bases[part.places[0]]) for part in tree.parts()]

    def _names_of(self, places: Sequence[int], role: str) -> list[str]:
        """What parameters are called where no hint says it: the author's name, else that of what they become, were or end
        as, of the array that they are slices of, or of what they are."""
        equation, function = self.outer.equation, self.function
        found = []
        for place in places:
            outside, i = equation.inputs[self.shift + place], place - self.consts
            known = [function.params[place], self.other.value_of(place) if self.other is not None else None]
            name = hint_of(*known) or self.words[place][1]
            if not name and role in CARRIED:
                name = hint_of(function.results[i], outside, equation.outputs[i])
                name = name or ("carry" if len(places) == 1 else "value")
            elif not name and role == "inputs":
                name = singular(hint_of(outside)) or "x"
            found.append(name or role)
        return found

    def equations(self, equations: Sequence[Equation] | None = None, results: Sequence[Atom] | None = None) -> None:
        if self.sums is not None:
            self.name_leaves(self.function.equations, self.function.results)
            self.sums.equations()
        else:
            super().equations(equations, results)

    def value(self, tree: Tree) -> Expr:
        if self.sums is not None and tree.places[:1] == (0,):
            return self.sums.value()
        made = self.made if tree.places[:1] == (len(self.state),) else ()
        return stacked.value(self, [self.function.results[p] for p in tree.places], made)

    def given(self, tree: Tree) -> Expr:
        found = [self.operands[p] for p in tree.places]
        if self.state and self.function.params[tree.places[0]] is self.state[0]:
            return self.sums.init(found) if self.sums is not None else group(self._zeros_like(found))
        return group(stacked.with_trees(self.rows, found, lambda row: row.node) if found else [])

    def _zeros_like(self, init: Sequence[Expr]) -> list[Expr]:
        """What the carry begins as, with `jnp.zeros_like(w)` for the zeros that become `d_w`."""
        w = self.outer
        if not any(_is_zeros(expr) for expr in init):
            return list(init)
        named = {expr.id: value.aval for value, expr in w.names.items() if type(expr) is Name}
        found: list[Expr] = []
        for expr, value in zip(init, self.state, strict=True):
            primal = self.name_of(value).removeprefix("d_")
            aval = named.get(primal) if _is_zeros(expr) and primal != self.name_of(value) else None
            alike = aval is not None and _same_array(aval, value.aval)
            found.append(w.array_call("zeros_like", Name(primal)) if alike else expr)
        return found

    def bound(self, call: Expr, trees: Sequence[Tree]) -> Groups:
        w, results = self.outer, self.function.results
        skip = len(results) - sum(len(t.places) for t in trees)
        carried = len(self.state)
        bases = [self.name_of(v) or "carry" for v in self.state]
        bases += [plural(hint_of(r)) or "ys" for r in results[skip + carried :]]
        bound: dict[int, Expr] = {}
        if self.sums is not None:
            bound[0] = self.sums.targets(bases)
        if self.made:
            outputs = w.equation.outputs[carried:]
            bound[len(trees) - 1] = stacked.targets(w, outputs, bases[carried:], self.made)
        return Groups(call, tuple([len(t.places) for t in trees]), bases, skip, bound)


def _is_zeros(expr: Expr) -> bool:
    return type(expr) is Call and expr.func == "jnp.zeros"


def _same_array(left: Any, right: Any) -> bool:
    """Whether zeros like the one are of the type of the other: so are they on a mesh only where it varies alike."""
    types = [getattr(a, "shape", None) for a in (left, right)]
    plain = not (jax_compat.varying_axes(left) or jax_compat.varying_axes(right))
    return plain and None not in types and types[0] == types[1] and left.dtype == right.dtype and not left.weak_type
