"""The buffer in one file decides as the package does."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lofo_rl.vendor import torch_file

torch = pytest.importorskip("torch")

from gymnasium import spaces

from lofo_rl.adapters.torch import ContrastiveLocality, LoFoReplayBuffer

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")  # xdist cannot import the class of the copy's
BOX = spaces.Box(-1, 1, (2,), np.float32)
DISCRETE = spaces.Discrete(3)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("vendored") / "lofo_buffer.py"
    path.write_text(torch_file())
    return path


@pytest.fixture(scope="module")
def vendored(path):
    spec = importlib.util.spec_from_file_location("lofo_buffer", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["lofo_buffer"] = module
    spec.loader.exec_module(module)
    return module


def test_it_imports_numpy_and_torch_alone(path):
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [part.name for part in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - set(sys.stdlib_module_names) == {"numpy", "torch"}
    code = (
        "import sys; sys.modules['lofo_rl'] = None; import lofo_buffer; "
        "assert 'numba' not in sys.modules and 'gymnasium' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=path.parent, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_it_carries_the_license_of_the_project(path):
    terms = Path(__file__).parents[2] / "LICENSE"
    assert " ".join(terms.read_text().split()[2:]) in " ".join(path.read_text().split())


def test_it_is_python_3_8(path):
    ast.parse(path.read_text(), feature_version=(3, 8))
    vermin = Path(sys.executable).with_name("vermin")  # knows since when each name exists
    if not vermin.exists():
        pytest.skip("vermin is not installed")
    found = subprocess.run([vermin, "-t=3.8-", "--violations", path], capture_output=True)
    assert found.returncode == 0, found.stdout.decode()


def transitions(num, n_envs, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(num):
        obs, following = rng.uniform(-1, 1, (2, n_envs, 2)).astype(np.float32)
        action, reward = rng.integers(3, size=n_envs), rng.normal(size=n_envs)
        yield obs, following, action, reward, rng.random(n_envs) < 0.1


@pytest.mark.parametrize(
    "options",
    [
        {"radius": 0.2, "limit": 2},
        {"radius": 0.2, "group_by": None},
        {"radius": 0.5, "locality": torch.nn.Linear(2, 3)},
        {"keep": 60, "fit_after": 200, "limit": 2},
    ],
    ids=["by action", "per place", "module", "keep"],
)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_it_decides_as_the_package(vendored, options, n_envs, tmp_path):
    rest = (400, BOX, DISCRETE, "cpu", n_envs, False, False)
    own = LoFoReplayBuffer(*rest, seed=5, **options)
    copied = vendored.LoFoReplayBuffer(*rest, seed=5, **options)
    for number, step in enumerate(transitions(3000 // n_envs, n_envs)):
        own.add(*step)
        copied.add(*step)
        if number % 50 == 40:
            for a, b in zip(own.sample(16), copied.sample(16), strict=True):
                assert torch.equal(a, b)
    assert own.metrics() == copied.metrics() and own.metrics()["evictions"] > 500
    copied.save(tmp_path / "buffer")  # one format
    own.load(tmp_path / "buffer")
    assert own.metrics() == copied.metrics()


def test_its_locality_and_its_errors(vendored):
    torch.manual_seed(0)
    own = ContrastiveLocality((2,), num_epochs=2, num_negatives=8)
    copied = vendored.ContrastiveLocality((2,), num_epochs=2, num_negatives=8)
    copied.load_state_dict(own.state_dict())
    obs = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    assert own.fit(obs, obs + 0.1, seed=1) == copied.fit(obs, obs + 0.1, seed=1)
    seen = torch.as_tensor(obs)
    assert torch.equal(own(seen), copied(seen))
    with pytest.raises(vendored.LofoError, match="refuses n_steps"):
        vendored.LoFoReplayBuffer(10, BOX, DISCRETE, radius=1.0, n_steps=3)
    buffer = vendored.LoFoReplayBuffer(
        10, BOX, DISCRETE, "cpu", radius=1.0, handle_timeout_termination=False
    )
    with pytest.raises(vendored.LofoError, match="must be finite"):
        buffer.add(np.full((1, 2), np.nan), obs[:1], np.zeros(1, int), np.zeros(1), np.zeros(1))
