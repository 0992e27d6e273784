"""`make fuzz`: hostile input for as many runs as one likes; each crash is made small and written to a file.

    make fuzz RUNS=1000000 ARGS='--seed 5 -k http2'

With atheris installed, `--atheris NAME` looks for new paths through one parser's code, led by coverage, without an end.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.fuzz import engine
from tests.fuzz.engine import CORPUS, Crash, fuzz, overload, shares
from tests.fuzz.targets import TARGETS

_SLICE = 20_000
"""Inputs in one go of a target."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs, of all targets together")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("-k", dest="words", default="", help="only targets with this in their names")
    parser.add_argument(
        "--crashes", type=Path, default=Path("fuzz-crashes"), help="where inputs that crash are written"
    )
    parser.add_argument("--atheris", metavar="NAME", help="fuzz one target with atheris, until it is interrupted")
    options = parser.parse_args(arguments)
    if options.atheris:
        return _atheris(options.atheris)
    targets = tuple(target for target in TARGETS if options.words in target.name)
    print(f"seed {options.seed}, {options.runs} inputs for {len(targets)} parsers", flush=True)
    crashes: list[Crash] = []
    slowest: dict[str, tuple[float, int]] = {}
    begun = time.monotonic()
    with ProcessPoolExecutor(options.jobs) as pool:
        work = {
            pool.submit(_fuzz, target.name, min(_SLICE, runs - first), f"{options.seed}-{first}"): target.name
            for target, runs in shares(options.runs, targets)
            for first in range(0, runs, _SLICE)
        }
        work |= {pool.submit(_overload, target.name): target.name for target in targets if target.hostile}
        for future, name in work.items():
            found, took = future.result()
            crashes += found
            slowest[name] = max(slowest.get(name, took), took)
    for name, (seconds, size) in sorted(slowest.items(), key=lambda item: -item[1][0])[:10]:
        print(f"slowest: {name}, {seconds * 1000:.0f} ms for {size} bytes")
    unique = {(one.target, one.cause.split("(")[-1]): one for one in crashes}
    for crash in unique.values():
        options.crashes.mkdir(exist_ok=True)
        file = options.crashes / f"{crash.target}-{hashlib.sha256(crash.data).hexdigest()[:12]}"
        file.write_bytes(crash.data)
        print(f"{crash}\n  file: {file}", flush=True)
    print(f"{len(unique)} crashes in {time.monotonic() - begun:.0f} s")
    return 1 if unique else 0


def _fuzz(name: str, runs: int, seed: str) -> tuple[list[Crash], tuple[float, int]]:
    (target,) = (one for one in TARGETS if one.name == name)
    return fuzz(target, runs, seed, most=5), engine.slowest.pop(name)


def _overload(name: str) -> tuple[list[Crash], tuple[float, int]]:
    (target,) = (one for one in TARGETS if one.name == name)
    return overload(target), engine.slowest.pop(name)


def _atheris(name: str) -> int:
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        print("atheris is not installed: pip install atheris (it needs clang for some versions)", file=sys.stderr)
        return 1
    (target,) = (one for one in TARGETS if one.name == name)
    with atheris.instrument_imports(include=["mcproxy"]):
        run: Any = target.make()
    atheris.Setup([sys.argv[0], str(CORPUS / name)], run)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
