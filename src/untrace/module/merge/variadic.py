"""Functions of any number of arguments, where the author's are.

    def dense(params, nodes, edges):                                 def dense(params, *inputs):
        return jnp.concatenate([nodes, edges]) @ params["w"]     ->      return jnp.concatenate(inputs) @ params["w"]

The last parameters, if all that is done with them is to stand in one list. Functions that say the same with other numbers
of arguments are then equal (`equal`), whatever they are called.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from untrace import jax_compat
from untrace.module.def_use import bound_names, scope_of
from untrace.module.merge.alpha_equivalent import say_the_same
from untrace.module.writer import ModuleWriter
from untrace.python.statements import Def, Parameter
from untrace.python.tree import Call, Expr, List, Name, Tuple
from untrace.python.types import Type
from untrace.python.walk import nodes_of, rebuilt


@dataclass(slots=True)
class _Group:
    """Functions that say the same, `form`, once their last arguments are one. `members`: each with how many those are, and
    the list that they stand in. `word`: the author's for them."""

    form: Def
    members: list[tuple[Def, int, Expr]] = field(default_factory=list)
    word: str = ""


def spread_arguments(module: ModuleWriter) -> None:
    """Gives functions of `module` such a parameter: those whose author did, and those that then say the same as one."""
    if not module.variadic:
        return
    groups: list[_Group] = []
    for definition in module.local_definitions.values():
        found = _last_in_list(definition, module.namespace)
        if found is None:
            continue
        word = module.variadic.get(definition.name)
        made = _spread(definition, *found, scope_of(definition, module.scope).fresh(word or "args"))
        group = next((g for g in groups if say_the_same([g.form], [made])), None)
        if group is None:
            group = _Group(made)
            groups.append(group)
        group.members.append((definition, *found))
        group.word = group.word or word or ""
    for group in groups:
        for definition, count, listed in group.members if group.word else ():
            kept, spread = definition.params[:-count], definition.params[-count:]
            name = scope_of(definition, module.scope).fresh(group.word)
            made = _spread(definition, count, listed, name)
            definition.params, definition.body = made.params, made.body
            types = dict(module.described.types_of(definition) or ())
            kind: Type | None = types.get(spread[0].name)
            for parameter in spread[1:]:
                kind = kind and parameter.name in types and kind.merged(types[parameter.name]) or None
            told = [(p.name, types[p.name]) for p in kept if p.name in types]
            module.described.retold(definition, [*told, (f"*{name}", kind or Type("array", "arrays"))])


def _spread(definition: Def, count: int, listed: Expr, name: str) -> Def:
    """A function whose last parameters are `*name`, which is read where they stand in one list."""

    def change(node: object) -> object:
        return Name(name) if node is listed else rebuilt(node, change)

    params = [*definition.params[:-count], Parameter(name, kind="*")]
    return Def(definition.name, params, [rebuilt(s, change) for s in definition.body])


def _last_in_list(definition: Def, namespace: str) -> tuple[int, Expr] | None:
    """(how many of the last parameters, the only list that they are read in): an argument of a public function on arrays whose
    parameters are known."""
    if definition.decorators or any(p.kind != "plain" or p.default is not None for p in definition.params):
        return None
    names = [p.name for p in definition.params]
    body = [node for statement in definition.body for node in nodes_of(statement)]
    uses = Counter(n.id for n in body if type(n) is Name)
    bound = Counter(bound_names(definition))
    for call in body:
        if type(call) is not Call or type(call.func) is not str or not call.func.startswith(f"{namespace}."):
            continue
        if not jax_compat.signature_of(call.func):
            continue
        for listed in call.args:
            if type(listed) is not List and type(listed) is not Tuple:
                continue
            own = [e.id for e in listed.elements if type(e) is Name]
            count = len(listed.elements)
            once = all(uses[n] == bound[n] == 1 for n in own)
            if 1 < count == len(own) < len(names) and own == names[-count:] and once:
                return count, listed
    return None
