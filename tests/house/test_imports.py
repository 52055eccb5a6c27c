"""What an import brings along, how long it takes, and what is said where a package is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lofo_rl
from conftest import Finished
from lofo_rl.extras import OPTIONAL, MissingExtra, needs

BASE = """
import sys
import numpy, numpy.random, numpy.typing
before = {*sys.modules}
import lofo_rl, lofo_rl.buffers
from lofo_rl import Batch, Fifo, Local, LofoError, Prioritized, Reservoir, Step, Transition
buffer = lofo_rl.ReplayBuffer(Fifo(), capacity=9)
buffer.add({"x": 1.0})
buffer.sample(2)
buffer.save(sys.argv[1])
lofo_rl.__version__
dir(lofo_rl)
print(*sorted({name.partition(".")[0] for name in {*sys.modules} - before}))
"""
LOCAL = """
import sys
import lofo_rl
buffer = lofo_rl.ReplayBuffer(lofo_rl.Local(0.1), capacity=9)
print("numba" in sys.modules)
buffer.add({"x": 1.0}, embedding=[0.0])
print("numba" in sys.modules)
"""
TIMED = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
COMMAND = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None  # cannot be imported
from lofo_rl import cli
try:
    cli.main()
finally:
    print(*sorted(name for name in sys.modules if sys.modules[name]), file=sys.stderr)
"""


def answer(code: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # else sources are compiled at each import
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def test_the_base_imports_numpy_and_the_standard_library_alone(tmp_path: Path) -> None:
    done = answer(BASE, tmp_path / "buffer")
    assert done.returncode == 0, done.stderr
    assert {*done.stdout.split()} - {*sys.stdlib_module_names, "numpy"} == {"lofo_rl"}


def test_numba_is_imported_when_an_index_is_needed() -> None:
    pytest.importorskip("numba")
    done = answer(LOCAL)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_the_base_is_imported_in_twice_the_time_of_numpy() -> None:
    """Measured 1.1 to 1.2 times; the best of several processes: other programs only delay."""
    times: dict[str, list[float]] = {"numpy": [], "lofo_rl.buffers": []}
    for turn in range(8):
        for name, seconds in times.items():
            took = float(answer(TIMED.format(name)).stdout)
            if turn:  # the first reads the files from the disk
                seconds.append(took)
    numpy, base = map(min, times.values())
    assert base < 2 * numpy, times


def test_public_names_come_when_they_are_asked_for() -> None:
    done = answer("import lofo_rl, sys; print(*sys.modules); print(lofo_rl.__version__)")
    assert not {"numpy", "importlib.metadata"} & {*done.stdout.splitlines()[0].split()}
    assert set(lofo_rl.__all__) < set(dir(lofo_rl))
    for name in lofo_rl.__all__:
        assert getattr(lofo_rl, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lofo_rl.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        ("--version", {"numpy", *OPTIONAL}),
        ("--help", {"numpy", *OPTIONAL}),
        ("list", {*OPTIONAL} - {"tyro"}),
        ("report FOLDER --json", {*OPTIONAL} - {"tyro"}),
        ("report FOLDER --out OUT", {"jax", "jaxlib", "optax", "rich", "gymnasium"}),
        ("thin FOLDER OUT", {*OPTIONAL} - {"tyro"}),
        ("show demo/lofo", {"matplotlib", "PIL", "gymnasium"}),
    ],
)
def test_a_command_needs_no_more_than_it_uses(
    finished: Finished, tmp_path: Path, words: str, unwanted: set[str]
) -> None:
    """It neither imports the others nor misses them."""
    places = {"FOLDER": str(finished.folder), "OUT": str(tmp_path)}
    split = [places.get(word, word) for word in words.split()]
    done = answer(COMMAND, "antigravity", *split)
    assert done.returncode == 0 and done.stdout, done.stderr
    assert not unwanted & {*done.stderr.splitlines()[-1].split()}


@pytest.mark.parametrize(
    ("words", "blocked", "sentence"),
    [
        ("list", "tyro", "lofo list needs tyro"),
        ("run demo/lofo", "jax", "lofo run needs jax"),
        ("run demo/lofo", "optax", "lofo run needs optax"),
        ("demo", "rich", "lofo demo needs rich"),
        ("fit mountaincar/dyna_q/lofo", "jax", "lofo fit needs jax"),
        ("show demo/lofo", "jax", "lofo show needs jax"),
        ("report FOLDER", "matplotlib", "lofo report needs matplotlib"),
        ("report FOLDER", "PIL", "lofo report needs PIL"),
        ("watch FOLDER", "PIL", "lofo watch needs PIL"),
    ],
)
def test_a_missing_package_is_one_sentence_and_exit_code_2(
    finished: Finished, words: str, blocked: str, sentence: str
) -> None:
    split = [word.replace("FOLDER", str(finished.folder)) for word in words.split()]
    done = answer(COMMAND, blocked, *split)
    assert (done.returncode, done.stdout) == (2, "")
    first, _ = done.stderr.splitlines()
    assert first == f"lofo: {sentence}: pip install 'lofo-rl[lab]'"


def test_only_packages_of_an_extra_are_turned_into_a_sentence() -> None:
    with pytest.raises(MissingExtra, match=r"^inner needs jax: pip install 'lofo-rl\[jax\]'$"):
        fail_to_import("jax.numpy", "jax", "inner")
    outer = r"^outer needs jax: pip install 'lofo-rl\[lab\]'$"
    with pytest.raises(MissingExtra, match=outer), needs("lab", "outer"):
        fail_to_import("jax.numpy", "jax", "inner")
    for ours in ("lofo_rl.no_such_module", "no_such_package"):  # a mistake, and not the user's
        with pytest.raises(ModuleNotFoundError) as raised:
            fail_to_import(ours, "jax", "inner")
        assert not isinstance(raised.value, MissingExtra)
    with pytest.raises(ImportError, match="another"), needs("jax", "inner"):
        raise ImportError("another mistake", name="jax")  # it is installed, and damaged


def fail_to_import(name: str, extra: str, user: str) -> None:
    with needs(extra, user):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
