"""The command line: what it prints, what it refuses, and that a mistake is one sentence."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from conftest import Finished, result_lines
from lofo_rl import cli, folders, named_runs
from lofo_rl.buffers import Fifo
from lofo_rl.experiments import DEMO, REGISTRY, SWEEPS, Pack, find, find_all
from lofo_rl.options import parse_seeds
from lofo_rl.records import ROWS
from lofo_rl.types import LofoError

MOUNTAINCAR = "mountaincar/dyna_q/lofo"
SEARCH = "mountaincar/dyna_q/search"


class Answer:
    """What a command printed and its exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        try:
            cli.main(words)
            self.code: Any = 0
        except SystemExit as leave:
            self.code = leave.code or 0
        self.out, self.err = capsys.readouterr()


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one sentence with which a command is refused."""
    answer = Answer(capsys, *words)
    assert answer.code == 2 and answer.out == ""
    (line,) = answer.err.splitlines()
    assert line.startswith("lofo: ")
    return line


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The parser's own box, as one line."""
    answer = Answer(capsys, *words)
    assert answer.code == 2 and answer.out == ""
    return " ".join(answer.err.replace("│", " ").split())


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Pack, Path]]:
    """What would have been run, and where."""
    caught: list[tuple[Pack, Path]] = []
    monkeypatch.setattr(named_runs, "run", lambda pack, out, **_: caught.append((pack, out)))
    monkeypatch.setattr(named_runs, "summarise", lambda folders: [])
    monkeypatch.setattr(named_runs, "verdict_table", lambda summaries: "")
    monkeypatch.setattr(named_runs.reports, "write_report", lambda folders, out: out, raising=False)
    return caught


@pytest.fixture
def tiny(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> Pack:
    """The tiny pack under names that the command line knows."""
    for experiment in finished.pack.experiments:
        monkeypatch.setitem(REGISTRY, experiment.id, experiment)
    return finished.pack


def test_list_names_every_run(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer(capsys, "list")
    lines = {line.split()[0]: line for line in answer.out.splitlines()}
    assert answer.code == 0 and list(lines) == [*REGISTRY, *SWEEPS]
    assert "16 runs" in lines[SEARCH]


def test_the_table_of_named_runs_is_that_of_the_registry() -> None:
    """`lofo list` reads a table, so that it need not import jax; a run that is new goes there."""
    expected = [(run_id, e.buffer.name, e.figure) for run_id, e in REGISTRY.items()]
    expected += [(name, f"{len(sweep)} runs", sweep.figure) for name, sweep in SWEEPS.items()]
    text = "".join("\t".join(line) + "\n" for line in expected)
    assert cli.LISTING.read_text() == text, f"{cli.LISTING} must read:\n{text}"


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("Phase 1 steps", "1,500,000"),
        ("Phase 2 steps", "3,000,000"),
        ("Discount factor", "0.99"),
        ("Maximum steps of an episode", "500"),
        ("Training steps between two evaluations", "10,000"),
        ("Evaluation episodes", "10"),
        ("Random steps before training", "50,000"),
        ("D_local (radius)", "0.005"),
        ("N_local (limit)", "1"),
        ("Embedding network", "64 x 64 x 64 (tanh) 16"),
        ("Number of negative samples", "128"),
        ("beta (negative target)", "10.0"),
        ("Number of training epochs", "5"),
        ("Dynamics, reward and termination model", "64 x 64 x 63 (tanh) (action) 64 x 64 (tanh)"),
        ("Action-value estimator", "64 x 64 x 64 x 64 (tanh)"),
        ("Value optimizer", "Adam, learning rate 5e-06"),
        ("Model optimizer", "Adam, learning rate 5e-05"),
        ("Exploration parameter", "epsilon greedy, 0.5"),
        ("Target network update frequency", "500"),
        ("Number of model learning steps", "5"),
        ("Number of planning steps", "5"),
    ],
)
def test_show_prints_the_table_of_the_paper(
    capsys: pytest.CaptureFixture[str], label: str, value: str
) -> None:
    lines = Answer(capsys, "show", MOUNTAINCAR).out.splitlines()
    assert [line.split(label)[1].strip() for line in lines if label in line] == [value]


def test_show_describes_every_run(capsys: pytest.CaptureFixture[str]) -> None:
    for run_id, experiment in REGISTRY.items():
        answer = Answer(capsys, "show", run_id)
        assert answer.code == 0 and f"{experiment.buffer.capacity:,}" in answer.out


def test_run_overrides_any_field(packs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer(
        *(capsys, "run", "demo/lofo", "--seeds", "0,2-3", "--out", "there"),
        *("--agent.batch-size", "64", "--agent.value-learning-rate", "3e-4"),
        *("--agent.value.sizes", "5", "6", "--agent.value.activation", "tanh"),
        *("--agent.no-one-hot-action", "--agent.raw-inputs"),
        *("--buffer.rule.radius", "0.125", "--buffer.capacity", "77"),
        *("--schedule.warmup", "40", "--phases.0.steps", "400", "--phases.1.optimum", "1.5"),
        *("--phases.0.optimum=3.8", "--phases.1.stale", "0.929"),  # the last as it was
        *("--schedule.episodes", "3", "--environment.time-limit", "9"),
    )
    assert answer.code == 0
    ((pack, out),) = packs
    (e,) = pack.experiments
    assert out == Path("there") and e.id == "demo/lofo" and e.seeds == (0, 2, 3)
    assert (e.agent.batch_size, e.agent.value_learning_rate) == (64, 3e-4)
    assert (e.agent.value.sizes, e.agent.value.activation) == ((5, 6), "tanh")
    assert (e.agent.one_hot_action, e.agent.raw_inputs) == (False, True)
    assert (e.buffer.rule.radius, e.buffer.capacity) == (0.125, 77)
    assert (e.schedule.warmup, e.phases[0].steps, e.phases[1].optimum) == (40, 400, 1.5)
    assert (e.schedule.episodes, e.environment.time_limit) == (3, 9)
    assert (e.phases[0].optimum, e.phases[0].stale, e.phases[1].stale) == (3.8, 3.8, 0.929)
    untouched = REGISTRY["demo/lofo"]
    assert e.buffer.rule.limit == untouched.buffer.rule.limit
    assert e.buffer.locality == untouched.buffer.locality
    assert e.agent.head == untouched.agent.head


def test_run_without_options_runs_what_is_registered(packs: Any, capsys: Any) -> None:
    assert Answer(capsys, "run", "demo/lofo", "demo/fifo-all").code == 0
    assert Answer(capsys, "run", "demo/fifo-all", "--agent.batch-size", "7").code == 0
    (both, out), (one, _) = packs
    assert both.experiments == (REGISTRY["demo/lofo"], REGISTRY["demo/fifo-all"])
    assert out == Path("runs/demo/lofo+demo/fifo-all")
    assert one.lead.buffer == REGISTRY["demo/fifo-all"].buffer and one.lead.agent.batch_size == 7


def test_a_name_carries_seeds_of_its_own(packs: Any, capsys: Any) -> None:
    names = "demo/fifo-all:1", "demo/fifo-small:0-1,4", "demo/lofo"
    assert Answer(capsys, "run", *names).code == 0
    assert Answer(capsys, "run", *names, "--seeds", "7-8").code == 0
    twice = Answer(capsys, "run", f"{SEARCH}:3", f"{SEARCH}/beta-1/radius-0.01/limit-5:4")
    assert twice.code == 2 and "limit-5 was named twice" in twice.err
    assert Answer(capsys, "run", f"{SEARCH}:3", f"{MOUNTAINCAR}:4").code == 0
    assert "--buffer.rule.limit" in Answer(capsys, "run", "demo/lofo:3", "--help").out
    (plain, out), (given, same), (sweep, mixed) = packs
    seeds = {"demo/fifo-all": (1,), "demo/fifo-small": (0, 1, 4), "demo/lofo": (0, 1, 2)}
    assert {e.id: e.seeds for e in plain.experiments} == seeds
    assert {e.id: e.seeds for e in given.experiments} == seeds | {"demo/lofo": (7, 8)}
    assert out == same == Path("runs/demo/fifo-all+demo/fifo-small+demo/lofo")
    assert [e.seeds for e in sweep.experiments] == [(3,)] * len(SWEEPS[SEARCH]) + [(4,)]
    assert mixed == Path(f"runs/{SEARCH}+{MOUNTAINCAR}")


def test_a_preset_keeps_the_seeds_of_a_name(packs: Any, capsys: Any) -> None:
    names = "reacher/dreamer/lofo:2-3", "reacher/dreamer/fifo-all"
    assert Answer(capsys, "run", *names, "--preset", "small").code == 0
    ((pack, _),) = packs
    assert [e.seeds for e in pack.experiments] == [(2, 3), (0,)]


def test_a_sweep_runs_in_one_program(packs: Any, capsys: Any) -> None:
    assert Answer(capsys, "run", SEARCH, "--seeds", "0-1", "--schedule.warmup", "60000").code == 0
    assert Answer(capsys, "run", f"{SEARCH}/beta-1/radius-0.01/limit-5").code == 0
    (pack, out), (one, _) = packs
    assert out == Path("runs") / SEARCH and len(pack.experiments) == len(SWEEPS[SEARCH]) == 16
    assert pack.lead.seeds == (0, 1) and pack.lead.schedule.warmup == 60_000
    (single,) = one.experiments
    buffer = single.buffer
    assert single in find_all(SEARCH) and single.id == f"{SEARCH}/beta-1/radius-0.01/limit-5"
    assert (buffer.rule.radius, buffer.rule.limit, buffer.capacity) == (0.01, 5, 200_000)
    assert buffer.locality.negative_target == 1.0
    assert buffer.name == "LoFo, beta 1, radius 0.01, limit 5"


def test_what_a_sweep_varies_cannot_be_overridden(
    packs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its ids would tell other values than those it ran with."""
    with pytest.raises(SystemExit):
        cli.main(["run", SEARCH, "--buffer.rule.limit", "5"])
    assert "has limit 1, got 5: name another run of the sweep" in capsys.readouterr().err
    assert not packs
    cli.main(["run", SEARCH, "--buffer.capacity", "50000"])
    assert len(packs) == 1


def test_a_sweep_holds_the_settings_of_the_paper() -> None:
    """Every combination once; the one that the paper chose is the run the sweep varies."""
    experiments, chosen = find_all(SEARCH), REGISTRY[MOUNTAINCAR]
    buffers = [e.buffer for e in experiments]
    settings = {(b.locality.negative_target, b.rule.radius, b.rule.limit) for b in buffers}
    assert len(settings) == len({e.id for e in experiments}) == 16
    assert {e.common for e in experiments} == {chosen.common}
    same = find(f"{SEARCH}/beta-10/radius-0.005/limit-1")
    assert replace(same.buffer, name=chosen.buffer.name) == chosen.buffer
    assert len({(b.locality, b.locality_steps) for b in buffers}) == 2  # fitted once for each beta


def test_show_lists_the_runs_of_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer(capsys, "show", SEARCH)
    lines = {line.split()[0]: line for line in answer.out.splitlines()}
    assert answer.code == 0 and list(lines) == [e.id for e in find_all(SEARCH)]
    assert "limit 10" in lines[f"{SEARCH}/beta-1/radius-0.01/limit-10"]
    single = Answer(capsys, "show", f"{SEARCH}/beta-1/radius-0.01/limit-10").out
    assert "400,000" in single and "beta (negative target)" in single
    assert "--buffer.rule.limit" in Answer(capsys, "run", SEARCH, "--help").out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (MOUNTAINCAR, "uniform"),
        (f"{MOUNTAINCAR}-by_error", "by model error, exponent 0.6, floor 0.001"),
        (f"{MOUNTAINCAR}-by_reward", "by reward, share 0.5"),
    ],
)
def test_show_says_what_is_sampled(
    capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert f" {words}\n" in Answer(capsys, "show", name).out


def test_a_sampler_can_be_overridden(packs: Any, capsys: Any) -> None:
    words = ("run", f"{MOUNTAINCAR}-by_reward", "--buffer.sampler.share", "0.25")
    assert Answer(capsys, *words).code == 0
    ((pack, _),) = packs
    assert pack.lead.buffer.sampler.share == 0.25


def test_demo_runs_every_buffer_in_one_pack(packs: Any, capsys: Any) -> None:
    assert Answer(capsys, "demo", "--seeds", "4").code == 0
    ((pack, out),) = packs
    assert [e.id for e in pack.experiments] == [e.id for e in DEMO]
    assert pack.lead.seeds == (4,) and out == Path("runs/demo")


def test_fraction_shortens_the_run(packs: Any, capsys: Any) -> None:
    names = MOUNTAINCAR, "mountaincar/dyna_q/fifo-3e5", "mountaincar/dyna_q/reservoir-3e4"
    assert Answer(capsys, "run", *names, "--fraction", "0.1").code == 0
    assert Answer(capsys, "run", "demo/lofo", "--fraction", "0.5").code == 0
    (pack, _), (demo, _) = packs
    local, fifo, reservoir = pack.experiments
    assert [phase.steps for phase in local.phases] == [150_000, 300_000]
    assert (fifo.buffer.capacity, reservoir.buffer.capacity) == (30_000, 3_000)
    assert local.buffer.capacity == REGISTRY[MOUNTAINCAR].buffer.capacity
    assert local.buffer.rule.limit == 1  # never below
    assert demo.lead.buffer.rule.limit == round(REGISTRY["demo/lofo"].buffer.rule.limit / 2)
    assert local.fraction == 0.1 and isinstance(fifo.buffer.rule, Fifo)


def test_an_evaluation_period_asked_for_is_kept(packs: Any, capsys: Any) -> None:
    words = "run", "demo/lofo", "--fraction", "0.25"
    assert Answer(capsys, *words).code == 0
    own = REGISTRY["demo/lofo"].schedule.evaluate_every
    for every in (2_000, own):
        assert Answer(capsys, *words, f"--schedule.evaluate-every={every}").code == 0
    assert Answer(capsys, *words, "--schedule.evaluate_every", "500").code == 0
    periods = [pack.lead.schedule.evaluate_every for pack, _ in packs]
    assert periods == [400, 2_000, own, 500]  # first ten in 4 000 steps, five of them judged


def test_the_limit_can_be_kept(packs: Any, capsys: Any) -> None:
    assert Answer(capsys, "run", "demo/lofo", "--fraction", "0.5", "--keep-limit").code == 0
    ((pack, _),) = packs
    assert pack.lead.buffer.rule.limit == REGISTRY["demo/lofo"].buffer.rule.limit
    assert pack.lead.fraction == 0.5


def test_a_run_too_short_for_any_buffer_is_told_so_once(packs: Any, capsys: Any) -> None:
    names = "minigrid/dyna_q/lofo", "minigrid/dyna_q/fifo-3e5"
    (note,) = Answer(capsys, "run", *names, "--fraction", "1/6").err.splitlines()
    assert note.startswith("lofo: note: phase 2 copies the target network only 50 times")
    words = "--fraction", "1/6", "--agent.target-period", "833"
    assert Answer(capsys, "run", *names, *words).err == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["bogus"], "no command is called 'bogus'; `lofo --help` lists them"),
        (["run"], "name at least one run"),
        (["run", "nowhere"], "no run is called 'nowhere'; `lofo list` shows all"),
        (["run", "mountaincar/dynaq/lofo"], "perhaps you mean mountaincar/dyna_q/lofo"),
        (["run", "demo/fif"], "no run is called 'demo/fif'; there are: demo/fifo-all"),
        (["show", "nowhere"], "no run is called 'nowhere'"),
        (["run", f"{SEARCH}/beta-3"], f"no run is called '{SEARCH}/beta-3'"),
        (
            ["run", f"{MOUNTAINCAR}-by_reward", "--buffer.sampler.share", "2"],
            "share must be in [0, 1], got 2.0",
        ),
        (["run", "demo/lofo", "demo/lofo"], "named twice"),
        (["run", "demo/lofo:0", "demo/lofo:1"], "named twice"),
        (["run", "demo/lofo:"], "demo/lofo: seeds are written like 0-9 or 0,2,5, got ''"),
        (["run", "demo/lofo:1:2"], "demo/lofo: seeds are written like 0-9 or 0,2,5, got '1:2'"),
        (["run", "demo/lofo:2,2"], "demo/lofo: seeds must be distinct, got '2,2'"),
        (["run", "demo/lofo:2", "--seeds", "1"], "leave out --seeds"),
        (["run", ":1"], "':1' names no run"),
        (["run", "nowhere:1"], "no run is called 'nowhere'; `lofo list` shows all"),
        (["run", "demo/lofo", MOUNTAINCAR], "differ in more than the buffer"),
        (["run", "demo/lofo", "--seeds", "a"], "seeds are written like 0-9 or 0,2,5, got 'a'"),
        (["run", "demo/lofo", "--seeds", "9-0"], "9-0 is no range from a lower to a higher"),
        (["run", "demo/lofo", "--seeds", "0,0"], "seeds must be distinct"),
        (["demo", "--seeds", "5-"], "got '5-'"),
        (["run", "demo/lofo", "--fraction", "1.5"], "a fraction lies in (0, 1], got 1.5"),
        (["run", "demo/lofo", "--keep-limit"], "--keep-limit is for shorter runs"),
        (["run", "demo/lofo", "--fraction", "0"], "a fraction lies in (0, 1], got 0.0"),
        (["run", "demo/lofo", "--fraction", "0.001"], "choose a smaller --schedule.warmup"),
        (["run", "demo/lofo", "--agent.batch-size", "0"], "batch_size must be at least 1, got 0"),
        (["run", "demo/lofo", "--agent.exploration", "2"], "got 2.0"),
        (["run", "demo/lofo", "--buffer.rule.radius", "-1"], "radius must be positive, got -1.0"),
        (["run", "demo/lofo", "--buffer.rule.limit", "0"], "limit must be an integer of at least"),
        (["run", "demo/lofo", "--buffer.capacity", "0"], "capacity of LoFo must be at least 1"),
        (["run", "demo/lofo", "--buffer.locality-steps", "5"], "must fill a batch of"),
        (["run", "demo/lofo", "--phases.0.steps", "10"], "does not fit into phase 1 of 10"),
        (["run", "demo/lofo", "--phases.1.steps", "-3"], "phase 2 must be at least 1, got -3"),
        (["run", "demo/lofo", "--environment.size", "2"], "size must be at least 3"),
        (
            ["run", "demo/lofo", "--environment.time-limit", "5"],
            "lofo: another world has other scores: give --phases.0.optimum, --phases.1.optimum",
        ),
        (
            ["run", "minigrid/dyna_q/lofo", "--environment.size", "6"],
            "decoder.kernels (5, 5, 4) would draw a side of 64; the locality was built for "
            "observations of shape (80, 80, 3), but they have shape (64, 64, 3): set "
            "locality.observation_shape; and another world has other scores: give --phases.0",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], packs: Any, words: list[str], sentence: str
) -> None:
    assert sentence in refusal(capsys, *words)
    assert packs == []


@pytest.mark.slow
def test_another_world_wants_every_score_of_its_own(packs: Any, capsys: Any) -> None:
    scores = ["--phases.0.optimum", "--phases.1.optimum", "--phases.1.stale"]
    words = ["run", "demo/lofo", "--environment.time-limit", "9"]
    for mask in range(8):
        given = [name for k, name in enumerate(scores) if mask >> k & 1]
        missing = [name for name in scores if name not in given]
        options = [f"{name}=1.5" for name in given]
        if missing:
            line = refusal(capsys, *words, *options)
            assert line.endswith(f"other scores: give {', '.join(missing)} too")
    assert packs == [] and Answer(capsys, *words, *options).code == 0
    assert Answer(capsys, *words, *options, "--phases.0.stale", "0.5").code == 0
    stale = [[phase.stale for phase in pack.lead.phases] for pack, _ in packs]
    assert stale == [[1.5, 1.5], [0.5, 1.5]]  # phase 1's is its optimum, unless it is given


def test_a_report_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "name at least one folder with rows" in refusal(capsys, "report")
    assert "no-such-folder" in refusal(capsys, "report", "no-such-folder")


def test_overridden_lengths_show_in_the_fraction(packs: Any, capsys: Any) -> None:
    words = ("run", "demo/lofo", "--phases.0.steps", "4000", "--phases.1.steps", "5000")
    assert Answer(capsys, *words).code == 0
    ((pack, _),) = packs
    assert pack.lead.fraction == 0.25


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["run", "demo/lofo", "--agent.bogus", "1"], "--agent.bogus"),
        (["run", "demo/lofo", "--sedes", "1"], "--sedes"),
        (["run", "demo/lofo", "--agent.batch-size", "many"], "--agent.batch-size"),
        (["run", "demo/lofo", "--agent.value.activation", "gelu"], "--agent.value.activation"),
        (["run", "demo/lofo", "--fraction", "half"], "--fraction"),
        (["run", "demo/fifo-all", "--buffer.rule.radius", "1"], "--buffer.rule.radius"),
        (["run", "demo/lofo", "--phases.2.steps", "1"], "--phases.2.steps"),
        (["show"], "A name from `lofo list`"),
    ],
)
def test_a_wrong_option_is_named_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], packs: Any, words: list[str], part: str
) -> None:
    assert part in complaint(capsys, *words)
    assert packs == []


@pytest.mark.parametrize("command", [[], *([name] for name in cli.COMMANDS)])
def test_every_command_explains_itself(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    answer = Answer(capsys, *command, "--help")
    assert answer.code == 0 and "usage: lofo" in answer.out and answer.err == ""


@pytest.mark.parametrize("command", cli.TAKING_FIELDS)
@pytest.mark.parametrize(
    "words", [["demo/lofo", "--help"], ["--seeds", "0", "demo/lofo:1", "-h"]], ids=len
)
def test_help_of_a_run_lists_its_fields_beside_the_options(
    capsys: pytest.CaptureFixture[str], command: str, words: list[str]
) -> None:
    answer = Answer(capsys, command, *words)
    assert answer.code == 0 and f"usage: lofo {command} [-h]" in answer.out
    listed = [line.strip("│ ").split(" ")[0].rstrip(",") for line in answer.out.splitlines()]
    assert {"--buffer.rule.radius", "--buffer.locality.num-epochs", "--phases.1.steps"} < {*listed}
    for option in dataclasses.fields(cli.load(command))[1:]:  # the first are the names
        assert listed.count(f"--{option.name.replace('_', '-')}") == 1
    for name in getattr(cli.load(command), "refused", ()):
        assert f"--{name}" not in listed
    assert "like 0-9 or 0,2,5" in answer.out  # seeds as the command reads them


@pytest.mark.parametrize("command", cli.TAKING_FIELDS)
def test_help_of_a_run_that_is_not_there_says_so(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert "no run is called 'demo/lof'" in complaint(capsys, command, "demo/lof", "--help")


def test_no_words_at_all_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer(capsys)
    assert answer.code == 0 and all(name in answer.out for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("3", (3,)),
        ("0-3", (0, 1, 2, 3)),
        ("7-7", (7,)),
        ("0,2,5-7", (0, 2, 5, 6, 7)),
        (" 1 , 2 ", (1, 2)),
    ],
)
def test_seeds_as_a_person_writes_them(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["", ",", "a", "-1", "3-", "3-1", "0,3-1", "1-2-3", "1.5", "0:9", "4294967296"]
)
def test_seeds_that_nobody_can_read(text: str) -> None:
    with pytest.raises(LofoError, match="seeds are written like 0-9 or 0,2,5"):
        parse_seeds(text)


def test_run_writes_rows_and_is_quiet_off_a_terminal(
    tiny: Pack, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [experiment.id for experiment in tiny.experiments]
    answer = Answer(capsys, "run", *ids, "--out", str(tmp_path))
    lines = f"begins; rows go to {tmp_path}", "fitting the locality of LoFo, 2 seeds"
    assert answer.code == 0 and answer.err == "".join(f"lofo: {line}\n" for line in lines)
    assert "LoFo" in answer.out and f"lofo report {tmp_path}" in answer.out
    assert "\x1b" not in answer.out and "\r" not in answer.out
    assert result_lines(tmp_path) == result_lines(finished.folder)
    rows = (tmp_path / ROWS).read_bytes()
    assert Answer(capsys, "run", *ids, "--out", str(tmp_path)).code == 0  # finished: nothing to do
    assert (tmp_path / ROWS).read_bytes() == rows
    other = refusal(capsys, "run", *ids, "--out", str(tmp_path), "--seeds", "5-6")
    assert "seeds[0] was 0, now 5" in other


def make_program(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    return path


@pytest.mark.parametrize("folder", ["bin", "my bin"])
@pytest.mark.parametrize("is_on_path", [True, False])
def test_what_is_to_be_typed_begins_as_the_command_did(
    folder: str,
    is_on_path: bool,
    packs: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = make_program(tmp_path / folder / "lofo")
    other = make_program(tmp_path / "other" / "lofo")
    monkeypatch.setenv("PATH", str((program if is_on_path else other).parent))
    words = ["run", "demo/lofo", "--out", "my runs"]
    monkeypatch.setattr(sys, "argv", [str(program), *words])
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", *sys.argv])
    began = "lofo" if is_on_path else quote(str(program))
    assert Answer(capsys, *words).out.endswith(f"Figures: {began} report 'my runs'\n")


@pytest.mark.parametrize("before", [["python", "-m", "lofo_rl.cli"], ["python", cli.__file__]])
def test_what_is_to_be_typed_begins_as_the_module_did(
    before: list[str], packs: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    words = ["run", "demo/lofo"]
    monkeypatch.setattr(sys, "argv", [cli.__file__, *words])
    monkeypatch.setattr(sys, "orig_argv", [*before, *words])
    told = f"Figures: {' '.join(before)} report runs/demo/lofo\n"
    assert Answer(capsys, *words).out.endswith(told)
    monkeypatch.setattr(sys, "argv", ["train.py"])  # a program of one's own that calls `main`
    assert Answer(capsys, *words).out.endswith("Figures: lofo report runs/demo/lofo\n")


def test_report_draws_and_report_json_counts(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(shutil.copytree(finished.folder, tmp_path / "run"))
    answer = Answer(capsys, "report", folder, "--json")
    summary = json.loads(answer.out)
    assert answer.code == 0 and {"tiny/lofo", "tiny/fifo"} <= set(str(summary).split("'"))
    answer = Answer(capsys, "report", folder, "--out", str(tmp_path / "figures"))
    assert answer.code == 0 and "LoFo" in answer.out
    page = (tmp_path / "figures" / "report.html").read_text()
    assert "LoFo" in page and "FIFO" in page


def test_a_reader_that_has_seen_enough_loses_words_alone(
    finished: Finished, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "lofo_rl.cli", "report", str(finished.folder)]
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does, though sooner
    words = [*command, "--out", str(tmp_path)]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    drawn = {path.name for path in tmp_path.iterdir()}
    assert {"report.html", "curves.png", "diagnostics.png", "coverage.png"} <= drawn


def test_what_is_drawn_is_drawn_before_any_word(
    packs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[str] = []

    def draw(_: Any, out: Path, **__: Any) -> Path:
        drawn.append(capsys.readouterr().out)
        return out

    monkeypatch.setattr(named_runs.reports, "write_report", draw)
    for module in (named_runs, folders):
        monkeypatch.setattr(module, "summarise", lambda *_: [])
    assert "report: " in Answer(capsys, "demo").out
    assert "Report: " in Answer(capsys, "report", "somewhere").out
    assert drawn == ["", ""]


def test_a_report_of_a_damaged_map_is_refused(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(finished.folder, tmp_path / "run"))
    (folder / "tiny-lofo-phase1.npz").write_bytes(b"nothing")
    answer = Answer(capsys, "report", str(folder))
    assert answer.code == 2 and "tiny-lofo-phase1.npz cannot be read" in answer.err


def test_an_interrupt_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(named_runs, "run", interrupt)
    answer = Answer(capsys, "run", "demo/lofo")
    assert answer.code == 130 and "the same command goes on" in answer.err


def test_the_console_command_is_the_module() -> None:
    command = [sys.executable, "-m", "lofo_rl.cli", "show", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("lofo: no run is called 'nowhere'")


BUSY = """
import signal
import jax
from lofo_rl import cli, interrupts

def main():
    forever = jax.jit(lambda x: jax.lax.while_loop(lambda x: x >= 0, lambda x: (x + 1) % 7, x))
    program = forever.lower(0).compile()
    print("begins", flush=True)
    jax.block_until_ready(program(0))

cli.main, interrupts.PATIENCE = main, 0.1
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts us may ignore it
cli.entry()
"""


def test_an_interrupt_ends_a_compiled_program_that_would_go_on() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begins\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130 and "the same command goes on" in err


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_a_mistake_or_an_interrupt_waits_for_nothing(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(cli, "heed_interrupts", lambda leave: None)
    monkeypatch.setattr(cli, "main", lambda: sys.exit(code))
    monkeypatch.setattr(cli.os, "_exit", left.append)
    with pytest.raises(SystemExit):
        cli.entry()
    assert left == ([code] if code in (2, 130) else [])
