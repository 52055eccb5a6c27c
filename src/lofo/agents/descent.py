"""Steps of Adam; on a GPU one kernel takes the small arrays of a network all at once.

Each of them alone is the work of a microsecond, and there are a dozen and a half in a model of
pictures. Large arrays are left to the compiler, which may join a step to what made the gradient.
"""

from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from lofo.networks import onchip
from lofo.types import Array, Tree

LARGEST = 2**18  # numbers of an array that the kernel takes
NUM_WORDS = 1024  # that a program takes
NUM_WARPS = 4


def descend(
    params: Tree, gradient: Tree, state: Tree, learning_rate: float, epsilon: float
) -> tuple[Tree, Tree]:
    """One step of `optax.adam`: the parameters and the optimiser's state behind it."""
    if onchip.is_supported():
        return descend_together(params, gradient, state, learning_rate, epsilon)
    optimiser = optax.adam(learning_rate, eps=epsilon)
    change, state = optimiser.update(gradient, state)
    return optax.apply_updates(params, change), state


def descend_together(
    params: Tree,
    gradient: Tree,
    state: Tree,
    learning_rate: float,
    epsilon: float,
    interpret: bool = False,
) -> tuple[Tree, Tree]:
    """The same, with the small arrays in one kernel."""
    adam, *rest = state
    count = optax.safe_increment(adam.count)
    decays = jnp.array([onchip.DECAY_MEAN, onchip.DECAY_SQUARE])
    scales = 1 / (1 - decays**count)
    columns = [jax.tree.leaves(tree) for tree in (params, adam.mu, adam.nu, gradient)]
    arrays = list(zip(*columns, strict=True))
    step = partial(onchip.descend, learning_rate=learning_rate, epsilon=epsilon)
    small = [leaves for leaves in arrays if leaves[0].size <= LARGEST]
    taken = iter(_take(step, small, scales, interpret) if small else ())
    found = [
        next(taken)
        if leaves[0].size <= LARGEST
        else step(leaves[:3], leaves[3], (scales[0], scales[1]))
        for leaves in arrays
    ]
    values, means, squares = (
        jax.tree.unflatten(jax.tree.structure(params), kind) for kind in zip(*found, strict=True)
    )
    return values, (adam._replace(count=count, mu=means, nu=squares), *rest)


def _take(
    step: Any, arrays: list[tuple[Array, ...]], scales: Array, interpret: bool
) -> list[tuple[Array, ...]]:
    """Values, means and squares behind a step, from those and gradients."""
    flat = [x.reshape(-1) for kind in zip(*arrays, strict=True) for x in kind]
    sizes = [leaves[0].size for leaves in arrays]
    num_states = 3 * len(arrays)
    found = pl.pallas_call(
        partial(_kernel, step, sizes),
        grid=(sum(pl.cdiv(size, NUM_WORDS) for size in sizes),),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in flat[:num_states]],
        input_output_aliases={1 + k: k for k in range(num_states)},
        compiler_params=plt.CompilerParams(num_warps=NUM_WARPS, num_stages=1),
        interpret=interpret,
        name="descend",
    )(scales, *flat)
    kinds = (found[k :: len(arrays)] for k in range(len(arrays)))
    return [
        tuple(x.reshape(leaves[0].shape) for x in kind)
        for kind, leaves in zip(kinds, arrays, strict=True)
    ]


def _kernel(step: Any, sizes: list[int], scales: Any, *refs: Any) -> None:
    num = len(sizes)
    given, found = refs[: 4 * num], refs[4 * num :]
    ends = list(accumulate(pl.cdiv(size, NUM_WORDS) for size in sizes))
    program = pl.program_id(0)
    for k, (size, start, end) in enumerate(zip(sizes, [0, *ends], ends, strict=False)):

        @pl.when((program >= start) & (program < end))
        def _(k: int = k, size: int = size, start: int = start) -> None:
            at = (program - start) * NUM_WORDS + jnp.arange(NUM_WORDS)
            inside = at < size
            *old, slope = (plt.load(x.at[at], mask=inside, other=0.0) for x in given[k::num])
            new = step(tuple(old), slope, (scales[0], scales[1]))
            for ref, array in zip(found[k::num], new, strict=True):
                plt.store(ref.at[at], array, mask=inside)
