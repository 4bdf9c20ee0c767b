"""A helper for a long call of an operation that a module makes again and again with the same settings.

    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def conv(lhs, rhs, window_strides=(1, 1)):
        return lax.conv_general_dilated(lhs, rhs, window_strides, "SAME", dimension_numbers=...)

    y = conv(x, w)

What is the same in all of them stands in the helper; what is not is an argument, with its most frequent value as default.
Where more than two things are not, or all that is the same are keyword arguments, the helper only fixes those:
`functools.partial(lax.conv_general_dilated, dimension_numbers=...)`.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from untrace import jax_compat
from untrace._identifiers import identifier
from untrace.module.writer import ModuleWriter
from untrace.python.statements import Assign, Def, Lines, Parameter, Return, Statement
from untrace.python.tree import Call, Expr, Lambda, Leaf, Name, Star, Text
from untrace.python.walk import Node, nodes_of

_TOKEN = re.compile(r"\w+|[^\w\s]")
_LEAST_SAVED = 20  # tokens, below which a helper is one more thing to look up
_MOST_VARIED = 2
_LONGEST_DEFAULT = 30
# Settings that say what a call means: calls that differ in them are calls of different things.
_MEANING = frozenset({"dimension_numbers", "mode"})
# Names of helpers, of which the first is taken that the module does not use for something else.
_NAMES = {
    "conv_general_dilated": ("conv", "convolve", "convolution"), "dot_general": ("dot", "contract"),
    "gather": ("take", "gather"), "scatter_add": ("add_at", "scatter_add"),
    "linalg.triangular_solve": ("solve_triangular",),
}  # fmt: skip
_WITH_FUNCTIONS = frozenset({"scan", "map", "cond", "switch", "while_loop", "fori_loop", "custom_root", "reduce"})


def share_calls(module: ModuleWriter, others: Sequence[Statement]) -> None:
    """Gives `module` helpers for its long repeated calls. others: its definitions that are not in its list."""
    if not module.operations or module.operations not in module.modules:
        return
    groups: dict[_Key, list[Call]] = {}
    backward: set[Node] = set()  # what stands in statements that compute cotangents
    seen: set[Call] = set()
    for statement in [*module.definitions, *others]:
        for node in nodes_of(statement):
            if type(node) is Assign and all(type(t) is str and t.startswith("d_") for t in node.targets):
                backward.update(nodes_of(node.value))
            if type(node) is Call and node not in seen:
                seen.add(node)
                key = _key(node, module.operations)
                if key is not None:
                    groups.setdefault(key, []).append(node)
    helpers: list[Statement] = []
    for key, calls in groups.items():
        suffix = "_bwd" if all(c in backward for c in calls) else ""
        helper = _helper(module, key[0], suffix, calls) if len(calls) > 2 else None
        if helper is not None:
            helpers.append(helper)
    if helpers:
        _name_functions([*module.definitions, *others], {h.name for h in helpers if type(h) is Def})
    # Those that are no functions first, as constants are.
    plain: list[Statement] = [h for h in helpers if type(h) is not Def]
    module.definitions[:0] = [
        *([Lines("\n" if module.helpers else "")] if plain else []),
        *plain,
        *[h for h in helpers if type(h) is Def],
    ]


def _name_functions(statements: Sequence[Statement], labels: set[str]) -> None:
    """`jax.vjp(conv, x, w)` for `jax.vjp(lambda x, y: conv(x, y), x, w)`, where `conv` is one of the helpers."""
    for statement in statements:
        for node in nodes_of(statement):
            if type(node) is Call:
                node.args = [_named_function(a, labels) for a in node.args]


def _named_function(expr: Expr, labels: set[str]) -> Expr:
    call = expr.body if type(expr) is Lambda else None
    if (
        type(expr) is not Lambda
        or type(call) is not Call
        or type(call.func) is not str
        or call.func not in labels
        or call.kwargs
    ):
        return expr
    same = [a.id for a in call.args if type(a) is Name] == list(expr.params) and len(call.args) == len(expr.params)
    return Text(call.func) if same else expr


# Its name, which arguments hold no variable, and those that say what it does.
_Key = tuple[str, tuple[bool, ...], tuple[tuple[str, str], ...]]


def _key(call: Call, operations: str) -> _Key | None:
    """Equal for calls that may share a helper; None for what is no long call of one of a target's `operations`."""
    if type(call.func) is not str or not call.func.startswith(f"{operations}."):
        return None
    name = call.func.removeprefix(f"{operations}.")
    words, _ = _parameters(call.func)
    if name in _WITH_FUNCTIONS or any(type(a) is Star for a in call.args) or any(k == "**" for k, _ in call.kwargs):
        return None
    args = tuple([_is_setting(a) for a in call.args])
    if all(args) or not all(_is_setting(v) for _, v in call.kwargs):
        return None
    given = [*zip(words, call.args, strict=False), *call.kwargs]
    return name, args, tuple([(k, v.flat()) for k, v in given if k in _MEANING])


def _is_setting(expr: Expr) -> bool:
    """Whether an argument holds no variable."""
    return not any(isinstance(node, (Name, Leaf)) for node in nodes_of(expr))


def _helper(module: ModuleWriter, name: str, suffix: str, calls: Sequence[Call]) -> Statement | None:
    """The definition, with the calls changed into calls of it; None where it would not make the module shorter."""
    count = len(calls[0].args)
    words, defaults = _parameters(f"{module.operations}.{name}")
    named = list(dict.fromkeys(k for c in calls for k, _ in c.kwargs))
    if len(words) < count:
        return None
    given = [{**dict(zip(words, c.args, strict=False)), **dict(c.kwargs)} for c in calls]
    for arguments in given:
        for word in named:
            if word not in arguments:
                if word not in defaults:
                    return None
                arguments[word] = defaults[word]
    places = [*words[:count], *named]
    settings = [p for p in places if _is_setting(given[0][p])]
    texts = {p: [g[p].flat() for g in given] for p in settings}
    varied = [p for p in settings if len(set(texts[p])) > 1]
    usual = {p: Counter(texts[p]).most_common(1)[0][0] for p in varied}
    labels = [identifier(n + suffix, "call") for n in _NAMES.get(name, (name.rpartition(".")[2],))]
    label = next((n for n in labels if not module.scope.taken(n)), labels[0])
    if len(varied) > _MOST_VARIED or not any(p in settings for p in words[:count]):
        return _partial(module, name, label, calls, named, defaults)
    saved = 0
    for turn in range(1, len(calls)):
        saved += sum(len(_TOKEN.findall(texts[p][turn])) + 1 for p in settings if texts[p][turn] == texts[p][0])
        saved -= sum(2 for p in varied if texts[p][turn] != usual[p])
    if saved < _LEAST_SAVED + 3 * len(places) or any(len(u) > _LONGEST_DEFAULT for u in usual.values()):
        return None
    label = module.scope.fresh(label)
    params = [Parameter(p) for p in places if p not in settings]
    params += [Parameter(p, next(g[p] for g in given if g[p].flat() == usual[p])) for p in varied]
    free = {p.name for p in params}
    whole: list[Expr] = [Name(p) if p in free else given[0][p] for p in places]
    value = Call(calls[0].func, whole[:count], list(zip(named, whole[count:], strict=True)))
    for call, arguments in zip(calls, given, strict=True):
        call.func = label
        call.args = [arguments[p] for p in places if p not in settings]
        call.kwargs = [(p, arguments[p]) for p in varied if arguments[p].flat() != usual[p]]
    return Def(label, params, [Return(value)])


def _partial(
    module: ModuleWriter,
    name: str,
    label: str,
    calls: Sequence[Call],
    named: Sequence[str],
    defaults: Mapping[str, Expr],
) -> Statement | None:
    """`conv = functools.partial(lax.conv_general_dilated, ...)` with the usual keyword arguments, where that is shorter."""
    kwargs = [dict(c.kwargs) for c in calls]
    baked: dict[str, Expr] = {}
    saved = 0
    for word in named:
        texts = [(k[word] if word in k else defaults[word]).flat() for k in kwargs]
        usual = Counter(texts).most_common(1)[0][0]
        if word in defaults and usual == defaults[word].flat():
            continue
        cost = len(_TOKEN.findall(usual)) + 3
        gain = sum(cost if text == usual else 0 if word in k else -4 for text, k in zip(texts, kwargs, strict=True))
        if gain > cost:
            saved += gain - cost
            baked[word] = next(k[word] for k in kwargs if word in k and k[word].flat() == usual)
    if saved < _LEAST_SAVED:
        return None
    label = module.scope.fresh(label)
    module.modules.add("functools")
    for call, own in zip(calls, kwargs, strict=True):
        call.func = label
        rest = {k: v for k, v in own.items() if k not in baked or v.flat() != baked[k].flat()}
        rest.update((k, defaults[k]) for k in baked if k not in own)
        call.kwargs = list(rest.items())
    return Assign([label], Call("functools.partial", [Text(f"{module.operations}.{name}")], list(baked.items())))


@functools.cache
def _parameters(path: str) -> tuple[list[str], dict[str, Expr]]:
    """The parameters of a public function that may be passed by place, and the defaults that are simple."""
    found = jax_compat.signature_of(path).values()
    plain = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return plain, {p.name: Text(repr(p.default)) for p in found if type(p.default) in (bool, int, type(None))}
