"""Runs a target on many inputs; finds what raises, and what takes too long, and makes it small."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import TARGETS, Run, Target
from tests.support.processor_time import processor_time

CORPUS = Path(__file__).parent / "corpus"
SLOW = 0.5
"""Seconds of processor time for one input: far more than any of `mutation.MOST` bytes should need."""

SETUP = 0.04
"""Seconds of processor time that any input may take, beside `Target.seconds_a_mb`."""


slowest: dict[str, tuple[float, int]] = {}
"""By target: seconds of processor time and bytes of the input that took longest in this process."""


@dataclass(frozen=True)
class Crash:
    """An input that a target did not take."""

    target: str
    data: bytes
    cause: str

    def __str__(self) -> str:
        return f"{self.target}: {self.cause}\n  input: {self.data!r}"


def overload(target: Target, part: int = 1) -> list[Crash]:
    """Run a target on inputs of depth and of repetition, every `part`-th of them; return those that it does not take.

    One that takes too long is tried three times more, measured beside other work: the machine may be slow.
    """
    run = target.make()
    found: list[Crash] = []
    for data in islice(target.hostile() if target.hostile is not None else (), 0, None, part):
        most = SETUP + target.seconds_a_mb * len(data) / 1e6
        begun = time.thread_time()
        crash = attempt(run, target.name, data, slow=60.0)
        if crash is None and time.thread_time() - begun > most:
            took = min(_seconds(run, data) for _ in range(3))
            if took > most:
                crash = Crash(target.name, data[:200], f"{len(data)} bytes took {took:.3f} s, not {most:.3f}")
        if crash is not None:
            found.append(crash)
    return found


def _seconds(run: Run, data: bytes) -> float:
    with processor_time() as taken:
        run(data)
    return taken.seconds


def corpus(name: str) -> list[bytes]:
    """Return the inputs that are kept for a target. Raises FileNotFoundError if there is none."""
    found = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    if not found:
        raise FileNotFoundError(CORPUS / name)
    return found


def attempt(run: Run, target: str, data: bytes, slow: float = SLOW) -> Crash | None:
    """Run a target on one input; `slow`: seconds of processor time that it may take."""
    begun = time.thread_time()
    try:
        run(data)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        cause = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return Crash(target, data, cause)
    took = time.thread_time() - begun
    slowest[target] = max(slowest.get(target, (0.0, 0)), (took, len(data)))
    return Crash(target, data, f"it took {took:.2f} s") if took > slow else None


def shares(runs: int, targets: tuple[Target, ...] = TARGETS) -> Iterator[tuple[Target, int]]:
    """Yield the targets with their shares of so many inputs."""
    whole = sum(target.weight for target in targets)
    for target in targets:
        yield target, max(1, round(runs * target.weight / whole))


def fuzz(target: Target, runs: int, seed: object, most: int = 1) -> list[Crash]:
    """Run a target on its corpus and on `runs` changed inputs; return the first crashes, each with another cause."""
    run, kept = target.make(), corpus(target.name)
    found: dict[str, Crash] = {}
    mutator = Mutator(kept, target.words, f"{seed}-{target.name}")
    gc.collect()
    for number in range(len(kept) + runs):
        data = kept[number] if number < len(kept) else mutator.next()
        crash = attempt(run, target.name, data)
        if crash is not None:
            again = attempt(run, target.name, data)  # a slow one may have been a pause of the machine
            if again is not None:
                found.setdefault(again.cause.split("(")[-1], again)
                if len(found) >= most:
                    break
    return [smaller(run, crash) for crash in found.values()]


def smaller(run: Run, crash: Crash) -> Crash:
    """Return a crash of the same kind with less input: pieces are left out as long as it stays one."""
    data, size = crash.data, max(1, len(crash.data) // 2)
    until = time.monotonic() + 10
    while size and time.monotonic() < until:
        place = 0
        while place < len(data) and time.monotonic() < until:
            shorter = data[:place] + data[place + size :]
            other = attempt(run, crash.target, shorter)
            if other is not None and other.cause.split("(")[-1] == crash.cause.split("(")[-1]:
                data, crash = shorter, other
            else:
                place += size
        size //= 2
    return crash
