"""Facts are typed and documented, and somebody reads each; what waits for XLA is asked only where it matters."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import untrace
from untrace.capture.hooks import CaptureHooks
from untrace.driver import attempts
from untrace.ir import facts
from untrace.ir.facts import FunctionFacts, ProgramFacts
from untrace.ir.nodes import Function
from untrace.lift.options import LiftOptions
from untrace.module.emit import Manner
from untrace.prove import hlo

SRC = Path(untrace.__file__).parent
KINDS = [FunctionFacts, ProgramFacts, LiftOptions, Manner, CaptureHooks]


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_has_a_docstring_and_a_default(kind) -> None:
    path = SRC / (kind.__module__.removeprefix("untrace.").replace(".", "/") + ".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (body,) = [n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == kind.__name__]
    for place, node in enumerate(body):
        if isinstance(node, ast.AnnAssign):
            after = body[place + 1] if place + 1 < len(body) else None
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            assert said and node.value is not None, f"{kind.__name__}.{node.target.id}"  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_is_read_somewhere(kind) -> None:
    texts = [p.read_text(encoding="utf-8") for p in SRC.rglob("*.py")]
    read = {word for text in texts for word in re.findall(r"(?:facts|options|manner|hooks)\.([a-z_]+)", text)}
    read |= set(re.findall(r"self\.([a-z_]+)", (SRC / "ir/facts.py").read_text(encoding="utf-8")))
    assert {f.name for f in dataclasses.fields(kind)} <= read


def test_facts_are_not_shared_by_functions() -> None:
    one, other = Function("one", [], [], []), Function("other", [], [], [])
    one.facts = dataclasses.replace(one.facts, saved=3)
    assert other.facts is facts.NOTHING and other.facts.saved == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.facts.saved = 4  # type: ignore[misc]


def cell(params, h, x):
    z = jnp.tanh(x @ params["wx"] + h @ params["wh"] + params["b"])
    return z + 0.5 * h


def recurrent(params, xs):
    def step(h, x):
        h = cell(params["cell"], h, x)
        return h, h

    _, hs = jax.lax.scan(step, jnp.zeros((2, 3)), xs)
    return jnp.sum((hs @ params["out"]) ** 2)


def test_nobody_waits_for_xla_while_a_text_is_written(monkeypatch) -> None:
    events = []
    write, ask = attempts.write_module, hlo.OptimisedAlike.__call__

    def writing(*args, **kwargs):
        events.append("writes")
        written = write(*args, **kwargs)
        events.append("has written")
        return written

    def asked(alike):
        events.append("asks")
        return ask(alike)

    monkeypatch.setattr(attempts, "write_module", writing)
    monkeypatch.setattr(hlo.OptimisedAlike, "__call__", asked)
    params = {"cell": {"wx": jnp.ones((6, 3)), "wh": 0.1 * jnp.ones((3, 3)), "b": jnp.ones(3)}, "out": jnp.ones((3, 2))}
    found = untrace.decompile(jax.value_and_grad(recurrent))(params, jnp.ones((2, 2, 6)))
    # A tree in the carry has another order than the leaves have, which the first text keeps.
    assert "jax.tree.map(jnp.add, d_cell, " in found.source
    assert events[:5] == ["writes", "has written", "asks", "writes", "has written"], events
    assert ("writes", "asks") not in list(zip(events, events[1:], strict=False))
