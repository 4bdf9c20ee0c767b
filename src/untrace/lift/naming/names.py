"""Names for every value of a Program: the author's, else a derived one, else a short word for what it is.

`name_values` sets `Value.hint` and `Function.name`; it changes nothing else. Order of preference for a result:

    1. the name that the author bound the whole value of the expression to (`provenance.targets`), innermost first
    2. in a backward pass `d_` and the name of the primal value that it is the cotangent of; for a tangent `..._dot`
    3. what it becomes: the parameter that it is passed for, the list that it goes into
    4. a name made from that of its operand (`x_t`), a word for the operation (`mean`, `mask`)

An expression's equations, which follow each other and have the same frames, are one *group*, whose value is the expression's.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from untrace import jax_compat
from untrace.ir.callees import callee_of
from untrace.ir.calls import is_named_where_written
from untrace.ir.nodes import Atom, Cond, Equation, Function, Literal, Program, Scan, Value, functions_called
from untrace.ir.structured import varied_in
from untrace.lift.adjoint import cotangents
from untrace.lift.adjoint.checkpoints import name_cotangents
from untrace.lift.adjoint.returned_gradients import gradients_of
from untrace.lift.naming import inner, parameters, words
from untrace.lift.naming.constants import name_constants
from untrace.provenance.frames import Target
from untrace.provenance.sites import Provenance, Site, targets


def name_values(program: Program) -> Program:
    """Sets the hints of all values and functions of `program`; gives the same Program."""
    namer = Namer(provenance_of(program), functools.partial(gradients_of, program))
    namer.name(program.entry)
    name_constants(program, namer.provenance)
    namer.cotangents.let_go()
    program.facts = replace(program.facts, primal_of=namer.cotangents.primal_of)
    return program


def provenance_of(program: Program) -> Provenance:
    """The Provenance of a Program, made once."""
    if program.provenance is None:
        program.provenance = Provenance()
    return program.provenance


class Group:
    """Equations of one expression: their Site, where they begin and end, and which of their outputs leave them."""

    __slots__ = ("site", "start", "stop", "results", "turn", "total", "alike", "ends", "phase")

    def __init__(self, site: Site, start: int, stop: int, phase: str, turn: int):
        self.site = site
        self.start = start
        self.stop = stop
        self.results: list[Value] = []
        self.turn = turn  # how many groups of the very same expression stand just before this one
        self.total = 0  # how many values leave all of those together
        self.ends: tuple[Any, Any] = (None, None)  # the first and the last equation that results come from
        self.alike = False  # and whether the same operation makes each of them
        self.phase = phase


class Namer:
    def __init__(self, provenance: Provenance, returned: Callable[[], Mapping[Value, Value]] = dict):
        self.provenance = provenance
        self.cotangents = cotangents.Cotangents(returned)
        self._targets: dict[tuple[Any, ...], tuple[Target, ...]] = {}
        self._strong: dict[tuple[Any, ...], list[Target]] = {}
        self._named: set[Function] = set()
        self._coined: set[Value | None] = set()  # values whose names were derived from others'
        self._tangents: set[Value] = set()
        self._slices: dict[Value | None, Equation] = {}
        # What a loop starts from -> the carries of its body, and what that gives for them.
        self._carries: dict[Atom | None, list[tuple[Value, Any]]] = {}
        self._wanted: dict[Atom | None, str] = {}  # a function's result -> the caller's name for it
        self._lent: set[Value] = set()  # values that have such a name, which is nothing to the function's other callers

    # ------------------------------------------------------------ functions

    def name(
        self,
        function: Function,
        phase: str = "forward",
        differentiated: bool = False,
        wanted: Sequence[str | None] = (),
    ) -> None:
        """Names what is inside a function, its parameters first where nobody has yet.

        wanted: what the caller calls its results, which counts where the function itself has no name for them.
        """
        if function in self._named:
            return
        self._named.add(function)
        self._name_parameters(function)
        for result, name in zip(function.results, wanted, strict=False):
            if name is not None and type(result) is Value:
                self._wanted.setdefault(result, name)
        equations = function.equations
        groups, sites = self._groups(function, phase, differentiated)
        for group in groups:
            if group.phase != "backward":
                self.cotangents.record(group.site.frames, equations[group.start : group.stop], group.results)
            for at in range(group.start, group.stop):
                equation = equations[at]
                site = sites[at]
                if equation.may_hold_functions and functions_called(equation):
                    self._name_inner(equation, group, site.differentiated or differentiated)
                self._name_outputs(equation, group)

    def _name_parameters(self, function: Function, given: Sequence[str | None] = ()) -> None:
        """`given`: names for parameters for which the function itself has none."""
        names: list[str | None] = [None] * len(function.params)
        if function.jaxpr is not None:
            own = parameters.function_names(function.jaxpr)
            offset = len(function.params) - len(own)
            if offset >= 0:
                names[offset:] = own
        for i, value in enumerate(function.params):
            if value.hint is None:
                value.hint = names[i] or (given[i] if i < len(given) else None) or "x"

    # ------------------------------------------------------------ groups

    def _groups(self, function: Function, phase: str, differentiated: bool) -> tuple[list[Group], list[Site]]:
        """The groups of a function in order, every equation in one; with the Site of each equation."""
        equations = function.equations
        site_of = self.provenance.site
        sites = [site_of(e.origin) for e in equations]
        groups: list[Group] = []
        member = [0] * len(equations)
        start = 0
        while start < len(equations):
            site = sites[start]
            here = _phase(site, phase)
            stop = start + 1
            if site.frames:
                while (
                    stop < len(equations) and sites[stop].frames == site.frames and _phase(sites[stop], phase) == here
                ):
                    stop += 1
            # A loop of the user's repeats the very same equations: then each turn is a group of its own.
            # Where JAX pushes tangents forward, it is they that follow their primals.
            size = stop - start
            if size > 1 and not site.by_jvp:
                size = period([(sites[i], equations[i].callee.name) for i in range(start, stop)])
            for turn, begin in enumerate(range(start, stop, size)):
                group = Group(site, begin, begin + size, here, turn)
                member[begin : begin + size] = [len(groups)] * size
                groups.append(group)
            start = stop
        self._results_of_groups(function, groups, member, differentiated)
        return groups, sites

    def _results_of_groups(
        self, function: Function, groups: list[Group], member: list[int], differentiated: bool
    ) -> None:
        """Sets which values of each group are its expression's: the rest are steps on the way, or residuals."""
        equations = function.equations
        made: dict[Value, int] = {}  # its group
        forward: set[Value] = set()  # used by another group of a forward pass
        backward: set[Value] = set()
        for at, equation in enumerate(equations):
            here = member[at]
            used = backward if groups[here].phase == "backward" else forward
            for atom in equation.inputs:
                if type(atom) is Value and made.get(atom, here) != here:
                    used.add(atom)
            for output in equation.outputs:
                if output is not None:
                    made[output] = here
        returned: dict[Atom, int] = {}  # by result the first place that it has among those
        for place, result in enumerate(function.results):
            if type(result) is Value:
                returned.setdefault(result, place)
        for group in groups:
            if group.stop == group.start + 1:
                outputs = [o for o in equations[group.start].outputs if o is not None]
                if len(outputs) == 1 and group.phase != "backward" and not group.site.by_jvp:  # whoever reads it
                    group.results = outputs
                    continue
            else:
                outputs = [o for e in equations[group.start : group.stop] for o in e.outputs if o is not None]
            leaving = [o for o in outputs if o in forward]
            if group.phase == "backward":
                leaving = [o for o in outputs if o in backward or o in returned or o in forward]
            elif not leaving:
                leaving = [o for o in outputs if o in returned]
                # The body of a differentiated loop returns residuals as well, after the primal values.
                if differentiated:
                    leaving = sorted(leaving, key=lambda o: returned[o])[:1]
                leaving = leaving or [o for o in outputs if o in backward][:1] or outputs[-1:]
            group.results = leaving
            if group.site.by_jvp:
                makers = [e for e in equations[group.start : group.stop] if any(o in leaving for o in e.outputs)]
                first = equations[group.start]
                if makers and first is not makers[0] and first.callee.name == makers[-1].callee.name:
                    makers.insert(0, first)  # a primal that nothing needs
                group.ends = (makers[0], makers[-1]) if makers else (None, None)
        run: list[Group] = []
        for group in groups:
            run = [*run, group] if group.turn else [group]
            if 0 < group.turn < 64 or len(group.results) > 1:
                total = sum(len(g.results) for g in run)
                leaving_run = {r for g in run for r in g.results}
                kinds = {
                    e.callee.name
                    for g in run
                    for e in equations[g.start : g.stop]
                    for o in e.outputs
                    if o in leaving_run
                }
                for one in run:
                    one.total, one.alike = total, len(kinds) == 1

    # ------------------------------------------------------------ results of equations

    def _name_outputs(self, equation: Equation, group: Group) -> None:
        if is_named_where_written(equation):
            inner.name_token(equation, self._strong_of(group.site))
            return
        self._remember_origins(equation)
        if equation.callee.name == "slice":
            self._slices[equation.outputs[0]] = equation
        name_cotangents(equation)
        unnamed = [o for o in equation.outputs if o is not None and o.hint is None]
        if not unnamed:
            return
        if group.phase == "backward":
            self._name_cotangents(equation, group)
            return
        found = self._targets_of(group.site)
        if len(group.results) == len(unnamed) == 1:
            leaving = unnamed if unnamed[0] is group.results[0] else []
        else:
            leaving = [o for o in unnamed if o in group.results]
        if leaving:
            self._name_results(equation, group, found, leaving)
        for i, output in enumerate(equation.outputs):
            if output is not None and output.hint is None:
                output.hint = self._word(equation, i, group, leaving)
        if group.site.by_jvp:
            self._mark_tangents(equation, group)

    def _name_results(self, equation: Equation, group: Group, found: Sequence[Target], leaving: list[Value]) -> None:
        strong = self._strong_of(group.site)
        # Of `state, _ = lax.scan(...)` JAX leaves one output, which is a part of the pair all the same.
        if len(equation.outputs) > 1 or type(equation.callee) is Scan and strong and strong[0].path:
            for output, name in zip(equation.outputs, self._by_place(equation, strong), strict=True):
                if output is not None and output.hint is None and name is not None:
                    output.hint = name
                    output.named = True
            return
        output = leaving[-1]
        wanted = self._wanted.get(output)
        if wanted is not None and not strong:
            output.hint = wanted
            self._lent.add(output)
            return
        chosen = strong or [t for t in found if _usable(t.name) and t.kind != "container"]
        if not chosen:
            return
        first = chosen[0]
        if first.path and first.path != ("*",) and first.kind not in ("key", "keyword", "argument"):
            # `q, k, v = split(...)`, one equation for each: the first to leave is the first name.
            split = [t for t in found if len(t.path) == 1 and t.kind == first.kind and t.library == first.library]
            turn = next((i for i, r in enumerate(group.results) if r is output), 0) + group.turn
            place = inner.place_of_part(equation, self._slices, group.site)
            if place is not None:  # of which some may be unused
                split = [t for t in split if t.path == (place,)]
                turn = 0
            elif len(split) != group.total or not group.alike:
                return
            if turn >= len(split) or not _usable(split[turn].name):
                return
            first = split[turn]
        elif output is not group.results[-1] and not group.site.by_jvp and len(group.results) > 1:
            return
        name = words.clean(first.name)
        if first.kind == "element":
            name = words.singular(name)
        output.hint = name
        output.named = bool(strong) and not first.library
        output.named_inside = bool(strong) and first.library

    def _targets_of(self, site: Site) -> tuple[Target, ...]:
        found = self._targets.get(site.frames)
        if found is None:
            found = self._targets[site.frames] = _telling(targets(site))
        return found

    def _strong_of(self, site: Site) -> list[Target]:
        """Those that the author binds a value to."""
        found = self._strong.get(site.frames)
        if found is None:
            found = self._strong[site.frames] = [t for t in self._targets_of(site) if t.strong and _usable(t.name)]
        return found

    def _by_place(self, equation: Equation, found: Sequence[Target]) -> list[str | None]:
        """Names for the outputs of an equation with several, by where each stands in the value of the expression."""
        count = len(equation.outputs)
        names: list[str | None] = [None] * count
        if not found:
            return names
        places = inner.places(equation)
        if places is None:
            places = inner.guessed_places(equation)
            # The primal value comes first, residuals and tangents after it; but a `cond` that is not differentiated
            # gives the leaves of a tree, and its branches have names for them.
            of_tree = type(equation.callee) is Cond and not self.provenance.site(equation.origin).differentiated
            if places and not found[0].path and type(equation.callee) is not Scan and not of_tree:
                places[0] = ()
        fields = list(dict.fromkeys(place[0] for place in places if place))
        for i, place in enumerate(places):
            for target in found:
                size = len(target.path)
                if place and target.path and isinstance(place[0], str) and isinstance(target.path[0], int):
                    place = (fields.index(place[0]), *place[1:])  # what is unpacked is a named tuple
                if place is None or place[:size] != target.path:
                    continue
                rest = [p for p in place[size:] if isinstance(p, str)]
                if len(place) == size:
                    names[i] = words.clean(target.name)
                elif rest and _usable(rest[-1]):
                    names[i] = words.clean(rest[-1])
                break
        return names

    def _word(self, equation: Equation, index: int, group: Group, leaving: list[Value]) -> str:
        """A name without the author's help for output `index` of an equation."""
        output = equation.outputs[index]
        made_inside = inner.inner_result(equation, index, self._lent)
        if made_inside is not None:
            return made_inside
        if leaving and output is leaving[-1] and group.site.frames and not group.site.frames[-1].library:
            said = words.expression(group.site.frames[-1].node)
            if said is not None and len(equation.outputs) == 1:
                return said
        if len(equation.outputs) == 1:
            own = self.provenance.library_name(equation.origin) if equation.origin is not None else None
            if own is not None and _usable(own):
                return words.clean(own)
            made = words.derived(equation, self._coined)
            if made is not None:
                self._coined.add(equation.outputs[0])
                return words.clean(made)
        names = [equation.callee.name.rpartition(".")[2]]
        if names[0] == "broadcast_in_dim" and type(equation.inputs[0]) is Literal:
            names.insert(0, inner.constant_word(equation))
        label = equation.params.get("name")
        if isinstance(label, str) and names[0] in ("jit", "pjit"):
            names.insert(0, label)
        if output is not None and leaving and output is leaving[-1] and len(group.site.frames):
            library = group.site.library
            if library is not None:
                names.insert(0, library[1])
        self._coined.add(output)
        word = words.noun(names, output.aval if output is not None else None)
        # Another caller's name for what a function gives says more than that there is some.
        return inner.inner_result(equation, index) or word if word == "result" else word

    # ------------------------------------------------------------ derivatives

    def _name_cotangents(self, equation: Equation, group: Group) -> None:
        statement = next(iter(self._strong_of(group.site)), None)
        inputs = [a for a in equation.inputs if type(a) is Value]
        for i, output in enumerate(equation.outputs):
            if output is None or output.hint is not None:
                continue
            plain = not inputs and equation.callee.name in ("broadcast_in_dim", "full")
            # Zeros and ones are what sums begin with; another number is the cotangent of something.
            if plain and inner.constant_word(equation) in ("zeros", "ones"):
                output.hint = words.noun([inner.constant_word(equation), equation.callee.name], output.aval)
                continue
            primal = self.cotangents.passed(inner.results_inside(equation, i), output)
            if primal is not None:
                self.cotangents.told().setdefault(output, primal)
            base = self.cotangents.primal_name(equation, i, group.site.frames, output in group.results, inputs)
            if base is None:
                made_inside = inner.inner_result(equation, i)
                if made_inside is not None:
                    output.hint = made_inside
                    continue
                wanted = self._wanted.get(output)
                if wanted is not None:
                    output.hint = wanted
                    continue
            if base is None and statement is not None:
                base = words.clean(statement.name)
            if base is None:
                base = words.noun([equation.callee.name.rpartition(".")[2]], output.aval)
            output.hint = cotangents.d(base)

    def _remember_origins(self, equation: Equation) -> None:
        """Residuals: a stacked output of a loop is, slice by slice, a value of its body."""
        if type(equation.callee) is not Scan:
            return
        body, carries = equation.callee.body, equation.callee.carries
        for output, result in zip(equation.outputs[carries:], body.results[carries:], strict=True):
            if output is not None and type(result) is Value:
                self.cotangents.stacked(output, result)

    def _mark_tangents(self, equation: Equation, group: Group) -> None:
        """`x_dot` for what depends on tangents: where JAX pushes them forward, the last value of a group is one."""
        outputs = [o for o in equation.outputs if o is not None]
        half = len(outputs) // 2
        called = functions_called(equation)
        if any(a in self._tangents for a in equation.inputs) and not called:
            tangents = outputs
        elif called:
            # What was a call of f is now one of its results and their tangents together.
            pairs = list(zip(outputs[:half], outputs[half:], strict=False))
            known = any(f.jaxpr is None or jax_compat.argument_names(f.jaxpr) is not None for f in called)
            paired = len(outputs) == 2 * half and all(_alike(a, b) for a, b in pairs) and not known
            tangents = outputs[half:] if paired else []
            for primal, tangent in pairs if paired else ():
                tangent.hint = primal.hint
        else:
            first, last = group.ends
            pairs = list(zip(first.outputs, outputs, strict=False)) if first is not None else []
            same = equation is last and first is not last and all(_alike(a, b) for a, b in pairs)
            tangents = outputs if same else []
        for output in tangents:
            self._tangents.add(output)
            if output.hint is not None and "_dot" not in output.hint:
                output.hint = words.clean(f"{output.hint}_dot")

    # ------------------------------------------------------------ inner functions

    def _name_inner(self, equation: Equation, group: Group, differentiated: bool) -> None:
        kind = equation.callee.name
        phase = group.phase if varied_in(equation.callee) is None else "forward"
        results = self._names_of_results(equation, group)
        for key, functions in inner.functions_by_role(equation):
            for place, function in enumerate(functions):
                if function in self._named:
                    continue
                role = key if len(functions) == 1 else f"{key}_{place}"
                function.name = inner.function_name(function, kind, role, phase)
                operands = inner.operands(equation, key, function)
                backward_loop = type(equation.callee) is Scan and phase == "backward"
                names = self._operand_names(equation, operands, function, phase)
                same = len(function.results) == len(equation.outputs)
                known = self._name_backward_carry(equation, group, function) if backward_loop else 0
                self._name_parameters(function, names)
                around = self.cotangents.branch
                if type(equation.callee) is Cond and len(functions) > 1:
                    self.cotangents.branch = place, len(functions)
                self.name(function, phase, differentiated, results if same else ())
                self.cotangents.branch = around
                if backward_loop:
                    inner.carry_after_results(equation, function, known)
                elif type(equation.callee) is Scan:
                    self._name_initial(equation, function)

    def _name_initial(self, equation: Equation, function: Function) -> None:
        """`initial_hidden` for what a loop starts from, where the author gave only the carry a name."""
        loop = callee_of(equation, Scan)
        consts, carries = loop.consts, loop.carries
        inner.carry_after_values(function, consts, carries)
        for i in range(consts, consts + carries):
            operand, param = equation.inputs[i], function.params[i]
            if type(operand) is Value:
                begun = self._carries.setdefault(operand, [])
                if not begun or begun[0][0] in function.params:
                    begun.append((param, function.results[i - consts]))
                if operand in self._coined and param.hint not in (None, "x"):
                    self._coined.discard(operand)
                    operand.hint = words.clean(f"initial_{param.hint}")

    def _name_backward_carry(self, equation: Equation, group: Group, function: Function) -> int:
        """The carry of a backward loop holds cotangents: those of the forward loop's operands, which come out at the end.

        Gives a bit set of the carries for which that could be told.
        """
        loop = callee_of(equation, Scan)
        consts, carries = loop.consts, loop.carries
        known = 0
        inputs = [a for a in equation.inputs if type(a) is Value]
        makers = {output: e for e in function.equations for output in e.outputs if output is not None}
        # Carries that begin at one value, as two that begin at zeros, come in their order.
        met: Counter[Atom | None] = Counter()
        for i, (param, output) in enumerate(
            zip(function.params[consts : consts + carries], equation.outputs, strict=False)
        ):
            if output is None:
                continue
            term = inner.added(makers, param, function.results[i])
            if term is not None:  # JAX may have put what a loop closes over into another order on the way back
                primal = self.cotangents.closed_over(self.provenance.site(term.origin).frames, output)
                if primal is not None:
                    self.cotangents.told().setdefault(output, primal)
            base = self.cotangents.primal_name(equation, i, group.site.frames, True, inputs)
            if base is not None:
                known |= 1 << i
                output.hint = output.hint or cotangents.d(base)
                primal = self.cotangents.primal_of(output)
                begun = self._carries.get(primal, ())
                carry, given = begun[min(met[primal], len(begun) - 1)] if begun else (None, None)
                met[primal] += 1
                param.hint = cotangents.d(carry.hint) if carry is not None and carry.hint else output.hint
                # What comes into the body is the cotangent of what the forward body gave.
                self.cotangents.set_primal(param, given if type(given) is Value else carry or primal)
        return known

    def _names_of_results(self, equation: Equation, group: Group) -> list[str | None]:
        """What the author calls the outputs of a call; one slice of them, where a loop stacks them."""
        strong = self._strong_of(group.site)
        if len(equation.outputs) == 1 and type(equation.callee) is not Scan:
            whole = [t for t in strong if not t.path or t.kind == "key"]
            names: list[str | None] = [words.clean(whole[0].name) if whole else self._wanted.get(equation.outputs[0])]
        else:
            names = self._by_place(equation, strong)
        if type(equation.callee) is Scan:
            carries = equation.callee.carries
            names[carries:] = [words.singular(n) if n is not None else None for n in names[carries:]]
            names[:carries] = [None] * carries
        if group.phase == "backward":
            return [None] * len(names)
        return names

    def _operand_names(
        self, equation: Equation, operands: Sequence[Any], function: Function, phase: str
    ) -> list[str | None]:
        """Names for the parameters of an inner function, after what is passed for them and after its definition."""
        names = [a.hint if type(a) is Value else None for a in operands]
        if not names:
            return []
        loop = equation.callee
        if type(loop) is not Scan:
            for param, operand in zip(function.params, operands, strict=True):
                if type(operand) is Value:
                    self.cotangents.same(param, operand)
            return names
        consts, carries = loop.consts, loop.carries
        for param, operand in zip(function.params[:consts], operands[:consts], strict=True):
            if type(operand) is Value:
                self.cotangents.same(param, operand)
        for i in range(consts + carries, len(names)):
            operand = operands[i]
            residual = self.cotangents.slice_of(operand) if type(operand) is Value else None
            if residual is None and type(operand) is Value and phase != "backward":
                self.cotangents.stacked(operand, function.params[i])  # a backward loop takes the same slices
            if residual is not None:
                self.cotangents.same(function.params[i], residual)
                names[i] = residual.hint
            elif (name := names[i]) is not None:
                names[i] = words.singular(name)
        if phase != "backward":
            inner.after_definition(names, function, consts, carries)
        return names


def period(keys: Sequence[Any]) -> int:
    """The length of the shortest piece that the whole of `keys` is repetitions of. Linear (Knuth, Morris and Pratt)."""
    count = len(keys)
    if count < 2 or keys[0] not in keys[1:]:
        return count
    border = [0] * count
    length = 0
    for i in range(1, count):
        while length and keys[i] != keys[length]:
            length = border[length - 1]
        if keys[i] == keys[length]:
            length += 1
        border[i] = length
    size = count - border[-1]
    return size if count % size == 0 else count


def _phase(site: Site, inherited: str) -> str:
    """Forward or backward; a recomputation inside a backward pass is forward code."""
    if site.phase == "backward":
        return "forward" if "rematted_computation" in site.scopes else "backward"
    return "forward" if "rematted_computation" in site.scopes else inherited


def _alike(left: Value | None, right: Value | None) -> bool:
    """Whether two values have the same type, but for a dimension of a batch of tangents."""
    if left is None or right is None or getattr(left.aval, "dtype", 0) != getattr(right.aval, "dtype", 1):
        return False
    one, other = left.aval.shape, right.aval.shape
    return one == other or one == other[1:] or one == other[:-1]


def _telling(found: tuple[Target, ...]) -> tuple[Target, ...]:
    """Without what authors of libraries call anything: a word for the operation says more, and more than what is around it."""
    kept = [t for t in found if not (t.library and t.name.strip("_") in words.STOCK)]
    if found and (not kept or kept[0] is not found[0]):
        return tuple([t for t in kept if t.strong and not t.library])
    return tuple(kept)


def _usable(name: str) -> bool:
    return bool(name.strip("_"))
