"""Which sizes of a module's inputs may differ, and inputs of sizes that stand for nothing else.

A number in a trace does not say where it came from: 6 may be the length of the example or the width of a layer. So the
module is traced at other sizes as well, primes that the program does not have otherwise. What is an integer of that
trace and of the example's own is the model's; the others follow the inputs, and are written by their shapes
(`module.sizes`). PyTorch itself says which sizes may differ: it runs the module at each.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from untrace._identity import IdentityMap
from untrace.torch import capture as captures
from untrace.torch import trees

Place = tuple[int, int]  # (number of the tensor among the inputs, axis)

_PRIMES = (
    7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127,
    131, 137, 139, 149,
)  # fmt: skip
# A network that halves its images several times needs sizes that can be halved.
_MULTIPLES = (1, 2, 4, 8, 16)
_PASSED_OVER = 5
_SMALLEST = 3
# No more trials of the module than this many, fewer of a large one. Not seconds: the text must not depend on the hour.
_MOST_TRIALS = 400
_LARGE = 5_000_000  # parameters, for which a trial counts as one more
_MOST_PARTNERS = 5


@dataclass(frozen=True, slots=True)
class Group:
    """Dimensions of the inputs that have to be of one size, and the size that stands for it."""

    places: tuple[Place, ...]
    size: int

    @property
    def multiple(self) -> int:
        """The power of two that the size was chosen as a multiple of: images are halved; 1 for none."""
        return self.size & -self.size


class Inputs:
    """The arguments of one call, with the tensors in them numbered."""

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any]):
        import torch
        from torch.utils import _pytree

        leaves, self._spec = _pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._leaves = leaves
        self._pytree = _pytree.tree_unflatten
        self._flat: list[Any] = []
        self._counts: list[int | None] = []  # how many tensors each cache has; None of what is no cache
        for leaf in leaves:
            held = trees.tensors_of(leaf) if trees.cache_layers(leaf) is not None else None
            self._counts.append(None if held is None else len(held))
            self._flat += [leaf] if held is None else held
        self.tensors = [i for i, x in enumerate(self._flat) if isinstance(x, torch.Tensor)]

    def _unflatten(self, flat: Sequence[Any]) -> Any:
        values = iter(flat)
        leaves = []
        for leaf, count in zip(self._leaves, self._counts, strict=True):
            if count is None:
                leaves.append(next(values))
            else:
                pairs = [tuple(next(values) for _ in pair) for pair in trees.cache_layers(leaf) or ()]
                leaves.append(trees.rebuilt(leaf, pairs, lambda value: value))
        return self._pytree(leaves, self._spec)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(self._flat[i].shape) for i in self.tensors]

    def count(self, groups: Sequence[Group]) -> int:
        """How many elements they have with the groups at their sizes."""
        sizes = {place: g.size for g in groups for place in g.places}
        return sum(
            math.prod([sizes.get((number, axis), n) for axis, n in enumerate(shape)])
            for number, shape in enumerate(self.shapes)
        )

    def resized(self, groups: Sequence[Group], below: int | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same values, repeated or cut to other sizes: what was a valid index stays one. below: what integers are to be
        smaller than, None for any."""
        import torch

        sizes = {place: g.size for g in groups for place in g.places}
        flat = list(self._flat)
        for number, at in enumerate(self.tensors):
            for axis, old in enumerate(flat[at].shape):
                new = sizes.get((number, axis))
                if new is not None and new != old:
                    places = torch.arange(new) % old
                    if flat[at].ndim == 1 and _is_ascending(flat[at]):  # offsets of bags, the graph of each node
                        places = places.sort().values
                    flat[at] = flat[at].index_select(axis, places)
            if below is not None and flat[at].dtype in (torch.int32, torch.int64):
                flat[at] = flat[at] % below
        args, kwargs = self._unflatten(flat)
        return args, kwargs

    def named(self, module: Any) -> dict[Place, str]:
        """`tokens.shape[1]`: how the text calls each dimension."""
        import torch

        found: dict[Place, str] = {}
        args, kwargs = self._unflatten(self._flat)
        numbers = IdentityMap((self._flat[i], n) for n, i in enumerate(self.tensors))
        for name, value in captures._bound(module, args, kwargs):
            for path, leaf in _leaves(name, value):
                if isinstance(leaf, torch.Tensor) and leaf in numbers:
                    number = numbers[leaf]
                    found.update({(number, a): f"{path}.shape[{a}]" for a in range(leaf.ndim)})
        return found


def _is_ascending(tensor: Any) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and bool((tensor[1:] >= tensor[:-1]).all())


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{path}[{key!r}]", item)
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from _leaves(f"{path}[{i}]", item)
    elif trees.cache_layers(value) is not None:
        yield from _leaves(path, trees.cache_layers(value))
    else:
        yield path, value


def groups_of(
    module: Any, inputs: Inputs, taken: Collection[int], others: Sequence[Inputs] = (), start: int = 0
) -> list[Group]:
    """The dimensions that may differ. `taken`: integers of the program. `others`: inputs that say more about it.

    start: how often other primes were tried already.
    """
    trial = Trial(module, inputs, large=bool(start % 2))
    places = [(n, a) for n, shape in enumerate(inputs.shapes) for a, size in enumerate(shape) if size]
    found: list[Group] = []
    primes = [p for p in _PRIMES if not any(p * m in taken for m in _MULTIPLES)]
    primes = [*primes[_PASSED_OVER * start :], *primes[: _PASSED_OVER * start]]  # the small ones are left for limits
    primes += [p for p in (5, 3) if p not in taken and not start]
    for together in _known_together(inputs, others, places):
        group = trial.group(together, primes, found)
        if group is not None:
            found.append(group)
    settled = {p for g in found for p in g.places}
    for place in places:
        if place in settled:
            continue
        for together in _partners(inputs, place, [p for p in places if p not in settled and p != place]):
            group = trial.group(together, primes, found)
            if group is not None:
                found.append(group)
                settled.update(group.places)
                break
    return found


def further_sizes(module: Any, inputs: Inputs, groups: Sequence[Group]) -> list[Group]:
    """The same groups at sizes that differ from each other and from before, those that PyTorch takes; else none."""
    trial = Trial(module, inputs)
    used = {g.size for g in groups}
    for primes in (_PRIMES[1:], _PRIMES[:0:-1], (3, 5, 2)):
        left = [p for p in primes if p not in used]
        found: list[Group] = []
        for group in groups:
            fitting = [p for p in left if p * group.multiple not in used]
            if not fitting:
                break
            left.remove(fitting[0])
            found.append(Group(group.places, fitting[0] * group.multiple))
        if len(found) == len(groups) and trial.runs(found):
            return found
    return []


def of_one(module: Any, inputs: Inputs, groups: Sequence[Group]) -> list[Group]:
    """Those of the groups that PyTorch takes at a size of one, together: what is of one row is broadcast."""
    trial = Trial(module, inputs)
    found: list[Group] = []
    for group in groups:
        if group.multiple == 1 and trial.runs([Group(g.places, 1) for g in (*found, group)]):
            found.append(group)
    return found


def _known_together(inputs: Inputs, others: Sequence[Inputs], places: Sequence[Place]) -> list[tuple[Place, ...]]:
    """Dimensions that change between the examples, by how they change."""
    patterns: dict[tuple[int, ...], list[Place]] = {}
    for number, axis in places:
        sizes = tuple(o.shapes[number][axis] for o in (inputs, *others))
        if len(set(sizes)) > 1:
            patterns.setdefault(sizes, []).append((number, axis))
    return [tuple(p) for p in patterns.values()]


def _partners(inputs: Inputs, place: Place, left: Sequence[Place]) -> Iterator[tuple[Place, ...]]:
    """A dimension alone, with all on the same axis (the tensors of a cache), then with others of its size: few first."""
    size = inputs.shapes[place[0]][place[1]]
    same = [p for p in left if inputs.shapes[p[0]][p[1]] == size]
    yield (place,)
    on_axis = [p for p in same if p[1] == place[1]]
    if len(on_axis) > 1:
        yield (place, *on_axis)
    same = same[:_MOST_PARTNERS]
    for count in range(1, len(same) + 1):
        for partners in itertools.combinations(same, count):
            yield (place, *partners)


def tells_apart(old: int, new: int) -> bool:
    """Whether halves and quarters of two sizes differ as well: what is equal by chance would seem to be the model's."""
    parts = [(old // d, new // d) for d in _STRIDES] + [(-(-old // d), -(-new // d)) for d in _STRIDES]
    return old != new and all(a != b or a < 2 for a, b in parts)


_STRIDES = (2, 3, 4, 8, 16)


class Trial:
    """PyTorch's own word on inputs of other sizes."""

    def __init__(self, module: Any, inputs: Inputs, large: bool = False):
        self.module, self.inputs, self.large = module, inputs, large
        self.left = float(_MOST_TRIALS)
        self.cost = 1 + sum(p.numel() for p in module.parameters()) / _LARGE

    def group(self, together: tuple[Place, ...], primes: list[int], found: list[Group]) -> Group | None:
        """The dimensions as a group with a size that PyTorch takes beside those that were found; None without one."""
        if not primes:
            return None
        number, axis = together[0]
        old = self.inputs.shapes[number][axis]
        tried = [(next((p for p in primes if tells_apart(old, p * m)), None), m) for m in _MULTIPLES]
        if self.large:  # of a long signal little is left after some strides: sizes below the example's come last
            tried.sort(key=lambda t: t[0] is not None and t[0] * t[1] < old)
        # Near a limit (a table of positions) only smaller sizes are left.
        tried += [(p, 1) for p in sorted(primes)[:_SMALLEST] if p != old]
        for prime, multiple in tried:
            if prime is not None and self.runs([*found, Group(together, prime * multiple)]):
                primes.remove(prime)
                return Group(together, prime * multiple)
        for other in found if primes else ():
            moved = [Group(g.places, primes[0]) if g is other else g for g in found]
            if other.size != old and self.runs([*moved, Group(together, other.size)]):
                found[:] = moved
                del primes[0]
                return Group(together, other.size)
        return None

    def runs(self, groups: Sequence[Group]) -> bool:
        """Whether PyTorch takes the inputs at these sizes, or smaller integers in them: these may be indices of rows."""
        shapes = self.inputs.shapes
        smaller = any(g.size < shapes[number][axis] for g in groups for number, axis in g.places)
        return self._runs(groups, None) or smaller and self._runs(groups, min(g.size for g in groups))

    def _runs(self, groups: Sequence[Group], below: int | None) -> bool:
        import torch

        self.left -= self.cost
        if self.left < 0:
            return False
        args, kwargs = copy.deepcopy(self.inputs.resized(groups, below))
        module = copy.deepcopy(self.module)
        random = torch.get_rng_state()
        try:
            with torch.no_grad():
                module(*args, **kwargs)
        except Exception:  # whatever the module says to inputs that it is not made for
            return False
        finally:
            torch.set_rng_state(random)
        return True
