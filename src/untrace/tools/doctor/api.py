"""`untrace.doctor`: where numbers go wrong, why, and what to write instead."""

from __future__ import annotations

import dataclasses
import functools
import linecache
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from untrace import jax_compat
from untrace._api import Decompiled, decompile
from untrace._errors import UntraceError
from untrace._places import place_of
from untrace.capture.function import Captured, expand, name_of, trace
from untrace.capture.jaxpr import Importer
from untrace.driver.attempts import interpreter_settings
from untrace.ir.evaluate import bound, by_body, run_equations
from untrace.ir.nodes import Equation, Function, Literal, Local, Primitive
from untrace.ir.structured import CustomRule
from untrace.ir.types import Data
from untrace.module.interface.signature import static_arguments
from untrace.provenance.sites import Provenance
from untrace.tools.authors import author_equation
from untrace.tools.doctor.better import Better
from untrace.tools.doctor.blame import ROUNDING, Blamed, blame
from untrace.tools.doctor.diagnosis import SEVERITIES, Diagnosis, Finding, Range, line_in, statements_of
from untrace.tools.doctor.examine import LIMIT, Examination, examine
from untrace.tools.doctor.patterns import EVERY
from untrace.tools.doctor.repair import Repair, Repaired, Site, alone, changed, guarded, repaired
from untrace.tools.doctor.samples import samples_of
from untrace.tools.doctor.tape import Step, is_float
from untrace.tools.doctor.terms import Call, Terms, inlined, restored
from untrace.tools.doctor.ulps import errors
from untrace.tools.values import leaf_names

_MOST_BLAMED = 14
_CALLS = ("jit", "pjit")
DEAD = "dead gradient"
# Functions with steps, whose derivative is 0 where there is one.
_STEPS = ("round", "floor", "ceil", "sign", "argmax", "argmin")
_ARITHMETIC = ("mul", "div", "add", "sub", "add_any", "dot_general", "reduce_sum")
_SEEN = 1.25 * LIMIT  # what is nearly right without it needs no better way
_RARE = 0.03  # of the samples nearby
_ALIKE = 10.0  # times the given size
_DANGER = 0.95  # of the exponents of a type


def doctor(
    fn: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    seed: int = 0,
) -> Callable[..., Diagnosis]:
    """A function of `fn`'s arguments that examines what it computes: `doctor(fn)(*args, **kwargs) -> Diagnosis`.

    The program is run in its own precision beside exact arithmetic, on the given arguments (arrays of any floating type,
    pytrees of them, or `jax.ShapeDtypeStruct`s) and on others around them and over the range of their type. Of a derivative
    (`doctor(jax.grad(loss))(x)`) it is the derivative's own program that is examined.

    A result is wrong where it is off by more than a few units in the last place, and by more than what the last bits of
    the inputs explain. To blame is the statement where it begins and matters. Repairs that the doctor knows are put in where
    they are right on all the inputs on which the program was, and better on others.

    static_argnums, static_argnames: arguments with fixed Python values, as in `jax.jit`. seed: of the inputs.

    Raises CaptureError where the function cannot be traced, or its loops are too long to be followed turn by turn.
    """

    def examined(*args: Any, **kwargs: Any) -> Diagnosis:
        nums, names = static_arguments(fn, args, static_argnums, static_argnames)
        with interpreter_settings():
            return _Patient(fn, args, kwargs, nums, names, seed).diagnosis()

    return examined


class _Patient:
    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        nums: frozenset[int],
        names: frozenset[str],
        seed: int,
    ) -> None:
        self._function, self._args, self._kwargs, self._nums, self._names = function, args, kwargs, nums, names
        with jax_compat.fresh_caches()():
            self._captured = trace(function, args, kwargs, nums, names)
        self._program = _program(self._captured)
        self._derivatives = jax_compat.is_differentiated(self._captured.jaxpr)
        self._leaves, self._paths = _leaves(self._captured), leaf_names(function, args, kwargs, nums, names)
        self._samples = samples_of(self._leaves, seed)
        self._provenance = Provenance()
        # What is differentiated, and the repairs that are made there, before it is.
        self._primal = jax_compat.differentiated(function) if self._derivatives else None
        self._before: Sequence[Repair] = ()
        self._is_widened = False
        self._wrong_before: np.ndarray | None = None  # on which samples what is differentiated is wrong

    def diagnosis(self) -> Diagnosis:
        with np.errstate(all="ignore"):
            found = examine(self._program, self._samples)
            self._leave_out(found)
            better = guarded(self._wider(found, self._repaired(found)), found, Site(self._operations))
            groups, remarks = self._groups(found, better)
        precision = ", ".join(dict.fromkeys(str(q.dtype) for q in found.tape.results if q.is_float)) or "no floats"
        remarks += self._danger(found)
        if any(r.positive for g in groups for r in g.repairs):
            remarks.append("the repaired source is for positive inputs where those that were given are positive")
        for repair in dict.fromkeys(r for g in groups for r in g.repairs if r.unlucky):
            remarks.append(f"{repair.name}: on {repair.unlucky} of the inputs a result is off by more ULP than before")
        if left_out := 0 if found.tape.unfinished is None else int(found.tape.unfinished.sum()):
            remarks.append(f"{left_out} input{'s' * (left_out > 1)} left out: a loop goes on for too long")
        dead = self._dead(found)
        text = self._text() if groups or dead else None
        kept = [r for r in better.repairs if any(r in g.repairs for g in groups)]
        new, proof = self._repaired_text(kept) if kept else (None, "")
        findings = [self._finding(found, group, text, new) for group in groups] + dead
        findings.sort(key=lambda f: (SEVERITIES.index(f.severity), -min(f.error, 1e300), f.line or 0))
        return Diagnosis(
            name_of(self._function),
            precision,
            self._samples.count - left_out,
            tuple(findings),
            None if new is None else new.source,
            "" if text is None else text.source,
            self._ranges(found, better),
            tuple(remarks),
            tuple(dict.fromkeys(r.name for r in kept)),
            proof,
            {} if new is None else new.arrays,
        )

    # ---------------------------------------------------------------- repairs

    def _leave_out(self, found: Examination) -> None:
        """What has no value, or an infinite one, has no derivative, whatever its formula gives there."""
        wrong = (found.unexplained > LIMIT) | found.undefined | found.without_value
        if self._primal is not None and wrong.any():
            captured = trace(self._primal[0], self._args, self._kwargs, self._nums, self._names)
            before = examine(_program(captured), self._samples)
            self._wrong_before = before.errors > LIMIT
            found.leave_out(before.without_value | before.is_infinite)

    def _repaired(self, found: Examination) -> Repaired:
        """With the repairs that hold; of a derivative in itself, or in what is differentiated where that helps more."""
        site = Site(self._operations)
        itself = repaired(inlined(self._program), found, site)
        if (
            self._primal is None
            or not ((itself.errors > LIMIT) & ((found.unexplained > LIMIT) | found.undefined)).any()
        ):
            return itself
        captured = trace(self._primal[0], self._args, self._kwargs, self._nums, self._names)
        first = repaired(inlined(_program(captured)), found, Site(None, self._derived))
        program = self._derived(first.function) if first.repairs else None
        if program is None:
            return itself
        then = repaired(program, found, site, first.errors)
        left = [((r.errors > LIMIT) & self._samples.near, r.errors > LIMIT) for r in (then, itself)]
        if tuple(map(np.sum, left[0])) >= tuple(map(np.sum, left[1])):
            return itself
        self._before = first.repairs
        return Repaired(then.function, (*first.repairs, *then.repairs), then.errors)

    @functools.cached_property
    def _operations(self) -> frozenset[str] | None:
        """Those of what is differentiated; None where nothing is."""
        if not self._derivatives:
            return None
        captured = None
        if self._primal is not None:
            captured = trace(self._primal[0], self._args, self._kwargs, self._nums, self._names)
        if captured is None or jax_compat.is_differentiated(captured.jaxpr):
            return EVERY
        return Terms(inlined(_program(captured))).operations

    def _wider(self, found: Examination, better: Repaired) -> Repaired:
        """Where numbers of 16 bits are all there is, the same in float32, if that helps more than what was done."""
        short = all(x.dtype.itemsize == 2 for x in self._samples.leaves if is_float(x.dtype))
        left = (better.errors > LIMIT) & (found.unexplained > LIMIT)  # short inputs are none the better for it
        if not short or not left.any():
            return better
        try:
            program = inlined(_program(trace(self._in_float32, self._args, self._kwargs, self._nums, self._names)))
        except UntraceError:
            return better
        wide = alone(program, found, self._program.equations[-1])
        if wide is None or (wide.errors > LIMIT).sum() >= (better.errors > LIMIT).sum():
            return better
        self._is_widened = True
        return wide

    @property
    def _in_float32(self) -> Callable[..., Any]:
        function = self._function

        def cast(x: Any, dtype: np.dtype) -> Any:
            return x.astype(dtype) if hasattr(x, "dtype") and is_float(x.dtype) else x

        @functools.wraps(function)
        def widened(*args: Any, **kwargs: Any) -> Any:
            short = next(x.dtype for x in jax.tree.leaves((args, kwargs)) if hasattr(x, "dtype") and is_float(x.dtype))
            args, kwargs = jax.tree.map(lambda x: cast(x, np.dtype(np.float32)), (args, kwargs))
            return jax.tree.map(lambda x: cast(x, short), function(*args, **kwargs))

        return widened

    def _derived(self, function: Function) -> Function | None:
        """The program that is examined, where `function` is what is differentiated; None where JAX refuses."""
        made = self._differentiated(lambda _: function)
        try:
            return inlined(_program(trace(made, self._args, self._kwargs, self._nums, self._names)))
        except UntraceError:
            return None

    def _differentiated(self, change: Callable[[Function], Function]) -> Callable[..., Any]:
        """The derivative that is examined, of what is differentiated with its program changed."""
        assert self._primal is not None
        inner, derivative = self._primal
        nums, names = self._nums, self._names

        @functools.wraps(inner)
        def primal(*args: Any, **kwargs: Any) -> Any:
            captured = trace(inner, args, kwargs, nums, names)
            found = _as_written(change(_program(captured)), *_leaves(captured))
            return jax.tree.unflatten(jax.tree.structure(captured.out_example), found)

        return derivative(primal)

    # ---------------------------------------------------------------- who is to blame

    def _groups(self, found: Examination, better: Repaired) -> tuple[list[_Group], list[str]]:
        """Statements with what was found in them, and remarks on what does not matter enough."""
        near = self._samples.near
        unexplained = np.flatnonzero(found.unexplained > LIMIT)
        order = unexplained[np.argsort(~near[unexplained], kind="stable")]
        close = [n for n in order if near[n]]
        rows = [*found.spread(close, _MOST_BLAMED), *[n for n in order if not near[n]][: _MOST_BLAMED // 2]]
        nowhere = found.without_value & near & ~found.endless
        if self._derivatives or self._samples.given and nowhere[0]:
            # There is no limit either, but a derivative is no number that is not there, nor is what has none where it is asked.
            always = np.flatnonzero(nowhere)
            found.undefined[always] = True
            found.errors[always] = np.inf
            rows += [n for n in always[:3] if n not in rows]
        for repair in [r for r in better.repairs if not r.is_guard]:
            helped = np.flatnonzero(repair.better)
            best = helped[np.lexsort((-np.minimum(found.errors[helped], 1e300), ~near[helped]))]
            rows += [n for n in best[:3] if n not in rows]
        groups: dict[tuple[str, int, str], _Group] = {}
        for blamed in blame(found, np.array(rows, int)) if rows else []:
            if found.without_value[blamed.row] and blamed.step.name not in _ARITHMETIC:
                continue  # outside of the domain of a function
            key = self._place(blamed.step)
            groups.setdefault(key, _Group(key)).blamed.append(blamed)
        kept, remarks = [], []
        for group in groups.values():
            group.repairs = [r for r in better.repairs if any(r.better[b.row] for b in group.blamed)]
            # One that is for the given signs only, and only helps where they are others, is no help.
            if all(r.positive and not (r.better & self._samples.positive).any() for r in group.repairs):
                group.repairs = []
            group.severity = self._severity(found, group)
        claimed = [r for group in groups.values() if group.severity not in (None, "far") for r in group.repairs]
        for group in groups.values():
            # What a repair of something nearer does for the far end of the range is nothing to be told by itself.
            is_new = group.severity != "far" or not group.repairs or any(r not in claimed for r in group.repairs)
            if group.severity is not None and is_new:
                kept.append(group)
            else:
                remarks.append(self._remark(found, group))
        return kept, remarks

    def _severity(self, found: Examination, group: _Group) -> str | None:
        """How much a group matters; None where it does too little."""
        near = self._samples.near
        ways = [r for r in group.repairs if not r.is_guard]
        # What nobody knows a better way for matters where inputs are likely.
        likely = near if ways else self._samples.likely
        rows = [b.row for b in group.blamed]
        group.blamed.sort(key=lambda b: (b.row != 0, not near[b.row], self._size(b.row)))
        close = [n for n in rows if likely[n] and (found.unexplained[n] > LIMIT or found.without_value[n])]
        given = [n for n in close if n == 0 and self._samples.given]
        sure = [n for n in close if n in given or self._is_material(found, n, bool(ways))]
        if not ways and not given:
            heavy = {b.row for b in group.blamed if not b.slight}
            sure = [n for n in sure if n in heavy] if self._is_common(found, group) else []
        if sure:
            often = Counter(b.cause for b in group.blamed if b.row in sure and b.cause != ROUNDING)
            group.blamed.sort(key=lambda b: (b.row not in sure, b.row not in given, -often[b.cause], self._size(b.row)))
            return "error" if any(self._is_lost(found, n) for n in sure) else "warning"
        if not ways or all(_is_library(b.step) for b in group.blamed):
            return None
        if not any(near[n] for n in rows):
            # The squares of a derivative's rule are none of the author's where what is differentiated is right.
            return "far" if self._wrong_before is None or self._wrong_before[rows].any() else None
        # How JAX's rules are written is no matter of the author's, as long as it does not matter.
        seen = [b for b in group.blamed if near[b.row] and not b.slight and b.error > _SEEN]
        is_rare = ((found.unexplained > LIMIT) & near).sum() <= _RARE * near.sum()
        if is_rare and all(self._growth(b.row) > _ALIKE for b in seen):
            return None
        if not any(r.known for r in ways):  # then what the inputs explain, or has no limit, is as good
            seen = [b for b in seen if found.unexplained[b.row] > LIMIT and not found.bounded[b.row]]
        return "minor" if seen and not self._derivatives else None

    def _is_common(self, found: Examination, group: _Group) -> bool:
        """Whether what nobody knows a better way for is more than bad luck: an answer that happens to be near 0, or inputs
        that hardly anybody has."""
        rows = [b.row for b in group.blamed if self._samples.likely[b.row] and not b.slight]
        wrong = np.flatnonzero(((found.unexplained > LIMIT) | found.undefined) & self._samples.likely)
        is_often = sum(self._is_material(found, int(n), False) for n in wrong) > _RARE * self._samples.near.sum()
        is_met = any(self._is_broken(found, n) for n in rows)
        return bool(rows) and (is_often or is_met or any(map(self._samples.is_like_given, rows)))

    def _is_broken(self, found: Examination, row: int) -> bool:
        """Whether a sample that may be met has no result where there is a limit. A derivative has to have one where what is
        differentiated does; another function need not where an input is zero."""
        if not self._samples.plain[row] or not self._is_lost(found, row):
            return False
        if self._wrong_before is not None:
            return not self._wrong_before[row]
        return not found.without_value[row] and all(np.any(np.asarray(x)[row]) for x in self._samples.leaves)

    def _growth(self, row: int) -> float:
        """How much larger the inputs are than the given ones, or 1."""
        floats = [np.abs(np.asarray(x).astype(np.float64)) for x in self._samples.leaves if is_float(x.dtype)]
        sizes = [max(x[n].max(initial=0) for x in floats) for n in (row, 0)]
        return max(1.0, sizes[0] / max(sizes[1], 1.0))

    def _size(self, row: int) -> float:
        """The largest input of a sample: of several examples the one of usual numbers is shown."""
        floats = [np.abs(np.asarray(x)[row].astype(np.float64)) for x in self._samples.leaves if is_float(x.dtype)]
        largest = max([float(x.max(initial=0)) for x in floats], default=0.0)
        return abs(np.log10(largest)) if largest else 0.0

    def _is_lost(self, found: Examination, row: int) -> bool:
        return found.errors[row] > 2.0**20 or np.isinf(found.errors[row])

    def _is_material(self, found: Examination, row: int, is_repaired: bool) -> bool:
        """Whether an error is large beside what the results are elsewhere, and is no matter of convention."""
        if found.undefined[row]:  # a single point
            return self._derivatives or not found.bounded[row] and (is_repaired or self._is_broken(found, row))
        for quantity, truth in zip(found.tape.results, found.truths, strict=True):
            if truth is None:
                continue
            values = np.asarray(quantity.computed).astype(np.float64)
            wanted = truth.low[0]
            usual = np.abs(wanted[self._samples.near])
            if self._samples.given and np.isfinite(wanted[0]).all() and np.any(wanted[0]):
                usual = np.abs(wanted[0])
            usual = usual[np.isfinite(usual) & (usual > 0)]  # zeros are of what is masked
            # Larger inputs make larger results.
            scale = float(np.median(usual)) * self._growth(row) if usual.size else 1.0
            here = np.abs(wanted[row])
            scale = max(scale, float(here[here < np.inf].max(initial=0.0))) if here.size > 1 else scale
            # Of what is too large for the type NaN is as good as an infinity.
            bad = errors(values[row], truth.rows(row), quantity.dtype) > LIMIT
            bad &= np.abs(wanted[row]) < float(jnp.finfo(quantity.dtype).max)
            off = np.where(bad, np.abs(values[row] - wanted[row]), 0.0)
            most = (LIMIT / 2 if is_repaired else LIMIT) * float(jnp.finfo(quantity.dtype).eps)
            if np.isnan(off).any() or (off > most * scale).any():
                return True
        return False

    def _remark(self, found: Examination, group: _Group) -> str:
        worst = group.blamed[0]
        where = f"{place_of(group.key[0], group.key[1])}: " if group.key[0] else ""
        how = "too small to matter" if self._samples.likely[worst.row] else "only on inputs unlike the given ones"
        if found.bounded[worst.row]:
            how = "where it has no limit"
        return f"{where}{worst.cause}, {how}: {worst.detail}"

    def _danger(self, found: Examination) -> list[str]:
        """Values on the given arguments that are nearly too large for their type."""
        if not self._samples.given:
            return []
        for step in found.tape.steps:
            for quantity in step.outputs:
                if quantity.is_float and np.size(quantity.computed):
                    most = float(jnp.finfo(quantity.dtype).max)
                    values = np.abs(np.asarray(quantity.computed)[0].astype(np.float64))
                    values = values[np.isfinite(values)]
                    if values.size and values.max() > most**_DANGER:
                        place = self._place(step)
                        where = f" ({place_of(place[0], place[1])})" if place[0] else ""
                        return [f"{step.name} gives {values.max():.3g}, near the end of its type{where}"]
        return []

    def _place(self, step: Step) -> tuple[str, int, str]:
        """The author's file, line and function of a step; of what is in a function of JAX, where that is called."""
        return self._site(author_equation([*step.calls, step.equation]))

    def _site(self, equation: Equation) -> tuple[str, int, str]:
        frame = self._provenance.site(equation.origin).frame
        return ("", 0, "") if frame is None or not frame.line else (frame.file, int(frame.line), frame.name)

    # ---------------------------------------------------------------- what is said of it

    def _finding(self, found: Examination, group: _Group, text: Decompiled | None, new: Decompiled | None) -> Finding:
        worst = group.blamed[0]
        file, line, function = group.key
        names = [b.step.name for b in group.blamed]
        number = line_in(text, file, line, names)
        statement = text.source.split("\n")[number - 1].strip() if text is not None and number else ""
        if not statement and file:
            statement = linecache.getline(file, line).strip()
        causes = tuple(dict.fromkeys(b.cause for b in group.blamed))
        better = None
        if new is not None and group.repairs:
            # What goes wrong here may be repaired by what is written where it is used.
            places = [(file, line), *[self._site(c.anchor)[:2] for r in group.repairs for c in r.changes]]
            better = next((s for place in places if (s := statements_of(new, *place))), None)
        place = f"{place_of(file, line)} ({function})" if file else ""
        return Finding(
            statement,
            place,
            number,
            worst.cause,
            causes,
            worst.detail,
            self._symptom(found, worst.row),
            group.severity or "minor",
            self._shown(worst.row),
            worst.error,
            "; ".join(dict.fromkeys(r.because for r in group.repairs)) or None,
            better,
        )

    def _dead(self, found: Examination) -> list[Finding]:
        """Derivatives that are 0 whatever the inputs are, behind an operation that has none to give."""
        if not (self._derivatives or self._captured.summary.startswith(("Gradient", "Value and gradient"))):
            return []
        flat = [step for step in found.tape.steps if step.name in _STEPS]
        all_zero = [
            q
            for q in found.tape.results
            if q.is_float and not np.any(np.asarray(q.computed, np.float64)) and (q.structural or _is_zero(q.exact))
        ]
        if not flat or not all_zero:
            return []
        file, line, function = self._place(flat[0])
        name = flat[0].name
        return [
            Finding(
                linecache.getline(file, line).strip() if file else name,
                f"{place_of(file, line)} ({function})" if file else "",
                None,
                DEAD,
                (DEAD,),
                f"{name} is flat between its steps: nothing of the derivative goes through it",
                "0, a dead gradient",
                "warning",
                "all inputs",
                float("inf"),
            )
        ]

    def _symptom(self, found: Examination, row: int) -> str:
        words = []
        for quantity, truth in zip(found.tape.results, found.truths, strict=True):
            if truth is None:
                continue
            values, wanted = np.asarray(quantity.computed).astype(np.float64)[row], truth.low[0][row]
            known = truth.known[row]
            if (np.isnan(values) & (known | found.undefined[row])).any():
                words.append("nan")
            elif (np.isinf(values) & known & (np.abs(wanted) < float(jnp.finfo(quantity.dtype).max))).any():
                words.append("inf")
            elif ((values == 0) & known & (np.abs(wanted) > float(jnp.finfo(quantity.dtype).tiny))).any():
                words.append("0, a dead gradient" if self._derivatives else "0")
        return next((w for w in ("nan", "inf") if w in words), words[0] if words else "wrong")

    def _shown(self, row: int) -> str:
        shown = []
        for path, leaf in zip(self._paths, self._samples.leaves, strict=True):
            if is_float(leaf.dtype):
                values = np.asarray(leaf)[row].astype(np.float64)
                few = np.array2string(values, precision=6, threshold=6, edgeitems=3).replace("\n", "")
                shown.append(f"{path} = {few}")
        return ", ".join(shown)

    def _ranges(self, found: Examination, better: Repaired) -> tuple[Range, ...]:
        floats = [np.asarray(x).astype(np.float64) for x in self._samples.leaves if is_float(x.dtype)]
        if not floats:
            return ()
        sizes = np.max([np.abs(x).reshape(len(x), -1).max(axis=1, initial=0) for x in floats], axis=0)
        is_scalar = len(floats) == 1 and floats[0].size == len(floats[0])
        signs = np.sign(floats[0].reshape(-1)) if is_scalar else np.ones(len(sizes))
        edges = [0.0, 1e-20, 1e-6, 1e-3, 0.1, 1.0, 10.0, 100.0, 1e4, 1e20, np.inf]
        made = []
        for sign in (-1, 1) if is_scalar else (1,):
            for low, high in zip(edges[:-1], edges[1:], strict=True):
                here = (sizes >= low) & (sizes < high) & (np.where(signs == 0, 1, signs) == sign)
                if here.any():
                    name = f"{low:g} to {high:g}" if sign > 0 else f"-{high:g} to -{low:g}"
                    rows = (int(here.sum()), float(found.errors[here].max()), float(better.errors[here].max()))
                    made.append(Range(name if is_scalar else f"up to {high:g}", *rows))
            if sign < 0:
                made.reverse()
        return tuple(made)

    # ---------------------------------------------------------------- texts

    def _text(self) -> Decompiled | None:
        try:
            return decompile(self._function, static_argnums=sorted(self._nums), static_argnames=sorted(self._names))(
                *self._args, **self._kwargs
            )
        except UntraceError:
            return None

    def _repaired_text(self, repairs: Sequence[Repair]) -> tuple[Decompiled | None, str]:
        before = [r for r in repairs if r in self._before]
        then = [r for r in repairs if r not in self._before]
        nums, names, site = self._nums, self._names, Site(self._operations)
        function = self._function
        if self._is_widened:
            function, then = self._in_float32, []
        elif before:
            changing = Site(None, self._derived)
            function = self._differentiated(lambda program: changed(inlined(program), before, changing))

        @functools.wraps(self._function)
        def better(*args: Any, **kwargs: Any) -> Any:
            if not then:
                return function(*args, **kwargs)
            captured = trace(function, args, kwargs, nums, names)
            calls: list[Call] = []
            program = changed(inlined(_program(captured), calls), then, site)
            found = _as_written(restored(program, calls), *_leaves(captured))
            return jax.tree.unflatten(jax.tree.structure(captured.out_example), found)

        try:
            made = decompile(better, static_argnums=sorted(nums), static_argnames=sorted(names), derivatives="written")(
                *self._args, **self._kwargs
            )
        except UntraceError as error:
            return None, f"no text could be written of the repaired program: {error}"
        return made, str(made.proof)


@dataclasses.dataclass(slots=True)
class _Group:
    """A statement (file, line and function), with who is to blame in it and what helps."""

    key: tuple[str, int, str]
    blamed: list[Blamed] = dataclasses.field(default_factory=list)
    repairs: list[Repair] = dataclasses.field(default_factory=list)
    severity: str | None = None


def _is_zero(exact: Data) -> bool:
    """Whether exact numbers are zeros by construction, on all samples; see `exact.exact_of`."""
    numbers = np.asarray(exact)
    return numbers.dtype == object and all([type(x) is int and x == 0 for x in numbers.flat])


def _is_library(step: Step) -> bool:
    """Whether a step is in a jitted function of JAX's own."""
    for call in step.calls:
        body = call.callee.body if type(call.callee) is Local else call.params.get("jaxpr")
        if type(body) is Function and body.jaxpr is not None and jax_compat.is_library_jaxpr(body.jaxpr):
            return True
    return False


def _program(captured: Captured) -> Function:
    expand(captured)
    return Importer(captured.expander, rules=False).function(captured.expanded, captured.name)


def _leaves(captured: Captured) -> list[Data]:
    """The arrays that the program takes, in its order."""
    return jax.tree.leaves((captured.args, captured.kwargs))


def _as_written(function: Function, *args: Data) -> list[Data]:
    """What a function gives, each equation bound as one that stands where it was captured."""

    def at_place(equation: Equation, inputs: Sequence[Data]) -> Sequence[Data]:
        with jax_compat.at_source(equation.origin):
            callee = equation.callee
            if type(callee) is Primitive and type(callee.object) is Better:
                atoms = zip(equation.inputs, inputs, strict=True)
                return [callee.object.function(*[float(x) if type(a) is Literal else x for a, x in atoms])]
            if callee.name == "add_any":
                return [inputs[0] + inputs[1]]
            if type(callee) is CustomRule or callee.name in _CALLS:
                return bound(equation, inputs)  # with its rule, and its name
            return by_body(equation, inputs, _as_written)

    return run_equations(function, args, at_place)
