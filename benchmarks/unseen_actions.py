"""What planning does in a model of MiniGridLoCA that has not seen some actions.

    python benchmarks/unseen_actions.py --limits 8 17 25 100                  # counts: a minute
    python benchmarks/unseen_actions.py --limits 17 --plan --seeds 0          # and plans: 12 minutes

The buffer of phase 1: each pose keeps the actions last taken there, as many as the limit, by the
best policy with half of its actions left to chance. A pose that keeps few may keep none of some
action. With `--plan` the paper's dynamics network learns from that buffer (in float32, batches of
64, ten times the paper's rate, falling) and is then held fixed. The paper's Q-network plans in it
with the true rewards and ends of phase 1, first with the pictures as drawn, then, from the same
lots, with the true ones where the action was never seen. No return exceeds 4.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from minigrid_locality import embed_all

from lofo_rl.environments import MiniGrid
from lofo_rl.environments.minigrid_pixels import draw_frames
from lofo_rl.experiments.paper_minigrid import MINIGRID, MINIGRID_AGENT, MINIGRID_ENCODER
from lofo_rl.networks import Chain, linear
from lofo_rl.types import Array, Tree

NUM_ACTIONS = MINIGRID.spec.num_actions
DECODER = replace(MINIGRID_AGENT.decoder, dtype="float32")
HEAD = Chain((MINIGRID_AGENT.head, linear(NUM_ACTIONS, "torch")))
PIECES = 8  # all pictures at once take memory


class World(NamedTuple):
    """MiniGridLoCA of one phase as tables over [codes, actions]."""

    successor: np.ndarray
    reward: np.ndarray
    ends: np.ndarray
    starts: np.ndarray  # the codes [S] of all places to start from

    def values(self, num_sweeps: int = 200) -> np.ndarray:
        values = np.zeros(len(self.successor))
        for _ in range(num_sweeps):
            actions = self.reward + MINIGRID.discount * ~self.ends * values[self.successor]
            values = actions.max(axis=1)
        return actions


def tabulate(room: MiniGrid = MINIGRID, phase: int = 1) -> World:
    task = room.evaluation_task(phase)
    over_actions = jax.vmap(room.advance, in_axes=(None, 0))
    poses = room.pose(jnp.arange(room.num_codes))
    pose, at_t1, at_t2 = jax.vmap(over_actions, (0, None))(poses, jnp.arange(NUM_ACTIONS))
    t1, t2 = np.asarray(at_t1), np.asarray(at_t2)
    reward = t1 * float(task.reward_t1) + t2 * float(task.reward_t2)
    starts = np.flatnonzero(np.asarray(task.start))
    return World(np.asarray(room.encode(pose)), reward, t1 | t2, starts)


def remember(world: World, num_steps: int, limit: int, rng: np.random.Generator) -> np.ndarray:
    """How often [codes, actions] each action is among the last `limit` at each pose."""
    best = world.values().argmax(axis=1)
    kept: dict[int, list[int]] = {code: [] for code in world.starts.tolist()}
    code, age = int(rng.choice(world.starts)), 0
    coins, lots = rng.random(num_steps), rng.integers(NUM_ACTIONS, size=num_steps)
    for coin, lot in zip(coins, lots.tolist(), strict=True):
        action = lot if coin < MINIGRID_AGENT.exploration else int(best[code])
        kept[code] = [*kept[code], action][-limit:]
        age += 1
        if world.ends[code, action] or age == MINIGRID.time_limit:
            code, age = int(rng.choice(world.starts)), 0
        else:
            code = int(world.successor[code, action])
    counts = np.zeros(world.successor.shape, int)
    for code, actions in kept.items():
        np.add.at(counts[code], actions, 1)
    return counts


def learn_to_draw(
    world: World, counts: np.ndarray, num_steps: int, key: Array, rng: np.random.Generator
) -> np.ndarray:
    """The successors [codes, actions, 80, 80, 3] drawn by dynamics fitted to that buffer."""
    frames = jnp.asarray(draw_frames(MINIGRID), jnp.float32) / 255
    one_hot = jnp.eye(NUM_ACTIONS)
    key_encoder, key_decoder = jax.random.split(key)
    encoder, (size,) = MINIGRID_ENCODER.init(key_encoder, frames.shape[1:])
    decoder, _ = DECODER.init(key_decoder, (size + NUM_ACTIONS,))

    def draw(params: Tree, code: Array, action: Array) -> Array:
        features = embed_all(params[0])[code]
        return frames[code] + DECODER.apply(
            params[1], jnp.concatenate([features, one_hot[action]], -1)
        )

    def loss(params: Tree, code: Array, action: Array) -> Array:
        missed = frames[jnp.asarray(world.successor)[code, action]] - draw(params, code, action)
        goes_on = ~jnp.asarray(world.ends)[code, action]
        return jnp.mean(goes_on * 0.5 * jnp.sum(missed**2, axis=(1, 2, 3)))

    optimiser = optax.adam(optax.cosine_decay_schedule(1e-3, num_steps, 0.03))
    codes, actions = (
        np.repeat(part, counts.ravel()) for part in np.indices(counts.shape).reshape(2, -1)
    )
    learn = _learner(optimiser, loss)
    params: Tree = (encoder, decoder)
    state = optimiser.init(params)
    for number in range(1, num_steps + 1):
        rows = rng.integers(len(codes), size=64)
        params, state, missed = learn(params, state, codes[rows], actions[rows])
        if number % 1000 == 0:
            print(f"  {number} steps of the dynamics: loss {float(missed):.2f}", flush=True)
    code, action = np.indices(counts.shape).reshape(2, -1)
    drawn = [jax.jit(draw)(params, *part) for part in _in_pieces(code, action)]
    return np.concatenate(drawn).reshape(*counts.shape, *frames.shape[1:])


def plan(
    world: World, drawn: np.ndarray, num_copies: int, key: Array, rng: np.random.Generator
) -> Iterator[tuple[int, float, float]]:
    """Copies so far, the largest action value of any pose, and the greedy policy's return."""
    key_encoder, key_head = jax.random.split(key)
    encoder, size = MINIGRID_ENCODER.init(key_encoder, drawn.shape[2:])
    params: Tree = (encoder, HEAD.init(key_head, size)[0])
    optimiser = optax.adam(MINIGRID_AGENT.value_learning_rate)

    def loss(params: Tree, code: Array, action: Array, target: Array) -> Array:
        values = HEAD.apply(params[1], embed_all(params[0]))[code, action]
        return 0.5 * jnp.mean((values - target) ** 2)

    look = jax.jit(lambda params, x: HEAD.apply(params[1], MINIGRID_ENCODER.apply(params[0], x)))
    step = _learner(optimiser, loss)
    pictures = jnp.asarray(drawn).reshape(-1, *drawn.shape[2:])
    state = optimiser.init(params)
    for copy in range(1, num_copies + 1):
        following = np.concatenate([look(params, part) for (part,) in _in_pieces(pictures)])
        promised = following.max(axis=1).reshape(world.reward.shape)
        targets = world.reward + MINIGRID.discount * ~world.ends * promised
        for _ in range(833):
            code = rng.choice(world.starts, size=MINIGRID_AGENT.batch_size)
            action = rng.integers(NUM_ACTIONS, size=code.shape)
            batch = code, action, targets[code, action].astype(np.float32)
            params, state, _ = step(params, state, *batch)
        values = np.asarray(HEAD.apply(params[1], embed_all(params[0])))
        yield copy, values[world.starts].max(), _score(world, values.argmax(axis=1))


def _learner(optimiser: optax.GradientTransformation, loss: Callable[..., Array]) -> Callable:
    @partial(jax.jit, donate_argnums=(0, 1))
    def learn(params: Tree, state: Tree, *batch: Array) -> tuple[Tree, Tree, Array]:
        missed, slope = jax.value_and_grad(loss)(params, *batch)
        change, state = optimiser.update(slope, state)
        return optax.apply_updates(params, change), state, missed

    return learn


def _in_pieces(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    yield from zip(*(jnp.split(jnp.asarray(array), PIECES) for array in arrays), strict=True)


def _score(world: World, best: np.ndarray) -> float:
    total, code, alive = 0.0, world.starts, np.ones(len(world.starts), bool)
    for age in range(MINIGRID.time_limit):
        action = best[code]
        total += MINIGRID.discount**age * (alive * world.reward[code, action]).mean()
        alive &= ~world.ends[code, action]
        code = world.successor[code, action]
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--limits", type=int, nargs="+", default=[8, 17, 25, 100])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=50_000, help="of phase 1")
    parser.add_argument("--plan", action="store_true", help="learn and plan as well")
    parser.add_argument("--model-steps", type=int, default=7_000)
    parser.add_argument("--copies", type=int, default=20, help="of the target network")
    given = parser.parse_args()
    world = tabulate()
    can_start = np.isin(np.arange(len(world.reward)), world.starts)[:, None]
    into_t2 = can_start & (world.reward == float(MINIGRID.evaluation_task(1).reward_t2))
    for limit in given.limits:
        for seed in given.seeds:
            rng, key = np.random.default_rng(seed), jax.random.key(seed)
            counts = remember(world, given.steps, limit, rng)
            unseen = can_start & (counts == 0)
            print(
                f"limit {limit}, seed {seed}: {counts.sum()} samples, {unseen.sum()} of "
                f"{NUM_ACTIONS * len(world.starts)} actions unseen, {unseen[into_t2].sum()} of "
                f"{into_t2.sum()} into T2",
                flush=True,
            )
            if not given.plan:
                continue
            drawn = learn_to_draw(world, counts, given.model_steps, key, rng)
            true = np.asarray(draw_frames(MINIGRID))[world.successor].astype(np.float32) / 255
            mended = np.where(unseen[..., None, None, None], true, drawn)
            for words, pictures in (("as drawn", drawn), ("unseen mended", mended)):
                lots = np.random.default_rng(seed)
                for copy, largest, score in plan(world, pictures, given.copies, key, lots):
                    if copy % 5 == 0:
                        print(
                            f"  {words}, {copy} copies: largest value {largest:.2f}, "
                            f"return {score:.2f}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
