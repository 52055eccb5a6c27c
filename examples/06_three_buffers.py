"""What three buffers hold after a local change; with matplotlib it draws three_buffers.png."""

import numpy as np

import lofo_rl

CENTRE, ZONE = np.array([0.7, 0.7]), 0.2  # the reward changes inside this disc
rng = np.random.default_rng(0)


def visits(num, in_zone):
    """Random places in a unit square, or inside the zone alone."""
    places = rng.random((num, 2))
    if in_zone:
        angle, distance = 2 * np.pi * places[:, 0], ZONE * np.sqrt(places[:, 1])
        places = CENTRE + distance[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    return places.astype(np.float32)


# 3 000 samples everywhere, then 3 000 inside the zone, where the reward is 0 instead of 1 now.
places = np.concatenate([visits(3000, in_zone=False), visits(3000, in_zone=True)])
is_inside = np.linalg.norm(places - CENTRE, axis=1) < ZONE
is_late = np.arange(6000) >= 3000
items = {"place": places, "reward": (is_inside & ~is_late).astype(np.float32)}

local = lofo_rl.Local(radius=0.04, limit=1)
buffers = {
    "FIFO of everything": lofo_rl.ReplayBuffer(lofo_rl.Fifo(), capacity=10_000),
    "Small FIFO": lofo_rl.ReplayBuffer(lofo_rl.Fifo(), capacity=400),
    "LoFo": lofo_rl.ReplayBuffer(local, capacity=10_000),
}
held = {}
for name, buffer in buffers.items():
    buffer.extend(items, embedding=places)
    held[name] = kept = buffer.contents().items
    num_outside = int((np.linalg.norm(kept["place"] - CENTRE, axis=1) > ZONE).sum())
    num_stale = int(kept["reward"].sum())
    print(f"{name}: {len(buffer)} samples, {num_stale} stale, {num_outside} outside the zone")

try:
    import matplotlib.pyplot as plt
except ImportError:
    raise SystemExit(0) from None
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for axis, (name, kept) in zip(axes, held.items(), strict=True):
    place, is_stale = kept["place"], kept["reward"] > 0
    axis.scatter(*place[~is_stale].T, s=5, color="#4477aa", label="true")
    axis.scatter(*place[is_stale].T, s=5, color="#ee6677", label="stale")
    axis.add_patch(plt.Circle(CENTRE, ZONE, fill=False, color="black"))
    axis.set(title=f"{name}: {len(place)} samples", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axis.set(xticks=[], yticks=[])
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
figure.savefig("three_buffers.png", dpi=120)
