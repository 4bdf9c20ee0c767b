"""The command line: `untrace demo`, `untrace write`, `untrace show`, `untrace verify` and `untrace doctor`.

Text goes to stdout and talk to stderr.  The exit codes:

    0    done; for `verify`: the functions are the same; for `doctor`: nothing is wrong
    1    `verify` and `doctor` only: the functions differ, or numbers go wrong
    2    bad usage: an unknown flag, file, function or type string, or an output file that exists
    3    it could not be done: the function cannot be traced, written or proven
    130  interrupted

JAX takes about a second to import, so that only the verbs that trace do it, inside their functions.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from untrace import _locate, _transforms
from untrace._errors import OptionError, OutputExistsError, TypeStringError, UntraceError

if TYPE_CHECKING:
    from untrace._terminal import Terminal

_DESCRIPTION = """\
Write any JAX function back as Python source that is proven to be the same program.
"""

_EXAMPLES = """\
examples:
  untrace demo
  untrace write model.py:loss "{'w': f32[3,4], 'b': f32[4]}" "f32[8,3]" --grad -o grad_loss.py
  untrace show model.py:step @model.py:make_args
  untrace verify grad_loss.py:grad_loss model.py:loss @model.py:make_args --grad
  untrace doctor model.py:loss @model.py:make_args --grad

ARGS, one for each positional argument of the function that is written:
  f32[8,128]  bf16[4]  i32[]  bool[2]  key       arrays, as JAX prints their types
  3  0.5  True  None                             Python values
  "{'w': f32[3,4]}"  "(f32[2], key)"  "[i8[3]]"  pytrees (quote them for the shell)
  @file.py:make_args                             what this function returns: a tuple is several
"""


@dataclass(frozen=True)
class _Job:
    """What `write`, `show`, `verify` and `doctor` work on: a function and its arguments."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; `argv` is without the program's name."""
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except UntraceError as error:
        print(f"untrace: {error}", file=sys.stderr)
        is_usage = isinstance(error, OptionError | TypeStringError | OutputExistsError)
        return 2 if is_usage else 3
    except KeyboardInterrupt:
        print("untrace: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `untrace show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:
        traceback.print_exc()
        print(
            "untrace: this is a bug in untrace, not in your program; please report the lines above"
            " together with the function and the command",
            file=sys.stderr,
        )
        return 3


def _run(argv: list[str]) -> int:
    verbs = {"demo": _demo, "write": _write, "show": _show, "verify": _verify, "doctor": _doctor}
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview_parser().format_help(), end="")
        return 0
    verb, *rest = argv
    if verb == "--version":
        print(_versions())
        return 0
    if verb not in verbs:
        known = ", ".join(verbs)
        hint = _locate.closest(verb, list(verbs))
        raise OptionError(f"{verb!r} is no command; the commands are {known}.{hint}")
    return verbs[verb](rest)


# -- verbs -----------------------------------------------------------------------------------------
def _demo(argv: list[str]) -> int:
    parser = _Parser(
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

    return _demo.run(options.output, full=options.full, terminal=_terminal())


def _write(argv: list[str]) -> int:
    parser = _Parser(
        prog="untrace write",
        description="Write a JAX function as a Python module, and say what was proven.",
    )
    _add_function_arguments(parser)
    _add_style_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="OUT.py", type=Path, help="the file to write (required); for C a folder"
    )
    parser.add_argument("--force", action="store_true", help="overwrite OUT.py when it exists")
    options = parser.parse_intermixed_args(argv)
    if options.output is None:  # not left to argparse, which then hides a misspelt flag
        parser.error("the file to write is missing: -o OUT.py")
    if options.to != "c" or not options.output.is_dir():  # what is in a folder is looked at by `save`
        _check_output(options.output, options.target, force=options.force)

    terminal = _terminal()
    decompiled = _decompile(options, terminal)
    decompiled.save(options.output, overwrite=options.force)
    lines = decompiled.source.count("\n")
    terminal.say(f"wrote {options.output}: {decompiled.name}, {lines} lines")
    _say_what_is_known(decompiled, terminal)
    return 0


def _show(argv: list[str]) -> int:
    parser = _Parser(
        prog="untrace show",
        description="Print a JAX function as a Python module; what was proven goes to stderr.",
    )
    _add_function_arguments(parser)
    _add_style_arguments(parser)
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
    terminal = _terminal()
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


def _verify(argv: list[str]) -> int:
    parser = _Parser(
        prog="untrace verify",
        description="Say whether an edited module is still the same program as the original."
        " Exit code 0: the same; 1: different.",
    )
    parser.add_argument("edited", metavar="EDITED.py:FN", help="the edited function")
    _add_function_arguments(parser, target="ORIGINAL.py:FN", of="of the original ")
    options = parser.parse_intermixed_args(argv)
    terminal = _terminal()
    with terminal.working("importing JAX"):
        import untrace
    job = _load_job(options)
    edited = _locate.load_function(options.edited)
    with terminal.working("comparing"):
        verdict = untrace.verify(edited, job.function)(*job.args, **job.kwargs)
    print(verdict)
    return 0 if verdict else 1


def _doctor(argv: list[str]) -> int:
    parser = _Parser(
        prog="untrace doctor",
        description="Say where the numbers of a function go wrong, why, and what to write instead."
        " Exit code 0: nothing is wrong; 1: something is.",
    )
    _add_function_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument("-o", "--output", metavar="OUT.py", type=Path, help="write the repaired module")
    parser.add_argument("--force", action="store_true", help="overwrite OUT.py when it exists")
    options = parser.parse_intermixed_args(argv)
    if options.output is not None:
        _check_output(options.output, options.target, force=options.force)
    terminal = _terminal()
    with terminal.working("importing JAX"):
        import untrace
    job = _load_job(options)
    with terminal.working("examining"):
        diagnosis = untrace.doctor(job.function)(*job.args, **job.kwargs)
    print(diagnosis.to_json() if options.json else diagnosis)
    if options.output is not None:
        path = diagnosis.save(options.output, overwrite=options.force)
        terminal.say("nothing to repair" if path is None else f"wrote {path}")
    return 0 if diagnosis else 1


def _decompile(options: argparse.Namespace, terminal: Terminal) -> Any:
    with terminal.working("importing JAX"):
        import untrace
    if options.torch:
        return _from_torch(options, terminal)
    job, settings = _work(options)
    doing = "tracing, writing and proving" if options.prove else "tracing and writing"
    with terminal.working(doing):
        return untrace.decompile(job.function, **settings)(*job.args, **job.kwargs)


def _work(options: argparse.Namespace) -> tuple[_Job, dict[str, Any]]:
    """What is to be written, and the options of `decompile`."""
    job = _load_job(options)
    settings = {"standalone": options.standalone, "prove": options.prove, **_style_settings(options)}
    settings["also"] = [tuple(map(_argument, shlex.split(types))) for types in options.also]
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
    if any(o is not None for o in (options.reroll, options.sizes, options.derivatives)):
        raise OptionError("--reroll, --sizes and --derivatives do not go with --torch.")
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
    return found if options.guard else {**found, "guard": False}


def _say_what_is_known(decompiled: Any, terminal: Terminal) -> None:
    """The proof, and what a person should know about the text, each on a line of its own."""
    terminal.say(str(decompiled.proof))
    for note in decompiled.notes:
        terminal.say(f"note: {note}")


def _load_job(options: argparse.Namespace) -> _Job:
    """The function and the arguments that the options name; imports JAX."""
    import jax

    if options.x64:
        jax.config.update("jax_enable_x64", True)  # before the user's file makes its constants
    from untrace import _typestrings

    function = _locate.load_function(options.target)
    function = _transforms.bind(function, dict(options.static))
    args: list[Any] = []
    for text in options.args:
        if text.startswith("@"):
            args.extend(_locate.load_args(text[1:]))
        else:
            args.append(_argument(text))
    kwargs = {name: _typestrings.parse(text) for name, text in options.kw}
    function, all_args = _transforms.apply(options.transforms, function, tuple(args))
    return _Job(function, all_args, kwargs)


def _argument(text: str) -> Any:
    """The argument that a type string stands for; a word on `--kw` where it looks like a keyword argument."""
    from untrace import _typestrings

    name, equals, kind = text.partition("=")
    try:
        return _typestrings.parse(text)
    except TypeStringError:
        if not equals or not name.isidentifier():
            raise
        _typestrings.parse(kind)
        raise OptionError(f"{text}: a keyword argument is given as --kw {name}={kind}") from None


def _check_output(output: Path, target: str, *, force: bool) -> None:
    """Refuses an output before the work starts; `save` itself looks again."""
    source = _locate.source_file(target)
    if source is not None and output.exists() and source.exists() and output.samefile(source):
        raise OutputExistsError(f"{output} holds the function itself; choose another -o.")
    if output.is_dir():
        raise OptionError(f"{output} is a folder; name the file to write in it.")
    if output.exists() and not force:
        raise OutputExistsError(f"{output} exists; choose another -o, or overwrite with --force.")
    if not output.parent.is_dir():
        raise OptionError(f"there is no folder {output.parent} to write {output.name} in.")


# -- flags -----------------------------------------------------------------------------------------
class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are `OptionError`s: one sentence, not a page of usage."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        unknown, _, words = message.partition("unrecognized arguments: ")
        hint = ""
        if not unknown and words:
            message = f"{words.split()[0]} is no option here"
            options = re.findall(r"--[\w-]+", self.format_help())
            hint = _locate.closest(words.split()[0].split("=")[0], options)
        raise OptionError(f"{message}.{hint} See {self.prog} --help.")


class _AddTransform(argparse.Action):
    """Appends a transformation; the order of the flags is the order of application."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        added = _transforms.Transform(self.const)
        namespace.transforms = [*namespace.transforms, added]


class _SetOption(argparse.Action):
    """Gives the last transformation an option: `--vmap --in-axes 0,None`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        *before, last = namespace.transforms or [None]
        if last is None or self.const not in _transforms.OPTIONS[last.name]:
            takes = [name for name, has in _transforms.OPTIONS.items() if self.const in has]
            flags = " or ".join(f"--{name.replace('_', '-')}" for name in takes)
            parser.error(f"{option} belongs behind {flags}")
        value = True if self.nargs == 0 else _literal(values, str(option))
        options = {**last.options, self.const: value}
        namespace.transforms = [*before, _transforms.Transform(last.name, options)]


def _add_function_arguments(parser: argparse.ArgumentParser, target: str = "FILE.py:FN", of: str = "") -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("target", metavar=target, help="the function; module.path:FN names one as well")
    parser.add_argument("args", metavar="ARGS", nargs="*", default=[], help="its arguments, see below")
    parser.add_argument(
        "--kw", metavar="NAME=TYPE", action="append", default=[], type=_name_and_value,
        help="a keyword argument",
    )  # fmt: skip
    parser.add_argument(
        "--static", metavar="NAME=VALUE", action="append", default=[], type=_static,
        help="a parameter with a fixed Python value, which leaves the signature",
    )  # fmt: skip
    parser.add_argument("--x64", action="store_true", help="turn JAX's 64-bit mode on")

    flags = parser.add_argument_group(f"transformations {of}(applied in the order given)")
    parser.set_defaults(transforms=[])
    added: set[str] = set()
    for name in _transforms.OPTIONS:
        flags.add_argument(
            f"--{name.replace('_', '-')}", action=_AddTransform, nargs=0, const=name,
            dest="transforms", default=argparse.SUPPRESS, help=_TRANSFORM_HELP[name],
        )  # fmt: skip
        for option in _transforms.OPTIONS[name]:
            if option in added:  # of an earlier transformation, which takes it as well
                continue
            added.add(option)
            flags.add_argument(
                f"--{option.replace('_', '-')}", action=_SetOption, const=option, dest="transforms",
                nargs=0 if option == "has_aux" else None, default=argparse.SUPPRESS,
                metavar=option.upper(), help=_OPTION_HELP[option],
            )  # fmt: skip


_TRANSFORM_HELP = {
    "grad": "the gradient",
    "value_and_grad": "the value and the gradient",
    "jvp": "forward mode; a tangent for each differentiable argument follows the arguments",
    "vmap": "over a batch; ARGS are then those with the batch axis",
    "jit": "inside jax.jit",
}
_OPTION_HELP = {
    "argnums": "of the gradient before it, such as 0,1 (default: 0)",
    "has_aux": "the function of the gradient before it returns (value, auxiliary data)",
    "in_axes": "of the vmap before it, such as 0,None (default: 0)",
    "out_axes": "of the vmap before it (default: 0)",
}


def _add_style_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", metavar="TARGET", help="numpy, torch, mpi4py or c: the program without JAX, its derivatives written out"
    )
    parser.add_argument("--style", help="how to write: exact is one statement per equation")
    parser.add_argument("--comments", help="full, some or none: types and places beside the statements")
    parser.add_argument("--annotations", help='jaxtyping: `x: Float[Array, "8 128"]` in every function')
    parser.add_argument("--reroll", help="scan: calls that go through a list of parameters become a lax.scan")
    parser.add_argument("--sizes", help="fixed: the sizes of ARGS alone, where those that may differ follow else")
    parser.add_argument(
        "--derivatives",
        help="called: also the outermost stays a call; written: all are written out (auto: as they were asked for)",
    )
    parser.add_argument(
        "--no-guard", dest="guard", action="store_false", help="leave out the line that refuses other arguments"
    )
    parser.add_argument(
        "--standalone", action="store_true",
        help="define the classes in inputs and outputs instead of importing them",
    )  # fmt: skip
    parser.add_argument(
        "--torch", action="store_true",
        help="the target is a torch.nn.Module, a class of one, or a function that makes one",
    )  # fmt: skip
    parser.add_argument(
        "--also", action="append", default=[], metavar="TYPES",
        help='types of arguments of other sizes, "f32[4,12] f32[4]", at which the text has to hold as well',
    )  # fmt: skip
    parser.add_argument("--no-prove", dest="prove", action="store_false", help="leave the proof out")


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _static(text: str) -> tuple[str, Any]:
    """A name and a Python value; what is no Python literal is a string."""
    name, value = _name_and_value(text)
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name, value


def _literal(text: str, option: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise OptionError(f"{option} {text!r} is no Python value such as 0 or 0,None.") from None


def _overview_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="untrace", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("--version", action="store_true", help="print the versions and exit")
    verbs = parser.add_subparsers(title="commands", metavar="", prog="untrace")
    for name, purpose in (
        ("demo", "decompile the gradient of a small GPT, and prove and time the result"),
        ("write", "write a function as a module"),
        ("show", "print a function as a module"),
        ("verify", "say whether an edited module is still the same program"),
        ("doctor", "say where numbers go wrong, why, and what to write instead"),
    ):
        verbs.add_parser(name, help=purpose)
    return parser


def _versions() -> str:
    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return "(not installed)"

    return f"untrace {version('untrace')}, jax {version('jax')}, Python {sys.version.split()[0]}"


def _terminal() -> Terminal:
    from untrace._terminal import Terminal  # rich, 0.1 s

    return Terminal()


if __name__ == "__main__":
    sys.exit(main())
