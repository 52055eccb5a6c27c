"""What bfloat16 and TF32 do to gradients and plans, beside what another batch or another key does to them.

    python benchmarks/precision.py minigrid|dreamer|planet [--steps 300] [--batches 8] [--learn]

A run learns for some steps in float32: `minigrid/dyna_q/lofo`, or a small version of a Reacher run with a FIFO
buffer. Then gradients are taken for several batches, in float32 and with bfloat16 where the named run has it;
for PlaNet also plans from the last state of each window. Rounding matters if it moves these about as far as
another draw would. For MiniGrid the products are rounded, too, as TF32 rounds them on a GPU. `--learn` learns from the run's buffer anew, in both and by other draws, as many updates.
"""

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun, jaxprs_in_params

from lofo_rl.agents import DynaQ, PlaNet
from lofo_rl.experiments import Experiment, Pack, find, loop, memory
from lofo_rl.experiments.paper_reacher import small
from lofo_rl.networks import Chain

REACHER = small(find("reacher/dreamer/fifo-all"))
RUNS = {
    "minigrid": find("minigrid/dyna_q/lofo"),
    "dreamer": replace(REACHER, schedule=replace(REACHER.schedule, steps_per_update=1)),
    "planet": replace(
        REACHER,
        agent=PlaNet.small(batch_size=8, window=REACHER.buffer.window),
        schedule=replace(REACHER.schedule, steps_per_update=1),
    ),
}


def in_dtype(agent, dtype: str):
    """The agent with another dtype wherever named runs have bfloat16."""
    if not isinstance(agent, DynaQ):
        return replace(agent, model=replace(agent.model, compute_dtype=dtype))
    cnn, head = agent.value.parts
    value = Chain((replace(cnn, dtype=dtype), head))
    return replace(agent, decoder=replace(agent.decoder, dtype=dtype), value=value)


def with_tf32(function: Callable) -> Callable:
    """The function with both factors of every product rounded to the 10 bits that TF32 keeps.

    To the nearest; sums stay float32, as on a GPU. Some GPUs cut the other bits off instead, which errs twice as far.
    """

    def rounded(*given):
        program, shape = jax.make_jaxpr(function, return_shape=True)(*given)
        names = [*program.jaxpr.constvars, *program.jaxpr.invars]
        known = dict(zip(names, [*program.consts, *jax.tree.leaves(given)], strict=True))
        for line in program.jaxpr.eqns:
            inputs = [name for name in line.invars if not isinstance(name, Literal)]
            values = [known[name] for name in inputs]
            if line.primitive is jax.lax.dot_general_p:
                values = [
                    jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=10) for x in values
                ]
            elif any("dot_general" in str(inner) for inner in jaxprs_in_params(line.params)):
                raise NotImplementedError(f"a product inside {line.primitive} would not be rounded")
            words = program.jaxpr.debug_info.with_unknown_names()
            alone = Jaxpr([], inputs, line.outvars, [line], line.effects, words)
            known |= zip(line.outvars, jaxpr_as_fun(ClosedJaxpr(alone, []))(*values), strict=True)
        found = [
            name.val if isinstance(name, Literal) else known[name] for name in program.jaxpr.outvars
        ]
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return rounded


def learnt(experiment: Experiment, num_steps: int):
    """The run after its warm-up and so many learning steps, its locality as it was drawn."""
    agent = in_dtype(experiment.agent, "float32")
    pack = Pack((replace(experiment, agent=agent, seeds=(0,)),))
    places = tuple(
        b.locality and jax.vmap(b.locality.init)(pack.streams.locality) for b in pack.buffers
    )
    runs = jax.tree.map(jnp.copy, loop.init(pack, places))
    task, warmup = pack.lead.environment.train_task(1), pack.lead.schedule.warmup
    runs, _ = loop.advance(pack, runs, task, jnp.int32(0), jnp.int32(warmup), True)
    runs, _ = loop.advance(pack, runs, task, jnp.int32(warmup), jnp.int32(num_steps), False)
    state, replay, sampler = jax.tree.map(
        lambda x: x[0], (runs.agents, runs.replays[0], runs.samplers[0])
    )
    sample = jax.jit(partial(memory.sample, pack, pack.buffers[0]))
    return state, partial(sample, replay, sampler)


def gradients(agent, state, batches, key) -> dict[str, jax.Array]:
    """Of one update, as vectors by the names of the networks.

    Adam's first memory of a gradient is a tenth of it; without learning rates each network learns
    beside the others as they are.
    """
    names = {field.name for field in fields(agent)}
    still = dict.fromkeys((name for name in names if name.endswith("learning_rate")), 0.0)
    still |= {"gradient_clip": float("inf")} if "gradient_clip" in names else {}
    optimisers = [name for name in state._fields if name.endswith("optimiser")]
    blank = {name: jax.tree.map(jnp.zeros_like, getattr(state, name)) for name in optimisers}
    after, _ = replace(agent, **still).update(state._replace(**blank), batches, key)
    found = {name: optax.tree.get(getattr(after, name), "mu") for name in optimisers}
    return {
        name.removesuffix("optimiser").strip("_") or "model": jnp.concatenate(
            [10 * x.reshape(-1) for x in jax.tree.leaves(tree)]
        )
        for name, tree in found.items()
    }


def plans(agent: PlaNet, state, batches, key) -> dict[str, jax.Array]:
    """From the last state of each window: the returns of random plans, and the action planned."""
    items, known = jax.tree.map(lambda x: x[0], (batches.items, batches.reward_known))
    # seen in float32 and by the same lots whatever is asked, which is about dreams alone
    see = in_dtype(agent, "float32").model.loss
    _, (states, _) = see(state.model, items, known, jax.random.key(0))
    seen = jax.tree.map(lambda x: x[:, -1], states)
    shape = agent.planner.num_candidates, agent.planner.horizon, agent.model.action_size
    actions = jax.random.uniform(jax.random.key(1), shape, minval=-1, maxval=1)
    returns = jax.vmap(lambda s: agent.imagined_returns(state, s, actions, key))(seen)
    action = jax.vmap(lambda s: agent.plan(state, s, key))(seen)
    spread = returns - returns.mean(axis=1, keepdims=True)  # a constant changes no plan
    return {"returns": spread.reshape(-1), "action": action.reshape(-1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--learn", action="store_true")
    given = parser.parse_args()
    experiment: Experiment = RUNS[given.run]
    state, sample = learnt(experiment, given.steps)
    print(f"{given.batches} batches after {given.steps} learning steps, {jax.devices()[0]}")

    @jax.jit
    def ask(state, batches, key):
        found = []
        for dtype in ("float32", "bfloat16"):
            agent = in_dtype(experiment.agent, dtype)
            found.append(gradients(agent, state, batches, key))
            if isinstance(agent, PlaNet):
                found[-1] |= plans(agent, state, batches, key)
        if given.run == "minigrid":
            agent = in_dtype(experiment.agent, "float32")
            found.append(with_tf32(partial(gradients, agent))(state, batches, key))
        return found

    keys = jax.random.split(jax.random.PRNGKey(0), (given.batches, 2))
    drawn = [sample(key) for key in keys[:, 0]]
    asked = [ask(state, batches, keys[0, 1]) for batches in drawn]
    again = [ask(state, batches, keys[1, 1])[0] for batches in drawn]  # another key
    for name in asked[0][0]:
        true, *rounded = (np.stack([each[k][name] for each in asked]) for k in range(len(asked[0])))
        other = np.stack([each[name] for each in again])
        length, drawing, key = (
            np.linalg.norm(x, axis=1).mean()
            for x in (true, np.roll(true, 1, axis=0) - true, other - true)
        )
        told = []
        for form, coarse in zip(("bfloat16", "TF32"), rounded, strict=False):
            moved = np.linalg.norm(coarse - true, axis=1).mean() / length
            bias = np.linalg.norm((coarse - true).mean(axis=0)) / np.linalg.norm(true.mean(axis=0))
            told.append(f"{form} moves it by {moved:.3%} (the mean of all by {bias:.3%})")
        print(
            f"{name:8} length {length:.4g}; {', '.join(told)}, another key by {key / length:.2%}, "
            f"another batch by {drawing / length:.2%}",
            flush=True,
        )
    forms = [("float32", 0), ("bfloat16", 0), ("float32", 1)] if given.learn else []
    for dtype, seed in forms:
        agent = in_dtype(experiment.agent, dtype)
        state, update = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
        for key in jax.random.split(jax.random.key(1 + seed), given.steps):
            state, _ = update(state, sample(key), key)
        told = [update(state, batches, keys[0, 1])[1] for batches in drawn]
        told = jax.tree.map(lambda *x: np.mean(x), *told)
        words = ", ".join(f"{name} {value:.4g}" for name, value in told.items())
        print(f"learnt in {dtype}, seed {seed}: {words}", flush=True)


if __name__ == "__main__":
    main()
