"""One text for inputs of all sizes: written from a trace at sizes that stand for nothing else, proven at the user's own."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from untrace import jax_compat
from untrace._errors import CaptureError, UntraceError
from untrace._options import Options
from untrace.capture.function import Captured, Limit, trace
from untrace.capture.hooks import CaptureHooks
from untrace.capture.sizes.correspondence import Different, correspondence
from untrace.capture.sizes.followed import Followed, followed_numbers
from untrace.capture.sizes.tables import largest_sizes
from untrace.driver.attempts import Result, head_of_module, prove_again, write_and_prove
from untrace.ir.nodes import SizeNumbers
from untrace.module.interface.entry import entry_of
from untrace.torch import capture as captures
from untrace.torch.capture import Capture
from untrace.torch.sizes import Group, Inputs, Trial, further_sizes, groups_of, of_one


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One set of inputs, and the module traced on them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    found: Capture
    captured: Captured

    @property
    def entry(self) -> Any:
        return entry_of(self.found.function, self.captured, self.found.args, {}, frozenset(), frozenset())

    @property
    def types(self) -> str:
        """`tokens i32[2,6]`: its tensors, for people."""
        start = len(self.found.args) - len(self.found.inputs)
        said = []
        for name, value in zip(self.found.names[start:], self.found.args[start:], strict=True):
            leaves = jax.tree.leaves(value)
            said.append(f"{name} {', '.join(x.aval.str_short(short_dtypes=True) for x in leaves)}")
        return "; ".join(said)


def example_of(
    module: Any, args: Sequence[Any], kwargs: dict[str, Any], hooks: Callable[[Capture], CaptureHooks]
) -> Example:
    """Traces `module(*args, **kwargs)`. Raises CaptureError."""
    found = captures.capture(module, args, kwargs)
    captured = captures._explained(module, lambda: trace(found.function, found.args, {}))
    captured.asked = frozenset()  # a module of PyTorch asks JAX nothing: what stands between the two does
    captured.hooks = hooks(found)
    captured.numbers = SizeNumbers()  # PyTorch's sizes are never taken for the example's only
    return Example(tuple(args), kwargs, found, captured)


def also_of(also: Sequence[Any]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Further inputs as (args, kwargs): a tensor, a tuple of arguments, or a dict of keyword arguments each."""
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for one in also:
        if isinstance(one, dict):
            found.append(((), one))
        else:
            found.append((tuple(one) if isinstance(one, (tuple, list)) else (one,), {}))
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class General:
    """A text for several sizes. `free`: dimensions of the inputs that may be of any size, by name (equal ones together)."""

    result: Result
    free: tuple[tuple[str, ...], ...]


def written_for_all_sizes(
    module: Any,
    example: Example,
    others: Sequence[Example],
    options: Options,
    timings: dict[str, float],
    hooks: Callable[[Capture], CaptureHooks],
) -> General | None:
    """The module's text with its sizes read off the inputs; None where no size may differ, or no such text is proven.

    What is handed out is proven at the example's own sizes, at those of `others`, and at further ones.
    """
    inputs = Inputs(example.args, example.kwargs)
    more = [Inputs(o.args, o.kwargs) for o in others]
    taken = correspondence(example.captured.jaxpr).integers
    attempts = 0
    for start in range(_PRIMES_PASSED_OVER):
        groups = groups_of(module, inputs, taken, more, start)
        for chosen in _choices(groups):
            try:
                model = example_of(module, *inputs.resized(chosen), hooks)
                checks = [*others, *_elsewhere(module, inputs, chosen, hooks)]
                sizes, limits = _followed(module, inputs, chosen, [model, example, *checks], hooks)
            except (UntraceError, Different):
                continue
            if sizes is None:  # one number for two sizes: other primes, or at last fewer that follow
                if start < _PRIMES_PASSED_OVER - 1:
                    break
                continue
            if not options.guard:
                limits = [Limited({})]
            result = _attempt(model, sizes, example, checks, limits, options, timings)
            if result is not None:
                names = inputs.named(module)
                return General(result, tuple(tuple(names[p] for p in g.places if p in names) for g in chosen))
            attempts += 1
            if attempts == _MOST_ATTEMPTS:
                return None
        else:
            return None
    return None


# How often the text is written: each takes as long as the example's own.
_MOST_ATTEMPTS = 3
_PRIMES_PASSED_OVER = 5
_MOST_ELEMENTS = 20_000_000  # of inputs that are made only to look at the module at a size
_BETWEEN = 15
_FAR = (2003, 499, 127)  # sizes far from most examples, at which a decision on a size shows
# A trace of so many times as many equations is a loop over a size that was unrolled.
_LONGER, _MORE = 2, 200
_TRACES = 2  # of a module: one to learn what it reads


def _choices(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """All groups together, then without one, then each alone."""
    if groups:
        yield list(groups)
    for count in range(len(groups) - 1, 0, -1):
        for kept in itertools.combinations(groups, count):
            yield list(kept)


@dataclasses.dataclass(frozen=True, slots=True)
class Limited:
    """What sizes may be, by the number that stands for one; `at`: inputs for which the text has to be proven then."""

    limits: dict[int, Limit]
    at: tuple[Example, ...] = ()


def _followed(
    module: Any,
    inputs: Inputs,
    chosen: Sequence[Group],
    traced: Sequence[Example],
    hooks: Callable[[Capture], CaptureHooks],
) -> tuple[dict[int, tuple[int, ...]] | None, list[Limited]]:
    """{integer of the first trace that follows the inputs: what it is in the others}, None where one stands for several.
    Then limits that a text may have, the widest first: what PyTorch takes at one row (which is broadcast), a batch alone,
    none of them. traced: the module at several sizes, first at those of `chosen`. Raises Different."""
    every = [one.captured for one in traced]
    found = followed_numbers(every)
    if found.fractions:
        raise Different
    if found.following() is None:
        return None, []
    shapes = [Inputs(one.args, one.kwargs).shapes for one in traced]
    sizes = [[of[number][axis] for of in shapes] for number, axis in (g.places[0] for g in chosen)]
    multiples = [math.gcd(g.multiple, *of) for g, of in zip(chosen, sizes, strict=True)]
    most_equations = _TRACES * (_LONGER * jax_compat.count_of_equations(every[0].jaxpr) + _MORE)

    def resized(others: Sequence[int]) -> list[Group]:
        return [Group(g.places, n) for g, n in zip(chosen, others, strict=True)]

    def at(others: Sequence[int]) -> Captured:
        count = inputs.count(resized(others))
        if count > _MOST_ELEMENTS or count <= inputs.count(()) and not trial.runs(resized(others)):
            raise CaptureError("the module or the memory does not take these inputs.")
        with jax_compat.at_most_equations(most_equations):
            return example_of(module, *inputs.resized(resized(others)), hooks).captured

    def trace(others: Sequence[int]) -> Any | None:
        try:
            return at(others).jaxpr
        except UntraceError:
            return None

    trial = Trial(module, inputs)
    followed = Followed(found, sizes, multiples, every, at)
    least = followed.least()
    ones = of_one(module, inputs, [g for g, n in zip(chosen, least, strict=True) if n == 2])
    smallest = tuple([1 if g in ones else n for g, n in zip(chosen, least, strict=True)])
    traces = [(one.jaxpr, of) for one, of in zip(every, zip(*sizes, strict=True), strict=True)]
    most = largest_sizes(traces, smallest, trace)
    # At its own end a slice of a table is the whole table: another program.
    ends = [sys.maxsize if n is None else n - multiple for n, multiple in zip(most, multiples, strict=True)]
    far = [[min((n + 2 * i) * k, end) for i, (k, end) in enumerate(zip(multiples, ends, strict=True))] for n in _FAR]
    most = [b if a is None else a if b is None else min(a, b) for a, b in zip(most, followed.most(far), strict=True)]
    if len(chosen) > 1:
        followed.takes(_in_another_order([of[1] for of in sizes], least, ends, max(multiples)))
    plain = {g.size: Limit(low, k, high) for g, low, k, high in zip(chosen, least, multiples, most, strict=True)}
    batches = [g for g in ones if all(axis == 0 for _, axis in g.places)]
    limits: list[Limited] = []
    for several in (ones, batches) if batches != ones else (ones,):
        if several:
            with contextlib.suppress(UntraceError):
                one = example_of(module, *inputs.resized([Group(g.places, 1) for g in several]), hooks)
                wider = {g.size: dataclasses.replace(plain[g.size], least=1) for g in several}
                limits.append(Limited({**plain, **wider}, (one,)))
    followed.told_apart()
    return followed.numbers.following(), [*limits, Limited(plain)]


def _in_another_order(old: Sequence[int], least: Sequence[int], ends: Sequence[int], multiple: int) -> list[int]:
    """Sizes of which the largest stands where the example's is the smallest: a module may ask which is larger."""
    first = max(_BETWEEN, -(-max(least) // multiple))
    ranks = {number: rank for rank, number in enumerate(sorted(range(len(old)), key=lambda n: (-old[n], -n)))}
    return [min((first + 2 * ranks[number]) * multiple, end) for number, end in enumerate(ends)]


def _elsewhere(
    module: Any, inputs: Inputs, chosen: Sequence[Group], hooks: Callable[[Capture], CaptureHooks]
) -> list[Example]:
    """The module at further sizes. Where two sizes are equal by chance (a height and a width after some strides) the
    text may read the wrong one; elsewhere that shows. None where PyTorch takes no such sizes."""
    further = further_sizes(module, inputs, chosen)
    try:
        return [example_of(module, *inputs.resized(further), hooks)] if further else []
    except UntraceError:
        return []


def _attempt(
    model: Example,
    sizes: dict[int, tuple[int, ...]],
    example: Example,
    others: Sequence[Example],
    limits: Sequence[Limited],
    options: Options,
    timings: dict[str, float],
) -> Result | None:
    """The text at the example and the others, with the widest limits at which it holds."""
    captured = model.captured
    captured.numbers = SizeNumbers(sizes)
    for limited in limits:
        captured.limits = limited.limits
        try:
            result = write_and_prove(captured, model.entry, captured.name, options, timings)
        except UntraceError:
            return None
        proofs = [prove_again(result.written, e.captured, e.entry, options, timings) for e in (example, *others)]
        if not all(p.at_least("bits") for p in proofs):
            return None
        more = [prove_again(result.written, e.captured, e.entry, options, timings) for e in limited.at]
        if all(p.at_least("bits") for p in more):
            old = head_of_module(captured, captured.name, True, result.proof.sentence)
            new = head_of_module(example.captured, captured.name, True, proofs[0].sentence)
            result.written.with_docstring(new, old)
            return dataclasses.replace(result, proof=proofs[0], module=None)
    return None
