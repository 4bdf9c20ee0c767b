"""A function traced at sizes of its inputs that stand for nothing else, beside the trace of the user's example.

A number in a trace does not say where it came from: 8 may be the rows of the example or the width of a layer. So the
function is traced again with primes in the place of the sizes that may differ. What is another number in that trace
follows the inputs, and is written so (`module.sizes`); what differs in anything else does not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from untrace import jax_compat
from untrace._errors import UntraceError
from untrace._identity import IdentityMap
from untrace.capture.function import Beside, Captured, Limit
from untrace.capture.sizes.correspondence import Correspondence, Different, correspondence
from untrace.capture.sizes.dimensions import Place, Tied, tied_dimensions
from untrace.capture.sizes.followed import Followed, followed_numbers
from untrace.ir.nodes import SizeNumbers
from untrace.jaxprs.resized import Resizer

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

# Where the primes begin, by how many sizes there are. Far from most examples, so that a decision on a size (one round
# of a shuffle or two) shows; but arrays of several such dimensions must stay below the 2**31 elements that JAX can index.
_STARTS = {1: 2003, 2: 2003, 3: 499, 4: 127}
_START = 67
# An image that is halved several times needs a size that can be halved.
_MOST_HALVED = 16
_MOST_ATTEMPTS = 5
_MOST_READ = 2000  # characters of an error
# A trace of so many times as many equations is a loop over a size that was unrolled.
_LONGER, _MORE = 2, 200
_TRACES = 3  # a capture may trace so often, to note calls


@dataclass(frozen=True, slots=True)
class Group:
    """Dimensions of the inputs that are of one size: `old` in the example, `size` where it stands for nothing else.

    `multiple`: what both are multiples of, where that is part of the program (an image that is halved).
    """

    places: tuple[Place, ...]
    old: int
    size: int
    multiple: int = 1


@dataclass(frozen=True, slots=True)
class Sized:
    """The function at other sizes. `dynamic`: the arguments there, those that are traced. `objects`: parameters that are no
    data, there and in the examples, by name."""

    captured: Captured
    dynamic: Arguments
    groups: tuple[Group, ...]
    objects: list[tuple[str, tuple[Any, ...]]]


def at_other_sizes(
    example: Captured,
    trace: Callable[[Arguments], Captured],
    plain: Callable[[Arguments], Captured],
    others: Sequence[Captured] = (),
) -> Iterator[Sized]:
    """The example's function traced at sizes that tell what follows them, with as many as may differ first.

    trace: traces the function on other arguments in the place of `(example.args, example.kwargs)`; plain: the same, quickly,
    where only its numbers are looked at. others: the function traced on further arguments, for which the text has to hold
    as well. What comes has `captured.example`, `captured.numbers` and `captured.limits`.
    """
    leaves = jax.tree_util.tree_leaves((example.args, example.kwargs))
    inputs = jax_compat.open_jaxpr(example.jaxpr)[0].invars
    if any(jax_compat.has_typed_mesh(v.aval) for v in inputs if jax_compat.is_shaped_array(v.aval)):
        return
    roots = _roots(example)
    tied = _candidates(example, [v.aval for v in inputs], roots)
    if not tied or len(leaves) != len(inputs):
        return
    taken = correspondence(example.jaxpr).integers
    count = jax_compat.count_of_equations(example.jaxpr)
    given = [o.jaxpr.in_avals for o in (example, *others)]
    is_one = lambda t: given[0][t.places[0][0]].shape[t.places[0][1]] == 1  # noqa: E731
    apart: set[tuple[Place, ...]] = set()
    for chosen in _choices(tied, roots, is_one, apart):
        groups = tuple(_sized(chosen, given, taken))
        try:
            dynamic = resized(example, groups)
            with jax_compat.at_most_equations(_TRACES * (_LONGER * count + _MORE)):
                captured = trace(dynamic)
            every = [captured, example, *others]
            sizes = [[one.jaxpr.in_avals[n].shape[axis] for one in every] for n, axis in (g.places[0] for g in groups)]

            def at(others: Sequence[int], groups: Sequence[Group] = groups) -> Captured:
                return plain(resized(example, [replace(g, size=n) for g, n in zip(groups, others, strict=True)]))

            followed = Followed(followed_numbers(every), sizes, [g.multiple for g in groups], every, at)
            least = followed.least()
            followed.turned()
            found = followed.told_apart()
        except UntraceError as error:
            apart.update(g.places for g in groups if _is_named(g, error))
            continue
        except Different:
            continue
        captured.beside = Beside(example, groups)
        captured.limits = {g.size: Limit(n, g.multiple) for g, n in zip(groups, least, strict=True)}
        if _noted(captured, found):
            yield Sized(captured, dynamic, groups, found.objects)


def note_numbers(captured: Captured, form: Any, example: Any) -> bool:
    """Adds the numbers of another form of a program, beside the same of its example: a rewrite may compute some. Whether
    the two correspond."""
    try:
        return _noted(captured, correspondence(form, example), rounded=True)
    except Different:
        return False


def has_news(captured: Captured, *forms: Any) -> bool:
    """Whether a form of a program at other sizes has numbers, or functions, of which nobody knows what they are at the
    example's."""
    beside = captured.beside
    assert beside is not None
    for found in map(correspondence, forms):
        if not found.numbers() <= beside.numbers or any(one not in beside.others for one in found.others):
            return True
    return False


def at_example(captured: Captured, form: Any) -> Any:
    """A form of a program that was captured at other sizes, at those of its example."""
    numbers, beside = captured.numbers, captured.beside
    assert numbers is not None and beside is not None
    integers = {n: seen[0] for n, seen in numbers.integers.items()}
    fractions = {n: seen[0] for n, seen in numbers.fractions.items()}
    return Resizer(integers, fractions, IdentityMap(seen[:2] for _, seen in beside.objects)).jaxpr(form)


def _noted(captured: Captured, found: Correspondence, rounded: bool = False) -> bool:
    """Adds to the numbers that follow the sizes; False where one stands for several. rounded: whether new fractions may have
    been rounded on the way."""
    known, beside = captured.numbers or SizeNumbers(), captured.beside
    assert beside is not None
    following = found.following()
    if following is None or any(len(seen) > 1 for seen in found.fractions.values()):
        return False
    fractions = {n: next(iter(seen)) for n, seen in found.fractions.items()}
    captured.numbers = SizeNumbers(
        {**following, **known.integers},  # of all examples, where those are known
        {**fractions, **known.fractions},
        known.rounded | (fractions.keys() - known.fractions.keys() if rounded else set()),
    )
    beside.objects += found.objects
    beside.numbers |= found.numbers()
    beside.others.update(found.others)
    beside.equations.update({eqns[0]: eqns[1] for eqns in found.pairs})
    return True


def resized(example: Captured, groups: Sequence[Group]) -> Arguments:
    """The example's arguments with other sizes; what stays as it is stays the very object."""
    sizes = {place: g.size for g in groups for place in g.places}
    leaves, tree = jax.tree_util.tree_flatten((example.args, example.kwargs))
    avals = example.jaxpr.in_avals
    new = []
    for number, (leaf, aval) in enumerate(zip(leaves, avals, strict=True)):
        shape = tuple(sizes.get((number, axis), n) for axis, n in enumerate(getattr(aval, "shape", ())))
        changed = shape != getattr(aval, "shape", ())
        new.append(jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=aval.weak_type) if changed else leaf)
    args, kwargs = jax.tree_util.tree_unflatten(tree, new)
    return args, kwargs


def _roots(example: Captured) -> list[tuple[int, int]]:
    """Of each input: the argument that it belongs to, and how many leaves that has."""
    found: list[tuple[int, int]] = []
    for number, argument in enumerate((*example.args, *[example.kwargs[k] for k in sorted(example.kwargs)])):
        count = len(jax.tree_util.tree_leaves(argument))
        found += [(number, count)] * count
    return found


def _candidates(example: Captured, avals: Sequence[Any], roots: Sequence[tuple[int, int]]) -> list[Tied]:
    """Dimensions that may be of another size, those of one size in one tree of many together: the layers of a model."""
    found: list[list[Place]] = []
    strided: set[Place] = set()
    by_tree: dict[tuple[int, int], list[Place]] = {}
    for tied in tied_dimensions(example.jaxpr):
        size = avals[tied.places[0][0]].shape[tied.places[0][1]]
        leads = all(axis == 0 and roots[i][1] == 1 for i, axis in tied.places)
        if type(size) is not int or size < 1 or size == 1 and not leads:  # a batch of one is a batch
            continue
        if tied.strided:
            strided.update(tied.places)
        trees = {roots[i][0] for i, _ in tied.places if roots[i][1] > 1}
        known = [by_tree[tree, size] for tree in sorted(trees) if (tree, size) in by_tree]
        group = known[0] if known else []
        if not known:
            found.append(group)
        for other in known[1:]:
            if other is not group:
                group += other
                found.remove(other)
                by_tree.update({key: group for key, value in by_tree.items() if value is other})
        group += tied.places
        by_tree.update({(tree, size): group for tree in trees})
    return [Tied(tuple(sorted(group)), not strided.isdisjoint(group)) for group in found]


def _is_named(group: Group, error: UntraceError) -> bool:
    """Whether what was raised speaks of the size that was tried and of the example's own: the two were meant to be one."""
    numbers = set(re.findall(r"(?<![\w.])\d+(?![\w.])", str(error.__cause__)[:_MOST_READ]))
    return {str(group.size), str(group.old)} <= numbers


def _choices(
    tied: Sequence[Tied],
    roots: Sequence[tuple[int, int]],
    is_one: Callable[[Tied], bool],
    apart: Container[tuple[Place, ...]],
) -> Iterator[list[Tied]]:
    """All together; then those that are not a model's alone; those that are the first axis wherever they stand (batches);
    and each of those alone. What is taken apart in strides is tried as if it were not, then with the factors that it has,
    then left as it is. apart: what is left out, which may become more after each."""
    several = [t for t in tied if not is_one(t)]
    whole = [t for t in several if not t.strided]
    leading = [t for t in whole if all(axis == 0 for _, axis in t.places)]
    data = [t for t in whole if t in leading or any(roots[i][1] == 1 for i, _ in t.places)]
    first = [t for t in leading if len({n for n, _ in t.places}) > 1] or leading
    as_if_whole = [Tied(t.places) for t in several]
    alone = [[t] for t in reversed(first or [t for t in several if all(axis == 0 for _, axis in t.places)])]
    seen: list[list[Tied]] = [[]]
    for choice in ([Tied(t.places) for t in tied], as_if_whole, several, whole, data, leading, first, *alone):
        for _ in range(2):  # once more where the first told something
            left = [t for t in choice if t.places not in apart]
            if left not in seen and len(seen) <= _MOST_ATTEMPTS:
                seen.append(left)
                yield left


def _sized(chosen: Sequence[Tied], given: Sequence[Sequence[Any]], taken: Any) -> list[Group]:
    """A size for each, that stands for nothing else in the trace. given: the types of the inputs in each example.

    They are in the order of the example's (a matrix of more rows than columns stays one). A size is odd where the example's
    is even, and even where that is odd: halves are rounded in one of them. What is taken apart in strides keeps the factors
    of two that it has.
    """
    start = _STARTS.get(len(chosen), _START)
    found: dict[int, Group] = {}
    taken_here: list[int] = []
    sizes = [[avals[t.places[0][0]].shape[t.places[0][1]] for avals in given] for t in chosen]
    last = 0
    for place in sorted(range(len(chosen)), key=lambda i: sizes[i][0]):
        tied, old = chosen[place], sizes[place][0]
        multiple = min(math.gcd(*sizes[place], _MOST_HALVED), _MOST_HALVED) if tied.strided else 1
        power = multiple if tied.strided else 1 + old % 2
        prime = max(start, last + 1, 3 * old // 2) // power
        while (
            not _is_prime(prime)
            or prime * power <= last
            or prime * power in sizes[place]
            or any(prime * k in taken or prime * k in taken_here for k in (1, 2, 4, 8, 16))
        ):
            prime += 1
        last = prime * power
        taken_here += [prime, last]
        found[place] = Group(tied.places, old, last, multiple)
    return [found[place] for place in range(len(chosen))]


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % d for d in range(2, math.isqrt(number) + 1))


def in_words(captured: Captured, words: Mapping[int, str]) -> str:
    """`, at n, m = 3, 4 and 2003, 2011`: the sizes at which a text was traced; "" of one that has its example's only."""
    groups = [g for g in (captured.beside.groups if captured.beside else ()) if g.size in words]
    if not groups:
        return ""
    names, old, new = zip(*[(words[g.size], str(g.old), str(g.size)) for g in groups], strict=True)
    return f", at {', '.join(names)} = {', '.join(old)} and {', '.join(new)}"
