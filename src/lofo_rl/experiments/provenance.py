"""Where numbers come from: commit, versions, hardware, command."""

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from lofo_rl import devices


def provenance() -> dict[str, Any]:
    """All that another person needs to run the same again; works without git or an install."""
    device = devices.in_use()
    return {
        "commit": os.environ.get("LOFO_COMMIT") or _commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in ("lofo-rl", "jax", "jaxlib", "numpy", "optax")},
        "hardware": {
            "device": f"{jax.device_count(device.platform)} x {device.device_kind}",
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _commit() -> str:
    """The commit of the source tree, marked if something in it is not committed."""
    here = Path(__file__).parent

    def ask(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = ask("status", "--porcelain", "--untracked-files=no")
        return ask("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
