"""The house keeps its own rules: floors, sizes, names, words, and what an import drags along."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lofo_rl.experiments import REGISTRY

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "lofo_rl").rglob("*.py"))
TEXTS = sorted(
    path
    for folder in ("src", "tests", "docs", "examples", "benchmarks", "tools")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".toml"} and path != Path(__file__)
)
VAGUE = {"utils", "util", "common", "core", "misc", "helpers", "helper"}
# What the paper calls its figures, or plainly that it shows none.
FIGURES = re.compile(r"curves|histograms|maps|none: .+")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_floors_hold() -> None:
    """Each floor imports only what lies below it: the contract in pyproject.toml."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_are_well_named(path: Path) -> None:
    parts = path.relative_to(ROOT / "src" / "lofo_rl").parts
    assert len(parts) <= 3 and not VAGUE & {Path(part).stem for part in parts}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_public_thing_says_what_it_is_for(path: Path) -> None:
    tree = ast.parse(path.read_text())
    is_empty = not tree.body
    assert is_empty or ast.get_docstring(tree), "the module has no docstring"
    silent = [node.name for node in public(tree) if not ast.get_docstring(node)]
    assert not silent, f"without a docstring: {silent}"


def public(tree: ast.Module) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Classes and functions of a module that others may use."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node


@pytest.mark.parametrize("run_id", REGISTRY)
def test_every_run_says_where_the_paper_shows_it(run_id: str) -> None:
    assert FIGURES.search(REGISTRY[run_id].figure), REGISTRY[run_id].figure


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("lofo_rl.functional", {"matplotlib", "tyro", "rich", "optax", "gymnasium"}),
        ("lofo_rl.environments", {"matplotlib", "tyro", "rich", "optax", "gymnasium"}),
        ("lofo_rl.experiments", {"matplotlib", "tyro", "rich"}),
        ("lofo_rl.records", {"matplotlib", "tyro", "rich", "optax", "jax"}),
        ("lofo_rl.reports", {"matplotlib", "tyro", "rich", "optax", "jax"}),
    ],
)
def test_an_import_brings_nothing_heavy_along(module: str, unwanted: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not unwanted & set(loaded.stdout.split())


def test_no_text_knows_a_machine() -> None:
    """Paths of the machine it was written on would fail on any other."""
    known = re.compile(r"/(home|root|Users|work)/\w")
    found = [name_of(path) for path in TEXTS if known.search(path.read_text())]
    assert not found


def test_no_source_prints_or_leaves_work_undone() -> None:
    """Only the command line speaks, and nothing waits to be done."""
    undone = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert not [name_of(path) for path in SOURCES if undone.search(path.read_text())]
    speaking = [path.stem for path in SOURCES if re.search(r"^\s*print\(", path.read_text(), re.M)]
    commands = {"cli", "folders", "localities", "named_runs", "vendor"}
    assert set(speaking) == commands | {"torch_contrastive"}  # which shows how far a fit is
