"""Program -> statements of a module. What is said here is every target's; a target's own writers derive from these.

One statement per equation. Functions that JAX keeps as jaxprs become module-level functions, each once; bodies of
loops that close over outer variables become nested functions. A primitive without a rule, or whose rule declines, is
written as a `bind` of the imported primitive object, which is always the same equation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from untrace._errors import UnsupportedPrimitiveError
from untrace._identifiers import identifier
from untrace.ir.nodes import (
    Atom,
    Cond,
    Constant,
    Equation,
    Function,
    Library,
    Literal,
    Local,
    OverLeaves,
    Scan,
    TreeMap,
    Value,
    While,
    functions_called,
)
from untrace.ir.nodes import Pack as TuplePack
from untrace.ir.nodes import Unpack as TupleUnpack
from untrace.ir.types import Aval, Origin, PyTree
from untrace.lift.naming.bases import base_of_results
from untrace.module import inlining, rules
from untrace.module.access_paths import Step
from untrace.module.call_arguments import only_item
from untrace.module.constants import Named
from untrace.module.grouping.result_trees import note_returned
from untrace.module.interface.writing import Contents
from untrace.module.known_trees import Structure, Trees
from untrace.module.library_calls import library_call, parts_of_all
from untrace.module.local_calls import write_calls
from untrace.module.loops.of_calls import Turns
from untrace.module.nested import BareReturn
from untrace.module.sizes import Sizes
from untrace.python.names import Scope
from untrace.python.statements import Assign, Def, Parameter, Return, Statement, Unpack, Unpacked
from untrace.python.tree import Attribute, Call, Expr, Name, Symbol, Tuple
from untrace.python.values import Unwritable


class ModuleWriter(Contents):
    """Writes the functions of one module.

    `rules`, `namespace`: the target's rules, and what its functions on arrays are in (`jnp`). `operations`: what its
    operations with many settings are in (`lax`), "" where there are none. `import_lines`: how its text imports what has
    another name there, beside what public paths begin with.
    """

    rules: rules.RuleTable
    namespace: str
    operations = ""
    import_lines: Mapping[str, str] = MappingProxyType({})

    def __init__(self, forced: frozenset[JaxprEqn] = frozenset(), standalone: bool = False, idiomatic: bool = False):
        super().__init__(forced, standalone, idiomatic)
        # Functions that close over variables: where each stands, its definition, those variables.
        self.closures: dict[Function, tuple[FunctionWriter, Def, Sequence[Expr]]] = {}
        self._functions: dict[Function, str] = {}
        self._by_body: dict[Hashable, str] = {}

    # ------------------------------------------------------------ what rules may ask for

    def function(self, function: Function, build: Callable[[str], Iterable[Statement]] | None = None) -> str:
        """The name of the module-level function for `function`, written now if it is not there yet.

        `build(name)` may give other statements than the plain definition (decorators, derivative rules).
        """
        found = self._functions.get(function)
        if found is None:
            name = self.scope.fresh_function(identifier(function.name, "fn"))
            self._functions[function] = name
            statements = list(build(name)) if build else [self.define(function, name)]
            self.definitions.extend(statements)
            self.units.append(statements)
            found = name
        return found

    def named(self, key: Hashable, hint: str, build: Callable[[str], Iterable[Statement]]) -> str:
        """Like `function`, for a definition that belongs to `key` (hashable) and not to one Function."""
        found = self._by_body.get(key)
        if found is None:
            name = self.scope.fresh_function(identifier(hint, "fn"))
            self._by_body[key] = name
            statements = list(build(name))
            self.definitions.extend(statements)
            self.units.append(statements)
            found = name
        return found

    def writer(self) -> FunctionWriter:
        """A writer for a module-level function."""
        return FunctionWriter(self, Scope(self.scope))

    def define(
        self,
        function: Function,
        name: str,
        decorators: Sequence[Expr] = (),
        fixed: Mapping[Value, Expr] = {},  # noqa: B006
    ) -> Def:
        """`def name(params): ...`, returning a tuple of the function's results (the bare result where it is one).

        `fixed`: parameters that are no arguments, for they always have this value of the module.
        """
        writer = self.writer()
        writer.names.update(fixed)
        params = [Parameter(writer.bind_parameter(p).id) for p in function.params if p not in fixed]
        writer.equations(function.equations, function.results)
        made = BareReturn if self.idiomatic else Return
        writer.statements.append(made(writer.results(function.results)))
        definition = Def(name, params, writer.statements, decorators)
        given = [p for p in function.params if p not in fixed]
        # A line or two say as much as their types would.
        return self.described.flat(definition, given, function.results, len(writer.statements) > 2)


class FunctionWriter:
    """Writes one function's body; this is the `w` that rules get. `equation` is the one being written."""

    def __init__(self, module: ModuleWriter, scope: Scope):
        self.module = module
        self.scope = scope
        self.names: dict[Value, Expr] = {}
        self.statements: list[Statement] = []
        self.equation: Any = None  # the one that is written
        self.offset = 0  # of the constants among a loop's operands, while a nested function is written
        self._body: Sequence[Equation] = ()
        self._makers: Mapping[Atom, Equation] = {}  # of values that the body makes
        self._at = 0
        self.retreating = False  # whether the rule's first form of this equation was proven to be another one
        self.outer: FunctionWriter | None = None  # of the function around this one
        self.looked_up: dict[object, Name] = {}  # classes of libraries that variables of this function hold
        self.packs: list[Name] = []  # of a local function: the parameters that are trees
        self.put_together: dict[Hashable, Name] = {}  # trees that were made for a call, and have a name since
        self.trees = Trees()  # the trees that can be named here
        self.result_example: PyTree = None  # of the entry: what it returns
        self.structures: dict[Equation, Structure] = {}  # those of the maps over trees
        # Inside the `tangent_solve` of a `custom_root`: the name of its `g`, leaves of the root, constants of `f`.
        self.root_map: tuple[str, int, int] | None = None
        self._reason = ""  # why the rule of the current equation could not write it
        self._results: Sequence[Atom] = ()
        self._last_reads: dict[Value, int] | None = None  # value -> place of the last equation that reads it
        self._last_taken: dict[
            Callable[[Equation], Iterable[Hashable]], dict[Hashable, int]
        ] = {}  # of trees, by who asks
        self._read: set[Atom] | None = None  # what equations and results need, once somebody asks
        self._folding: Container[Atom] = frozenset()
        self._waiting: Sequence[Equation] = ()  # in the author's order: equations whose expressions have no place yet
        self._made: dict[Value, Origin] = {}  # value that may be folded -> the jaxpr equation that computes it
        self.sized: list[Value] = []  # parameters, whose shapes tell sizes
        self.sizes = Sizes(self) if module.numbers.integers else None

    def inside(self, outer: FunctionWriter) -> FunctionWriter:
        """This writer, whose function can name what is in the function around it."""
        self.outer = outer
        self.trees.outer = outer.trees
        if self.sizes is not None:
            self.sizes.outer = outer.sizes
        return self

    def is_inside(self, other: FunctionWriter) -> bool:
        """Whether this function sees the variables of another one."""
        writer: FunctionWriter | None = self
        while writer is not None and writer is not other:
            writer = writer.outer
        return writer is not None

    def nested(self, scope: Scope | None = None) -> FunctionWriter:
        """A writer for a function inside this one, which sees this one's variables. scope: its own, where that is another one."""
        return type(self)(self.module, Scope(self.scope) if scope is None else scope).inside(self)

    def previous(self, atom: Atom) -> Equation | None:
        """The equation just before this one, where it computes `atom` and nothing else uses it."""
        before = self.before()
        if before is None or [*before.outputs] != [atom] or not self._just_written(before):
            return None
        uses = sum(a is atom for e in self._body[self._at :] for a in e.inputs)
        return before if uses == 1 and not any(a is atom for a in self._results) else None

    def before(self) -> Equation | None:
        """The equation just before this one."""
        return self._body[self._at - 1] if self._at else None

    def remaining(self) -> tuple[Sequence[Equation], Sequence[Atom]]:
        """The equations after the current one, and the results of this function."""
        return self._body[self._at + 1 :], self._results

    def is_read_later(self, value: Value) -> bool:
        """Whether an equation after the current one reads `value`, or it is a result."""
        if self._last_reads is None:
            self._last_reads = {a: i for i, e in enumerate(self._body) for a in e.inputs if type(a) is Value}
            self._last_reads.update((r, len(self._body)) for r in self._results if type(r) is Value)
        return self._last_reads.get(value, -1) > self._at

    def is_taken_later(self, key: Hashable, taken_by: Callable[[Equation], Iterable[Hashable]]) -> bool:
        """Whether an equation after the current one takes the tree that `key` stands for: `taken_by` gives its keys."""
        if taken_by not in self._last_taken:
            self._last_taken[taken_by] = {k: i for i, e in enumerate(self._body) for k in taken_by(e)}
        return self._last_taken[taken_by].get(key, -1) > self._at

    def is_live(self, output: Value | None) -> bool:
        """Whether a result or an effect of this function depends on `output`, of its current equation."""
        live = set(self._results)
        for equation in reversed(self._body[self._at + 1 :]):
            if equation.effects or any(o in live for o in equation.outputs):
                live.update(equation.inputs)
        return output in live

    def _just_written(self, equation: Equation) -> bool:
        return bool(self.statements) and self.statements[-1].origin is equation.origin

    # ------------------------------------------------------------ names and operands

    def bind_parameter(self, value: Value, hint: str | None = None) -> Name:
        base = value.hint if self.module.idiomatic and value.hint else hint or value.hint or "x"
        base = identifier(base, "x")
        name = self.names[value] = Name(self.scope.fresh(base), Symbol(author=base, value=value))
        self.sized.append(value)
        return name

    def atom(self, atom: Atom) -> Expr:
        if type(atom) is Value:
            return self.names[atom]
        if type(atom) is Literal:
            return self.literal(atom)
        return self.module.constant(atom)

    def literal(self, literal: Literal) -> Expr:
        value = literal.value
        if (
            self.sizes is not None
            and np.ndim(value) == 0
            and np.asarray(value).dtype.kind in "if"
            and np.isfinite(value)
        ):
            found = self.sizes.number(value.item() if isinstance(value, np.generic | np.ndarray) else value)
            if found is not None and literal.aval.weak_type:
                return found
            if found is not None:
                self.module.modules.add("np")
                return Call(f"np.{literal.aval.dtype.name}", [found])
        return self.module.literal(literal)

    def source(self, value: object) -> Expr:
        """A parameter's value as source. Raises Unwritable."""
        values = self.module.values
        values.sizes = self.sizes
        try:
            return values.source(value)
        finally:
            values.sizes = None

    def array_call(self, name: str, *args: object, **kwargs: object) -> Call:
        """A call of a function on arrays of the target; arguments that are not expressions are written as values."""
        self.module.modules.add(self.module.namespace)
        return self._call(f"{self.module.namespace}.{name}", args, kwargs)

    def call(self, path: str, *args: object, **kwargs: object) -> Call:
        """A call of one of our helper routines or of a function of the module, by its plain name."""
        return self._call(path, args, kwargs)

    def _call(self, path: str, args: Sequence[object], kwargs: dict[str, object]) -> Call:
        source = self.source
        positional = [a if isinstance(a, Expr) else source(a) for a in args]
        named = [(k, v if isinstance(v, Expr) else source(v)) for k, v in kwargs.items()]
        return Call(path, positional, named)

    def importing(self, statement: str) -> None:
        """Adds an import line of our own (fixed text, never from outside)."""
        self.module.imports.add(statement)

    @property
    def avals(self) -> list[Aval]:
        return [a.aval for a in self.equation.inputs]

    @property
    def out_avals(self) -> list[Aval]:
        return [v.aval for v in self.equation.origin.outvars]

    def results(self, atoms: Sequence[Atom]) -> Expr:
        """What a function returns: the bare value of one result, else a tuple."""
        if len(atoms) == 1:
            return self.atom(atoms[0])
        return Tuple([self.atom(a) for a in atoms])

    # ------------------------------------------------------------ what a target says

    def array(self, expr: Expr) -> Expr:
        """`expr`, which may be a Python or NumPy number, as an array of the target."""
        raise NotImplementedError

    def count(self, expr: Expr) -> Expr:
        """How many elements an array has."""
        return Attribute(expr, "size")

    def library_call(self, equation: Equation, operands: Sequence[Expr]) -> Expr | rules.Groups:
        """The expression of an equation whose callee is a Library function. Raises Unwritable."""
        return library_call(self, equation, operands)

    def bind(self, equation: Equation, operands: Sequence[Expr]) -> Expr:
        """What stands for a primitive that has no rule, or whose rule declines. Raises UnsupportedPrimitiveError."""
        raise NotImplementedError

    def settled(self, equations: Sequence[Equation], results: Sequence[Atom]) -> Sequence[Equation]:
        """The equations, with those over trees written out that cannot be written as one."""
        raise NotImplementedError

    def write_over_trees(self, equation: Equation) -> None:
        """Appends the statements of an equation over whole trees: a TreeMap, a TreeSum, ..."""
        raise NotImplementedError

    def zeros_like(self, node: PyTree, parts: Sequence[Expr] | None, way: tuple[Step, ...] = ()) -> Expr | None:
        """A tree of zeros like one that has a name; None where there is none."""
        return None

    def added_trees(self, total: Expr, tree: Expr) -> Expr:
        """The tree of the sums of the leaves of two trees."""
        raise NotImplementedError

    def scan_of_calls(self, turns: Turns) -> list[Statement]:
        """The statements of a scan in the place of a loop over local functions (`targets.jax.loop_as_scan`)."""
        raise NotImplementedError

    def note_unscanned(self, equations: Sequence[Equation], at: int) -> None:
        """Says why the call at place `at` is in no such scan."""

    # ------------------------------------------------------------ equations

    def equations(self, equations: Sequence[Equation], results: Sequence[Atom] = ()) -> None:
        """Appends the statements of `equations`; `results` are the atoms that the function returns."""
        start = len(self.statements)
        self._equations(equations, results)
        if self.sizes is not None:
            self.statements[start:start] = self.sizes.prologue()

    def _equations(self, equations: Sequence[Equation], results: Sequence[Atom]) -> None:
        if any(isinstance(e.callee, (TreeMap, OverLeaves)) for e in equations):
            equations = self.settled(equations, results)
        if self.result_example is not None:
            note_returned(self, equations, results, self.result_example)
        self._body, self._results, self._read = equations, results, None
        self._makers = {output: e for e in equations for output in e.outputs if output is not None}
        self._last_reads, self._last_taken = None, {}
        self._waiting = ()
        forced = self.module.forced
        dead: set[Equation] = set()
        if self.module.idiomatic:
            self._folding = inlining.foldable(equations, results)
            if self.module.in_order:
                self._folding = inlining.folded_in_order(equations, results, self._folding)
            dead = inlining.unread(equations, results, forced)
        written = 0
        for self._at, equation in enumerate(equations):
            if self._at < written:
                continue
            if equation in dead:
                self.names.update((o, Name("_")) for o in equation.outputs if o is not None)
                continue
            self.equation = equation
            start = len(self.statements)
            written = self._at + self._write(equation, equations, results)
            if self._waiting and len(self.statements) > start and self._waiting[-1] is not equation:
                self._compute_waiting(equations[self._at : written], start)

    def _write(self, equation: Equation, equations: Sequence[Equation], results: Sequence[Atom]) -> int:
        """Writes the equation at the place where it stands; gives how many were written, it among them."""
        callee = equation.callee
        if type(callee) is Local:
            return write_calls(self, equations, self._at, results)
        if type(callee) is TreeMap or isinstance(callee, OverLeaves):
            self.write_over_trees(equation)
            return 1
        literal = self.module.literal if self.sizes is None else self.literal
        operands = [
            self.names[a] if type(a) is Value else literal(a) if type(a) is Literal else self._array(a, equation)
            for a in equation.inputs
        ]
        if type(callee) is Library:
            called = self.library_call(equation, operands)
            if isinstance(called, rules.Groups):
                self._groups(called, equation)
            else:
                self._statement(equation, called)
            return 1
        if type(callee) is TuplePack or type(callee) is TupleUnpack:
            packs = type(callee) is TuplePack
            self._statement(equation, Tuple(operands) if packs else operands[0], several=not packs)
            return 1
        function = self.module.rules.find(callee.name)
        expr = rules.DECLINE
        self._reason = ""
        self.retreating = bool(self.module.forced) and equation.origin in self.module.forced
        if self.retreating:
            # The rule may know another exact form; if not, the proof says what its first one is worth.
            with contextlib.suppress(UnsupportedPrimitiveError):
                expr = self.bind(equation, operands)
        if function is not None and expr is rules.DECLINE:
            expr = self._by_rule(function, operands, equation.parameters)
        if expr is rules.DECLINE:
            expr = self.bind(equation, operands)
        if type(expr) is rules.Groups:
            self._groups(expr, equation)
        elif type(expr) is rules.Whole and len(equation.outputs) == 1:
            self._statement(equation, expr.expr)
        elif expr is not rules.WRITTEN:
            self._statement(equation, expr, callee.object.multiple_results)
        return 1

    def _array(self, constant: Constant, equation: Equation) -> Expr:
        """An array that an equation takes: without a name yet where its functions know it by themselves."""
        inside = functions_called(equation) if self.module.idiomatic else ()
        if any(constant in f.facts.known for f in inside):
            return Named(self.module, constant)
        return self.module.constant(constant)

    def _statement(self, equation: Equation, expr: Expr, several: bool = False, base: str | None = None) -> None:
        """`names = expr`, or nothing yet where `expr` will stand in the one expression that needs it.

        `several`: the value unpacks into the results also where there is only one. `base`: a word for what has no name.
        """
        outputs = equation.outputs
        if all(o is None for o in outputs):
            self.statements.append(Assign((), expr, equation.origin))
            return
        single = len(outputs) == 1 and not several
        output = outputs[0]
        returned = len(self._results) == 1 and output is self._results[0]
        limit = inlining.RETURNED_WIDTH if returned else inlining.FOLDED_WIDTH
        if single and output is not None and output in self._folding and not self._stands(output):
            # The arguments of a call have their lines.
            if returned and type(expr) is Call or inlining.length_of(expr) <= limit:
                self.names[output] = expr
                self._note_folded(equation)
                if self.module.in_order:
                    self._waiting = [e for e in self._waiting if e.outputs[0] not in equation.inputs] + [equation]
                return
        base = base or base_of_results(equation)
        targets = ["_" if o is None or not single and not self.is_read(o) else self._target(o, base) for o in outputs]
        is_tuple = len(outputs) > 1 and type(equation.callee) is Library
        outputs, targets = parts_of_all(equation, targets)
        make = Assign if single or is_tuple else Unpack
        only = only_item(self, equation, targets, outputs, expr) if is_tuple else None
        self.statements.append(make(*only or (targets, expr), equation.origin))
        self._note_folded(equation)

    def _compute_waiting(self, equations: Sequence[Equation], place: int) -> None:
        """Where the author's order is kept, what waits to stand in an expression is computed before statements that do not
        read it: those of `equations`, which begin at `place`."""
        before: list[Statement] = []
        for waiting in self._waiting:
            output = waiting.outputs[0]
            if output is not None and not any(output in e.inputs for e in equations):
                value = self.names[output]
                before.append(Assign([self._target(output, base_of_results(waiting))], value, waiting.origin))
        self.statements[place:place] = before
        self._waiting = []

    def _stands(self, output: Value) -> bool:
        """Whether a value keeps a statement of its own: by its author's name, or as every turn of a loop of his has it."""
        if output.named and not self.scope.taken(identifier(output.hint, "x")):
            return True
        makers = [e for a in self._body[self._at].inputs if (e := self._makers.get(a)) is not None]
        return inlining.is_of_turn(output, self._body[self._at :], makers, self.module.provenance)

    def is_read(self, output: Value) -> bool:
        """Whether an equation or the result of this function needs `output`."""
        if not self.module.idiomatic:
            return True
        if self._read is None:
            self._read = {*self._results, *(a for e in self._body for a in e.inputs)}
        return output in self._read

    def _target(self, output: Value, base: str) -> str:
        base = identifier(output.hint, base) if output.hint else base
        name = self.scope.fresh(base)
        library = base if output.named_inside and output.hint else None
        self.names[output] = Name(name, Symbol(base if output.named else None, library, value=output))
        return name

    def _note_folded(self, equation: Equation) -> None:
        """Remembers which equations stand in the expression of this one: a wrong one is looked for among them."""
        if not self._folding:
            return
        folded = self.module.folded
        inside: list[Origin] = []
        for atom in equation.inputs:
            if atom in self._folding and atom in self._made and type(self.names[atom]) is not Name:
                origin = self._made[atom]
                inside.append(origin)
                inside.extend(folded.get(origin, ()))
        if inside:
            folded[equation.origin] = tuple(inside)
        for output in equation.outputs:
            if output is not None and output in self._folding:
                self._made[output] = equation.origin

    def _by_rule(
        self, function: rules.Rule, operands: Sequence[Expr], params: Mapping[str, object]
    ) -> Expr | rules.Groups | rules.Whole:
        """What the rule gives, DECLINE included: for a value without source, and for parameters that it does not know."""
        try:
            return function(self, *operands, **params)
        except Unwritable as error:
            self._reason = str(error)
        except TypeError as error:
            if not _is_signature_mismatch(error):
                raise
        return rules.DECLINE

    def _groups(self, value: rules.Groups, equation: Equation) -> None:
        outputs = equation.outputs[value.skip :]
        bases = value.bases or [base_of_results(equation)] * len(outputs)
        groups: list[str | Tuple] = []
        place = 0
        for number, size in enumerate(value.sizes):
            if number in value.bound:
                known = value.bound[number]
                groups.append(known if type(known) is Tuple else known.flat())
                place += size
                continue
            names = []
            end = place + size
            while place < end:
                output = outputs[place]
                unread = output is None or (self.module.idiomatic and not self.is_read_later(output))
                names.append("_" if unread else self._target(output, bases[place]))
                place += 1
            if not names or all(n == "_" for n in names):
                groups.append("_")
                continue
            if self.module.idiomatic and names[-2:] == ["_", "_"]:
                while names[-1] == "_":
                    names.pop()
                names.append("*_")
            if len(names) == 1:
                groups.append(names[0])
            elif len(value.sizes) > 1:
                groups.append(Tuple([Name(n) for n in names]))
            else:
                groups.extend(names)
        groups = [] if all(g == "_" for g in groups) else groups
        names = [n for g in groups for n in ([g] if isinstance(g, str) else [e.flat() for e in g.elements])]
        whole = bool(groups) and type(equation.callee) in (Cond, Scan, While) and {"_", "*_"}.isdisjoint(names)
        whole = whole and all(isinstance(groups[number], str) for number in value.bound)  # no trees by their leaves
        only = only_item(self, equation, groups, outputs, value.expr) if not value.bound else None
        make = Unpacked if whole and only is None else Assign
        self.statements.append(make(*only or (groups, value.expr), equation.origin))
        self._note_folded(equation)


def _is_signature_mismatch(error: TypeError) -> bool:
    """Whether a rule was called with parameters that it does not know (a new JAX): then the general form is written."""
    frames = error.__traceback__
    return frames is not None and frames.tb_next is None
