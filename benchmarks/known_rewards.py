"""How many rewards a LoFo buffer of windows still knows on the Reacher worlds, by its limit.

    python benchmarks/known_rewards.py                                       # 2 minutes on 2 cores
    python benchmarks/known_rewards.py --world randomized_reacher --limits 1 2

No agent learns here: episodes of random actions, then of a scripted pilot on its way to T1 with the
action noise of the agents, from the starts of phase 1 and then of phase 2. The locality is the
paper's loss over the angles (what a picture shows) in place of the pictures, at the paper's radius of 0.05.
Printed for each limit: the starts held; of the steps that T2 paid, how many are still known; and of
the steps that T1 paid, in windows as an agent draws them, the share whose reward is known, by how
many steps the recurrent state has seen before.
"""

import argparse
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scripted_arms import follow

from lofo_rl.buffers import Local
from lofo_rl.environments import Reacher
from lofo_rl.environments.pilots import Pilot
from lofo_rl.experiments import find
from lofo_rl.functional import SequenceIndex
from lofo_rl.locality import Contrastive
from lofo_rl.locality.base import Pairs
from lofo_rl.networks import MLP, Chain, linear

SEEN = np.array([0, 1, 2, 3, 6, 7])  # of the state: angles and T1's direction, no speeds
CONTEXTS = ((1, 2), (3, 9), (10, 24), (25, 49))
NUM_DRAWN = 4_000  # windows


@partial(jax.jit, static_argnums=(0, 2, 3, 4))
def play(world: Reacher, key, num: int, phase: int, is_random: bool):
    """Codes, successors, and what T1 and T2 paid (of two physics steps), each [num, steps, ...]."""
    task = world.train_task(phase)

    def episode(key):
        key_start, key_pilot, key_steps = jax.random.split(key, 3)
        signs = jnp.where(jax.random.bernoulli(key_pilot, shape=(2,)), 1.0, -1.0)
        pilot = Pilot(signs[0], signs[1], jnp.zeros((), bool))
        state, _ = world.reset(task, key_start)
        keys = jax.random.split(key_steps, world.spec.time_limit)
        played = follow(world, task, state, pilot, keys, is_random)
        return played.code, played.successor, played.at_t1, played.at_t2

    return jax.vmap(episode)(jax.random.split(key, num))


def fit(world: Reacher, key):
    """The locality, as a function from codes [n, ...] to embeddings."""
    key_play, key_init, key_fit = jax.random.split(key, 3)
    codes, successors, _, _ = play(world, key_play, 100, 1, True)
    codes, successors = (x.reshape(-1, x.shape[-1]) for x in (codes, successors))
    encoder = Chain((MLP((64, 64), "relu", "torch"), linear(32, "torch")))
    locality = Contrastive(
        encoder, SEEN.shape, 32, negative_target=50.0, num_epochs=4, learning_rate=1e-3
    )

    def see(code):
        return world.decode(code)[..., SEEN]

    count = jnp.arange(len(codes))
    pairs = Pairs(jnp.concatenate([codes, successors]), count, count + len(codes))
    params, _ = jax.jit(lambda p, k: locality.fit(p, pairs, k, see))(
        locality.init(key_init), key_fit
    )
    return jax.jit(jax.vmap(lambda code: locality.embed(params, see(code))))


@partial(jax.jit, static_argnums=(0, 2))
def fill(index: SequenceIndex, embeddings, num_steps: int):
    """The buffer after all episodes, and of each slot its step (-1: a closing row), and if first."""

    def step(carry, newcomer):
        state, number, is_first = carry
        i, embedding = newcomer
        is_closed = i % num_steps == num_steps - 1
        state, slots, _ = index.place(state, embedding, None, is_closed=is_closed)
        number = number.at[slots].set(jnp.stack([i, -1]), mode="drop")
        begins = jnp.stack([i % num_steps == 0, False])
        return (state, number, is_first.at[slots].set(begins, mode="drop")), None

    empty = jnp.full(index.num_slots, -1, jnp.int32), jnp.zeros(index.num_slots, bool)
    steps = jnp.arange(len(embeddings)), embeddings
    return jax.lax.scan(step, (index.init(embeddings.shape[-1]), *empty), steps)[0]


def describe(index: SequenceIndex, embeddings, num_steps: int, paid_t1, paid_t2) -> str:
    filled = fill(index, embeddings, num_steps)
    drawn = jax.device_get(index.draw(filled[0], NUM_DRAWN, jax.random.key(0)))
    state, number, is_first = jax.device_get(filled)
    size = int(state.ledger.size)
    starts = number[state.trajectory.window[:size, 0]]  # a start's own step is known
    begins = is_first[drawn.slots] | drawn.is_again  # here a recurrent state begins anew
    begins[:, 0] = True
    context = np.zeros(begins.shape, int)
    for t in range(1, context.shape[1]):
        context[:, t] = np.where(begins[:, t], 0, context[:, t - 1] + 1)
    own = number[drawn.slots]
    is_t1 = ((own >= 0) & paid_t1[own])[:, :-1] & ~begins[:, 1:]  # seen on arrival
    shares = []
    for low, high in CONTEXTS:
        chosen = is_t1 & (low <= context[:, 1:]) & (context[:, 1:] <= high)
        shares.append(f"{low} to {high}: {100 * drawn.known[:, :-1][chosen].mean():.0f} %")
    return (
        f"limit {index.rule.limit}: {size} starts, overflow {int(state.ledger.overflow)}; T2 paid "
        f"{paid_t2.sum()} steps, still known {paid_t2[starts].sum()}; known at T1 after {', '.join(shares)}"
    )


def main(world: str, limits: list[int], episodes: list[int], radius: float, seed: int) -> None:
    experiment = find(f"{world}/dreamer/lofo")
    buffer, environment = experiment.buffer, replace(experiment.environment, observation="state")
    keys = jax.random.split(jax.random.key(seed), 4)
    embed = fit(environment, keys[0])
    parts = [
        play(environment, key, num, phase, is_random)
        for key, num, phase, is_random in zip(
            keys[1:], episodes, (1, 1, 2), (True, False, False), strict=True
        )
    ]
    codes, _, at_t1, at_t2 = (np.concatenate(x) for x in zip(*parts, strict=True))
    num_steps = codes.shape[1]
    embeddings = embed(codes.reshape(-1, codes.shape[-1]))
    print(
        f"{world}, radius {radius}: {episodes[0]} random episodes, {episodes[1]} to T1 in "
        f"phase 1, {episodes[2]} in phase 2; T2 paid {(at_t2 > 0).sum(1)[: episodes[0]].mean():.1f} steps "
        f"of a random episode, {(at_t2 > 0).sum(1)[episodes[0] :].mean():.1f} of the others"
    )
    for limit in limits or sorted({max(1, buffer.rule.limit // 5), buffer.rule.limit}):
        index = SequenceIndex(
            Local(radius, limit),
            12_000,
            buffer.window,
            2 * len(embeddings),
            repeats=True,
        )
        paid = (at_t1 > 0).reshape(-1), (at_t2 > 0).reshape(-1)
        print(describe(index, embeddings, num_steps, *paid), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", default="reacher", choices=("reacher", "randomized_reacher"))
    parser.add_argument("--limits", type=int, nargs="*", help="the paper's and a fifth of it")
    parser.add_argument(
        "--episodes", type=int, nargs=3, default=(20, 40, 30), help="random, phase 1, phase 2"
    )
    parser.add_argument("--radius", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
