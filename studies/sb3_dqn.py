"""What LoFo changes in Stable-Baselines3's own DQN and SAC, when only the buffer is replaced.

    python studies/sb3_dqn.py minigrid cartpole --processes 2
    python studies/sb3_dqn.py minigrid --table

Tasks: minigrid, minigrid-noise (one action in ten is random), mountaincar, cartpole (nothing
changes), reacher (SAC). First every buffer is tried with each of the task's settings, on seeds
that are not reported; then its best setting runs on the reported seeds. A run is one line of the
task's file: a finished run is never repeated, so the study can be stopped at any time. Needs
`stable-baselines3` and the extras `gym` and `lab`.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback

import lofo_rl.adapters.gymnasium  # noqa: F401  # registers the ids
from lofo_rl import Local, Reservoir
from lofo_rl.adapters.sb3 import LoFoReplayBuffer
from lofo_rl.environments import MiniGrid
from lofo_rl.experiments import find

Evaluate = Callable[[Any, int], float]  # from a model and a phase to the mean return
JUDGED = 5  # the last evaluations of a phase, whose mean is its result


@dataclass(frozen=True)
class Arm:
    """One buffer. `size` None: room for every step."""

    rule: str  # fifo, reservoir, local
    size: int | None = None
    radius: float = 0.0
    limit: int = 1
    by_action: bool = False


@dataclass(frozen=True)
class Study:
    """One task, the agent's settings, and the buffers that are compared."""

    env: str
    steps: tuple[int, ...]  # of each phase
    evaluate_every: int
    algorithm: str
    settings: dict[str, Any]
    arms: dict[str, Arm]
    optima: tuple[float, ...]  # the best return of each phase
    evaluate: Callable[["Study"], Evaluate]
    tries: tuple[dict[str, Any], ...]  # changes of the settings, of which each arm gets the best
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...] = (100,)
    tuned_on: str = ""  # another task, whose best settings are taken
    noise: float = 0.0  # share of actions that are replaced by random ones, in training
    scale: tuple[float, ...] = ()  # the embedding is the observation times this


class RandomActions(gymnasium.ActionWrapper):
    """Replaces a share of the actions by random ones."""

    def __init__(self, env: gymnasium.Env, share: float, seed: int) -> None:
        super().__init__(env)
        self.share, self.rng = share, np.random.default_rng(seed)

    def action(self, action: Any) -> Any:
        """The action that is taken."""
        if self.rng.random() < self.share:
            return int(self.rng.integers(self.action_space.n))
        return action


def evaluate_every_pose(study: Study) -> Evaluate:
    """MiniGrid without sampling: the greedy policy's return, averaged over all starts."""
    world = MiniGrid()
    codes = world.codes()
    observations = np.asarray(world.decode(codes))
    moves = [world.advance(world.pose(codes), np.int32(action)) for action in range(3)]
    following = np.stack([np.asarray(world.encode(pose)) for pose, *_ in moves], -1)
    at_goal = np.stack([np.stack([np.asarray(x) for x in goals], -1) for _, *goals in moves], 1)
    starts = np.flatnonzero(np.asarray(world.evaluation_start()))

    def evaluate(model: Any, phase: int) -> float:
        actions, _ = model.predict(observations, deterministic=True)
        rewards = np.array([(4.0, 2.0), (1.0, 2.0)][phase - 1])
        code, weight, total = starts, np.ones(len(starts)), np.zeros(len(starts))
        for _ in range(world.spec.time_limit):
            own = actions[code]
            total += weight * (at_goal[code, own] @ rewards)
            weight = weight * world.spec.discount * ~at_goal[code, own].any(-1)
            code = following[code, own]
        return float(total.mean())

    return evaluate


def evaluate_episodes(study: Study, num: int = 20) -> Evaluate:
    """The greedy policy's mean discounted return over episodes with fixed seeds."""
    is_loca = study.env.startswith("lofo/")
    options: dict[str, Any] = {"evaluation": True} if is_loca else {}
    if "Reacher" in study.env:
        options["observation"] = "state"
    discount = 1.0 if "Reacher" in study.env or not is_loca else 0.99
    env = gymnasium.make(study.env, **options)

    def evaluate(model: Any, phase: int) -> float:
        returns = np.zeros(num)
        for episode in range(num):
            more = {"options": {"phase": phase, "evaluation": True}} if is_loca else {}
            observation, _ = env.reset(seed=episode, **more)
            weight, is_over = 1.0, False
            while not is_over:
                action, _ = model.predict(observation, deterministic=True)
                observation, reward, terminated, truncated, _ = env.step(action)
                returns[episode] += weight * float(reward)
                weight, is_over = weight * discount, terminated or truncated
        return float(returns.mean())

    return evaluate


def arms(radius: float, limits: tuple[int, ...], small: int) -> dict[str, Arm]:
    """LoFo by action and per state at several limits, and what it is compared with."""
    found = {f"by-action-{n}": Arm("local", None, radius, n, True) for n in limits}
    found |= {f"per-state-{3 * n}": Arm("local", None, radius, 3 * n) for n in limits}
    return found | {
        "fifo-all": Arm("fifo"),
        f"fifo-{small}": Arm("fifo", small),
        f"reservoir-{small}": Arm("reservoir", small),
    }


def optima(run_id: str) -> tuple[float, ...]:
    """The exact optima of a named run's phases."""
    return tuple(phase.optimum for phase in find(run_id).phases)


DQN: dict[str, Any] = {
    "batch_size": 64,
    "gamma": 0.99,
    "train_freq": 1,
    "gradient_steps": 1,
    "learning_starts": 1_000,
    "target_update_interval": 100,
    "exploration_initial_eps": 0.5,
    "exploration_final_eps": 0.5,
    "policy_kwargs": {"net_arch": [64, 64]},
}
RATES = tuple({"learning_rate": rate} for rate in (2.5e-4, 5e-4, 1e-3))
MINIGRID = Study(
    env="lofo/MiniGridLoCA-v0",
    steps=(20_000, 40_000),
    evaluate_every=1_000,
    algorithm="DQN",
    settings=DQN,
    arms=arms(0.5, (2, 7, 14), 5_000),  # two poses that differ are at least 1.41 apart
    optima=optima("demo/lofo"),
    evaluate=evaluate_every_pose,
    tries=RATES,
    seeds=tuple(range(10)),
    tuning_seeds=(100, 101),
)
STUDIES = {
    "minigrid": MINIGRID,
    "minigrid-noise": replace(MINIGRID, noise=0.1, tuned_on="minigrid", seeds=tuple(range(5))),
    "mountaincar": Study(
        env="lofo/MountainCarLoCA-v0",
        steps=(60_000, 60_000),
        evaluate_every=5_000,
        algorithm="DQN",
        settings=DQN | {"policy_kwargs": {"net_arch": [64, 64, 64]}},
        arms=arms(0.03, (1, 3), 5_000),
        optima=optima("mountaincar/dyna_q/lofo"),
        evaluate=evaluate_episodes,
        tries=RATES,
        seeds=tuple(range(5)),
        scale=(1.0, 12.25),  # speeds weigh as in the paper's handcrafted distance
    ),
    "cartpole": Study(
        env="CartPole-v1",
        steps=(50_000,),
        evaluate_every=2_500,
        algorithm="DQN",
        settings=DQN | {"exploration_final_eps": 0.05, "target_update_interval": 500},
        arms=arms(0.08, (1, 3), 5_000),
        optima=(500.0,),
        evaluate=evaluate_episodes,
        tries=RATES,
        seeds=tuple(range(5)),
    ),
    "reacher": Study(
        env="lofo/ReacherLoCA-v0",
        steps=(40_000, 40_000),
        evaluate_every=4_000,
        algorithm="SAC",
        settings={"batch_size": 128, "train_freq": 2, "learning_starts": 1_000},
        arms={
            "lofo-10": Arm("local", None, 0.15, 10),
            "lofo-3": Arm("local", None, 0.15, 3),
            "fifo-all": Arm("fifo"),
            "fifo-5000": Arm("fifo", 5_000),
        },
        optima=optima("reacher/dreamer/lofo"),
        evaluate=evaluate_episodes,
        tries=tuple({"learning_rate": rate} for rate in (3e-4, 1e-3)),
        seeds=tuple(range(3)),
        scale=(1.0, 1.0, 1.0, 1.0, 0.02, 0.02, 1.0, 1.0),
    ),
}


@dataclass(frozen=True)
class Job:
    """One run: `changes` are of the task's settings."""

    task: str
    arm: str
    seed: int
    changes: dict[str, Any]


class Recorder(BaseCallback):
    """Evaluates now and then."""

    def __init__(self, study: Study) -> None:
        super().__init__()
        self.study, self.evaluate, self.phase = study, study.evaluate(study), 1
        self.rows: dict[str, list[float]] = {"step": [], "phase": [], "value": [], "size": []}

    def _on_step(self) -> bool:
        if self.num_timesteps % self.study.evaluate_every == 0:
            memory = self.model.replay_buffer
            size = len(memory.memory) if isinstance(memory, LoFoReplayBuffer) else memory.size()
            value = round(self.evaluate(self.model, self.phase), 5)
            row = {"step": self.num_timesteps, "phase": self.phase, "value": value, "size": size}
            for name, x in row.items():
                self.rows[name].append(x)
        return True


def make_buffer(study: Study, arm: Arm) -> dict[str, Any]:
    """The arguments of the algorithm that choose the buffer."""
    size = arm.size or sum(study.steps)
    if arm.rule == "fifo":
        return {"replay_buffer_class": ReplayBuffer, "buffer_size": size}
    scale = np.array(study.scale or 1.0, np.float32)
    options: dict[str, Any] = {"rule": Reservoir()}
    if arm.rule == "local":
        options = {
            "rule": Local(arm.radius, arm.limit),
            "locality": lambda observations: observations * scale,
            "group_by": "action" if arm.by_action else None,
        }
    return {
        "replay_buffer_class": LoFoReplayBuffer,
        "replay_buffer_kwargs": options,
        "buffer_size": size,
    }


def run(job: Job) -> dict[str, Any]:
    """Train one agent through all phases; what is returned is one line of the task's file."""
    torch.set_num_threads(1)
    study = STUDIES[job.task]
    arm, settings = study.arms[job.arm], study.settings | job.changes
    env = gymnasium.make(study.env, **({"observation": "state"} if "Reacher" in study.env else {}))
    if study.noise:
        env = RandomActions(env, study.noise, job.seed)
    model = getattr(stable_baselines3, study.algorithm)(
        "MlpPolicy", env, seed=job.seed, device="cpu", **settings, **make_buffer(study, arm)
    )
    begin, recorder = time.monotonic(), Recorder(study)
    for recorder.phase, steps in enumerate(study.steps, 1):
        if recorder.phase > 1:
            env.get_wrapper_attr("set_phase")(recorder.phase)
        model.learn(steps, callback=recorder, reset_num_timesteps=recorder.phase == 1)
    memory = model.replay_buffer
    return {
        "task": job.task, "arm": job.arm, "seed": job.seed, "changes": job.changes,
        "buffer": asdict(arm), "env": study.env, "algorithm": study.algorithm,
        "settings": settings, "noise": study.noise, "scale": study.scale, "optima": study.optima,
        **recorder.rows,
        "metrics": memory.metrics() if isinstance(memory, LoFoReplayBuffer) else {},
        "seconds": round(time.monotonic() - begin, 1),
        "provenance": provenance(),
    }  # fmt: skip


def provenance() -> dict[str, Any]:
    """Where and with what a run was made."""
    names = ("stable-baselines3", "torch", "gymnasium", "numpy", "jax")
    versions = {name: metadata.version(name) for name in names}
    return {
        "commit": os.environ.get("LOFO_COMMIT", "unknown"),
        "versions": versions | {"python": platform.python_version()},
        "cores": os.cpu_count(),
        "shared": True,  # other programs ran on this machine
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def read(path: Path) -> list[dict[str, Any]]:
    """The finished runs of a task; a line that was cut off is left out."""
    lines = path.read_text().splitlines() if path.exists() else []
    runs = []
    for line in lines:
        try:
            runs.append(json.loads(line))
        except ValueError:
            print(f"{path} has a damaged line; its run is repeated", file=sys.stderr)
    return runs


def results(run: dict[str, Any]) -> list[float]:
    """Of each phase, the mean of the last evaluations in percent of the optimum."""
    phases, values = np.array(run["phase"]), np.array(run["value"])
    each = [values[phases == k][-JUDGED:].mean() for k in range(1, len(run["optima"]) + 1)]
    return [float(100 * own / best) for own, best in zip(each, run["optima"], strict=True)]


def is_tuning(run: dict[str, Any]) -> bool:
    """Whether this run's seed is for tuning only."""
    return run["seed"] in STUDIES[run["task"]].tuning_seeds


def best_changes(folder: Path, task: str, arm: str) -> dict[str, Any] | None:
    """The tried setting with the best mean over phases and seeds; None: some are not yet done."""
    study = STUDIES[STUDIES[task].tuned_on or task]
    scores: dict[str, list[float]] = {}
    for one in read(folder / f"{STUDIES[task].tuned_on or task}.jsonl"):
        if is_tuning(one) and one["arm"] == arm:
            scores.setdefault(json.dumps(one["changes"]), []).append(float(np.mean(results(one))))
    wanted = {json.dumps(changes) for changes in study.tries}
    num = len(study.tuning_seeds)
    if set(scores) != wanted or any(len(own) != num for own in scores.values()):
        return None
    found: dict[str, Any] = json.loads(max(scores, key=lambda key: np.mean(scores[key])))
    return found


def jobs_to_do(folder: Path, task: str) -> Iterator[Job]:
    """The runs that are missing and can be started now."""
    study = STUDIES[task]
    done = {
        (one["arm"], one["seed"], json.dumps(one["changes"]))
        for one in read(folder / f"{task}.jsonl")
    }
    for arm in study.arms:
        tuning = [] if study.tuned_on else list(itertools.product(study.tuning_seeds, study.tries))
        best = best_changes(folder, task, arm)
        final = [(seed, best) for seed in study.seeds] if best is not None else []
        for seed, changes in tuning + final:
            if (arm, seed, json.dumps(changes)) not in done:
                yield Job(task, arm, seed, changes)


def run_all(folder: Path, tasks: list[str], num_processes: int) -> None:
    """Run whatever is missing, several runs at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    pending: dict[Any, Job] = {}
    with ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn")) as pool:
        while True:
            for task in tasks:
                for job in jobs_to_do(folder, task):
                    if job not in pending.values():
                        pending[pool.submit(run, job)] = job
            if not pending:
                return
            future = next(as_completed(pending))
            job = pending.pop(future)
            found = future.result()
            with open(folder / f"{job.task}.jsonl", "a") as file:
                file.write(json.dumps(found) + "\n")
                file.flush()
                os.fsync(file.fileno())
            words = ", ".join(f"{x:.0f} %" for x in results(found))
            name = f"{job.task} {job.arm} seed {job.seed} {job.changes}"
            print(f"{name}: {words}, {found['seconds']:.0f} s", file=sys.stderr)


def table(folder: Path, task: str) -> str:
    """Mean and standard error over seeds of each phase's last evaluations, of the optimum."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for one in read(folder / f"{task}.jsonl"):
        if not is_tuning(one):
            runs.setdefault(one["arm"], []).append(one)
    num = len(STUDIES[task].optima)
    phases = [f"phase {k}, % of the optimum" for k in range(1, num + 1)]
    lines = ["| " + " | ".join(["buffer", "seeds", *phases, "worst seed", "held", "set to"]) + " |"]
    lines.append("|---" * (num + 5) + "|")
    for arm, own in sorted(runs.items(), key=lambda pair: list(STUDIES[task].arms).index(pair[0])):
        values = np.array([results(one) for one in own])
        error = values.std(0, ddof=1) / np.sqrt(len(own)) if len(own) > 1 else values[0] * np.nan
        cells = [f"{m:.1f} ± {e:.1f}" for m, e in zip(values.mean(0), error, strict=True)]
        held = f"{np.mean([one['size'][-1] for one in own]):,.0f}"
        changes = ", ".join(f"{k}={v:g}" for k, v in own[0]["changes"].items())
        cells = [arm, str(len(own)), *cells, f"{values[:, -1].min():.0f}", held, changes]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", choices=STUDIES)
    parser.add_argument("--out", type=Path, default=Path("results/studies/sb3_dqn"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the results so far")
    given = parser.parse_args()
    if given.table:
        for task in given.tasks:
            print(f"{task}\n\n{table(given.out, task)}\n")
        return
    run_all(given.out, given.tasks, given.processes)


if __name__ == "__main__":
    main()
