"""The command line: `untrace demo`, `write`, `show`, `verify`, `watch`, `stages`, `doctor`, `lint`, `minimize`, `dump` and
`refine`.

Text goes to stdout and talk to stderr.  The exit codes:

    0    done; for `verify`: the functions are the same; for `watch --compare`: the runs are; for `doctor` and `lint`: nothing
         is wrong
    1    of these only: they differ, or something is
    2    bad usage: an unknown flag, file, function or type string, or an output file that exists
    3    it could not be done: the function cannot be traced, written or proven
    130  interrupted

JAX takes about a second to import, so that only the verbs that trace do it, inside their functions.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Sequence

from untrace import _locate
from untrace._errors import OptionError, OutputExistsError, TypeStringError, UntraceError
from untrace.cli import texts, tools
from untrace.cli.arguments import EXAMPLES, Parser

_DESCRIPTION = """\
Write any JAX function back as Python source that is proven to be the same program.
"""


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
    verbs = {
        "demo": texts.demo, "write": texts.write, "show": texts.show, "verify": texts.verify,
        "watch": tools.watch, "stages": tools.stages, "doctor": tools.doctor, "lint": tools.lint,
        "minimize": tools.minimize, "dump": tools.dump, "refine": texts.refine,
    }  # fmt: skip
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


def _overview_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="untrace", description=_DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument("--version", action="store_true", help="print the versions and exit")
    verbs = parser.add_subparsers(title="commands", metavar="", prog="untrace")
    for name, purpose in (
        ("demo", "decompile the gradient of a small GPT, and prove and time the result"),
        ("write", "write a function as a module"),
        ("show", "print a function as a module"),
        ("verify", "say whether an edited module is still the same program"),
        ("watch", "run a function and print its values, statement by statement"),
        ("stages", "show source, jaxpr, written text and HLO side by side"),
        ("doctor", "say where numbers go wrong, why, and what to write instead"),
        ("lint", "find JAX's sharp bits: unrolled loops, promotions, indices out of bounds, ..."),
        ("minimize", "find the smallest program that still has a fault"),
        ("dump", "write all of that as numbered files of a folder"),
        ("refine", "let an editor go over a written module: only what is proven stays"),
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
