"""Which dimensions of a program's inputs have to be of one size: those of `x: f32[n,k]; w: f32[k]; y: f32[n]`.

Sizes are followed through a jaxpr. Every dimension of an input starts as a size of its own, and what an equation asks of
its operands makes two of them one. Of a primitive without a rule here, equal sizes are taken to be one. Nothing rests on
the answer: it proposes sizes to trace at, and the traces decide.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from untrace import jax_compat

Place = tuple[int, int]  # (number of the input, axis)
Dims = tuple[int, ...]

# Each equation of a shared function is followed once for each call, so many at most.
_MOST_EQUATIONS = 200_000
_MOST_TIMES = 64  # that a size is in another


@dataclass(frozen=True, slots=True)
class Tied:
    """Dimensions of inputs that are of one size. `strided`: whether something is taken of it in strides, or it is shared out
    among devices, so that it has to be a multiple of something. `terms`, `plus`: what the size is the sum of, others by one
    of their dimensions and how often it is in it (`concatenate([x, h]) @ w`); none where it is a size of its own.
    `parts`: the sizes of what it is taken apart to, each time. `multiple`: what it has to be a multiple of."""

    places: tuple[Place, ...]
    strided: bool = False
    terms: tuple[tuple[Place, int], ...] = ()
    plus: int = 0
    parts: tuple[tuple[int, ...], ...] = ()
    multiple: int = 1


def tied_dimensions(closed: Any) -> list[Tied]:
    """The dimensions of the inputs of a closed jaxpr, those of one size together, in the order of the inputs.

    Left out are those that can hardly be of another size: as large as a constant of the program or as what is computed of
    other sizes, or taken apart (heads of one width, the three coordinates of a point).
    """
    ties = _Ties()
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    inputs = [ties.dims(v.aval) for v in jaxpr.invars]
    ties.follow(closed, inputs)
    ties.settle(inputs)
    found: dict[int, list[Place]] = {}
    for number, dims in enumerate(inputs):
        for axis, dim in enumerate(dims):
            found.setdefault(ties.root(dim), []).append((number, axis))
    sums = ties.finish(found.keys())
    every: list[Tied] = []
    for root, places in found.items():
        if not ties.is_fixed(root):
            terms, plus = sums.get(root, ({}, 0))
            whole = tuple([(found[part][0], count) for part, count in terms.items()])
            parts = () if terms else tuple(ties.parts.get(root, ()))
            every.append(Tied(tuple(places), ties.is_strided(root), whole, plus, parts))
    return every


class _Ties:
    """Sizes as numbered nodes, those that have to be equal joined (union-find)."""

    def __init__(self) -> None:
        self.sizes: list[Any] = []
        self._parents: list[int] = []
        self._fixed: set[int] = set()
        self._strided: set[int] = set()  # dimensions, not roots
        self._parts: dict[int, set[int]] = {}  # dimension -> where slices of one begin in it
        self.whole: dict[int, int] = {}  # dimension of a slice -> that which it is a part of
        self._sums: list[tuple[int, Sequence[int]]] = []  # (dimension, those that it is as large as together)
        self._rows: list[tuple[int, int]] = []  # (dimension, as many places at which something is taken of it)
        self._apart: list[tuple[int, Sequence[int]]] = []  # (dimension, those that it is taken apart to)
        self._together: list[tuple[int, Sequence[int]]] = []  # (dimension, those that it is put together of)
        self.parts: dict[int, list[tuple[int, ...]]] = {}  # of an input that is no sum, in the end
        self._slices: dict[int, dict[int, tuple[int, int]]] = {}  # dimension -> start -> (limit, dimension of a slice)
        self._left = _MOST_EQUATIONS

    def dims(self, aval: Any, fixed: bool = False) -> Dims:
        """Sizes of their own for the dimensions of a value."""
        start = len(self.sizes)
        shape = getattr(aval, "shape", ())
        self.sizes.extend(shape)
        places = range(start, len(self.sizes))
        self._parents.extend(places)
        if fixed:
            self._fixed.update(places)
        return tuple(places)

    def new(self, size: int) -> int:
        """A size that is no dimension of a value."""
        self.sizes.append(size)
        self._parents.append(len(self._parents))
        return len(self.sizes) - 1

    def root(self, dim: int) -> int:
        while self._parents[dim] != dim:
            self._parents[dim] = self._parents[self._parents[dim]]
            dim = self._parents[dim]
        return dim

    def fix(self, *dims: int) -> None:
        """Says that these are as large as they are."""
        self._fixed.update([self.root(d) for d in dims])

    def stride(self, *dims: int) -> None:
        """Says of these that something is taken of them in strides."""
        self._strided.update(dims)

    def is_strided(self, root: int) -> bool:
        return any(self.root(d) == root for d in self._strided)

    def take_part(self, dim: int, start: int) -> None:
        """Notes that one place of a dimension is taken: all of them in turn are a record of its own, or a loop."""
        self._parts.setdefault(dim, set()).add(start)

    def slice(self, dim: int, start: int, limit: int, part: int) -> None:
        """Notes a slice of consecutive places: slices that are a dimension in turn say what it is the sum of."""
        if limit > start:
            self._slices.setdefault(dim, {}).setdefault(start, (limit, part))

    def sum(self, whole: int, parts: Sequence[int]) -> None:
        """Says of a dimension that it is as large as these together."""
        self._sums.append((whole, parts))

    def take_rows(self, dim: int, places: Sequence[int]) -> None:
        """Notes the places at which rows are taken, where they are as many as there are rows."""
        self._rows += [(dim, place) for place in places if self.sizes[place] == self.sizes[dim] > 1]

    def take_apart(self, whole: int, parts: Sequence[int]) -> None:
        """Says of a dimension that it becomes several."""
        self._apart.append((whole, parts))

    def put_together(self, whole: int, parts: Sequence[int]) -> None:
        """Says of a dimension that it was several."""
        self._together.append((whole, parts))

    def computed(self) -> list[int]:
        """The dimensions of which is said how large they are."""
        return [whole for said in (self._sums, self._apart, self._together) for whole, _ in said]

    def settle(self, inputs: Sequence[Dims]) -> None:
        """Ties what is taken apart to the same parts, and what is put together of such; and rows to the places, made without
        any input, at which all of them are taken (`x[permutation]`)."""
        given = {self.root(dim) for dim in itertools.chain(*inputs)} | self._fixed
        for rows, place in [(rows, place) for rows, place in self._rows if self.root(place) not in given]:
            self.tie([rows], [place])
        apart: dict[tuple[tuple[int, ...], int], int] = {}
        for whole, parts in self._apart:
            self.tie([whole], [apart.setdefault((tuple([self.root(p) for p in parts]), self.sizes[whole]), whole)])
        for whole, parts in self._together:
            known = apart.get((tuple([self.root(p) for p in parts]), self.sizes[whole]))
            if known is None:
                self.fix(whole)
            else:
                self.tie([whole], [known])

    def finish(self, inputs: Set[int]) -> dict[int, tuple[dict[int, int], int]]:
        """Which of the inputs' sizes are sums: of which others, each how often, and of how many places more."""
        starts: dict[int, set[int]] = {}
        slices: dict[int, dict[int, tuple[int, int]]] = {}
        for dim, several in self._parts.items():
            starts.setdefault(self.root(dim), set()).update(several)
        self._fixed.update([root for root, several in starts.items() if len(several) == self.sizes[root] > 1])
        for dim, parts in self._slices.items():
            slices.setdefault(self.root(dim), {}).update(parts)
        sums: dict[int, list[int]] = {}
        for whole, parts in self._sums:
            sums.setdefault(self.root(whole), [self.root(p) for p in parts])
        for whole, parts in slices.items():
            chain, end = [], 0
            while end in parts:
                end, part = parts[end]
                chain.append(self.root(part))
            if end == self.sizes[whole] and len(chain) > 1 and not inputs.isdisjoint(chain):
                sums.setdefault(whole, chain)
        for whole, parts in self._apart:
            root, several = self.root(whole), [self.root(p) for p in parts]
            given = [p for p in several if p in inputs and p not in self._fixed]
            if len(given) == 1 and self.sizes[root] <= _MOST_TIMES * self.sizes[given[0]]:
                sums.setdefault(root, given * (self.sizes[root] // self.sizes[given[0]]))
            elif given:
                self._fixed.add(root)
            else:
                self.parts.setdefault(root, []).append(tuple([self.sizes[p] for p in several]))
        return self._solved(inputs, sums)

    def _solved(self, inputs: Set[int], sums: Mapping[int, Sequence[int]]) -> dict[int, tuple[dict[int, int], int]]:
        """The sums of inputs. One of itself, and one of nothing but what is as large as it is, are that too; of what is made
        without any input (the places of a `linspace`) is not known whether it is."""

        known: dict[int, Counter[int | None]] = {}

        def terms(root: int, around: Set[int]) -> Counter[int | None]:  # None: what is as large as it is
            if root in around:
                raise RecursionError
            if root not in sums or root in self._fixed:
                is_free = root in inputs and root not in self._fixed
                made.update([root] if not is_free and self.sizes[root] > 1 and root not in self._fixed else [])
                return Counter({root: 1} if is_free else {None: self.sizes[root]})
            if root not in known:
                known[root] = sum([terms(part, around | {root}) for part in sums[root]], Counter())
            return known[root]

        found: dict[int, tuple[dict[int, int], int]] = {}
        for root in inputs & sums.keys() - self._fixed:
            made: set[int] = set()
            try:
                counted = Counter(terms(root, frozenset()))
            except RecursionError:
                counted = Counter()
            plus = counted.pop(None, 0)
            several = {part: n for part, n in counted.items() if part is not None}
            if several:
                found[root] = several, plus
            elif not made and root not in self.parts:
                self._fixed.add(root)
        return found

    def is_fixed(self, root: int) -> bool:
        return root in self._fixed

    def tie(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Says of dimensions that each pair is one size. A pair of different sizes is none (a value was broadcast)."""
        for a, b in zip(left, right, strict=False):
            a, b = self.root(a), self.root(b)
            if a != b and self.sizes[a] == self.sizes[b]:
                self._parents[max(a, b)] = min(a, b)
                if max(a, b) in self._fixed:
                    self._fixed.add(min(a, b))

    def tie_equal(self, *values: Dims) -> None:
        """Takes all dimensions of equal size to be one, but those of size 1."""
        seen: dict[Any, int] = {}
        for dim in (d for value in values for d in value if self.sizes[d] != 1):
            other = seen.setdefault(self.sizes[dim], dim)
            self.tie([dim], [other])

    def follow(self, closed: Any, inputs: Sequence[Dims]) -> list[Dims]:
        """The dimensions of a jaxpr's results, from those of its inputs."""
        jaxpr, constants = jax_compat.open_jaxpr(closed)
        known: dict[Any, Dims] = dict(zip(jaxpr.invars, inputs, strict=True))
        known.update((v, self.dims(v.aval, fixed=True)) for v in jaxpr.constvars)

        def read(atom: Any) -> Dims:
            return self.dims(atom.aval, fixed=True) if type(atom) is jax_compat.LITERAL_TYPE else known[atom]

        for eqn in jaxpr.eqns:
            self._left -= 1
            operands = [read(a) for a in eqn.invars]
            results = self._through(eqn, operands) if self._left > 0 else None
            if results is None:
                results = [self.dims(v.aval) for v in eqn.outvars]
                self.tie_equal(*operands, *results)
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(a) for a in jaxpr.outvars]

    def _through(self, eqn: Any, operands: list[Dims]) -> list[Dims] | None:
        """The dimensions of an equation's results; None of what has no rule."""
        rule = _RULES.get(eqn.primitive.name)
        if rule is not None:
            return rule(self, eqn, operands)
        inner = jax_compat.jaxprs_in(eqn)
        if len(inner) == 1 and len(jax_compat.open_jaxpr(inner[0])[0].invars) == len(operands):
            results = self.follow(inner[0], operands)
            return results if len(results) == len(eqn.outvars) else None
        return None if inner else self._elementwise(eqn, operands)

    def _elementwise(self, eqn: Any, operands: list[Dims]) -> list[Dims] | None:
        """Axis by axis, where all operands are scalars or of the shape of all results, but for axes of one."""
        avals = [v.aval for v in (*eqn.invars, *eqn.outvars)]
        shapes = [a.shape for a in avals if getattr(a, "shape", ())]
        if any(not hasattr(v.aval, "shape") for v in eqn.outvars) or len({len(s) for s in shapes}) > 1:
            return None
        wide = [max(sizes) for sizes in zip(*shapes, strict=True)]
        if any(n not in (1, most) for shape in shapes for n, most in zip(shape, wide, strict=True)):
            return None
        if any(v.aval.shape and list(v.aval.shape) != wide for v in eqn.outvars):
            return None
        results = [self.dims(v.aval) for v in eqn.outvars]
        for other in (*operands, *results[1:]):
            if other and results and results[0]:
                self.tie(results[0], other)
        return results


Rule = Callable[[_Ties, Any, list[Dims]], "list[Dims] | None"]


def _reduced(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    axes = eqn.params["axes"]
    return [tuple(d for i, d in enumerate(operand) if i not in axes) for operand in operands][: len(eqn.outvars)]


def _transposed(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    return [tuple(operands[0][i] for i in eqn.params["permutation"])]


def _squeezed(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    return [tuple(d for i, d in enumerate(operands[0]) if i not in eqn.params["dimensions"])]


def _broadcast(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    result = ties.dims(eqn.outvars[0].aval)
    ties.tie([result[i] for i in eqn.params["broadcast_dimensions"]], operands[0])
    return [result]


def _same_places(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    """Axis by axis where sizes are equal: a slice or a padding that leaves a dimension whole."""
    results = [ties.dims(v.aval) for v in eqn.outvars]
    for result in results:
        ties.tie(result, operands[0])
    return results


def _sliced(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    for dim, start, limit in zip(operands[0], starts, limits, strict=True):
        if limit - start == 1:
            ties.take_part(dim, start)
    for dim, stride in zip(operands[0], eqn.params["strides"] or (), strict=False):
        if stride != 1:
            ties.stride(dim)
    results = _same_places(ties, eqn, operands)
    ties.whole.update(zip(results[0], operands[0], strict=True))
    if eqn.params["strides"] is None:
        for dim, start, limit, part in zip(operands[0], starts, limits, results[0], strict=True):
            ties.slice(dim, start, limit, part)
    return results


def _split(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    axis, results = eqn.params["axis"], _same_places(ties, eqn, operands)
    parts = [result[axis] for result in results]
    if len({ties.sizes[part] for part in parts}) == 1:
        for part in parts[1:]:
            ties.tie([part], [parts[0]])
        ties.take_apart(operands[0][axis], [ties.new(len(parts)), parts[0]])
    else:
        ties.sum(operands[0][axis], parts)
    return results


def _stacked(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    result, axis = ties.dims(eqn.outvars[0].aval), eqn.params["axis"]
    ties.fix(result[axis])
    for operand in operands:
        ties.tie((*result[:axis], *result[axis + 1 :]), operand)
    return [result]


def _unstacked(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    axis = eqn.params["axis"]
    ties.fix(operands[0][axis])
    return [(*operands[0][:axis], *operands[0][axis + 1 :])] * len(eqn.outvars)


def _windowed(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    ties.stride(*[d for d, n in zip(operands[0], eqn.params["window_strides"], strict=True) if n != 1])
    return _same_places(ties, eqn, operands)


def _reshaped(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    """The dimensions that stay, from both ends; between them what is put together is computed, what is taken apart fixed."""
    result, operand = ties.dims(eqn.outvars[0].aval), operands[0]
    left = right = 0
    shortest = min(len(operand), len(result))
    same = lambda i: ties.sizes[operand[i]] == ties.sizes[result[i]]  # noqa: E731
    while left < shortest and same(left):
        left += 1
    while right < shortest - left and same(-1 - right):
        right += 1
    ties.tie(operand[:left], result[:left])
    ties.tie(operand[len(operand) - right :], result[len(result) - right :])
    old = [d for d in operand[left : len(operand) - right] if ties.sizes[d] != 1]
    new = [d for d in result[left : len(result) - right] if ties.sizes[d] != 1]
    if len(new) > 1 and len(old) == 1:
        ties.take_apart(old[0], new)
    elif len(new) > 1:
        ties.fix(*old)
    elif len(old) > 1:
        for whole in new:
            ties.put_together(whole, old)
    return [result]


def _concatenated(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    result, axis = ties.dims(eqn.outvars[0].aval), eqn.params["dimension"]
    wholes = {ties.root(ties.whole.get(operand[axis], operand[axis])) for operand in operands}
    if len(wholes) == 1 and ties.sizes[min(wholes)] == ties.sizes[result[axis]]:  # parts of one in another order
        ties.tie([result[axis]], [min(wholes)])
    else:
        ties.sum(result[axis], [operand[axis] for operand in operands])
    for operand in operands:
        for i, dim in enumerate(operand):
            if i != axis:
                ties.tie([dim], [result[i]])
    return [result]


def _product(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    (left_sum, right_sum), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    left, right = operands[:2]
    for ours, theirs in ((left_sum, right_sum), (left_batch, right_batch)):
        ties.tie([left[i] for i in ours], [right[i] for i in theirs])
    rest = [d for i, d in enumerate(left) if i not in (*left_sum, *left_batch)]
    rest += [d for i, d in enumerate(right) if i not in (*right_sum, *right_batch)]
    return [(*[left[i] for i in left_batch], *rest)]


def _convolved(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    numbers = eqn.params["dimension_numbers"]
    lhs, rhs, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    left, right = operands
    result = ties.dims(eqn.outvars[0].aval)
    ties.tie([result[out[0]], result[out[1]]], [left[lhs[0]], right[rhs[0]]])
    ties.tie([result[i] for i in out[2:]], [left[i] for i in lhs[2:]])
    for whole, window, made in zip(
        *[[d[i] for i in spec[2:]] for d, spec in ((left, lhs), (right, rhs), (result, out))], strict=True
    ):
        if ties.sizes[whole] == ties.sizes[window] != ties.sizes[made]:  # images, of which a kernel's gradient is made
            ties.tie([whole], [window])
        else:
            ties.fix(window)  # a kernel, as wide as the padding wants it
    strides, dilation = eqn.params["window_strides"], eqn.params["lhs_dilation"]
    ties.stride(*[left[i] for i, n, d in zip(lhs[2:], strides, dilation, strict=True) if n != 1 or d != 1])
    if eqn.params["feature_group_count"] == eqn.params["batch_group_count"] == 1:
        ties.tie([left[lhs[1]]], [right[rhs[1]]])
    return [result]


def _gathered(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    operand, indices = operands
    result = ties.dims(eqn.outvars[0].aval)
    collapsed = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    ties.tie(
        [operand[i] for i in numbers.operand_batching_dims], [indices[i] for i in numbers.start_indices_batching_dims]
    )
    kept = [i for i in range(len(operand)) if i not in collapsed]
    for at, i in zip(numbers.offset_dims, kept, strict=True):
        if sizes[i] == ties.sizes[operand[i]]:
            ties.tie([result[at]], [operand[i]])
    ties.tie([result[i] for i in range(len(result)) if i not in numbers.offset_dims], indices[:-1])
    for i in numbers.collapsed_slice_dims:
        ties.take_rows(operand[i], indices[:-1])
    return [result]


def _scattered(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    numbers = eqn.params["dimension_numbers"]
    operand, indices, updates = operands
    inserted = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    places = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
    ties.tie(*[[dims[i] for i in axes] for dims, axes in zip((operand, indices), places, strict=True)])
    kept = [d for i, d in enumerate(operand) if i not in inserted]
    ties.tie([updates[i] for i in numbers.update_window_dims], kept)
    ties.tie([d for i, d in enumerate(updates) if i not in numbers.update_window_dims], indices[:-1])
    return [operand]


def _updated(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    ties.tie(operands[1], operands[0])
    return [operands[0]]


def _scanned(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    consts, carries = jax_compat.scan_counts(eqn)
    start, elements = operands[consts : consts + carries], operands[consts + carries :]
    for other in elements[1:]:
        ties.tie(other[:1], elements[0][:1])
    results = ties.follow(eqn.params["jaxpr"], [*operands[:consts], *start, *[e[1:] for e in elements]])
    for before, after in zip(start, results, strict=False):
        ties.tie(before, after)
    length = [ties.dims(v.aval)[:1] for v in eqn.outvars[carries:]]
    for one in length:
        ties.tie(one, elements[0][:1] if elements else length[0])
    return [*start, *[(*one, *rest) for one, rest in zip(length, results[carries:], strict=True)]]


def _looped(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    outside = eqn.params["cond_nconsts"]
    start = operands[outside + eqn.params["body_nconsts"] :]
    ties.follow(eqn.params["cond_jaxpr"], [*operands[:outside], *start])
    results = ties.follow(eqn.params["body_jaxpr"], operands[outside:])
    for before, after in zip(start, results, strict=True):
        ties.tie(before, after)
    return start


def _chosen(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    branches = [ties.follow(branch, operands[1:]) for branch in eqn.params["branches"]]
    for branch in branches[1:]:
        for one, other in zip(branches[0], branch, strict=True):
            ties.tie(one, other)
    return branches[0]


def _sharded(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
    """Inside, sizes are those of one device: what is one there is one outside."""
    inner = [ties.dims(v.aval) for v in jax_compat.open_jaxpr(eqn.params["jaxpr"])[0].invars]
    outer = [*operands, *[ties.dims(v.aval) for v in eqn.outvars]]
    known: dict[int, int] = {}
    before = set(ties.computed())
    results = ties.follow(eqn.params["jaxpr"], inner)
    ties.fix(*[dim for dim in ties.computed() if dim not in before])
    for local, whole in zip([*inner, *results], outer, strict=True):
        for one, other in zip(local, whole, strict=True):
            if ties.sizes[one] != ties.sizes[other]:
                ties.stride(other)
            ties.tie([known.setdefault(ties.root(one), other)], [other])
            if ties.is_fixed(ties.root(one)):
                ties.fix(other)
    return outer[len(operands) :]


def _called(name: str) -> Rule:
    def rule(ties: _Ties, eqn: Any, operands: list[Dims]) -> list[Dims]:
        return ties.follow(eqn.params[name], operands)

    return rule


def _square(ties: _Ties, eqn: Any, operands: list[Dims]) -> None:
    """Nothing by itself: of a matrix the two sizes may have to be equal."""
    return None


_RULES: dict[str, Rule] = {
    **dict.fromkeys("cholesky lu eigh eig qr geqrf ormqr householder_product svd schur triangular_solve".split(), _square),
    **dict.fromkeys("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin".split(), _reduced),
    **dict.fromkeys("dynamic_slice pad".split(), _same_places),
    **dict.fromkeys("reduce_window_sum reduce_window_max reduce_window_min".split(), _windowed),
    **dict.fromkeys("scatter scatter-add scatter_add scatter_mul scatter_min scatter_max".split(), _scattered),
    "split": _split, "stack": _stacked, "unstack": _unstacked, "slice": _sliced,
    "transpose": _transposed, "squeeze": _squeezed, "broadcast_in_dim": _broadcast, "reshape": _reshaped,
    "concatenate": _concatenated, "dot_general": _product, "conv_general_dilated": _convolved, "gather": _gathered,
    "dynamic_update_slice": _updated, "scan": _scanned, "while": _looped, "cond": _chosen,
    "shard_map": _sharded,
    "custom_jvp_call": _called("call_jaxpr"), "custom_vjp_call": _called("call_jaxpr"),
}  # fmt: skip
