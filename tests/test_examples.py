"""Every example runs as it stands, in seconds, and prints something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def run(path, folder):
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(path)],
        capture_output=True, text=True, cwd=folder, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_runs(path, tmp_path):
    assert len(path.read_text().splitlines()) < 60
    told = run(path, tmp_path)
    assert told.strip()
    if path.stem == "01_buffer":
        check_that_the_stale_neighbor_leaves(told)


def check_that_the_stale_neighbor_leaves(told):
    fifo, local = told.split("Local(")
    assert "in cell 0 the reward is 4.0" in fifo and "in cell 0 the reward is 4.0" not in local
    assert "in cell 0 the reward is 0.0" in local and "rewards [ 0. nan  2.]" in local
