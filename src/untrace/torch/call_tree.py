"""Which equations belong to which call: the module tree, and the author's own functions inside a `forward`."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Any

from untrace import jax_compat
from untrace.ir.nodes import Equation, Passed
from untrace.lift.outline import pieces
from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance, Site
from untrace.torch.arguments import Aliases
from untrace.torch.capture import Capture, ModuleCall, call_numbers
from untrace.torch.ops import parts
from untrace.torch.ops.parts import Part

Path = tuple[str, ...]


def author_frame(site: Site) -> Frame | None:
    """The innermost frame of the author's: what we write for a layer of PyTorch's is not theirs."""
    return next((f for f in reversed(site.user_frames) if f.file != parts.FILE), None)


def is_author(module: Any) -> bool:
    """Whether a module's class is the author's, and not one of PyTorch's layers (but those that are whole models)."""
    kind = type(module).__module__
    if type(module) is Part:
        return False
    if kind.startswith("torch.nn."):
        return kind.endswith((".transformer", ".activation")) and any(True for _ in module.children())
    return True


def is_function(module: Any) -> bool:
    """Whether a module's class may be written as a function: the author's, and PyTorch's layers with tensors."""
    if is_author(module) or type(module) is Part:
        return True
    state = [*module._parameters.values(), *module._buffers.values()]
    return any(v is not None for v in state)


def in_other_calls(capture: Capture, left: Any, right: Any) -> bool:
    """Whether two equations of the jaxpr are parts of different calls of the author's modules."""
    return _innermost(capture, left) != _innermost(capture, right)


def _innermost(capture: Capture, eqn: Any) -> int:
    scopes = jax_compat.scope_names(jax_compat.equation_source(eqn)[1])
    own = [
        n for n in call_numbers(scopes) if is_author(capture.calls[n].module) or type(capture.calls[n].module) is Part
    ]
    return own[-1] if own else 0


class HelperCall:
    """One call of a function of the author's inside a module's `forward`."""

    def __init__(self, code: CodeType, frame: Frame, path: Path, number: int):
        self.code = code
        self.frame = frame
        self.kind = code
        self.path = path
        self.number = number
        self.arguments: tuple[tuple[str, Any], ...] = ()


class Piece(pieces.Piece):
    """One call of a module. `callee`: the frame that runs its `forward`; `frame`: the author's that called it."""

    __slots__ = ("aliases", "callee", "frame")

    def __init__(self, call: ModuleCall | HelperCall):
        super().__init__(call)
        self.aliases: Aliases | None = None
        self.callee: Frame | None = None
        self.frame: Frame | None = None

    def passed(self) -> list[Passed]:
        of = self.aliases.passed_to(self.call.number) if self.aliases is not None else {}
        return [of.get(a, a) for a in self.inputs]


class CallTree:
    """The equations of a program as a tree of calls."""

    def __init__(self, capture: Capture, equations: Sequence[Equation], provenance: Provenance):
        self.capture, self.equations, self.provenance = capture, equations, provenance

    def items(self) -> list[int | Piece]:
        """Items of the entry; a call whose equations do not follow each other is left where they are."""
        calls = self.capture.calls
        chains: list[list[Any]] = []
        current: list[Any] = []
        for equation in self.equations:
            site = self.provenance.site(equation.origin)
            every = call_numbers(site.scopes)
            if every:
                current = [n for n in every if n and is_function(calls[n].module)]
                current = [*current, *self._helpers(site, every, current)]
            chains.append(current)
        torn = self._torn(chains)
        items: list[int | Piece] = []
        stack: list[tuple[Any, Piece]] = []
        for at, chain in enumerate(chains):
            chain = [n for n in chain if n not in torn]
            depth = 0
            while depth < len(stack) and depth < len(chain) and stack[depth][0] == chain[depth]:
                depth += 1
            del stack[depth:]
            for number in chain[depth:]:
                if type(number) is int:
                    piece = Piece(calls[number])
                else:
                    path = stack[-1][1].call.path if stack else ()
                    piece = Piece(HelperCall(number[2], number[3], path, chain[0] if type(chain[0]) is int else 0))
                (stack[-1][1].items if stack else items).append(piece)
                stack.append((number, piece))
            (stack[-1][1].items if stack else items).append(at)
        return items

    def _helpers(self, site: Site, every: list[int], own: list[int]) -> list[tuple[Any, ...]]:
        """The author's functions entered inside the innermost module's `forward`, by where they were called from."""
        module = self.capture.calls[own[-1] if own else 0]
        before = sum(self.capture.calls[n].code is module.code for n in every if n < module.number)
        found = [i for i, f in enumerate(site.frames) if f.code is module.code]
        if len(found) <= before:
            return []
        inside = site.frames[found[before] :]
        chain: list[tuple[Any, ...]] = []
        for caller, callee in zip(inside, inside[1:], strict=False):
            if callee.library or callee.name.startswith("<") or callee.name == "forward":
                break
            if callee.code in parts.INLINED:
                continue
            chain.append((id(caller.code), caller.lasti, callee.code, caller, own[-1] if own else 0))
        return chain

    @staticmethod
    def _torn(chains: list[list[Any]]) -> set[Any]:
        spans: dict[Any, list[int]] = {}
        for at, chain in enumerate(chains):
            for number in chain:
                span = spans.setdefault(number, [at, at, 0])
                span[1] = at
                span[2] += 1
        # A helper that is called again from the same place (in a loop) after something else is several calls.
        return {n for n, (first, last, count) in spans.items() if last - first + 1 != count}
