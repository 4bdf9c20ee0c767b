"""A fixed fifth of JAX's primitive corpus and the whole suite through untrace; the measure itself.

The work is what `bench/conformance.py` does, in worker processes of its own: they need a number of
devices, and sometimes 64-bit mode, from their start.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))

import _check  # noqa: E402
import _common  # noqa: E402
import conformance  # noqa: E402
import peers  # noqa: E402
from _worker import CORPUS, SUITE, CaseName, Row, Worker, sample  # noqa: E402

CORPUS_SHARDS = 16
SUITE_SHARDS = 16


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A worker for every process of the tests; its start costs seconds."""
    # A gradient with the same StableHLO is the same program; the long run compiles it all the same.
    worker = Worker(options={"tool": "untrace", "style": "exact", "run_derived": False})
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def corpus(worker: Worker) -> list[CaseName]:
    """A fifth of every group of JAX's corpus."""
    return sample(conformance.find_cases(worker, [CORPUS]), "1/5")


@pytest.fixture(scope="module")
def suite(worker: Worker) -> list[CaseName]:
    """The suite, cases of one setting together: a worker starts anew for every setting."""
    cases = conformance.find_cases(worker, [SUITE])
    return sorted(cases, key=lambda case: (case.setting.x64, case.setting.devices, case.name))


# What does not come back, and why. Strict: a case here that passes must leave the list.
KNOWN_FAILURES: dict[str, str] = {}


def check(worker: Worker, cases: list[CaseName]) -> None:
    """Fails with the reasons and names of the cases that do not pass."""
    assert cases
    rows = [(f"{case.group}/{case.name}", worker.check(case)) for case in cases]
    known = [(name, row) for name, row in rows if name in KNOWN_FAILURES]
    repaired = [name for name, row in known if row.outcome == "passed"]
    assert not repaired, f"no longer failures, take them off the list: {repaired}"
    failed = [row for name, row in rows if row.outcome == "failed" and name not in KNOWN_FAILURES]
    assert not failed, f"{len(failed)} of {len(cases)}:\n{conformance.reasons(failed, 3)}"


@pytest.mark.parametrize("shard", range(CORPUS_SHARDS))
def test_corpus(shard: int, worker: Worker, corpus: list[CaseName]) -> None:
    """Cases of JAX's own corpus come back: same bits, same StableHLO."""
    check(worker, corpus[shard::CORPUS_SHARDS])


@pytest.mark.parametrize("shard", range(SUITE_SHARDS))
def test_suite(shard: int, worker: Worker, suite: list[CaseName]) -> None:
    """Cases of the suite come back, and so do their gradients and batched forms."""
    first, last = (len(suite) * (shard + i) // SUITE_SHARDS for i in (0, 1))
    check(worker, suite[first:last])


# --------------------------------------------------------------- the measure sees what is wrong

CASE = CaseName(CORPUS, "double", "mul")
HEAD = "import jax\nimport jax.numpy as jnp\n"
RIGHT = "def f(x):\n    return {'y': x * 2.0}\n"


def double(x: jax.Array) -> dict[str, jax.Array]:
    """The original of the cases below."""
    return {"y": x * 2.0}


def row_of(
    text: str,
    directory: Path,
    fn: Callable[..., object] = double,
    forms: tuple[str, ...] = (),
    flat: bool = False,
) -> Row:
    """The row of `fn` when a tool writes `text` for it."""

    def write(subject: _check.Subject, directory: Path) -> _check.Outcome:
        path = directory / "written.py"
        path.write_text(text)
        return _check.Outcome(path, "f", "jaxpr", flat)

    subject = _check.Subject(fn, (jnp.array([1.0, -0.0, jnp.nan]),), forms=forms)
    return _check.check(CASE, subject, write, directory)


def test_a_right_module_passes(tmp_path: Path) -> None:
    """All stages hold, and the claimed proof level is recorded."""
    row = row_of(HEAD + RIGHT, tmp_path, forms=("grad", "vmap"))
    assert (row.outcome, row.reason) == ("passed", "")
    assert row.written and row.imported and row.bits and row.stablehlo
    assert row.proof == "jaxpr"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def f(x:\n", "import: SyntaxError"),
        ("import untrace\n" + RIGHT, "import: ImportError: the written module imports untrace"),
        ("from jax._src import core\n" + RIGHT, "imports jax._src"),
        (RIGHT.replace("f(x)", "f()"), "run: TypeError"),
        (RIGHT.replace("'y'", "'z'"), "pytree"),
        (RIGHT.replace("2.0", "2.0000002"), "bits: leaf 0: 1 of 3"),
        (RIGHT.replace("x * 2.0", "jnp.abs(x) * 2.0"), "bits: leaf 0: 1 of 3"),
        (RIGHT.replace("x * 2.0", "(x * 2.0).astype('bfloat16')"), "type bfloat16[3]"),
        (RIGHT.replace("x * 2.0", "x + x"), "stablehlo:"),
        ("def f(x):\n    print(1)\n    jax.debug.print('1')\n" + RIGHT[10:], "printed"),
    ],
)
def test_a_wrong_module_fails(text: str, reason: str, tmp_path: Path) -> None:
    """Each kind of fault is seen, and named."""
    row = row_of(HEAD + text, tmp_path)
    assert row.outcome == "failed"
    assert reason in row.reason


TWIN = """
import collections
SlogdetResult = collections.namedtuple("SlogdetResult", ["sign", "FIELD"])
def f(x):
    return [SlogdetResult(x, x)]
"""


def test_a_private_class_of_jax_may_have_a_twin(tmp_path: Path) -> None:
    """No written module may import it; its twin has the same name and fields."""
    private = type(jnp.linalg.slogdet(jnp.eye(2)))

    def fn(x: jax.Array) -> list[object]:
        return [private(x, x)]

    right = row_of(HEAD + TWIN.replace("FIELD", "logabsdet"), tmp_path, fn=fn)
    assert (right.outcome, right.reason) == ("passed", "")
    assert "pytree" in row_of(HEAD + TWIN.replace("FIELD", "log"), tmp_path, fn=fn).reason
    assert "pytree" in row_of(HEAD + "def f(x):\n    return [(x, x)]\n", tmp_path, fn=fn).reason


def test_what_is_left_in_a_reference_is_compared(tmp_path: Path) -> None:
    """References among the arguments are fresh for every run, and read after it."""

    def fn(ref: jax.Ref) -> jax.Array:
        ref[0] += 1.0
        return ref[1]

    def write(subject: _check.Subject, directory: Path) -> _check.Outcome:
        path = directory / f"written_{len(texts)}.py"  # Python compiles a file once a second
        path.write_text(texts.pop())
        return _check.Outcome(path, "f", "jaxpr")

    right = "def f(ref):\n    ref[0] += 1.0\n    return ref[1]\n"
    texts = [right.replace("+= 1.0", "+= 2.0"), right]
    subject = _check.Subject(fn, (jax.new_ref(jnp.arange(3.0)),))
    assert _check.check(CASE, subject, write, tmp_path).outcome == "passed"
    assert "bits: leaf 1" in _check.check(CASE, subject, write, tmp_path).reason


def test_a_weak_type_that_is_lost_fails(tmp_path: Path) -> None:
    """`1.0` and `float32(1.0)` are different results: what is added to them differs in type."""
    text = HEAD + "def f(x):\n    return jnp.float32(2.0)\n"
    row = row_of(text, tmp_path, fn=lambda x: 2.0)
    assert row.reason == "type float32[] instead of float32[] weak"


def test_a_wrong_gradient_fails(tmp_path: Path) -> None:
    """The same values with another derivative do not pass where gradients are compared."""
    text = HEAD + RIGHT.replace("x * 2.0", "x + jax.lax.stop_gradient(x)")
    row = row_of(text, tmp_path, forms=("grad",))
    assert row.reason.startswith("grad: bits")


def test_of_a_peer_only_leaves_are_compared(tmp_path: Path) -> None:
    """Trees and imports are not looked at where the written function is one of leaves."""
    text = HEAD + "import ml_dtypes\ndef f(x):\n    return x * 2.0\n"
    assert row_of(text, tmp_path).outcome == "failed"
    assert row_of(text, tmp_path, flat=True).outcome == "passed"


def test_equal_private_functions_are_one() -> None:
    """Their number says what JAX remembered; another body is another function."""
    head = "module @m {\n  func.func public @main() {\n    call @a()\n    call @b()\n  }\n"
    one = "  func.func private @a() {\n    return\n  }\n"
    same, other = one.replace("@a", "@b"), one.replace("@a", "@b").replace("return", "stop")
    for name in ("@b", '@"<lambda>_3"'):
        text = (head + one + same + "}\n").replace("@b", name)
        assert _common.merge_equal_functions(text) == head.replace("@b", "@a") + one + "}\n"
    assert _common.merge_equal_functions(head + one + other + "}\n") == head + one + other + "}\n"


def test_the_order_of_constants_means_nothing() -> None:
    """Their values do, and which of them is used where."""
    constants = ["    %cst = stablehlo.constant dense<1.0>\n", "    %cst_0 = stablehlo.constant dense<2.0>\n"]
    other = [line.replace("%cst ", "%x ").replace("_0", "").replace("%x", "%cst_0") for line in constants]
    head = "module @m {\n  func.func public @main() {\n"
    first = head + "".join(constants) + "    return %cst, %cst_0\n  }\n}\n"
    second = head + "".join(reversed(other)) + "    return %cst_0, %cst\n  }\n}\n"
    assert first != second
    assert _common.with_constants_inlined(first) == _common.with_constants_inlined(second)
    third = second.replace("return %cst_0, %cst", "return %cst, %cst_0")
    assert _common.with_constants_inlined(first) != _common.with_constants_inlined(third)


def test_what_jax_refuses_to_lower_is_excluded_with_its_reason() -> None:
    """Only while it refuses: a JAX that lowers the case makes it a fault of the suite."""

    def refused(x: jax.Array) -> jax.Array:
        checkify.check(x > 0, "")
        return x

    assert "Cannot abstractly evaluate a checkify.check" in _check.refusal(refused, (1.0,))
    with pytest.raises(AssertionError, match="this JAX lowers the case"):
        _check.refusal(jnp.sin, (1.0,))


def test_what_jax_cannot_run_is_excluded(tmp_path: Path) -> None:
    """The reason is JAX's own; in our suite it is a failure instead."""

    def wrong(x: jax.Array) -> jax.Array:
        return x @ x.T.reshape(1, 3)

    row = row_of(HEAD + RIGHT, tmp_path, fn=wrong)
    assert row.outcome == "excluded"
    assert row.reason.startswith("TypeError: dot_general")
    assert _check.unusable(dataclasses.replace(CASE, part=SUITE), "x").outcome == "failed"


# ----------------------------------------------------------------------- around the measure


def test_a_sample_is_a_fixed_share_of_every_group() -> None:
    """At least one case of each group, the same ones whatever else is there."""
    cases = [CaseName(CORPUS, f"{g}{i}", g) for g, n in (("a", 50), ("b", 3)) for i in range(n)]
    chosen = sample(cases, "1/5")
    assert [case.group for case in chosen] == ["a"] * 10 + ["b"]
    assert sample(list(reversed(cases)), "1/5") == chosen
    assert set(sample(cases, "1/10")) < set(chosen)
    assert sample(cases, "5/5") == sorted(cases)


TOOL = """
    import os, time

    def make(options):
        def write(subject, directory):
            if options["fault"] == "crash":
                os._exit(3)
            time.sleep(1000)
        return write
"""


@pytest.mark.parametrize("fault", ["crash", "hang"])
def test_a_worker_survives_its_cases(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that ends the process, or never ends, fails; the next one is tried."""
    (tmp_path / "faulty_tool.py").write_text(textwrap.dedent(TOOL))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    options = {"tool": "faulty_tool:make", "style": "exact", "fault": fault}
    worker = Worker(options=options, seconds=120.0)
    try:
        case = next(case for case in worker.list(CORPUS) if case.group == "neg")
        worker.seconds = 120.0 if fault == "crash" else 2.0
        expected = "the process died with 3" if fault == "crash" else "time limit"
        for _ in range(2 if fault == "crash" else 1):
            row = worker.check(case)
            assert row.outcome == "failed"
            assert row.reason.startswith(expected)
    finally:
        worker.close()


def test_the_report_counts_what_failed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Totals, the mean of groups, reasons and the closing line."""
    good = {"outcome": "passed", "written": True, "imported": True, "bits": True}
    rows = [
        Row(CORPUS, "a1", "a", stablehlo=True, proof="jaxpr", **good),
        Row(CORPUS, "a2", "a", reason="write: KeyError: 7"),
        Row(CORPUS, "a3", "a", reason="write: KeyError: 8"),
        Row(CORPUS, "b1", "b", stablehlo=True, proof="hlo", **good),
        Row(CORPUS, "c1", "c", "excluded", "TypeError: no"),
    ]
    conformance.print_report(rows, 1)
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "2 passed, 2 failed, 1 skipped"
    assert "     2  write: KeyError: 7\n          a/a1" not in text
    assert "     2  write: KeyError: 7\n          a/a2\n          … and 1 more" in text
    assert "proof level hlo" in text
    assert conformance.mean_of_groups(rows, "passed") == pytest.approx((100 / 3 + 100) / 2)
    data = json.loads(json.dumps(conformance.as_json(rows, {"jax": "0"})))
    assert data["parts"]["1"]["groups"]["a"]["passed"] == 1


STUB = """
import jax

def sourcerize(f):
    def write(*args):
        return f"def {f.__name__}(a):\\n    return jnp.float32(2.0) * a"
    return write
"""


def test_a_peer_is_taken_from_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """jax_sourceror is no package of an index: its clone is put on the path."""
    (tmp_path / "src" / "jax_sourceror").mkdir(parents=True)
    (tmp_path / "src" / "jax_sourceror" / "__init__.py").write_text(STUB)
    monkeypatch.setattr(sys, "path", list(sys.path))
    write = peers.sourceror_writer({"checkout": str(tmp_path)})
    subject = _check.Subject(double, (jnp.arange(3.0),))
    row = _check.check(CASE, subject, write, tmp_path, _check.Demands(stablehlo=False))
    assert row.bits, row.reason
    assert not row.stablehlo


def test_the_table_of_peers() -> None:
    """Right cases over tried ones, and their mean over groups."""
    rows = [
        Row(CORPUS, "a1", "a", "passed", written=True, imported=True, bits=True),
        Row(CORPUS, "a2", "a", written=True),
        Row(CORPUS, "a3", "a", "excluded"),
        Row(CORPUS, "b1", "b"),
    ]
    entry = peers.Entry("some tool", sys.executable, {})
    line = peers.markdown([(entry, "0.4.23", rows)]).splitlines()[-1]
    assert line == "| some tool | 0.4.23 | 3 | 2 | 1 | 0 | 1 (33.3 %) | 25.0 % |"
    assert peers.flat(["a", ["b", ["c"]]]) == ["a", "b", "c"]
