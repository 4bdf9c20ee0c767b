"""The verbs that write, show and compare texts."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from untrace import _locate
from untrace._errors import OptionError
from untrace.cli.arguments import (
    Job,
    Parser,
    add_call_arguments,
    add_function_arguments,
    add_style_arguments,
    argument,
    check_output,
    load_job,
    make_terminal,
)

if TYPE_CHECKING:
    from untrace._terminal import Terminal


def demo(argv: list[str]) -> int:
    parser = Parser(
        prog="untrace demo",
        description="Decompile the gradient of a small GPT's loss; prove and time the result.",
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT.py", type=Path, default=Path("demo_out/grad_loss.py"),
        help="where to write the module (default: demo_out/grad_loss.py)",
    )  # fmt: skip
    parser.add_argument("--full", action="store_true", help="print the whole module, without a pager")
    options = parser.parse_args(argv)
    from untrace import _demo

    return _demo.run(options.output, full=options.full, terminal=make_terminal())


def write(argv: list[str]) -> int:
    parser = Parser(
        prog="untrace write",
        description="Write a JAX function as a Python module, and say what was proven.",
    )
    add_function_arguments(parser)
    add_style_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="OUT.py", type=Path, help="the file to write (required); for C a folder"
    )
    parser.add_argument("--force", action="store_true", help="overwrite OUT.py when it exists")
    options = parser.parse_intermixed_args(argv)
    if options.output is None:  # not left to argparse, which then hides a misspelt flag
        parser.error("the file to write is missing: -o OUT.py")
    if options.to != "c" or not options.output.is_dir():  # what is in a folder is looked at by `save`
        check_output(options.output, options.target, force=options.force)

    terminal = make_terminal()
    decompiled = _decompile(options, terminal)
    decompiled.save(options.output, overwrite=options.force)
    lines = decompiled.source.count("\n")
    terminal.say(f"wrote {options.output}: {decompiled.name}, {lines} lines")
    _say_what_is_known(decompiled, terminal)
    return 0


def show(argv: list[str]) -> int:
    parser = Parser(
        prog="untrace show",
        description="Print a JAX function as a Python module; what was proven goes to stderr.",
    )
    add_function_arguments(parser)
    add_style_arguments(parser)
    parser.add_argument(
        "--jaxpr", action="store_true",
        help="show the jaxpr too: beside the source on a wide terminal, else below it as comments",
    )  # fmt: skip
    parser.add_argument("--steps", action="store_true", help="show what each pass makes of the text, as a diff")
    parser.add_argument(
        "--map", action="store_true", help="show behind each line what of your source it computes, as a comment"
    )
    parser.add_argument(
        "--until", metavar="PASS", help="end with this pass: the text after it, or with --steps the steps"
    )
    options = parser.parse_intermixed_args(argv)
    terminal = make_terminal()
    if options.map and (options.torch or options.jaxpr or options.steps or options.until):
        raise OptionError("--map goes with none of --torch, --jaxpr, --steps and --until.")
    if options.to not in (None, "jax") and (options.steps or options.until or options.jaxpr or options.map):
        raise OptionError(
            "--steps, --until, --map and --jaxpr show how the text for JAX comes about: they do not go with --to."
        )
    if options.steps or options.until:
        return _show_steps(options, terminal)
    decompiled = _decompile(options, terminal)
    if options.jaxpr:
        # Not str(): on a terminal JAX colours that by escape codes of its own.
        jaxpr = decompiled.jaxpr.pretty_print(use_color=False)
        terminal.show_beside(decompiled.source, jaxpr)
    elif options.map:
        terminal.show_source(decompiled.source_map.annotated(decompiled.source))
    else:
        terminal.show_source(decompiled.source)
    _say_what_is_known(decompiled, terminal)
    return 0


def _show_steps(options: argparse.Namespace, terminal: Terminal) -> int:
    """What each pass makes of the text, or the text after one of them."""
    if options.torch or options.jaxpr:
        raise OptionError("--steps and --until go with neither --torch nor --jaxpr.")
    with terminal.working("importing JAX"):
        from untrace import _api
        from untrace.driver import steps
    until = steps.known_pass(options.until) if options.until else None
    job, settings = _work(options)
    shown: list[str] = []
    with terminal.working("tracing, writing and proving"):
        for step in _api.steps(job.function, **settings)(*job.args, **job.kwargs):
            shown.append(str(step) if options.steps else step.text)
            if step.name == until:
                break
    terminal.show_source("\n".join(shown) if options.steps else shown[-1])
    return 0


def refine(argv: list[str]) -> int:
    parser = Parser(
        prog="untrace refine",
        description="Let an editor go over a written module, function by function; only what is proven to be the same program"
        " stays. ARGS, or else what the module's docstrings say, are the arguments at which that is proven.",
    )
    add_call_arguments(parser, target="FILE.py[:FN]")
    parser.add_argument(
        "--with", dest="command", metavar="COMMAND",
        help="takes a function's text on stdin and prints another; the file that UNTRACE_CONTEXT names has its types, its"
        " callers and the module as JSON (required)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", metavar="OUT.py", type=Path, help="the file to write (required)")
    parser.add_argument("--force", action="store_true", help="overwrite OUT.py when it exists")
    parser.add_argument(
        "--tries", type=int, default=1, help="how often a function is asked for while answers are refused"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="the limit for tracing one answer")
    options = parser.parse_intermixed_args(argv)
    if options.command is None or options.output is None:
        missing = (
            "the file to write is missing: -o OUT.py" if options.command else "the editor is missing: --with COMMAND"
        )
        parser.error(missing)
    file, _, name = options.target.partition(".py:")
    path = Path(f"{file}.py" if name else options.target)
    if path.suffix != ".py" or not path.is_file():
        raise OptionError(f"there is no file {path}.")
    if not (options.output.exists() and options.output.samefile(path) and options.force):
        check_output(options.output, options.target, force=options.force)
    terminal = make_terminal()
    with terminal.working("importing JAX"):
        from untrace.refine import file as files
    options.target = f"{path}:{name or files.entry_of(path)}"
    given: list[Any] = []
    if options.args or options.kw:
        job = load_job(options)
        given = [(job.args, job.kwargs, {})]
    written = files.WrittenFile.load(path, options.target.rpartition(":")[2], given)
    with terminal.working("editing and proving"):
        refined, answers = written.refined(options.command, options.tries, options.seconds)
    refined.save(options.output, overwrite=options.force)
    print(answers)
    terminal.say(f"wrote {options.output}")
    return 0


def verify(argv: list[str]) -> int:
    parser = Parser(
        prog="untrace verify",
        description="Say whether an edited module is still the same program as the original."
        " Exit code 0: the same; 1: different.",
    )
    parser.add_argument("edited", metavar="EDITED.py:FN", help="the edited function")
    add_function_arguments(parser, target="ORIGINAL.py:FN", of="of the original ")
    options = parser.parse_intermixed_args(argv)
    terminal = make_terminal()
    with terminal.working("importing JAX"):
        import untrace
    job = load_job(options)
    edited = _locate.load_function(options.edited)
    with terminal.working("comparing"):
        verdict = untrace.verify(edited, job.function)(*job.args, **job.kwargs)
    print(verdict)
    return 0 if verdict else 1


def _decompile(options: argparse.Namespace, terminal: Terminal) -> Any:
    with terminal.working("importing JAX"):
        import untrace
    if options.torch:
        return _from_torch(options, terminal)
    job, settings = _work(options)
    doing = "tracing, writing and proving" if options.prove else "tracing and writing"
    with terminal.working(doing):
        decompiled = untrace.decompile(job.function, **settings)(*job.args, **job.kwargs)
    if options.to == "mpi4py" and decompiled.rank:
        terminal.mute()
    return decompiled


def _work(options: argparse.Namespace) -> tuple[Job, dict[str, Any]]:
    """What is to be written, and the options of `decompile`."""
    job = load_job(options)
    settings = {"standalone": options.standalone, "prove": options.prove, **_style_settings(options)}
    settings["also"] = [tuple(map(argument, shlex.split(types))) for types in options.also]
    return job, settings


def _from_torch(options: argparse.Namespace, terminal: Terminal) -> Any:
    """The module of PyTorch that the target names, as JAX."""
    import untrace
    from untrace.torch import commands

    if options.transforms or options.static or options.standalone or options.x64:
        raise OptionError(
            "--torch goes with --kw, --also, --no-prove and the flags of style only; differentiate what it writes."
        )
    if options.to not in (None, "jax"):
        raise OptionError("what comes from PyTorch is written for JAX only: --to does not go with --torch.")
    module = commands.load_module(options.target)
    args, kwargs = commands.inputs(options.args, options.kw)
    if any(o is not None for o in (options.reroll, options.sizes, options.derivatives, options.allow)):
        raise OptionError("--reroll, --sizes, --derivatives and --allow do not go with --torch.")
    settings = _style_settings(options)
    settings["also"] = commands.others(options.also)
    with terminal.working("tracing, writing and proving" if options.prove else "tracing and writing"):
        return untrace.from_torch(module, prove=options.prove, **settings)(*args, **kwargs)


def _style_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options about the text that were given; the others keep their defaults."""
    names = ("style", "comments", "annotations", "reroll", "sizes", "derivatives")
    found = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.to is not None:
        found["target"] = options.to
    if options.allow is not None:
        found["allow"] = () if options.allow == "none" else tuple(options.allow.split(","))
    return found if options.guard else {**found, "guard": False}


def _say_what_is_known(decompiled: Any, terminal: Terminal) -> None:
    """The proof, and what a person should know about the text, each on a line of its own."""
    terminal.say(str(decompiled.proof))
    for note in decompiled.notes:
        terminal.say(f"note: {note}")
