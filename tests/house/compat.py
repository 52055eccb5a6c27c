"""`make compat`: the package with the oldest versions that it admits, and with the newest.

    python tests/house/compat.py [oldest] [newest]

For each, a virtual environment in `.compat/`, tests, and a short demo with its report. The oldest
versions are the lower bounds in pyproject.toml. Needs the package index and the standard library.
"""

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = ("jax", "lab", "gym", "fast")
TESTS = (
    "tests/buffers",
    "tests/functional",
    *(f"tests/test_{name}.py" for name in ("buffers", "sequences", "sampling", "locality")),
    *(f"tests/test_{name}.py" for name in ("worlds", "networks", "dyna_q", "runs", "resume")),
    *(f"tests/test_{name}.py" for name in ("world_model", "dreamer", "reports", "films")),
    *(f"tests/test_{name}.py" for name in ("gymnasium", "cli")),
)
DEMO = ("run", "demo/lofo", "demo/fifo-all", "--seeds", "0", "--fraction", "0.1")
QUICK = {  # tests compile more than they compute
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
}


def bounds() -> list[str]:
    """The requirements of the base and its extras, such as `jax>=0.5.3`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"]]
    for extra in EXTRAS:
        lines += project["optional-dependencies"][extra]
    return [line for line in lines if not line.startswith("lofo-rl")]


def check(age: str) -> None:
    """Installs everything at one age, and runs the tests and the demo."""
    folder = ROOT / ".compat" / age
    venv.create(folder, with_pip=True, clear=True)
    pinned = [line.replace(">=", "==") for line in bounds()] if age == "oldest" else []
    python = folder / "bin" / "python"
    pip = python, "-m", "pip", "--disable-pip-version-check"
    run(*pip, "install", "--quiet", f"{ROOT}[{','.join(EXTRAS)}]", *pinned, "pytest", "hypothesis")
    run(*pip, "freeze")
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    run(python, "-m", "pytest", "-p", "no:cacheprovider", *TESTS, env=QUICK | cache)
    out = folder / "demo"
    run(python, "-m", "lofo_rl.cli", *DEMO, "--out", out)
    run(python, "-m", "lofo_rl.cli", "report", out)
    print(f"{age}: all passed", flush=True)


def run(*words: object, env: dict[str, str] | None = None) -> None:
    print("+", *words, flush=True)
    subprocess.run([*map(str, words)], cwd=ROOT, env=os.environ | (env or {}), check=True)


if __name__ == "__main__":
    for age in sys.argv[1:] or ("oldest", "newest"):
        check(age)
