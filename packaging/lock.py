"""Writes the lock files, requirements/*.lock: every distribution with its version and the hashes of its files.

usage: lock.py [--upgrade]     (needs uv; `make lock` makes an environment with it)

One file holds for Python 3.11 to 3.13 and for every machine on which Linux and CPython run. All files have the same
versions: `test` is solved first, the others within it. Without --upgrade what is locked stays as long as pyproject.toml
permits it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = Path("requirements")

LOCKS: dict[str, tuple[str, ...]] = {
    "test": ("--extra=test", "pyproject.toml"),
    "all": ("--extra=demo", "--extra=import", "--extra=otel", "pyproject.toml"),
    "demo": ("--extra=demo", "pyproject.toml"),
    "native": ("--extra=native", "pyproject.toml"),
    "run": ("pyproject.toml",),
    "build": ("requirements/build.in",),
    "package": ("requirements/package.in",),
    "lock": ("requirements/lock.in",),
}
"""By name: what is locked, as arguments of `uv pip compile`; `all` is every extra that an operator can use."""


def command(name: str, options: Sequence[str]) -> list[str]:
    """Return what writes the lock file `name`."""
    shared = () if name == "test" else ("--constraint", str(FOLDER / "test.lock"))
    return [
        *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"),
        *("--python-version", "3.11", "--custom-compile-command", "make lock"),
        *shared,
        *options,
        *LOCKS[name],
        *("--output-file", str(FOLDER / f"{name}.lock")),
    ]


def main(options: Sequence[str]) -> int:
    """Write them all; return the exit status."""
    for name in LOCKS:
        status = subprocess.run(command(name, options), cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
