"""Provenance: the frames, expressions and names behind an equation, on programs whose source is known."""

from __future__ import annotations

import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from work import lines_run

from untrace import jax_compat
from untrace.provenance import sites as provenance
from untrace.provenance.sites import NOWHERE, Provenance, targets

VECTOR = jnp.ones(4)
MATRIX = jnp.ones((4, 4))


def sites(function: Any, *args: Any) -> list[tuple[str, provenance.Site]]:
    """(primitive, site) of every equation of the outermost jaxpr."""
    reader = Provenance()
    return [(e.primitive.name, reader.site(e)) for e in jax.make_jaxpr(function)(*args).eqns]


def names(function: Any, *args: Any) -> dict[str, list[tuple[str, str]]]:
    """{primitive: [(name, kind), ...]} of its last equation."""
    return {p: [(t.name, t.kind) for t in targets(s)] for p, s in sites(function, *args)}


class Module:
    pass


def binds_everything(x: Any) -> Any:
    module, out = Module(), {}
    plain = jnp.sin(x)
    annotated: Any = jnp.cos(plain)
    module.weight = jnp.tan(annotated)
    out["logits"] = jnp.exp(module.weight)
    if (walrus := jnp.log(out["logits"])) is not None:
        first, second = jnp.sinh(walrus), jnp.cosh(walrus)
    first *= second
    return {"answer": jnp.sqrt(first)}


def test_every_kind_of_assignment_gives_its_name():
    found = names(binds_everything, VECTOR)
    expected = {
        "sin": "plain", "cos": "annotated", "tan": "weight", "exp": "logits", "log": "walrus", "sinh": "first",
        "cosh": "second", "mul": "first", "sqrt": "answer",
    }  # fmt: skip
    assert {p: found[p][0][0] for p in expected} == expected


def parts_are_not_the_whole(x: Any) -> Any:
    whole = jnp.sin(x) + jnp.cos(x)
    return jnp.exp(whole) * 2.0


def test_only_the_whole_value_of_a_statement_has_its_name():
    found = names(parts_are_not_the_whole, VECTOR)
    assert found["add"] == [("whole", "assign")]
    assert found["sin"] == found["cos"] == found["exp"] == []
    assert found["mul"] == [("parts_are_not_the_whole", "return")]


def inner_block(block_input: Any, scale: Any) -> Any:
    hidden = jnp.tanh(block_input)
    return hidden * scale


def renamed(x: Any) -> Any:
    result = jnp.sinh(x)
    return result


def calls(x: Any) -> Any:
    outer = inner_block(jnp.sin(x), scale=jnp.cos(x))
    caller = renamed(outer)
    return caller - 1.0


def test_a_call_names_what_its_function_returns_innermost_name_first():
    found = names(calls, VECTOR)
    assert found["tanh"] == [("hidden", "assign")]
    assert found["mul"][0] == ("outer", "assign")
    assert [n for n, _ in found["sinh"][:2]] == ["result", "caller"]
    assert found["sin"] == [("block_input", "argument")]
    assert found["cos"] == [("scale", "keyword")]


def unpacks(x: Any) -> Any:
    first, second = x
    pair = [jnp.sin(element) for element in (first, second)]
    return pair[0] + pair[1]


def test_unpacking_and_comprehensions():
    reader = Provenance()
    eqns = jax.make_jaxpr(unpacks)(jnp.ones(2)).eqns
    unpacked = [t.name for t in targets(reader.site(eqns[0]))]
    assert unpacked == ["first", "second"]
    sine = next(e for e in eqns if e.primitive.name == "sin")
    assert [(t.name, t.kind) for t in targets(reader.site(sine))] == [("pair", "element")]


def test_frames_hold_exact_positions_and_no_frames_of_jax():
    (_, site), *_ = sites(calls, VECTOR)
    assert [f.name for f in site.frames] == ["calls"]
    frame = site.frame
    lines = open(__file__, encoding="utf-8").read().splitlines()
    assert lines[frame.line - 1][frame.column : frame.end_column] == "jnp.sin(x)"
    by_name = dict(sites(calls, VECTOR))
    assert [f.name for f in by_name["tanh"].frames] == ["calls", "inner_block"]
    assert by_name["tanh"].line == f"test_provenance.py:{by_name['tanh'].frame.line}"


def library_calls(x: Any) -> Any:
    mean = jnp.mean(x, axis=-1)
    return (x @ x)[0] + jax.nn.relu(mean) + x.sum(axis=0) + jnp.add(mean, 1.0)


def test_the_library_function_that_was_entered():
    found = [s.library for _, s in sites(library_calls, MATRIX)]
    for expected in (
        ("jax.numpy", "mean"), ("operator", "matmul"), ("operator", "getitem"), ("method", "sum"), ("jax.numpy", "add"),
        ("jax.nn", "relu"), ("operator", "add"),
    ):  # fmt: skip
        assert expected in found, expected


def loss(w: Any, x: Any) -> Any:
    with jax.named_scope("layer"):
        hidden = jnp.tanh(x @ w)
    return hidden.sum()


def test_phases_and_scopes():
    found = sites(jax.grad(loss), MATRIX, VECTOR)
    forward = [s for _, s in found if s.phase == "forward"]
    backward = [s for _, s in found if s.phase == "backward"]
    assert forward and backward
    assert all(s.differentiated for s in (*forward, *backward))
    last = backward[-1]
    assert "layer" in last.scopes and "transpose()" in last.scopes
    assert all(s.phase == "forward" and not s.differentiated for _, s in sites(loss, MATRIX, VECTOR))
    pushed = [s for _, s in sites(lambda x: jax.jvp(lambda y: jnp.sin(y), (x,), (x,)), VECTOR)]
    assert any(s.by_jvp for s in pushed)


def step_of_training(w: Any, x: Any) -> Any:
    value, gradient = jax.value_and_grad(mean_of)(w, x)
    lost = jax.grad(sum_of)(w)
    output, pullback = jax.vjp(lambda v: jnp.cosh(v), w)
    return value, gradient, lost, pullback(output)


def mean_of(w: Any, x: Any) -> Any:
    return jnp.tanh(w) @ x


def sum_of(w: Any) -> Any:
    return jnp.sinh(w).sum()


def test_values_that_come_back_through_a_transformation():
    found: dict[str, list[Any]] = {}
    for primitive, site in sites(step_of_training, VECTOR, VECTOR):
        if site.phase == "forward":
            found.setdefault(primitive, []).append([(t.name, t.kind) for t in targets(site)])
    assert found["dot_general"][0][0] == ("value", "assign")
    assert found["cosh"][-1][0] == ("output", "assign")
    assert not any(n == "lost" for ts in found.get("reduce_sum", []) for n, _ in ts)


def test_code_without_source_falls_back_quietly():
    space: dict[str, Any] = {"jnp": jnp}
    exec("def f(x):\n    y = jnp.sin(x)\n    return y", space)  # noqa: S102
    (_, site), *_ = sites(space["f"], VECTOR)
    assert site.frame.node is None
    assert targets(site) == ()
    assert Provenance().site(None) is NOWHERE and targets(NOWHERE) == ()


def test_source_that_changed_since_gives_no_names(tmp_path, monkeypatch):
    path = tmp_path / "changing_model.py"
    path.write_text("import jax.numpy as jnp\ndef f(x):\n    y = jnp.sin(x)\n    return y\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import changing_model

    closed = jax.make_jaxpr(changing_model.f)(VECTOR)
    path.write_text("nothing = 'here (' # any more, and it is longer than it was\n\n\n\n\n")
    assert targets(Provenance().site(closed.eqns[0])) == ()


@pytest.mark.parametrize("padding", [0, 1000])
def test_long_files_are_read_in_pieces(tmp_path, monkeypatch, padding):
    """The same names, whether the file is parsed whole or a definition at a time; lambdas and nested functions too."""
    name = f"padded_{padding}"
    body = textwrap.dedent("""
        import jax.numpy as jnp
        class Layer:
            def apply(self, x):
                scaled = jnp.sin(
                    x,
                )
                def inner(z):
                    bent = jnp.cos(z)
                    return bent
                squash = lambda v: jnp.tanh(v)
                squashed = squash(inner(scaled))
                return squashed
    """)
    (tmp_path / f"{name}.py").write_text(body + "\n".join(f"x{i} = {i}" for i in range(padding)) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__(name)
    found = names(module.Layer().apply, VECTOR)
    assert {p: found[p][0][0] for p in ("sin", "cos", "tanh")} == {"sin": "scaled", "cos": "bent", "tanh": "squashed"}


def test_library_frames_are_kept_and_marked(tmp_path, monkeypatch):
    """A framework's frames stay, so that its work can be grouped under the user's call; the user's name comes first."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "framework_of_someone.py").write_text(
        "import jax.numpy as jnp\ndef dense(x):\n    y = jnp.sin(x)\n    y = y * 2\n    return y\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    import framework_of_someone

    def user(x):
        hidden = framework_of_someone.dense(x)
        return hidden + 1

    (_, sine), (_, product), *_ = sites(user, VECTOR)
    assert [(f.name, f.library) for f in sine.frames] == [("user", False), ("dense", True)]
    assert sine.frame.name == "user"
    assert [t.name for t in targets(product)][:2] == ["hidden", "y"]
    assert [t.library for t in targets(sine)] == [True]


def test_sites_cost_little():
    """The equations of a loop share what is read of its lines."""

    def program(x):
        for _ in range(2500):
            y = jnp.sin(x)
            x = y * 2.0 + jnp.tanh(y)
        return x

    eqns = jax.make_jaxpr(program)(VECTOR).eqns
    reader = Provenance()
    ran = lines_run(lambda: [targets(reader.site(eqn)) for eqn in eqns])
    assert ran < 60 * len(eqns)


def test_a_trace_with_one_traceback_leaves_what_jax_keeps_as_ever():
    """The jaxpr of a jitted function is used again by programs that are read: where its equations came from is in it."""

    @jax.jit
    def normalised(x):
        centred = x - 1.0
        return centred * 2.0

    def program(x):
        with jax_compat.one_traceback():
            return normalised(jnp.sin(x) + jnp.cos(x))

    def places(closed: Any) -> list[Any]:
        return [jax_compat.equation_source(e)[0] for e in jax_compat.open_jaxpr(closed)[0].eqns]

    closed = jax.make_jaxpr(program)(VECTOR)
    assert len(set(places(closed))) == 1
    (again,) = [e.params["jaxpr"] for e in jax.make_jaxpr(lambda x: normalised(x))(VECTOR).eqns]
    reader = Provenance()
    found = {t.name for e in jax_compat.open_jaxpr(again)[0].eqns for t in targets(reader.site(e))}
    assert "centred" in found
    assert len(set(places(jax.make_jaxpr(lambda x: jnp.sin(x) + jnp.cos(x))(VECTOR)))) == 3


def test_a_trace_that_fails_with_one_traceback_is_forgotten():
    def program(x):
        with jax_compat.one_traceback():
            raise ValueError

    with pytest.raises(ValueError):
        jax.make_jaxpr(program)(VECTOR)
    assert len({s for _, s in sites(lambda x: jnp.sin(x) * 2.0, VECTOR)}) == 2
