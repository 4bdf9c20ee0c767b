"""Functions of the author's that a transformation is called of, and what the call gives back, with the author's pytrees.

A function that closes over nothing but constants stands in the module, and takes what the author gave it. One that closes over
values stands where it is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import jax

from untrace._identifiers import identifier
from untrace.ir.nodes import Equation, Function, Local, PullbackType, Value, functions_called
from untrace.ir.signatures import CallSignature, arguments_at
from untrace.ir.structured import Map
from untrace.ir.types import PyTree
from untrace.lift.naming.unpacked import names_in
from untrace.lift.naming.words import clean
from untrace.module.access_paths import last_word, plain_way, reach
from untrace.module.grouping.bound_leaves import bind_leaves
from untrace.module.interface.put_together import rebuilt
from untrace.module.interface.writing import Writer
from untrace.module.local_calls import placed
from untrace.module.nested import BareReturn, argument_words, function_hint, hint_of, put_definition
from untrace.provenance.sites import targets
from untrace.python.names import Scope
from untrace.python.statements import Assign, Def, Parameter, Return, Unpack, Unpacked, returned
from untrace.python.tree import Call, Expr, Leaf, Name, Subscript, Symbol, Text, Tuple
from untrace.python.types import Type, array_type, tree_type

Path = tuple[int | str, ...]  # into what a call gives

_WORD = re.compile(r"[A-Za-z_]\w*")
_LONGEST_WITH_ITEM = 70  # letters of a call


@dataclass(slots=True)
class Argument:
    """One argument of a function that is called: its place or keyword, its tree (for one element), and the places of its
    leaves."""

    key: int | str
    example: PyTree
    places: list[int]
    name: str


def arguments_of(signature: CallSignature, body: Function) -> list[Argument]:
    words = argument_words(body, 0)
    found = []
    for key, example, places in arguments_at(signature.args, signature.closed):
        if not places:
            continue
        if type(key) is str:
            name = key
        else:
            name = words[places[0]][0] if body.jaxpr is not None else signature.names[int(key)]
        found.append(Argument(key, example, list(places), identifier(name or "x", "x")))
    return found


def function_of(
    w: Writer,
    equation: Equation,
    operands: Sequence[Expr],
    body: Function,
    arguments: Sequence[Argument],
    alone: bool,
    signature: CallSignature,
) -> Expr:
    """The author's function, defined in the module if it stands `alone`, else here, where it closes over `operands`."""
    role = "one" if type(equation.callee) is Map else "function"
    own, authored = function_hint(body, role, equation)
    hint = identifier(signature.name or own, role)
    inside = _all_called(body)
    if alone:
        # Before what is in it takes that name, unless that is the very function.
        own_name = w.module.scope.fresh_function(f"{hint}_called" if inside == hint else hint)
        inner = w.module.writer()
        inner.names.update(zip(body.params[: signature.closed], operands, strict=False))
    else:
        packed = {p for a in arguments for p in a.places}
        closed = [(v, operands[i]) for i, v in enumerate(body.params) if i not in packed]
        own_name = w.scope.fresh_function(role if inside == hint else hint)
        scope = Scope(w.module.scope)
        scope.claim_parameter(own_name)
        for word in sorted({word for _, x in closed for word in _WORD.findall(x.flat())}):
            scope.claim_closed_over(word)
        inner = w.nested(scope)
        inner.names.update(closed)
    params: list[Parameter] = []
    types: list[tuple[str, Type]] = []
    leaves: list[tuple[Value, Leaf]] = []
    for argument in arguments:
        values = [body.params[p] for p in argument.places]
        inner.sized.extend(values)
        whole = is_leaf(argument.example)
        name = Name(inner.scope.fresh((whole and hint_of(values[0])) or argument.name))
        params.append(Parameter(name.id))
        if whole:
            inner.names[values[0]] = name
            types.append((name.id, array_type(values[0].aval)))
            continue
        found = reach(argument.example, name)
        leaves.extend(zip(values, found or [], strict=True))
        inner.trees.add(name, argument.example, values)
        inner.trees.arguments.update(values)
        types.append((name.id, tree_type(argument.example, [v.aval for v in values])))
    authors = names_in(body.jaxpr)
    named = {v: n for v, leaf in leaves if (n := authors.get((leaf.root.id, plain_way(leaf)))) is not None}

    def word(value: Value, leaf: Leaf) -> str:
        return named.get(value) or hint_of(value) or last_word(leaf)

    bind_leaves(inner, leaves, body.equations, body.results, word, frozenset(named))
    inner.equations(body.equations, body.results)
    results = [inner.atom(r) for r in body.results]
    out = signature.out
    value = returned(inner.statements, rebuilt(inner, out, results))
    result_type = tree_type(out, [r.aval for r in body.results])
    if not inner.statements and type(value) is Call and type(value.func) is str and not value.kwargs:
        if value.args and [a.flat() for a in value.args] == [p.name for p in params]:
            (w.module.scope if alone else w.scope).give_back(own_name)
            return Name(value.func)  # nothing but a call of it
    if alone:
        definition = Def("", params, [*inner.statements, Return(value)])
        return Name(
            placed(w.module, definition, hint, lambda d: w.module.described.describe(d, types, result_type), own_name)
        )
    is_named = authored and not signature.name and inside != hint
    definition = Def(own_name, params, [*inner.statements, BareReturn(value)], is_named=is_named)
    text = _body_text(definition)
    around, between = w, []
    while around is not None:  # a name means one thing, here and around here
        for known in around.statements:
            if type(known) is Def and _body_text(known) == text:
                for writer in between:  # which may not call a function of its own by that name
                    writer.scope.claim_closed_over(known.name)
                return Name(known.name)
        between.append(around)
        around = around.outer
    put_definition(w.statements, definition)
    return Name(own_name)


def _all_called(body: Function) -> str:
    """The name of the function that is all that a function calls, with what it is given."""
    called = body.equations[0] if len(body.equations) == 1 else None
    if called is None:
        return ""
    functions = [called.callee.body] if type(called.callee) is Local else functions_called(called)
    if not functions:
        return ""
    same = set(called.inputs) <= set(body.params) and list(called.outputs) == list(body.results)
    return identifier(functions[0].name, "fn") if same else ""


def _body_text(definition: Def) -> str:
    """A definition without its name."""
    return "\n".join(definition.lines("")).partition("(")[2]


def given_to(w: Writer, argument: Argument, operands: Sequence[Expr]) -> Expr:
    """The operand for an argument: the tree with these leaves, or one that is put together here."""
    if is_leaf(argument.example):
        return operands[0]
    return rebuilt(w, argument.example, operands)


def passed(
    w: Writer, operands: Sequence[Expr], arguments: Sequence[Argument], signature: CallSignature
) -> tuple[list[Expr], list[tuple[str, Expr]]]:
    """What a function is called with, by place and by name: also those arguments that have no leaves."""
    names = [*range(len(signature.args[0])), *sorted(signature.args[1])]
    found = {a.key: given_to(w, a, [operands[p] for p in a.places]) for a in arguments}
    args = [found[key] if key in found else rebuilt(w, signature.args[0][key], []) for key in names if type(key) is int]
    return args, [(key, found[key]) for key in names if type(key) is str and key in found]


def bind_result(
    w: Writer,
    equation: Equation,
    call: Expr,
    out: PyTree,
    outputs: Sequence[Value | None],
    words: Mapping[Path, str] = MappingProxyType({}),
    part: tuple[int, ...] = (),
    inside: tuple[int, ...] = (),
    moved: Mapping[int | str, int] = MappingProxyType({}),
) -> None:
    """Binds what comes back, of which there is a tree `out`: a name for each array, and for each tree in a tuple.

    words: names for what the author has none for, by path. part: where `out` is in what the author's call gives; inside: where
    that is in `out`. moved: where in `out` a part of what the author's call gives is, by its place there.
    """
    if is_leaf(out) and len(equation.outputs) == 1:
        w._statement(equation, call, base=words.get(()))
        return
    outputs = [o if o is None or w.is_read(o) else None for o in outputs]
    own = [t for t in targets(w.module.provenance.site(equation.origin)) if t.strong and not t.library]
    found = [t for t in own if t.path[: len(part)] == part]
    paths = [t.path[len(part) :] for t in found]
    paths = [(moved.get(p[0], p[0]), *p[1:]) if moved and p else p for p in paths]
    names = {(*inside, *p): clean(t.name) for p, t in zip(paths, found, strict=True)}
    rest = iter(outputs)
    if type(out) is tuple and (not names or () not in names):
        bound = [_bound(w, o, (i,), rest, names, words) for i, o in enumerate(out)]
        only = only_item(w, equation, bound, outputs, call)
        make = Unpack if len(out) == 1 else Unpacked if only is None else Assign
        w.statements.append(make(*only or (bound, call), equation.origin))
        return
    w.statements.append(Unpacked([_bound(w, out, (), rest, names, words)], call, equation.origin))


def only_item(
    w: Writer, equation: Equation, bound: Sequence[str | Tuple], outputs: Sequence[Value | None], call: Expr
) -> tuple[list[str], Expr] | None:
    """The only one of several results that is read, and which that is of what a call gives: `jnp.linalg.slogdet(x)[1]`. None
    where there are more, where its author has names for them (`_, logdet = ...`), where the call has several lines, and for the
    pullback of `jax.vjp`."""
    only, *others = [t for t in bound if t not in ("_", "*_")] or [""]
    if not w.module.idiomatic or len(bound) < 2 or others or not isinstance(only, str):
        return None
    if len(call.flat()) > _LONGEST_WITH_ITEM:
        return None
    names = [(o, n) for o in outputs if o is not None and type(n := w.names.get(o)) is Name and n.id == only]
    if len(names) != 1 or type(names[0][0].aval) is PullbackType or names[0][1].symbol.author is not None:
        return None
    own = targets(w.module.provenance.site(equation.origin)) if equation.origin is not None else ()
    if any(t.strong and not t.library and t.path for t in own):
        return None
    return [only], Subscript(call, Text(str(bound.index(only))))


def _bound(
    w: Writer,
    part: PyTree,
    path: Path,
    outputs: Iterator[Value | None],
    names: Mapping[Path, str],
    words: Mapping[Path, str],
) -> str | Tuple:
    """The target of a part of what a call gives."""
    inside = any(len(p) > len(path) and p[: len(path)] == path for p in (*names, *words))
    if type(part) is tuple and len(part) > 1 and path and path not in names and inside:
        inner = [_bound(w, p, (*path, i), outputs, names, words) for i, p in enumerate(part)]
        return Tuple([Name(t) if isinstance(t, str) else t for t in inner])
    word = names.get(path) or words.get(path, "out")
    if is_leaf(part):
        value = next(outputs)
        if value is None:
            return "_"
        name = w._target(value, word)
        if path in names and not value.named:  # the author's, which the call of a derivative alone shows
            w.names[value] = Name(name, Symbol(author=word, value=value))
        return name
    values = [next(outputs) for _ in jax.tree.leaves(part)]
    if not any(v is not None for v in values):
        return "_"
    base = identifier(word, "out")
    root = Name(w.scope.fresh(base), Symbol(author=base if path in names else None))
    for value, leaf in zip(values, reach(part, root) or [], strict=True):
        if value is not None:
            w.names[value] = leaf
    w.trees.add(root, part, values)
    return root.id


def is_leaf(example: PyTree) -> bool:
    return jax.tree_util.all_leaves([example])
