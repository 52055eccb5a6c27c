"""The kernels mean what `jax.grad` and `optax.adam` mean; here they are interpreted."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from conftest import tiny_pack
from lofo_rl.agents import DynaQ, on_chip
from lofo_rl.agents.dyna_q_onchip import DynaQOnChip
from lofo_rl.experiments import loop
from lofo_rl.experiments import pack as packs
from lofo_rl.experiments.fitting import outline_localities
from lofo_rl.experiments.provenance import provenance
from lofo_rl.networks import MLP, recurrence
from lofo_rl.networks.onchip import Adam, Dense, Lessons, is_supported
from lofo_rl.types import Batch, Transition

NUM_STEPS, RATE = 3, 1e-2
OPTIMISER = optax.adam(RATE, eps=1e-4)
KEYS = jax.random.split(jax.random.key(0), 12)
SHAPES = [
    pytest.param(((2, 20), (20, 15), (16, 24), (24, 2)), 1, 16, id="joined-at-the-brim"),
    pytest.param(
        ((3, 16), (16, 14), (17, 18), (18, 1)),
        *(1, 21),
        id="joined-beyond-the-padding",
        marks=pytest.mark.slow,
    ),
    pytest.param(((2, 33), (33, 40), (40, 3)), None, 32, id="alone"),
]


# Each of these is one program: call by call, every operation would be compiled for every shape.
@partial(jax.jit, static_argnums=0)
def draw_layers(fans):
    keys = zip(jax.random.split(KEYS[0], len(fans)), fans, strict=True)
    return [
        {"weight": 0.4 * jax.random.normal(k, fan), "bias": 0.1 * jax.random.normal(k, fan[1:])}
        for k, fan in keys
    ]


@partial(jax.jit, static_argnums=(0, 1, 2), static_argnames="is_logit")
def draw_lessons(fans, join, batch_size, *, is_logit):
    shape = NUM_STEPS, batch_size
    num_joined = fans[join + 1][0] - fans[join][1] if join is not None else 0
    return Lessons(
        inputs=jax.random.normal(KEYS[1], (*shape, fans[0][0])),
        joined=jax.random.normal(KEYS[2], (*shape, num_joined)) if num_joined else None,
        targets=jax.random.uniform(KEYS[3], (*shape, fans[-1][1])),
        weights=jax.random.bernoulli(KEYS[4], 0.7, (*shape, fans[-1][1])).astype(jnp.float32),
        is_logit=jnp.asarray(is_logit),
    )


def forward(layers, x, joined, join):
    for k, layer in enumerate(layers):
        x = x @ layer["weight"] + layer["bias"]
        x = jnp.tanh(x) if k < len(layers) - 1 else x
        x = jnp.concatenate([x, joined], -1) if k == join else x
    return x


def loss(layers, lesson, join):
    outputs = forward(layers, lesson.inputs, lesson.joined, join)
    halves = 0.5 * (outputs - lesson.targets) ** 2
    logits = jax.nn.softplus(outputs) - lesson.targets * outputs
    each = jnp.where(lesson.is_logit, logits, halves) * lesson.weights
    return each.sum() / len(outputs)


@partial(jax.jit, static_argnums=3)
def descend(layers, state, lesson, join):
    value, gradient = jax.value_and_grad(loss)(layers, lesson, join)
    change, state = OPTIMISER.update(gradient, state)
    return optax.apply_updates(layers, change), state, value


def check_close(ours, theirs, tolerance=1e-6):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("is_logit", [False, True])
@pytest.mark.parametrize(("fans", "join", "batch_size"), SHAPES)
def test_training_is_grad_and_adam(fans, join, batch_size, is_logit):
    net, layers = Dense(fans, join, interpret=True), draw_layers(fans)
    lessons = draw_lessons(fans, join, batch_size, is_logit=is_logit)
    state, losses = OPTIMISER.init(layers), []
    pack, unpack = jax.jit(net.pack), jax.jit(net.unpack)
    begun = Adam(jnp.int32(0), pack(layers), *[jnp.zeros(net.num_words)] * 2)
    for step in range(NUM_STEPS):
        lesson = jax.tree.map(lambda x, step=step: x if x.ndim == 0 else x[step], lessons)
        layers, state, value = descend(layers, state, lesson, join)
        losses.append(value)
    train = jax.jit(partial(net.train, learning_rate=RATE, epsilon=1e-4))
    adam, found = train(begun, lessons)
    check_close(found, jnp.stack(losses))
    check_close(unpack(adam.values), layers)
    check_close(unpack(adam.mean), state[0].mu)
    check_close(unpack(adam.square), state[0].nu)
    assert adam.num_steps == NUM_STEPS
    for words in adam[1:]:  # nothing has leaked into the padding
        np.testing.assert_array_equal(pack(unpack(words)), words)


@pytest.mark.parametrize(("fans", "join", "batch_size"), SHAPES)
def test_applying_is_the_forward_pass(fans, join, batch_size):
    net, layers = Dense(fans, join, interpret=True), draw_layers(fans)
    lesson = draw_lessons(fans, join, batch_size, is_logit=False)
    joined = None if join is None else lesson.joined[0]
    ours = net.apply(net.pack(layers), lesson.inputs[0], joined)
    check_close(ours, forward(layers, lesson.inputs[0], joined, join), 2e-6)


def test_packing_is_undone_by_unpacking():
    fans = SHAPES[1].values[0]
    layers = draw_layers(fans)
    check_close(Dense(fans, 1).unpack(Dense(fans, 1).pack(layers)), layers, 0)


AGENT = DynaQ(
    (2,),
    3,
    encoder=MLP((16, 15)),
    head=MLP((16,)),
    value=MLP((16, 16)),
    num_model_updates=2,
    num_planning_updates=2,
    batch_size=8,
    model_learning_rate=1e-2,
    value_learning_rate=1e-2,
    target_period=2,
)
AGENTS = {
    "default": AGENT,
    "one-hot": replace(AGENT, one_hot_action=True, planning_delay=2, reward_at_end=True),
    "direct": replace(AGENT, direct_dynamics=True),
}


@partial(jax.jit, static_argnums=1)
def draw_batches(key, num_runs):
    shape = (num_runs, *AGENT.appetite[:2])
    keys = jax.random.split(key, 6)
    ended = jax.random.bernoulli(keys[0], 0.3, shape)
    reward = jnp.where(ended, jax.random.uniform(keys[1], shape, maxval=4.0), 0.0)
    seen, next_seen = (jax.random.normal(k, (*shape, 2)) for k in keys[2:4])
    action = jax.random.randint(keys[4], shape, 0, 3)
    items = Transition(seen, action, reward, ended, next_seen)
    known = jax.random.bernoulli(keys[5], 0.8, shape)
    return Batch(items, known, jnp.zeros(shape, jnp.int32))


@pytest.mark.parametrize(
    "agent",
    [
        AGENTS["one-hot"],
        pytest.param(AGENTS["default"], marks=pytest.mark.slow),
        pytest.param(AGENTS["direct"], marks=pytest.mark.slow),
    ],
)
def test_dyna_q_learns_and_acts_the_same(agent):
    chip = DynaQOnChip(agent, interpret=True)
    plain = jax.jit(jax.vmap(agent.init))(KEYS[:2])
    boarded = jax.jit(jax.vmap(chip.enter))(plain)
    leave = jax.jit(jax.vmap(chip.leave))
    check_close(leave(boarded), plain, 0)
    update, update_on_chip = jax.jit(jax.vmap(agent.update)), jax.jit(jax.vmap(chip.update))
    for key in KEYS[2:6]:  # long enough for two copies into the target network
        batches = draw_batches(key, 2)
        plain, metrics = update(plain, batches, KEYS[6:8])
        boarded, metrics_on_chip = update_on_chip(boarded, batches, KEYS[6:8])
        check_close(metrics_on_chip, metrics, 2e-5)
    check_close(leave(boarded), plain, 2e-5)
    errors, errors_on_chip = (jax.jit(jax.vmap(form.errors)) for form in (agent, chip))
    check_close(errors_on_chip(boarded, batches), errors(plain, batches), 1e-4)
    seen = batches.items.observation[:, 0, 0]
    for explore in (False, True):
        ours, theirs = (
            jax.jit(
                jax.vmap(lambda s, o, k, form=form: form.act(s, (), o, k, explore=explore)[0])  # noqa: B023
            )(state, seen, KEYS[8:10])
            for form, state in ((chip, boarded), (agent, plain))
        )
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "change",
    [
        {"value": MLP((16,), "relu")},
        {"encoder": MLP(())},
        {"head": MLP((256,))},
        {"observation_shape": (8, 8, 3)},
        {"stack_model": False},
        {"batch_size": 256},
        {"encoder": MLP((128,))},  # and the action makes it wider
        {"observation_shape": (300,)},
    ],
    ids=str,
)
def test_what_the_kernels_do_not_know_is_left_to_the_plain_form(change):
    assert DynaQOnChip.fits(AGENT)
    assert not DynaQOnChip.fits(replace(AGENT, **change))
    assert on_chip(AGENT) is None or is_supported()


@pytest.mark.parametrize("chosen", [None, "cpu", jax.Device], ids=["none", "name", "device"])
def test_kernels_are_chosen_by_the_device_in_use(monkeypatch, chosen):
    """There is a GPU, but somebody may compute on the CPU beside it."""
    gpu = SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="a GPU")
    cpus = jax.devices("cpu")
    for name in ("devices", "local_devices"):
        monkeypatch.setattr(jax, name, lambda backend=None: cpus if backend == "cpu" else [gpu])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "device_count", lambda backend=None: 1)
    with jax.default_device(cpus[0] if chosen is jax.Device else chosen):
        is_gpu = chosen is None
        assert is_supported() == is_gpu
        assert (on_chip(AGENT) is not None) == is_gpu
        assert (recurrence.in_a_row(50) > 1) == is_gpu
        assert (provenance()["hardware"]["device"] == "1 x a GPU") == is_gpu


@pytest.mark.slow
def test_a_stretch_on_chip_ends_where_a_plain_one_does(monkeypatch):
    """The whole loop: enter, act, store, sample, learn, leave."""
    pack = tiny_pack()
    agent = replace(
        pack.lead.agent,
        encoder=MLP((16,)),
        head=MLP((16,)),
        value=MLP((16,)),
        stack_model=True,
        observation_shape=pack.lead.environment.spec.observation_shape,
    )
    pack = packs.Pack(tuple(replace(e, agent=agent) for e in pack.experiments))
    task = pack.lead.environment.train_task(1)
    finals = []
    for form in (None, DynaQOnChip(agent, interpret=True)):
        monkeypatch.setattr(packs, "on_chip", lambda _, form=form: form)
        jax.clear_caches()
        runs = jax.tree.map(jnp.copy, loop.init(pack, outline_localities(pack)))
        runs, _ = loop.advance(pack, runs, task, jnp.int32(0), jnp.int32(40), True)
        runs, tally = loop.advance(pack, runs, task, jnp.int32(40), jnp.int32(12), False)
        finals.append(jax.device_get((runs.agents, tally.sums)))
    jax.clear_caches()
    check_close(finals[1], finals[0], 1e-4)
