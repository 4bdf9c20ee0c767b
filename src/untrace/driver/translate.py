"""From a call to its text for another target: captured with all derivatives written out, lifted as for JAX, lowered to what
the target has, written, and run beside the original."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.extend

from untrace import jax_compat
from untrace._errors import OptionError, ProofError, UnsupportedPrimitiveError, UntraceError
from untrace._options import ALLOWED, Options
from untrace.capture.function import Captured
from untrace.capture.sizes.sizes import at_other_sizes
from untrace.capture.sizes.static_fields import with_idle_fields_changed
from untrace.driver.attempts import Attempt, head_of_module, interpreter_settings, name_of_transformed
from untrace.driver.forms import Plain, forms_of
from untrace.driver.sizes import Call, readable_or_not
from untrace.driver.translated import Translated
from untrace.ir.evaluate import rounded_otherwise
from untrace.ir.nodes import Function, SizeNumbers
from untrace.ir.passes import ALL, NONE, Course, is_strict
from untrace.ir.types import Data
from untrace.module.emit import Manner, Written, write_module
from untrace.module.interface.entry import FlatEntry, PytreeEntry
from untrace.module.interface.guarded import Guarded
from untrace.prove.execute import checked
from untrace.prove.report import Proof
from untrace.prove.retrace import of_leaves
from untrace.python import helpers
from untrace.targets.base import Company, Target
from untrace.targets.eager.guard import classes_in
from untrace.targets.jax.guard import guarded_by


@functools.cache
def targets() -> Mapping[str, Target]:
    """The targets of these names. Whoever writes for JAX never waits for their rules."""
    from untrace.targets.mpi.target import TARGET as MPI
    from untrace.targets.numpy.target import TARGET as NUMPY
    from untrace.targets.torch.target import TARGET as TORCH

    return {target.name: target for target in (NUMPY, TORCH, MPI)}


def translated(target: str, call: Call, options: Options, also: Sequence[Call] = ()) -> Translated:
    """The text for `target`, for all sizes that may differ if one is found that holds for them.

    Raises OptionError where the target's library is not installed, CaptureError, UnsupportedPrimitiveError for all that the
    target cannot express at once, ProofError where the text does not compute what the original does.
    """
    needs = targets()[target].needs
    if needs and importlib.util.find_spec(needs) is None:
        raise OptionError(f"the target {target!r} needs {needs}, which is not installed: `pip install {needs}`")
    with interpreter_settings():
        return _translated(targets()[target], call, options, also)


def _translated(target: Target, call: Call, options: Options, also: Sequence[Call]) -> Translated:
    options = replace(
        options, derivatives=call.derivatives, without=options.without | target.without, reroll="loop", allow=ALLOWED
    )
    if also and not target.any_size:
        raise OptionError(f"{target.title} is written for the sizes of its example: `also` does not go with it")
    company = target.company()
    if company.size > 1:  # a number that is the same on all ranks only by chance must not make one a simpler program
        options = replace(options, simplify=False)
    captured = company.agreed(call.captured)
    company.agreed(lambda: _refuse_classes(captured, target))
    if options.guard:
        with readable_or_not():
            captured.idle = with_idle_fields_changed(captured, lambda new: call.on(new).plain())
    others = [more.captured() for more in also]
    for one in (captured, *others):
        one.goes(one_device=not target.has_ranks)
    originals = [_Original.of(one) for one in (captured, *others)]
    if options.sizes == "infer" and options.prove and target.any_size:
        with contextlib.suppress(UntraceError), readable_or_not():
            for sized in at_other_sizes(
                captured, lambda new: call.on(new).captured(), lambda new: call.on(new).plain(), others
            ):
                at = sized.captured
                for one in (at, at.example):
                    if one is not None:
                        one.goes(one_device=not target.has_ranks)
                if at.example is not None:
                    at.idle = at.example.idle
                found = _attempt(target, call.on(sized.dynamic), at, options, originals, company)
                if isinstance(found, Translated):
                    return found
    found = _attempt(target, call, captured, options, originals, company)
    if not isinstance(found, Translated):
        raise ProofError(
            f"the text of {captured.name} for {target.title} does not compute what the original does: {found}.\n"
            "This is a bug of untrace, or a program whose results rounding decides (a search that stops at a tolerance). "
            "With prove=False you get the text all the same. The text for JAX is proven by itself."
        )
    return found


def _attempt(
    target: Target,
    call: Call,
    captured: Captured,
    options: Options,
    originals: Sequence[_Original],
    company: Company,
) -> Translated | str:
    """The text written from a trace, checked beside the originals; what is wrong there otherwise."""
    why = ""
    entry = call.entry(captured)
    name = name_of_transformed(captured.summary, captured.name) if captured.summary else captured.name
    Plain(captured, name, entry, lifted=True)  # which has library primitives expanded, before calls are looked for
    folds = (True, False) if target.keeps_calls and (captured.vmaps or captured.called) else (False,)
    # Without the passes over statements, where one of them was wrong about a loop.
    for fold, course in ((fold, course) for fold in folds for course in (ALL, NONE)):
        try:
            made = _write(target, captured, name, entry, options, course, fold, company)
            if made is None:
                continue
            written, own = made
            proofs = (
                [_proof(own, written, original, company) for original in originals]
                if options.prove
                else [Proof("unproven")]
            )
        except UnsupportedPrimitiveError:
            if fold:
                continue  # what is no call has another form
            raise
        except Exception as error:  # a fault of ours in a pass: the next attempt has none of them
            if is_strict() and not fold:
                raise
            why = why or f"{type(error).__name__}: {error}"
            continue
        weakest = next(p for level in ("unproven", "close", "bits") for p in proofs if p.level == level)
        if not options.prove or weakest.at_least("close"):
            said = str(replace(weakest, notes=()))
            written.with_docstring(_head(own, captured, name, said), _head(own, captured, name))
            fixed = [f"it is written for {q} = {a} of JAX" for q, a in guarded_by(captured).answers.items()]
            return Translated(
                target.name,
                written.source,
                written.name,
                weakest,
                written.arrays,
                written.notes if own.words else (*written.notes, *fixed),
                own.into,
                own.load,
                company,
            )
        why = why or weakest.detail
        if is_strict() and not fold:
            raise ProofError(weakest.detail)
    return why


def _write(
    target: Target,
    captured: Captured,
    name: str,
    entry: PytreeEntry,
    options: Options,
    course: Course,
    folds: bool,
    company: Company,
) -> tuple[Written, Target] | None:
    """The text, and the target for this program. With the author's calls of derivatives and maps in it if `folds`: None
    where there are none.

    Raises UnsupportedPrimitiveError.
    """
    plain = Plain(captured, name, entry, lifted=True)
    form = next(forms_of(captured, plain, options, folds, compiles=False), None)
    if form is None:
        return None
    attempt = Attempt.at(captured, plain, form, name, options, {}, {}, compiles=False)
    if target.begin is not None:
        if captured.static:
            raise UnsupportedPrimitiveError(
                f"this program cannot be written for {target.title}: it has static arguments. Close over them instead."
            )
        target = target.begin(attempt.program, jax.tree.structure((captured.args, captured.kwargs)), company)
    own = target

    def write() -> Written:
        program = attempt.lifted_program()
        known = len(program.notes)
        own.lower(program)
        made = write_module(
            own.writer,
            program,
            _head(own, captured, name),
            standalone=True,
            idiomatic=True,
            comments=options.comments,
            guarded=_guarded(captured) if options.guard else None,
            manner=Manner(course=course),
        )
        made.notes = (*made.notes, *program.notes[known:])
        return made

    written = company.agreed(write)
    # One text for all: the proof is what says that it is every rank's.
    written.source, written.name, written.arrays = company.by_first(
        lambda: (written.source, written.name, written.arrays)
    )
    imported = [n for n in ast.walk(ast.parse(written.source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    if any(ast.unparse(n).split()[1].partition(".")[0] == "jax" for n in imported):
        raise UnsupportedPrimitiveError(
            f"this program cannot be written for {target.title}: it puts pytrees together in a way that only JAX has. "
            "Give and take flatter ones, or write it for JAX."
        )
    if captured.numbers is not None:
        left = _left_as_traced(written.source, captured.numbers)
        if left is not None:
            raise ProofError(f"{left} is so at one size only, and nothing says what it is at others")
    written.source += target.below(written.name)
    return written, target


def _left_as_traced(source: str, numbers: SizeNumbers) -> float | None:
    """A number of a text that is what the program has at the sizes of a trace, and another one at others; None for none.

    The proof runs a text at the sizes of the example, where it may be right by chance: a search that takes more steps than
    it needs.
    """
    following = {n for n, seen in (*numbers.integers.items(), *numbers.fractions.items()) if any(m != n for m in seen)}
    stack: list[ast.AST] = [ast.parse(source)]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef) and node.name in helpers.all_names():
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_checked":
            continue  # how large a size may be
        number = node.value if isinstance(node, ast.Constant) else None
        if isinstance(number, int | float) and type(number) is not bool and not following.isdisjoint({number, -number}):
            return number
        stack.extend(ast.iter_child_nodes(node))
    return None


def _guarded(captured: Captured) -> Guarded:
    """What the entry depends on beside its arguments: no more of JAX than whether it had 64 bits."""
    settings = guarded_by(captured).settings
    settings.pop("weak", None)
    settings.pop("prng", None)
    settings["classes"] = classes_in((captured.args, captured.kwargs))
    return Guarded(settings, {})


def _refuse_classes(captured: Captured, target: Target) -> None:
    """Raises UnsupportedPrimitiveError where arguments or results have classes that JAX alone can take apart."""
    keys = [x for x in jax.tree.leaves((captured.args, captured.kwargs)) if jax_compat.is_key(x)]
    if any(jax_compat.key_impl_name(key) != "threefry2x32" for key in keys):
        raise UnsupportedPrimitiveError(
            f"this program cannot be written for {target.title}: it takes keys of another implementation than threefry2x32"
        )
    kind = classes_in((captured.args, captured.kwargs, captured.out_example))
    if isinstance(kind, type):
        raise UnsupportedPrimitiveError(
            f"this program cannot be written for {target.title}: it takes or gives a {kind.__module__}.{kind.__qualname__}, "
            "which only JAX knows how to take apart, or which has the name of another one. Give it dicts, lists, tuples, named "
            "tuples or dataclasses of arrays instead."
        )


@dataclass(frozen=True, slots=True)
class _Original:
    """What a text is run beside: the program on one example, compiled when it is first run, for all attempts at a text.

    `rounded`: the same with every operation rounded otherwise. `entry`: its Function.
    """

    captured: Captured
    function: Callable[..., Data]
    rounded: Callable[..., Data]
    entry: Callable[[], Function]

    @staticmethod
    def of(captured: Captured) -> _Original:
        @functools.cache
        def entry() -> Function:
            return Plain(captured, captured.name, FlatEntry()).whole.entry

        @jax.jit
        def rounded(*given: Data) -> Data:
            return rounded_otherwise(entry(), *given)

        return _Original(captured, jax.jit(jax.extend.core.jaxpr_as_fun(captured.jaxpr)), rounded, entry)


def _proof(target: Target, written: Written, original: _Original, company: Company) -> Proof:
    captured = original.captured
    text = company.text(target.load, written, lambda module: of_leaves(module, written, captured))
    leaves = jax.tree.leaves((captured.args, captured.kwargs))
    names = [
        f"result{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(captured.out_example)
    ]
    return checked(
        company.original(original.function),
        company.original(original.rounded),
        lambda *given: [target.out_of(y) for y in text(*map(target.into, given))],
        company.leaves(leaves),
        company.names(names),
        original.entry(),
    )


def _head(target: Target, captured: Captured, name: str, proof: str = "unproven") -> str:
    return head_of_module(captured, name, True, f"for {target.name}{target.words} · {proof}")
