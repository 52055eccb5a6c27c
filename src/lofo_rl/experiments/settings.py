"""A run's settings as the paper's tables print them."""

from typing import Any

from lofo_rl.agents import Dreamer, DynaQ, PlaNet, WorldModel
from lofo_rl.agents.losses import BalancedKL
from lofo_rl.buffers import Local, Prioritized
from lofo_rl.experiments.experiment import Experiment
from lofo_rl.functional import ByReward, Sampler, Uniform
from lofo_rl.locality import Contrastive, Handcrafted
from lofo_rl.networks import CNN, MLP, Chain, TransposedCNN

Section = tuple[str, list[tuple[str, Any]]]


def describe(experiment: Experiment, printed: Experiment | None = None) -> str:
    """The experiment setup, the buffer and the agent, as text.

    Beside what differs from `printed`, the same run with the paper's own numbers, stand these.
    """
    sections = _sections(experiment)
    published = [dict(entries) for _, entries in _sections(printed or experiment)]
    where = f"in the paper: {experiment.figure}".replace("in the paper: none", "not in the paper")
    lines = [f"{experiment.id}  ({where})"]
    for (title, entries), theirs in zip(sections, published, strict=True):
        lines += ["", title]
        for label, value in entries:
            is_own = theirs.get(label, value) != value
            mark = f"  (as printed: {theirs[label]})" if is_own else ""
            lines.append(f"  {label:44} {value}{mark}")
    return "\n".join(lines)


def _sections(experiment: Experiment) -> list[Section]:
    sections = [_setup(experiment), _buffer(experiment)]
    agent = experiment.agent
    if isinstance(agent, DynaQ):
        sections.append(_dyna_q(agent))
    if isinstance(agent, Dreamer | PlaNet):
        sections.append(_world_model(agent.model))
        sections.append(_dreamer(agent) if isinstance(agent, Dreamer) else _planet(agent))
    return sections


def _setup(experiment: Experiment) -> Section:
    schedule = experiment.schedule
    entries = [
        *((f"Phase {p.number} steps", f"{p.steps:,}") for p in experiment.phases),
        ("Fraction of the paper's length", f"{experiment.fraction:g}"),
        ("Maximum steps of an episode", experiment.environment.spec.time_limit),
        ("Discount factor", experiment.environment.spec.discount),
        ("Training steps between two evaluations", f"{schedule.evaluate_every:,}"),
        ("Evaluation episodes", schedule.episodes or "one from every start"),
        ("Random steps before training", f"{schedule.warmup:,}"),
        ("Updates every so many steps", f"{schedule.updates} / {schedule.steps_per_update}"),
        *([("Updates before the first", schedule.pretraining)] if schedule.pretraining else []),
        ("Seeds", " ".join(map(str, experiment.seeds))),
        *((f"Optimal return, phase {p.number}", p.optimum) for p in experiment.phases),
        ("Phase-1 policy scored in phase 2", experiment.phases[-1].stale),
    ]
    return f"Experiment setup ({experiment.environment.spec.name})", entries


def _buffer(experiment: Experiment) -> Section:
    buffer = experiment.buffer
    entries: list[tuple[str, Any]] = [
        ("Capacity", f"{buffer.capacity:,}"),
        ("Sampling of what teaches the model", sampler_words(buffer.sampler)),
    ]
    if buffer.window:
        entries.append(("Length of a sequence", buffer.window))
    if isinstance(buffer.rule, Local):
        entries += [
            ("D_local (radius)", buffer.rule.radius),
            ("N_local (limit)", buffer.rule.limit),
        ]
    locality = buffer.locality
    if isinstance(locality, Handcrafted):
        entries.append(("Handcrafted scale", " ".join(f"{s:.4g}" for s in locality.scale)))
    if isinstance(locality, Contrastive):
        entries += [
            ("Embedding network", network_words(locality.encoder)),
            ("Observations", "standardised" if locality.standardise else "as they are, scaled"),
            ("Optimizer", f"Adam, learning rate {locality.learning_rate:g}"),
            ("beta (negative target)", locality.negative_target),
            (
                "Number of negative samples",
                f"{locality.num_negatives}{', of a batch' if locality.shared_negatives else ''}",
            ),
            ("Mini-batch size", locality.batch_size),
            ("Random steps for the dataset", f"{buffer.locality_steps:,}"),
            ("Number of training epochs", locality.num_epochs),
        ]
    return f"Replay buffer ({buffer.name})", entries


def _dyna_q(agent: DynaQ) -> Section:
    return "Deep Dyna-Q", [
        *_model_entries(agent),
        ("Action-value estimator", network_words(agent.value)),
        ("Value optimizer", f"Adam, learning rate {agent.value_learning_rate:g}"),
        ("Model optimizer", f"Adam, learning rate {agent.model_learning_rate:g}"),
        ("Exploration parameter", f"epsilon greedy, {agent.exploration:g}"),
        ("Target network update frequency", agent.target_period),
        ("Number of model learning steps", agent.num_model_updates),
        ("Number of planning steps", agent.num_planning_updates),
        ("Mini-batch size of model learning, planning", agent.batch_size),
        ("Inputs", "raw" if agent.raw_inputs else "scaled"),
        ("Action input", "one-hot" if agent.one_hot_action else "one scalar"),
        ("Dynamics output", "successor" if agent.direct_dynamics else "change of state"),
        ("Reward in planning", "times termination" if agent.reward_at_end else "as predicted"),
    ]


def _world_model(model: WorldModel) -> Section:
    rssm, divergence = model.rssm, model.divergence
    if isinstance(divergence, BalancedKL):
        scale, balance, free = divergence.scale, divergence.balance, divergence.free
        words = f"scale {scale:g}, balance {balance:g}, {free:g} free nats"
    else:
        words = f"{divergence.free:g} free nats a step"
    return "World model", [
        ("Encoder", network_words(model.encoder)),
        ("Decoder", f"{model.canvas_size} {network_words(model.decoder)}"),
        ("Latent state", str(rssm.latent)),
        ("Recurrent state, hidden units", f"{rssm.deterministic_size}, {rssm.hidden_size}"),
        ("Reward head", network_words(model.reward_head)),
        ("Weight of the reward loss", model.reward_weight),
        ("KL loss", words),
        ("Precision of products", model.compute_dtype),
    ]


def _dreamer(agent: Dreamer) -> Section:
    return "DreamerV2", [
        ("Actor", network_words(agent.actor)),
        ("Critic", network_words(agent.value)),
        ("Model learning rate", f"{agent.model_learning_rate:g}"),
        ("Actor learning rate", f"{agent.actor_learning_rate:g}"),
        ("Critic learning rate", f"{agent.value_learning_rate:g}"),
        ("Discount, lambda of the returns", f"{agent.discount:g}, {agent.trace:g}"),
        ("Imagination horizon", agent.horizon),
        ("Slow critic update frequency", agent.target_period),
        ("Entropy scale", f"{agent.entropy_scale:g}"),
        ("Exploration noise", f"{agent.exploration:g}"),
        ("Batch size", agent.batch_size),
    ]


def _planet(agent: PlaNet) -> Section:
    planner = agent.planner
    return "PlaNet", [
        ("Learning rate", f"{agent.learning_rate:g}"),
        ("Planning horizon", planner.horizon),
        ("Planner iterations", planner.num_iterations),
        ("Candidates, elites", f"{planner.num_candidates}, {planner.num_elites}"),
        ("Exploration noise", f"{agent.exploration:g}"),
        ("Batch size", agent.batch_size),
    ]


def _model_entries(agent: DynaQ) -> list[tuple[str, Any]]:
    joined = f"{network_words(agent.encoder)} (action) "
    answers = f"{joined}{network_words(agent.head)}".strip()
    if agent.decoder is None:
        return [("Dynamics, reward and termination model", answers)]
    return [
        ("Dynamics model", f"{joined}{network_words(agent.decoder)}"),
        ("Reward and termination model", answers),
    ]


def sampler_words(sampler: Sampler | Prioritized) -> str:
    """`by model error, exponent 0.6, floor 0.001`: a sampler and its numbers."""
    if isinstance(sampler, Uniform):
        return "uniform"
    if isinstance(sampler, Prioritized):
        return f"by model error, exponent {sampler.exponent:g}, floor {sampler.floor:g}"
    if isinstance(sampler, ByReward):
        return f"by reward, share {sampler.share:g}"
    return str(sampler)


def network_words(network: Any) -> str:
    """`64 x 64 (tanh)`: a network in the paper's notation."""
    if isinstance(network, Chain):
        return " ".join(filter(None, map(network_words, network.parts)))
    if isinstance(network, CNN | TransposedCNN):
        layers = zip(network.channels, network.kernels, network.strides, strict=True)
        shape = " ".join(f"{c}@{k}x{k}/{s}" for c, k, s in layers)
        kind = "conv" if isinstance(network, CNN) else "transposed conv"
        return f"{kind} {shape} ({network.activation})"
    if isinstance(network, MLP):
        activation = "" if network.activation == "none" else f" ({network.activation})"
        return " x ".join(map(str, network.sizes)) + activation
    return ""
