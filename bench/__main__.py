"""Command line of the benchmarks: ``python -m bench [WHAT]``, where WHAT is a measurement, `profile` or `all`.

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

from bench import (
    aggregate_lists,
    aggregate_reflectors,
    aggregate_store,
    aggregate_watches,
    builds,
    cost,
    floods,
    golang,
    http2,
    http2_floods,
    http2_watches,
    identity,
    ingress,
    instructions,
    keeper,
    limits,
    memory,
    observability,
    profiling,
    python,
    replicas,
    report,
    rules,
    start,
    stream,
    tunnels,
    watches,
    workers,
)
from bench.lab import Lab, open_lab, require
from bench.processes import Failed
from bench.subjects import (
    CACHE,
    DIRECT,
    GO,
    MCPROXY,
    NGINX,
    Direct,
    GoReverseProxy,
    Mcproxy,
    Nginx,
    Subject,
    TwistedWeb,
    parse_command,
)

RESULTS = Path(__file__).resolve().with_name("RESULTS.md")
_AGGREGATES = ("aggregate-store", "aggregate-reflectors", "aggregate-watches")
MEASUREMENTS = (
    *(
        "cost",
        "workers",
        "replicas",
        "http2",
        "instructions",
        "ingress",
        "identity",
        "observability",
        "floods",
        "watches",
        "http2-watches",
        "http2-floods",
        "stream",
        "tunnels",
        "start",
        "rules",
        "limits",
        "memory",
    ),
    *(*_AGGREGATES, "aggregate-lists", "keeper"),
)
BY_BUILD = frozenset({"identity", "observability", "start", "memory", "aggregate-lists", "keeper", *_AGGREGATES})
"""What is measured once with each build that stands in the checkout."""
REFERENCE_OF = {http2.GO_HTTP1: GO}
"""Subjects that `--only` chooses by the name of another one, too."""
PROGRAMS = {
    "rules": (),
    "instructions": (),
    "limits": ("taskset", "setpriv"),
    "replicas": ("redis-server", "taskset", "setpriv"),
    "memory": (),
    "tunnels": ("nginx", "taskset", "setpriv"),
    **dict.fromkeys(("floods", "http2-watches", *_AGGREGATES, "keeper"), ("taskset", "setpriv")),
    "aggregate-lists": ("nginx", "taskset", "setpriv"),
    "http2-floods": ("nginx", "taskset", "setpriv"),
    "workers": ("nginx", "wrk", "taskset", "setpriv"),
    "ingress": ("nginx", "wrk", "h2load", "taskset", "setpriv"),
    "http2": ("nginx", "h2load", "nghttp", "taskset", "setpriv"),
}
"""What a measurement needs beside Python; the others need all of `EVERY_PROGRAM`."""
EVERY_PROGRAM = ("nginx", "wrk", "h2load", "nghttp", "taskset", "setpriv")


def main(arguments: Sequence[str]) -> int:
    """Measure what was asked for, print it, and write RESULTS.md after a complete run."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        require(PROGRAMS.get(options.what, EVERY_PROGRAM))
        subject_python = python.choose(options.python, CACHE)
        if warning := subject_python.warning():
            print(f"bench: warning: {warning}", file=sys.stderr)
        print(f"bench: mcproxy runs on Python {subject_python.show()}", file=sys.stderr)
        if options.what == "profile":
            return _profile(options, subject_python)
        return _measure(options, subject_python)
    except Failed as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted; nothing is left running", file=sys.stderr)
        return 130


def _measure(options: argparse.Namespace, subject_python: python.Python) -> int:
    sections = []
    compared = {"cost": _cost_subjects(options), "http2": _http2_subjects(options), "all": _cost_subjects(options)}
    if any(isinstance(subject, GoReverseProxy) for subject in compared.get(options.what, ())):
        golang.reverse_proxy(CACHE)  # before anything is measured: the compiler would disturb it
    if options.what in ("http2-watches", "all"):
        golang.client(CACHE)
    by_build: dict[tuple[str, str], report.Section] = {}
    chosen = [(what, build) for what in _whats(options) for build in _builds_of(what, options)]
    for what, build in chosen:
        print(f"bench: {what}{f', {build}' if build else ''} ...", file=sys.stderr, flush=True)
        with builds.environment(build), open_lab(subject_python) as lab:
            measured = _measurements(options)[what](lab)
        for section in [measured] if isinstance(measured, report.Section) else measured:
            if build is not None:
                section.title += f" ({build})"
                section.targets = [report.named(target, build) for target in section.targets]
                by_build.setdefault((what, build), section)
            print(report.show_section(section), flush=True)
            sections.append(section)
    if (both := builds.compare(by_build)) is not None:
        print(report.show_section(both), flush=True)
        sections.append(both)
    print(report.show_targets(sections))
    output = options.output or (RESULTS if options.what == "all" and not options.quick else None)
    if output is not None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        warnings = [warning] if (warning := subject_python.warning()) else []
        command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
        output.write_text(report.document(sections, command, now, report.machine(subject_python), warnings))
        print(f"written to {output}")
    return 0 if all(target.met for section in sections for target in section.targets) else 1


def _whats(options: argparse.Namespace) -> Sequence[str]:
    return MEASUREMENTS if options.what == "all" else (options.what,)


def _builds_of(what: str, options: argparse.Namespace) -> Sequence[str | None]:
    """Return the builds that a section is measured with one after the other; None: it does not name one."""
    found = builds.standing(python.ROOT)
    if what not in BY_BUILD or len(found) == 1:
        return (None,)
    words = set(options.only.split(",")) if options.only else set()
    return [build for build in found if build in words] or found


def _measurements(options: argparse.Namespace) -> dict[str, Callable[[Lab], report.Section | list[report.Section]]]:
    quick, rng = options.quick, random.Random()
    rounds = options.rounds or (2 if quick else 7)
    seconds = options.seconds or (1 if quick else 5)
    return {
        "cost": lambda lab: cost.measure(lab, _cost_subjects(options), rounds, seconds, rng),
        "workers": lambda lab: workers.measure(lab, options.before, rounds, seconds, rng),
        "replicas": lambda lab: replicas.measure(lab, 1 if quick else min(rounds, 3)),
        "http2": lambda lab: http2.measure(lab, _http2_subjects(options), rounds, seconds, rng),
        "instructions": lambda lab: instructions.measure(
            lab,
            instructions.choose(instructions.trees(options.extra), None if options.what == "all" else options.only),
            200 if quick else 1000,
        ),
        "ingress": lambda lab: ingress.measure(lab, rounds, seconds, rng),
        "identity": lambda lab: identity.measure(lab, rounds, seconds, rng),
        "observability": lambda lab: observability.measure(lab, rounds, seconds, rng),
        "floods": lambda lab: floods.measure(lab, options.before, 2 if quick else max(seconds, 10)),
        "watches": lambda lab: watches.measure(lab, _subjects(options, NGINX), 100 if quick else 1000),
        "http2-watches": lambda lab: http2_watches.measure(
            lab,
            [pair for pair in http2_watches.pairs() if _chosen(options, [pair.subject])],
            100 if quick else 1000,
            1 if quick else max(seconds, 10),
        ),
        "http2-floods": lambda lab: http2_floods.measure(lab, 2 if quick else max(seconds, 10)),
        "stream": lambda lab: stream.measure(
            lab,
            _subjects(options, DIRECT, NGINX),
            2**26 if quick else 2**30,
            min(rounds, 5),
            1 if quick else 5,
            rng,
        ),
        "tunnels": lambda lab: tunnels.measure(
            lab,
            20 if quick else 500,
            2.0 if quick else 30.0,
            100 if quick else 2000,
            2**24 if quick else 2**30,
            min(rounds, 3),
        ),
        "start": lambda lab: start.measure(lab, 20 if quick else 200, min(rounds, 5)),
        "rules": lambda lab: rules.measure(rounds, rng),
        "limits": lambda lab: limits.measure(lab, rounds, 0.2 if quick else 1.0, rng),
        "memory": lambda lab: memory.measure(lab, min(rounds, 3)),
        "aggregate-reflectors": lambda lab: aggregate_reflectors.measure(
            lab, 5 if quick else 50, 20, 5 if quick else max(seconds, 60)
        ),
        "aggregate-store": lambda lab: aggregate_store.measure(
            lab, 5000 if quick else aggregate_store.OBJECTS, min(rounds, 3)
        ),
        "aggregate-watches": lambda lab: aggregate_watches.measure(
            lab, 100 if quick else 1000, 100, 3 if quick else max(seconds, 20)
        ),
        "aggregate-lists": lambda lab: aggregate_lists.measure(
            lab,
            2000 if quick else aggregate_lists.LIST_PODS,
            2000 if quick else aggregate_lists.PAGED_PODS,
            5000 if quick else aggregate_lists.SELECTED_PODS,
            min(rounds, 5),
            rng,
        ),
        "keeper": lambda lab: keeper.measure(
            lab,
            2000 if quick else keeper.PODS,
            min(rounds, 5),
            100 if quick else 1000,
            100,
            3 if quick else max(seconds, 20),
            rng,
        ),
    }


def _subjects(options: argparse.Namespace, *references: str) -> list[Subject]:
    """Return the references of a measurement, mcproxy and what --with adds, as --only and --without choose."""
    known: list[Subject] = [Direct(), Nginx(), GoReverseProxy(), TwistedWeb(), Mcproxy()]
    chosen = {subject.name: subject for subject in known if subject.name in (*references, MCPROXY)}
    return _chosen(options, [*chosen.values(), *options.extra])


def _cost_subjects(options: argparse.Namespace) -> list[Subject]:
    known: list[Subject] = [Direct(), Nginx(), GoReverseProxy(), TwistedWeb(), Mcproxy(), *cost.chains()]
    return _chosen(options, [*_in_builds(known), *options.extra])


def _http2_subjects(options: argparse.Namespace) -> list[Subject]:
    return _chosen(options, [*_in_builds(http2.subjects()), *options.extra])


def _in_builds(subjects: Sequence[Subject]) -> list[Subject]:
    return builds.in_both(subjects, builds.standing(python.ROOT))


def _chosen(options: argparse.Namespace, subjects: Sequence[Subject]) -> list[Subject]:
    """Return those that --only and --without leave, by name, build or reference; of two with one name the later one."""
    by_name = {subject.name: subject for subject in subjects}
    only = set(options.only.split(",")) if options.only else None
    without = set(options.without.split(",")) if options.without else set()
    words = {name: {name, builds.build_of(each), REFERENCE_OF.get(name, "")} for name, each in by_name.items()}
    return [
        subject
        for name, subject in by_name.items()
        if (only is None or words[name] & only) and not words[name] & without
    ]


def _profile(options: argparse.Namespace, subject_python: python.Python) -> int:
    name = options.only or MCPROXY
    subject = {subject.name: subject for subject in (Mcproxy(), TwistedWeb(), *options.extra)}.get(name)
    if subject is None:
        raise Failed(f"no subject {name!r} to profile")
    with open_lab(subject_python) as lab:
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
        help="rounds of cost, workers, identity and rules (7), stream, start (at most 5), memory, aggregate-store (3)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="of a load: 5 in cost and identity, 10 at least in floods, 8 in profile; less spoils p99",
    )
    parser.add_argument("--quick", action="store_true", help="small and short: does it work? The figures say nothing")
    parser.add_argument("--output", type=Path, help="write the report here; RESULTS.md after a complete run")
    names = "direct,nginx,go,twisted.web,mcproxy,mcproxy-chain,mcproxy-chain-logged"
    parser.add_argument(
        "--only",
        help=f"names of the subjects, with commas: {names}; of instructions: {','.join(instructions.words())}",
    )
    parser.add_argument("--without", help="names of subjects to leave out, with commas")
    parser.add_argument(
        "--python",
        type=Path,
        help="the Python that mcproxy and twisted.web run on (it has what mcproxy requires). Default: this one if it "
        "is an optimised build, else /usr/bin/python3 in a virtual environment that is made in .tools/bench",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="DIR",
        help="another checkout of mcproxy, of which floods and workers show the figures beside this one's",
    )
    parser.add_argument("--tool", choices=["cprofile", "py-spy"], default="cprofile", help="of profile")
    parser.add_argument(
        "--with",
        dest="extra",
        action="append",
        default=[],
        type=parse_command,
        metavar="NAME=COMMAND",
        help="one more subject; COMMAND may contain {listen} {upstream} {cert} {key} {ca} {config}. "
        "The name mcproxy replaces the one of this checkout. Of instructions: the directory of another checkout",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
