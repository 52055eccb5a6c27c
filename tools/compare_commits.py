"""Proves that a move or a rename changes no number: runs two commits and compares their results.

    python tools/compare_commits.py A B [--quick] [--kernels-python PYTHON]

Each commit runs the experiments in `CASES` on the CPU: one for each kind of program that a run
compiles, with small networks, few steps and a short fit of the locality. All rows and arrays must
be equal, bit for bit, except clock and provenance. Then each commit's `benchmarks/kernels.py`
compiles the five GPU programs. Their kernel counts and their texts without names must be equal.
This needs the compiler for GPUs (pip install 'jax[cuda13]'), but no GPU. One line is printed for
each experiment and each GPU program. The exit status is 1 if anything differs that `INTENDED` does
not explain.

Results and compiled programs are kept in a folder (`--cache`), so a commit is run only once, and
the second commit compiles only what differs from the first.
"""

import argparse
import hashlib
import io
import itertools
import json
import os
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from shutil import rmtree
from subprocess import CompletedProcess
from typing import Any, NamedTuple

from differences import ABSENT, Difference, Names, differences, spellings

# What was renamed, oldest first: words of ids, options, settings, metrics and names of arrays. The
# package's name is read from each commit's pyproject.toml. Fields of NamedTuples need no entry: the
# order of a checkpoint's arrays shows which is which.
RENAMED: Names = {"same_action": "group_by", "ByError": "Prioritized"}


class Intended(NamedTuple):
    """A difference that a commit was meant to make. In `id` and `field`, * matches anything."""

    commit: str  # its subject; the entry applies if that commit lies between A and B
    id: str  # of the experiment, or the GPU program
    field: str  # rows/METRIC, header/PATH, arrays/FILE/NAME, kernels, hlo, or run if it fails
    why: str


COLUMNS = "The compiled ledger holds its points by columns"
GROUPS = "Groups and checks while tracing in the compiled buffer, one kind of storage, one stream"
REPLAYS = "arrays/checkpoint.npz/replays/*"
INTENDED: tuple[Intended, ...] = (
    Intended(COLUMNS, "*", f"{REPLAYS}/embedding", "columns in place of rows"),
    Intended(COLUMNS, "*", f"{REPLAYS}/near_*", "two numbers in place of an array of two"),
    Intended(COLUMNS, "gpu/*", "hlo", "another layout of the points"),
    Intended(
        COLUMNS, "gpu/*", "kernels", "fewer: 193 of 194 for minigrid, 1864 of 1868 for reacher"
    ),
    Intended(GROUPS, "*", "*/buffer/group_by", "a name of a leaf in place of a switch"),
    Intended(GROUPS, "*same_action", f"{REPLAYS}/group", "groups beside the points, not in them"),
    Intended(GROUPS, "*", f"{REPLAYS}/trajectory/recent", "of the only stream"),
)


class Case(NamedTuple):
    """Experiments that run in one program, and options that make them small."""

    name: str  # their ids, and a preset
    options: str
    is_quick: bool = False


TRAINING = "--phases.0.steps 300 --phases.1.steps 200 --schedule.warmup 100 --judged 1"
DEMO = f"--seeds 0-1 {TRAINING} --schedule.evaluate_every 100 --agent.planning_delay 20"
DEMO_FIT = "--buffer.locality_steps 500 --buffer.capacity 350"
MOUNTAINCAR = f"""--seeds 0-1 {TRAINING} --schedule.evaluate_every 100 --schedule.episodes 2
  --agent.target_period 50 --agent.encoder.sizes 8 8 7 --agent.head.sizes 8 8
  --agent.value.sizes 8 8 --buffer.capacity 150"""
MOUNTAINCAR_LOCAL = "--buffer.rule.radius 0.05 --buffer.rule.limit 2"
MOUNTAINCAR_FIT = "--buffer.locality_steps 300 --buffer.locality.encoder.parts.1.sizes 8 8"
MINIGRID = """--seeds 0-1 --phases.0.steps 200 --phases.1.steps 100 --schedule.warmup 50 --judged 1
  --schedule.evaluate_every 50 --schedule.episodes 2 --buffer.capacity 120 --agent.batch_size 8
  --agent.target_period 50 --agent.encoder.channels 4 8 8 --agent.decoder.channels 8 4 3
  --agent.head.sizes 16 --agent.value.parts.0.channels 4 8 8 --agent.value.parts.1.sizes 16"""
MINIGRID_LOCAL = """--buffer.rule.limit 2 --buffer.locality_steps 300
  --buffer.locality.encoder.parts.1.channels 4 8 8 --buffer.locality.encoder.parts.2.sizes 16"""
REACHER = """--seeds 0 --phases.0.steps 100 --phases.1.steps 50 --schedule.warmup 50 --judged 1
  --schedule.episodes 1 --environment.time_limit 50 --phases.0.optimum 4 --phases.1.optimum 2
  --phases.1.stale 1 --buffer.capacity 60 --buffer.window 10 --agent.window 10
  --agent.batch_size 4 --agent.model.encoder.channels 4 8 8 8
  --agent.model.decoder.channels 8 8 4 3 --agent.model.canvas_size 64
  --agent.model.rssm.deterministic_size 16 --agent.model.rssm.hidden_size 16
  --agent.model.reward_head.sizes 16 16"""
DREAMER = f"""{REACHER} --schedule.evaluate_every 50 --schedule.pretraining 1 --agent.horizon 5
  --agent.actor.sizes 16 16 --agent.value.sizes 16 16"""
PLANET = f"""{REACHER} --schedule.evaluate_every 50 --schedule.steps_per_update 25
  --schedule.updates 2 --agent.planner.horizon 4 --agent.planner.num_iterations 3
  --agent.planner.num_candidates 20 --agent.planner.num_elites 5"""
REACHER_LOCAL = """--buffer.num_slots 150 --buffer.rule.radius 0.03 --buffer.rule.limit 2
  --buffer.locality_steps 64"""
REACHER_FIT = """--buffer.locality.encoder.parts.0.channels 4 8 8 8
  --buffer.locality.encoder.parts.1.sizes 16 16"""
# Localities that are fitted to few raw pictures put all of them close together.
PRINTED_LOCAL = """--buffer.num_slots 150 --buffer.rule.radius 0.0005 --buffer.rule.limit 2
  --buffer.locality_steps 64 --buffer.locality.encoder.parts.1.channels 4 8 8 8
  --buffer.locality.encoder.parts.2.sizes 16 16"""
PRESET_LOCAL = """--buffer.num_slots 150 --buffer.rule.radius 0.001 --buffer.rule.limit 2
  --buffer.locality_steps 64 --buffer.locality.encoder.parts.1.channels 4 8 8 8
  --buffer.locality.encoder.parts.2.sizes 16"""
# How these were chosen: classes and switches decide which program a run compiles; numbers do not.
# Every class and every setting of a switch that occurs in `lofo list` occurs here, and every rule
# in every world (a test checks this). Some ids share a program, as buffers and sweeps do in
# practice. Radii and capacities are such that every rule replaces samples within these few steps.
CASES = (
    Case("demo/lofo demo/fifo-all", f"{DEMO} {DEMO_FIT}", is_quick=True),
    Case("demo/lofo-same_action", f"{DEMO} {DEMO_FIT}"),
    Case("demo/lofo-by_error", f"{DEMO} {DEMO_FIT}"),
    Case("demo/lofo-by_reward", f"{DEMO} {DEMO_FIT}"),
    Case(
        "mountaincar/dyna_q/lofo",
        f"{MOUNTAINCAR} {MOUNTAINCAR_LOCAL} {MOUNTAINCAR_FIT}",
        is_quick=True,
    ),
    Case("mountaincar/dyna_q/lofo-handcrafted", f"{MOUNTAINCAR} {MOUNTAINCAR_LOCAL}"),
    Case("mountaincar/dyna_q/reservoir-3e4", MOUNTAINCAR),
    Case("mountaincar/dyna_q/fifo-3e5 mountaincar/dyna_q/fifo-3e5-reward_at_end", MOUNTAINCAR),
    Case("mountaincar/dyna_q/lofo-by_error-reward_at_end", f"{MOUNTAINCAR} {MOUNTAINCAR_FIT}"),
    Case("mountaincar/dyna_q/fifo-4.5e6-by_reward", MOUNTAINCAR),
    Case("mountaincar/dyna_q/lofo-raw_inputs", f"{MOUNTAINCAR} {MOUNTAINCAR_FIT}"),
    Case("mountaincar/dyna_q/lofo-one_hot_action", f"{MOUNTAINCAR} {MOUNTAINCAR_FIT}"),
    Case("mountaincar/dyna_q/lofo-direct_dynamics", f"{MOUNTAINCAR} {MOUNTAINCAR_FIT}"),
    Case(
        "mountaincar/dyna_q/search/beta-1/radius-0.01/limit-1"
        " mountaincar/dyna_q/search/beta-10/radius-0.005/limit-5",
        f"{MOUNTAINCAR} {MOUNTAINCAR_FIT}",
    ),
    Case("minigrid/dyna_q/lofo", f"{MINIGRID} {MINIGRID_LOCAL}", is_quick=True),
    Case("minigrid/dyna_q/lofo-same_action", f"{MINIGRID} {MINIGRID_LOCAL}"),
    Case("minigrid/dyna_q/fifo-2.56e4", MINIGRID),
    Case("reacher/dreamer/lofo", f"{DREAMER} {REACHER_LOCAL} {REACHER_FIT}", is_quick=True),
    Case("reacher/dreamer/lofo-as_printed", f"{DREAMER} {PRINTED_LOCAL}"),
    Case("reacher/dreamer/fifo-small", DREAMER),
    Case("reacher/dreamer/lofo --preset small", f"{DREAMER} {PRESET_LOCAL}"),
    Case("reacher/planet/lofo", f"{PLANET} {REACHER_LOCAL} {REACHER_FIT}"),
    Case("reacher/planet/fifo-small-balanced_kl", PLANET),
    Case("randomized_reacher/dreamer/lofo", f"{DREAMER} {REACHER_LOCAL} {REACHER_FIT}"),
)
PIECES = ("plan", "minigrid", "planet", "dreamer", "reacher")  # of `benchmarks/kernels.py`
QUICK_PIECES = PIECES[:2]

ROOT = Path(__file__).parents[1]
STRIP = Path(__file__).with_name("stripped_hlo.py")
DONE = "done.json"  # in a folder whose results are complete
# On one thread no sum depends on the number of cores. Most time goes into compiling, so the
# compiler does not optimise.
XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_multi_thread_eigen=false "
    "intra_op_parallelism_threads=1"
)


class Failed(Exception):
    """A commit cannot run a case; the message is one line."""


@dataclass(frozen=True)
class Commit:
    """A commit's files, what runs them, and where results go."""

    hash: str
    tree: Path
    results: Path
    compiled: Path  # programs that jax keeps, of all commits
    python: str
    kernels_python: str
    is_installed: bool  # else the package is imported from the tree

    def run_case(self, case: Case) -> Path:
        """The folder with the rows and arrays of the case."""

        def run(folder: Path) -> None:
            module, function = self._entry().split(":")
            code = f"import sys; sys.argv[0] = 'lofo'; from {module} import {function} as go; go()"
            settings = {
                "XLA_FLAGS": XLA_FLAGS,
                "JAX_COMPILATION_CACHE_DIR": str(self.compiled),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
            }
            settings |= {} if self.is_installed else self._source()
            complaints: dict[str, None] = {}  # of each spelling
            for words in spellings([*case.name.split(), *case.options.split()], RENAMED):
                more = ["--out", str(folder), "--checkpoint_seconds", "1e9"]
                done = self._call([self.python, "-c", code, "run", *words, *more], settings)
                if done.returncode == 0:
                    return
                complaints[_last_line(done.stderr)] = None
                if done.returncode != 2:  # it does know these words
                    break
            raise Failed("; or ".join(complaints))

        versions = _versions(self.python)
        return self._keep(case.name, [case.options, XLA_FLAGS, versions], run)

    def compile_piece(self, piece: str) -> Path:
        """The folder with the kernel count of a GPU program, and its text without names."""

        def run(folder: Path) -> None:
            raw, text = str(folder / "raw.txt"), str(folder / "hlo.txt")
            outputs = []
            for script, *words in (
                ("benchmarks/kernels.py", piece, "--hlo", raw),
                (str(STRIP), raw, text),
            ):
                done = self._call([self.kernels_python, script, *words], self._source())
                if done.returncode:
                    raise Failed(_last_line(done.stderr))
                outputs.append(done.stdout)
            count = re.search(r"(\d+) kernels", outputs[0])
            if count is None:
                raise Failed("benchmarks/kernels.py prints no number of kernels")
            (folder / "kernels.txt").write_text(count[1])
            Path(raw).unlink()

        recipe = [STRIP.read_text(), _versions(self.kernels_python)]
        return self._keep(f"gpu/{piece}", recipe, run)

    def _keep(self, name: str, recipe: list[Any], run: Callable[[Path], None]) -> Path:
        """The folder that `run` fills, unless that was done before by the same recipe."""
        digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:8]
        folder = self.results / f"{re.sub('[ /]+', '-', name)}-{digest}"
        words = "kept from before"
        if not (folder / DONE).exists():
            rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            begun = time.monotonic()
            run(folder)
            words = f"{time.monotonic() - begun:.0f} s"
            (folder / DONE).write_text(json.dumps(recipe))
        _progress(f"{self.hash[:7]} {name}: {words}")
        return folder

    def _entry(self) -> str:
        """Where the command `lofo` is, as module:function."""
        project = tomllib.loads((self.tree / "pyproject.toml").read_text())["project"]
        return str(project["scripts"]["lofo"])

    def _source(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.tree / "src")}

    def _call(self, command: list[str], settings: dict[str, str]) -> CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "PYTHON"))}
        environment = kept | {"JAX_PLATFORMS": "cpu", "LOFO_COMMIT": self.hash} | settings
        return subprocess.run(
            command, cwd=self.tree, env=environment, capture_output=True, text=True
        )


def _last_line(text: str) -> str:
    """The last line with words in it; errors of options come in boxes."""
    lines = [line.strip(" │") for line in text.splitlines() if re.search(r"\w", line)]
    return lines[-1] if lines else "no message"


@cache
def _versions(python: str) -> list[str]:
    """What decides numbers in an environment: Python, jax with its compilers, NumPy, optax."""
    code = "import sys; from importlib.metadata import distributions as all; print(sys.version)"
    code += "; print(*sorted({f'{d.name}=={d.version}' for d in all()}), sep='\\n')"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    first, *names = found.stdout.splitlines()
    return [first, *(name for name in names if re.match("jax|numpy|optax", name))]


def has_gpu_compiler(python: str) -> bool:
    return any(re.match(r"jax-cuda\d+-pjrt", name) for name in _versions(python))


def prepare(name: str, temporary: Path, options: argparse.Namespace) -> Commit:
    """The commit's files in a folder of their own and, if wanted, an environment of its own."""
    commit = _git("rev-parse", "--verify", f"{name}^{{commit}}").decode().strip()
    tree, results = temporary / commit, options.cache.resolve() / commit
    if not tree.exists():
        archive = io.BytesIO(_git("archive", "--format=tar", commit))
        with tarfile.open(fileobj=archive) as files:
            files.extractall(tree, filter="data")
    python = options.python
    if options.install:
        python = str(_installed(tree, results / "venv"))
    compiled = options.cache.resolve() / "compiled"
    return Commit(commit, tree, results, compiled, python, options.kernels_python, options.install)


def _installed(tree: Path, folder: Path) -> Path:
    """The Python of an environment with the commit's package and what its experiments need."""
    python = folder / "bin" / "python"
    if not (folder / DONE).exists():
        _progress(f"installing {tree.name[:7]}")
        project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
        extras = "[lab]" if "lab" in project.get("optional-dependencies", {}) else ""
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", f"{tree}{extras}"]
        subprocess.run(command, check=True)
        (folder / DONE).touch()
    return python


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True)
    if done.returncode:
        sys.exit(f"git {' '.join(words)}: {_last_line(done.stderr.decode())}")
    return done.stdout


def _progress(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def pieces_differ(old: Path, new: Path) -> Iterable[Difference]:
    """The kernel counts of a GPU program, and the first line in which its texts differ."""
    counts = [int((side / "kernels.txt").read_text()) for side in (old, new)]
    if counts[0] != counts[1]:
        yield Difference("kernels", "", *counts)
    texts = ((side / "hlo.txt").read_text().splitlines() for side in (old, new))
    for number, (one, other) in enumerate(itertools.zip_longest(*texts, fillvalue=ABSENT), start=1):
        if one != other:
            equal = itertools.takewhile(
                lambda pair: pair[0] == pair[1], zip(one, other, strict=False)
            )
            start = max(sum(1 for _ in equal) - 60, 0)
            yield Difference("hlo", f"line {number}", one[start:], other[start:])
            return


@dataclass
class Verdicts:
    """Prints one line for each comparison, and remembers what was intended."""

    intended: tuple[Intended, ...]
    used: Counter[Intended] = field(default_factory=Counter)
    num_equal: int = 0
    num_different: int = 0

    def add(self, name: str, found: Iterable[Difference]) -> None:
        unexplained: list[Difference] = []
        num_explained = 0
        for difference in found:
            matching = [
                entry
                for entry in self.intended
                if fnmatch(name, entry.id) and fnmatch(difference.field, entry.field)
            ]
            self.used.update(matching)
            num_explained += bool(matching)
            unexplained += [] if matching else [difference]
        if unexplained:
            more = f" (and {len(unexplained) - 1} more)" if len(unexplained) > 1 else ""
            print(f"DIFFERS   {name}: {unexplained[0]}{more}", flush=True)
            self.num_different += 1
        else:
            words = f", except for {num_explained} intended differences" if num_explained else ""
            print(f"equal     {name}{words}", flush=True)
            self.num_equal += 1

    def close(self, is_verbose: bool) -> None:
        for entry in self.intended:
            if entry in self.used:
                print(f"intended  {entry.id} {entry.field}, {self.used[entry]} times: {entry.why}")
            elif is_verbose:
                print(f"unused    {entry.id} {entry.field}: {entry.why}")
        print(f"{self.num_equal} equal, {self.num_different} different")


class Job(NamedTuple):
    """What both commits do, and how the results are compared."""

    name: str
    run: Callable[[Commit], Path]
    compare: Callable[[Path, Path], Iterable[Difference]]


def jobs(options: argparse.Namespace) -> list[Job]:
    """The chosen experiments, then the chosen GPU programs."""
    compare = partial(differences, renamed=RENAMED, tolerance=options.tolerance)
    chosen = [
        Job(case.name, partial(Commit.run_case, case=case), compare)
        for case in (() if options.kernels_only else CASES)
        if case.is_quick or not options.quick
    ]
    if options.no_kernels:
        pieces: tuple[str, ...] = ()
    elif has_gpu_compiler(options.kernels_python):
        pieces = QUICK_PIECES if options.quick else PIECES
    else:
        pieces = ()
        print(
            "GPU programs are not compared: the compiler for GPUs is not installed; "
            "pip install 'jax[cuda13]', or name a Python that has it by --kernels-python"
        )
    chosen += [
        Job(f"gpu/{piece}", partial(Commit.compile_piece, piece=piece), pieces_differ)
        for piece in pieces
    ]
    return [job for job in chosen if fnmatch(job.name, options.only)]


def compare(old: Commit, new: Commit, options: argparse.Namespace) -> Verdicts:
    """Runs all jobs on the old commit, then on the new one, and compares as results come in."""
    subjects = _git("log", "--format=%s", f"{old.hash}...{new.hash}").decode().splitlines()
    verdicts = Verdicts(tuple(e for e in INTENDED if e.commit in subjects))
    chosen = jobs(options)
    pool = ThreadPoolExecutor(options.jobs)
    try:
        sides = [[pool.submit(_outcome, job, commit) for job in chosen] for commit in (old, new)]
        for job, *coming in zip(chosen, *sides, strict=True):
            results = [future.result() for future in coming]
            if all(isinstance(result, Path) for result in results):
                verdicts.add(job.name, job.compare(*results))
            else:
                words = ("ran" if isinstance(result, Path) else result for result in results)
                verdicts.add(job.name, [Difference("run", "", *words)])
    finally:
        pool.shutdown(cancel_futures=True)
    return verdicts


def _outcome(job: Job, commit: Commit) -> Path | str:
    """The folder with the results, or why there are none."""
    try:
        return job.run(commit)
    except Failed as failed:
        return f"failed: {failed}"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("old", metavar="A", help="a commit, branch or tag")
    add("new", metavar="B", help="likewise")
    add("--quick", action="store_true", help="one experiment for each agent, and two GPU programs")
    add("--only", default="*", help="of all names only those that match, such as 'reacher/*'")
    add("--tolerance", type=float, default=0.0, help="share by which floats may differ")
    add("--no-kernels", action="store_true", help="do not compare GPU programs")
    add("--kernels-only", action="store_true", help="compare nothing but GPU programs")
    add("--jobs", type=int, default=2, help="processes side by side")
    add("--cache", type=Path, default=ROOT / ".compare_cache", help="where results are kept")
    add("--python", default=sys.executable, help="runs the experiments")
    add("--kernels-python", default=sys.executable, help="has the compiler for GPUs")
    add("--install", action="store_true", help="install each commit into its own environment")
    add("--verbose", action="store_true", help="name intended differences that do not occur")
    options = parser.parse_args(words)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        old, new = (prepare(name, Path(temporary), options) for name in (options.old, options.new))
        if old == new:  # whether a commit gives the same numbers twice
            new = replace(new, results=new.results / "again")
            rmtree(new.results, ignore_errors=True)
        verdicts = compare(old, new, options)
    verdicts.close(options.verbose)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    minutes = (time.monotonic() - begun) / 60, (used.ru_utime + used.ru_stime) / 60
    _progress("{:.1f} minutes, {:.1f} of processor time".format(*minutes))
    return 1 if verdicts.num_different else 0


if __name__ == "__main__":
    sys.exit(main())
