"""What bfloat16 does to the gradients of the pixel agent, beside what the draw of a batch does to them.

    python benchmarks/minigrid_precision.py [--steps 300] [--batches 8]

A run of `minigrid/dyna_q/lofo` learns for some steps in float32. Then gradients of the model and of the
Q-network are taken for several batches, in float32 and with pictures in bfloat16 as the named run has them.
Rounding matters if it moves a gradient about as far as another batch would.
"""

import argparse
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from lofo.agents.losses import value_loss
from lofo.experiments import Pack, find, loop, memory
from lofo.networks import Chain


def in_dtype(experiment, dtype: str):
    """The run with its pictures and patches in another dtype."""
    agent = experiment.agent
    cnn, head = agent.value.parts
    value = Chain((replace(cnn, dtype=dtype), head))
    agent = replace(agent, decoder=replace(agent.decoder, dtype=dtype), value=value)
    return replace(experiment, agent=agent, seeds=(0,))


def gradients(pack: Pack, runs, key):
    """Of the model and of the Q-network, as vectors, for one batch each."""
    agent, state = pack.lead.agent, jax.tree.map(lambda x: x[0], runs.agents)
    replay, sampler = (
        jax.tree.map(lambda x: x[0], part[0]) for part in (runs.replays, runs.samplers)
    )
    batches = memory.sample(pack, pack.buffers[0], replay, sampler, key)
    items = agent._scale_items(batches.items)
    first, second = (jax.tree.map(lambda x, k=k: x[k], items) for k in (0, 1))
    of_model = jax.grad(lambda p: agent.model_loss(p, first, batches.reward_known[0])[0])(
        state.model
    )
    targets = agent._targets(state, second.observation, second.action)

    def of_values(value):
        return value_loss(agent._value.apply(value, second.observation), second.action, targets)

    flat = lambda tree: jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(tree)])  # noqa: E731
    return flat(of_model), flat(jax.grad(of_values)(state.value))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batches", type=int, default=8)
    given = parser.parse_args()
    packs = {
        dtype: Pack((in_dtype(find("minigrid/dyna_q/lofo"), dtype),))
        for dtype in ("float32", "bfloat16")
    }
    exact = packs["float32"]
    runs = jax.tree.map(jnp.copy, loop.init(exact, loop.outline_localities(exact)))
    places = tuple(jax.vmap(b.locality.init)(exact.streams.locality) for b in exact.buffers)
    runs, task = runs._replace(localities=places), exact.lead.environment.train_task(1)
    warmup = exact.lead.schedule.warmup
    runs, _ = loop.advance(exact, runs, task, jnp.int32(0), jnp.int32(warmup), True)
    runs, _ = loop.advance(exact, runs, task, jnp.int32(warmup), jnp.int32(given.steps), False)
    keys = jax.random.split(jax.random.PRNGKey(0), given.batches)
    found = {
        dtype: [
            np.stack(part)
            for part in zip(*(gradients(pack, runs, key) for key in keys), strict=True)
        ]
        for dtype, pack in packs.items()
    }
    print(
        f"{given.batches} batches after {given.steps} learning steps, {jax.devices()[0].device_kind}"
    )
    for name, true, rounded in zip(("model", "Q-network"), *found.values(), strict=True):
        length = np.linalg.norm(true, axis=1).mean()
        rounding = np.linalg.norm(rounded - true, axis=1).mean()
        drawing = np.linalg.norm(true - np.roll(true, 1, axis=0), axis=1).mean()
        print(
            f"{name:10} gradient {length:.4g}; bfloat16 moves it by {rounding / length:.2%}, another batch "
            f"by {drawing / length:.2%}: {drawing / rounding:.0f} times as far"
        )


if __name__ == "__main__":
    main()
