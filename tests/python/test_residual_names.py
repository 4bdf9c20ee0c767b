"""What a forward loop saves has the same name in the backward loop that takes it."""

from __future__ import annotations

import ast

import jax
import jax.numpy as jnp
from hypothesis import given
from hypothesis import strategies as st

import untrace
from untrace.python.coalesce_names import _exchanged

PARAMS = {name: jnp.full((4, 4), 0.1 * (i + 1)) for i, name in enumerate(["input", "hidden", "candidate"])}


def cell(params, h, x):
    update = jax.nn.sigmoid(x @ params["input"] + h @ params["hidden"])
    scaled = update * h
    candidate = jnp.tanh(x @ params["candidate"] + scaled @ params["hidden"])
    kept = 1.0 - update
    return kept * h + update * candidate


def loss(params, xs):
    def step(h, x):
        h = cell(params, h, x)
        return h, jnp.sum(h**2)

    _, losses = jax.lax.scan(step, jnp.zeros((3, 4)), xs)
    return losses.sum()


def body_of(source, name):
    return next(n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == name)


def test_the_backward_loop_takes_what_the_forward_loop_saves_under_its_names():
    found = untrace.decompile(jax.grad(loss))(PARAMS, jnp.ones((5, 3, 4)))
    assert found.proof.at_least("bits"), found.proof
    saves = [n for n in ast.walk(body_of(found.source, "step")) if isinstance(n, ast.Assign)]
    (saved,) = [n.value for n in saves if ast.unparse(n.targets[0]) == "residuals"]
    takes = [n for n in ast.walk(body_of(found.source, "step_bwd")) if isinstance(n, ast.Assign)]
    (taken,) = [n.targets[0] for n in takes if ast.unparse(n.value) == "residuals"]
    pairs = list(zip(saved.elts, taken.elts, strict=True))
    named = [(ours.id, theirs.id) for ours, theirs in pairs if isinstance(ours, ast.Name)]
    assert len(named) > 3, found.source
    assert all(ours == theirs or theirs == "_" for ours, theirs in named), found.source


NAMES = st.sampled_from(["x", "x_2", "x_3", "y", "y_2", "z", "w"])


@given(st.dictionaries(NAMES, NAMES, max_size=5), st.sets(NAMES), st.sets(NAMES))
def test_no_variable_is_taken_for_another_one(wishes, mine, others):
    words = dict.fromkeys({*wishes, *mine, *others}, 1)
    new = _exchanged(wishes, mine, words)
    assert set(new) <= mine
    after = [new.get(name, name) for name in words]
    assert len(set(after)) == len(after), (new, words)
    for name, one in new.items():
        assert one == wishes.get(name) or one in set(new), (name, one)


def test_the_authors_name_goes_to_the_value_and_not_to_what_is_saved_on_the_way():
    """The mask is broadcast, and saved, before the choice that the statement is for."""

    def masked(w, xs, mask):
        def step(hidden, position):
            x, present = position
            hidden = jnp.where(present[:, None], jnp.tanh(hidden @ w + x), hidden)
            return hidden, hidden

        return jax.lax.scan(step, jnp.zeros((2, 3)), (xs, mask))[1].sum()

    source = untrace.decompile(jax.grad(masked))(jnp.eye(3), jnp.ones((5, 2, 3)), jnp.ones((5, 2), bool)).source
    assert "hidden_2 = jnp.where(present[:, None], tanh, hidden)" in source
    assert "jnp.where(present_wide, " in source and "jnp.where(hidden" not in source
