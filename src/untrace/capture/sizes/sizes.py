"""A function traced at sizes of its inputs that stand for nothing else, beside the trace of the user's example.

A number in a trace does not say where it came from: 8 may be the rows of the example or the width of a layer. So the
function is traced again with primes in the place of the sizes that may differ. What is another number in that trace
follows the inputs, and is written so (`module.sizes`); what differs in anything else does not.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
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
_BETWEEN = 8  # two sizes, that all but one of some is not another
# An image that is halved several times needs a size that can be halved.
_MOST_HALVED = 16
_MOST_ATTEMPTS = 5
_FEW = 4  # sizes, of which one may be the program's own
_PRIMES = (5, 7, 11, 13, 17)  # how often as large as the example's are dimensions that are taken apart
_MOST_NEAR = 2  # of them also with sizes that are near the example's
_MOST_READ = 2000  # characters of an error
# A trace of so many times as many equations is a loop over a size that was unrolled.
_LONGER, _MORE = 2, 200
_TRACES = 3  # a capture may trace so often, to note calls


@dataclass(frozen=True, slots=True)
class Group:
    """Dimensions of the inputs that are of one size: `old` in the example, `size` where it stands for nothing else.

    `multiple`: what both are multiples of, where that is part of the program (an image that is halved). `terms`, `plus`:
    what the size is the sum of, the sizes of other groups and how often each is in it.
    """

    places: tuple[Place, ...]
    old: int
    size: int
    multiple: int = 1
    terms: tuple[tuple[int, int], ...] = ()
    plus: int = 0


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
    every = _with_multiples(example, tied_dimensions(example.jaxpr), roots, plain)
    given = [o.jaxpr.in_avals for o in (example, *others)]
    every = [t if all(_is_sum(t, avals) for avals in given) else replace(t, terms=(), plus=0) for t in every]
    # Those that are taken apart only where a text is proven for them: once, with all others.
    choices = [every, [t for t in every if not t.parts]] if any(t.parts for t in every) else [every]
    tied, sums = _candidates(example, every, roots)
    if not tied or len(leaves) != len(inputs):
        return
    taken = set(correspondence(example.jaxpr).integers)
    count = jax_compat.count_of_equations(example.jaxpr)
    is_one = lambda t: given[0][t.places[0][0]].shape[t.places[0][1]] == 1  # noqa: E731
    apart: set[tuple[Place, ...]] = set()
    halved: set[tuple[Place, ...]] = set()
    near_left = _MOST_NEAR

    def attempt(chosen: Sequence[Tied], far: Sequence[int] | None = None) -> Sized | None:
        """With sizes near the example's where the program is another one at those `far` from it."""
        nonlocal near_left
        is_near = far is not None
        chosen = [replace(t, multiple=math.lcm(t.multiple, 2)) if t.places in halved else t for t in chosen]
        groups, whole = _told_apart(lambda taken: _sized(chosen, given, taken, is_near), taken, sums, example)

        def at(sizes: Sequence[int]) -> Captured:
            several = [replace(g, size=n) for g, n in zip(groups, sizes, strict=True)]
            return plain(resized(example, _with_sums(several, sums, example)))

        try:
            dynamic = resized(example, whole)
            multiples = [g.multiple for g in groups]
            if far is not None:
                followed_numbers([at([g.size for g in groups]), example])
            with jax_compat.at_most_equations(_TRACES * (_LONGER * count + _MORE)):
                captured = trace(dynamic)
            several = [captured, example, *others]
            sizes = [
                [one.jaxpr.in_avals[n].shape[axis] for one in several] for n, axis in (g.places[0] for g in groups)
            ]
            try:
                numbers = followed_numbers(several)
            except Different:
                if is_near or not near_left:
                    raise
                near_left -= 1
                return attempt(chosen, [g.size for g in groups])
            followed = Followed(numbers, sizes, multiples, several, at)
            if far is not None:
                followed.follows_nearby()
            followed.told_apart()  # before it is asked at small sizes, where it may be another program
            least = followed.least()
            followed.turned()
            most = [None] * len(groups) if far is None else followed.most_before(far)
            found = followed.numbers
        except UntraceError as error:
            if (joined := _joined(chosen, groups, error)) is not None:
                return attempt(joined, far)
            halves = {g.places for g in groups if g.old % 2 == 0 and g.size % 2 and _is_named(g.size, error)} - halved
            if halves and not is_near:  # `x[: n // 2]` beside its other half
                halved.update(halves)
                if (found_by_halves := attempt(chosen)) is not None:
                    return found_by_halves
                halved.difference_update(halves)  # that was not it
            apart.update(g.places for g in groups if _is_named(g.size, error) and _is_named(g.old, error))
            return None
        except Different:
            return None
        captured.beside = Beside(example, whole)
        captured.limits = {g.size: Limit(n, g.multiple, m) for g, n, m in zip(groups, least, most, strict=True)}
        captured.limits |= {g.size: Limit(2, terms=g.terms, plus=g.plus) for g in whole[len(groups) :]}
        return Sized(captured, dynamic, groups, found.objects) if _noted(captured, found) else None

    for number, some in enumerate(choices, 1):
        tied, sums = _candidates(example, some, roots)
        for chosen in _choices(tied, roots, is_one, apart):
            if (sized := attempt(chosen)) is not None:
                yield sized
            if number < len(choices):
                break


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


def _is_sum(tied: Tied, avals: Sequence[Any]) -> bool:
    """Whether a size that is the sum of others is so among these types of the inputs."""
    several = sum([avals[n].shape[axis] * count for (n, axis), count in tied.terms])
    return not tied.terms or avals[tied.places[0][0]].shape[tied.places[0][1]] == several + tied.plus


def _told_apart(
    sized: Callable[[Set[int]], Sequence[Group]], taken: Set[int], sums: Sequence[Tied], example: Captured
) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """Groups, and these with sums of theirs, of which no two are of one size. sized: the groups with none of some sizes."""
    for _ in range(_MOST_ATTEMPTS):
        groups = tuple(sized(taken))
        whole = _with_sums(groups, sums, example)
        counts = Counter([g.size for g in whole])
        taken = taken | {size for size, count in counts.items() if count > 1}
        if len(counts) == len(whole):
            break
    return groups, whole


def _with_sums(groups: Sequence[Group], sums: Sequence[Tied], example: Captured) -> tuple[Group, ...]:
    """The groups, and those of dimensions that are sums of theirs."""
    sizes = {place: g for g in groups for place in g.places}
    avals = example.jaxpr.in_avals
    found: dict[Any, Group] = {}
    for tied in sums:
        counts = Counter[int]()
        for place, count in tied.terms:
            if place in sizes:
                counts[sizes[place].size] += count
        terms = tuple(sorted(counts.items()))
        fixed = [avals[n].shape[axis] * count for (n, axis), count in tied.terms if (n, axis) not in sizes]
        plus = tied.plus + sum(fixed)
        old = avals[tied.places[0][0]].shape[tied.places[0][1]]
        if terms:
            whole = plus + sum([size * count for size, count in terms])
            known = found.get((terms, plus))
            places = (*known.places, *tied.places) if known else tied.places
            found[terms, plus] = Group(places, old, whole, terms=terms, plus=plus)
    return (*groups, *found.values())


def _with_multiples(
    example: Captured, every: Sequence[Tied], roots: Sequence[tuple[int, int]], plain: Callable[[Arguments], Captured]
) -> Sequence[Tied]:
    """Dimensions of inputs, those that are taken apart with what they are multiples of: of their parts those that stay as
    they are at other sizes. Without these where the program takes no other ones."""
    apart = {place for t in every if t.parts for place in t.places}
    tied, sums = _candidates(example, every, roots)
    several = [t for t in tied if not apart.isdisjoint(t.places)]
    if not several:
        return every
    there: dict[tuple[Place, ...], Tied] = {}
    if len(several) <= len(_PRIMES):
        olds = [example.jaxpr.in_avals[n].shape[axis] for n, axis in (t.places[0] for t in several)]
        groups = [Group(t.places, old, k * old) for t, old, k in zip(several, olds, _PRIMES, strict=False)]
        try:
            other = plain(resized(example, _with_sums(groups, sums, example)))
            followed_numbers([other, example])
            there = {t.places: t for t in tied_dimensions(other.jaxpr)}
        except (UntraceError, Different):
            pass
    found = []
    for t in every:
        parts = there[t.places].parts if t.places in there else ()
        if len(parts) == len(t.parts):
            pairs = [zip(*of, strict=False) for of in zip(t.parts, parts, strict=True)]
            found.append(replace(t, multiple=math.lcm(*[math.prod([a for a, b in of if a == b]) for of in pairs])))
        elif not t.parts:
            found.append(t)
    return found


def _candidates(
    example: Captured, every: Sequence[Tied], roots: Sequence[tuple[int, int]]
) -> tuple[list[Tied], list[Tied]]:
    """Dimensions that may be of another size, those of one size in one tree of many together: the layers of a model. Beside
    them those that are sums of others."""
    found: list[list[Place]] = []
    strided: set[Place] = set()
    by_tree: dict[tuple[int, int], list[Place]] = {}
    avals = example.jaxpr.in_avals
    multiples: dict[Place, int] = {}
    for tied in every:
        if tied.terms:
            continue
        size = avals[tied.places[0][0]].shape[tied.places[0][1]]
        leads = all(axis == 0 and roots[i][1] == 1 for i, axis in tied.places)
        if type(size) is not int or size < 1 or size == 1 and not leads:  # a batch of one is a batch
            continue
        if tied.strided:
            strided.update(tied.places)
        multiples[tied.places[0]] = tied.multiple
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
    alone = []
    for group in found:
        multiple = math.lcm(*[multiples.get(place, 1) for place in group])
        alone.append(Tied(tuple(sorted(group)), not strided.isdisjoint(group), multiple=multiple))
    return alone, [tied for tied in every if tied.terms]


def _joined(chosen: Sequence[Tied], groups: Sequence[Group], error: UntraceError) -> list[Tied] | None:
    """Dimensions of which two that are of one size in the example have to be: what was raised speaks of both, or of both less
    as much (`h[1:] * q[1:]`). None where it does not."""
    said = _numbers_in(error)
    alike: list[Tied] = []
    for less in sorted(range(1 - _BETWEEN, _BETWEEN), key=abs):
        by_old: dict[int, list[Tied]] = {}
        for tied, group in zip(chosen, groups, strict=True):
            if group.size - less in said:
                by_old.setdefault(group.old, []).append(tied)
        alike = alike or next((some for some in by_old.values() if len(some) > 1), [])
    if not alike:
        return None
    one = Tied(
        tuple(sorted(place for t in alike for place in t.places)),
        any(t.strided for t in alike),
        multiple=math.lcm(*[t.multiple for t in alike]),
    )
    return [one if t is alike[0] else t for t in chosen if t is alike[0] or t not in alike]


def _is_named(size: int, error: UntraceError) -> bool:
    """Whether what was raised speaks of a size: of the one that was tried and the example's own, these were meant to be one."""
    return size in _numbers_in(error)


def _numbers_in(error: UntraceError) -> set[int]:
    return set(map(int, re.findall(r"(?<![\w.])\d+(?![\w.])", str(error.__cause__)[:_MOST_READ])))


def _choices(
    tied: Sequence[Tied],
    roots: Sequence[tuple[int, int]],
    is_one: Callable[[Tied], bool],
    apart: Container[tuple[Place, ...]],
) -> Iterator[list[Tied]]:
    """All together; of a few all but one; then those that are not a model's alone; those that are the first axis wherever they
    stand (batches); and each of those alone. What is taken apart in strides is tried as if it were not, then with the factors that it has,
    then left as it is. apart: what is left out, which may become more after each."""
    several = [t for t in tied if not is_one(t)]
    whole = [t for t in several if not t.strided]
    leading = [t for t in whole if all(axis == 0 for _, axis in t.places)]
    data = [t for t in whole if t in leading or any(roots[i][1] == 1 for i, _ in t.places)]
    first = [t for t in leading if len({n for n, _ in t.places}) > 1] or leading
    as_if_whole = [replace(t, strided=False) for t in several]
    alone = [[t] for t in reversed(first or [t for t in several if all(axis == 0 for _, axis in t.places)])]
    all_but_one = [[t for t in several if t is not left] for left in reversed(several)] if len(several) <= _FEW else []
    seen: list[list[Tied]] = [[]]
    for choice in (
        [replace(t, strided=False) for t in tied],
        as_if_whole,
        several,
        whole,
        *all_but_one,
        data,
        leading,
        first,
        *alone,
    ):
        for _ in range(2):  # once more where the first told something
            left = [t for t in choice if t.places not in apart]
            if left not in seen and len(seen) <= _MOST_ATTEMPTS:
                seen.append(left)
                yield left


def _sized(
    chosen: Sequence[Tied], given: Sequence[Sequence[Any]], taken: Set[int], is_near: bool = False
) -> list[Group]:
    """A size for each, that stands for nothing else in the trace. given: the types of the inputs in each example.

    They are in the order of the example's (a matrix of more rows than columns stays one). A size is odd where the example's
    is even, and even where that is odd: halves are rounded in one of them. What is taken apart in strides keeps the factors
    of two that it has. is_near: whether they are to be little larger than the example's.
    """
    start = _START if is_near else _STARTS.get(len(chosen), _START)
    found: dict[int, Group] = {}
    taken_here: list[int] = []
    sizes = [[avals[t.places[0][0]].shape[t.places[0][1]] for avals in given] for t in chosen]
    last = 0
    for place in sorted(range(len(chosen)), key=lambda i: sizes[i][0]):
        tied, old = chosen[place], sizes[place][0]
        halved = min(math.gcd(*sizes[place], _MOST_HALVED), _MOST_HALVED) if tied.strided else 1
        multiple = math.lcm(halved, tied.multiple)
        power = multiple if tied.strided or multiple > 1 else 1 + old % 2
        larger = old + _BETWEEN if is_near else 3 * old // 2
        prime = max(start, last + _BETWEEN if last else 0, larger) // power
        while (
            not _is_prime(prime)
            or prime * power < last + _BETWEEN * bool(last)
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
