"""What LoFo changes in Stable-Baselines3's own DQN and SAC, when only the buffer is replaced.

    python studies/sb3_dqn.py minigrid --seeds 0-9 --out results/studies/sb3_dqn
    python studies/sb3_dqn.py minigrid --table --out results/studies/sb3_dqn

Tasks: minigrid, minigrid-noise (one action in ten is random), mountaincar, cartpole (nothing
changes), reacher (SAC). A run is one arm and one seed, its rows are one file; a finished run is
never repeated. Needs `stable-baselines3` and the extras `gym` and `jax`.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
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
from lofo_rl.adapters.stable_baselines3 import LoFoReplayBuffer
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
    "learning_rate": 5e-4,
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
MINIGRID = Study(
    "lofo/MiniGridLoCA-v0", (20_000, 40_000), 1_000, "DQN", DQN,
    # Two poses that differ are at least 1.41 apart.
    arms(0.5, (2, 7, 14), 5_000), optima("demo/lofo"), evaluate_every_pose,
)  # fmt: skip
STUDIES = {
    "minigrid": MINIGRID,
    "minigrid-noise": replace(MINIGRID, noise=0.1),
    "mountaincar": Study(
        "lofo/MountainCarLoCA-v0", (60_000, 60_000), 5_000, "DQN",
        DQN | {"policy_kwargs": {"net_arch": [64, 64, 64]}},
        arms(0.05, (1, 3), 5_000), optima("mountaincar/dyna_q/lofo"), evaluate_episodes,
        scale=(1.0, 12.25),  # speeds weigh as in the paper's handcrafted distance
    ),
    "cartpole": Study(
        "CartPole-v1", (50_000,), 2_500, "DQN",
        DQN | {"exploration_final_eps": 0.05, "target_update_interval": 500},
        arms(0.1, (1, 3), 5_000), (500.0,), evaluate_episodes,
    ),
    "reacher": Study(
        "lofo/ReacherLoCA-v0", (30_000, 30_000), 3_000, "SAC",
{"learning_rate": 1e-3, "batch_size": 128, "train_freq": 2, "learning_starts": 1_000},
        {
            "lofo-10": Arm("local", None, 0.15, 10),
            "lofo-3": Arm("local", None, 0.15, 3),
            "fifo-all": Arm("fifo"),
            "fifo-5000": Arm("fifo", 5_000),
        },
        optima("reacher/dreamer/lofo"), evaluate_episodes,
        scale=(1.0, 1.0, 1.0, 1.0, 0.02, 0.02),
    ),
}  # fmt: skip


class Recorder(BaseCallback):
    """Evaluates now and then, and writes rows."""

    def __init__(self, study: Study, evaluate: Evaluate, write: Callable[..., None]) -> None:
        super().__init__()
        self.study, self.evaluate, self.write, self.phase = study, evaluate, write, 1

    def _on_step(self) -> bool:
        if self.num_timesteps % self.study.evaluate_every == 0:
            memory = self.model.replay_buffer
            size = len(memory.memory) if isinstance(memory, LoFoReplayBuffer) else memory.size()
            value = self.evaluate(self.model, self.phase)
            self.write(step=self.num_timesteps, phase=self.phase, value=value, size=size)
        return True


def make_buffer(study: Study, arm: Arm, num_steps: int) -> dict[str, Any]:
    """The arguments of the algorithm that choose the buffer."""
    size = arm.size or num_steps
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


def run(task: str, name: str, arm: Arm, seed: int, study: Study, path: Path) -> None:
    """One arm and seed; the file appears when the run is complete."""
    part = path.with_suffix(".part")
    env = gymnasium.make(study.env, **({"observation": "state"} if "Reacher" in study.env else {}))
    if study.noise:
        env = RandomActions(env, study.noise, seed)
    model = getattr(stable_baselines3, study.algorithm)(
        "MlpPolicy", env, seed=seed, device="cpu", **study.settings,
        **make_buffer(study, arm, sum(study.steps)),
    )  # fmt: skip
    with open(part, "w") as file:

        def write(**row: Any) -> None:
            file.write(json.dumps(row) + "\n")

        write(header=provenance() | {
            "task": task, "arm": name, "seed": seed, "buffer": asdict(arm), "env": study.env,
            "steps": study.steps, "optima": study.optima, "algorithm": study.algorithm,
            "settings": study.settings, "noise": study.noise, "scale": study.scale,
        })  # fmt: skip
        begin, recorder = time.monotonic(), Recorder(study, study.evaluate(study), write)
        for recorder.phase, steps in enumerate(study.steps, 1):
            if recorder.phase > 1:
                env.get_wrapper_attr("set_phase")(recorder.phase)
            model.learn(steps, callback=recorder, reset_num_timesteps=recorder.phase == 1)
        write(seconds=time.monotonic() - begin)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def provenance() -> dict[str, Any]:
    """Where and with what the rows were made."""
    names = ("lofo-rl", "stable-baselines3", "torch", "gymnasium", "numpy", "jax")
    versions = {name: metadata.version(name) for name in names if name != "lofo-rl"}
    return {
        "commit": os.environ.get("LOFO_COMMIT", "unknown"),
        "versions": versions | {"python": platform.python_version()},
        "cores": os.cpu_count(),
        "shared": True,  # other programs ran on this machine
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run's header and its evaluations."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return rows[0]["header"], [row for row in rows if "value" in row]


def table(folder: Path) -> str:
    """Mean and standard error over seeds of each phase's last evaluations, of the optimum."""
    arms: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        arms.setdefault(path.stem.rpartition("-seed")[0], []).append(path)
    lines = ["| buffer | seeds | phases, % of the optimum | held | per seed, last phase |"]
    lines += ["|---|---|---|---|---|"]
    for name, paths in arms.items():
        results, sizes = [], []
        for path in paths:
            header, rows = read(path)
            phases = range(1, len(header["optima"]) + 1)
            values = [[r["value"] for r in rows if r["phase"] == p][-JUDGED:] for p in phases]
            means = [np.mean(own) for own in values]
            results.append(100 * np.array(means) / header["optima"])
            sizes.append(rows[-1]["size"])
        results_ = np.array(results)
        error = results_.std(0, ddof=1) / np.sqrt(len(paths)) if len(paths) > 1 else [np.nan] * 2
        words = ", ".join(
            f"{m:.1f} ± {e:.1f}" for m, e in zip(results_.mean(0), error, strict=False)
        )
        each = ", ".join(f"{x:.0f}" for x in results_[:, -1])
        lines.append(f"| {name} | {len(paths)} | {words} | {np.mean(sizes):,.0f} | {each} |")
    return "\n".join(lines)


def seeds_of(text: str) -> list[int]:
    """0-9 or 0,2,5 as numbers."""
    first, _, last = text.partition("-")
    return [*range(int(first), int(last) + 1)] if last else [int(x) for x in text.split(",")]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=STUDIES)
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("0-9"))
    parser.add_argument("--arms", nargs="*", help="all if left out")
    parser.add_argument("--out", type=Path, default=Path("runs/sb3_dqn"))
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="of the agent")
    parser.add_argument("--table", action="store_true", help="print the results so far")
    given = parser.parse_args()
    study, folder = STUDIES[given.task], given.out / given.task
    changes = dict(pair.split("=") for pair in given.set)
    if changes:
        changed = {name: json.loads(value) for name, value in changes.items()}
        study = replace(study, settings=study.settings | changed)
        folder = folder / "-".join(given.set)
    if given.table:
        print(table(folder))
        return
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for seed in given.seeds:
        for name in given.arms or study.arms:
            if (path := folder / f"{name}-seed{seed}.jsonl").exists():
                continue
            begin = time.monotonic()
            run(given.task, name, study.arms[name], seed, study, path)
            _, rows = read(path)
            last = np.mean([row["value"] for row in rows[-JUDGED:]]) / study.optima[-1]
            print(f"{path.stem}: {last:.0%}, {time.monotonic() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
