"""Every run of the paper by name; its numbers live here and in `paper_*`, nowhere else.

`REGISTRY` maps an id such as `mountaincar/dyna_q/lofo` to its experiment, `SWEEPS` an id to many.
An experiment is an object, not a string of options: change a copy with `dataclasses.replace`.
"""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches

from lofo_rl.agents import DynaQ
from lofo_rl.buffers import Fifo, Local, Prioritized, Reservoir
from lofo_rl.environments import MiniGrid, MountainCar
from lofo_rl.environments.mountaincar import HIGH, LOW
from lofo_rl.experiments.experiment import Buffer, Experiment, Phase, Schedule
from lofo_rl.experiments.paper_minigrid import MINIGRID_RUNS, MINIGRID_SWEEPS
from lofo_rl.experiments.paper_reacher import REACHER_RUNS, small
from lofo_rl.experiments.sweeps import Axis, Sweep
from lofo_rl.functional import ByReward
from lofo_rl.locality import Contrastive, Handcrafted
from lofo_rl.networks import IDENTITY, MLP, Chain, Rescale, linear
from lofo_rl.types import LofoError

# MountainCarLoCA: tables "Experiment Setup" and "Hyperparameters" of the appendix.
MOUNTAINCAR = MountainCar()
MOUNTAINCAR_SCALING = Rescale(LOW, HIGH)
MOUNTAINCAR_AGENT = DynaQ((2,), 3, scaling=MOUNTAINCAR_SCALING)
MOUNTAINCAR_PHASES = (
    Phase(1, 1_500_000, optimum=1.933, stale=1.933),
    Phase(2, 3_000_000, optimum=1.316, stale=0.483),
)
MOUNTAINCAR_SCHEDULE = Schedule(warmup=50_000, evaluate_every=10_000, episodes=10)
MOUNTAINCAR_LOCALITY = Contrastive(
    Chain((MOUNTAINCAR_SCALING, MLP((64, 64, 64), "tanh", "torch"), linear(16, "torch"))), (2,)
)
MOUNTAINCAR_HANDCRAFTED = Handcrafted((1.0, 150**0.5))
LOCAL_CAPACITY = 40_000  # the paper states none; a faithful run shows overflow 0

MOUNTAINCAR_BUFFERS = {
    "lofo": (
        "main curves",
        Buffer("LoFo", Local(0.005, 1), LOCAL_CAPACITY, MOUNTAINCAR_LOCALITY, 100_000),
    ),
    "lofo-handcrafted": (
        "main curves",
        Buffer("Handcrafted-LoFo", Local(0.01, 1), LOCAL_CAPACITY, MOUNTAINCAR_HANDCRAFTED),
    ),
    "fifo-4.5e6": ("main curves", Buffer("FIFO 4.5e6", Fifo(), 4_500_000)),
    "fifo-3e6": ("buffer histograms", Buffer("FIFO 3e6", Fifo(), 3_000_000)),
    "fifo-3e5": ("main curves", Buffer("FIFO 3e5", Fifo(), 300_000)),
    "fifo-3e4": ("main curves", Buffer("FIFO 3e4", Fifo(), 30_000)),
    "reservoir-3e4": ("reservoir curves", Buffer("Reservoir 3e4", Reservoir(), 30_000)),
    "reservoir-3e5": ("reservoir curves", Buffer("Reservoir 3e5", Reservoir(), 300_000)),
}
# Sampling on top of forgetting: the paper calls such methods complementary, and runs none.
SAMPLING = "none: sampling on top of forgetting"
_LOFO = MOUNTAINCAR_BUFFERS["lofo"][1]
_FIFO = MOUNTAINCAR_BUFFERS["fifo-4.5e6"][1]
MOUNTAINCAR_SAMPLERS = {
    "lofo-by_error": replace(_LOFO, name="LoFo by error", sampler=Prioritized(beta=0.0)),
    "lofo-by_reward": replace(_LOFO, name="LoFo by reward", sampler=ByReward()),
    "fifo-4.5e6-by_reward": replace(_FIFO, name="FIFO 4.5e6 by reward", sampler=ByReward()),
}
# Other readings of what the paper leaves open, each beside the default.
MOUNTAINCAR_READINGS = {
    "lofo-raw_inputs": replace(MOUNTAINCAR_AGENT, raw_inputs=True),
    "lofo-one_hot_action": replace(MOUNTAINCAR_AGENT, one_hot_action=True),
    "lofo-direct_dynamics": replace(MOUNTAINCAR_AGENT, direct_dynamics=True),
}
# A cure, beside the faithful runs, for plans that circle a goal (docs/reproduce.md).
MOUNTAINCAR_CURE = replace(MOUNTAINCAR_AGENT, reward_at_end=True)
MOUNTAINCAR_CURED = {
    **{
        name: MOUNTAINCAR_BUFFERS[name][1]
        for name in ("lofo", "lofo-handcrafted", "fifo-4.5e6", "fifo-3e5", "reservoir-3e4")
    },
    **{name: MOUNTAINCAR_SAMPLERS[name] for name in ("lofo-by_error", "lofo-by_reward")},
}

# The demo: MiniGridLoCA seen as symbols, small enough for a laptop; not a run of the paper.
DEMO_WORLD = MiniGrid()
DEMO_STARTS = 248  # poses from which an episode can start
DEMO_LIMIT = 20
DEMO_AGENT = DynaQ(
    DEMO_WORLD.spec.observation_shape,
    DEMO_WORLD.spec.num_actions,
    encoder=IDENTITY,
    head=MLP((64, 64), "relu", "torch"),
    value=MLP((64, 64), "relu", "torch"),
    output_init="torch",
    model_learning_rate=4e-3,
    value_learning_rate=4e-3,
    adam_epsilon=1e-3,
    target_period=25,
    num_model_updates=1,
    num_planning_updates=2,
    planning_delay=2_000,
    batch_size=128,
    one_hot_action=True,
    stack_model=False,
)
DEMO_PHASES = (
    Phase(1, 16_000, optimum=3.716, stale=3.716),
    Phase(2, 20_000, optimum=1.821, stale=0.929),
)
DEMO_SCHEDULE = Schedule(warmup=1_000, evaluate_every=1_000, episodes=None)
DEMO_LOCALITY = Contrastive(Chain((MLP((64, 64, 64), "tanh", "torch"), linear(16, "torch"))), (20,))
DEMO_BUFFERS = {
    "lofo": Buffer("LoFo", Local(0.05, DEMO_LIMIT), 6_000, DEMO_LOCALITY, 25_000),
    "fifo-all": Buffer("FIFO everything", Fifo(), sum(p.steps for p in DEMO_PHASES)),
    "fifo-small": Buffer("FIFO of LoFo's size", Fifo(), DEMO_STARTS * DEMO_LIMIT),
}
# The locality of states and actions, with a third of the limit for each of three actions.
DEMO_BY_ACTION = replace(
    DEMO_BUFFERS["lofo"], name="LoFo by action", rule=Local(0.05, 7), group_by="action"
)
DEMO_SAMPLERS = {
    "lofo-by_error": replace(
        DEMO_BUFFERS["lofo"], name="LoFo by error", sampler=Prioritized(beta=0.0)
    ),
    "lofo-by_reward": replace(DEMO_BUFFERS["lofo"], name="LoFo by reward", sampler=ByReward()),
}


def _mountaincar(name: str, figure: str, agent: DynaQ, buffer: Buffer) -> Experiment:
    return Experiment(
        id=f"mountaincar/dyna_q/{name}",
        figure=figure,
        environment=MOUNTAINCAR,
        agent=agent,
        buffer=buffer,
        phases=MOUNTAINCAR_PHASES,
        schedule=MOUNTAINCAR_SCHEDULE,
    )


def _demo(name: str, figure: str, buffer: Buffer) -> Experiment:
    return Experiment(
        id=f"demo/{name}",
        figure=figure,
        environment=DEMO_WORLD,
        agent=DEMO_AGENT,
        buffer=buffer,
        phases=DEMO_PHASES,
        schedule=DEMO_SCHEDULE,
        seeds=(0, 1, 2),
        judged=5,
    )


DEMO = tuple(
    _demo(name, "none: a laptop's version of the main curves", buffer)
    for name, buffer in DEMO_BUFFERS.items()
)
REGISTRY: dict[str, Experiment] = {
    experiment.id: experiment
    for experiment in (
        *DEMO,
        _demo("lofo-same_action", "none: a cure beside the faithful run", DEMO_BY_ACTION),
        *(
            _demo(name, SAMPLING, buffer)  # not in DEMO: asked for by name
            for name, buffer in DEMO_SAMPLERS.items()
        ),
        *(
            _mountaincar(name, figure, MOUNTAINCAR_AGENT, buffer)
            for name, (figure, buffer) in MOUNTAINCAR_BUFFERS.items()
        ),
        *(
            _mountaincar(
                f"{name}-reward_at_end",
                "none: a cure beside the faithful run",
                MOUNTAINCAR_CURE,
                replace(buffer, name=f"{buffer.name}, reward at end"),
            )
            for name, buffer in MOUNTAINCAR_CURED.items()
        ),
        *(
            _mountaincar(name, "none: another reading of a gap", agent, _LOFO)
            for name, agent in MOUNTAINCAR_READINGS.items()
        ),
        *(
            _mountaincar(name, SAMPLING, MOUNTAINCAR_AGENT, buffer)
            for name, buffer in MOUNTAINCAR_SAMPLERS.items()
        ),
        *MINIGRID_RUNS,
        *REACHER_RUNS,
    )
}
# Versions of named runs for other purposes than the paper's.
PRESETS: dict[str, Callable[[Experiment], Experiment]] = {"small": small}

# What the paper searched for its tables. Here beta is the larger and the radius the smaller of the
# two in the base, so of all settings with limit 1 the base is the one that holds most.
SWEEPS: dict[str, Sweep] = {
    sweep.id: sweep
    for sweep in (
        Sweep(
            id="mountaincar/dyna_q/search",
            figure="none: the search behind the tables",
            base="mountaincar/dyna_q/lofo",
            axes=(
                Axis("beta", "locality.negative_target", (1.0, 10.0)),
                Axis("radius", "rule.radius", (0.01, 0.005)),
                Axis("limit", "rule.limit", (1, 2, 5, 10)),
            ),
        ),
        *MINIGRID_SWEEPS,
    )
}


def find(run_id: str) -> Experiment:
    """The experiment of that name."""
    found = find_all(run_id)
    if len(found) > 1:
        raise LofoError(f"{run_id} names {len(found)} runs; one of them is {found[0].id}")
    return found[0]


def find_printed(name: str) -> Experiment | None:
    """The run with the paper's own numbers, where the run of that name has others."""
    return REGISTRY.get(f"{name.removesuffix('-balanced_kl')}-as_printed")


def find_all(name: str) -> tuple[Experiment, ...]:
    """The experiment of that name, or all experiments of the sweep of that name."""
    if name in REGISTRY:
        return (REGISTRY[name],)
    for sweep in SWEEPS.values():
        experiments = sweep.expand(REGISTRY[sweep.base])
        if name == sweep.id:
            return experiments
        if named := tuple(e for e in experiments if e.id == name):
            return named
    known = [*REGISTRY, *SWEEPS]
    if begun_alike := [run_id for run_id in known if name in run_id]:
        raise LofoError(f"no run is called {name!r}; there are: {', '.join(begun_alike)}")
    near = get_close_matches(name, known)
    guess = f"perhaps you mean {' or '.join(near)}; " if near else ""
    raise LofoError(f"no run is called {name!r}; {guess}`lofo list` shows all")
