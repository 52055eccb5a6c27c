"""The writer for TorchRL decides as our own buffer, in every storage."""

import pickle
import warnings

import numpy as np
import pytest

from lofo_rl import Fifo, Local, LofoError, LofoWarning, ReplayBuffer, Reservoir

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from tensordict import TensorDict
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    TensorDictReplayBuffer,
)

from lofo_rl.adapters.torchrl import LoFoSampler, LoFoSequence, LoFoWriter

torch.set_num_threads(1)
STORAGES = [LazyTensorStorage, LazyMemmapStorage]
RULES = [Fifo(), Reservoir(), Local(0.3, 2)]


def records(num, seed=0):
    """Random records on a line of places."""
    rng = np.random.default_rng(seed)
    return TensorDict(
        {
            "observation": torch.as_tensor(rng.integers(0, 12, (num, 1)) * 0.25).float(),
            "action": torch.nn.functional.one_hot(torch.as_tensor(rng.integers(0, 3, num)), 3),
            "number": torch.arange(num),
            "next": {"reward": torch.as_tensor(rng.normal(size=(num, 1))).float()},
        },
        batch_size=[num],
    )


def make(rule, capacity=40, storage=LazyTensorStorage, batch_size=8, **options):
    writer = LoFoWriter(rule=rule, **options)
    more = {}
    if writer.window is not None:
        more = {"sampler": LoFoSampler(writer), "sample_unit": LoFoSequence(writer)}
    return TensorDictReplayBuffer(
        storage=storage(capacity), writer=writer, batch_size=batch_size, **more
    )


def held(buffer):
    return sorted(buffer[:]["number"].tolist())


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("group_by", [None, "action"])
def test_it_holds_what_our_buffer_holds(storage, rule, group_by):
    """In batches of any size, in which one row may be written twice."""
    if group_by is not None and not rule.needs_embedding:
        with pytest.raises(LofoError, match="looks at none"):
            LoFoWriter(rule=rule, group_by=group_by)
        return
    buffer, plain = make(rule, storage=storage, group_by=group_by), ReplayBuffer(rule, 40)
    data, start = records(300), 0
    for num in (1, 7, 1, 30, 2, 100, 159):
        part = data[start : start + num]
        rows = buffer.extend(part.clone())
        for i in range(num):
            group = int(part["action"][i].argmax()) if group_by else None
            plain.add(
                {"number": int(part["number"][i])}, embedding=part["observation"][i].numpy(),
                group=group,
            )  # fmt: skip
        start += num
        assert held(buffer) == sorted(plain.contents().items["number"].tolist())
        assert len(buffer) == len(plain) and len(rows) == num
        kept = rows >= 0
        assert (buffer[:]["index"] == torch.arange(len(buffer))).all() or kept.any()
    own = plain.metrics()
    assert buffer._writer.metrics() == {k: own[k] for k in ("size", "evictions", "overflow")}
    assert set(buffer.sample(500)["number"].tolist()) == set(held(buffer))


def test_add_is_extend_of_one():
    one, many = make(Local(0.3, 1)), make(Local(0.3, 1))
    data = records(50)
    for i in range(50):
        one.add(data[i].clone())
    many.extend(data.clone())
    assert held(one) == held(many)


def test_a_locality_and_nested_keys():
    buffer = make(
        Local(0.3, 1), key=("next", "reward"), locality=lambda x: torch.cat([x, 0 * x], -1)
    )
    buffer.extend(records(100))
    values = buffer[:]["next", "reward"].ravel().sort().values
    plain = ReplayBuffer(Local(0.3, 1), 40)
    for value in records(100)["next", "reward"].ravel().tolist():
        plain.add({"x": value}, embedding=[value, 0])
    np.testing.assert_allclose(values, np.sort(plain.contents().items["x"]))


@pytest.mark.parametrize("way", ["state_dict", "dumps"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("rule", RULES[1:], ids=lambda rule: type(rule).__name__)
def test_a_saved_buffer_goes_on(tmp_path, way, window, rule):
    data = records(200)
    first, second = make(rule, window=window), make(rule, window=window)
    first.extend(data[:90].clone())
    if way == "state_dict":
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    else:
        first.dumps(tmp_path)
        second.extend(data[:1].clone())  # TorchRL loads into a storage that knows its form
        second.loads(tmp_path)
    for buffer in (first, second):
        buffer.extend(data[90:].clone())
    assert (first[:]["number"] == second[:]["number"]).all()
    assert first._writer.metrics() == second._writer.metrics()
    other = make(Local(0.9, 1), window=window)
    with pytest.raises(LofoError, match="not Local"):
        other._writer.load_state_dict(first._writer.state_dict())


def test_emptied_it_begins_anew():
    buffer = make(Local(0.3, 1))
    buffer.extend(records(100))
    buffer.empty()
    assert len(buffer) == 0 and buffer._writer.metrics()["size"] == 0
    buffer.extend(records(1))
    assert len(buffer) == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_sequences_are_those_of_our_buffer(rule):
    """Two streams in turns: starts, steps and known rewards, after every batch."""
    window, data = 4, records(400)
    data["stream"] = torch.arange(400) % 2
    buffer = make(
        rule, 60, window=window, num_starts=12, stream_key="stream", num_streams=2, batch_size=5
    )
    plain = ReplayBuffer(rule, 12, window=window, num_streams=2, num_slots=60)
    num_unknown = 0
    for start in range(0, 400, 20):
        part = data[start : start + 20]
        buffer.extend(part.clone())
        for i in range(20):
            plain.add(
                {"number": int(part["number"][i])}, embedding=part["observation"][i].numpy(),
                stream=int(part["stream"][i]),
            )  # fmt: skip
        if not plain.can_sample():
            continue
        expected = plain.contents()
        wanted = {
            tuple(line): tuple(known)
            for line, known in zip(
                expected.items["number"].tolist(), expected.reward_known.tolist(), strict=True
            )
        }
        drawn = buffer.sample(200)
        lines = drawn["number"].reshape(200, window).tolist()
        known = drawn["reward_known"].reshape(200, window).tolist()
        found = {tuple(a): tuple(b) for a, b in zip(lines, known, strict=True)}
        assert found == wanted
        num_unknown += sum(not all(flags) for flags in wanted.values())
    assert (num_unknown > 0) == rule.voids_rewards
    assert drawn.batch_size == (200 * window,)


def test_a_walker_that_erases_its_own_trail_is_warned_of():
    data = records(3000)
    data["observation"] = 0.02 * torch.randn(3000, 2).cumsum(0)
    buffer = make(Local(0.5, 1), 400, window=8)
    with pytest.warns(LofoWarning, match="the radius is larger than a step"):
        buffer.extend(data.clone())
    with warnings.catch_warnings():  # once
        warnings.simplefilter("error", LofoWarning)
        buffer.extend(data.clone())
    fine = make(Local(0.5, 60), 4000, window=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LofoWarning)
        fine.extend(data.clone())


def test_prefetched_samples_are_whole():
    writer = LoFoWriter(radius=0.3, limit=2)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40), writer=writer, batch_size=16, prefetch=3
    )
    data = records(2000)
    data["twice"] = 2 * data["number"]
    for start in range(0, 2000, 10):
        buffer.extend(data[start : start + 10].clone())
        drawn = buffer.sample()
        assert (drawn["twice"] == 2 * drawn["number"]).all()


def test_what_cannot_work_is_refused():
    with pytest.raises(LofoError, match="ndim=1, got ndim=2"):
        TensorDictReplayBuffer(storage=LazyTensorStorage(40, ndim=2), writer=LoFoWriter(radius=1))
    with pytest.raises(LofoError, match="with a max_size"):
        TensorDictReplayBuffer(storage=ListStorage(), writer=LoFoWriter(radius=1))
    with pytest.raises(LofoError, match="either radius= or rule="):
        LoFoWriter()
    with pytest.raises(LofoError, match="cannot be copied or sent"):
        pickle.dumps(make(Local(0.3, 1))._writer)
    with pytest.raises(LofoError, match="with window="):
        LoFoSampler(LoFoWriter(radius=1))
    with pytest.raises(LofoError, match="cannot hold a window of 50"):
        make(Local(0.3, 1), window=50)
    buffer = make(Local(0.3, 1), window=3)
    buffer.extend(records(1))
    with pytest.raises(LofoError, match="no sequence of 3 records is complete"):
        buffer.sample()
    writer = LoFoWriter(radius=1, window=3)
    alone = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40), writer=writer, sampler=LoFoSampler(writer), batch_size=2
    )
    with pytest.raises(LofoError, match="and sample_unit=LoFoSequence"):
        alone.extend(records(5))
    with pytest.raises(LofoError, match="key='speed' is no entry of the records"):
        make(Local(0.3, 1), key="speed").extend(records(3))
    continuous = records(3)
    continuous["action"] = torch.rand(3, 2)
    with pytest.raises(LofoError, match="must be integers or one-hot"):
        make(Local(0.3, 1), group_by="action").extend(continuous)
    with pytest.raises(LofoError, match=r"records must be flat"):
        make(Local(0.3, 1)).extend(records(6).reshape(3, 2))
    grouped, plain = make(Local(0.3, 1), group_by="action"), make(Local(0.3, 1))
    for each in (grouped, plain):
        each.extend(records(20))
    size = grouped._writer.metrics()["size"]
    generator = grouped._writer._generator
    with pytest.raises(LofoError, match="missing"):
        grouped._writer.load_state_dict(plain._writer.state_dict())
    assert grouped._writer._generator is generator
    assert grouped._writer.metrics()["size"] == size == len(grouped)
    buffer = make(Local(0.3, 1))
    bad = records(3)
    bad["observation"][1] = torch.nan
    with pytest.raises(LofoError, match="embedding 1 of 3 must be finite"):
        buffer.extend(bad)
    assert len(buffer) == 0
