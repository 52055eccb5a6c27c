"""The LoCA worlds in Gymnasium: a random agent with the interface of Stable-Baselines3.

`learn` steps 64 worlds at once; the phase is switched between two calls of it, as with any library
that owns its training loop. Needs gymnasium: pip install --editable '.[gym]'.
"""

import time

import gymnasium
import numpy as np

import lofo_rl.adapters.gymnasium  # noqa: F401  registers the ids


class RandomAgent:
    """Learns nothing; replace it by yours."""

    def __init__(self, envs):
        self.envs, self.observations = envs, None
        self.rewards = []  # of the episodes that ended, one each: only arrivals pay

    def predict(self, observations):
        return self.envs.action_space.sample()

    def learn(self, total_timesteps):
        if self.observations is None:
            self.observations, _ = self.envs.reset(seed=0)
        for _ in range(total_timesteps // self.envs.num_envs):
            actions = self.predict(self.observations)
            self.observations, rewards, terminated, truncated, _ = self.envs.step(actions)
            self.rewards += rewards[terminated | truncated].tolist()
        return self


def evaluate(agent, envs, phase):
    """The mean discounted return of one episode a row, from the starts of evaluation."""
    discount = envs.unwrapped.world.spec.discount
    observations, _ = envs.reset(seed=1, options={"phase": phase, "evaluation": True})
    returns, alive, weight = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool), 1.0
    while alive.any():
        observations, rewards, terminated, truncated, _ = envs.step(agent.predict(observations))
        returns += weight * alive * rewards
        alive &= ~(terminated | truncated)
        weight *= discount
    return returns.mean()


training, judging = (gymnasium.make_vec("lofo/MiniGridLoCA-v0", num_envs=64) for _ in range(2))
training.action_space.seed(0)
agent = RandomAgent(training)
for phase in (1, 2):
    training.unwrapped.set_phase(phase)  # running episodes are cut, as truncated
    agent.rewards.clear()
    began = time.perf_counter()
    agent.learn(total_timesteps=50_000)
    took = time.perf_counter() - began
    paid = {reward: agent.rewards.count(reward) for reward in (0.0, 1.0, 2.0, 4.0)}
    print(f"phase {phase}: training episodes paid {paid}; 50 000 steps took {took:.1f} s")
    print(f"  mean return in evaluation: {evaluate(agent, judging, phase):.2f}")
