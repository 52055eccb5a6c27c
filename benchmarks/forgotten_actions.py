"""What the runs of the demo's world believe of actions that their buffers no longer hold.

    lofo run demo/lofo --seeds 0-9 --out runs/ten
    python benchmarks/forgotten_actions.py runs/ten

For every seed at the end of phase 2: how many of the 744 actions (248 places to start from, three
actions) have no sample; how far the predicted reward is off there, and where there are samples; the
highest action value, where no return exceeds 2; from how many places the greedy policy reaches a
goal; and where it stays for ever, with the samples that its buffer holds of that action.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from unseen_actions import NUM_ACTIONS, World, tabulate

from lofo_rl.experiments import Experiment, Pack, checkpoint, find, loop
from lofo_rl.experiments.experiment import configuration

WORDS = ("left", "right", "forward")


def load(folder: Path):
    """Every run of the folder, as it stands at the end: its experiment, seed, agent and buffer."""
    with np.load(folder / checkpoint.CHECKPOINT, allow_pickle=False) as file:
        settings = json.loads(bytes(file[checkpoint.MANIFEST]))["configuration"]
    pack = Pack(tuple(map(named, settings)))
    outline = loop.outline_localities(pack)
    runs = checkpoint.load(folder, jax.eval_shape(lambda: loop.init(pack, outline)))
    for k, experiment in enumerate(pack.experiments):
        items = experiment.buffer.replay.items(runs.replays[k])
        for i, seed in enumerate(experiment.seeds):
            size = int(runs.replays[k].index.size[i])
            agent = jax.tree.map(lambda x, k=k, i=i: pack.part(x, k)[i], runs.agents)
            yield experiment, seed, agent, items.observation[i, :size], items.action[i, :size]


def named(settings: dict) -> Experiment:
    """The named run, with the numbers of its buffer that may have been changed."""
    experiment, buffer = find(settings["id"]), settings["buffer"]
    rule = {name: value for name, value in buffer["rule"].items() if name != "is"}
    changed = replace(
        experiment.buffer,
        capacity=buffer["capacity"],
        rule=replace(experiment.buffer.rule, **rule),
    )
    if configuration([experiment.environment, experiment.agent]) != [
        settings[name] for name in ("environment", "agent")
    ]:
        raise SystemExit("only the buffer's numbers may differ from the named run")
    return replace(experiment, buffer=changed, seeds=tuple(settings["seeds"]))


def follow(world: World, actions: np.ndarray) -> tuple[int, list[tuple[int, int]]]:
    """From how many places a policy [codes] reaches a goal, and where it stays for ever."""
    num_there, stays = 0, set()
    for code in world.starts.tolist():
        path = []
        for _ in range(len(actions)):
            path.append(code)
            if world.ends[code, actions[code]]:
                num_there += 1
                break
            code = int(world.successor[code, actions[code]])
        else:
            stays |= set(path[path.index(code) :])  # the loop alone, not the way to it
    return num_there, [(code, int(actions[code])) for code in sorted(stays)]


def describe(experiment: Experiment, seed: int, state, codes, actions) -> None:
    room, agent = experiment.environment, experiment.agent
    world, observations = tabulate(room, phase=2), room.decode(jnp.arange(room.num_codes))
    counts = np.zeros(world.reward.shape, int)
    np.add.at(counts, (np.asarray(codes), np.asarray(actions)), 1)
    over_actions = jax.vmap(lambda o, a: agent.predict(state, o, a).reward, (None, 0))
    ask = jax.vmap(over_actions, (0, None))
    predicted = np.asarray(ask(observations, jnp.arange(NUM_ACTIONS)))
    error, unseen = np.abs(predicted - world.reward)[world.starts], counts[world.starts] == 0
    values = np.asarray(agent.values(state, observations))
    num_there, stays = follow(world, values.argmax(axis=1))
    print(
        f"{experiment.id} limit {getattr(experiment.buffer.rule, 'limit', 'none')} seed {seed}: {unseen.sum()} actions "
        f"without a sample; reward wrong by at most {error[unseen].max(initial=0):.3f} there, "
        f"{error[~unseen].max():.3f} elsewhere; highest value {values[world.starts].max():.2f}; "
        f"reaches a goal from {num_there} of {len(world.starts)}"
    )
    for code, action in sorted(stays, key=lambda at: -values[at])[:3]:
        print(
            f"    stays at pose {code}, {WORDS[action]}: {counts[code, action]} samples, reward "
            f"predicted {predicted[code, action]:.3f}, value {values[code, action]:.2f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    for run in load(parser.parse_args().folder):
        describe(*run)
