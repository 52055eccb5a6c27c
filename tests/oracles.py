"""The paper word for word, with lists and dictionaries: slow, obvious, the judge of the rest."""

import dataclasses
import math

import jax
import numpy as np


@dataclasses.dataclass
class Sample:
    """A remembered sample, or the start of a sequence."""

    stamp: int  # how many newcomers there were before
    embedding: tuple[float, ...]
    stream: int = 0
    time: int = 0  # of its stream
    end: int = 0  # one past the last step its window reaches


class Fifo:
    """The oldest leaves once the buffer is full."""

    voids_rewards = False

    def victim(self, samples, capacity, newcomer, lot):
        return samples[0] if len(samples) == capacity else None


class Reservoir:
    """Once the buffer is full, the newcomer takes the row of its lot, if there is such a row."""

    voids_rewards = False

    def __init__(self):
        self.rows = []

    def victim(self, samples, capacity, newcomer, lot):
        if len(self.rows) < capacity:
            self.rows.append(newcomer)
            return None
        if lot >= capacity:
            return newcomer
        victim, self.rows[lot] = self.rows[lot], newcomer
        return victim


class Local:
    """If there are `limit` samples or more within the radius, the oldest of them leaves."""

    voids_rewards = True

    def __init__(self, radius, limit):
        self.radius, self.limit, self.overflow, self.near_total = radius, limit, 0, 0

    def victim(self, samples, capacity, newcomer, lot):
        near = [s for s in samples if math.dist(s.embedding, newcomer.embedding) < self.radius]
        self.near_total += len(near)
        if len(near) >= self.limit:
            return near[0]
        if len(samples) < capacity:
            return None
        self.overflow += 1
        return samples[0]


class TransitionBuffer:
    """Samples in the order of their arrival."""

    def __init__(self, rule, capacity):
        self.rule, self.capacity, self.samples, self.seen = rule, capacity, [], 0

    def add(self, embedding, lot=0, **place):
        """Remember the newcomer; returns whom that cost its place (perhaps the newcomer)."""
        newcomer = Sample(self.seen, embedding, **place)
        self.seen += 1
        victim = self.rule.victim(self.samples, self.capacity, newcomer, lot)
        self.samples.append(newcomer)
        if victim is not None:
            self.samples.remove(victim)
        return victim


class SequenceBuffer:
    """A state-buffer, and a trajectory-buffer with its steps keyed by stream and time."""

    def __init__(self, rule, capacity, window, num_slots):
        self.states = TransitionBuffer(rule, capacity)
        self.window, self.num_slots = window, num_slots
        self.trajectory = {}  # (stream, time) -> payload
        self.unknown = set()  # the keys whose reward is None
        self.length = {}  # stream -> steps seen
        self.lost = 0

    def add(self, payload, embedding, *, is_start=True, stream=0, lot=0):
        """Observe a step of a stream; a closing row is one that is not a start."""
        time = self.length.get(stream, 0)
        self.length[stream] = time + 1
        if is_start:
            victim = self.states.add(
                embedding, lot, stream=stream, time=time, end=time + self.window
            )
            if victim is not None and self.states.rule.voids_rewards:
                self.unknown.add((victim.stream, victim.time))
        self.remove_unreached()
        if self.reaching(stream, time):
            if len(self.trajectory) < self.num_slots:
                self.trajectory[stream, time] = payload
            else:
                self.cut(stream, time)

    def reaching(self, stream, time):
        """The states s_k with k in (time - N, time], unless their chain was cut before."""
        states = self.states.samples
        return [s for s in states if s.stream == stream and s.time <= time < s.end]

    def remove_unreached(self):
        """Remove step i once every s_k with k in (i - N, i] has left the state-buffer."""
        self.trajectory = {k: v for k, v in self.trajectory.items() if self.reaching(*k)}
        self.unknown &= set(self.trajectory)

    def cut(self, stream, time):
        """No room for a step: the windows that wait for it end here, for good."""
        self.lost += 1
        for state in self.reaching(stream, time):
            state.end = time

    def steps(self, state):
        """The keys of the steps that a state's window holds so far."""
        end = min(state.end, self.length[state.stream])
        return [(state.stream, time) for time in range(state.time, end)]


def held(rows):
    """What the packed rows of a device hold, by numpy alone."""
    words, items, start = np.asarray(rows.words), [], 0
    for shape, dtype in rows.leaves:
        size = math.prod(shape) * dtype.itemsize
        end = start + -(-size // 4)
        bits = np.ascontiguousarray(words[..., start:end]).view(np.uint8)[..., :size]
        values = np.ascontiguousarray(bits).view(dtype)
        items.append(values.reshape(*words.shape[:-1], *shape))
        start = end
    return jax.tree.unflatten(rows.structure, items)
