"""`verify`: is an edited function still the same program? If not, where, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from untrace._errors import CaptureError
from untrace.jaxprs.equal.compare import compare
from untrace.prove import hlo
from untrace.prove.report import Proof
from untrace.prove.run import (
    LeafDifference,
    RunComparison,
    compare_runs,
    proof_of_runs,
    type_difference,
)
from untrace.prove.sample import CannotSample


@dataclass(frozen=True)
class Verification:
    """Whether two functions are the same program, how that is known, and where they differ.

    `same` is true from level `bits` upwards. `differences` has one entry for every output leaf that
    differs (paths as of `jax.tree_util.keystr`). True in a condition when `same`.
    """

    same: bool
    proof: Proof
    differences: tuple[LeafDifference, ...] = ()

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        """`same: proven: ...`, or `different: ...` with a line for each leaf that differs."""
        word = "same" if self.same else "different"
        if not self.same and not self.differences and self.proof.level == "unproven":
            word = "not the same" if self.proof.detail.startswith(_STRUCTURE) else "not known"
        lines = [f"{word}: {self.proof}"]
        lines += [f"  {d}" for d in self.differences]
        return "\n".join(lines)


_STRUCTURE = "the outputs have different structures"


def verify(
    edited: Callable[..., Any],
    original: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    samples: int = 64,
    seed: int = 0,
) -> Callable[..., Verification]:
    """A function of example arguments that compares `edited` with `original` on them.

    `verify(edited, original)(*args, **kwargs)`: arguments are arrays, pytrees or ShapeDtypeStructs.
    It tries the proof levels from the strongest down: the same jaxpr, the same compiled program,
    the same bits on `samples` sampled inputs, close on them. Concrete arguments are the first
    sample. Only the last two run the functions. CaptureError where one of them cannot be traced.
    """
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)

    def on(*args: Any, **kwargs: Any) -> Verification:
        leaves, call = _dynamic_part(args, kwargs, numbers, names)
        first, second = call(original), call(edited)
        jaxpr, shape = _trace(first, leaves, "original")
        jaxpr_edited, shape_edited = _trace(second, leaves, "edited")
        by_type = _compare_structure(shape, shape_edited)
        if by_type is not None:
            return by_type
        comparison = compare(jaxpr, jaxpr_edited)
        if comparison.difference is None:
            plural = "" if comparison.equations == 1 else "s"
            detail = f"{comparison.equations} equation{plural}"
            return Verification(True, Proof("jaxpr", detail, comparison.notes))
        why = comparison.difference.why
        if hlo.same_stablehlo(first, second, leaves) or hlo.same_optimised(first, second, leaves):
            return Verification(True, Proof("hlo", f"the jaxprs differ: {why}", comparison.notes))
        paths = ["output" + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(shape)[0]]
        return _by_running(first, second, leaves, paths, why, samples, seed)

    return on


def _by_running(
    first: Any, second: Any, leaves: Any, paths: list[str], why: str, samples: int, seed: int
) -> Verification:
    try:
        runs = compare_runs(first, second, leaves, samples=samples, seed=seed, paths=paths)
    except CannotSample as error:
        return Verification(False, Proof("unproven", f"{why}; {error}"))
    proof = proof_of_runs(runs, f"the jaxprs differ: {why}")
    return Verification(not runs.differences, proof, _largest_first(runs))


def _largest_first(runs: RunComparison) -> tuple[LeafDifference, ...]:
    return tuple(sorted(runs.differences, key=lambda d: -d.max_ulp))


def _dynamic_part(
    args: tuple[Any, ...], kwargs: dict[str, Any], numbers: Sequence[int], names: Sequence[str]
) -> tuple[list[Any], Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """The leaves of the traced arguments, and what makes a function into one of those leaves."""
    positions = {n % len(args) if n < 0 and args else n for n in numbers}
    dynamic = [x for i, x in enumerate(args) if i not in positions]
    named = {k: v for k, v in kwargs.items() if k not in names}
    fixed = {k: v for k, v in kwargs.items() if k in names}
    leaves, tree = jax.tree_util.tree_flatten((dynamic, named))

    def call(function: Callable[..., Any]) -> Callable[..., Any]:
        def flat(*xs: Any) -> Any:
            traced, keywords = jax.tree_util.tree_unflatten(tree, xs)
            rest = iter(traced)
            whole = [x if i in positions else next(rest) for i, x in enumerate(args)]
            return function(*whole, **keywords, **fixed)

        return flat

    return leaves, call


def _trace(function: Callable[..., Any], leaves: Sequence[Any], which: str) -> tuple[Any, Any]:
    try:
        return jax.make_jaxpr(function, return_shape=True)(*leaves)
    except Exception as error:  # the function is the user's
        if type(error) is jax.errors.TracerArrayConversionError or "Tracer has no attribute" in str(error):
            raise CaptureError(
                f"the {which} function computes by another library than JAX, as a text for NumPy or PyTorch does: `verify` compares "
                "functions of JAX. Such a text is run beside its original when it is written, and says how close it is."
            ) from error
        raise CaptureError(
            f"the {which} function cannot be traced with these arguments: {type(error).__name__}: {error}"
        ) from error


def _compare_structure(shape: Any, edited: Any) -> Verification | None:
    """A verdict when the outputs differ in structure or types; None when they agree."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(shape)
    others, other_tree = jax.tree_util.tree_flatten(edited)
    if tree != other_tree:
        detail = f"{_STRUCTURE}: {tree} in the original, {other_tree} in the edited function"
        return Verification(False, Proof("unproven", detail))
    found = []
    for (path, x), y in zip(leaves, others, strict=True):
        text = type_difference(x, y)
        if text:
            name = "output" + jax.tree_util.keystr(path)
            found.append(LeafDifference(name, type_difference=text))
    if not found:
        return None
    detail = f"the outputs have different types, {found[0]}"
    return Verification(False, Proof("unproven", detail), tuple(found))
