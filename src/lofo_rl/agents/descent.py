"""Steps of Adam, norms, and networks that follow others; on a GPU one kernel takes many arrays.

Each of them alone is the work of a microsecond, and there are a dozen and a half in a model of
pictures. Large arrays take their steps by the compiler, which may join them to what made the
gradient.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from lofo_rl.networks import onchip
from lofo_rl.types import Array, Tree

LARGEST = 2**18  # numbers of an array that the kernel takes
NUM_WORDS = 1024  # that a program takes
NUM_WARPS = 4


def remember(params: Tree) -> Tree:
    """What Adam begins with."""
    return optax.adam(0.0).init(params)


def descend(
    params: Tree,
    gradient: Tree,
    state: Tree,
    learning_rate: float | Array,
    epsilon: float | Array,
    limit: float | None = None,
    decay: float = 0.0,
) -> tuple[Tree, Tree]:
    """One step of `optax.adam`: the parameters and the optimiser's state behind it.

    `limit` is that of the gradient's norm; `decay` the share that parameters lose in every step.
    """
    if onchip.is_supported():
        return descend_together(params, gradient, state, learning_rate, epsilon, limit, decay)
    if limit is not None:
        scale = _scale(optax.tree.norm(gradient), limit)
        gradient = jax.tree.map(lambda x: scale * x, gradient)
    optimiser = optax.adam(learning_rate, eps=epsilon)
    change, state = optimiser.update(gradient, state)
    if decay:
        change = jax.tree.map(lambda x, value: x - decay * value, change, params)
    return optax.apply_updates(params, change), state


def descend_together(
    params: Tree,
    gradient: Tree,
    state: Tree,
    learning_rate: float | Array,
    epsilon: float | Array,
    limit: float | None = None,
    decay: float = 0.0,
    interpret: bool = False,
) -> tuple[Tree, Tree]:
    """The same, with the small arrays in one kernel."""
    adam, *rest = state
    count = optax.safe_increment(adam.count)
    others: list[float | Array] = [learning_rate, epsilon]
    if limit is not None:
        # Written down in order for its norm, it is read again, not computed and turned round again.
        flat = jax.lax.optimization_barrier(jax.tree.map(jnp.ravel, gradient))
        gradient = jax.tree.map(lambda x, like: x.reshape(like.shape), flat, gradient)
        others += [_scale(norm_together(flat, interpret), limit), decay]
    elif decay:
        others += [1.0, decay]
    numbers = _gather(count, others)
    columns = [jax.tree.leaves(tree) for tree in (params, adam.mu, adam.nu, gradient)]
    arrays = list(zip(*columns, strict=True))
    small = [leaves for leaves in arrays if leaves[0].size <= LARGEST]
    taken = iter(_take(small, numbers, interpret) if small else ())
    found = [
        next(taken) if leaves[0].size <= LARGEST else _step(leaves[:3], leaves[3], numbers)
        for leaves in arrays
    ]
    values, means, squares = (
        jax.tree.unflatten(jax.tree.structure(params), kind) for kind in zip(*found, strict=True)
    )
    return values, (adam._replace(count=count, mu=means, nu=squares), *rest)


def norm_together(tree: Tree, interpret: bool = False) -> Array:
    """The length of all arrays as one vector: `optax.tree.norm`, its squares by one kernel."""
    flat = [x.reshape(-1) for x in jax.tree.leaves(tree)]
    sizes = [x.size for x in flat]
    num_programs = sum(pl.cdiv(size, NUM_WORDS) for size in sizes)
    squares = pl.pallas_call(
        partial(_square_kernel, sizes),
        grid=(num_programs,),
        out_shape=jax.ShapeDtypeStruct((num_programs,), jnp.float32),
        compiler_params=plt.CompilerParams(num_warps=NUM_WARPS, num_stages=1),
        interpret=interpret,
        name="squares",
    )(*flat)
    return jnp.sqrt(jnp.sum(squares))


def _gather(count: Array, others: list[float | Array]) -> Array:
    """All that steps share in one array, for a kernel takes arrays only.

    Put together by choosing: joining arrays would take a kernel more.
    """
    decays = jnp.array([onchip.DECAY_MEAN, onchip.DECAY_SQUARE] + [0.0] * len(others))
    place = jnp.arange(len(decays))
    found = 1 / (1 - decays**count)  # 1 in the places of the others
    for k, other in enumerate(others, 2):
        found = jnp.where(place == k, other, found)
    return found


def _scale(norm: Array, limit: float) -> Array:
    """What keeps a gradient within a norm."""
    return jnp.where(norm < limit, 1.0, limit / norm)


def _step(old: tuple[Array, ...], slope: Array, numbers: Any) -> tuple[Array, ...]:
    value, mean, square = old
    is_plain = numbers.shape == (4,)  # neither limit nor decay
    slope = slope if is_plain else numbers[4] * slope
    found, mean, square = onchip.descend(
        (value, mean, square), slope, (numbers[0], numbers[1]), numbers[2], numbers[3]
    )
    return found if is_plain else found - numbers[5] * value, mean, square


def _take(
    arrays: list[tuple[Array, ...]], numbers: Array, interpret: bool
) -> list[tuple[Array, ...]]:
    """Values, means and squares behind a step, from those and gradients."""
    flat = [x.reshape(-1) for kind in zip(*arrays, strict=True) for x in kind]
    sizes = [leaves[0].size for leaves in arrays]
    found = _call(_descend_kernel, "descend", sizes, numbers, flat, interpret)
    kinds = (found[k :: len(arrays)] for k in range(len(arrays)))
    return [
        tuple(x.reshape(leaves[0].shape) for x in kind)
        for kind, leaves in zip(kinds, arrays, strict=True)
    ]


def follow(leader: Tree, follower: Tree, is_due: Array) -> Tree:
    """The leader where that is due, and else the follower."""
    if onchip.is_supported():
        return follow_together(leader, follower, is_due)
    return jax.tree.map(lambda new, old: jnp.where(is_due, new, old), leader, follower)


def follow_together(leader: Tree, follower: Tree, is_due: Array, interpret: bool = False) -> Tree:
    """The same in one kernel, which moves nothing where nothing is due."""
    leaves, structure = jax.tree.flatten(follower)
    sizes = [leaf.size for leaf in leaves]
    flat = [x.reshape(-1) for x in (*leaves, *jax.tree.leaves(leader))]
    is_due = is_due.astype(jnp.int32).reshape(1)
    found = _call(_follow_kernel, "follow", sizes, is_due, flat, interpret)
    shaped = [x.reshape(leaf.shape) for x, leaf in zip(found, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def _call(
    kernel: Any, name: str, sizes: list[int], shared: Array, flat: list[Array], interpret: bool
) -> list[Array]:
    """A kernel for arrays of some sizes, of several kinds: all but the last kind it changes."""
    num_changed = len(flat) - len(sizes)
    found: list[Array] = pl.pallas_call(
        partial(kernel, sizes),
        grid=(sum(pl.cdiv(size, NUM_WORDS) for size in sizes),),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in flat[:num_changed]],
        input_output_aliases={1 + k: k for k in range(num_changed)},
        compiler_params=plt.CompilerParams(num_warps=NUM_WARPS, num_stages=1),
        interpret=interpret,
        name=name,
    )(shared, *flat)
    return found


def _descend_kernel(sizes: list[int], numbers: Any, *refs: Any) -> None:
    given, found = refs[: 4 * len(sizes)], refs[4 * len(sizes) :]

    def take(k: int, at: Array, inside: Array) -> None:
        own = given[k :: len(sizes)]
        *old, slope = (plt.load(x.at[at], mask=inside, other=0.0) for x in own)
        new = _step(tuple(old), slope, numbers)
        for ref, array in zip(found[k :: len(sizes)], new, strict=True):
            plt.store(ref.at[at], array, mask=inside)

    _share(sizes, take, True)


def _square_kernel(sizes: list[int], *refs: Any) -> None:
    *given, found = refs
    program = pl.program_id(0)

    def take(k: int, at: Array, inside: Array) -> None:
        words = plt.load(given[k].at[at], mask=inside, other=0.0)
        plt.store(found.at[program], jnp.sum(words * words))

    _share(sizes, take, True)


def _follow_kernel(sizes: list[int], is_due: Any, *refs: Any) -> None:
    leaders, found = refs[len(sizes) : 2 * len(sizes)], refs[2 * len(sizes) :]

    def take(k: int, at: Array, inside: Array) -> None:
        new = plt.load(leaders[k].at[at], mask=inside, other=0.0)
        plt.store(found[k].at[at], new, mask=inside)

    _share(sizes, take, is_due[0] > 0)


def _share(
    sizes: list[int], take: Callable[[int, Array, Array], None], is_due: Array | bool
) -> None:
    """Lets this program take the words of the array that are its own."""
    ends = list(accumulate(pl.cdiv(size, NUM_WORDS) for size in sizes))
    program = pl.program_id(0)
    for k, (size, start, end) in enumerate(zip(sizes, [0, *ends], ends, strict=False)):

        @pl.when((program >= start) & (program < end) & is_due)
        def _(k: int = k, size: int = size, start: int = start) -> None:
            at = (program - start) * NUM_WORDS + jnp.arange(NUM_WORDS)
            take(k, at, at < size)
