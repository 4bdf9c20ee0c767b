"""Calls written functions with what they were not written for, beside the originals.

    python bench/guards.py                            the zoo, zoo2, the gallery and our suite
    python bench/guards.py --of PATH_TO_ZOO --only rnn
    python bench/guards.py --of suite --json OUT.json

Each program is decompiled in a process of its own, saved and imported; then its arguments are changed, one thing at a
time: every axis of every array (one more, one less, twice, one), the axes of one size together (few and many as well),
pairs of those, dtypes, weak types, Python's numbers and NumPy's arrays in the place of JAX's, static fields, keys,
lengths and classes of containers, 64-bit mode, the implementation of keys, a mesh around the call. Of each change one of
these comes:

  same       the written function gives what the original gives: types, and bits: XLA is given the same module, or both
             are compiled and run (or as close as it was proven; where
             only the level `bits` was reached, within 64 ULP of the largest value, for the two are compiled apart)
  refused    the written function's guard refuses it
  both       neither the original nor the written function takes it
  other      the written function fails, but not by its guard, where the original does not
  SILENT     the written function gives something else, or takes what the original refuses

Beside this: of the sizes that are the first axis of the arrays that are arguments (or of all arrays of an argument), which
the original takes otherwise, the share that follows in the text. The last line reads `N passed, M failed`; M counts SILENT and other.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _common import (
    Record,
    build_case,
    child_main,
    compare_bits,
    find_cases,
    host_leaves,
    load_module,
    run_child,
    write_json,
)

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
MOST_LEAVES = 24  # of a program with more arrays, every k-th is changed by itself
MOST_PAIRS = 6
MOST_FIELDS = 12


# ------------------------------------------------------------------ in the child


def measure(options: dict[str, Any], record: Record) -> None:
    """Records what came of each change of one program's arguments."""
    import jax

    warnings.filterwarnings("ignore")
    record.put(stage="build")
    fn, args, kwargs, static = program(options)
    import untrace

    if any("Ref" in type(jax.typeof(x)).__name__ for x in jax.tree_util.tree_leaves(args) if hasattr(x, "aval")):
        raise ValueError("it takes references, which each call changes")
    if Both(fn, fn, "jaxpr", static).outcome(args, kwargs)[0] == "SILENT":  # codes of checkify count up
        raise ValueError("it gives something else each time it is traced")
    record.put(stage="decompile")
    settings = {"static_argnums": static[0], "static_argnames": static[1]}
    with contextlib.suppress(Exception):
        jax.make_jaxpr(fn)  # a function that JAX refuses is no case
    written = untrace.decompile(fn, **settings)(*args, **kwargs)
    path = Path(options["work"]) / "written_module.py"
    written.save(path)
    module = load_module(path, "written_module")
    for name, function in written.callables.items():
        getattr(module, name).function = function
    text = getattr(module, written.name)
    level = written.proof.level
    record.put(stage="as it was", level=level, text=written.source)
    counts: dict[str, int] = {}
    found: list[tuple[str, str, str]] = []
    both = Both(fn, text, level, static)
    first = both.outcome(args, kwargs)
    found.append(("as it was", *first))
    record.put(stage="changes")
    followed = Followed()
    for name, new_args, context in changes(args, static[0]):
        with context():
            kind, detail = both.outcome(new_args, kwargs)
        counts[kind] = counts.get(kind, 0) + 1
        if name.startswith("rows ") and name.endswith("one more"):
            followed.note(name, kind, kind != "refused" or both.is_taken(new_args, kwargs))
        if kind in ("SILENT", "other"):
            found.append((name, kind, detail))
        record.put(stage=name)
    counts[first[0]] = counts.get(first[0], 0) + 1
    bad = [f for f in found if f[1] in ("SILENT", "other")]
    record.put(
        counts=counts, bad=bad, allowed=followed.allowed, follows=followed.follows, refused_sizes=followed.refused
    )


def program(
    options: dict[str, Any], prefix: str = "zoo_case_"
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], tuple[Any, Any]]:
    """(function, arguments, keyword arguments, (static argnums, static argnames)) of a case; prefix as of build_case."""
    if options["kind"] == "suite":
        sys.path.insert(0, str(Path(__file__).parent))
        from suite import all_cases

        case = next(c for c in all_cases() if f"{c.family}/{c.name}" == options["case"])
        fn, args = case.build()
        return fn, tuple(args), dict(case.kwargs()), (case.static_argnums, case.static_argnames)
    fn, args = build_case(options["case"], prefix)
    return fn, args, {}, ((), ())


class Followed:
    """Which of the sizes that are the first axis of arrays the original takes otherwise, and which follow in the text."""

    def __init__(self) -> None:
        self.allowed = self.follows = 0
        self.refused: list[str] = []

    def note(self, name: str, kind: str, is_taken: bool) -> None:
        """is_taken: whether the original takes it."""
        if is_taken and kind in ("same", "refused", "SILENT", "other"):
            self.allowed += 1
            self.follows += kind == "same"
            if kind == "refused":
                self.refused.append(name)


class Both:
    """The original and the written function, called with the same arguments."""

    def __init__(self, fn: Callable[..., Any], text: Callable[..., Any], level: str, static: tuple[Any, Any]) -> None:
        import jax

        self.fn, self.text, self.level = fn, text, level
        self.nums = (static[0],) if isinstance(static[0], int) else tuple(static[0])
        names = (static[1],) if isinstance(static[1], str) else tuple(static[1])
        options = {"static_argnums": self.nums, "static_argnames": names}
        self.jitted = [jax.jit(lambda *a, f=f, **k: f(*a, **k), **options) for f in (fn, text)]

    def is_taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the original can be traced on these arguments."""
        try:
            self.jitted[0].eval_shape(*args, **kwargs)
        except Exception:
            return False
        return True

    def outcome(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str]:
        import jax

        types, errors = [], []
        for jitted in self.jitted[::-1]:  # the written function first: what its guard refuses needs no other
            try:
                types.append(jitted.eval_shape(*args, **kwargs))
                errors.append("")
            except Exception as error:
                types.append(None)
                errors.append(f"{type(error).__name__}: {str(error)[:160]}")
                if "was written for" in str(error):
                    return "refused", str(error)[:300]
        written, original = errors
        if written and original:
            return "both", original
        if written:
            return "other", f"the written function fails: {written}"
        if original:
            return "SILENT", f"the original refuses it: {original}"
        # By ways to the leaves: a class that cannot be imported has a twin in the module.
        leaves = [[(p, x.shape, x.dtype) for p, x in jax.tree_util.tree_leaves_with_path(t)] for t in types]
        if leaves[0] != leaves[1]:
            return "SILENT", f"other types: {str(leaves[0])[:120]} instead of {str(leaves[1])[:120]}"
        if self.is_one_program(args, kwargs):
            return "same", ""
        got: list[Any] = []
        for jitted in self.jitted:
            try:
                got.append(host_leaves(jitted(*args, **kwargs)))
            except Exception as error:
                got.append(f"{type(error).__name__}: {str(error)[:160]}")
        expected, found = got
        if isinstance(expected, str):
            return ("both" if isinstance(found, str) else "SILENT"), f"the original fails when it is run: {expected}"
        if isinstance(found, str):
            return "other", f"the written function fails when it is run: {found}"
        difference = compare_bits(expected, found)
        if difference.same or difference.relative is not None and difference.relative < self.tolerance(expected):
            return "same", ""
        return "SILENT", str(difference.detail or difference)[:200]

    def is_one_program(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether XLA is given the very same module by both, which then need not be compiled and run."""
        try:
            original, written = [jitted.lower(*args, **kwargs).as_text() for jitted in self.jitted]
        except Exception:
            return False  # running it says why
        return original == written

    def tolerance(self, leaves: list[np.ndarray]) -> float:
        """How far values may be apart, of the largest. Of a text that is proven as another jaxpr (a simplified one, at
        other sizes perhaps otherwise fused by XLA), the two are two compilations."""
        if self.level == "jaxpr":
            return 0.0
        kinds = [x.dtype for x in leaves if x.dtype.kind in "fc"]
        return 64 * max((float(np.finfo(k).eps) for k in kinds), default=0.0)


# ------------------------------------------------------------------ changes of the arguments


def changes(args: tuple[Any, ...], static: Any) -> Iterator[tuple[str, tuple[Any, ...], Callable[[], Any]]]:
    """(what is changed, the arguments, the context of the call)."""
    import jax

    static = (static,) if isinstance(static, int) else tuple(static)
    plain = contextlib.nullcontext
    dynamic = tuple(None if i in static else a for i, a in enumerate(args))
    leaves, tree = jax.tree_util.tree_flatten(dynamic)
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(dynamic)]

    def whole(new: list[Any], new_tree: Any = tree) -> tuple[Any, ...]:
        found = jax.tree_util.tree_unflatten(new_tree, new)
        return tuple(a if i in static else found[i] for i, a in enumerate(args))

    def with_leaf(number: int, leaf: Any) -> tuple[Any, ...]:
        return whole([leaf if i == number else x for i, x in enumerate(leaves)])

    step = max(1, len(leaves) // MOST_LEAVES)
    for number in range(0, len(leaves), step):
        leaf = leaves[number]
        for axis, size in enumerate(shape_of(leaf)):
            for word, new in (("one more", size + 1), ("one less", size - 1), ("twice", 2 * size), ("one", 1)):
                if new > 0 and new != size:
                    changed = with_leaf(number, resized(leaf, {axis: new}))
                    yield f"size {paths[number]}.shape[{axis}] {size} {word}", changed, plain
    by_size: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
    for number, leaf in enumerate(leaves):
        for axis, size in enumerate(shape_of(leaf)):
            by_size[size].append((number, axis))
    groups: list[tuple[str, int, list[tuple[int, int]]]] = []
    batched = batches(dynamic)
    for size, places in by_size.items():
        rows = [(n, a) for n, a in places if a == 0 and batched[n]]
        if rows and size > 1:
            groups.append(("rows", size, rows))
        if places != rows:
            groups.append(("sizes", size, places))

    def together(several: list[tuple[list[tuple[int, int]], int]]) -> tuple[Any, ...]:
        sizes: dict[int, dict[int, int]] = collections.defaultdict(dict)
        for places, new in several:
            for number, axis in places:
                sizes[number][axis] = new
        return whole([resized(x, sizes[i]) if i in sizes else x for i, x in enumerate(leaves)])

    for kind, size, places in groups:
        for word, new in (("twice", 2 * size), ("one more", size + 1), ("one less", size - 1), ("one", 1)):
            if new > 0 and new != size:
                yield f"{kind} of {size} {word}", together([(places, new)]), plain
        for new in sorted({2, 3, 5, size // 2, 3 * size + 1} - {1, 0, size - 1, size, size + 1}):
            yield f"far from {size}: {new}", together([(places, new)]), plain
    for (_, one, places), (_, other, more) in itertools.islice(itertools.combinations(groups, 2), MOST_PAIRS):
        yield f"pair of {one}, {other}", together([(places, 2 * one), (more, other + 1)]), plain

    for number in range(0, len(leaves), step):
        yield from ((f"{word} {paths[number]}", with_leaf(number, x), plain) for word, x in retyped(leaves[number]))
    for word, new_args in restructured(dynamic):
        yield word, tuple(a if i in static else new_args[i] for i, a in enumerate(args)), plain
    for word, new_tree in other_fields(tree):
        with contextlib.suppress(Exception):
            yield f"field {word}", whole(leaves, new_tree), plain
    flag = not jax.config.jax_enable_x64
    yield f"x64 {flag}", args, lambda: jax.enable_x64(flag)
    yield "rbg keys", args, lambda: jax.default_prng_impl("rbg")
    automatic = (jax.sharding.AxisType.Auto,)
    yield (
        "a mesh around it",
        args,
        lambda: jax.set_mesh(jax.make_mesh((jax.device_count(),), ("around",), axis_types=automatic)),
    )


def batches(args: Any) -> list[bool]:
    """Of each array, whether it may be a batch: it is an argument, or all arrays of its argument begin with one size (a
    model's parameters do not)."""
    import jax

    found: list[bool] = []
    for arg in args:
        shapes = [shape_of(x) for x in jax.tree_util.tree_leaves(arg)]
        alike = len(shapes) == 1 or len({s[0] if s else None for s in shapes}) == 1
        found += [alike and bool(s) and s[0] not in s[1:] for s in shapes]  # a square matrix is no batch
    return found


def shape_of(leaf: Any) -> tuple[int, ...]:
    found = getattr(leaf, "shape", None)
    return np.shape(leaf) if found is None else tuple(found)


def resized(leaf: Any, sizes: dict[int, int]) -> Any:
    """The same values, repeated or cut: what was a valid index stays one."""
    import jax

    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    if not array.size:
        return jax.numpy.zeros([sizes.get(axis, n) for axis, n in enumerate(array.shape)], array.dtype)
    for axis, new in sizes.items():
        array = array.take(np.arange(new) % array.shape[axis], axis=axis) if isinstance(array, np.ndarray) else (
            jax.numpy.take(array, np.arange(new) % array.shape[axis], axis=axis)
        )  # fmt: skip
    return array


def retyped(leaf: Any) -> Iterator[tuple[str, Any]]:
    """Other types of one array: dtypes, a weak type, Python's numbers, an array of NumPy's."""
    import jax
    import jax.numpy as jnp

    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        yield "raw key", jax.random.key_data(leaf)
        return
    array = jnp.asarray(leaf)
    for dtype in ("float32", "bfloat16", "int32", "int8", "bool", "complex64"):
        if array.dtype != dtype and not (array.dtype.kind == "c" and dtype != "complex64"):
            yield f"dtype {dtype}", array.astype(dtype)
    yield "NumPy's array", np.asarray(leaf)
    if not array.ndim and array.dtype.kind in "bif":
        yield "Python's number", np.asarray(leaf).item()
        yield "array with a type of its own", jnp.asarray(np.asarray(leaf))
        yield "array of a weak type", jnp.asarray(np.asarray(leaf).item())


def restructured(args: Any) -> Iterator[tuple[str, Any]]:
    """Arguments with another container somewhere: its class, its length, its keys."""

    def visit(node: Any, rebuild: Callable[[Any], Any], place: str) -> Iterator[tuple[str, Any]]:
        if type(node) is dict and node:
            key = sorted(node, key=str)[-1]
            yield f"another key in {place}", rebuild({**node, "another": node[key]})
            yield f"key {key} of {place} gone", rebuild({k: v for k, v in node.items() if k != key})
            yield f"{place} as an OrderedDict", rebuild(collections.OrderedDict(node))
            for k in node:
                yield from visit(node[k], lambda v, k=k: rebuild({**node, k: v}), f"{place}[{k!r}]")
        elif type(node) in (tuple, list) and place:
            kind = type(node)
            if node:
                yield f"{place} longer", rebuild(kind([*node, node[-1]]))
                yield f"{place} shorter", rebuild(kind(node[:-1]))
            yield f"{place} of another class", rebuild((tuple if kind is list else list)(node))
        if type(node) in (tuple, list):
            for i, item in enumerate(node):
                yield from visit(
                    item, lambda v, i=i: rebuild(type(node)([*node[:i], v, *node[i + 1 :]])), f"{place}[{i}]"
                )
        elif isinstance(node, tuple) and hasattr(node, "_fields"):
            yield f"{place} as a plain tuple", rebuild(tuple(node))
            for name in node._fields:
                item = getattr(node, name)
                yield from visit(item, lambda v, name=name: rebuild(node._replace(**{name: v})), f"{place}.{name}")

    yield from itertools.islice(visit(tuple(args), lambda v: v, ""), 60)


def other_fields(tree: Any) -> Iterator[tuple[str, Any]]:
    """Trees with another value in one static field: numbers, words, truth values, functions."""
    import jax
    from jax.tree_util import PyTreeDef, default_registry

    def values(fixed: Any) -> Iterator[Any]:
        if isinstance(fixed, tuple):
            for i, item in enumerate(fixed):
                for new in values(item):
                    items = [*fixed[:i], new, *fixed[i + 1 :]]
                    yield type(fixed)(*items) if hasattr(fixed, "_fields") else tuple(items)
        elif isinstance(fixed, bool):
            yield not fixed
        elif isinstance(fixed, (int, float)):
            yield fixed + 1
        elif isinstance(fixed, str):
            yield fixed + "_other"
        elif callable(fixed) and not isinstance(fixed, type):
            yield jax.numpy.cos

    def visit(node: Any) -> Iterator[tuple[str, Any]]:
        data = node.node_data()
        if data is None:
            return
        children = node.children()
        if data[0] not in (dict, list, tuple, type(None)) and data[1] is not None:
            for new in values(data[1]):
                made = PyTreeDef.from_node_data_and_children(default_registry, (data[0], new), children)
                yield f"{data[0].__name__}: {str(new)[:60]}", made
        for i, child in enumerate(children):
            for word, new in visit(child):
                others = [*children[:i], new, *children[i + 1 :]]
                yield word, PyTreeDef.from_node_data_and_children(default_registry, data, others)

    with contextlib.suppress(Exception):
        yield from itertools.islice(visit(tree), MOST_FIELDS)


# ------------------------------------------------------------------ the table


def cases_of(where: str, only: str | None) -> list[dict[str, Any]]:
    """The cases of a folder of programs, or of our suite."""
    import re

    if where != "suite":
        found = [c for c in find_cases(where, only) if c.runs_here]
        return [
            {"name": c.name, "kind": "file", "case": str(c.path), "devices": c.devices, "x64": c.x64} for c in found
        ]
    sys.path.insert(0, str(Path(__file__).parent))
    import jax
    from suite import all_cases

    cases = [c for c in all_cases() if c.applies(jax.__version__) and c.runs and c.lowers and not c.refused]
    named = [(f"{c.family}/{c.name}", c) for c in cases if c.deterministic]
    return [
        {"name": n, "kind": "suite", "case": n, "devices": c.devices, "x64": c.x64}
        for n, c in named
        if not only or re.search(only, n)
    ]


def arguments(what: str, seconds: float) -> argparse.ArgumentParser:
    """The command line of a bench that runs programs one by one: which, and how long each may take."""
    parser = argparse.ArgumentParser(description=what)
    everything = [str(SHARED / "zoo"), str(SHARED / "zoo2"), str(ROOT / "tests" / "gallery"), "suite"]
    parser.add_argument("--of", nargs="*", default=everything, help="folders of programs, or suite")
    parser.add_argument("--only", help="a regular expression on names")
    parser.add_argument(
        "--sample", metavar="N/M", help="a fixed share of them, drawn and ordered by a hash of their names"
    )
    parser.add_argument("--seconds", type=float, default=seconds, help="time limit of one program")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", help="where to write everything measured")
    return parser


def measured_rows(
    script: str, options: argparse.Namespace, more: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """What `script --child` recorded of each program, in their order; all so far are written after each.

    more: options of the children beside the program.
    """
    cases = [case for where in options.of for case in cases_of(where, options.only)]
    if options.sample:
        part, whole = map(int, options.sample.split("/"))
        cases.sort(key=lambda case: hashlib.sha256(case["name"].encode()).digest())
        cases = cases[: -(-len(cases) * part // whole)]

    def run(case: dict[str, Any]) -> dict[str, Any]:
        asked = {**{k: case[k] for k in ("kind", "case")}, **(more or {})}
        return {**case, **run_child(script, asked, options.seconds, devices=case["devices"], x64=case["x64"])}

    rows: list[dict[str, Any]] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(run, cases):
            rows.append(row)
            write_json(options.json, {"rows": rows})
            yield row


def main() -> int:
    options = arguments((__doc__ or "").splitlines()[0], 600.0).parse_args()
    rows: list[dict[str, Any]] = []
    total: collections.Counter[str] = collections.Counter()
    for row in measured_rows(__file__, options):
        rows.append(row)
        if "counts" not in row:
            print(f"{row['name']:44} not measured: {str(row.get('error'))[:160]}", flush=True)
            continue
        total.update(row["counts"])
        words = "  ".join(f"{k} {n}" for k, n in sorted(row["counts"].items()))
        print(f"{row['name']:44} {row['follows']}/{row['allowed']} rows follow   {words}", flush=True)
        for name, kind, detail in row["bad"][:12]:
            print(f"    {kind}: {name}: {detail[:220]}", flush=True)
    measured = [r for r in rows if "counts" in r]
    allowed, follows = (sum(r[k] for r in measured) for k in ("allowed", "follows"))
    programs = [r for r in measured if r["allowed"]]
    whole = sum(r["follows"] == r["allowed"] for r in programs)
    print(f"\n{json.dumps(dict(total))} in {len(measured)} programs, {len(rows) - len(measured)} not measured")
    if programs:
        print(f"rows follow in {follows} of {allowed} cases; all of a program's in {whole} of {len(programs)} programs")
    bad = total["SILENT"] + total["other"]
    print(f"{sum(total.values()) - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        child_main(measure, sys.argv[2])
    sys.exit(main())
