"""A whole LoCA run in seconds: two buffers, one agent, and a local change of the reward.

Phase 1: T1 pays 4 and T2 pays 2. Phase 2: T1 pays only 1, and training never leaves T1's zone.
"""

import tempfile
from pathlib import Path

from lofo_rl.agents import DynaQ
from lofo_rl.buffers import Fifo, Local
from lofo_rl.environments import MiniGrid
from lofo_rl.experiments import Buffer, Experiment, Pack, Phase, Schedule, run
from lofo_rl.locality import Handcrafted
from lofo_rl.networks import IDENTITY, MLP
from lofo_rl.reports import summarise, verdict_table

DISCOUNT = 0.9  # far from 1, so that planning settles in two thousand steps
world = MiniGrid(size=4, time_limit=40, discount=DISCOUNT)
agent = DynaQ(
    world.spec.observation_shape,
    world.spec.num_actions,
    encoder=IDENTITY,
    head=MLP((64,), "relu"),
    value=MLP((64,), "relu"),
    model_learning_rate=4e-3,
    value_learning_rate=2e-3,
    adam_epsilon=1e-3,
    discount=DISCOUNT,
    target_period=10,
    num_model_updates=1,
    num_planning_updates=1,
    planning_delay=500,
    batch_size=64,
    one_hot_action=True,
    stack_model=False,
)
# Exact values of this small room; docs/extending.md shows how they are computed.
phases = Phase(1, 2_000, optimum=2.868, stale=2.868), Phase(2, 2_000, optimum=1.369, stale=0.717)
schedule = Schedule(warmup=0, evaluate_every=250, episodes=None)  # None: from every start
# Observations are one-hot, so any radius below the square root of 2 tells all poses apart.
locality = Handcrafted((1.0,) * world.spec.observation_shape[0])
buffers = {
    "lofo": Buffer("LoFo", Local(radius=0.5, limit=10), 1_000, locality),
    "fifo": Buffer("FIFO everything", Fifo(), 4_000),
}
pack = Pack(
    tuple(
        Experiment(f"small/{name}", "none", world, agent, buffer, phases, schedule, (0, 1, 2, 3), 4)
        for name, buffer in buffers.items()
    )
)
with tempfile.TemporaryDirectory() as folder:
    run(pack, Path(folder))
    print(verdict_table(summarise([Path(folder)])))
print("Both models still know T2. FIFO's believes in a reward at T1 between the old and the new,")
print("because stale rows outlive the change; LoFo's were replaced by their new neighbors.")
