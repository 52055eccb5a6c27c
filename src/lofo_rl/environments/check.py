"""The rules of LoCA that a world must keep, checked on the running world.

Whoever adds a world runs `check_loca` on it; a broken rule is named, with a state that breaks it.
"""

import math
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.environments.base import Environment, State, Task
from lofo_rl.types import Array, Key, TimeStep, Tree

NUM_STARTS = 1000
# Of 1, or of a larger number itself: the same float32 step may round otherwise when compiled into
# another program.
CLOSE = 1e-5
Rules: TypeAlias = dict[str, Array]  # the rule in words -> [...] bool, whether it holds


class LocaViolation(AssertionError):
    """A world breaks a rule of LoCA."""


class Outcomes(NamedTuple):
    """What the bare dynamics make of a state under each action, and whether it is what came."""

    came: Array  # [A] bool, this action explains the successor seen: noise may change the action
    at_t1: Array  # [A] bool, or how many inner steps
    at_t2: Array  # [A]
    in_zone: Array  # [A] bool


def check_loca(
    environment: Environment, key: Key, num_rollouts: int = 16, num_steps: int | None = None
) -> None:
    """Raises a LocaViolation that names the rules found broken, each with a state breaking it.

    By default the rollouts are long enough to run into the time limit twice.
    """
    num_steps = 2 * environment.spec.time_limit + 1 if num_steps is None else num_steps
    _check_shapes(environment)
    key_starts, key_probes, key_rollouts = jax.random.split(key, 3)
    _check_starts(environment, key_starts)
    _check_probes(environment, key_probes)
    _check_rollouts(environment, key_rollouts, num_rollouts, num_steps)
    _check_rewards(environment)


def _check_shapes(environment: Environment) -> None:
    """Codes, observations and cells of one state and of many, as `spec` and chart have them."""
    spec, chart = environment.spec, environment.chart()
    forms = {
        "encode": (environment.encode, spec.code_shape, spec.code_dtype),
        "decode": (environment.decode, spec.observation_shape, spec.observation_dtype),
        "cell": (environment.cell, (), np.dtype(np.int32)),
    }
    for axes in ((), (3,), (3, 2)):
        states = jax.tree.map(
            lambda x, a=axes: jax.ShapeDtypeStruct((*a, *x.shape[1:]), x.dtype), chart.states
        )
        codes = jax.ShapeDtypeStruct((*axes, *spec.code_shape), spec.code_dtype)
        for name, (function, shape, dtype) in forms.items():
            rule = f"broken rule: {name} takes leading axes {[*axes]} to {dtype}{[*axes, *shape]}"
            try:
                found = jax.eval_shape(function, states if name == "encode" else codes)
            except (TypeError, ValueError, IndexError) as error:
                raise LocaViolation(f"{rule}; it fails: {error}") from error
            if (found.shape, found.dtype) != ((*axes, *shape), dtype):
                raise LocaViolation(f"{rule}; it gives {found.dtype}{[*found.shape]}")
    cells = environment.cell(environment.encode(chart.states))
    on_chart = (cells >= 0) & (cells < math.prod(chart.shape))
    _require({"cells lie on the chart": on_chart}, chart.states)


def _check_rewards(environment: Environment) -> None:
    """T1 is the better goal in phase 1 and the worse one in phase 2, evaluated as it is trained."""
    for phase in (1, 2):
        tasks = environment.train_task(phase), environment.evaluation_task(phase)
        trained, evaluated = ((float(t.reward_t1), float(t.reward_t2)) for t in tasks)
        if trained != evaluated:
            raise LocaViolation(f"broken rule: evaluation pays what training pays; phase {phase}")
        if (trained[0] > trained[1]) != (phase == 1):
            raise LocaViolation(
                "broken rule: T1 pays more than T2 in phase 1 and less in phase 2; "
                f"in phase {phase} they pay {trained[0]:g} and {trained[1]:g}"
            )


def _check_starts(environment: Environment, key: Key) -> None:
    """Where episodes begin: anywhere in phase 1 and evaluation, in the T1-zone in phase 2."""

    def start(task: Task, key: Key) -> tuple[State, Array, Array]:
        state, code = environment.reset(task, key)
        coded = _same(code, environment.encode(state.physical))
        return state, environment.in_t1_zone(state.physical), coded & (state.time == 0)

    draw = jax.jit(jax.vmap(start, in_axes=(None, 0)))
    keys = jax.random.split(key, NUM_STARTS)
    for phase in (1, 2):
        for kind, task in _tasks(environment, phase):
            state, inside, begun = draw(task, keys)
            _require({"reset begins at time 0 and emits the code of its state": begun}, state)
            if (phase, kind) == (2, "training"):
                _require({"phase-2 training starts lie inside the T1-zone": inside}, state)
            else:
                spread = jnp.full_like(inside, not inside.all())
                rule = f"phase-{phase} {kind} starts are not confined to the T1-zone"
                _require({rule: spread}, state)


def _tasks(environment: Environment, phase: int) -> tuple[tuple[str, Task], ...]:
    evaluation = environment.evaluation_task(phase)
    return ("training", environment.train_task(phase)), ("evaluation", evaluation)


def _check_probes(environment: Environment, key: Key) -> None:
    """One step from every probe state under every action, in both phases."""
    tasks = environment.train_task(1), environment.train_task(2)

    def probe(physical: Tree, action: Array) -> Rules:
        state = State(physical, jnp.zeros((), jnp.int32))
        return _phase_rules(environment, tasks, state, action, key)

    physical = environment.probe_states()
    over_actions = jax.vmap(probe, in_axes=(None, 0))
    over_both = jax.jit(jax.vmap(over_actions, in_axes=(0, None)))
    rules = over_both(physical, environment.probe_actions())
    _require({rule: holds.all(axis=1) for rule, holds in rules.items()}, physical)


def _check_rollouts(environment: Environment, key: Key, num_rollouts: int, num_steps: int) -> None:
    """Random actions in both phases, from the phase's starts, the T1-zone and evaluation's."""

    def roll(task: Task, key: Key) -> tuple[Rules, State]:
        return _rollout(environment, task, key, num_steps)

    over_rollouts = jax.jit(jax.vmap(roll, in_axes=(None, 0)))
    keys = jax.random.split(key, num_rollouts)
    zone_start = environment.train_task(2).start
    for phase in (1, 2):
        task = environment.train_task(phase)
        for played in (task, task._replace(start=zone_start), environment.evaluation_task(phase)):
            _require(*over_rollouts(played, keys))


def _rollout(environment: Environment, task: Task, key: Key, num_steps: int) -> tuple[Rules, State]:
    """The rules at each step of random actions, and the states acted in, leaves [num_steps]."""

    def act(state: State, drawn: tuple[Array, Key]) -> tuple[State, tuple[Rules, State]]:
        after, timestep = environment.step(task, state, *drawn)
        return after, (_step_rules(environment, task, state, timestep, after), state)

    key_start, key_act, key_env = jax.random.split(key, 3)
    choices = environment.probe_actions()
    actions = choices[jax.random.randint(key_act, (num_steps,), 0, len(choices))]
    state, _ = environment.reset(task, key_start)
    return jax.lax.scan(act, state, (actions, jax.random.split(key_env, num_steps)))[1]


def _phase_rules(
    environment: Environment, tasks: tuple[Task, Task], state: State, action: Array, key: Key
) -> Rules:
    """What the same action with the same luck must do in both phases."""
    (after, one), (_, two) = (environment.step(task, state, action, key) for task in tasks)
    outcomes = _outcomes(environment, state.physical, one.successor)
    same = _same(one.successor, two.successor) & (one.terminated == two.terminated)
    at_t2 = (outcomes.came & (outcomes.at_t2 > 0)).any() & same
    return _step_rules(environment, tasks[0], state, one, after) | {
        "the dynamics are the same in both phases": same,
        "T2 pays the same in both phases": ~at_t2 | (one.reward == two.reward),
    }


def _step_rules(
    environment: Environment, task: Task, before: State, timestep: TimeStep, after: State
) -> Rules:
    """What holds for every single step."""
    outcomes = _outcomes(environment, before.physical, timestep.successor)
    closed = outcomes.in_zone.all() & (_ended(timestep) | environment.in_t1_zone(after.physical))
    known = _same(timestep.observation, environment.encode(after.physical))
    return {
        "the T1-zone cannot be left": ~environment.in_t1_zone(before.physical) | closed,
        "the observation is the code of the state returned": known,
        **_goal_rules(environment, task, timestep, outcomes),
        **_end_rules(environment.spec.time_limit, before.time, timestep, after.time),
    }


def _end_rules(time_limit: int, before: Array, timestep: TimeStep, after: Array) -> Rules:
    """Termination and time limit are two things, and both begin a new episode."""
    observation, successor, _, terminated, truncated = timestep
    ended, at_limit = _ended(timestep), before + 1 >= time_limit
    unbroken = ended | _same(observation, successor)
    return {
        "termination and truncation never coincide": ~(terminated & truncated),
        "the time limit, and nothing else, truncates": truncated == (at_limit & ~terminated),
        "time counts the steps of an episode": after == jnp.where(ended, 0, before + 1),
        "the successor is the observation unless the episode ended": unbroken,
    }


def _goal_rules(
    environment: Environment, task: Task, timestep: TimeStep, outcomes: Outcomes
) -> Rules:
    """Rewards and termination happen at T1 and T2 and nowhere else."""
    came, in_zone = outcomes.came, outcomes.in_zone
    at_t1, at_t2 = outcomes.at_t1 > 0, outcomes.at_t2 > 0
    placed = jnp.where(at_t1, in_zone, ~(at_t2 & in_zone))
    at_goal = at_t1 | at_t2
    due = environment.pay(task, outcomes.at_t1, outcomes.at_t2)
    ending = at_goal if environment.ends_at_goals else jnp.zeros_like(at_goal)
    last_rule = "T1 and T2, and nothing else, terminate"
    last_rule = last_rule if environment.ends_at_goals else "nothing terminates"
    lost = ~came.any()  # then only the first rule can be judged
    paid = timestep.reward != 0.0
    return {
        "the successor follows from the dynamics": ~lost,
        "T1 lies inside the T1-zone and T2 outside": placed.all(),
        "nothing is paid but for reaching T1 or T2": lost | (came & (at_goal | ~paid)).any(),
        "T1 and T2 pay what the task says": lost
        | (came & (~at_goal | (due == timestep.reward))).any(),
        last_rule: lost | (came & (ending == timestep.terminated)).any(),
    }


def _outcomes(environment: Environment, physical: Tree, successor: Array) -> Outcomes:
    def outcome(action: Array) -> Outcomes:
        following, at_t1, at_t2 = environment.advance(physical, action)
        came = _same(environment.encode(following), successor)
        return Outcomes(came, at_t1, at_t2, environment.in_t1_zone(following))

    return jax.vmap(outcome)(environment.probe_actions())


def _ended(timestep: TimeStep) -> Array:
    return timestep.terminated | timestep.truncated


def _same(one: Array, two: Array) -> Array:
    return (jnp.abs(one - two) <= CLOSE * jnp.maximum(jnp.abs(two), 1)).all()


def _require(rules: Rules, states: Tree) -> None:
    """Raises if a rule does not hold, naming each such rule and the first state that breaks it."""
    broken = []
    for rule, holds in rules.items():
        places = np.argwhere(~np.asarray(holds))
        if places.size:
            place = tuple(places[0])
            state = jax.tree.map(lambda leaf, place=place: np.asarray(leaf)[place].tolist(), states)
            broken.append(f"broken rule: {rule}; at {state}")
    if broken:
        raise LocaViolation("\n".join(broken))
