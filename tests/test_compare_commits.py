"""The tool that compares two commits finds what differs, and nothing else."""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compare_commits
from compare_commits import CASES, Case, Commit, Failed, Intended, Job, Verdicts, pieces_differ
from differences import ABSENT, Difference, differences, spellings
from lofo_rl.cli import parse_with_fields
from lofo_rl.environments import Reacher
from lofo_rl.experiments import REGISTRY, Buffer, Experiment
from stripped_hlo import strip_names

ROOT = Path(__file__).parents[1]
HEADER = {
    "from_step": 0,
    "time": "noon",
    "commit": "a",
    "experiments": [{"is": "Run", "rate": 0.1, "same_action": True}],
}
ROWS = (("return", 1.5), ("return", 2.5), ("same_action_rows", 7.0), ("maps", "demo-lofo.npz"))
RENAMED = {"same_action": "group_by", "ByError": "Prioritized", "lofo-by_error": "lofo-weighted"}


def write_run(
    folder: Path, rows: Any = ROWS, header: Any = HEADER, run: str = "demo/lofo", **arrays: Any
) -> Path:
    """A folder as a run leaves it; rows are (metric, value)."""
    folder.mkdir()
    lines: list[Any] = [{"header": header}]
    for step, (metric, value) in enumerate(rows):
        row = {"run": run, "seed": 0, "phase": 1, "step": step, "metric": metric, "value": value}
        lines.append(row)
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if arrays:
        np.savez(folder / "checkpoint.npz", **arrays)
    return folder


def between(tmp_path: Path, old: Any, new: Any, **options: Any) -> list[Difference]:
    """All differences between two runs, each given as what `write_run` takes."""
    folders = (write_run(tmp_path / name, **own) for name, own in (("old", old), ("new", new)))
    return list(differences(*folders, **options))


def test_equal_runs_have_no_difference_whatever_the_clock_and_the_origin_say(tmp_path):
    old = {"rows": (*ROWS, ("timing/seconds", 3.0)), "x": [1.0, np.nan]}
    new = {"rows": (*ROWS, ("timing/seconds", 4.0)), "x": [1.0, np.nan]}
    new["header"] = HEADER | {"time": "one", "commit": "b"}
    assert between(tmp_path, old, new) == []


def test_a_changed_digit_is_found(tmp_path):
    rows = (("return", 1.5), ("return", 2.500001), *ROWS[2:])
    (found,) = between(tmp_path, {}, {"rows": rows})
    place = "run demo/lofo, seed 0, phase 1, step 1"
    assert found == ("rows/return", place, 2.5, 2.500001)


@pytest.mark.parametrize("side", [0, 1])
def test_a_missing_row_is_found(tmp_path, side):
    runs = [{}, {}]
    runs[side] = {"rows": ROWS[1:]}  # and all other steps are one lower
    (found, *_) = between(tmp_path, *runs)
    assert found[1].endswith("step 0") and found[2 + side] in (ABSENT, 2.5)
    (tmp_path / "again").mkdir()
    runs[side] = {"rows": ROWS[:-1]}
    (found,) = between(tmp_path / "again", *runs)
    assert found.field == "rows/maps" and found[2 + side] == ABSENT


def test_a_row_that_occurs_twice_is_found(tmp_path):
    for name in ("old", "new"):
        write_run(tmp_path / name)
    path = tmp_path / "new" / "rows.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[1] + "\n")
    (found,) = differences(tmp_path / "old", tmp_path / "new")
    assert (found.field, found.old, found.new) == ("rows/return", ABSENT, 1.5)


def test_a_changed_setting_is_found_and_one_that_is_new_and_off_is_none(tmp_path):
    def header(**changes: Any) -> Any:
        return HEADER | {"experiments": [HEADER["experiments"][0] | changes]}

    assert between(tmp_path, {}, {"header": header(later=False)}) == []
    (tmp_path / "again").mkdir()
    found = between(tmp_path / "again", {}, {"header": header(later=True, rate=0.2)})
    fields = {"header/0/experiments/0/rate": (0.1, 0.2)}
    fields["header/0/experiments/0/later"] = (ABSENT, True)
    assert {d.field: (d.old, d.new) for d in found} == fields


X = np.arange(6, dtype=np.float32).reshape(2, 3)
CHANGED = np.where(X == 4, np.nextafter(X, np.float32(9)), X)


@pytest.mark.parametrize(
    ("new", "place"),
    [
        (CHANGED, "element [1, 1], 1 of 6 differ"),
        (np.where(X == 0, np.float32(-0.0), X), "element [0, 0], 1 of 6 differ"),
        (np.where(X == 5, np.float32(np.nan), X), "element [1, 2], 1 of 6 differ"),
        (X.astype(np.float64), "shape"),
        (X.reshape(3, 2), "shape"),
    ],
)
def test_a_changed_array_is_found(tmp_path, new, place):
    (found,) = between(tmp_path, {"x": X, "y": X}, {"x": new, "y": X})
    assert found.field == "arrays/checkpoint.npz/x" and found.place == place


def test_a_missing_array_and_a_missing_file_are_found(tmp_path):
    (found,) = between(tmp_path, {"x": X, "y": X}, {"x": X})
    assert found == ("arrays/checkpoint.npz/y", "", "y", ABSENT)
    (tmp_path / "again").mkdir()
    (found,) = between(tmp_path / "again", {}, {"x": X})
    assert found == ("arrays/checkpoint.npz", "", ABSENT, "checkpoint.npz")


def test_a_tolerance_is_a_share_of_the_largest_number_and_integers_get_none(tmp_path):
    rows = (("return", 1.5 + 2e-5), *ROWS[1:])  # the largest return is 2.5
    new = {"x": X + np.float32(4e-5), "rows": rows}
    old = {"x": X}
    assert between(tmp_path, old, new, tolerance=1e-5) == []
    (tmp_path / "again").mkdir()
    assert len(between(tmp_path / "again", old, new, tolerance=7e-6)) == 2
    (tmp_path / "integers").mkdir()
    pair = {"x": np.array([1000, 1])}, {"x": np.array([1000, 2])}
    assert len(between(tmp_path / "integers", *pair, tolerance=0.1)) == 1


def test_a_tolerance_knows_floats_and_integers_that_are_stored_as_words(tmp_path):
    def words(position: float, action: int) -> Any:
        return {"x": np.array([np.float32(position).view(np.uint32), action], np.uint32)}

    assert between(tmp_path, words(1.0, 1), words(1.000001, 1), tolerance=1e-5) == []
    (tmp_path / "again").mkdir()
    (found,) = between(tmp_path / "again", words(1.0, 1), words(1.000001, 2), tolerance=1e-5)
    assert found.place.startswith("element [1]")


def test_renamed_fields_metrics_ids_classes_and_files_are_the_same(tmp_path):
    def run(group: str, sampler: str, name: str) -> Any:
        settings = {"is": "Run", group: True, "sampler": {"is": sampler}}
        rows = (("return", 1.5), (f"rows/{group}", 2.0), ("maps", f"demo-{name}.npz"))
        arrays = {f"replays/{group}": X}
        return {
            "rows": rows,
            "header": {"experiments": [settings]},
            "run": f"demo/{name}",
            **arrays,
        }

    old, new = (
        run("same_action", "ByError", "lofo-by_error"),
        run("group_by", "Prioritized", "lofo-weighted"),
    )
    assert between(tmp_path, old, new, renamed=RENAMED) == []
    (tmp_path / "again").mkdir()
    fields = {d.field for d in between(tmp_path / "again", old, new)}
    assert {"header/0/experiments/0/sampler/is", "rows/maps"} < fields


def test_fields_of_tuples_may_be_renamed_if_their_order_stays(tmp_path):
    old = {"a/slope": X, "a/lot": X + 1, "b": X}
    assert between(tmp_path, old, {"a/grad": X, "a/uniform": X + 1, "b": X}) == []
    (tmp_path / "again").mkdir()
    swapped = between(tmp_path / "again", old, {"a/grad": X + 1, "a/uniform": X, "b": X})
    assert [d.field for d in swapped] == [
        f"arrays/checkpoint.npz/a/{one} (now a/{other})"
        for one, other in (("slope", "grad"), ("lot", "uniform"))
    ]


def test_words_are_spelt_as_they_were_before_each_rename():
    words = ["--buffer.group_by", "x", "--sampler", "Prioritized"]
    before_classes = ["--buffer.group_by", "x", "--sampler", "ByError"]
    before_all = ["--buffer.same_action", "x", "--sampler", "ByError"]
    assert spellings(words, RENAMED) == [words, before_classes, before_all]


HLO = """\
HloModule jit_f, is_scheduled=true, frontend_attributes={fingerprint_before_lhs="0a1b"}

FileNames
1 "old/place.py"

FunctionNames
1 "f"

%add_reduce.3 (lhs.1: f32[], rhs.2: f32[]) -> f32[] {
  %lhs.1 = f32[] parameter(0)
  %rhs.2 = f32[] parameter(1)
  ROOT %sub.4 = f32[] subtract(%lhs.1, %rhs.2), metadata={op_name="jit(f)/{sub}" source_line=3}
}

ENTRY %main.9 (x.1: f32[4]) -> f32[] {
  %x.1 = f32[4]{0} parameter(0), metadata={op_name="x"}
  %zero = f32[] constant(0)
  ROOT %reduce.2 = f32[] reduce(%x.1, %zero), dimensions={0}, to_apply=%add_reduce.3
}
"""


def renamed(text: str) -> str:
    """The program after Python functions, files and variables were renamed."""
    for old, new in (
        ("jit_f", "jit_gradient"),
        ("0a1b", "ffff"),
        ("old/place.py", "new.py"),
        ('1 "f"', '1 "gradient"\n2 "g"'),
        ("add_reduce.3", "sum_region.7"),
        ("lhs.1", "left"),
        ("x.1", "picture.5"),
        ("sub.4", "minus"),
        ("jit(f)/{sub}", 'jit(\\"g\\")'),
        ("source_line=3", "source_line=88"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def test_a_program_is_the_same_whatever_its_names_are():
    assert strip_names(HLO) == strip_names(renamed(HLO))
    assert strip_names(HLO).count("\n") == 10  # lines of the program are all there


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("subtract(", "add("),
        ("%x.1 = f32[4]{0}", "%x.1 = f32[8]{0}"),
        ("f32[4]{0} parameter", "f32[4]{1} parameter"),
        ("subtract(%lhs.1, %rhs.2)", "subtract(%rhs.2, %lhs.1)"),
        ("constant(0)", "constant(1)"),
        ("dimensions={0}", "dimensions={1}"),
        ("is_scheduled=true", "is_scheduled=false"),
        ("(x.1: f32[4])", "(x.1: f32[8])"),
        ("%zero = f32[] constant(0)", "%zero = f32[] constant(0), metadata={}, kind=kLoop"),
    ],
)
def test_a_program_that_computes_something_else_differs(old, new):
    assert old in HLO
    assert strip_names(HLO) != strip_names(HLO.replace(old, new))


def kernel(name: str = "relu", file: str = "a.py", operation: str = "arith.maximumf") -> str:
    """A line of HLO that launches a Triton kernel, as XLA prints it."""
    from jaxlib.mlir import ir
    from jaxlib.triton import dialect

    context: Any = ir.Context()
    dialect.register_dialect(context)
    context.load_all_available_dialects()
    with context:
        module: Any = ir.Module.parse(
            f"""module {{ tt.func public @{name}(%p: !tt.ptr<f32>) {{
              %x = tt.load %p : !tt.ptr<f32> loc("{file}":1:2)
              %y = {operation} %x, %x : f32 loc("{file}":3:4)
              tt.store %p, %y : !tt.ptr<f32>
              tt.return
            }} }}"""
        )
        code = BytesIO()
        module.operation.write_bytecode(code)
    printable = (
        chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in code.getvalue()
    )
    settings = f'grid_x = 2 : i32, ir = "{"".join(printable)}", name = "{name}"'
    return f"  %{name} = f32[] custom-call(%x), backend_config={{{settings}}}\n"


def test_a_triton_kernel_is_compared_without_the_lines_it_came_from():
    assert "a.py" in kernel() and "a.py" not in strip_names(kernel())
    assert strip_names(kernel()) == strip_names(kernel("rectify", "b.py"))
    assert strip_names(kernel()) != strip_names(kernel(operation="arith.minimumf"))
    wider = kernel().replace("grid_x = 2", "grid_x = 3")
    assert strip_names(kernel()) != strip_names(wider)


def test_gpu_programs_differ_by_count_or_by_text(tmp_path):
    for name, count, text in (("a", "3", "x\ny"), ("b", "4", "x\ny"), ("c", "3", "x\nz\nz")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernels.txt").write_text(count)
        (tmp_path / name / "hlo.txt").write_text(text)
    a, b, c = (tmp_path / name for name in "abc")
    assert list(pieces_differ(a, a)) == []
    assert list(pieces_differ(a, b)) == [("kernels", "", 3, 4)]
    assert list(pieces_differ(a, c)) == [("hlo", "line 2", "y", "z")]


ROW = Difference("rows/loss", "seed 0", 1.0, 2.0)
SETTING = Difference("header/0/experiments/0/own_kernels", "", True, ABSENT)
ENTRIES = (
    Intended("Kernels go", "reacher/*", "header/*/own_kernels", "deleted"),
    Intended("Kernels go", "reacher/*", "hlo", "other kernels"),
)


def test_only_what_is_intended_is_excused(capsys):
    verdicts = Verdicts(ENTRIES)
    verdicts.add("reacher/a", [SETTING])
    verdicts.add("reacher/b", [])
    assert verdicts.num_different == 0 and verdicts.num_equal == 2
    verdicts.add("reacher/c", [SETTING, ROW, ROW])
    verdicts.add("demo/a", [SETTING])
    assert verdicts.num_different == 2
    verdicts.close(is_verbose=False)
    out = capsys.readouterr().out
    assert "DIFFERS   reacher/c: rows/loss [seed 0]: 1.0 -> 2.0 (and 1 more)" in out
    assert "2 times: deleted" in out and "other kernels" not in out
    verdicts.close(is_verbose=True)
    assert "unused    reacher/* hlo: other kernels" in capsys.readouterr().out


def commit(tmp_path: Path, name: str, python: str = sys.executable) -> Commit:
    tree = tmp_path / f"tree-{name}"
    tree.mkdir()
    (tree / "pyproject.toml").write_text('[project]\nscripts.lofo = "fake:go"\n')
    return Commit(name, tree, tmp_path / name, tmp_path / "compiled", python, python, False)


@pytest.mark.parametrize("subject", ["Kernels go", "Another commit"])
def test_an_intention_holds_where_its_commit_lies_between_the_two(tmp_path, monkeypatch, subject):
    job = Job("reacher/a", lambda commit: commit.tree, lambda old, new: [SETTING])
    monkeypatch.setattr(compare_commits, "INTENDED", ENTRIES)
    monkeypatch.setattr(compare_commits, "jobs", lambda options: [job])
    monkeypatch.setattr(compare_commits, "_git", lambda *words: f"First\n{subject}\n".encode())
    old, new = commit(tmp_path, "old"), commit(tmp_path, "new")
    verdicts = compare_commits.compare(old, new, Namespace(jobs=1))
    assert verdicts.num_different == (subject != "Kernels go")


def test_a_commit_that_cannot_run_is_a_difference(tmp_path, monkeypatch, capsys):
    def run(commit: Commit) -> Path:
        if commit.hash == "new":
            raise Failed("no run is called so")
        return commit.tree

    monkeypatch.setattr(compare_commits, "jobs", lambda options: [Job("demo/a", run, between)])
    monkeypatch.setattr(compare_commits, "_git", lambda *words: b"")
    old, new = commit(tmp_path, "old"), commit(tmp_path, "new")
    assert compare_commits.compare(old, new, Namespace(jobs=1)).num_different == 1
    assert "run: ran -> failed: no run is called so" in capsys.readouterr().out


FAKE = """\
import sys
from pathlib import Path

def go():
    words = sys.argv[1:]
    if "--buffer.group_by" in words:
        print("lofo: unrecognized options: --buffer.group_by", file=sys.stderr)
        sys.exit(2)
    with open(Path(__file__).parent / "calls.txt", "a") as file:
        file.write(" ".join(words) + "\\n")
    if "fail" in words:
        sys.exit("lofo: broken")
    (Path(words[words.index("--out") + 1]) / "rows.jsonl").touch()
"""


def test_an_old_commit_is_run_once_and_in_its_own_words(tmp_path, monkeypatch):
    monkeypatch.setattr(compare_commits, "RENAMED", RENAMED)
    old = commit(tmp_path, "old")
    (old.tree / "src").mkdir()
    (old.tree / "src" / "fake.py").write_text(FAKE)
    case = Case("demo/lofo", "--buffer.group_by 1")
    folder = old.run_case(case)
    assert (folder / "rows.jsonl").exists() and old.run_case(case) == folder
    calls = (old.tree / "src" / "calls.txt").read_text().splitlines()
    assert len(calls) == 1 and calls[0].startswith("run demo/lofo --buffer.same_action 1 --out")
    for _ in range(2):  # a failure is not kept
        with pytest.raises(Failed, match="lofo: broken"):
            old.run_case(Case("demo/lofo", "fail"))
    assert len((old.tree / "src" / "calls.txt").read_text().splitlines()) == 3


def prepared(case: Case) -> tuple[Experiment, ...]:
    command, overrides = parse_with_fields(["run", *case.name.split(), *case.options.split()])
    return tuple(command.prepare(overrides))


def kinds(value: Any) -> Iterator[Any]:
    """All classes in a configuration, and what their switches are set to; numbers do not count."""
    for part in value if isinstance(value, tuple) else ():
        yield from kinds(part)
    for name, own in vars(value).items() if is_dataclass(value) else ():
        yield type(value)
        if own is None or isinstance(own, bool | str):
            yield type(value), name, own
        yield from kinds(own)


def all_kinds(experiments: Iterable[Experiment]) -> set[Any]:
    """Those of all experiments, and the rule in each world; labels do not count."""
    found = set()
    for e in experiments:
        world = Reacher if isinstance(e.environment, Reacher) else type(e.environment)
        found |= {*kinds(e), (world, type(e.buffer.rule))}
    labels = {(Experiment, "id"), (Experiment, "figure"), (Buffer, "name")}
    return {kind for kind in found if not (isinstance(kind, tuple) and kind[:2] in labels)}


def test_every_kind_of_program_that_a_named_run_compiles_is_run():
    wanted = all_kinds(REGISTRY.values())
    covered = all_kinds(e for case in CASES for e in prepared(case))
    assert wanted <= covered, wanted - covered
    quick = {type(e.agent) for case in CASES if case.is_quick for e in prepared(case)}
    assert len(quick) > 1


@pytest.mark.slow
def test_a_commit_equals_itself_and_differs_from_one_with_another_constant(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)

    def compare(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(clone / "tools" / "compare_commits.py"), *words]
        options = ["--no-kernels", "--cache", str(tmp_path / "cache")]
        return subprocess.run([*command, *options], capture_output=True, text=True, check=False)

    same = compare("HEAD", "HEAD", "--quick")
    assert same.returncode == 0, same.stdout + same.stderr
    assert same.stdout.count("equal     ") == sum(case.is_quick for case in CASES)
    (world,) = clone.glob("src/*/env*/mountain*car.py")
    assert "GRAVITY = 0.001, 0.0025" in world.read_text()
    world.write_text(world.read_text().replace("0.001, 0.0025", "0.001, 0.00250001"))
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(clone), *author, "commit", "-qam", "Gravity"], check=True)
    other = compare("HEAD~", "HEAD", "--only", "mountaincar/dyna_q/lofo-handcrafted")
    assert other.returncode == 1 and "DIFFERS   mountaincar" in other.stdout
