"""The paper with lists and dictionaries: slow and obvious. All other forms must equal it."""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass
class Sample:
    """A stored sample, or the start of a sequence."""

    stamp: int  # how many samples came before
    embedding: tuple[float, ...]
    group: int = 0
    stream: int = 0
    time: int = 0  # of its stream
    end: int = 0  # one past the last step its window reaches


class Fifo:
    """The oldest leaves once the buffer is full."""

    voids_rewards = False

    def replaced(self, samples, capacity, new, draw):
        return samples[0] if len(samples) == capacity else None


class Reservoir:
    """In a full buffer, a new sample takes the row that was drawn, if there is one."""

    voids_rewards = False

    def __init__(self):
        self.rows = []

    def replaced(self, samples, capacity, new, draw):
        if len(self.rows) < capacity:
            self.rows.append(new)
            return None
        if draw >= capacity:
            return new
        left, self.rows[draw] = self.rows[draw], new
        return left


class Local:
    """If there are `limit` samples or more within the radius, the oldest of them leaves."""

    voids_rewards = True

    def __init__(self, radius, limit):
        self.radius, self.limit, self.overflow, self.near_total = radius, limit, 0, 0

    def replaced(self, samples, capacity, new, draw):
        near = [
            s
            for s in samples
            if s.group == new.group and math.dist(s.embedding, new.embedding) < self.radius
        ]
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

    def add(self, embedding, draw=0, **place):
        """Store a new sample; returns the sample that left (perhaps the new one), or None."""
        new = Sample(self.seen, embedding, **place)
        self.seen += 1
        left = self.rule.replaced(self.samples, self.capacity, new, draw)
        self.samples.append(new)
        if left is not None:
            self.samples.remove(left)
        return left


class SequenceBuffer:
    """A state-buffer, and a trajectory-buffer with its steps keyed by stream and time."""

    def __init__(self, rule, capacity, window, num_slots):
        self.states = TransitionBuffer(rule, capacity)
        self.window, self.num_slots = window, num_slots
        self.trajectory = {}  # (stream, time) -> payload
        self.unknown = set()  # the keys whose reward is None
        self.length = {}  # stream -> steps seen
        self.lost = 0

    def add(self, payload, embedding, *, is_start=True, stream=0, draw=0, group=0):
        """Observe a step of a stream; a closing row is one that is not a start."""
        time = self.length.get(stream, 0)
        self.length[stream] = time + 1
        if is_start:
            end = time + self.window
            left = self.states.add(embedding, draw, stream=stream, time=time, end=end, group=group)
            if left is not None and self.states.rule.voids_rewards:
                self.unknown.add((left.stream, left.time))
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
    """The items in the packed rows of a device, by NumPy alone."""
    import jax

    words, items, start = np.asarray(rows.words), [], 0
    for shape, dtype in rows.leaves:
        size = math.prod(shape) * dtype.itemsize
        end = start + -(-size // 4)
        bits = np.ascontiguousarray(words[..., start:end]).view(np.uint8)[..., :size]
        values = np.ascontiguousarray(bits).view(dtype)
        items.append(values.reshape(*words.shape[:-1], *shape))
        start = end
    return jax.tree.unflatten(rows.structure, items)
