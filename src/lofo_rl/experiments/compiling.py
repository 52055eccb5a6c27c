"""Compiles the large programs of a run side by side, from its first moment on.

A run calls one after the other: to learn, to evaluate, to draw maps and films. Compiled when they
are called, each would be waited for; on a GPU the longest takes longer than all others together.
jax keeps what it compiled by function and shapes, so the calls find it.
"""

from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp

from lofo_rl.experiments import loop
from lofo_rl.experiments.film import film, is_filmed
from lofo_rl.experiments.pack import Pack
from lofo_rl.experiments.timeline import evaluation_tasks


class Ahead:
    """What threads compile. They are given traced programs: jax's settings may differ in them."""

    def __init__(self, pack: Pack) -> None:
        runs, number = loop.outline(pack), jnp.int32(0)
        task, tasks = pack.lead.environment.train_task(1), evaluation_tasks(pack, 1)
        given: dict[Any, tuple[Any, ...]] = {
            loop.advance: (task, number, number, False),
            loop.judge: (tasks, number),
            loop.picture: (task,),
        }
        if is_filmed(pack):
            given[film] = (jax.tree.map(lambda x: x[0], tasks),)
        threads = ThreadPoolExecutor(len(given), thread_name_prefix="compiling")
        self._coming = {
            program: threads.submit(program.lower(pack, runs, *rest).compile)
            for program, rest in given.items()
        }
        threads.shutdown(wait=False)

    def wait_for(self, program: Any) -> None:
        """Until it is compiled, so that times leave that out, and an interrupt is heard meanwhile.

        Where it failed, the call itself will say why.
        """
        wait([self._coming[program]])

    def is_ready(self, program: Any) -> bool:
        """Whether nobody would have to wait for it."""
        return self._coming[program].done()
