"""Counts the kernels that an H200 would launch, on a machine that has none.

    pip install 'jax[cuda13]'    # the compiler for GPUs; no GPU and no driver are needed
    python benchmarks/kernels.py dreamer [--runs 1] [--kinds 20] [--hlo FILE]

Pieces: dreamer, planet (an update), plan; minigrid, reacher (what a run of LoFo repeats: a step, or five,
and an update). Small kernels take 2 to 3 microseconds whatever they do, so their number tells what a
loop costs. The compiler tries nothing out here (no autotuning), so tile sizes, and who makes a product
(Triton or cuBLAS), may differ from those on a GPU. `--hlo` keeps the program's text.

A newer jax's compiler serves an older jax: put `jax_plugins/xla_cuda13` of its `jax-cuda13-pjrt` wheel
in place of the installed one.
"""

import argparse
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from inspect import unwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "JAX_PLATFORMS": "cpu"}

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lofo_rl import devices
from lofo_rl.agents import Dreamer, PlaNet
from lofo_rl.experiments import Experiment, Pack, find, loop
from lofo_rl.experiments.fitting import outline_localities
from lofo_rl.types import Batch, Step

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 62914560 clock_rate_ghz: 1.98
  device_memory_size: 150000000000 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 27 patch: 0 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H200"
"""
# What the compiler leaves as it stands and still launches a kernel for.
ALONE = ("copy", "reduce", "sort", "scatter", "gather", "convert", "dynamic-update-slice")
Program = tuple[Any, tuple[Any, ...]]  # a function and the shapes of what it is given


def update(agent: Dreamer | PlaNet, num: int) -> Program:
    shape = num, 1, agent.batch_size, agent.window
    of = jax.ShapeDtypeStruct
    flag, number = of(shape, bool), of(shape, jnp.float32)
    pictures, actions = of((*shape, 64, 64, 3), jnp.uint8), of((*shape, 2), jnp.float32)
    items = Step(pictures, actions, number, flag, flag, flag)
    batch = Batch(items, flag, of(shape[:3], jnp.int32))
    learn = jax.vmap(lambda state, batch, key: agent.update(state, batch, key)[0])
    return learn, (_born(agent, num), batch, of((num, 2), jnp.uint32))


def plan(agent: PlaNet, num: int) -> Program:
    seen = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((num, *x.shape), x.dtype), agent.begin().state
    )
    keys = jax.ShapeDtypeStruct((num, 2), jnp.uint32)
    return jax.vmap(agent.plan), (_born(agent, num), seen, keys)


def cycle(experiment: Experiment, num: int) -> Program:
    """What a run repeats: as many steps as come to an update, and the update."""
    pack = Pack((replace(experiment, seeds=tuple(range(num))),))
    task = pack.lead.environment.train_task(1)
    runs = jax.eval_shape(partial(unwrap(loop.init), pack), outline_localities(pack))
    advance = unwrap(loop.advance)
    number = jax.ShapeDtypeStruct((), jnp.int32)  # a loop of one turn would be none
    return lambda runs, num: advance(pack, runs, task, num, num, False)[0], (runs, number)


def _born(agent: Any, num: int) -> Any:
    return jax.eval_shape(jax.vmap(agent.init), jax.ShapeDtypeStruct((num, 2), jnp.uint32))


def pretend() -> None:
    """Lets the library choose what it would choose where there is such a GPU."""
    gpu = SimpleNamespace(platform="gpu", compute_capability="9.0")
    devices.in_use = lambda: gpu  # type: ignore[assignment,return-value]


def compile_for_gpu(program: Program) -> str:
    """The program's text, as scheduled."""
    try:
        device = topologies.get_topology_desc("", "cuda", target_config=H200, topology="1x1x1")
    except NotImplementedError:
        sys.exit("the compiler for GPUs is not installed: pip install 'jax[cuda13]'")
    function, given = program
    here = NamedSharding(Mesh(device.devices, ("gpu",)), PartitionSpec())
    # donated as a loop carries it, or whatever is written in place would be copied first
    compiled = jax.jit(function, in_shardings=here, out_shardings=here, donate_argnums=0)
    lowered = compiled.trace(*given).lower(lowering_platforms=("cuda",))
    return lowered.compile().as_text()


def count(text: str) -> tuple[Counter[str], Counter[str]]:
    """Launches by kind and by loop; loops of unknown length count once."""
    parts: dict[str, list[str]] = {}
    entry, own = "", None
    for line in text.split("\n"):
        if begun := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{", line):
            own = parts.setdefault(begun[2], [])
            entry = begun[2] if begun[1] else entry
        elif line.startswith("}"):
            own = None
        elif own is not None:
            own.append(line.strip())
    kinds: Counter[str] = Counter()
    places: Counter[str] = Counter()

    def walk(name: str, times: int, place: str) -> None:
        for line in parts[name]:
            found = re.match(r"(?:ROOT )?%?([\w.\-]+) = .*? ([\w\-]+)\(", line)
            name, operation = found.groups() if found else ("", "")
            if operation == "while":
                known = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
                turns = int(known[1]) if known else 1
                for role in ("body", "condition"):
                    inner = re.search(rf"{role}=%?([\w.\-]+)", line)
                    assert inner
                    walk(inner[1], times * turns, f"{place}/{turns if known else '?'} x {inner[1]}")
            elif operation == "call":
                inner = re.search(r"to_apply=%?([\w.\-]+)", line)
                assert inner
                walk(inner[1], times, place)
            elif operation in ("fusion", "custom-call", *ALONE):
                target = re.search(r'custom_call_target="([^"]+)"', line)
                kind = target[1] if target else re.sub(r"[\d.]+$", "", name)
                kinds[kind] += times
                places[place or "/"] += times

    walk(entry, 1, "")
    return kinds, places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("piece", choices=["dreamer", "planet", "plan", "minigrid", "reacher"])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--kinds", type=int, default=20)
    parser.add_argument("--hlo", type=Path, help="where the program's text goes")
    parser.add_argument("--plain", action="store_true", help="no kernels of ours in loops")
    arguments = parser.parse_args()
    planet: PlaNet = find("reacher/planet/lofo").agent
    reacher = find("reacher/dreamer/lofo")
    own = dict.fromkeys(("own_kernels", "own_dreams"), not arguments.plain)
    model = reacher.agent.model
    model = replace(model, rssm=replace(model.rssm, **own))
    reacher = replace(reacher, agent=replace(reacher.agent, model=model))
    pieces = {
        "dreamer": partial(update, reacher.agent),
        "planet": partial(update, planet),
        "plan": partial(plan, planet),
        "minigrid": partial(cycle, find("minigrid/dyna_q/lofo")),
        "reacher": partial(cycle, reacher),
    }
    pretend()
    text = compile_for_gpu(pieces[arguments.piece](arguments.runs))
    if arguments.hlo:
        arguments.hlo.write_text(text)
    kinds, places = count(text)
    print(f"{arguments.piece}, {arguments.runs} side by side: {kinds.total()} kernels")
    for place, number in places.most_common():
        print(f"{number:8}  {place}")
    print()
    for kind, number in kinds.most_common(arguments.kinds):
        print(f"{number:8}  {kind}")


if __name__ == "__main__":
    main()
