"""Counts the instructions of a program that says itself what is to be counted, with valgrind's callgrind.

The program loads `library` by ctypes and switches counting on and off (`callgrind_requests.c`). What the kernel does is
not counted, nor is anything that waits: a count depends neither on the load of the machine nor on its speed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.processes import Failed

_SOURCE = Path(__file__).resolve().with_name("callgrind_requests.c")
_HEADER = Path("/usr/include/valgrind/callgrind.h")
_NAME = re.compile(r"\((\d+)\)(?: (.*))?")
_RECURSION = re.compile(r"'\d+$")
_DEEPEST = 0.999
"""The share of all instructions from which on a function is only the way to others: the main loop, `main`."""


@dataclass(slots=True)
class Profile:
    """Instructions by the name of the C function: its own, and those with what it called (`inclusive`).

    A function that calls itself by way of others has each of its calls in `inclusive`: never more than `total` is told.
    """

    own: Counter[str] = field(default_factory=Counter)
    inclusive: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All instructions."""
        return self.own.total()

    def top(self, count: int, *, by_own: bool = False) -> list[tuple[str, int, int]]:
        """Return the functions with the most instructions, callees included or not, as (name, inclusive, own).

        Those that are above nearly all others in the stack are left out, unless only their own count.
        """
        total = self.total
        order = (self.own if by_own else self.inclusive).most_common()
        ranked = [(name, min(self.inclusive[name], total), self.own[name]) for name, _ in order]
        return [each for each in ranked if by_own or each[1] < total * _DEEPEST][:count]


def library(cache: Path) -> Path:
    """Compile the library of client requests into `cache` unless it is there; Failed when a tool is missing."""
    missing = [name for name in ("valgrind", "cc") if shutil.which(name) is None]
    if missing or not _HEADER.exists():
        raise Failed(f"not found: {', '.join(missing) or _HEADER}. Install it with: .ci/tools cc valgrind")
    made = cache / "callgrind_requests.so"
    if not made.exists() or made.stat().st_mtime < _SOURCE.stat().st_mtime:
        cache.mkdir(parents=True, exist_ok=True)
        argv = ["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(_SOURCE)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"{_SOURCE.name} does not compile: {done.stderr.strip()}")
    return made


def run(argv: Sequence[str], environ: Mapping[str, str], output: Path) -> tuple[str, Profile]:
    """Run a program under callgrind; return what it has printed and what was counted. Raises Failed if it fails.

    `output` is the file for callgrind's own format, for `callgrind_annotate` and KCachegrind.
    """
    options = ["--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no", f"--callgrind-out-file={output}"]
    done = subprocess.run(
        ["valgrind", *options, *argv], env=dict(environ), capture_output=True, text=True, check=False, cwd="/"
    )
    if done.returncode or not output.exists():
        words = [line for line in done.stderr.splitlines() if line and not line.startswith("==")]
        raise Failed(f"{' '.join(argv)} under callgrind: {words[-1] if words else f'status {done.returncode}'}")
    with output.open() as lines:
        return done.stdout, parse(lines)


def parse(lines: Iterable[str]) -> Profile:
    """Read a file of callgrind's ("Callgrind Format Specification", version 1, without jumps and with one event)."""
    profile = Profile()
    names: dict[str, str] = {}
    function = callee = ""
    calls = 0

    def name_of(text: str) -> str:
        """Return a name that may be written as its number alone after the first time."""
        found = _NAME.fullmatch(text)
        if found is None:
            return _RECURSION.sub("", text)
        if found[2]:
            names[found[1]] = _RECURSION.sub("", found[2])
        return names[found[1]]

    for line in lines:
        first = line[:1]
        if first.isdigit() or first in "+-*":
            cost = int(line.split()[1])
            if not calls:
                profile.own[function] += cost
                profile.inclusive[function] += cost
            else:
                profile.calls[callee] += calls
                if callee != function:
                    profile.inclusive[function] += cost
                calls = 0
        elif line.startswith("fn="):
            function = name_of(line[3:].rstrip("\n"))
        elif line.startswith("cfn="):
            callee = name_of(line[4:].rstrip("\n"))
        elif line.startswith("calls="):
            calls = int(line[6:].split()[0])
    return profile
