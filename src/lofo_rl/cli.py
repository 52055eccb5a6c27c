"""`lofo demo | list | run | report | ...`: the laboratory from a terminal.

A command's module is imported when the command is called, so that each waits for its own needs
only, and `lofo --help` and `lofo --version` work without the extra `lab`.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import lofo_rl
from lofo_rl.extras import needs
from lofo_rl.interrupts import heed_interrupts
from lofo_rl.options import columns
from lofo_rl.types import LofoError

# name -> module, class, what it does
COMMANDS = {
    "demo": ("named_runs", "Demo", "show local forgetting on this machine, in five minutes"),
    "list": ("cli", "List", "list every named run and where the paper shows it"),
    "run": ("named_runs", "Run", "run named experiments, or resume them"),
    "report": ("folders", "Report", "draw figures and report.html from the rows of runs"),
    "watch": ("folders", "Watch", "make a GIF of each run"),
    "fit": ("localities", "Fit", "fit the learned locality of runs, and measure it"),
    "show": ("named_runs", "Show", "print the settings of a run, or the runs of a sweep"),
    "thin": ("folders", "Thin", "copy the rows of a run, fewer of them"),
    "split": ("folders", "Split", "write the folder of a run as files of bounded size"),
    "join": ("folders", "Join", "put such files together again"),
    "vendor": ("vendor", "print_file", "print the buffer for torch loops as one file"),
}
TAKING_FIELDS = ("run", "fit")  # any field of an experiment is an option of these
STOPPED = "\nlofo: stopped; the same command goes on from the last checkpoint, if there is one yet"
LISTING = Path(__file__).with_name("named_runs.tsv")  # name, buffer and figure of every run


@dataclass(frozen=True)
class List:
    """Lists every named run and sweep, and where the paper shows it."""

    def go(self) -> None:
        print(columns([line.split("\t") for line in LISTING.read_text().splitlines()]))


def main(arguments: Sequence[str] | None = None) -> None:
    """The console command; a mistake is one sentence and exit code 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _dispatch(arguments)
        sys.stdout.flush()  # a reader that is gone should be found out here, not at the exit
    except LofoError as error:
        print(f"lofo: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"lofo: cannot read or write {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        sys.exit(130)


def entry() -> None:
    """`main` as a process: an interrupt or a mistake ends it at once."""
    heed_interrupts(_leave)
    try:
        main()
    except SystemExit as leave:
        if leave.code in (2, 130):  # nobody wants to wait for what still runs or is being compiled
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(leave.code)
        raise


def _leave() -> None:
    """Out of the middle of a compiled program: what is on disk is whole at any moment."""
    if sys.stderr.isatty():
        print("\x1b[?25h", end="", file=sys.stderr)  # show the cursor, which a bar hides
    print(STOPPED, file=sys.stderr, flush=True)
    os._exit(130)


def load(name: str) -> Any:
    """The class of a command."""
    module, kind, _ = COMMANDS[name]
    return getattr(import_module(f"lofo_rl.{module}"), kind)


def _dispatch(arguments: list[str]) -> None:
    name, *words = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
    elif name == "--version":
        print(f"lofo {lofo_rl.__version__}")
    elif name == "vendor":  # of the base, so without tyro
        from lofo_rl.vendor import print_file

        print_file(words)
    elif name not in COMMANDS:
        raise LofoError(f"no command is called {name!r}; `lofo --help` lists them")
    else:
        with needs("lab", f"lofo {name}"):
            _call(name, words)


def _help() -> str:
    return "\n".join(
        [
            "usage: lofo [-h] [--version] COMMAND ...\n",
            *(f"  {name:8}{summary}" for name, (_, _, summary) in COMMANDS.items()),
            "\n`lofo COMMAND --help` lists the options of a command.",
        ]
    )


def _call(name: str, words: list[str]) -> None:
    import tyro

    if name not in TAKING_FIELDS:
        tyro.cli(load(name), args=words, prog=f"lofo {name}").go()
        return
    from lofo_rl.experiments import REGISTRY, SWEEPS, find_all
    from lofo_rl.experiments.overrides import with_fields

    names = [word.partition(":")[0] for word in words]
    runs = [name for name in names if name in REGISTRY or name.startswith(tuple(SWEEPS))]
    runs += [name for name in names[:1] if name and not name.startswith("-")]  # perhaps misspelt
    if runs and {"-h", "--help"} & {*words}:  # with the fields of that very one
        command = with_fields(load(name), find_all(runs[0])[0])
        tyro.cli(command, args=["--help"], prog=f"lofo {name}")
    command, overrides = parse_with_fields([name, *words])
    command.go(overrides)


def parse_with_fields(arguments: Sequence[str]) -> tuple[Any, list[str]]:
    """A command that takes fields of experiments, and those that it overrides."""
    import tyro

    name, *words = arguments
    parsed: tuple[Any, list[str]] = tyro.cli(
        load(name), args=words, prog=f"lofo {name}", return_unknown_args=True
    )
    return parsed


if __name__ == "__main__":
    entry()
