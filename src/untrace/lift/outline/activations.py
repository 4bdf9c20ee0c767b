"""Which calls the author made: the equations of a function as a tree of activations, read off their frames.

Where the calls were seen while the function was traced (`provenance.call_records`), each equation is known to be of one.
Elsewhere frames say it. JAX traces a call by running it, so the equations of one call follow each other, and their frames say which function
was entered from where. What frames do not say is where one turn of a Python loop ends and the next begins: there the
instruction goes back. So for two neighbouring equations the first frame in which they differ is looked at; where it
goes back and no loop of its own explains that, it is a new call from the innermost loop around it.

Transposed equations have the frames of what they are the transpose of, and come in the opposite order: read from their
end, they are one more run of the same calls.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from types import CodeType
from typing import Any

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace.ir.nodes import Equation, Scan
from untrace.provenance import bytecode
from untrace.provenance.call_records import CallRecord
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance, Site

_STRAYS = 3  # so many equations in a row that come from elsewhere are no call yet
# Functions of JAX that differentiate what they are given: what is transposed belongs to who called them.
_GRADIENTS = frozenset("value_and_grad_f grad_f vjp _vjp linearize jacfun vjp_fun backward_pass backward_pass3".split())
# Frames between a call of PyTorch's and what it dispatches to, where no decomposition is between them.
_DISPATCHER = frozenset(
    "_wrapped_call_impl _call_impl __torch_function__ dispatch inner _fn __torch_dispatch__".split()
)
# The loops of code objects, for the whole process: library functions are on the way to most equations.
_LOOPS: IdentityMap[CodeType, list[tuple[int, int]]] = IdentityMap()
_MOST_LOOPS = 10_000


class Call:
    """One activation of a function: `frame` is where in the caller it was called, the last of `frames`, which are all around;
    `callee` the first frame inside.

    `items`: places of equations and inner Calls, in order. `backward`: whether it is the call's backward part.
    """

    __slots__ = ("frames", "callee", "items", "backward")

    def __init__(self, frames: Sequence[Frame], callee: Frame | None, backward: bool = False):
        self.frames = tuple(frames)
        self.callee = callee
        self.items: list[int | Call] = []
        self.backward = backward

    @property
    def frame(self) -> Frame | None:
        return self.frames[-1] if self.frames else None


def call_tree(
    equations: Sequence[Equation],
    provenance: Provenance,
    backward: bool = False,
    own: Container[Equation] = (),
    name: str = "",
) -> Call:
    """The calls inside a function; the root stands for the function itself.

    `backward`: whether all of it is transposed, and does not say so itself. `own`: equations that are in no call.
    `name`: the function's own, as JAX knows it.
    """
    return _Reader(provenance, backward, own).read(equations, name)


def _mirrored(call: Call) -> Call:
    call.items.reverse()
    for item in call.items:
        if type(item) is Call:
            _mirrored(item)
    return call


def _traceback(equation: Equation) -> Any:
    return jax_compat.equation_source(equation.origin)[0]


class _Reader:
    def __init__(self, provenance: Provenance, backward: bool, own: Container[Equation]):
        self.provenance = provenance
        self.backward = backward
        self.own = own
        self._last_raw: tuple[Any, list[tuple[CodeType, int]]] = (object(), [])
        self._depths: dict[Any, int] = {}
        self._several = False  # whether the chains begin in several functions, of which JAX keeps no caller

    def read(self, equations: Sequence[Equation], name: str) -> Call:
        site_of = self.provenance.site
        sites = [site_of(e.origin) for e in equations]
        chains: list[Sequence[Frame]] = [
            () if e in self.own else s.frames for e, s in zip(equations, sites, strict=True)
        ]
        own = self._own_depth(sites)
        if not own and not self.backward and self._is_of_calls(equations, chains, name):
            own = -1
        elif own:
            chains, own = self._without_strays(equations, chains, own)
        self._several = own < 0
        whole = list(chains)
        for at, site in enumerate(sites):
            if self._is_backward(site) and len(chains[at]) > own:
                chains[at] = chains[at][: max(own, self._gradient_depth(equations[at], site)) + 1]
        root = Call((), None)
        self._grow(root, range(len(equations)), equations, chains, own)
        self._read_backward(root, equations, sites, chains, whole)
        return root

    def _grow(
        self,
        root: Call,
        places: Iterable[int],
        equations: Sequence[Equation],
        chains: Sequence[Sequence[Frame]],
        own: int,
    ) -> None:
        """Adds the equations at `places` to `root`, which runs frame `own` of each chain."""
        stack = [root]  # open activations; stack[i] runs frame own + i of the chain
        before: Any = None
        chain: Sequence[Frame] = ()
        waiting: list[int] = []  # equations from nowhere, which belong to whatever goes on around them
        traced: IdentityMap[Any, None] = IdentityMap()  # the tracebacks so far
        for at in places:
            frames = chains[at]
            if not frames:
                waiting.append(at)
                continue
            depth = 1  # how many activations go on, the root among them
            if len(frames) > own + 1:
                again = _traceback(equations[at]) in traced and _traceback(equations[at]) is not _traceback(before)
                depth = max(1, self._shared(chain, frames, before, equations[at], again) - own)
            del stack[depth:]
            stack[-1].items.extend(waiting)
            waiting.clear()
            for i in range(own + depth, len(frames)):
                call = Call(frames[:i], frames[i], root.backward)
                stack[-1].items.append(call)
                stack.append(call)
            stack[-1].items.append(at)
            chain, before = frames, equations[at]
            traced[_traceback(before)] = None
        root.items.extend(waiting)

    def _read_backward(
        self,
        call: Call,
        equations: Sequence[Equation],
        sites: Sequence[Site],
        chains: Sequence[Sequence[Frame]],
        whole: Sequence[Sequence[Frame]],
    ) -> None:
        """Replaces the runs of transposed equations in `call` by the calls that they are the backward parts of."""
        items: list[int | Call] = []
        run: list[int] = []

        def close() -> None:
            if len(run) > 1:
                part = Call((), None, True)
                depth = max((len(chains[at]) for at in run), default=1)
                self._grow(part, reversed(run), equations, whole, depth - 1)
                items.extend(_mirrored(part).items)
            else:
                items.extend(run)
            run.clear()

        for item in call.items:
            if type(item) is int and (self._is_backward(sites[item]) or run and not whole[item]):
                if run and whole[item] and len(chains[item]) != len(chains[run[0]]):
                    close()
                run.append(item)
                continue
            close()
            if type(item) is Call:
                self._read_backward(item, equations, sites, chains, whole)
            items.append(item)
        close()
        call.items = items

    def _is_backward(self, site: Site) -> bool:
        return self.backward or site.phase == "backward"

    def _own_depth(self, sites: Sequence[Site]) -> int:
        """How many leading frames belong to the function itself; -1 + 1 = 0 where the first are of several functions."""
        firsts = {id(s.frames[0].code) for s in sites if s.frames}
        return 0 if len(firsts) == 1 else -1

    def _is_of_calls(self, equations: Sequence[Equation], chains: Sequence[Sequence[Frame]], name: str) -> bool:
        """Whether frames that all begin in one function are those of several calls of it: the caller has another name.

        Of a function that `jax.checkpoint` marked JAX keeps no caller, where it is called in the body of a loop.
        """
        first = next((c[0].name for c in chains if c), "")
        if not name.isidentifier() or not first.isidentifier() or name == first:
            return False
        pairs = [(c, e) for c, e in zip(chains, equations, strict=True) if c]
        self._several = True
        return any(not self._shared(a, b, before, e) for (a, before), (b, e) in zip(pairs, pairs[1:], strict=False))

    def _without_strays(
        self, equations: Sequence[Equation], chains: list[Sequence[Frame]], own: int
    ) -> tuple[list[Sequence[Frame]], int]:
        """The chains without those of single equations from elsewhere, and 0, where the rest are the function's own.

        What a loop's body computes from nothing that changes, JAX takes out of the loop where it differentiates: such an
        equation has the frames of the body, and stands between those of the function around it.
        """
        firsts = [id(c[0].code) if c else 0 for c in chains]
        counts = Counter([f for f in firsts if f])
        main = counts.most_common(1)[0][0] if counts else 0
        run = 0
        taken_out = self._taken_out(equations, chains, firsts, main)
        for at, first in enumerate(firsts):
            run = 0 if first == main else run + (first != 0 and at not in taken_out)
            if run > _STRAYS:
                return chains, own  # a call from elsewhere, such as a derivative rule's
        return [c if f == main else () for c, f in zip(chains, firsts, strict=True)], 0

    def _taken_out(
        self, equations: Sequence[Equation], chains: Sequence[Sequence[Frame]], firsts: Sequence[int], main: int
    ) -> set[int]:
        """Places of equations right before a loop that have the frames of its body."""
        found: set[int] = set()
        for loop, equation in enumerate(equations):
            if type(equation.callee) is Scan:
                name = jax_compat.function_name(equation.callee.body.jaxpr)
                at = loop - 1
                while at >= 0 and chains[at] and firsts[at] != main and chains[at][0].name == name:
                    found.add(at)
                    at -= 1
        return found

    def _shared(
        self, old: Sequence[Frame], new: Sequence[Frame], before: Any, equation: Equation, again: bool = False
    ) -> int:
        """How many activations two neighbouring equations have in common (1: that of the first frame).

        again: whether JAX has put the equation there once more, of a function that it traced once (`jax.checkpoint`).
        """
        if not old:
            return 0
        seen, other = self._calls(before, old), self._calls(equation, new)
        if seen and other and not again:
            return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], zip(seen, other, strict=False)))
        depth = 0
        for left, right in zip(old, new, strict=False):
            if left.code is not right.code:
                return depth
            depth += 1
            if left.lasti != right.lasti:
                if left.lasti < right.lasti:
                    return depth
                return self._turned(before, equation, depth)
        if len(old) != len(new):
            return depth  # one of them is deeper inside an expression of the other's frame
        return self._turned(before, equation, depth)

    def _calls(self, equation: Equation, frames: Sequence[Frame]) -> Sequence[CallRecord]:
        """The calls that were seen whose frames these are; () where they were not."""
        calls = self.provenance.calls.around(_traceback(equation))
        for start in range(len(calls) - len(frames), -1, -1):
            inside = calls[start : start + len(frames)]
            if all(c.code is f.code for c, f in zip(inside, frames, strict=True)):
                return inside
        return ()

    def _turned(self, before: Equation, equation: Equation, depth: int) -> int:
        """The same for frames that are equal or go back: by all frames, JAX's own among them."""
        # A transposed loop is the last of what JAX makes where it transposes that. JAX's own loops say nothing there.
        closes = type(equation.callee) is Scan and self._is_backward(self.provenance.site(equation.origin))
        if not closes and _traceback(before) is _traceback(equation):
            return depth  # one call of a jitted function that JAX inlined: all its equations share one traceback
        left, right = self._raw(before), self._raw(equation)
        limit = 0  # how many frames are of the same functions, as far as all those around them are at the same place
        for a, b in zip(left, right, strict=False):
            if a[0] is not b[0]:
                break
            limit += 1
            if a[1] != b[1]:
                if a[1] < b[1]:
                    return self._visible(left[:limit], depth)
                break
        if self._is_decomposed(left[:limit]):
            return depth
        for i in range(limit - 1, -1, -1):
            if closes and not self._is_visible(left[i][0]):
                continue
            here, there = left[i][1], right[i][1]
            if any(start <= here <= stop and start <= there <= stop for start, stop in self._loops_of(left[i][0])):
                return self._visible(left[: i + 1], depth)  # the innermost loop that holds both places took a turn
        if limit == len(left) == len(right) and left[-1][1] == right[-1][1]:
            return depth
        if self._several and limit > 1 and not self._is_backward(self.provenance.site(equation.origin)):
            return 0  # called again from where nothing goes round: so is what calls it
        return self._visible(left[: max(limit - 1, 0)], depth)

    def _is_decomposed(self, common: Sequence[tuple[CodeType, int]]) -> bool:
        """Whether frames part below a step of one of PyTorch's decompositions: C++ asks for several operations from there
        (`matmul` of batches for views and a product), so that nothing that goes back is the author's loop."""
        names = [code.co_name for code, _ in common]
        if "__torch_dispatch__" not in names:
            return False
        step = len(names) - names[::-1].index("__torch_dispatch__") - 1
        start = next((i + 1 for i in range(step, -1, -1) if self._is_visible(common[i][0])), 0)
        return not _DISPATCHER.issuperset(names[start:step])

    def _visible(self, frames: Sequence[tuple[CodeType, int]], depth: int) -> int:
        """How many of these frames are not JAX's."""
        return min(depth, sum(self._is_visible(code) for code, _ in frames))

    def _is_visible(self, code: CodeType) -> bool:
        return self.provenance.kind(code) in ("user", "library")

    def _raw(self, equation: Equation) -> list[tuple[CodeType, int]]:
        traceback = _traceback(equation)
        if traceback is self._last_raw[0]:  # of two neighbours the second is the first of the next two
            return self._last_raw[1]
        self._last_raw = traceback, self.provenance.raw_frames(traceback)
        return self._last_raw[1]

    def _loops_of(self, code: CodeType) -> list[tuple[int, int]]:
        found = _LOOPS.get(code)
        if found is None:
            if len(_LOOPS) > _MOST_LOOPS:
                _LOOPS.clear()
            found = _LOOPS[code] = bytecode.loops(code)
        return found

    def _gradient_depth(self, equation: Equation, site: Site) -> int:
        """The place in the chain of the frame that asked for the gradient; -1 where that was the whole function's."""
        traceback = _traceback(equation)
        found = self._depths.get(traceback)
        if found is None:
            count = 0
            for code, _ in self._raw(equation):
                if code.co_name in _GRADIENTS and not self._is_visible(code):
                    break
                count += self._is_visible(code)
            else:
                count = 1
            found = self._depths[traceback] = count - 1
        return found
