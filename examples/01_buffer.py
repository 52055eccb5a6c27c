"""Local forgetting in ten lines: the newcomer replaces its stale neighbor, not the oldest item."""

import numpy as np

import lofo_rl

# A corridor of four cells. Later the reward of cell 0 changes, and the agent comes by once more.
first_visit = [(0, 4.0), (1, 0.0), (2, 0.0), (3, 1.0)]
after_the_change = [(0, 0.0)]

for rule in (lofo_rl.Fifo(), lofo_rl.Local(radius=0.5, limit=1)):
    buffer = lofo_rl.ReplayBuffer(rule, capacity=16, locality=lambda observation: observation)
    for cell, reward in first_visit + after_the_change:
        buffer.add({"observation": np.array([cell], np.float32), "reward": reward})
    kept = buffer.contents().items
    print(rule)
    for observation, reward in zip(kept["observation"], kept["reward"], strict=True):
        print(f"  in cell {observation[0]:.0f} the reward is {reward}")
    print(
        f"  a batch: {buffer.sample(3).items['reward']}, forgotten: {buffer.metrics()['evictions']}"
    )

# Windows of three steps: the step that was forgotten as a start still serves its neighbors'
# windows, but its reward is unknown.
sequences = lofo_rl.ReplayBuffer(lofo_rl.Local(radius=0.5, limit=1), capacity=16, window=3)
for time, cell in enumerate([0, 1, 2, 1, 3, 4]):
    step = lofo_rl.Step(
        observation=np.array([cell], np.float32),
        action=0,
        reward=float(time),
        terminated=False,
        is_first=time == 0,
        is_last=False,
    )
    sequences.add(step, embedding=step.observation)

print("windows")
batch = sequences.contents()
for rewards, known in zip(batch.items.reward, batch.reward_known, strict=True):
    print("  rewards", np.where(known, rewards, np.nan))
