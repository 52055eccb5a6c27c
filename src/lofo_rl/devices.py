"""Which device is in use: the one place that asks jax, for all that chooses kernels by it."""

import jax


def in_use() -> jax.Device:
    """Where jax computes now: the device of `jax.default_device`, else the first that it has.

    Arrays that were put elsewhere by hand (`jax.device_put`) take their programs along unseen.
    """
    chosen: jax.Device | str | None = jax.config.jax_default_device  # type: ignore[attr-defined]  # made at run time
    if isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen or jax.local_devices()[0]


def is_cpu() -> bool:
    """Whether that is no accelerator."""
    return in_use().platform == "cpu"
