"""The documentation tells the truth: its code runs, and what it names exists."""

import dataclasses
import inspect
import pkgutil
import re
import subprocess
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

import lofo_rl
from lofo_rl.cli import parse_with_fields
from lofo_rl.experiments import Pack, find, loop
from lofo_rl.experiments.fitting import shelf_name
from lofo_rl.extras import MissingExtra
from lofo_rl.reports.runs import load

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "lofo_rl"
WITH_CODE = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("buffer", "extending", "worlds")),
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = re.compile(r"^(?:\.venv/bin/)?lofo run ((?:.*\\\n)*.*)$", re.MULTILINE)  # over all its lines
QUOTED = re.compile(r"`([^`\n]+)`")
MEMBER = re.compile(r"([A-Z]\w+)\.([a-z]\w*)")  # such as Contrastive.square
SOURCE = re.compile(r"(?:[a-z_]+/)*[a-z_]+\.py")
PAGE = re.compile(r"\]\((?!https?:)([^)#]+)")
PLACE = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def named(path):
    return str(path.relative_to(ROOT))


def blocks_of(page):
    """The Python blocks of a page, each preceded by empty lines, so that errors name its line."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        yield "\n" * text.count("\n", 0, found.start(1)) + found.group(1)


@pytest.mark.parametrize(
    "page",
    [*WITH_CODE, pytest.param(ROOT / "docs" / "recurrent.md", marks=pytest.mark.slow)],
    ids=named,
)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": page.stem}
    for block in blocks_of(page):
        exec(compile(block, str(page), "exec"), names)
    capsys.readouterr()


def test_the_page_on_extending_shows_every_part():
    text = "".join(blocks_of(ROOT / "docs" / "extending.md"))
    for part in ("def place(", "def embed(", "(World)", "def act(", "Experiment(", "ReplayBuffer("):
        assert part in text


@pytest.mark.parametrize("recorded", ["", "reacher/planet_half", "randomized_reacher/fifth/lofo"])
def test_concepts_explain_every_metric_of_a_run(finished, recorded):
    told = set(QUOTED.findall((ROOT / "docs" / "concepts.md").read_text()))
    folder = ROOT / "results" / recorded if recorded else finished.folder
    rows = (folder / "rows.jsonl").read_text()
    written = set(re.findall(r'"metric": "([^"]+)"', rows))
    quantiles = {m for m in written if re.fullmatch(r"locality/(step|pair)_q\d+", m)}
    assert len(written) > 20 and not written - quantiles - told


def public_classes():
    modules = [m.name for m in pkgutil.walk_packages(lofo_rl.__path__, "lofo_rl.")]
    for name in modules:
        with suppress(MissingExtra):  # an adapter of a library that is not there
            yield from inspect.getmembers(import_module(name), inspect.isclass)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_member_a_page_names_exists(page):
    classes = dict(public_classes())
    for quoted in QUOTED.findall(page.read_text()):
        if (found := MEMBER.fullmatch(quoted)) and found[1] in classes:
            kind = classes[found[1]]
            fields = {f.name for f in dataclasses.fields(kind)} if is_data(kind) else set()
            assert found[2] in fields or hasattr(kind, found[2]), f"{page.name}: {quoted}"


def is_data(kind):
    return dataclasses.is_dataclass(kind)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_file_a_page_names_exists(page):
    text = page.read_text()
    for quoted in QUOTED.findall(text):
        if SOURCE.fullmatch(quoted):
            assert (SOURCES / quoted).exists() or (ROOT / quoted).exists(), quoted
    for link in PAGE.findall(text):
        assert (page.parent / link).exists(), link


def places_of(page):
    """The headings of a page as links name them."""
    headings = HEADING.findall(page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "results" / "README.md"], ids=named)
def test_every_heading_that_a_page_links_to_exists(page):
    for link, place in PLACE.findall(page.read_text()):
        there = (page.parent / link).resolve() if link else page
        assert place in places_of(there), f"{link}#{place}"


def runs_of(page):
    """The words behind every `lofo run` of a page's shell blocks, as a shell would split them."""
    for block in SHELL.findall(page.read_text()):
        for words in RUN.findall(block):
            told = subprocess.run(
                ["bash", "-c", f"printf '%s\\n' {words}"],
                capture_output=True,
                text=True,
                check=True,
            )
            yield told.stdout.splitlines()


def test_every_run_that_a_page_prints_is_accepted():
    commands = [words for page in PAGES for words in runs_of(page)]
    assert len(commands) >= 15 and any("--environment.size" in words for words in commands)
    for words in commands:
        command, overrides = parse_with_fields(["run", *words])
        pack = Pack(command.prepare(overrides))
        if pack.lead.environment != find(pack.lead.id).environment:
            loop.check(pack)  # the others are traced by tests of their own
        if command.localities and command.localities.is_relative_to("results"):
            for e in (e for e in pack.experiments if e.buffer.embedding_size):  # fitted, and kept
                files = [shelf_name(Pack((e,)), e.buffer, seed) for seed in e.seeds]
                assert all((ROOT / command.localities / file).exists() for file in files), words


def test_every_record_that_the_index_lists_can_be_reported():
    index = (ROOT / "results" / "README.md").read_text()
    rows = [line.split("|") for line in index.splitlines() if line.startswith("| `")]
    folders = {
        name: told for _, names, told, *_ in rows for name in re.findall(r"`([^`]+/)`", names)
    }
    assert len(folders) > 20
    for name, told in folders.items():
        records = sorted((ROOT / "results" / name).rglob("rows.jsonl"))
        if "each folder reported alone" in told:
            assert all(load([record.parent]) for record in records)
        elif records:
            assert load([ROOT / "results" / name])
