"""The yardstick: deep Dyna-Q with a LoFo buffer as a plain Python loop, one operation at a time.

Same agent, same buffer, same settings as `benchmarks/dyna_q.py`, without compilation: what a
straightforward research script does.
"""

import operator
import time

import jax

from lofo_rl.experiments import find
from lofo_rl.types import Transition


def update(agent, state, batch, key):
    """`DynaQ.update` without its scans: ten gradient steps, one after the other."""
    items = batch.items._replace(
        observation=agent.scale(batch.items.observation),
        next_observation=agent.scale(batch.items.next_observation),
    )
    for i in range(agent.num_model_updates):
        one = jax.tree.map(operator.itemgetter(i), (items, batch.reward_known))
        state, _ = agent._learn_model(state, one)
    observations = items.observation[agent.num_model_updates :]
    actions = jax.random.randint(key, observations.shape[:2], 0, agent.num_actions)
    for observation, action in zip(observations, actions, strict=True):
        target = agent._targets(state, observation, action)
        state, _ = agent._plan(state, (observation, action, target))
    return state


def measure(prepare, num_steps: int = 12) -> float:
    """Environment steps a second, after a few steps to warm up."""
    pack, runs = prepare(1, stack_model=False)
    experiment = find("mountaincar/dyna_q/lofo")
    environment, agent, buffer = pack.lead.environment, pack.lead.agent, experiment.buffer
    replay = buffer.replay
    task = environment.train_task(1)
    state = jax.tree.map(lambda x: x[0], runs.agents)
    params, stored = (
        jax.tree.map(lambda x: x[0], part[0]) for part in (runs.localities, runs.replays)
    )
    num_batches, batch_size = agent.appetite[:2]
    key = jax.random.PRNGKey(0)
    world, code = environment.reset(task, key)
    for step in range(num_steps + 2):
        if step == 2:
            began = time.perf_counter()
        keys = jax.random.split(jax.random.fold_in(key, step), 5)
        action, _ = agent.act(state, (), environment.decode(code), keys[0], explore=True)
        world, answer = environment.step(task, world, action, keys[1])
        item = Transition(code, action, answer.reward, answer.terminated, answer.successor)
        embedding = buffer.locality.embed(params, environment.decode(code))
        stored = replay.add(stored, item, embedding, keys[2])
        batch = replay.sample(stored, num_batches * batch_size, keys[3])
        batch = jax.tree.map(lambda x: x.reshape(num_batches, batch_size, *x.shape[1:]), batch)
        state = update(agent, state, batch, keys[4])
        code = answer.observation
    jax.block_until_ready(state)
    return num_steps / (time.perf_counter() - began)
