"""`make consistency`: replicas of an aggregate under faults for some time; says what was wrong, with the seed for it.

make consistency TIME=10m ARGS='--seed 7 --only connection_held,member_restored'
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.consistency.faults import FAULTS
from tests.consistency.run import Options, Report, Run
from tests.soak.__main__ import seconds


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make consistency", description=__doc__)
    parser.add_argument("--time", type=seconds, default=30.0, help="how long there are faults: 90s, 10m (30s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="draws the faults; printed")
    parser.add_argument("--workers", action="store_true", help="the second proxy has two workers and a keeper")
    parser.add_argument("--tunnel", action="store_true", help="a member is behind a tunnel with such faults")
    parser.add_argument("--only", type=lambda text: text.split(","), default=(), help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--keep", action="store_true", help="keep the directory with the logs though all was well")
    options = parser.parse_args(arguments)
    unknown = set(options.only) - set(FAULTS)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    print(f"seed {options.seed}, {options.time:.0f} s", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="mcproxy-consistency-"))
    begun = time.monotonic()
    asked = Options(options.time, options.seed, options.only, options.workers, options.tunnel, _say)
    report = Run(directory, asked)()
    if report.wrong:
        print(told(report), f"Logs and data are in {directory}; {time.monotonic() - begun:.0f} s", sep="\n")
        return 1
    if not options.keep:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"all was well: {len(report.faults)} faults; {report.figures}; {time.monotonic() - begun:.0f} s")
    return 0


def told(report: Report) -> str:
    """Return what was wrong, and what happened before."""
    shown = list(dict.fromkeys(report.wrong))
    lines = [f"{len(shown)} things were wrong with seed {report.seed} ({report.figures}):"]
    lines += [f"  {text}" for text in shown[:30]]
    lines += ["The last faults:", *(f"  {text}" for text in report.faults[-20:])]
    lines += ["What the proxies logged last:", *(f"  {text}" for text in report.trace)]
    return "\n".join(lines)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text[:600]}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
