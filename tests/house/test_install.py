"""What is shipped, and that the base works where nothing but NumPy is installed."""

import email.message
import email.policy
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import lofo_rl
from lofo_rl import cli

ROOT = Path(__file__).parents[2]
MEGABYTE = 1_000_000
# What the base tests need, and what that needs.
TESTING = (
    *("numpy", "pytest", "pluggy", "iniconfig", "packaging", "pygments"),
    *("hypothesis", "sortedcontainers"),
)
RELATIVE_LINK = re.compile(r"\]\((?!https:)[^)]*\)")


def run(*words: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Without PYTHONPATH, so that an environment has what is installed in it alone."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options: dict[str, Any] = {"cwd": cwd, "env": env, "capture_output": True, "text": True}
    return subprocess.run([*map(str, words)], check=False, **options)


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def wheel(shipped: Path) -> Path:
    (path,) = shipped.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def told(wheel: Path) -> email.message.Message:
    """The wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return email.message_from_bytes(archive.read(name), policy=email.policy.compat32)


@pytest.fixture(scope="session")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment with the wheel, NumPy, pytest and hypothesis alone.

    The packages are links to those of this environment, so that no index is asked.
    """
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for distribution in map(metadata.distribution, TESTING):
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (packages / name).symlink_to(Path(str(distribution.locate_file(name))).resolve())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return folder / "bin" / "python"


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
    own = {name for name in sizes if not name.startswith("lofo_rl-")}
    sources = (ROOT / "src").rglob("*")
    kept = {
        str(path.relative_to(ROOT / "src"))
        for path in sources
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert own == kept and "lofo_rl/py.typed" in own
    assert wheel.stat().st_size < MEGABYTE
    assert sum(sizes.values()) < 2 * MEGABYTE


def test_the_sdist_holds_no_results_and_no_images(shipped: Path) -> None:
    (path,) = shipped.glob("*.tar.gz")
    assert path.stat().st_size < 2 * MEGABYTE
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "tests/oracles.py"} <= names
    assert not [name for name in names if name.startswith("results/")]
    assert not [name for name in names if name.endswith((".png", ".gif"))]


def test_what_is_shipped_passes_the_check_of_the_index(shipped: Path) -> None:
    done = run(sys.executable, "-m", "twine", "check", "--strict", *shipped.iterdir())
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout + done.stderr


def test_the_base_requires_numpy_alone(told: email.message.Message) -> None:
    required = told.get_all("Requires-Dist", [])
    assert [line for line in required if "extra ==" not in line] == ["numpy>=1.26"]
    of = {
        extra: {re.match(r"[\w-]+", line)[0] for line in required if f"extra == '{extra}'" in line}
        for extra in told.get_all("Provides-Extra", [])
    }
    assert of["jax"] == {"jax"} and of["fast"] == {"numba"} and of["gym"] == {"jax", "gymnasium"}
    assert of["lab"] == {"jax", "optax", "tyro", "rich", "matplotlib", "pillow"}
    assert of["dev"] > of["lab"] | of["fast"] | of["gym"]
    (cuda,) = (line for line in required if "extra == 'cuda'" in line and "jax[" in line)
    assert "<" in cuda


def test_the_metadata_describe_the_package(told: email.message.Message) -> None:
    assert told["Name"] == "lofo-rl" and told["Version"] == lofo_rl.__version__
    classifiers = told.get_all("Classifier", [])
    for minor in (11, 12, 13, 14):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers
    assert "Typing :: Typed" in classifiers and "replay buffer" in told["Keywords"]
    assert told.get_all("Project-URL")


def test_the_description_has_no_link_that_leads_nowhere(told: email.message.Message) -> None:
    page = told.get_payload(decode=True).decode()
    assert told["Description-Content-Type"] == "text/markdown"
    assert page.startswith("# lofo\n") and "](https:" in page
    assert RELATIVE_LINK.search((ROOT / "README.md").read_text())  # there it leads somewhere
    assert not RELATIVE_LINK.search(page)


NAMES = """
import lofo_rl
for name in lofo_rl.__all__:
    try:
        print(name, getattr(lofo_rl, name).__name__)
    except ImportError as error:
        assert isinstance(error, lofo_rl.LofoError) and error.name == "jax"
        print(error)
"""
NEED_JAX = {"Replay", "SequenceIndex", "TransitionIndex", "register_dataclass"}


def test_every_public_name_works_or_says_what_to_install(base: Path, tmp_path: Path) -> None:
    lines = run(base, "-c", NAMES, cwd=tmp_path).stdout.splitlines()
    assert len(lines) == len(lofo_rl.__all__)
    for name, line in zip(lofo_rl.__all__, lines, strict=True):
        extra = "lab" if name == "Contrastive" else "jax"
        sentence = f"lofo_rl.{name} needs jax: pip install 'lofo-rl[{extra}]'"
        assert line == sentence or (line == f"{name} {name}" and name not in NEED_JAX)


def test_every_package_works_or_says_what_to_install(base: Path, tmp_path: Path) -> None:
    packages = [path.parent.name for path in (ROOT / "src" / "lofo_rl").glob("*/__init__.py")]
    code = "import importlib, sys; print(importlib.import_module(sys.argv[1]).__name__)"
    for package in [*packages, "adapters.gymnasium"]:
        name = f"lofo_rl.{package}"
        done = run(base, "-c", code, name, cwd=tmp_path)
        last = (done.stdout + done.stderr).splitlines()[-1]
        assert re.fullmatch(
            rf"{name}|lofo_rl.extras.MissingExtra: {name} needs \w+: pip install 'lofo-rl\[\w+\]'",
            last,
        ), done.stderr
        assert done.returncode == 0 or package not in ("buffers", "locality", "reports")


@pytest.mark.parametrize("command", sorted(cli.COMMANDS.keys() - {"vendor"}))
def test_a_command_says_what_to_install(base: Path, tmp_path: Path, command: str) -> None:
    done = run(base, "-m", "lofo_rl.cli", command, "--help", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"lofo: lofo {command} needs tyro: pip install 'lofo-rl[lab]'\n"


def test_the_buffer_in_one_file_needs_nothing(base: Path, tmp_path: Path) -> None:
    done = run(base, "-m", "lofo_rl.cli", "vendor", "torch", cwd=tmp_path)
    assert done.returncode == 0 and "class LoFoReplayBuffer(TransitionBuffer):" in done.stdout
    done = run(base, "-m", "lofo_rl.cli", "vendor", "keras", cwd=tmp_path)
    sentence = "lofo: lofo vendor takes one word, torch: got keras\n"
    assert (done.returncode, done.stderr) == (2, sentence)
    done = run(base, "-m", "lofo_rl.cli", "vendor", "--help", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("usage: lofo vendor torch")


def test_version_and_help_need_nothing(base: Path, tmp_path: Path) -> None:
    done = run(base, "-m", "lofo_rl.cli", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"lofo {lofo_rl.__version__}\n")
    for words in (["--help"], []):
        done = run(base, "-m", "lofo_rl.cli", *words, cwd=tmp_path)
        assert done.returncode == 0 and all(f"\n  {name}" in done.stdout for name in cli.COMMANDS)


def check_base(python: Path, *tests: str) -> None:
    """Runs base tests from the installed package, not from this tree."""
    where = run(python, "-c", "import lofo_rl; print(lofo_rl.__file__)").stdout
    assert where.startswith(str(python.parents[1])), where
    words = "-p", "no:cacheprovider", "--confcutdir=tests/buffers"
    done = run(python, "-m", "pytest", *words, *tests)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


def test_the_base_tests_pass_with_numpy_alone(base: Path) -> None:
    check_base(base, "tests/buffers/test_replay_buffer.py")


@pytest.mark.slow
@pytest.mark.parametrize("numpy", ["numpy==1.26.0", "numpy"], ids=["oldest", "newest"])
def test_the_base_installs_and_passes_its_tests(wheel: Path, tmp_path: Path, numpy: str) -> None:
    """In an empty environment, from the package index."""
    if numpy != "numpy" and sys.version_info >= (3, 13):
        pytest.skip("the oldest NumPy knows no Python this new")
    venv.create(tmp_path, with_pip=True)
    python = tmp_path / "bin" / "python"
    pip = python, "-m", "pip", "--disable-pip-version-check"
    done = run(*pip, "install", "--quiet", wheel, numpy)
    assert done.returncode == 0, done.stderr
    listed = run(*pip, "list", "--format=freeze").stdout.splitlines()
    packages = {line.partition("==")[0] for line in listed} - {"pip", "setuptools"}
    assert packages == {"lofo-rl", "numpy"}
    done = run(*pip, "install", "--quiet", "pytest", "hypothesis")
    assert done.returncode == 0, done.stderr
    check_base(python, "tests/buffers")
