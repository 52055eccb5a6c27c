"""Training speed with LoFo in its hosts, beside the same agent with the host's own buffer.

    python benchmarks/adapters.py [--rounds 15] [--out FILE]

Two agents of each kind train in turns, in one process and on one core: one with the host's FIFO
buffer, one with LoFo, both with 30 000 transitions held (images: 5 000 at most). The ratio is the speed with LoFo divided
by that with the host's buffer. Needs what `make test-adapters` installs, and the extra `gym`.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GOAL = 0.95
HELD = 30_000
Train = Callable[[int], None]  # for a number of environment steps


def sb3(algorithm: str, env: str, radius: float, **settings: Any) -> tuple[Train, Train, Any]:
    """An algorithm of Stable-Baselines3 on vectors; its buffers are filled by random actions."""
    import gymnasium
    import stable_baselines3

    from lofo_rl.adapters.sb3 import LoFoReplayBuffer

    rng = np.random.default_rng(0)
    trains, buffers = [], []
    for lofo in (False, True):
        options: dict[str, Any] = {}
        if lofo:
            own = {"radius": radius, "limit": 1, "group_by": None}
            options = {"replay_buffer_class": LoFoReplayBuffer, "replay_buffer_kwargs": own}
        # They hardly learn, so that both act alike and their episodes have the same lengths.
        model = getattr(stable_baselines3, algorithm)(
            "MlpPolicy", gymnasium.make(env), seed=0, device="cpu", learning_starts=0,
            buffer_size=2 * HELD if lofo else HELD, learning_rate=1e-9, **options, **settings,
        )  # fmt: skip
        space, actions = model.observation_space, model.action_space
        low, high = np.maximum(space.low, -3), np.minimum(space.high, 3)
        while model.replay_buffer.size() < HELD:
            obs = rng.uniform(low, high, (2, 1, *space.shape)).astype(np.float32)
            action = np.array([actions.sample()])
            model.replay_buffer.add(*obs, action, np.zeros(1), np.zeros(1), [{}])
        model.learn(1)  # sets up

        def train(num: int, model: Any = model) -> None:
            model.learn(num, reset_num_timesteps=False)

        trains.append(train)
        buffers.append(model.replay_buffer)
    return trains[0], trains[1], buffers[1]


def sb3_images() -> tuple[Train, Train, Any]:
    """DQN on the images of MiniGridLoCA, with a contrastive locality."""
    import gymnasium
    import stable_baselines3

    import lofo_rl.adapters.gymnasium  # noqa: F401  # registers the ids
    from lofo_rl.adapters.sb3 import LoFoReplayBuffer
    from lofo_rl.adapters.torch_contrastive import ContrastiveLocality

    trains, buffers = [], []
    for lofo in (False, True):
        env = gymnasium.make("lofo/MiniGridLoCA-v0", observation="pixels")
        options: dict[str, Any] = {}
        if lofo:
            locality = ContrastiveLocality((3, 80, 80))
            locality.was_fitted.fill_(True)  # the time does not depend on the weights
            own = {"radius": 1e-6, "limit": 50, "locality": locality}
            options = {"replay_buffer_class": LoFoReplayBuffer, "replay_buffer_kwargs": own}
        model = stable_baselines3.DQN(
            "CnnPolicy", env, seed=0, device="cpu", learning_starts=0, buffer_size=5_000,
            train_freq=4, batch_size=32, **options,
        )  # fmt: skip
        model.learn(400)

        def train(num: int, model: Any = model) -> None:
            model.learn(num, reset_num_timesteps=False)

        trains.append(train)
        buffers.append(model.replay_buffer)
    return trains[0], trains[1], buffers[1]


def torchrl() -> tuple[Train, Train, Any]:
    """A loop of TorchRL: ten records are added, a batch of 256 is drawn, a small net learns."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    from lofo_rl.adapters.torchrl import LoFoWriter

    rng = torch.Generator().manual_seed(0)

    def records(num: int) -> TensorDict:
        seen = torch.rand(2, num, 4, generator=rng)
        return TensorDict(
            {
                "observation": seen[0], "next": {"observation": seen[1]},
                "action": torch.rand(num, 2, generator=rng),
                "reward": torch.rand(num, 1, generator=rng),
            },
            batch_size=[num],
        )  # fmt: skip

    trains, buffers = [], []
    for lofo in (False, True):
        more = {"writer": LoFoWriter(radius=0.02, limit=1)} if lofo else {}
        size = 2 * HELD if lofo else HELD
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(size), batch_size=256, **more)
        while len(buffer) < HELD:
            buffer.extend(records(1000))
        net = torch.nn.Sequential(
            torch.nn.Linear(6, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(),
            torch.nn.Linear(256, 1),
        )  # fmt: skip
        optimizer = torch.optim.Adam(net.parameters())

        def train(
            num: int, buffer: Any = buffer, net: Any = net, optimizer: Any = optimizer
        ) -> None:
            for _ in range(num // 10):
                buffer.extend(records(10))
                batch = buffer.sample()
                pair = torch.cat([batch["observation"], batch["action"]], -1)
                loss = ((net(pair) - batch["reward"]) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        trains.append(train)
        buffers.append(buffer)
    return trains[0], trains[1], buffers[1]


WORKS: dict[str, tuple[Callable[[], tuple[Train, Train, Any]], int]] = {
    "SB3's SAC, Pendulum": (lambda: sb3("SAC", "Pendulum-v1", 0.01), 100),
    "SB3's DQN, CartPole": (lambda: sb3("DQN", "CartPole-v1", 0.05), 400),
    "SB3's DQN, images and a contrastive locality": (sb3_images, 60),
    "TorchRL, 10 records for each update": (torchrl, 400),
}


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="works with these letters in their name")
    given = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(Path(__file__).parent))
    from buffers import provenance, spread

    rows = []
    for name, (make, num) in WORKS.items():
        if given.only not in name:
            continue
        *trains, buffer = make()
        seconds = np.zeros((given.rounds, 2))
        for number in range(given.rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                begin = time.process_time()
                trains[which](num)
                seconds[number, which] = time.process_time() - begin
        ratio = spread(seconds[:, 0] / seconds[:, 1])
        each = np.median(seconds, 0) / num * 1e6
        line = {"work": name, "own_us": each[0], "lofo_us": each[1], "ratio": ratio, "goal": GOAL}
        line |= {"held": len(buffer), "is_met": ratio["median"] >= GOAL}
        rows.append(line)
        print(
            f"{name}: {each[0]:.0f} us a step with the host's buffer, {each[1]:.0f} with LoFo, "
            f"ratio {ratio['median']} ({ratio['low']} to {ratio['high']})",
            flush=True,
        )
    if given.out:
        given.out.write_text(json.dumps({"about": provenance(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
