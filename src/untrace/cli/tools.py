"""The verbs that look into programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from untrace import _locate
from untrace._errors import OutputExistsError
from untrace.cli.arguments import Job, Parser, add_function_arguments, check_output, load_job, make_terminal

if TYPE_CHECKING:
    from untrace._terminal import Terminal


def watch(argv: list[str]) -> int:
    parser = Parser(
        prog="untrace watch",
        description="Run a function one operation after the other and print its values, statement by statement of the text"
        " that `untrace show` prints. Of types among ARGS the values are drawn.",
    )
    add_function_arguments(parser)
    parser.add_argument(
        "--only", metavar="NAME", action="append", default=[],
        help='a variable, a function, function.name, or a pattern of them; "first non-finite" for the first NaN or infinity',
    )  # fmt: skip
    parser.add_argument("--turns", metavar="N", type=int, default=8, help="of longer loops N first turns and the last")
    parser.add_argument(
        "--keep", metavar="BYTES", type=int, default=1 << 26, help="of values, for --save and --compare"
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each record, as it comes")
    parser.add_argument("--save", metavar="RUN.npz", help="write the run to this file")
    parser.add_argument("--force", action="store_true", help="overwrite RUN.npz when it exists")
    parser.add_argument(
        "--compare", metavar="RUN.npz", help="say where this run differs from a saved one; 1 if it does"
    )
    parser.add_argument(
        "--bits", type=float, help="with --compare: what agrees in so many significant bits is the same"
    )
    _add_seed(parser)
    options = parser.parse_intermixed_args(argv)
    if options.save and Path(options.save).exists() and not options.force:
        raise OutputExistsError(f"{options.save} exists; choose another --save, or overwrite with --force.")
    terminal = make_terminal()
    with terminal.working("importing JAX"):
        import untrace
        from untrace.tools import render
    before = untrace.load_run(options.compare) if options.compare else None
    job = _with_values(options, terminal)
    to = (lambda record: print(render.as_json(record), flush=True)) if options.json else None
    with terminal.working("tracing, writing, proving and running"):
        watched = untrace.watch(job.function, only=options.only, turns=options.turns, keep=options.keep, to=to)(
            *job.args, **job.kwargs
        )
    if options.save:
        watched.save(options.save, overwrite=options.force)
    for note in watched.notes:
        terminal.say(f"note: {note}")
    if before is not None:
        comparison = before.compare(watched, options.bits)
        print(comparison)
        return 0 if comparison else 1
    if not options.json:
        terminal.show_text("\n".join(watched.lines()))
    return 0


def stages(argv: list[str]) -> int:
    parser = Parser(
        prog="untrace stages",
        description="Show a function through every stage: its source, its jaxpr, what untrace writes, StableHLO and optimised"
        " HLO, and after each transformation. With -o as a page for a browser, else by the lines of the source.",
    )
    add_function_arguments(parser)
    parser.add_argument("-o", "--output", metavar="PAGE.html", type=Path, help="write the page to this file")
    parser.add_argument("--force", action="store_true", help="overwrite PAGE.html when it exists")
    parser.add_argument(
        "--values", action="store_true", help="run the function, and show what each line of the text gives"
    )
    _add_seed(parser)
    options = parser.parse_intermixed_args(argv)
    if options.output is not None:
        check_output(options.output, options.target, force=options.force)
    terminal = make_terminal()
    with terminal.working("importing JAX"):
        import untrace
    job = _with_values(options, terminal) if options.values else load_job(options)
    with terminal.working("tracing, writing, proving and compiling"):
        found = untrace.stages(job.function, values=options.values)(*job.args, **job.kwargs)
    for note in found.notes:
        terminal.say(f"note: {note}")
    if options.output is None:
        terminal.show_text("\n".join(found.lines()))
    else:
        terminal.say(f"wrote {found.save(options.output, overwrite=options.force)}")
    return 0


def doctor(argv: list[str]) -> int:
    parser = Parser(
        prog="untrace doctor",
        description="Say where the numbers of a function go wrong, why, and what to write instead."
        " Exit code 0: nothing is wrong; 1: something is.",
    )
    add_function_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument("-o", "--output", metavar="OUT.py", type=Path, help="write the repaired module")
    parser.add_argument("--force", action="store_true", help="overwrite OUT.py when it exists")
    options = parser.parse_intermixed_args(argv)
    if options.output is not None:
        check_output(options.output, options.target, force=options.force)
    terminal = make_terminal()
    with terminal.working("importing JAX"):
        import untrace
    job = load_job(options)
    with terminal.working("examining"):
        diagnosis = untrace.doctor(job.function)(*job.args, **job.kwargs)
    print(diagnosis.to_json() if options.json else diagnosis)
    if options.output is not None:
        path = diagnosis.save(options.output, overwrite=options.force)
        terminal.say("nothing to repair" if path is None else f"wrote {path}")
    return 0 if diagnosis else 1


def lint(argv: list[str]) -> int:
    parser = Parser(
        prog="untrace lint",
        description="Find JAX's sharp bits in a function: each with the line, the cost and the change."
        " `# untrace: ignore[RULE]` on a line silences it there. Exit code 0: there is none; 1: there are some.",
    )
    add_function_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument(
        "--rule", metavar="RULE", action="append", default=[], help="look for this one (default: for all)"
    )
    options = parser.parse_intermixed_args(argv)
    terminal = make_terminal()
    with terminal.working("importing JAX"):
        import untrace
    # What is to be seen of a static argument has to be known as one.
    static = {} if options.transforms else dict(options.static)
    options.static = [] if static else options.static
    job = load_job(options)
    with terminal.working("tracing"):
        found = untrace.lint(job.function, rules=options.rule, static_argnames=list(static))(
            *job.args, **job.kwargs, **static
        )
    print(found.to_json() if options.json else found)
    return 1 if found else 0


def minimize(argv: list[str]) -> int:
    parser = Parser(
        prog="untrace minimize",
        description="Find the smallest program that still has a fault, and write it as a file that shows it."
        " Of types among ARGS the values are drawn.",
    )
    add_function_arguments(parser)
    parser.add_argument(
        "--fault", metavar="PREDICATE",
        help='"nonfinite", "crashes", "hangs(20)", "differs(\'jit\', \'eager\')", "compiles_slower_than(5)" or FILE.py:FUNCTION,'
        " which takes the function and a list of its arguments (required)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", metavar="LEAST.py", type=Path, help="the file to write (required)")
    parser.add_argument("--force", action="store_true", help="overwrite LEAST.py when it exists")
    parser.add_argument("--seconds", type=float, default=60.0, help="the limit of one run")
    parser.add_argument("--budget", type=float, default=600.0, help="the limit of all of them, in seconds")
    parser.add_argument("--repeats", type=int, default=1, help="runs before a candidate counts as sound")
    _add_seed(parser)
    options = parser.parse_intermixed_args(argv)
    if options.output is None or options.fault is None:
        parser.error("the file to write is missing: -o LEAST.py" if options.output is None else "--fault is missing")
    check_output(options.output, options.target, force=options.force)
    terminal = make_terminal()
    with terminal.working("importing JAX"):
        import untrace
    job = _with_values(options, terminal)
    found = untrace.minimize(
        job.function, options.fault, path=options.output, seconds=options.seconds, budget=options.budget,
        repeats=options.repeats, progress=terminal.say,
    )(*job.args, **job.kwargs)  # fmt: skip
    now, before = found.equations
    terminal.say(f"wrote {options.output}: {now} of {before} equations; {found.predicate}: {found.fault}")
    if not found.finished:
        terminal.say("note: the search was ended, by --budget or an interrupt, before it was through")
    return 0


def dump(argv: list[str]) -> int:
    parser = Parser(
        prog="untrace dump",
        description="Write all that there is to know of a function as numbered files: its source, the jaxpr, the texts, the"
        " source map, a run's values, what the doctor says, StableHLO and HLO, the other targets, and an index.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder to write, which is made")
    add_function_arguments(parser)
    parser.add_argument(
        "--overwrite", "--force", action="store_true", help="write into a folder that holds other or changed files"
    )
    _add_seed(parser)
    options = parser.parse_intermixed_args(argv)
    terminal = make_terminal()
    with terminal.working("importing JAX"):
        from untrace.tools import dump as dumps
    job = load_job(options)
    file = _locate.defining_file(options.target)
    subject = dumps.Subject(job.function, job.args, job.kwargs, file, options.seed)
    under = "".join(f", {transform.name}" for transform in options.transforms)
    title = f"{Path(options.target).name}{under}"
    with terminal.working("tracing, writing, proving, running and examining"):
        dumped = dumps.dump(subject, options.folder, title, options.overwrite, terminal.say)
    missing = (
        f"; {len(dumped.missing)} part{'s' * (len(dumped.missing) > 1)} could not be made" if dumped.missing else ""
    )
    terminal.say(f"wrote {options.folder}{missing}: {options.folder / dumps.INDEX} says what is there")
    return 0 if dumped.text else 3


def _add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="of the values that are drawn")


def _with_values(options: argparse.Namespace, terminal: Terminal) -> Job:
    """The function and its arguments; of types the values are drawn, and that is said."""
    from untrace.tools import values

    job = load_job(options)
    args, kwargs, is_drawn = values.with_values(job.args, job.kwargs, options.seed)
    if is_drawn:
        terminal.say(f"note: what ARGS gives as a type has values that are drawn, with --seed {options.seed}")
    return Job(job.function, args, kwargs)
