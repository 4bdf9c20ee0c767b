"""A lint of the house: counts, by folder of src/untrace, what is to become less, and holds it to a table (`house.toml`).

A ratchet: a number may fall and never rise, and where it falls the table has to follow (`--lower`), so that it stays so.

    python bench/house.py            compare with the table
    python bench/house.py --lower    write the lower numbers into the table
    python bench/house.py --lines    lines of code by folder, without docstrings, comments and blank lines
    python bench/house.py --list id_calls       where they are
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_name("house.toml")

MOST_LINES = 600  # of a file
MOST_FILES = 20  # of a folder
# What an equation's parameters and a call's keywords are: the program's own words, which no field can stand for.
OPEN_ENDED = frozenset({"params", "param", "kwargs", "options"})
# Folders whose signatures are to be typed throughout: with those in them, and by themselves.
TYPED, TYPED_ALONE = ("ir", "module", "python"), ("targets",)


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the package: `folder` as in the table (`module/loops`, `.` for the package's own), `module` its dotted path."""

    path: Path
    folder: str
    module: str
    text: str
    tree: ast.Module


def sources(package: Path) -> list[Source]:
    """All Python files of a package, in the order of their paths."""
    found = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        inside = path.relative_to(package)
        parts = (package.name, *inside.with_suffix("").parts)
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Source(path, inside.parent.as_posix(), module, text, ast.parse(text)))
    return found


# ---------------------------------------------------------------- what is counted


def id_calls(source: Source) -> Iterator[int]:
    """Lines that use the builtin `id`, called, handed on (`map(id, xs)`) or under an alias (`key = id`); but
    for `_identity.py`, whose map holds what it knows by its id."""
    if source.path.name == "_identity.py":
        return
    aliases = {"id"}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and _is_builtin_id(node.value):
            aliases.update(target.id for target in node.targets if isinstance(target, ast.Name))
        if isinstance(node, ast.ImportFrom) and node.module == "builtins":
            aliases.update(a.asname or a.name for a in node.names if a.name == "id")
    yield from _uses(source.tree, aliases)


def _is_builtin_id(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Name)
        and node.id == "id"
        or isinstance(node, ast.Attribute)
        and node.attr == "id"
        and isinstance(node.value, ast.Name)
        and node.value.id == "builtins"
    )


def _uses(node: ast.AST, names: set[str]) -> Iterator[int]:
    """Lines where one of the names is read, outside of functions that have a parameter of that name."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        given = node.args
        own = {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if a}
        for default in (*given.defaults, *given.kw_defaults):
            if default is not None:
                yield from _uses(default, names)
        body = node.body if isinstance(node.body, list) else [node.body]
        for part in body:
            yield from _uses(part, names - own)
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
        yield node.lineno
    if isinstance(node, ast.Attribute) and _is_builtin_id(node):
        yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _uses(child, names)


def extra_uses(source: Source) -> Iterator[int]:
    """Lines that use an attribute `extra`: a channel between passes that no type checker sees."""
    return (node.lineno for node in ast.walk(source.tree) if isinstance(node, ast.Attribute) and node.attr == "extra")


def open_dictionaries(source: Source) -> Iterator[int]:
    """Lines that annotate a `dict[str, Any]` or a `Mapping[str, Any]`, but as an equation's parameters or a call's keywords."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AnnAssign):
            name = node.target.id if isinstance(node.target, ast.Name) else getattr(node.target, "attr", "")
            named = [(name, node.annotation)]
        elif isinstance(node, ast.arg):
            named = [(node.arg, node.annotation)]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            named = [(node.name, node.returns)]
        else:
            continue
        for name, annotation in named:
            if annotation is not None and name.lstrip("_") not in OPEN_ENDED and _has_open_dictionary(annotation):
                yield annotation.lineno


def _has_open_dictionary(annotation: ast.expr) -> bool:
    text = ast.unparse(annotation)
    return any(f"{kind}[str, Any]" in text for kind in ("dict", "Dict", "Mapping", "MutableMapping"))


def any_in_signatures(source: Source) -> Iterator[int]:
    """Lines of signatures with `Any` in them, in the folders that are to be typed throughout."""
    if source.folder.split("/")[0] not in TYPED and source.folder not in TYPED_ALONE:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = node.args
            args = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
            notes = [a.annotation for a in args if a is not None] + [node.returns]
            for note in notes:
                if note is not None and any(isinstance(n, ast.Name) and n.id == "Any" for n in ast.walk(note)):
                    yield note.lineno


def jax_words(source: Source) -> Iterator[int]:
    """Lines of the middle with `jnp.`, `lax.` or `jax.` in a string that is no docstring: a word of one target."""
    if source.folder.split("/")[0] not in ("module", "python"):
        return
    notes = {id(n.value) for n in ast.walk(source.tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
            if re.search(r"\b(?:jnp|lax|jax)\b", node.value):
                yield node.lineno


def ignored_types(source: Source) -> Iterator[int]:
    """Lines on which the type checker is told to look away."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and ("type: ignore" in token.string or "pyrefly: ignore" in token.string):
            yield token.start[0]


def jax_internals(source: Source) -> Iterator[int]:
    """Lines outside `jax_compat` that import from `jax._src` or `jaxlib`."""
    if source.folder.split("/")[0] == "jax_compat":
        return
    for node in ast.walk(source.tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *[f"{node.module}.{a.name}" for a in node.names]]
        if any(name.startswith(("jax._src", "jaxlib")) for name in names):
            yield node.lineno


def long_files(source: Source) -> Iterator[int]:
    """The last line of a file that is too long."""
    lines = source.text.count("\n")
    if lines > MOST_LINES:
        yield lines


COUNTERS: Mapping[str, Callable[[Source], Iterator[int]]] = {
    "id_calls": id_calls,
    "extra_uses": extra_uses,
    "open_dictionaries": open_dictionaries,
    "any_in_signatures": any_in_signatures,
    "jax_words": jax_words,
    "ignored_types": ignored_types,
    "jax_internals": jax_internals,
    "long_files": long_files,
}


def counted(files: list[Source]) -> dict[str, dict[str, int]]:
    """What is counted -> folder -> how often, without zeros."""
    found: dict[str, dict[str, int]] = {}
    for name, counter in COUNTERS.items():
        numbers = Counter({f.folder: 0 for f in files})
        for file in files:
            numbers[file.folder] += sum(1 for _ in counter(file))
        found[name] = {folder: n for folder, n in sorted(numbers.items()) if n}
    sizes = Counter(file.folder for file in files)
    found["crowded_folders"] = {folder: n for folder, n in sorted(sizes.items()) if n > MOST_FILES}
    found["circles"] = {folder: n for folder, n in sorted(_circles_by_folder(files).items())}
    return found


# ---------------------------------------------------------------- circles of imports


def imports(files: list[Source]) -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports: anywhere in it, for types only too."""
    known = {file.module for file in files}
    found: dict[str, set[str]] = {file.module: set() for file in files}
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Import):
                found[file.module].update(a.name for a in node.names if a.name in known)
            elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found[file.module].update(m for m in [whole if whole in known else node.module] if m in known)
        found[file.module].discard(file.module)
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or not (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in sorted(graph):
        if module not in number:
            visit(module)
    return found


def _circles_by_folder(files: list[Source]) -> Counter[str]:
    """How many modules of a folder are in some circle of imports."""
    folder = {file.module: file.folder for file in files}
    return Counter(folder[module] for group in circles(imports(files)) for module in group)


# ---------------------------------------------------------------- the ratchet


def complaints(now: Mapping[str, Mapping[str, int]], table: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What is wrong with the numbers of now, one sentence each: higher ones, and lower ones that the table does not know."""
    found = []
    for name in now:
        allowed = table.get(name, {})
        for folder in sorted({*now[name], *allowed}):
            is_, may_be = now[name].get(folder, 0), allowed.get(folder, 0)
            if is_ > may_be:
                found.append(f"{name} in {folder}: {is_}, where {may_be} are allowed (--list {name} shows them)")
            elif is_ < may_be:
                found.append(f"{name} in {folder}: {is_}, fewer than the {may_be} in the table (--lower writes that)")
    return found


def lowered(now: Mapping[str, Mapping[str, int]], table: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """The table with the numbers of now where those are lower; what is new to the table stands as it is."""
    return {
        name: {
            folder: min(n, table[name].get(folder, 0)) if name in table else n
            for folder, n in numbers.items()
            if name not in table or table[name].get(folder, 0)
        }
        for name, numbers in now.items()
    }


def written(table: Mapping[str, Mapping[str, int]]) -> str:
    """The table as TOML."""
    lines = [
        "# What `python bench/house.py` allows in each folder of src/untrace. Numbers fall and never rise:",
        "# `--lower` writes those that fell; a pull request that raises one says why.",
    ]
    for name, numbers in table.items():
        lines += ["", f"[{name}]", *[f'"{folder}" = {n}' for folder, n in numbers.items()]]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- lines of code


def lines_of_code(source: Source) -> int:
    """Lines with code on them: no blank ones, no comments, no docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    code: set[int] = set()
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type not in nothing:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def show_lines(files: list[Source]) -> None:
    """Prints files, lines and lines of code of each folder."""
    by_folder: dict[str, list[Source]] = defaultdict(list)
    for file in files:
        by_folder[file.folder].append(file)
    print(f"{'folder':24} {'files':>6} {'lines':>8} {'code':>8} {'median':>7} {'longest':>8}")
    for folder, own in [*sorted(by_folder.items()), ("all", files)]:
        raw = [file.text.count("\n") for file in own]
        code = sum(map(lines_of_code, own))
        print(f"{folder:24} {len(own):6} {sum(raw):8} {code:8} {statistics.median(raw):7.0f} {max(raw):8}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, default=ROOT / "src" / "untrace")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--lower", action="store_true", help="write the numbers that fell into the table")
    parser.add_argument("--lines", action="store_true", help="lines of code by folder")
    parser.add_argument("--list", choices=[*COUNTERS, "circles"], help="where something was counted")
    given = parser.parse_args(arguments)
    files = sources(given.package)
    if given.lines:
        show_lines(files)
        return 0
    if given.list == "circles":
        for group in circles(imports(files)):
            print(f"{len(group)}: {' '.join(group)}")
        return 0
    if given.list:
        for file in files:
            for line in COUNTERS[given.list](file):
                print(f"{file.path}:{line}")
        return 0
    now = counted(files)
    table = tomllib.loads(given.table.read_text(encoding="utf-8")) if given.table.exists() else {}
    if given.lower:
        given.table.write_text(written(lowered(now, table)), encoding="utf-8")
        table = tomllib.loads(given.table.read_text(encoding="utf-8"))
    found = complaints(now, table)
    print("\n".join(found) or "the house is as the table says", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
