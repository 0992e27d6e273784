"""Command line of the benchmarks: ``python -m bench [rate|identity|watches|stream|start|rules|memory|profile|all]``.

Exit status: 0 when every target was reached, 1 when one was missed, 2 when something could not be measured.
"""

from __future__ import annotations

import argparse
import datetime
import random
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import identity, memory, profiling, rate, report, rules, start, stream, watches
from bench.lab import Lab, open_lab, require
from bench.processes import Failed
from bench.subjects import DIRECT, MCPROXY, NGINX, TWISTED, Direct, Mcproxy, Nginx, Subject, TwistedWeb, parse_command

RESULTS = Path(__file__).resolve().with_name("RESULTS.md")
MEASUREMENTS = ("rate", "identity", "watches", "stream", "start", "rules", "memory")
ALONE = ("rules", "memory")
"""Those that need no other program."""


def main(arguments: Sequence[str]) -> int:
    """Measure what was asked for, print it, and write RESULTS.md after a complete run."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        require([] if options.what in ALONE else ["nginx", "wrk", "taskset", "setpriv"])
        return _profile(options) if options.what == "profile" else _measure(options)
    except Failed as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted; nothing is left running", file=sys.stderr)
        return 130


def _measure(options: argparse.Namespace) -> int:
    sections = []
    for what in MEASUREMENTS if options.what == "all" else (options.what,):
        print(f"bench: {what} ...", file=sys.stderr, flush=True)
        with open_lab() as lab:
            section = _measurements(options)[what](lab)
        print(report.show_section(section), flush=True)
        sections.append(section)
    print(report.show_targets(sections))
    output = options.output or (RESULTS if options.what == "all" and not options.quick else None)
    if output is not None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
        output.write_text(report.document(sections, command, now, report.machine()))
        print(f"written to {output}")
    return 0 if all(target.met for section in sections for target in section.targets) else 1


def _measurements(options: argparse.Namespace) -> dict[str, Callable[[Lab], report.Section]]:
    quick, rng = options.quick, random.Random()
    rounds = options.rounds or (2 if quick else 7)
    seconds = options.seconds or (1 if quick else 5)
    return {
        "rate": lambda lab: rate.measure(lab, _subjects(options, DIRECT, NGINX, TWISTED), rounds, seconds, rng),
        "identity": lambda lab: identity.measure(lab, rounds, seconds, rng),
        "watches": lambda lab: watches.measure(lab, _subjects(options, NGINX), 100 if quick else 1000),
        "stream": lambda lab: stream.measure(
            lab,
            _subjects(options, DIRECT, NGINX),
            2**26 if quick else 2**30,
            min(rounds, 5),
            1 if quick else 5,
            rng,
        ),
        "start": lambda lab: start.measure(lab, 20 if quick else 200, min(rounds, 5)),
        "rules": lambda lab: rules.measure(rounds, rng),
        "memory": lambda lab: memory.measure(lab, min(rounds, 3)),
    }


def _subjects(options: argparse.Namespace, *yardsticks: str) -> list[Subject]:
    """Return the yardsticks of a measurement, mcproxy and what --with adds; --only leaves just the named ones."""
    known: list[Subject] = [Direct(), Nginx(), TwistedWeb(), Mcproxy()]
    chosen = {subject.name: subject for subject in known if subject.name in (*yardsticks, MCPROXY)}
    chosen.update((subject.name, subject) for subject in options.extra)
    only = options.only.split(",") if options.only else list(chosen)
    return [subject for name, subject in chosen.items() if name in only]


def _profile(options: argparse.Namespace) -> int:
    name = options.only or MCPROXY
    subject = {subject.name: subject for subject in (Mcproxy(), TwistedWeb(), *options.extra)}.get(name)
    if subject is None:
        raise Failed(f"no subject {name!r} to profile")
    with open_lab() as lab:
        print(profiling.profile(lab, subject, options.seconds or 8, options.tool))
    return 0


def _terminate(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure mcproxy against nginx and others.")
    parser.add_argument("what", nargs="?", default="all", choices=[*MEASUREMENTS, "profile", "all"])
    parser.add_argument(
        "--rounds",
        type=int,
        help="rounds of rate, identity and rules (7), stream and start (5 of them at most), memory (3)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="of a load: 5 in rate and identity, 8 in profile; less spoils p99",
    )
    parser.add_argument("--quick", action="store_true", help="small and short: does it work? The figures say nothing")
    parser.add_argument("--output", type=Path, help="write the report here; RESULTS.md after a complete run")
    parser.add_argument("--only", help="names of the subjects, with commas: direct,nginx,twisted.web,mcproxy")
    parser.add_argument("--tool", choices=["cprofile", "py-spy"], default="cprofile", help="of profile")
    parser.add_argument(
        "--with",
        dest="extra",
        action="append",
        default=[],
        type=parse_command,
        metavar="NAME=COMMAND",
        help="one more subject; COMMAND may contain {listen} {upstream} {cert} {key} {ca} {config}. "
        "The name mcproxy replaces the one of this checkout",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
