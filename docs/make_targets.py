"""Writes docs/targets.md: what NumPy, PyTorch, C and MPI have for each family of primitives, and where they differ from JAX.

PyTorch itself is not asked, so that the page is the same where it is not installed.

python docs/make_targets.py            writes it
python docs/make_targets.py --check    says whether it is up to date
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from untrace.ir.bodies import RULED_CALLS
from untrace.ir.calls import CALLED
from untrace.module.rules import RuleTable
from untrace.python import helpers
from untrace.targets.c import program as c_program  # noqa: F401  (registers the rules)
from untrace.targets.c.rules import elementwise as c_elementwise
from untrace.targets.c.rules.table import C, Rules
from untrace.targets.c.runtime import complexes as c_complexes
from untrace.targets.c.runtime import helpers as c_helpers
from untrace.targets.jax.rules.table import JAX
from untrace.targets.mpi import messages
from untrace.targets.mpi import target as mpi_target  # noqa: F401
from untrace.targets.mpi.table import MPI
from untrace.targets.numpy import target as numpy_target  # noqa: F401  (registers the rules)
from untrace.targets.numpy.rules import elementwise as numpy_elementwise
from untrace.targets.numpy.rules.table import NUMPY
from untrace.targets.torch import target as torch_target  # noqa: F401
from untrace.targets.torch.rules import elementwise as torch_elementwise
from untrace.targets.torch.rules.table import TORCH

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "targets.md"
sys.path.insert(0, str(ROOT / "tests"))

import c_differences  # noqa: E402
import mpi_differences  # noqa: E402
import numpy_differences  # noqa: E402
import torch_differences  # noqa: E402

FAMILIES = {
    "elementwise": "Elementwise", "integers": "Bits of integers", "shapes": "Shapes", "indexing": "Indices",
    "complexes": "Complex numbers", "reductions": "Reductions and windows",
    "products": "Products, convolutions, Fourier transforms", "linalg": "Linear algebra", "sorting": "Orders",
    "random": "Keys and random bits", "control": "Loops and branches",
    "plain": "The same in all libraries of arrays",
}  # fmt: skip
METHODS = (
    "all",
    "any",
    "argmax",
    "argmin",
    "max",
    "min",
    "prod",
    "reshape",
    "squeeze",
    "sum",
    "swapaxes",
    "transpose",
    "view",
)
MODULES = ("scipy.linalg", "scipy.special")  # as they are imported
NOISE = frozenset({"astype", "clip"})  # casts, and the mode of an index
NUMBERS = frozenset({"torch.nan"})
PAIRS = frozenset({"sort", "cummax", "cummin"})  # of which PyTorch gives the places as well
OURS = frozenset({"cast_words"})  # that no program of JAX's has
ON_ONE_DEVICE = frozenset(
    "all_gather axis_index pmax pmin ppermute psum psum_invariant reduce_scatter shard_map".split()
)
OF_REFERENCES = frozenset("addupdate empty_ref free_ref freeze get new_ref swap".split())
SHARED = {
    "debug_print": "`print`",
    "reduce": "`_reduced`",
    "reduce_window": "`_reduced`",
    "scan": "`for`",
    "while": "`while`",
}


@dataclass(frozen=True, slots=True)
class Section:
    """What the page says of a target: `spellings` has what is written for primitives, `found` reads it off a rule."""

    name: str
    title: str
    rules: RuleTable | Rules
    text: str
    families: Mapping[str, str]
    spellings: Mapping[str, str]
    found: Callable[[str, Callable[..., Any]], Sequence[str]]
    differences: Sequence[Any]
    not_kept: Sequence[tuple[str, str]]
    elsewhere: frozenset[str] = frozenset()  # primitives that are written, and not by a rule

    def helpers(self) -> dict[str, str]:
        """What its helpers give, by what they are called in a text."""
        if self.name == "c":
            return _helpers_of_c()
        found = self._functions()
        return {name: (function.__doc__ or "").strip().splitlines()[0] for name, function in found.items()}

    def _functions(self) -> dict[str, Any]:
        home = f"untrace.targets.{self.name}.runtime"
        return {
            name: helpers.function(key)
            for key, name in helpers._LAST.items()
            if helpers.function(key).__module__.startswith(home) and key == helpers.key(name, _prefix(self.name))
        }


def _prefix(target: str) -> str:
    """What helpers of a target are registered under."""
    return "" if target == "numpy" else target


def words(rule: Callable[..., Any]) -> Iterator[str]:
    """The strings that a rule's code mentions, those that it closes over among them."""
    codes: list[types.CodeType] = [rule.__code__]
    used: list[str] = []
    while codes:
        code = codes.pop()
        used += code.co_names
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        yield from (c for c in code.co_consts if isinstance(c, str) and c != rule.__doc__)
    closed = inspect.getclosurevars(rule)
    yield from (v for v in closed.nonlocals.values() if isinstance(v, str))
    for function in [
        rule.__globals__.get(name) for name in sorted(set(used))
    ]:  # what it leaves to a function of the same file
        same = isinstance(function, types.FunctionType) and function.__module__ == rule.__module__
        if same and function is not rule and str(function.__annotations__.get("return")).startswith("Expr"):
            yield from words(function)


def spelled(section: Section, name: str) -> str:
    """What is written for a primitive: an operator, functions, helpers."""
    if name in section.spellings:
        return section.spellings[name]
    rule = section.rules.find(name)
    assert rule is not None
    return ", ".join(dict.fromkeys(section.found(name, rule))) or "itself, or a method of the array"


def _of_numpy(name: str, rule: Callable[..., Any]) -> list[str]:
    """What a rule's strings say: helpers, functions of SciPy and NumPy, methods."""
    found = [w for w in dict.fromkeys(words(rule)) if w not in NOISE or name == "clamp"]
    known = {last for key, last in helpers._LAST.items() if key == last}
    own = [f"`{w}`" for w in found if w in known]
    own += [f"`{w}`" for w in found if w.startswith("scipy.") and w not in MODULES]
    own += [f"`np.{w}`" for w in found if w not in (*known, *METHODS) and _is_numpys(w)]
    own += ["`np.fft`"] * ("fft." in found)
    closed = [v for v in inspect.getclosurevars(rule).nonlocals.values() if v in METHODS]
    return own + [f"`.{w}`" for w in found if w in (closed or METHODS)]


def _is_numpys(path: str) -> bool:
    found: Any = np
    for part in path.split("."):
        found = getattr(found, part, None)
    return callable(found) and not isinstance(found, type)


def _of_torch(name: str, rule: Callable[..., Any]) -> list[str]:
    """What a rule's calls say: `w.torch("sum", ...)`, `w.method(x, "sum")`, `w.helper("_sign")`, operators."""
    found = [w for w in _called(rule, set()) if w != "`.values`" or name in PAIRS]
    return sorted(found, key=lambda word: (word == "`.to`", not word.startswith("`_")))


def _called(rule: Callable[..., Any], seen: set[Any]) -> Iterator[str]:
    seen.add(rule)
    closed = inspect.getclosurevars(rule).nonlocals
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(rule))))):
        if not isinstance(node, ast.Call):
            continue
        given = [_word(a, closed) for a in node.args] + [""] * 2
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == "w":
            place, before = WRITERS.get(node.func.attr, (0, None))
            if node.func.attr == "cast":
                yield "`.to`"
            elif before is not None and given[place]:
                yield f"`{before}{given[place]}`"
        elif isinstance(node.func, ast.Name):
            called = node.func.id
            if called == "Attribute" and given[1]:
                yield f"`.{given[1]}`"
            elif called == "Binary" and given[1] and given[1] != "*":
                yield f"`{given[1]}`"
            elif called == "Unary":
                yield f"`{given[0]}`"
            yield from (f"`{w}`" for w in given if w.startswith("torch.") and w not in NUMBERS and w != "torch.*")
            same = rule.__globals__.get(called)
            if isinstance(same, types.FunctionType) and same.__module__ == rule.__module__ and same not in seen:
                yield from _called(same, seen)


# Of the calls that write a text: which argument has the word, and what stands before it.
WRITERS = {"torch": (0, "torch."), "functional": (0, "F."), "method": (1, "."), "helper": (0, "")}


def _word(node: ast.expr, closed: Mapping[str, Any]) -> str:
    """A string of a rule's source; `*` for what only its operands say."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.Name):
        value = closed.get(node.id, "")
        return value if isinstance(value, str) else ""
    if isinstance(node, ast.Call):  # of a function that chooses between this word and one like it
        return _word(node.args[0], closed) if node.args else ""
    if isinstance(node, ast.FormattedValue):
        return _word(node.value, closed) or "*"
    if isinstance(node, ast.JoinedStr):
        return "".join(_word(part, closed) for part in node.values)
    return ""


def page() -> str:
    parts = [
        "# Targets\n\nWhat `untrace.decompile(fn, target=...)` and `d.to(...)` write beside JAX. "
        "This page is made by `python docs/make_targets.py`, from the rules and from the tests.\n"
    ]
    for section in SECTIONS:
        parts += _section(section)
    return "\n".join([*parts, *_mpi()])


# ------------------------------------------------------------ C


OPERATORS = frozenset("+ - * / % << < <= > >= == != && || & | ^ ! ~ ?:".split())
WORDS_OF_OPERATORS = {"neg": "-"}
OF_MATH = frozenset(c_elementwise._LIBM.values()) | {
    "fabs", "fmod", "pow", "round", "nearbyint", "atan2", "nextafter", "isfinite", "isnan",
}  # fmt: skip
WRITE_LOOPS = frozenset({"loops", "fill", "new", "block"})  # what rules call that write statements


def _stems() -> dict[str, str]:
    """The helpers of C, each type's among them once: {`max_f32`: `max_T`, `threefry`: `threefry`}."""
    found: dict[str, str] = {}
    for name in c_helpers.helpers():
        stem, _, last = name.rpartition("_")
        found[name] = (
            f"{stem}_T" if last in c_helpers.TYPES | c_complexes.TYPES and not stem.startswith("bits") else name
        )
    return found


def _helpers_of_c() -> dict[str, str]:
    """What each gives, in the words of the comment on top of it."""
    found: dict[str, str] = {}
    for name, text in c_helpers.helpers().items():
        comment = text.partition("*/")[0] if text.startswith("/*") else ""
        said = " ".join(comment.removeprefix("/*").split())
        found.setdefault(_stems()[name], said or "what its name says, for every number of the type")
    return {name: said for name, said in found.items() if not name.startswith("bits_")}


def _of_c(name: str, rule: Callable[..., Any]) -> list[str]:
    """What a rule's strings say: operators, functions of <math.h>, helpers; loops, where it writes statements."""
    given = [*(rule.__defaults__ or ()), *(rule.__kwdefaults__ or {}).values()]
    table = [w for w in given if isinstance(w, str)]  # of a rule for each row of a table
    found = [WORDS_OF_OPERATORS.get(w, w) for w in dict.fromkeys(table or words(rule))]
    stems = {stem.removesuffix("_T"): stem for stem in _stems().values()}
    said = [f"`{w}`" for w in found if w in OPERATORS or w in OF_MATH]
    said += [f"`{stems[w]}`" for w in found if w in stems and w not in OF_MATH]
    if _writes_loops(rule):
        said.append("loops")
    return list(dict.fromkeys(said)) or ["where it is read"]


SPELLED_IN_C = {
    **dict.fromkeys(("add", "add_any"), "`+`, `add_T`"), "sub": "`-`, `sub_T`", "mul": "`*`, `mul_T`", "square": "`*`, `mul_T`",
    "neg": "`-`, `sub_T`", "integer_pow": "`*`, `mul_T`, `/`, `pow`", "max": "`max_T`, `?:`", "min": "`min_T`, `?:`",
    "debug_print": "nothing, with a note", "iota": "the index", "convert_element_type": "a cast, `to_T`", "bitcast_convert_type": "a cast, `memcpy`",
    "erf_inv": "`erf_inv_f32`", "dot_general": "loops, `product_T`", "sort": "`sort_T`, loops",
    "mulhi": "`*`, `>>`, `shift_right_arithmetic_T`", "complex": "`{x, y}`", "real": "`.re`", "imag": "`.im`",
    "conj": "`conj_T`", "fft": "`fft_T`, loops",
    **dict.fromkeys(("cummax", "cummin", "cumprod", "cumsum", "select_and_scatter_add"), "loops"),
    **{f"scatter{sign}{word}": "loops, `in_range`" for sign in "-_" for word in ("add", "sub", "mul", "min", "max")},
    "scatter": "loops, `in_range`",
}  # fmt: skip


def _writes_loops(rule: Callable[..., Any]) -> bool:
    codes, used = [rule.__code__], set[str]()
    while codes:
        code = codes.pop()
        used |= {*code.co_names}
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    if used & WRITE_LOOPS:
        return True
    called = [rule.__globals__.get(name) for name in used]
    return any(
        isinstance(f, types.FunctionType) and f.__module__ == rule.__module__ and f is not rule and _writes_loops(f)
        for f in called
    )


# ------------------------------------------------------------ MPI


def _mpi() -> list[str]:
    """The section on MPI, whose rules are NumPy's but for what moves numbers between ranks."""
    own = [n for n in MPI.names() if MPI.find(n).__module__ == "untrace.targets.mpi.collectives"]
    rows = []
    for name in own:
        rule = MPI.find(name)
        assert rule is not None
        said = [f"`{w}`" for w in dict.fromkeys(words(rule)) if w in _mpi_helpers() or w == "Get_rank"]
        said += [f"`MPI.{w}`" for w in dict.fromkeys(words(rule)) if w in ("SUM", "MAX", "MIN")]
        rows.append(f"| `{name}` | {', '.join(said)} |")
    differences = [f"| {one} | {jax} | {mpi} | {kept} |" for one, jax, mpi, kept in mpi_differences.DIFFERENCES]
    helpers_ = [f"| `{n}` | {said} |" for n, said in sorted(_mpi_helpers().items())]
    rest = "\n".join(f"- {what}: {why}." for what, why in mpi_differences.NOT_KEPT)
    calls = [f"| `mpi4jax.{name}` | `{helper}` |" for name, (helper, _) in messages.HELPERS.items()]
    calls.append("| `mpi4jax.barrier` | `comm.Barrier()` |")
    return [
        f"## MPI\n\n{mpi_differences.TEXT}\n",
        "### Collectives\n\n| primitives | written as |\n|---|---|\n" + "\n".join(rows) + "\n",
        "### mpi4jax\n\nAll ranks of a program of mpi4jax write it together (`mpirun -n 4 untrace write ...`), each with what it has "
        "traced. Numbers that differ by rank, with whom a rank exchanges a message among them, become expressions of `rank`; a "
        "message that some ranks have none of is one to or from `MPI.PROC_NULL` there. Where a rank computes something else than "
        "another one, the program is refused, with both lines.\n\n| function | written as |\n|---|---|\n"
        + "\n".join(calls)
        + "\n",
        "### Where MPI means something else\n\n`tests/targets/test_mpi.py` and `test_mpi4jax.py` run texts on simulated ranks and, where there "
        "is an `mpirun`, on processes.\n\n| | JAX | MPI | how it is kept |\n|---|---|---|---|\n"
        + "\n".join(differences)
        + "\n",
        f"Not kept:\n\n{rest}\n",
        "### Helpers\n\n| helper | what it gives |\n|---|---|\n" + "\n".join(helpers_) + "\n",
    ]


def _mpi_helpers() -> dict[str, str]:
    found = {name: helpers.function(key) for key, name in helpers._LAST.items()}
    return {
        name: (function.__doc__ or "").strip().splitlines()[0]
        for name, function in found.items()
        if function.__module__ in ("untrace.targets.mpi.collectives", "untrace.targets.mpi.messages")
    }


def _section(section: Section) -> list[str]:
    families: dict[str, dict[str, list[str]]] = {}
    for name in sorted({*section.rules.names()} - OURS, key=section.rules.names().index):
        rule = section.rules.find(name)
        assert rule is not None
        family = rule.__module__.rpartition(".")[2]
        families.setdefault(family, {}).setdefault(spelled(section, name), []).append(name)
    parts = [f"## {section.title}\n\n{section.text}\n"]
    for family, title in section.families.items():
        rows = sorted(families.pop(family).items(), key=lambda row: row[1])
        lines = [
            f"| {', '.join(f'`{n}`' for n in names)} | {text.replace('|', chr(92) + '|')} |" for text, names in rows
        ]
        parts.append(f"### {title}\n\n| primitives | written as |\n|---|---|\n" + "\n".join(lines) + "\n")
    assert not families, families
    lowered = {*CALLED, *RULED_CALLS, "custom_linear_solve"}
    no_primitives = {
        n for n in JAX.names() if JAX.find(n).__module__.rpartition(".")[2] in ("differentiated", "mapped")
    }
    refused = [
        n
        for n in JAX.names()
        if section.rules.find(n) is None
        and n not in lowered | no_primitives | section.elsewhere | ON_ONE_DEVICE | OF_REFERENCES
    ]
    parts.append(
        "### Over a mesh\n\nA `jax.shard_map`, or a `jax.pmap`, is written for one device: as a `jax.vmap` over the axes of the "
        "mesh, in whose arrays all shards are; a collective is an operation along such an axis. Refused are groups of "
        "devices (`axis_index_groups`) and a `ppermute` over several axes at once.\n"
    )
    prints = "is a note, for C prints nothing" if section.name == "c" else "is a `print`"
    parts.append(
        "### Beside computing\n\nA mutable array that the program makes (`jax.new_ref`) is an array that its loops and functions "
        f"pass on; one that is an argument is refused. `jax.debug.print` {prints}; other callbacks are refused.\n"
    )
    parts.append(
        "### Refused\n\nOf the primitives that have a rule for JAX: " + ", ".join(f"`{n}`" for n in refused) + ".\n"
    )
    rows = [f"| {d.name} | {d.jax} | {getattr(d, section.name)} | {d.kept} |" for d in section.differences]
    parts.append(
        f"### Where {section.title} means something else\n\nEach row is a test in "
        f"`tests/targets/test_{section.name}_differences.py`: what one would write in {section.title} gives something else "
        "there, the text gives what JAX gives.\n\n"
        f"| | JAX | {section.title} | how it is kept |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )
    rest = "\n".join(f"- {what}: {why}." for what, why in section.not_kept)
    parts.append(f"Not kept, and within what the proof calls `close`:\n\n{rest}\n")
    lines = [f"| `{n}` | {said} |" for n, said in sorted(section.helpers().items())]
    parts.append("### Helpers\n\n| helper | what it gives |\n|---|---|\n" + "\n".join(lines) + "\n")
    return parts


LAST = (
    "What is left is written by primitive, and one without a rule as JAX runs it, where that is code of JAX's own: a sample of "
    "`random.gamma` is a loop of rejections. A helper, `_like_this`, stands at the end of the module where it is used. "
    "A rule knows every parameter of its primitive; what it cannot express, and each primitive that is none of these, is "
    "refused before anything is written, with your lines. `jit`, `checkpoint`, `custom_jvp`, `custom_vjp` and other calls "
    "become functions of the module, solvers of linear equations their body, derivatives what they compute."
)
SECTIONS = (
    Section(
        "numpy",
        "NumPy",
        NUMPY,
        "Calls of `jnp` are calls of `np` where NumPy's function gives what JAX's gives, which is tried on the types of that "
        f"call. {LAST}",
        {name: title for name, title in FAMILIES.items() if name not in ("integers", "complexes")},
        {name: f"`{sign}`" for name, sign in numpy_elementwise._OPERATORS.items()}
        | {name: f"`np.{function}`" for name, function in numpy_elementwise._FUNCTIONS.items()}
        | {name: f"`scipy.special.{function}`" for name, function in numpy_elementwise._SPECIAL.items()}
        | SHARED
        | {"cond": "`if`, `elif`, `else`"},
        _of_numpy,
        numpy_differences.DIFFERENCES,
        numpy_differences.NOT_KEPT,
    ),
    Section(
        "torch",
        "PyTorch",
        TORCH,
        "Functions of tensors on the CPU, which `torch.func.grad`, `torch.func.vmap`, `torch.compile(fullgraph=True)` and "
        "`torch.export` take: nothing is written into a tensor, and no `if` looks at one, but where a branch has a loop. A "
        "loop that ends when its numbers say so (`lax.while_loop`) cannot be mapped, exported or compiled whole. Nothing "
        "depends on the default type. Derivatives and maps that your function calls stay calls, unless a function with rules of yours, or one whose "
        "derivative is another there (`abs` at 0), is differentiated: then they are written out. "
        "Calls of `jnp` are calls of `torch` where PyTorch's function gives what JAX's gives, which is tried on "
        f"the types of that call. {LAST}",
        {name: title for name, title in FAMILIES.items() if name not in ("sorting", "complexes")}
        | {"indexing": "Indices and orders", "differentiated": "Derivatives and maps that your function calls"},
        {name: f"`{sign}`" for name, sign in torch_elementwise._OPERATORS.items()}
        | {name: f"`torch.{function}`" for name, function in torch_elementwise._FUNCTIONS.items()}
        | SHARED
        | {name: f"`torch.func.{name}`" for name in ("jvp", "vjp", "jacfwd", "jacrev", "hessian", "vmap")}
        | {"value_and_grad": "`torch.func.grad`, `torch.func.grad_and_value`"}
        | {"pullback": "a call of what `torch.func.vjp` gave", "called": "a call"}
        | {"cond": "`torch.where`; `if`, `elif`, `else` where a branch has a loop"},
        _of_torch,
        torch_differences.DIFFERENCES,
        torch_differences.NOT_KEPT,
    ),
    Section(
        "c",
        "C",
        C,
        "C11 for the sizes of the example: a source and a header, which need nothing but the standard library. Pytrees are "
        "structs, your functions `static` functions; a loop of yours is a `for`, a `while_loop` a `while`, `cond` and `switch` "
        "are `if`s. What is elementwise is computed where it is read, in one loop with its neighbours; memory beyond a few "
        "kilobytes is the caller's, in a struct that the header has. Library calls are written by what they stand for, "
        "derivatives by what they compute, and what several of these have in common is computed once. Products of large "
        "matrices are calls of one helper, or of a BLAS where the text is compiled with `-DUNTRACE_BLAS`. Each `T` below "
        "stands for a type: `max_f32`, `add_i32`; what is said to be where it is read is an expression of the element, or the same "
        "elements at other places. `bfloat16` and `float16` are computed with as `float`, and rounded after each operation. "
        "Complex numbers are structs of two parts, `struct complex64 {float re; float im;}`, with the memory of C's own complex "
        "types, which are optional in C11, and of `std::complex`; rules that serve all numbers serve them. "
        "Texts have no warning of gcc or clang under `-std=c11 -pedantic -Wall -Wextra -Wconversion -Wshadow "
        "-Wmissing-prototypes`, export the entry and its large tables alone, and are run under address and undefined-behaviour "
        "sanitizers, on edge values too: `python bench/targets.py --target c --corpus --sample 300 --cc clang --sanitize`. "
        "Compiled and called from Python (`.compile()`), a text gives new arrays with each call; with `.compile(reuse=True)` it gives "
        "the same ones, which is faster and writes over what an earlier call gave: copy what you keep. Numbers are never written over. "
        "A primitive without a rule is written as JAX runs it, where that is code of JAX's own. What cannot be expressed is "
        "refused before anything is written, with your lines.",
        {name: title for name, title in FAMILIES.items() if name not in ("integers", "control", "plain")}
        | {"products": "Products, convolutions, Fourier transforms"},
        SPELLED_IN_C,
        _of_c,
        c_differences.DIFFERENCES,
        c_differences.NOT_KEPT,
        frozenset({"scan", "while", "cond"}),
    ),
)


def main() -> int:
    text = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print("docs/targets.md is not what the rules say: run `python docs/make_targets.py`")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
