"""Measures how much of what its author wrote comes back in a written module.

    python bench/readability.py PATH_TO_ZOO [--only REGEX] [--style STYLE] [--lies] [--keep DIR] [--json FILE] [--repeats N]

Each program of the zoo is traced and decompiled in a process of its own, N times; times are the medians. The figures come from the
written *text* (by `ast` and `tokenize`) and the case's own source; what was alive while it was
traced is seen by a profiler hook, not asked of untrace. Figures that compare with the author's code
are for cases whose code is in their file (`SOURCE = "self"`); the others are for all.

  names      An author's name is a local variable or parameter (of a function in the case's file
             that left equations behind) which held a traced array when its function returned; the
             same name in two functions counts twice. It is kept when the text binds a variable or
             parameter of that name, a number at its end (`x_2`) aside. Share kept.
  functions  The functions of the case's file that equations passed through, lambdas aside. Back:
             the text defines a function of that name (the class's, for a method `__call__`; a
             number or `_bwd`, `grad_` aside). Folded: no definition, but called from one place
             only, or at most eight equations. Share back or folded.
  forward    Tokens written ÷ tokens of the author's functions that left equations; programs
             without a backward pass. Comments, docstrings, imports, blank lines are no tokens.
             Where the text has rules of derivatives, the author's (functions, lambdas, and the
             statement that gives them to a function) count; where it has a callback's host function, so does that.
             The helpers of a guard stand at the end of every text and are the same in each: they are left out of all figures,
             and their tokens are told below the table. The guard's line in the entry counts.
  gradient   The same for programs with one: tokens of the whole text ÷ tokens of the author's.
             Below the table all figures stand once more by where the derivative is: none, inside what was handed over (a
             train step), or outermost (`jax.grad(f)` was handed over); and how many of those that programs ask for
             are calls in the texts (`taken`; those of others not counted).
  letters    Share of the names bound in the text (functions too) that mean nothing: one or two
             letters, or a stock word with a number (tmp3, fn_2, out_4); names that the author, or
             a library function that was traced through, uses itself are not counted as such.
  lax        Share of the operations in the text (calls, operators, subscripts) that are calls of
             `lax` or of a primitive although `jnp`, `jax.nn` or an operator has the same.
  proof      The proof's level.
  time       `decompile`, everything included ÷ `jax.make_jaxpr` alone, both with cold caches, on the clock, after a
             program of four equations has paid for imports and first uses of both (one of them is a Cholesky factor:
             JAX imports SciPy when it first lowers linear algebra). The machine must be quiet.
  cpu        The same in processor time of all threads (XLA compiles beside Python).

With `--lies`, names that say of a value, a block or a function what is not so are counted and listed (see `_lies.py`).
"""

from __future__ import annotations

import argparse
import ast
import gc
import io
import re
import statistics
import sys
import time
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import Record, build_case, child_main, find_cases, mark, run_child, setting, write_json

GOALS = {"names": 0.90, "functions": 0.90, "forward": 1.3, "gradient": 3.0, "letters": 0.03, "lax": 0.02, "time": 4.0}
AT_LEAST = ("names", "functions")
LEVELS = ("jaxpr", "hlo", "bits")
FOLDABLE = 8  # equations of a function that may go into its caller without a word

# Functions of `lax` for which an operator, a method, `jnp` or `jax.nn` says the same.
HAS_OTHER_FORM = frozenset(
    "abs acos acosh add and_ argmax argmin asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor "
    "broadcast broadcast_in_dim cbrt ceil clamp complex concatenate conj convert_element_type cos cosh cummax cummin "
    "cumprod cumsum div dot dot_general dynamic_index_in_dim dynamic_slice eq erf exp exp2 expand_dims expm1 floor full "
    "full_like gather ge gt imag integer_pow iota is_finite le log log1p logistic lt max min mul ne neg nextafter pad pow "
    "real reciprocal reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum rem reshape rev round scatter "
    "scatter_add scatter_max scatter_min scatter_mul select select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sinh slice slice_in_dim sort split sqrt square squeeze stack sub tan tanh top_k transpose "
    "unstack zeros_like_array".split()
)
_NUMBER = re.compile(r"_?\d+$")
_STOCK = re.compile(r"^(tmp|fn|func|function|var|val|value|arg|args|const|out|output|res|result|t|v|x|y|z)_?\d+$")
_SHORT = re.compile(r"^[A-Za-z]{1,2}(_\d+)?$")


# ------------------------------------------------------------------ in the child


def measure(options: dict[str, Any], record: Record) -> None:
    """Records what was alive while the case was traced, the written text, its proof and times."""
    import jax

    record.put(stage="build")
    path = str(Path(options["path"]).resolve())
    fn, args = build_case(path)
    record.put(stage="trace")
    held = Held(path)
    jax.clear_caches()
    sys.setprofile(held)
    try:
        jaxpr = jax.make_jaxpr(fn)(*args)
    finally:
        sys.setprofile(None)
    record.put(held=sorted(held.names), **equations_of(jaxpr, path))
    import untrace

    untrace.decompile(first_program)(jax.ShapeDtypeStruct((7, 7), "float32"))
    _, *traced = cold(lambda: jax.make_jaxpr(fn)(*args))
    record.put(stage="decompile", trace_seconds=traced[0])
    style = options["style"]
    settings = {"style": style, **options["settings"]}
    result, *seconds = cold(lambda: untrace.decompile(fn, **settings)(*args))
    calls = len(re.findall(r"\bjax\.(?:value_and_grad|grad|vjp|jvp|linearize|jac\w+|hessian)\(", result.source))
    record.put(
        derivative=where_derivative_is(fn, jaxpr), calls=calls, notes=[n for n in result.notes if "derivatives" in n]
    )
    times = {name: whole / part for name, whole, part in zip(("time", "cpu"), seconds, traced, strict=True)}
    record.put(style=style, text=result.source, proof=result.proof.level, seconds=seconds[0], **times)
    if options["lies"]:
        from _lies import lies

        record.put(stage="lies", lies=lies(result, path))


def where_derivative_is(fn: Any, jaxpr: Any) -> str:
    """ "none", "inside" or "outermost": what JAX gave is told by its docstring."""
    words = (getattr(fn, "__doc__", None) or "").split(" of ")[0]
    if words in ("Gradient", "Value and gradient", "Jacobian", "Hessian"):
        return "outermost"
    found, stack = False, [jaxpr.jaxpr]
    while stack:
        for eqn in stack.pop().eqns:
            found = found or "jvp(" in str(eqn.source_info.name_stack)
            for value in eqn.params.values():
                inner = value if isinstance(value, (tuple, list)) else (value,)
                stack += [getattr(v, "jaxpr", v) for v in inner if hasattr(getattr(v, "jaxpr", v), "eqns")]
    return "inside" if found else "none"


def first_program(x: Any) -> Any:
    """A program that pays for imports."""
    import jax

    return jax.numpy.linalg.cholesky(jax.numpy.tanh(x * 1.0) + 2.0)


def cold(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """(result, seconds on the clock, seconds of processor time) of `call()` with JAX's caches emptied before."""
    import jax

    jax.clear_caches()
    gc.collect()
    start, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - start, time.process_time() - cpu


class Held:
    """A profiler hook: which locals of a file's functions hold a traced array when they return."""

    def __init__(self, path: str) -> None:
        import jax

        self.path = path
        self.tracer = jax.core.Tracer
        self.names: set[tuple[str, str]] = set()

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "return" and code.co_filename == self.path:
            for name, value in frame.f_locals.items():
                if isinstance(value, self.tracer) and name.strip("_") and not name.startswith("."):
                    self.names.add((code.co_qualname, name))


def equations_of(jaxpr: Any, path: str) -> dict[str, Any]:
    """Functions of the file that equations passed through, how often and from where; other names in use."""
    functions: dict[str, dict[str, Any]] = {}
    library_names: set[str] = set()
    inside: set[tuple[str, str, int]] = set()
    backward = False
    seen: set[int] = set()
    stack = [getattr(jaxpr, "jaxpr", jaxpr)]
    while stack:
        inner = stack.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        for eqn in inner.eqns:
            backward = backward or "transpose(jvp" in str(eqn.source_info.name_stack)
            traceback = eqn.source_info.traceback
            codes, offsets = traceback.raw_frames() if traceback is not None else ((), ())
            for index, code in enumerate(codes):
                library_names.update(code.co_varnames)
                if code.co_filename != path:
                    continue
                found = functions.setdefault(
                    code.co_qualname, {"line": code.co_firstlineno, "equations": 0, "callers": set()}
                )
                found["equations"] += 1
                callers = [i for i in range(index + 1, len(codes)) if codes[i].co_filename == path]
                found["callers"].add((codes[callers[0]].co_qualname, offsets[callers[0]]) if callers else None)
            if "custom_" in eqn.primitive.name or "callback" in eqn.primitive.name:
                kind = "rule" if "custom_" in eqn.primitive.name else "host"
                inside |= {(kind, *found) for found in functions_in(eqn.params, path)}
            for value in eqn.params.values():
                for item in value if isinstance(value, (tuple, list)) else (value,):
                    item = getattr(item, "jaxpr", item)
                    if hasattr(item, "eqns"):
                        stack.append(item)
    for found in functions.values():
        found["callers"] = len(found["callers"])
    short = sorted(n for n in library_names if _SHORT.match(n))
    return {"functions": functions, "library_names": short, "backward": backward, "inside": sorted(inside)}


def functions_in(value: Any, path: str) -> set[tuple[str, int]]:
    """(name, line) of the file's functions that an equation's parameters hold, in closures and wrappers too."""
    import types

    found: set[tuple[str, int]] = set()
    seen: set[int] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, (types.ModuleType, type)) or hasattr(item, "eqns"):
            continue
        seen.add(id(item))
        if isinstance(item, types.FunctionType):
            if item.__code__.co_filename == path:
                found.add((item.__code__.co_qualname, item.__code__.co_firstlineno))
                continue
            stack.extend(cell.cell_contents for cell in item.__closure__ or () if cell != types.CellType())
            stack.append(getattr(item, "__wrapped__", None))
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (tuple, list)):
            stack.extend(item)
        elif isinstance(item, types.MethodType):
            stack.extend((item.__func__, item.__self__))
        elif type(item).__module__.partition(".")[0] in ("functools", "jax"):
            slots = [s for s in getattr(type(item), "__slots__", ()) if not s.startswith("__")]
            stack.extend([getattr(item, name, None) for name in ("func", "args", *slots)])
            stack.extend(getattr(item, "__dict__", {}).values())
    return found


# -------------------------------------------------------------- from text and source


def bound_names(text: str) -> tuple[set[str], set[str]]:
    """(variables and parameters, functions) that a module binds."""
    variables: set[str] = set()
    functions: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            variables.add(node.id)
        elif isinstance(node, ast.arg):
            variables.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            functions.add(node.name)
    return variables, functions


GUARD = frozenset({"_answer", "_checked", "_placed", "_spelled_out", "_type_of"})


def without_guard(text: str) -> tuple[str, int]:
    """A text without the helpers of its guard, which are the same in every text, and how many tokens they have."""
    lines = text.split("\n")
    kept = list(lines)
    for node in ast.parse(text).body:
        known = isinstance(node, ast.Assign) and "_KNOWN" in ast.unparse(node.targets[0])
        if known or isinstance(node, ast.FunctionDef) and node.name in GUARD:
            first = (
                node.decorator_list[0].lineno
                if isinstance(node, ast.FunctionDef) and node.decorator_list
                else node.lineno
            )
            kept[first - 1 : node.end_lineno] = [""] * ((node.end_lineno or first) - first + 1)
    rest = "\n".join(kept)
    return rest, count_tokens(text) - count_tokens(rest)


def count_tokens(text: str) -> int:
    """Tokens of Python source that say something: no comments, docstrings, imports, line ends."""
    tree = ast.parse(text)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        plain = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if plain or isinstance(node, (ast.Import, ast.ImportFrom)):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    silent = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    }  # fmt: skip
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(t.type not in silent and t.start[0] not in skipped for t in tokens)


def author_tokens(source: str, functions: dict[str, Any], held: list[Any], text: str) -> int:
    """Tokens of the author's functions that left equations, those inside others counted once.

    With those of `held` (rules of derivatives, host functions) that the text has as well.
    """
    lines = {f["line"] for name, f in functions.items() if not name.endswith(("<lambda>", "comp>", "<genexpr>"))}
    defined = bound_names(text)[1]
    rules_written = any(n in text for n in ("defvjp", "defjvp"))
    held = [h for h in held if (rules_written if h[0] == "rule" else is_back(h[1], defined))]
    lines |= {line for _, name, line in held if not name.endswith("<lambda>")}
    rules = {line for kind, _, line in held if kind == "rule"}
    names = {name.rpartition(".")[2] for kind, name, _ in held if kind == "rule"}
    tree = ast.parse(source)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
    giving = [n for n in calls if _gives_rules(n.value, rules, names)]
    wanted = [(n.lineno, n.end_lineno or n.lineno) for n in giving]
    with_rules = {ast.unparse(n.value.func.value) for n in giving}  # these may leave no equations themselves
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
            if first in lines or node.name in with_rules:
                wanted.append((first, node.end_lineno or first))
    outer = [(a, b) for a, b in wanted if not any((c < a and b <= d) or (c <= a and b < d) for c, d in wanted)]
    rows = source.splitlines(keepends=True)
    return sum(count_tokens(_dedented(rows[a - 1 : b])) for a, b in outer)


def _gives_rules(call: ast.Call, lines: set[int], names: set[str]) -> bool:
    """Whether this is `f.defvjp(...)` with rules that are lambdas of these lines or have these names."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("defvjp", "defjvp", "defjvps"):
        return False
    return any(
        a.lineno in lines if isinstance(a, ast.Lambda) else isinstance(a, ast.Name) and a.id in names for a in call.args
    )


def _dedented(rows: list[str]) -> str:
    import textwrap

    return textwrap.dedent("".join(rows))


def operations(text: str) -> tuple[int, int]:
    """(operations in the text, those at the level of `lax` that need not be)."""
    total = low = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript)):
            total += 1
        elif isinstance(node, ast.Call):
            total += 1
            path = ast.unparse(node.func)
            name = path.rpartition(".")[2]
            if path.startswith(("lax.", "jax.lax.")):
                low += name in HAS_OTHER_FORM
            elif path.startswith("primitives.") and name == "bind":
                low += path.split(".")[1].removesuffix("_p") in HAS_OTHER_FORM
    return total, low


def snake(name: str) -> str:
    """`RMSNorm` -> `rms_norm`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def is_back(qualname: str, defined: set[str]) -> bool:
    parts = [p for p in qualname.split(".") if p != "<locals>"]
    name = parts[-1]
    names = {name, name.strip("_")}
    if name.startswith("__") and len(parts) > 1:
        names = {parts[-2], snake(parts[-2])}
    return any(d in names or d.removeprefix("grad_").removesuffix("_bwd") in names for d in defined)


def figures(row: dict[str, Any], source: str, own: bool) -> dict[str, Any]:
    """The counts behind each figure: (part, whole), or None where it does not apply."""
    text, row["guard"] = without_guard(row["text"])
    variables, functions = bound_names(text)
    plain = {_NUMBER.sub("", n) for n in variables} | variables
    author = {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}
    author |= {n.arg for n in ast.walk(ast.parse(source)) if isinstance(n, ast.arg)}
    known = author | set(row["library_names"])
    named = sorted(variables | functions)
    named = [n for n in named if n.strip("_")]
    letters = [
        n for n in named if _NUMBER.sub("", n) not in known and n not in known and (_SHORT.match(n) or _STOCK.match(n))
    ]
    total, low = operations(text)
    found: dict[str, Any] = {"letters": (len(letters), len(named)), "lax": (low, total), "meaningless": letters}
    if not own:
        return found
    alive = [(f, n) for f, n in row["held"] if f in row["functions"]]
    kept = [(f, n) for f, n in alive if n in plain or n.lstrip("_") in plain]
    found["names"] = (len(kept), len(alive))
    found["lost_names"] = sorted(f"{f.rpartition('.')[2]}.{n}" for f, n in alive if (f, n) not in kept)
    own_functions = {q: f for q, f in row["functions"].items() if not q.endswith(("<lambda>", "comp>", "<genexpr>"))}
    defined = {_NUMBER.sub("", f) for f in functions} | functions
    back = [q for q in own_functions if is_back(q, defined)]
    folded = [
        q for q, f in own_functions.items() if q not in back and (f["callers"] <= 1 or f["equations"] <= FOLDABLE)
    ]
    found["functions"] = (len(back) + len(folded), len(own_functions))
    found["back"], found["folded"] = len(back), len(folded)
    size = author_tokens(source, row["functions"], row["inside"], text)
    if size:
        found["gradient" if row["backward"] else "forward"] = (count_tokens(text), size)
    return found


# ----------------------------------------------------------------------- the table


COLUMNS = ("names", "functions", "forward", "gradient", "letters", "lax")


def show(found: dict[str, Any], column: str) -> str:
    pair = found.get(column)
    if not pair or not pair[1]:
        return "-"
    ratio = pair[0] / pair[1]
    return f"{ratio:.2f}" if column in ("forward", "gradient") else f"{ratio:.0%}"


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of parts and wholes over the programs; the median of the times; the proof levels."""
    whole: dict[str, Any] = {}
    for column in COLUMNS:
        pairs = [r["figures"][column] for r in rows if r["figures"].get(column)]
        whole[column] = (sum(p[0] for p in pairs), sum(p[1] for p in pairs)) if pairs else None
    for column in ("time", "cpu"):
        whole[column] = statistics.median(r[column] for r in rows) if rows else None
    whole["levels"] = {level: sum(r["proof"] == level for r in rows) for level in sorted({r["proof"] for r in rows})}
    return whole


def verdicts(whole: dict[str, Any], failed: int) -> list[str]:
    lines = []
    for name, goal in GOALS.items():
        value = whole[name]
        ratio = value if name == "time" or value is None else value[0] / value[1] if value[1] else None
        holds = None if ratio is None else ratio >= goal if name in AT_LEAST else ratio <= goal
        sign = "≥" if name in AT_LEAST else "≤"
        lines.append(f"{name:10} {'-' if ratio is None else f'{ratio:.3f}':>8}  goal {sign} {goal:<5} {mark(holds)}")
    proven = sum(n for level, n in whole["levels"].items() if level in LEVELS)
    count = sum(whole["levels"].values())
    if whole["cpu"] is not None:
        lines.append(f"{'cpu':10} {whole['cpu']:>8.3f}")
    lines.append(
        f"{'proof':10} {proven}/{count}  {whole['levels']}, {failed} failed; {mark(proven == count and not failed)}"
    )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("zoo", type=Path)
    parser.add_argument("--only", help="a regular expression on file names")
    parser.add_argument("--style", default="idiomatic")
    parser.add_argument("--derivatives", help="auto, called or written")
    parser.add_argument("--lies", action="store_true", help="count names that say what is not so, see _lies.py")
    parser.add_argument("--keep", type=Path, help="a folder for the written texts")
    parser.add_argument("--json", help="where to write everything measured")
    parser.add_argument("--repeats", type=int, default=1, help="how often each program is run; times are the medians")
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of one program")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    failed = 0
    header = f"{'program':32}" + "".join(f"{c:>10}" for c in COLUMNS) + f"{'proof':>9}{'time':>7}{'cpu':>7}  style"
    print(header, flush=True)
    for case in find_cases(options.zoo, options.only):
        if not case.runs_here:
            continue
        settings = {"derivatives": options.derivatives} if options.derivatives else {}
        child = {"path": str(case.path), "style": options.style, "settings": settings, "lies": options.lies}
        runs = [
            run_child(__file__, child, options.seconds, devices=case.devices, x64=case.x64)
            for _ in range(options.repeats)
        ]
        row = next((r for r in runs if "error" in r or "text" not in r), runs[0])
        if "error" in row or "text" not in row:
            failed += 1
            print(f"{case.name:32}  FAILED: {row.get('error', 'no text')[:160]}", flush=True)
            continue
        row.update({name: statistics.median(r[name] for r in runs) for name in ("time", "cpu", "seconds")})
        source = case.path.read_text(encoding="utf-8")
        row["name"] = case.name
        row["figures"] = figures(row, source, setting(source, "SOURCE", "library") == "self")
        rows.append(row)
        cells = "".join(f"{show(row['figures'], c):>10}" for c in COLUMNS)
        print(
            f"{case.name:32}{cells}{row['proof']:>9}{row['time']:>7.1f}{row['cpu']:>7.1f}  {row['style']}", flush=True
        )
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{case.name}.py").write_text(row["text"], encoding="utf-8")
        write_json(options.json, {"rows": rows, "totals": totals(rows)})
    whole = totals(rows)
    guards = sorted({r["guard"] for r in rows})
    print(f"helpers of the guard, counted nowhere: {', '.join(map(str, guards))} tokens in a text")
    print(f"{'total':32}" + "".join(f"{show(whole, c):>10}" for c in COLUMNS))
    for where in ("none", "inside", "outermost"):
        some = [r for r in rows if r["derivative"] == where]
        if some:
            print(
                f"{f'  derivative {where}: {len(some)}':32}" + "".join(f"{show(totals(some), c):>10}" for c in COLUMNS)
            )
    for row in rows:
        if row["derivative"] == "inside":
            print(f"  {row['name']:30} {row['calls']} calls {'; '.join(row['notes'])}")
    if options.lies:
        told = [(row["name"], lie, row["text"]) for row in rows for lie in row.get("lies", ["0 not measured"])]
        print(f"\nlies: {len(told)}")
        for name, lie, text in told:
            print(f"  {name:30} {lie:30} {[*text.split(chr(10)), ''][int(lie.split()[0]) - 1].strip()[:90]}")
    print()
    print("\n".join(verdicts(whole, failed)))
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        child_main(measure, sys.argv[2])
    sys.exit(main())
