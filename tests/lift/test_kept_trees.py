"""Trees of the author's across calls of which some have only their leaves, and across choices that hand parts of them on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from roundtrip import saved

import untrace


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Flock:
    body: dict[str, Any]
    turns: list[Any]

    def tree_flatten(self) -> Any:
        return (self.body, self.turns), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Any:
        return cls(*children)


def steer(flock: Flock) -> Any:
    position, velocity = flock.body["position"], flock.body["velocity"]
    return jnp.tanh(position) * jnp.cos(velocity) - 0.5 * jnp.mean(position, axis=0)


def advance(flock: Flock, count: int) -> Flock:
    for _ in range(count):
        velocity = flock.body["velocity"] + steer(flock)
        position = flock.body["position"] + 0.1 * velocity
        flock = Flock({"position": position, "velocity": velocity}, [flock.turns[0] + 1])
    return flock


def test_one_function_where_one_call_has_the_tree_and_others_its_leaves(tmp_path: Path) -> None:
    flock = Flock({"position": jnp.arange(6.0).reshape(3, 2), "velocity": jnp.ones((3, 2))}, [0])
    _, source = saved(untrace.decompile(lambda flock: advance(flock, 3))(flock), tmp_path)
    assert source.count("def steer") == 1 and "for _ in range(3):" in source, source
    names: dict[str, Any] = {}
    exec(source.replace("range(3)", "range(5)"), names)
    edited = next(v for k, v in names.items() if k in ("fn", "decompiled", "advance", "lambda_"))(flock)
    for one, other in zip(jax.tree.leaves(edited), jax.tree.leaves(advance(flock, 5)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


class Agent(NamedTuple):
    actor: Any
    critic: Any
    step: Any


def update(agent: Agent, g: Any) -> Any:
    agent = agent._replace(critic=agent.critic - 0.1 * g, step=agent.step + 1)

    def with_policy(agent: Agent) -> Any:
        return agent._replace(actor=agent.actor + agent.critic), jnp.sum(agent.critic)

    def without_policy(agent: Agent) -> Any:
        return agent, jnp.zeros(())

    return jax.lax.cond(agent.step % 2 == 0, with_policy, without_policy, agent)


def test_what_a_choice_hands_on_is_of_the_tree_that_it_gives(tmp_path: Path) -> None:
    agent = Agent(jnp.ones(3), jnp.ones(3), jnp.int32(0))
    _, source = saved(
        untrace.decompile(lambda agent, gs: jax.lax.scan(update, agent, gs))(agent, jnp.ones((5, 3))), tmp_path
    )
    assert "return out[0], out[1]" in source, source
