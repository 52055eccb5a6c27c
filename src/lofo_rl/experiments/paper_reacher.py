"""The paper's recurrent agents on ReacherLoCA and RandomizedReacherLoCA: its numbers and its runs.

A step is one action of the agent, two physics steps. The paper's tables for DreamerV2 count these;
those for PlaNet count physics steps, and are halved here.
"""

from dataclasses import replace

from lofo_rl.agents import Dreamer, PlaNet, WorldModel
from lofo_rl.agents.losses import BalancedKL, HingedKL
from lofo_rl.agents.planet import PLANET_MODEL
from lofo_rl.buffers import Fifo, Local
from lofo_rl.environments import RandomizedReacher, Reacher
from lofo_rl.experiments.experiment import Buffer, Experiment, Phase, Schedule
from lofo_rl.locality import Contrastive
from lofo_rl.networks import CNN, MLP, Chain, Pixels, linear
from lofo_rl.types import LofoError

WINDOW = 50
OPTIMA = 3934.0, 1975.0  # of the scripted controllers, in either world
STALE = 985.0  # staying at T1 in phase 2
REACHER = Reacher()
RANDOMIZED = RandomizedReacher()
READER = (
    CNN((32, 64, 128, 256), (4,) * 4, (2,) * 4),
    MLP((512, 64), "relu", "torch"),
    linear(32, "torch"),
)
REACHER_LOCALITY = Contrastive(
    Chain(READER),
    REACHER.spec.observation_shape,
    size=32,
    negative_target=50.0,
    shared_negatives=True,
    standardise=True,
)
# Of the paper's five epochs the first: further ones tell targets apart ever more finely, and arms
# less, so that phase 2 would seldom come back near what it should let go of.
RANDOMIZED_LOCALITY = replace(REACHER_LOCALITY, num_epochs=1)
# The paper's radius is 0.05. In these embeddings a sixth to a third of all states outside the
# T1-zone would then have a neighbor inside, and might be forgotten in phase 2; so 1 to 3 % have.
REACHER_RULE, RANDOMIZED_RULE = Local(0.015, 10), Local(0.02, 2)
# The paper's own numbers where these have others, for the runs `...-as_printed`.
PRINTED_LOCALITY = replace(
    REACHER_LOCALITY,
    encoder=Chain((Pixels(), *READER)),
    shared_negatives=False,
    standardise=False,
)
PRINTED_RADIUS = 0.05
LOCALITY_STEPS = 100_000
# Room for LoFo's state-buffers; a faithful run shows overflow 0. Many looks may need more.
REACHER_STARTS, RANDOMIZED_STARTS = 200_000, 500_000
# Products in half precision, as DreamerV2's own code has them: its update takes 3/4 of the time.
DREAMER = Dreamer(WorldModel(compute_dtype="bfloat16"))
# A step of this world costs less than PlaNet's 3 free nats, so its prior would learn too little.
PLANET = PlaNet(replace(PLANET_MODEL, compute_dtype="bfloat16", divergence=HingedKL(free=1.0)))
# DreamerV2's KL teaches the prior more than it holds the posterior back: imagined arms heed actions
# after fewer updates.
BALANCED_PLANET = replace(PLANET, model=replace(PLANET.model, divergence=BalancedKL()))
PRINTED_PLANET = replace(PLANET, model=replace(PLANET.model, divergence=PLANET_MODEL.divergence))
DREAMER_SCHEDULE = Schedule(
    warmup=25_000, evaluate_every=10_000, episodes=8, steps_per_update=5, pretraining=100
)
# Five random episodes; then 100 updates after every episode of 500 actions.
PLANET_SCHEDULE = Schedule(
    warmup=2_500, evaluate_every=7_500, episodes=5, steps_per_update=500, updates=100
)


def _phases(*steps: int) -> tuple[Phase, ...]:
    stales = OPTIMA[0], STALE
    return tuple(Phase(k + 1, n, optimum=OPTIMA[k], stale=stales[k]) for k, n in enumerate(steps))


DREAMER_PHASES = _phases(1_000_000, 1_500_000)
PLANET_PHASES = _phases(150_000, 250_000)
RANDOMIZED_PHASES = _phases(1_500_000, 3_500_000)


def _buffers(
    phases: tuple[Phase, ...],
    rule: Local,
    num_small: int,
    locality: Contrastive = REACHER_LOCALITY,
    num_starts: int = REACHER_STARTS,
) -> dict[str, Buffer]:
    """LoFo, FIFO that keeps everything, and FIFO small enough to be overwritten in phase 2."""
    num_steps = sum(p.steps for p in phases)
    num_slots = min(num_starts * WINDOW, num_steps + num_steps // REACHER.spec.time_limit)
    return {
        "lofo": Buffer(
            "LoFo",
            rule,
            num_starts,
            locality,
            LOCALITY_STEPS,
            window=WINDOW,
            num_slots=num_slots,
            repeats=True,
        ),
        "fifo-all": Buffer("FIFO everything", Fifo(), num_steps, window=WINDOW, repeats=True),
        "fifo-small": Buffer(f"FIFO {num_small:g}", Fifo(), num_small, window=WINDOW, repeats=True),
    }


def _runs(
    prefix: str,
    environment: Reacher,
    agent: Dreamer | PlaNet,
    phases: tuple[Phase, ...],
    schedule: Schedule,
    buffers: dict[str, Buffer],
    figure: str = "main curves, reward maps",
) -> tuple[Experiment, ...]:
    return tuple(
        Experiment(
            id=f"{prefix}/{name}",
            figure=figure,
            environment=environment,
            agent=agent,
            buffer=buffer,
            phases=phases,
            schedule=schedule,
        )
        for name, buffer in buffers.items()
    )


def _as_printed(buffers: dict[str, Buffer]) -> dict[str, Buffer]:
    """The same with the paper's own locality and radius."""
    return {
        f"{name}-as_printed": replace(
            buffer,
            name=f"{buffer.name}, as printed",
            rule=replace(buffer.rule, radius=PRINTED_RADIUS)
            if isinstance(buffer.rule, Local)
            else buffer.rule,
            locality=buffer.locality and PRINTED_LOCALITY,
        )
        for name, buffer in buffers.items()
    }


AS_PRINTED = "main curves, reward maps: with the printed numbers"
DREAMER_BUFFERS = _buffers(DREAMER_PHASES, REACHER_RULE, 100_000)
PLANET_BUFFERS = _buffers(PLANET_PHASES, REACHER_RULE, 25_000)
RANDOMIZED_BUFFERS = _buffers(
    RANDOMIZED_PHASES, RANDOMIZED_RULE, 100_000, RANDOMIZED_LOCALITY, RANDOMIZED_STARTS
)
REACHER_RUNS = (
    *_runs(
        "reacher/dreamer",
        REACHER,
        DREAMER,
        DREAMER_PHASES,
        DREAMER_SCHEDULE,
        DREAMER_BUFFERS,
    ),
    *_runs(
        "reacher/dreamer",
        REACHER,
        DREAMER,
        DREAMER_PHASES,
        DREAMER_SCHEDULE,
        _as_printed({"lofo": DREAMER_BUFFERS["lofo"]}),
        AS_PRINTED,
    ),
    *_runs(
        "reacher/planet",
        REACHER,
        PLANET,
        PLANET_PHASES,
        PLANET_SCHEDULE,
        PLANET_BUFFERS,
    ),
    *_runs(
        "reacher/planet",
        REACHER,
        BALANCED_PLANET,
        PLANET_PHASES,
        PLANET_SCHEDULE,
        {
            f"{name}-balanced_kl": replace(buffer, name=f"{buffer.name}, balanced KL")
            for name, buffer in PLANET_BUFFERS.items()
        },
        "none: a cure beside PlaNet's own KL",
    ),
    *_runs(
        "reacher/planet",
        REACHER,
        PRINTED_PLANET,
        PLANET_PHASES,
        PLANET_SCHEDULE,
        _as_printed(PLANET_BUFFERS),
        AS_PRINTED,
    ),
    *_runs(
        "randomized_reacher/dreamer",
        RANDOMIZED,
        DREAMER,
        RANDOMIZED_PHASES,
        DREAMER_SCHEDULE,
        RANDOMIZED_BUFFERS,
    ),
    *_runs(
        "randomized_reacher/dreamer",
        RANDOMIZED,
        DREAMER,
        RANDOMIZED_PHASES,
        DREAMER_SCHEDULE,
        _as_printed({"lofo": RANDOMIZED_BUFFERS["lofo"]}),
        AS_PRINTED,
    ),
)

# For two cores of a CPU and 20 minutes: small networks, short windows, larger learning rates.
SMALL_WINDOW, SMALL_RADIUS = 20, 0.01
SMALL_DREAMER = Dreamer.small(
    batch_size=8,
    window=SMALL_WINDOW,
    model_learning_rate=1e-3,
    actor_learning_rate=3e-4,
    value_learning_rate=3e-4,
)
SMALL_PHASES = _phases(25_000, 15_000)
SMALL_SCHEDULE = Schedule(warmup=1_000, evaluate_every=2_500, episodes=4, steps_per_update=5)
SMALL_LOCALITY = replace(
    REACHER_LOCALITY,
    encoder=Chain(
        (
            Pixels(),
            CNN((8, 16, 32, 64), (4,) * 4, (2,) * 4),
            MLP((64,), "relu", "torch"),
            linear(32, "torch"),
        )
    ),
    num_epochs=1,
    num_negatives=8,
    negative_target=50.0 * 8 / 128,
    shared_negatives=False,
    standardise=False,
)


def small(experiment: Experiment) -> Experiment:
    """A version of a Dreamer run for a CPU, to see it work and to build on; not a run of the paper.

    It keeps the run's world, the kind of its rule and its limit; everything else is small, the
    radius too: what is fitted in a minute tells fewer states apart.
    """
    if not isinstance(experiment.agent, Dreamer):
        raise LofoError(f"there is no small version of {experiment.id}: try reacher/dreamer/lofo")
    buffer = experiment.buffer
    rule = buffer.rule
    if isinstance(rule, Local):
        rule = replace(rule, radius=SMALL_RADIUS)
    num_steps = sum(p.steps for p in SMALL_PHASES)
    return replace(
        experiment,
        agent=SMALL_DREAMER,
        buffer=replace(
            buffer,
            rule=rule,
            capacity=min(buffer.capacity, num_steps),
            locality=buffer.locality and SMALL_LOCALITY,
            locality_steps=min(buffer.locality_steps, 2_500),
            window=SMALL_WINDOW,
            num_slots=None,
        ),
        phases=SMALL_PHASES,
        schedule=SMALL_SCHEDULE,
        seeds=(0,),
        judged=2,
        fraction=num_steps / sum(p.steps for p in experiment.phases),
    )
