"""Functions of any number of arguments, where the author's are.

    def dense(params, nodes, edges):                                 def dense(params, *inputs):
        return jnp.concatenate([nodes, edges]) @ params["w"]     ->      return jnp.concatenate(inputs) @ params["w"]

The last parameters, if all that is done with them is to stand in one list. Functions that say the same with other numbers
of arguments are then equal (`equal`), whatever they are called.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from untrace.print.jax.alike import bound_names, is_node, nodes_of, parts_of, slots_of
from untrace.print.jax.equal import form_of
from untrace.print.jax.types import Type
from untrace.print.names import Scope
from untrace.print.tree import Call, Def, Expr, List, Name, Parameter, Tuple


def spread_arguments(module: Any) -> None:
    """Gives functions of `module` such a parameter: those whose author did, and those that then say the same as one."""
    if not module.variadic:
        return
    groups: dict[Any, list[tuple[Def, list[Parameter], Expr, Expr]]] = {}
    words: dict[Any, str] = {}
    for definition in module.local_definitions.values():
        found = _last_in_list(definition)
        if found is None:
            continue
        count, listed = found
        word = module.variadic.get(definition.name)
        name = Name(_fresh(module, definition, word or "args"))
        old, new = definition.params, [*definition.params[:-count], Parameter(name.id, kind="*")]
        definition.params = new
        _exchanged(definition.body, listed, name)
        form = form_of(definition)
        definition.params = old
        _exchanged(definition.body, name, listed)
        groups.setdefault(form, []).append((definition, new, listed, name))
        if word is not None:
            words.setdefault(form, word)
    for form, word in words.items():
        for definition, params, listed, name in groups[form]:
            spread = definition.params[len(params) - 1 :]
            params[-1].name = name.id = _fresh(module, definition, word)
            _exchanged(definition.body, listed, name)
            types = dict(module.described.types_of(definition) or ())
            kind: Type | None = types.get(spread[0].name)
            for parameter in spread[1:]:
                kind = kind and parameter.name in types and kind.merged(types[parameter.name]) or None
            definition.params = params
            told = [(p.name, types[p.name]) for p in params[:-1] if p.name in types]
            module.described.retold(definition, [*told, (f"*{name.id}", kind or Type("array", "arrays"))])


def _fresh(module: Any, definition: Def, word: str) -> str:
    scope = Scope(module.scope)
    for name in {*bound_names(definition), *(n.id for n in nodes_of(definition) if type(n) is Name)}:
        scope.claim_parameter(name)
    return scope.fresh(word)


def _last_in_list(definition: Def) -> tuple[int, Expr] | None:
    """(how many of the last parameters, the only list that they are read in): an argument of a function of `jnp`."""
    if definition.decorators or any(p.kind != "plain" or p.default is not None for p in definition.params):
        return None
    names = [p.name for p in definition.params]
    body = [node for statement in definition.body for node in nodes_of(statement)]
    uses = Counter(n.id for n in body if type(n) is Name)
    bound = Counter(bound_names(definition))
    for call in body:
        if type(call) is not Call or type(call.func) is not str or not call.func.startswith("jnp."):
            continue
        for listed in call.args:
            if type(listed) not in (List, Tuple):
                continue
            own = [e.id for e in listed.elements if type(e) is Name]  # type: ignore[attr-defined]
            count = len(listed.elements)  # type: ignore[attr-defined]
            once = all(uses[n] == bound[n] == 1 for n in own)
            if 1 < count == len(own) < len(names) and own == names[-count:] and once:
                return count, listed
    return None


def _exchanged(value: Any, old: Expr, new: Expr) -> Any:
    """`value` with `new` in the place of `old`."""
    if value is old:
        return new
    if is_node(value):
        for slot, part in zip(slots_of(value), parts_of(value), strict=True):
            made = _exchanged(part, old, new)
            if made is not part:
                setattr(value, slot, made)
        return value
    if type(value) in (list, tuple):
        items = [_exchanged(item, old, new) for item in value]
        if any(a is not b for a, b in zip(items, value, strict=True)):
            return type(value)(items)
    return value
