"""How well the small world models of DreamerV2 and PlaNet foresee rewards, on scripted arms of ReacherLoCA.

    python benchmarks/foresee.py dreamer planet planet:1 [--updates 2000] [--episodes 500] [--wander]

No agent acts here. Models learn from as many beginnings of random episodes as of episodes in which a noisy pilot
goes to T1, 100 steps each; then, on others, they see ten steps, follow the true actions for 13 more without
a picture, and foresee their rewards. Printed every 500 updates: the correlation with the true rewards of the last
step that was seen, and of imagined steps 1, 3, 6, 10 and 13; and how far the imagined states of steps 1, 3, 6, 10 and
13 are moved by the opposite actions, and by other lots (mean squares). `planet:1` is PlaNet with so many free nats,
`planet:balanced` with DreamerV2's KL, `planet:unbalanced` with that less its balance, and `planet:1,norm` has layer
norm in its recurrence; `planet+` has the recurrence and the reward head of paper size.

Whom a pilot holds at T1 is paid whatever a model makes of actions. With `--wander` all episodes are of random actions
that go on in their direction for some steps, so that arms swing about and rewards hang on actions alone.
"""

import argparse
import time
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scripted_arms import as_it_lies, follow

from lofo_rl.agents import Dreamer, PlaNet, WorldModel
from lofo_rl.agents.descent import descend, remember
from lofo_rl.agents.losses import BalancedKL, HingedKL
from lofo_rl.agents.planet import PLANET_MODEL
from lofo_rl.environments import Reacher
from lofo_rl.types import Step

WORLD = Reacher()
LENGTH, WINDOW, BATCH = 100, 30, 12
NUM_SEEN, NUM_IMAGINED, NUM_JUDGED = 10, 13, 256
TOLD = np.array([1, 3, 6, 10, 13])  # imagined steps
ROUND = 500  # updates between two lines
# Of wandering actions: what one keeps of the one before it, and their size.
KEPT, SPREAD = 0.85, 0.9
# DreamerV2's KL, and without its balance.
DIVERGENCES = {"balanced": BalancedKL(), "unbalanced": BalancedKL(balance=0.5)}


def draw_wandering(key, num: int) -> jax.Array:
    """Actions [num, 2], each like the one before it."""
    lots = SPREAD * jax.random.normal(key, (num, 2))
    share = (1 - KEPT**2) ** 0.5
    step = lambda a, lot: (KEPT * a + share * lot,) * 2  # noqa: E731
    later = jax.lax.scan(step, lots[0], lots[1:])[1]
    return jnp.clip(jnp.concatenate([lots[:1], later]), -1, 1)


@partial(jax.jit, static_argnums=1)
def wander(key, num: int):
    """Codes, actions and rewards [num, LENGTH, ...] of phase 1, as `play` gives them."""
    task = WORLD.train_task(1)

    def step(state, given):
        action, key = given
        code = WORLD.encode(state.physical)
        state, answer = WORLD.proceed(task, state, action, key)
        return state, (code, action, answer.reward)

    def episode(key):
        key_start, key_act, key_steps = jax.random.split(key, 3)
        state, _ = WORLD.reset(task, key_start)
        given = draw_wandering(key_act, LENGTH), jax.random.split(key_steps, LENGTH)
        return jax.lax.scan(step, state, given)[1]

    return jax.vmap(episode)(jax.random.split(key, num))


@partial(jax.jit, static_argnums=(1, 2))
def play(key, num: int, is_random: bool):
    """Codes, actions and rewards [num, LENGTH, ...] of phase 1."""
    task = WORLD.train_task(1)

    def episode(key):
        key_start, key_pilot, key_steps = jax.random.split(key, 3)
        state, _ = WORLD.reset(task, key_start)
        pilot = as_it_lies(state, key_pilot)
        keys = jax.random.split(key_steps, LENGTH)
        played = follow(WORLD, task, state, pilot, keys, is_random)
        return played.code, played.action, played.reward

    return jax.vmap(episode)(jax.random.split(key, num))


def collect(key, num: int, wanders: bool):
    if wanders:
        return wander(key, 2 * num)
    keys = jax.random.split(key)
    parts = [play(key, num, is_random) for key, is_random in zip(keys, (True, False), strict=True)]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def draw(episodes, key, num: int) -> Step:
    """Windows [num, WINDOW] that begin anywhere."""
    key_episode, key_start = jax.random.split(key)
    which = jax.random.randint(key_episode, (num,), 0, len(episodes[0]))
    starts = jax.random.randint(key_start, (num,), 0, LENGTH - WINDOW + 1)
    times = starts[:, None] + jnp.arange(WINDOW)
    codes, actions, rewards = (x[which[:, None], times] for x in episodes)
    no = jnp.zeros((num, WINDOW), bool)
    return Step(WORLD.decode(codes), actions, rewards, no, no.at[:, 0].set(True), no)


def foresee(model: WorldModel, params, items: Step, key):
    """Correlations with the truth: of the last reward seen, and of those imagined, in turn.

    Then how far imagined states are moved by the opposite actions, and by other lots.
    """
    key_see, key_observe, key_imagine = jax.random.split(key, 3)
    seen = jax.tree.map(lambda x: x[:, :NUM_SEEN], items)
    pictures = model.see(seen.observation, key_see)
    states, *_ = model.rssm.observe_window(
        model.recurrent(params),
        jnp.roll(seen.action, 1, axis=1),  # the action that led to each
        model.apply(model.encoder, params.encoder, pictures),
        seen.is_first,
        key_observe,
    )
    last = jax.tree.map(lambda x: x[:, -1], states)
    taken = slice(NUM_SEEN - 1, NUM_SEEN - 1 + NUM_IMAGINED)
    actions = items.action[:, taken].swapaxes(0, 1)
    imagine = partial(model.imagine_window, params, last)
    then, opposed, redrawn = map(
        imagine,
        (actions, -actions, actions),
        (key_imagine, key_imagine, jax.random.fold_in(key, 1)),
    )
    told = [model.reward(params, model.features(state)) for state in (last, then)]
    true = items.reward[:, NUM_SEEN - 2], items.reward[:, taken].T
    correlate = jax.vmap(lambda x, y: jnp.corrcoef(x, y)[0, 1])
    moved = [
        jnp.mean((model.features(other) - model.features(then)) ** 2, axis=(1, 2))
        for other in (opposed, redrawn)
    ]
    return correlate(told[0][None], true[0][None])[0], correlate(told[1], true[1]), *moved


def choose(name: str) -> tuple[WorldModel, tuple[float, ...]]:
    """A model, and its learning rate, Adam's epsilon and clip."""
    agent, _, changes = name.partition(":")
    if name == "dreamer":
        return Dreamer.small().model, (1e-3, 1e-5, 100.0)
    if agent not in ("planet", "planet+"):
        raise SystemExit(f"no model is called {name}: dreamer, planet or planet+, planet:CHANGES")
    model = PlaNet.small().model
    if agent == "planet+":
        own = {"rssm": PLANET_MODEL.rssm, "reward_head": PLANET_MODEL.reward_head}
        model = replace(model, **own)
    for change in filter(None, changes.split(",")):
        if change == "norm":
            model = replace(model, rssm=replace(model.rssm, layer_norm=True))
        elif change in DIVERGENCES or change.replace(".", "", 1).isdigit():
            divergence = DIVERGENCES.get(change) or HingedKL(float(change))
            model = replace(model, divergence=divergence)
        else:
            words = ", ".join(DIVERGENCES)
            raise SystemExit(
                f"{name}: a change is a number of free nats, norm, {words}; got {change}"
            )
    return model, (1e-3, 1e-4, 1000.0)


def study(name: str, num_updates: int, episodes, others) -> None:
    model, rates = choose(name)
    known = jnp.ones((BATCH, WINDOW), bool)

    def learn(carry, key):
        key_draw, key_loss = jax.random.split(key)
        slope = jax.grad(model.loss, has_aux=True)
        gradient, (_, metrics) = slope(carry[0], draw(episodes, key_draw, BATCH), known, key_loss)
        params, memory = descend(carry[0], gradient, carry[1], *rates)
        return (params, memory), metrics

    rounds = jax.jit(lambda carry, key: jax.lax.scan(learn, carry, jax.random.split(key, ROUND)))
    judge = jax.jit(partial(foresee, model))
    items, params = draw(others, jax.random.key(3), NUM_JUDGED), model.init(jax.random.key(0))
    carry, began = (params, remember(params)), time.perf_counter()
    for number in range(num_updates // ROUND):
        carry, metrics = rounds(carry, jax.random.key(number))
        judged = judge(carry[0], items, jax.random.key(4))
        seen, *imagined = map(np.asarray, judged)
        rewards, by_actions, by_lots = (np.round(x[TOLD - 1], 3) for x in imagined)
        image, reward, kl = (float(metrics[m].mean()) for m in ("image_loss", "reward_loss", "kl"))
        print(
            f"{name:10} {ROUND * (number + 1):6} updates: pictures {image:5.2f}, rewards {reward:.3f}, "
            f"KL {kl:.2f}; seen {seen:.2f}, imagined {rewards}, moved by actions {by_actions}, by lots {by_lots} "
            f"({time.perf_counter() - began:.0f} s)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="dreamer, planet or planet+, the latter two with changes: planet:1, planet+:norm,balanced",
    )
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--episodes", type=int, default=500, help="of either kind")
    parser.add_argument("--wander", action="store_true", help="arms that swing about, no pilots")
    given = parser.parse_args()
    episodes = collect(jax.random.key(1), given.episodes, given.wander)
    others = collect(jax.random.key(2), 50, given.wander)
    for name in given.models:
        study(name, given.updates, episodes, others)


if __name__ == "__main__":
    main()
