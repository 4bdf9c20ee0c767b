"""From a call to its text in C. The lifted program becomes loops over arrays, not Python's statements, so that it goes past
`module/`: see docs/architecture.md."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.extend
import numpy as np

from untrace import _html, jax_compat
from untrace._errors import OptionError, ProofError
from untrace._options import ALLOWED, Options
from untrace._version import __version__
from untrace.capture.function import Captured
from untrace.driver.attempts import Attempt, interpreter_settings, name_of_transformed
from untrace.driver.forms import Plain, forms_of
from untrace.driver.sizes import Call
from untrace.ir.evaluate import rounded_otherwise
from untrace.ir.types import PyTree
from untrace.module.interface.entry import FlatEntry
from untrace.prove.execute import checked
from untrace.prove.report import Proof
from untrace.prove.saving import save_files
from untrace.targets.c import project, target
from untrace.targets.c.compiled import EXACT, NATIVE, Apart, Prepared, build
from untrace.targets.c.program import CProgram

_SECONDS = 10.0  # that a call may take on a sampled input


@dataclass(eq=False)
class Compiled:
    """A compiled program that keeps its memory: a call copies the arguments in, and the results out.

    `inputs`, `outputs`: the leaves of arguments and result where they stand; `run()` calls the function on them. reuse: a call
    gives the arrays of `outputs` themselves, WHICH THE NEXT CALL WRITES OVER; only numbers (of no axes) are copied then.
    """

    prepared: Prepared
    arguments: jax.tree_util.PyTreeDef
    result: jax.tree_util.PyTreeDef
    reuse: bool = False

    def __post_init__(self) -> None:
        self._copies = not self.reuse or not all(place.shape for place in self.outputs)
        leaves = jax.tree.structure(((0,) * self.arguments.num_leaves, {}))
        self._places = [(place, place.dtype, place.shape) for place in self.inputs] if self.arguments == leaves else []
        self._unflatten = self.result.unflatten

    @property
    def inputs(self) -> list[np.ndarray]:
        return self.prepared.inputs

    @property
    def outputs(self) -> list[np.ndarray]:
        return self.prepared.outputs

    def run(self) -> None:
        """Calls the function on what is in `inputs`; what it gives is in `outputs`."""
        self.prepared.call()

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """The result on these arguments: in arrays of its own, or with `reuse` in those that the next call writes over."""
        if kwargs or len(args) != len(self._places):
            self._fill_all(args, kwargs)
        else:  # a call of a small function takes about as long as this loop does
            for (place, dtype, shape), leaf in zip(self._places, args):  # noqa: B905
                if type(leaf) is not np.ndarray or leaf.dtype != dtype or leaf.shape != shape:
                    self._fill_all(args, kwargs)
                    break
                place[...] = leaf
        self.prepared.call()
        outputs = self.prepared.outputs
        if self._copies:
            outputs = [place if self.reuse and place.shape else place.copy() for place in outputs]
        return self._unflatten(outputs)

    def _fill_all(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> None:
        leaves, tree = jax.tree.flatten((args, kwargs))
        _same_tree(tree, self.arguments)
        for place, leaf in zip(self.prepared.inputs, leaves, strict=True):
            _fill(place, leaf)


@dataclass(eq=False)
class InC:
    """A JAX function in C. Calling it runs the *text*, compiled by the system's compiler, on the original's pytrees.

    `source`, `header`: the texts; `name`: the entry's. `proof`: `bits`, or `close` with how many units in the last place the
    two are apart on sampled inputs, and in which result. `notes`: sentences for the user.
    """

    source: str
    header: str
    name: str
    proof: Proof
    program: CProgram = field(repr=False)
    arguments: jax.tree_util.PyTreeDef = field(repr=False)
    result: jax.tree_util.PyTreeDef = field(repr=False)
    notes: tuple[str, ...] = ()
    target: str = "c"
    _compiled: Compiled | None = field(repr=False, default=None)

    def compile(self, native: bool = False, reuse: bool = False) -> Compiled:
        """The text compiled as it was proven, or with all that this machine has (native), which may round otherwise.

        Each call gives arrays of its own. With `reuse` it gives the same arrays each time, which is faster, and WRITES OVER what
        an earlier call gave: copy what you keep.
        """
        library = build(self.program, NATIVE if native else EXACT)
        return Compiled(Prepared(self.program, library), self.arguments, self.result, reuse)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Runs the text on the original's arguments; returns the original's pytree, of NumPy's arrays."""
        if self._compiled is None:
            self._compiled = self.compile()
        return self._compiled(*args, **kwargs)

    def _repr_html_(self) -> str:
        """For notebooks: what was proven, and the highlighted source."""
        return _html.written(f"{self.name} ({self.target})", [str(self.proof), *self.notes], self.source, language="c")

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> str:
        """Writes source, header, an example with a `main`, and a CMakeLists.txt into the folder `path`; returns the path.

        Each file appears whole or not at all. Raises OutputExistsError where one exists, unless `overwrite`.
        """
        return save_files(path, project.files(self.program), overwrite)


def _same_tree(given: jax.tree_util.PyTreeDef, wanted: jax.tree_util.PyTreeDef) -> None:
    if given != wanted:
        raise TypeError(f"the arguments are {given}, but this was written for {wanted}")


def _fill(place: np.ndarray, leaf: PyTree) -> None:
    """Puts an argument where the function reads it. Raises TypeError for one of another shape or type."""
    array = np.asarray(jax_compat.as_numpy(leaf)) if jax_compat.is_key(leaf) else np.asarray(leaf)
    is_number = type(leaf) in (bool, int, float)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.shape != place.shape or dtype != place.dtype and not is_number:
        raise TypeError(
            f"an argument is {array.dtype.name}{list(array.shape)}, but this was written for "
            f"{place.dtype.name}{list(place.shape)}"
        )
    place[...] = array.astype(place.dtype)


def written_in_c(call: Call, options: Options, also: Sequence[Call] = ()) -> InC:
    """The text in C, for the sizes of the example.

    Raises CaptureError, UnsupportedPrimitiveError for all that C cannot express at once, ProofError where the text does not
    compute what the original does, OptionError where other sizes are asked for.
    """
    if also:
        raise OptionError("C is written for the sizes of its example: `also` does not go with it")
    with interpreter_settings():
        return _written(call, options)


def _written(call: Call, options: Options) -> InC:
    options = replace(
        options, derivatives="written", without=options.without | target.WITHOUT, sizes="fixed", allow=ALLOWED
    )
    captured = call.captured()
    captured.goes(one_device=True)
    name = name_of_transformed(captured.summary, captured.name) if captured.summary else captured.name
    entry = call.entry(captured)
    plain = Plain(captured, name, entry, lifted=True)
    form = next(forms_of(captured, plain, options, compiles=False))
    program = Attempt.at(captured, plain, form, name, options, {}, {}, compiles=False).lifted_program()
    arguments = [(str(a.path[0]) if a.path else "x", a.example) for a in entry.signature.arguments]
    made = target.write(program, arguments, entry.result, _head(captured, "unproven"))
    proof = Proof("unproven")
    if options.prove:
        proof = _proof(made, captured)
        if not proof.at_least("close"):
            raise ProofError(
                f"the text of {captured.name} for C does not compute what the original does: {proof.detail}.\n"
                "This is a bug of untrace, or a program whose results rounding decides (a search that stops at a tolerance). "
                "With prove=False you get the text all the same. The text for JAX is proven by itself."
            )
        said = str(replace(proof, notes=()))
        before, after = _head(captured, "unproven"), _head(captured, said)
        made = made.with_head(before, after)
    leaves = jax.tree.structure((captured.args, captured.kwargs))
    return InC(
        made.source, made.header, made.name, proof, made, leaves, jax.tree.structure(captured.out_example), made.notes
    )


def _proof(program: CProgram, captured: Captured) -> Proof:
    leaves = jax.tree.leaves((captured.args, captured.kwargs))
    paths = jax.tree_util.tree_leaves_with_path(captured.out_example)
    names = [f"result{jax.tree_util.keystr(path)}" for path, _ in paths]
    entry = Plain(captured, captured.name, FlatEntry()).whole.entry
    text = Apart(program, build(program), _SECONDS)
    try:
        return checked(
            jax.jit(jax.extend.core.jaxpr_as_fun(captured.jaxpr)),
            jax.jit(lambda *given: rounded_otherwise(entry, *given)),
            text,
            leaves,
            names,
            entry,
        )
    finally:
        text.close()


def _head(captured: Captured, proof: str) -> str:
    """The comment on top: what it is, and what was proven of it."""
    where = captured.where()
    what = captured.summary or f"`{captured.name}`"
    return "\n".join(
        [
            f"{what}{f' ({where})' if where else ''}.",
            "",
            f"untrace {__version__} · jax {jax.__version__} · C11 · {proof}".replace("·", "|"),
        ]
    )
