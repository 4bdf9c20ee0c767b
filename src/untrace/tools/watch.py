"""`untrace.watch`: the values of a function, statement by statement."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from untrace import jax_compat
from untrace._api import Decompiled, decompile
from untrace._errors import CaptureError, OptionError, raised_in
from untrace._garbage import no_collections
from untrace._places import place_of
from untrace.capture.jaxpr import Importer
from untrace.ir.stepwise import evaluate_stepwise
from untrace.ir.types import Data, PyTree
from untrace.module.interface.signature import static_arguments
from untrace.prove.sample import is_concrete
from untrace.tools.collect import NON_FINITE, Collector, Wanted
from untrace.tools.instrument import instrumented
from untrace.tools.records import Record
from untrace.tools.watched import Watched


def watch(
    fn: Callable[..., Any],
    *,
    only: str | Sequence[str] = (),
    turns: int | Iterable[int] = 8,
    keep: int = 1 << 26,
    records: int = 200_000,
    to: Callable[[Record], None] | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    **options: Any,
) -> Callable[..., Watched]:
    """A function of `fn`'s arguments that runs it and gives its values, statement by statement: `watch(fn)(*args, **kwargs)`.

    The statements are those of the text that `decompile` writes. Each operation is computed by itself, so that a jitted run,
    which XLA fuses, may round otherwise.

    fn: a JAX function, or a Decompiled. only: names of variables, names of functions, `function.name`, or patterns of them
        (`layer*`); "first non-finite": only the first statement that gives a NaN or an infinity.
    turns: of loops with more turns than that, so many first ones and the last one are recorded (of `while` the first
        ones); or the numbers of those that are.
    keep: bytes of values that are kept; statistics are always there. records: so many are kept, the first half and the last.
    to: is called with each record as it comes, `print` for example.
    options: of `decompile`, which writes the text.

    Raises what `decompile` raises, and OptionError for what is no such option and for arguments without values.
    """
    words = (only,) if isinstance(only, str) else tuple(only) if isinstance(only, Iterable) else (only,)
    chosen = frozenset(turns) if isinstance(turns, Iterable) and not isinstance(turns, str) else turns
    _check(words, chosen, keep, records, to, options)
    patterns = tuple([w for w in words if w != NON_FINITE])
    wanted = Wanted(patterns, NON_FINITE in words, chosen, keep, records)
    options = {"guard": False, "static_argnums": static_argnums, "static_argnames": static_argnames, **options}
    if options.get("target", "jax") != "jax":
        raise OptionError("watch runs the text for JAX; target= does not go with it")

    def watch_on(*args: Any, **kwargs: Any) -> Watched:
        if isinstance(fn, Decompiled):
            text = fn
        else:
            text = decompile(fn, **options)(*args, **kwargs)
        numbers, names = static_arguments(fn, args, static_argnums, static_argnames)
        return _watched(text, args, kwargs, numbers, names, wanted, to)

    return watch_on


def _check(
    words: Sequence[object], turns: object, keep: object, records: object, to: object, options: Mapping[str, object]
) -> None:
    """Raises OptionError for what is none of watch's options."""
    known = inspect.signature(decompile).parameters
    for name in options:
        if name not in known:
            raise OptionError(f"watch and decompile have no option {name!r}")
    for word in words:
        if not isinstance(word, str):
            raise OptionError(f"only={word!r} is no name, and no pattern of names")
    for option, number in [
        *[("turns", n) for n in (turns if isinstance(turns, frozenset) else [turns])],
        ("keep", keep),
        ("records", records),
    ]:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise OptionError(f"{option}={number!r} is no number of what to keep; it is 0 or more")
    if to is not None and not callable(to):
        raise OptionError(f"to={to!r} is nothing that could be called with each record")


def _watched(
    text: Decompiled,
    args: tuple[PyTree, ...],
    kwargs: dict[str, PyTree],
    numbers: frozenset[int],
    names: frozenset[str],
    wanted: Wanted,
    to: Callable[[Record], None] | None,
) -> Watched:
    leaves, call = _flat(args, kwargs, numbers, names)
    for leaf in leaves:
        if isinstance(leaf, jax.core.Tracer):
            raise OptionError(
                "watch runs the function, on values: inside jit, grad or vmap there are none. Watch the transformed function:"
                " watch(jax.grad(f))(x)"
            )
        if not is_concrete(leaf) and not jax_compat.is_ref(leaf):
            raise OptionError(f"watch runs the function: it needs values, and one of its arguments is {leaf}")
    probed = instrumented(text)
    with no_collections():
        try:
            closed, shape = jax.make_jaxpr(call(probed), return_shape=True)(*leaves)
        except Exception as error:  # the text takes what the function takes
            raise CaptureError(
                f"the text of {text.name} cannot be traced on these arguments: {type(error).__name__}: {error}"
            ) from error
        function = Importer(rules=False).function(closed, text.name)
    collector = Collector(probed, wanted, _authors(text), to)
    given = [leaf if jax_compat.is_ref(leaf) else jax.numpy.asarray(leaf) for leaf in leaves]
    try:
        outputs = [_array(x) for x in evaluate_stepwise(function, given, collector)]
    except Exception as error:
        if not any("callback" in equation.primitive.name for equation in jax_compat.equations_in(closed)):
            raise
        said = raised_in(f"{type(error).__name__}: {error}")
        raise CaptureError(f"a function that {text.name} calls back has raised on these values: {said}") from error
    result = jax.tree.unflatten(jax.tree.structure(shape), outputs)
    notes = _notes(text, collector)
    if wanted.only and not collector.records.count:
        said = ", ".join(map(repr, wanted.only))
        notes.append(
            f'nothing that ran is named {said}; names of variables and functions, patterns, and "{NON_FINITE}" are'
        )
    return Watched(
        text.name, result, text.source, tuple(notes), tuple(collector.records), collector.non_finite, collector.skipped
    )


def _array(value: Data) -> Data:
    """What is a number of the jaxpr's own as an array."""
    return value if jax_compat.is_jax_array(value) else jax.numpy.asarray(value)


def _flat(
    args: tuple[PyTree, ...], kwargs: dict[str, PyTree], numbers: frozenset[int], names: frozenset[str]
) -> tuple[list[Data], Callable[[Callable[..., PyTree]], Callable[..., PyTree]]]:
    """The leaves of the traced arguments, and what makes a function of the arguments into one of those leaves."""
    traced = [x for i, x in enumerate(args) if i not in numbers]
    named = {k: v for k, v in kwargs.items() if k not in names}
    fixed = {k: v for k, v in kwargs.items() if k in names}
    leaves, tree = jax.tree.flatten((traced, named))

    def call(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        def flat(*xs: Data) -> PyTree:
            positional, keywords = jax.tree.unflatten(tree, xs)
            rest = iter(positional)
            return function(*[x if i in numbers else next(rest) for i, x in enumerate(args)], **keywords, **fixed)

        return flat

    return leaves, call


def _authors(text: Decompiled) -> dict[int, str]:
    """The author's lines behind those of the text, `model.py:8`, as far as they are known."""
    try:
        entries = text.source_map.entries
    except Exception:  # a help for the reader alone
        return {}
    found: dict[int, str] = {}
    for entry in entries:  # the last one is what gives the value
        if entry.author is not None and entry.span is not None:
            found[entry.span.line] = place_of(entry.author.file, str(entry.author.line))
    return found


def _notes(text: Decompiled, collector: Collector) -> list[str]:
    notes = []
    if text.proof.level in ("unproven",):
        notes.append(f"the text is not proven to be the function: {text.proof}")
    if collector.skipped:
        notes.append(f"{collector.skipped} values of other turns of loops are left out; turns= takes more")
    left_out = collector.records.count - len(list(collector.records))
    if left_out:
        notes.append(f"{left_out} records between the first and the last ones are left out; records= takes more")
    if collector.not_kept:
        notes.append(f"{collector.not_kept:,} bytes of values were not kept; keep= takes more")
    return notes
