"""What is near? A learned embedding of a grid world, its distances, and what a radius would keep.

The locality sees one-hot observations, in which all poses are about equally far apart. From random
walks it learns which of them are one action apart.
"""

import jax
import numpy as np

from lofo_rl import suggest_radius
from lofo_rl.environments import MiniGrid, Pose
from lofo_rl.locality import Contrastive, Pairs, measure_distances
from lofo_rl.networks import MLP, Chain, linear

world = MiniGrid()
task = world.train_task(1)


def wander(carry, key):
    key_act, key_env = jax.random.split(key)
    action = jax.random.randint(key_act, (), 0, world.spec.num_actions)
    state, answer = world.step(task, carry[0], action, key_env)
    return (state, answer.observation), (carry[1], answer.successor)


key_start, key_walk, key_init, key_fit, key_measure = jax.random.split(jax.random.key(0), 5)
walk = jax.jit(lambda keys: jax.lax.scan(wander, world.reset(task, key_start), keys))
_, (codes, successors) = walk(jax.random.split(key_walk, 10_000))
pairs = Pairs(world.decode(world.codes()), codes, successors)  # a code is its own row

encoder = Chain((MLP((64, 64), "tanh", "torch"), linear(16, "torch")))
locality = Contrastive(encoder, world.spec.observation_shape, num_epochs=3, learning_rate=1e-3)
params, loss = jax.jit(locality.fit)(locality.init(key_init), pairs, key_fit)
print(f"loss {loss['first_loss']:.1f} -> {loss['loss']:.2f} over 3 epochs of 10 000 steps")
distances = measure_distances(locality, params, pairs, key_measure)
print(f"one action apart: {distances['mean_step_distance']:.3f} on average")
print(f"a random pair:    {distances['mean_pair_distance']:.3f}")

points = np.asarray(locality.embed(params, pairs.table))  # of every code


def point(column, row, heading):
    return points[world.encode(Pose(*map(np.int32, (column, row, heading))))]


print("from (3, 3) facing right to")
for words, pose in {
    "the same place, turned left": (3, 3, 3),
    "the next cell ahead": (4, 3, 0),
    "the far corner, facing right": (7, 0, 0),
}.items():
    print(f"  {words:30} {np.linalg.norm(point(3, 3, 0) - point(*pose)):.3f}")

stream = points[codes]
steps = np.linalg.norm(stream - points[successors], axis=-1)
print("a buffer with limit 1 would hold, after 100 000 random steps (there are 248 states)")
for radius in (None, 0.05, 0.2, 0.3):  # None: as suggested
    found = suggest_radius(stream, steps, 100_000, radius=radius)
    print(f"  {found.occupancy:3} samples at radius {found.radius:.3f}")
