"""What the verbs take: a function, its arguments, and flags about the text."""

from __future__ import annotations

import argparse
import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from untrace import _locate, _transforms
from untrace._errors import OptionError, OutputExistsError, TypeStringError

if TYPE_CHECKING:
    from untrace._terminal import Terminal


EXAMPLES = """\
examples:
  untrace demo
  untrace write model.py:loss "{'w': f32[3,4], 'b': f32[4]}" "f32[8,3]" --grad -o grad_loss.py
  untrace show model.py:step @model.py:make_args
  untrace verify grad_loss.py:grad_loss model.py:loss @model.py:make_args --grad
  untrace watch model.py:step @model.py:make_args --only "layer*" --save run.npz
  untrace stages model.py:loss @model.py:make_args --grad -o stages.html
  untrace doctor model.py:loss @model.py:make_args --grad
  untrace lint model.py:step @model.py:make_args
  untrace minimize model.py:step @model.py:make_args --fault nonfinite -o least.py
  untrace dump dumped model.py:step @model.py:make_args
  untrace refine grad_loss.py --with "my_model --clean-up" -o grad_loss_refined.py

ARGS, one for each positional argument of the function that is written:
  f32[8,128]  bf16[4]  i32[]  bool[2]  key       arrays, as JAX prints their types
  3  0.5  True  None                             Python values
  "{'w': f32[3,4]}"  "(f32[2], key)"  "[i8[3]]"  pytrees (quote them for the shell)
  @file.py:make_args                             what this function returns: a tuple is several
"""


@dataclass(frozen=True)
class Job:
    """What most verbs work on: a function and its arguments."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def load_job(options: argparse.Namespace) -> Job:
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
            args.append(argument(text))
    kwargs = {name: _typestrings.parse(text) for name, text in options.kw}
    function, all_args = _transforms.apply(options.transforms, function, tuple(args))
    return Job(function, all_args, kwargs)


def argument(text: str) -> Any:
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


class Parser(argparse.ArgumentParser):
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


def add_call_arguments(parser: argparse.ArgumentParser, target: str = "FILE.py:FN") -> None:
    """The function, and what it is called with."""
    parser.epilog = EXAMPLES
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
    parser.set_defaults(transforms=[])


def add_function_arguments(parser: argparse.ArgumentParser, target: str = "FILE.py:FN", of: str = "") -> None:
    add_call_arguments(parser, target)
    flags = parser.add_argument_group(f"transformations {of}(applied in the order given)")
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


def add_style_arguments(parser: argparse.ArgumentParser) -> None:
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
        "--allow", metavar="WHAT",
        help="of the text: grad, vmap, both (grad,vmap) or none; rules of functions that it does not need then are left out",
    )  # fmt: skip
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


def make_terminal() -> Terminal:
    from untrace._terminal import Terminal  # rich, 0.1 s

    return Terminal()


def check_output(output: Path, target: str, *, force: bool) -> None:
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
