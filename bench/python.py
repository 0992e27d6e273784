"""Which Python runs mcproxy while it is measured, and whether that Python is an optimised build.

A plain build (``./configure`` without ``--enable-optimizations``, as pyenv makes it) needs about a third more processor
time for a request than a profile-guided one, so figures of the two cannot be compared. Where the harness itself runs on
a plain build, mcproxy is measured with the system's Python, in a virtual environment that is made for it in
`.tools/bench`, which git ignores.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.processes import Failed

ROOT = Path(__file__).resolve().parents[1]
SYSTEM = Path("/usr/bin/python3")
_LOOK = """
import json, sys, sysconfig
names = ("CONFIG_ARGS", "PY_CORE_CFLAGS", "PY_CFLAGS_NODIST", "CONFIGURE_CFLAGS_NODIST")
print(json.dumps({
    "version": sys.version.split()[0],
    "prefix": sys.base_prefix,
    "flags": " ".join(str(sysconfig.get_config_var(name) or "") for name in names),
}))
"""


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter: the program, its version, and how it was built."""

    program: Path
    version: str
    build: str
    optimised: bool

    @property
    def supported(self) -> bool:
        """Whether mcproxy runs on it."""
        return (3, 11) <= tuple(int(part) for part in self.version.split(".")[:2]) <= (3, 13)

    def show(self) -> str:
        return f"{self.version} ({self.build})"

    def warning(self) -> str:
        """Return what to say of figures that are measured with it, "" for nothing."""
        if self.optimised:
            return ""
        return (
            f"{self.program} is a plain build of Python {self.version} (no --enable-optimizations): a request costs "
            "about a third more than with an optimised one. Give another with --python."
        )


def describe(program: Path) -> Python:
    """Ask `program` how it was built; Failed when it is no Python that runs."""
    try:
        done = subprocess.run([str(program), "-c", _LOOK], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise Failed(f"{program} is no Python that runs: {error}") from None
    return Python(program, found["version"], *build_of(found["flags"], found["prefix"]))


def build_of(flags: str, prefix: str) -> tuple[str, bool]:
    """Return how a Python was built in words, and whether that is an optimised build.

    `flags` are configure's arguments and the compiler's flags, as sysconfig has them. Those of a distribution (`prefix`
    /usr) do not show: Debian's rules add profile-guided optimisation and take it out of sysconfig.
    """
    if "--enable-optimizations" in flags or "-fprofile-use" in flags:
        return "optimised build", True
    if prefix == "/usr":
        return "the distribution's build, optimised", True
    return "plain build, not optimised", False


def choose(given: Path | None, cache: Path) -> Python:
    """Return the Python to measure mcproxy with: `given`, else this one if it is optimised, else the system's.

    The system's gets a virtual environment in `cache`. Where it does not suit, or that fails, it is this one.
    """
    own = describe(Path(sys.executable))
    if given is not None:
        return describe(given)
    if own.optimised or not SYSTEM.exists():
        return own
    system = describe(SYSTEM)
    if not (system.supported and system.optimised):
        return own
    try:
        return describe(environment(system, cache))
    except Failed as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return own


def environment(python: Python, cache: Path) -> Path:
    """Return the Python of a virtual environment in `cache` that has what this checkout requires; Failed if not.

    It is made once, and again when pyproject.toml changes.
    """
    place = cache / f"python-{python.version}"
    program, stamp = place / "bin" / "python", place / "made-for"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if program.exists() and stamp.exists() and stamp.read_text() == wanted:
        return program
    cache.mkdir(parents=True, exist_ok=True)
    install = [str(program), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--editable", str(ROOT)]
    for argv in ([str(python.program), "-m", "venv", "--clear", str(place)], install):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            words = (done.stderr or done.stdout).strip().splitlines()
            raise Failed(f"no virtual environment of {python.program}: {words[-1] if words else 'no reason given'}")
    stamp.write_text(wanted)
    return program
