"""Equations that nothing needs, beside the same that something does: what the author does to each leaf of a tree, and what a
function of his does in another call."""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterator
from types import CodeType
from typing import Any

from untrace.provenance.frames import Frame
from untrace.provenance.sites import Provenance

_Place = tuple[tuple[Frame, ...], Any, tuple[CodeType, ...]]


def beside(provenance: Provenance, needed: Collection[Any], others: Collection[Any]) -> set[Any]:
    """Those of the `others` that are done to one leaf of a tree where the same is `needed` of another leaf, in a call of
    `jax.tree.map` by the author; and those in one call of his function where the same is needed in another."""
    maps = {_for_each_leaf(provenance, eqn) for eqn in needed} - {None}
    codes = {place[0][0].code for eqn in others for _, place in _in_calls(provenance, eqn)}
    calls: dict[_Place, set[Hashable]] = {}  # a place in a function -> the calls in which what is made there is needed
    for eqn in needed if codes else ():
        for call, place in _in_calls(provenance, eqn, codes):
            calls.setdefault(place, set()).add(call)
    partly = {call for found in calls.values() for call in found}

    def is_one(eqn: Any) -> bool:
        if maps and _for_each_leaf(provenance, eqn) in maps:
            return True
        return any(call in partly and calls.get(place, set()) - {call} for call, place in _in_calls(provenance, eqn))

    return {eqn for eqn in others if is_one(eqn)}


def _for_each_leaf(provenance: Provenance, eqn: Any) -> Hashable | None:
    """What equations of a forward pass have in common that one operation made for the leaves of a tree; None for others."""
    site = provenance.site(eqn)
    if site.differentiated or not any(f.maps_leaves and not f.library for f in site.frames):
        return None
    return site.frames, eqn.primitive, tuple([code for code, _ in site.below])


def _in_calls(
    provenance: Provenance, eqn: Any, codes: Container[CodeType] | None = None
) -> Iterator[tuple[Hashable, _Place]]:
    """The calls of the author's functions, or of those of `codes`, that an equation of a forward pass was made in, and where
    in the function."""
    site = provenance.site(eqn)
    below = tuple([code for code, _ in site.below])
    for i in range(1, 0 if site.differentiated else len(site.frames)):
        frame, caller = site.frames[i], site.frames[i - 1]
        if not frame.library and not caller.library and (codes is None or frame.code in codes):
            yield (site.frames[:i], frame.code), (site.frames[i:], eqn.primitive, below)
