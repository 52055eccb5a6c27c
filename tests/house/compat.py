"""`make compat`: the package with the oldest versions that it admits, and with the newest.

    python tests/house/compat.py [functional] [oldest] [newest]

For each name, a virtual environment in `.compat/` and tests; for the last two also a short demo and
its report. The oldest versions are the lower bounds in pyproject.toml. Needs the package index and
the standard library.
"""

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
FUNCTIONAL = [
    *("tests/buffers", "tests/functional"),
    *("tests/test_buffers.py", "tests/testing"),
]
LABORATORY = [
    f"tests/test_{name}.py"
    for name in (
        *("sequences", "sampling", "locality", "worlds", "networks", "dyna_q", "world_model"),
        *("dreamer", "runs", "resume", "reports", "films", "gymnasium", "cli"),
    )
]
# name -> extras, whether each requirement is at its lower bound, what pytest runs
CHECKS = {
    "functional": (("jax", "fast"), True, ["--noconftest", *FUNCTIONAL]),
    "oldest": (("lab", "gym", "fast"), True, LABORATORY),
    "newest": (("lab", "gym", "fast"), False, [*FUNCTIONAL, *LABORATORY]),
}
DEMO = ("run", "demo/lofo", "demo/fifo-all", "--seeds", "0", "--fraction", "0.1")
QUICK = {  # tests compile more than they compute
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
}


def bounds(extras: tuple[str, ...]) -> list[str]:
    """The requirements of the base and of some extras, such as `numpy>=1.26`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


def check(name: str) -> None:
    """Installs what a check names, and runs its tests."""
    extras, is_oldest, tests = CHECKS[name]
    folder = ROOT / ".compat" / name
    venv.create(folder, with_pip=True, clear=True)
    pins = [line.replace(">=", "==") for line in bounds(extras)] if is_oldest else []
    python = folder / "bin" / "python"
    pip = python, "-m", "pip", "--disable-pip-version-check"
    run(*pip, "install", "--quiet", f"{ROOT}[{','.join(extras)}]", *pins, "pytest", "hypothesis")
    run(*pip, "freeze")
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    run(python, "-m", "pytest", "-p", "no:cacheprovider", *tests, env=QUICK | cache)
    if "lab" in extras:
        out = folder / "demo"
        run(python, "-m", "lofo_rl.cli", *DEMO, "--out", out)
        run(python, "-m", "lofo_rl.cli", "report", out)
    print(f"{name}: all passed", flush=True)


def run(*words: object, env: dict[str, str] | None = None) -> None:
    print("+", *words, flush=True)
    subprocess.run([*map(str, words)], cwd=ROOT, env=os.environ | (env or {}), check=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or CHECKS:
        check(name)
