"""The entry function: the user's signature, its pytrees unpacked into leaves, the program, the result rebuilt."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import jax

from untrace import jax_compat
from untrace._identifiers import identifier
from untrace.capture.fixed_parts import Around
from untrace.capture.function import Captured
from untrace.ir.nodes import Atom, Function, Local, Program, Value, functions_called
from untrace.ir.types import PyTree
from untrace.lift.naming.unpacked import unpacked_names
from untrace.module.access_paths import last_word, plain_way, reach, reach_nodes
from untrace.module.def_use import bound_names
from untrace.module.docstrings import WORDS, author_dims
from untrace.module.grouping.bound_leaves import bind_leaves
from untrace.module.interface.checks import RefuseOthers
from untrace.module.interface.guard import guard_of
from untrace.module.interface.put_together import Rebuilt, rebuild
from untrace.module.interface.python_numbers import needs_array
from untrace.module.interface.signature import Argument, Setting, Signature, signature_parameters, unpack_arguments
from untrace.module.known_trees import KnownTrees
from untrace.module.writer import FunctionWriter, ModuleWriter
from untrace.python.pytrees import string
from untrace.python.statements import Assign, Def, Parameter, Return, Statement, Unpack, Unpacked, returned
from untrace.python.tree import Call, Expr, Lambda, Leaf, Name, Text, Tuple
from untrace.python.types import Type, array_type, tree_type
from untrace.python.walk import nodes_of, rebuilt


@dataclass(frozen=True, slots=True)
class PytreeEntry:
    """An entry with the signature of a Python function; `result` is its output with ShapeDtypeStruct leaves. `around`: what
    takes other things than arrays out of its arguments."""

    signature: Signature
    result: PyTree
    around: Around | None = None

    def examples(self) -> list[PyTree]:
        """The arguments, whose leaves are the inputs of the program."""
        return [a.example for a in self.signature.arguments]


@dataclass(frozen=True, slots=True)
class FlatEntry:
    """An entry that takes and returns flat arrays (of a jaxpr that came alone)."""


def entry_of(
    function: Callable[..., object],
    captured: Captured,
    args: Sequence[object],
    kwargs: dict[str, object],
    static_argnums: Container[int],
    static_argnames: Container[str],
) -> PytreeEntry:
    """How `function(*args, **kwargs)` is written as an entry."""
    signature = signature_parameters(function, args, kwargs, static_argnums, static_argnames)
    return PytreeEntry(signature, captured.out_example, captured.around)


def write_entry(module: ModuleWriter, program: Program) -> tuple[str, list[Statement]]:
    """(name of the entry, the definitions that make it)."""
    name = module.scope.fresh(identifier(program.entry.name, "decompiled"))
    if isinstance(program.signature, FlatEntry):
        return name, [_flat(module, program.entry, name)]
    return name, _with_pytrees(module, program, name, program.signature)


def _flat(module: ModuleWriter, function: Function, name: str) -> Def:
    """Like `ModuleWriter.define`, but with a tuple of results always: the caller knows how many there are."""
    w = module.writer()
    params = [Parameter(w.bind_parameter(p).id) for p in function.params]
    w.equations(function.equations, function.results)
    w.statements.append(Return(Tuple([_array(w, r) for r in function.results])))
    results = [array_type(r.aval) for r in function.results]
    arguments = [(p.name, array_type(v.aval)) for p, v in zip(params, function.params, strict=True)]
    result = Type("tuple", parts=tuple(("", r) for r in results))
    if module.guarded is not None:
        given = [Argument(Name(p.name), v.aval, (p.name,)) for p, v in zip(params, function.params, strict=True)]
        avals = [v.aval for v in function.params]
        module.guard = guard_of(module, {p.name: "plain" for p in params}, given, avals)
    return module.described.describe(Def(name, params, w.statements, module.entry_decorators), arguments, result)


def _array(w: FunctionWriter, result: Atom) -> Expr:
    """A result as a JAX array, also where it is a constant: without `jax.jit` it would be a Python or NumPy number."""
    if type(result) is Value or not jax_compat.is_shaped_array(result.aval) or result.aval.dtype == jax_compat.FLOAT0:
        return w.atom(result)
    return w.atom(result) if jax_compat.is_key(getattr(result, "value", None)) else w.array(w.atom(result))


def _with_pytrees(module: ModuleWriter, program: Program, name: str, entry: PytreeEntry) -> list[Statement]:
    signature, function = entry.signature, program.entry
    w = module.writer()
    module.described.hidden = any(p.name in WORDS for p in signature.parameters)
    for parameter in signature.parameters:
        w.scope.claim_parameter(parameter.name)
    module.modules.update(signature.modules)
    for check in signature.checks:
        if type(check) is RefuseOthers:
            check.choose(w.scope.fresh)
    w.statements.extend(signature.checks)
    if module.idiomatic:
        for called in _functions_called(function):
            module.scope.keep(identifier(called.name, "fn"))
        _bind_arguments(w, signature.arguments, function, unpacked_names(program))
    else:
        statements, leaves = unpack_arguments(signature.arguments, _fresh(w), module.tree_calls, _used_inputs(function))
        w.statements.extend(statements)
        w.names.update(zip(function.params, leaves, strict=True))
    if w.sizes is not None:
        w.sized.extend(function.params)
        w.sizes.names = {**w.sizes.names, **function.facts.size_names}
    if module.idiomatic:
        module.entry, w.result_example = function, entry.result
    w.equations(function.equations, function.results)
    result = _result(module, w, entry, program)
    w.statements.extend(result.statements)
    w.statements.append(Return(_returned(module, w.statements, result.value)))
    module.definitions.extend(result.definitions)
    module.imports.update(result.imports)
    module.modules.update(result.modules)
    for needed in result.helpers:
        module.helper(needed)
    module.notes.extend([*signature.notes, *result.notes])
    if module.guarded is not None:
        kinds = {p.name: p.kind for p in signature.parameters}
        avals = [p.aval for p in function.params]
        module.guard = guard_of(module, kinds, signature.arguments, avals, program.idle)
    forwarder = None
    inner = name
    if signature.public:
        inner = module.scope.fresh(f"_{name}")
        forwarder = signature.forwarder(name, inner)

    words = _of_parameters(module, w.statements, signature)

    def in_words(node: object) -> object:
        if type(node) is Name:
            return words.get(node.id, node)
        named = module.number_of(node.name, node.value) if type(node) is Setting else None
        return rebuilt(node, in_words) if named is None or named.id in words else named

    w.statements[:] = [rebuilt(statement, in_words) for statement in w.statements]
    parameters = [replace(rebuilt(p, in_words)) for p in signature.parameters]
    definition = Def(inner, parameters, w.statements, [*module.entry_decorators, *_beside(module, entry)])
    is_plain = module.idiomatic and forwarder is None and entry.around is None
    whole = _only_called(module, definition) if is_plain else None
    if whole is not None:
        definition = whole
    if whole is None or not whole.docstring:
        _describe(module, definition, entry, program)
    if forwarder is not None:
        for own, outer in zip(definition.params, forwarder.params, strict=True):
            outer.annotation = own.annotation
        forwarder.returns = definition.returns
    return [definition] if forwarder is None else [definition, forwarder]


def _functions_called(entry: Function) -> Iterator[Function]:
    """The functions of the module that the entry calls, itself or in its loops and the like."""
    stack, seen = [entry], {entry}
    while stack:
        for equation in stack.pop().equations:
            if type(equation.callee) is Local:
                yield equation.callee.body
            elif equation.may_hold_functions:
                new = [f for f in functions_called(equation) if f not in seen]
                seen.update(new)
                stack += new


def _beside(module: ModuleWriter, entry: PytreeEntry) -> Iterator[Expr]:
    """The decorator of an entry whose arguments hold more than arrays."""
    if entry.around is not None:
        module.helper("_beside")
        around = entry.around
        back = Text(ascii(around.back))  # keys are strings and numbers
        options = [("back", back)] * bool(around.back) + [("numbers", Text("True"))] * around.numbers
        yield Call("_beside", [string(word) for word in around.words], options)


def _of_parameters(module: ModuleWriter, statements: Sequence[Statement], signature: Signature) -> Mapping[str, Name]:
    """The parameters that numbers are, by the module's names for these, where no other function has them."""
    elsewhere = {n.id for n in nodes_of([module.definitions, module.constants]) if type(n) is Name}
    inside = list(nodes_of(list(statements)))
    bound = {name for n in inside if isinstance(n, Statement) for name in bound_names(n)}
    bound.update(p.name for n in inside if type(n) is Def for p in n.params)
    bound.update(p for n in inside if type(n) is Lambda for p in n.params)
    settings = {n.name: n.value for n in nodes_of(list(signature.checks)) if type(n) is Setting}
    found: dict[str, Name] = {}
    for name in {p.name for p in signature.parameters}.difference(bound) & settings.keys():
        number = module.number_of(name, settings[name])
        if number is not None and number.id not in elsewhere:
            found[number.id] = Name(name)
    return found


def _returned(module: ModuleWriter, statements: list[Statement], value: Expr) -> Expr:
    """What to return instead of `value`: the call that the last statement gave the names for, also of a jitted function of the
    module, which gives a tuple."""
    last = statements[-1] if statements else None
    if type(last) is Unpack and len(last.targets) > 1 and type(last.value) is Call:
        called = last.value.func
        if any(type(d) is Def and d.name == called and d.decorators for d in module.definitions):
            tried: list[Statement] = [Unpacked(last.targets, last.value, last.origin)]
            found = returned(tried, value, keeps_names=True)
            if not tried:
                statements.pop()
            return found
    return returned(statements, value, keeps_names=True)


def _only_called(module: ModuleWriter, entry: Def) -> Def | None:
    """The jitted function that is all that the entry calls, with its own arguments: it takes the entry's place."""
    if (
        len(entry.body) != 1
        or type(entry.body[0]) is not Return
        or any(p.kind != "plain" or p.default is not None for p in entry.params)
    ):
        return None
    call = entry.body[0].value
    names = [p.name for p in entry.params]
    if type(call) is not Call or call.kwargs or [a.flat() for a in call.args] != names:
        return None
    found = [d for d in module.definitions if type(d) is Def and d.name == call.func and d.decorators]
    if len(found) != 1 or [p.name for p in found[0].params] != names:
        return None
    word = re.compile(rf"\b{re.escape(found[0].name)}\b")
    if any(word.search(line) for d in module.definitions if d is not found[0] for line in d.lines("")):
        return None
    module.definitions.remove(found[0])
    found[0].name = entry.name
    return found[0]


def _describe(module: ModuleWriter, definition: Def, entry: PytreeEntry, program: Program) -> None:
    """The types of the arguments and of the result, under the author's names for them."""
    arguments: list[tuple[str, Type]] = []
    dims: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, set[int]] = {}
    rest = iter(program.entry.params)
    for argument in entry.signature.arguments:
        values = [next(rest) for _ in jax.tree.leaves(argument.example)]
        names = [v.hint if v.hint and not v.hint[-1].isdigit() else "" for v in values]
        kind = tree_type(argument.example, [v.aval for v in values], names)
        name = argument.root.flat()
        arguments.append((name, kind))
        if kind.kind == "array":
            _add_dims(dims, sizes, name, entry.signature.annotations.get(name), kind)
    result = tree_type(entry.result, [r.aval for r in program.entry.results])
    if result.kind == "array" and not program.facts.summary:
        _add_dims(dims, sizes, "", entry.signature.annotations.get("return"), result)
    if any(len(found) > 1 for found in sizes.values()):
        dims = {}  # one name for two sizes: the function was traced as something else than it says
    what = "the gradient" if program.facts.summary.startswith("Gradient") else ""
    module.described.describe(definition, arguments, result, what, dims)


def _add_dims(
    dims: dict[str, tuple[str, ...]], sizes: dict[str, set[int]], name: str, annotation: object, kind: Type
) -> None:
    shape = getattr(kind.aval, "shape", ())
    found = author_dims(annotation, shape)
    if found is not None:
        dims[name] = found
        for word, size in zip(found, shape, strict=True):
            sizes.setdefault(word, set()).add(size)


def _bind_arguments(
    w: FunctionWriter,
    arguments: Sequence[Argument],
    function: Function,
    authors: Mapping[tuple[str, tuple[tuple[str, Hashable], ...]], str],
) -> None:
    """The leaves of the arguments where they read best: see `grouping.bound_leaves`. `authors`: the author's names, see `unpacked`."""
    used = _used_inputs(function)
    known: list[tuple[Value, Leaf]] = []
    first = 0
    for argument in arguments:
        values = function.params[first : first + len(jax.tree.leaves(argument.example))]
        root = argument.root
        nodes = reach_nodes(argument.example) if type(root) is Name else None
        if type(root) is Name and nodes is not None:
            leaves = [Leaf(root, way) for way in (nodes[0][2] if nodes else [()])]
        else:
            leaves = None if type(root) is Name else reach(argument.example, root)
        if leaves is not None:
            known.extend(zip(values, leaves, strict=True))
            if type(root) is Name and nodes is not None:
                w.trees.add_nodes(root, nodes, values)
                w.trees.arguments.update(values)
                root.symbol.leaves = len(values)
        else:
            needed = frozenset(i - first for i in used)
            statements, expressions = unpack_arguments([argument], _fresh(w), w.module.tree_calls, needed)
            w.statements.extend(statements)
            w.names.update(zip(values, expressions, strict=True))
        first += len(values)
    named = {v: name for v, leaf in known if (name := authors.get((leaf.root.id, plain_way(leaf)))) is not None}

    def hint(value: Value, leaf: Leaf) -> str:
        return named.get(value) or value.hint or last_word(leaf)

    bind_leaves(w, known, function.equations, function.results, hint, frozenset(named))
    if w.module.guarded is not None:  # which makes arrays of numbers
        return
    examples = [x for argument in arguments for x in jax.tree.leaves(argument.example)]
    for i, example in enumerate(examples):
        if i in used and type(example) in (bool, int, float, complex):
            value = function.params[i]
            if type(example) is bool or not w.module.idiomatic or needs_array(function, value):
                _as_array(w, value)


def _as_array(w: FunctionWriter, value: Value) -> None:
    """Makes an array of a Python number: operators and methods would mean Python's own, where nothing is traced."""
    expr = w.names[value]
    array = w.array(expr)
    if type(expr) is Name:
        w.statements.append(Assign([expr.id], array))
    else:
        w.names[value] = array


def _fresh(w: FunctionWriter) -> Callable[[str], str]:
    return lambda base: w.scope.fresh(identifier(base, "x"))


def _used_inputs(function: Function) -> frozenset[int]:
    """Indices of the parameters that an equation or a result needs."""
    used: set[Atom] = set(function.results)
    for equation in function.equations:
        used.update([a for a in equation.inputs if type(a) is Value])
    return frozenset(i for i, p in enumerate(function.params) if p in used)


def _result(module: ModuleWriter, w: FunctionWriter, entry: PytreeEntry, program: Program) -> Rebuilt:
    leaves = [_array(w, r) for r in program.entry.results]
    inputs = [(a.root, a.example) for a in entry.signature.arguments]
    fresh = lambda base: module.scope.fresh(identifier(base, "Node"))  # noqa: E731
    trees = KnownTrees(w) if module.idiomatic else None
    has_jax = not module.describes_types
    return rebuild(
        entry.result, leaves, inputs, module.standalone, fresh, module.tree_calls, module.twins, trees, w.looked_up,
        has_jax=has_jax,
    )  # fmt: skip
