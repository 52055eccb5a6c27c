"""The paper's MiniGridLoCA from pixels: its numbers, its runs and its two sweeps."""

from dataclasses import replace

from lofo_rl.agents import DynaQ
from lofo_rl.buffers import Fifo, Local
from lofo_rl.environments import MiniGridPixels
from lofo_rl.experiments.experiment import Buffer, Experiment, Phase, Schedule
from lofo_rl.experiments.sweeps import Axis, Sweep
from lofo_rl.locality import Contrastive
from lofo_rl.networks import CNN, MLP, Chain, Pixels, TransposedCNN, linear

MINIGRID = MiniGridPixels()
MINIGRID_ENCODER = CNN((32, 64, 64), (8, 3, 3), (4, 2, 2))
MINIGRID_HEAD = MLP((512,), "relu", "torch")
MINIGRID_AGENT = DynaQ(
    MINIGRID.spec.observation_shape,
    MINIGRID.spec.num_actions,
    scaling=Pixels(),
    encoder=MINIGRID_ENCODER,
    # Drawn pictures and their patches are half the size in bfloat16, and they are what takes time.
    decoder=TransposedCNN((64, 32, 3), (6, 6, 5), (1, 4, 3), dtype="bfloat16"),
    head=MINIGRID_HEAD,
    value=Chain((replace(MINIGRID_ENCODER, dtype="bfloat16"), MINIGRID_HEAD)),
    output_init="torch",
    model_learning_rate=1e-4,
    value_learning_rate=6.25e-5,
    target_period=5_000,
    num_model_updates=1,
    num_planning_updates=1,
    batch_size=128,
    one_hot_action=True,
)
MINIGRID_PHASES = (
    Phase(1, 300_000, optimum=3.716, stale=3.716),
    Phase(2, 1_500_000, optimum=1.821, stale=0.929),
)
MINIGRID_SCHEDULE = Schedule(warmup=2_000, evaluate_every=10_000, episodes=10)
MINIGRID_LOCALITY = Contrastive(
    Chain((Pixels(), MINIGRID_ENCODER, MINIGRID_HEAD, linear(16, "torch"))),
    MINIGRID.spec.observation_shape,
)
# The paper's table says 1; its text, its sweeps and the samples it counts say 100.
MINIGRID_LIMIT = 100
MINIGRID_BUFFERS = {
    "lofo": (
        "main curves",
        Buffer(
            "LoFo",
            Local(0.001, MINIGRID_LIMIT),
            MINIGRID.num_codes * MINIGRID_LIMIT,  # no pose keeps more than the limit
            MINIGRID_LOCALITY,
            25_000,
        ),
    ),
    # The locality of states and actions, with a third of the limit for each of three actions.
    "lofo-same_action": (
        "none: a cure beside the faithful run",
        Buffer(
            "LoFo by action",
            Local(0.001, MINIGRID_LIMIT // 3),
            MINIGRID.num_codes * MINIGRID_LIMIT,
            MINIGRID_LOCALITY,
            25_000,
            group_by="action",
        ),
    ),
    "fifo-1.8e6": ("main curves", Buffer("FIFO 1.8e6", Fifo(), 1_800_000)),
    "fifo-9e5": ("main curves", Buffer("FIFO 9e5", Fifo(), 900_000)),
    "fifo-3e5": ("main curves, reward maps", Buffer("FIFO 3e5", Fifo(), 300_000)),
    "fifo-2.56e4": ("main curves", Buffer("FIFO 2.56e4", Fifo(), 25_600)),
}


def _minigrid(name: str, figure: str, buffer: Buffer) -> Experiment:
    return Experiment(
        id=f"minigrid/dyna_q/{name}",
        figure=figure,
        environment=MINIGRID,
        agent=MINIGRID_AGENT,
        buffer=buffer,
        phases=MINIGRID_PHASES,
        schedule=MINIGRID_SCHEDULE,
    )


MINIGRID_RUNS = tuple(
    _minigrid(name, figure, buffer) for name, (figure, buffer) in MINIGRID_BUFFERS.items()
)
MINIGRID_SWEEPS = (
    Sweep(
        id="minigrid/dyna_q/limits",
        figure="limit curves",
        base="minigrid/dyna_q/lofo",
        axes=(Axis("limit", "rule.limit", (50, 75, 100, 150)),),
    ),
    Sweep(
        id="minigrid/dyna_q/radii",
        figure="radius curves",
        base="minigrid/dyna_q/lofo",
        axes=(Axis("radius", "rule.radius", (0.001, 0.01, 0.03, 0.1, 0.3)),),
    ),
)
