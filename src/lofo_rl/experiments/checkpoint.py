"""Checkpoints: flat arrays and a JSON manifest in one file; loading it executes nothing.

The file is written whole under another name and then renamed, so at every moment the folder
holds one complete checkpoint: the old one or the new one.
"""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lofo_rl.types import LofoError, Tree

CHECKPOINT = "checkpoint.npz"
MANIFEST = "manifest"
FORMAT = 2


def save(folder: Path, state: Tree, manifest: dict[str, Any], name: str = CHECKPOINT) -> None:
    """Replaces the folder's checkpoint, or another file of arrays."""
    leaves = _named(state)
    text = json.dumps({"format": FORMAT, **manifest})
    arrays = {path: np.asarray(leaf) for path, leaf in leaves.items()}
    arrays[MANIFEST] = np.frombuffer(text.encode(), np.uint8)
    part = folder / f"{name}.part"
    with open(part, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # the stub confuses names with options
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, folder / name)


def read_manifest(folder: Path, name: str = CHECKPOINT) -> dict[str, Any] | None:
    """What the folder's checkpoint says of itself, or None where there is none."""
    path = folder / name
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            manifest = dict(json.loads(bytes(file[MANIFEST])))
    except Exception as error:  # a damaged file can raise almost anything
        raise _damaged(path, error) from error
    if manifest.get("format") != FORMAT:
        raise LofoError(
            f"{path} has checkpoint format {manifest.get('format')}, this version reads {FORMAT}"
        )
    return manifest


def load(folder: Path, like: Tree, name: str = CHECKPOINT) -> Tree:
    """The checkpoint's state, strict on names, shapes and dtypes of `like`."""
    path = folder / name
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {leaf: file[leaf] for leaf in file.files if leaf != MANIFEST}
    except Exception as error:  # as above
        raise _damaged(path, error) from error
    expected = _named(like)
    if missing := expected.keys() ^ stored.keys():
        raise LofoError(
            f"{path} does not fit this run: {sorted(missing)[0]} is on one side only; if another "
            "version wrote it, start again in another folder (--out)"
        )
    for leaf, want in expected.items():
        have = stored[leaf]
        if have.shape != want.shape or have.dtype != want.dtype:
            raise LofoError(
                f"{path} does not fit this run: {leaf} is {have.dtype}{list(have.shape)}, "
                f"expected {want.dtype}{list(want.shape)}"
            )
    return jax.tree.unflatten(jax.tree.structure(like), [stored[leaf] for leaf in expected])


def _damaged(path: Path, error: Exception) -> LofoError:
    return LofoError(
        f"{path} is damaged ({error}): move it, or choose another folder (--out); rows are kept"
    )


def _named(state: Tree) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
