"""`mcproxy status`: prints the state of the running daemon, which it reads from the control socket."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mcproxy.cli import DEFAULT_FILE, FAILED, OK
from mcproxy.cli.control_client import NotRunningError, UnreachableError, send_to_daemon
from mcproxy.cli.progress import progress
from mcproxy.cli.status_text import MEASURES, SECTIONS, seconds_of, section_lines, sender_lines
from mcproxy.cli.terminal import Terminal, clean, duration, number, size
from mcproxy.config.suggestions import suggest
from mcproxy.kube.numbers import plain_number
from mcproxy.observe.problems import StatusProblem, problems

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

BROKEN = 3
"""Exit status if the daemon runs, but a part of it fails."""
TIMEOUT = 10.0
_MINUTE = 12  # samples of the history, of five seconds each
_CHANGES = 8
_SENDERS = 10  # shown senders of each kind
_CHART = 60


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "status",
        help="show what the running daemon is and does",
        description="Show what the running daemon is and does: what is wrong, the last reload, and as tables its "
        "endpoints, tunnels, servers, listeners, limits, API services, aggregates, services, certificates and "
        "processes; several processes as one.",
        epilog="exit status:\n"
        "  0  all is well\n"
        "  3  something is broken now: an endpoint is out, a certificate has expired, the last reload was refused\n"
        "  1  no daemon runs, or it does not answer\n\n"
        "examples:\n"
        "  mcproxy status\n"
        "  mcproxy status endpoints certificates -o wide\n"
        "  mcproxy status -o json | jq '.clusters[].endpoints[] | select(.ready | not)'\n"
        "  mcproxy status --top bytes\n"
        "  mcproxy status -q || echo 'see mcproxy status'",
    )
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", type=_section, help=f"only these: {', '.join(SECTIONS)}"
    )
    add_options(parser)
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json"),
        default="table",
        help="wide has more columns and all caches, json is the whole document (default: %(default)s)",
    )
    parser.add_argument(
        "--top",
        nargs="?",
        const="requests",
        choices=tuple(MEASURES),
        help="show who sends most in the last minutes: users, clients, resources and user agents, by requests, bytes, "
        "estimated processor time or refused requests (default: requests)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print only what is wrong")


def _section(name: str) -> str:
    if name not in SECTIONS:
        is_file = "/" in name or "." in name
        right = f"name the file with -c {name}" if is_file else suggest(name, SECTIONS, len(SECTIONS))
        raise argparse.ArgumentTypeError(f"there is no section {name!r}; {right}")
    return name


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the daemon's file and the timeout of its answer."""
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        default=DEFAULT_FILE,
        help="configuration file of the daemon (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=TIMEOUT,
        help="how long to wait for the daemon (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the status; 0 all is well, 3 a part fails, 1 no daemon runs or it does not answer."""
    try:
        with progress("waiting for the daemon"):
            status = ask(args.config, args.timeout)[0]
    except UnreachableError as error:
        print(f"mcproxy status: {why_unreachable(error)}", file=sys.stderr)
        return FAILED
    found = problems(status)
    if args.output == "json":
        print(json.dumps(status, indent=2))
    else:
        terminal = Terminal.of(sys.stdout, os.environ)
        wanted = [name for name in SECTIONS if name in args.sections] or SECTIONS
        blocks = [_problems(found, terminal)]
        if not args.quiet:
            wide = args.output == "wide"
            blocks[:0] = [] if args.sections else [_head(status, terminal)]
            if args.top:
                blocks.append(sender_lines(status, args.top, _SENDERS, terminal))
            if args.sections or not args.top:
                blocks += [section_lines(name, status, time.time(), terminal, wide=wide) for name in wanted]
        print("\n\n".join("\n".join(lines) for lines in blocks if lines))
    return BROKEN if any(problem.broken for problem in found) else OK


def ask(config: str, timeout: float) -> tuple[Mapping[str, Any], str]:
    """Return the status document of the daemon that runs the file `config`, and its control socket.

    Raises UnreachableError.
    """
    request = {"command": "status", "file": os.path.abspath(config)}
    status, path = send_to_daemon(config, request, timeout, os.environ)
    if status.get("ok") is not True:
        raise UnreachableError("; ".join(map(str, status.get("errors", ()))) or f"what answers at {path} is no mcproxy")
    if "totals" not in status:
        raise UnreachableError(f"the daemon at {path} is an older mcproxy; `mcproxy upgrade` replaces it by this one")
    return status, path


def why_unreachable(error: UnreachableError) -> str:
    """Return a sentence that explains why there is no status of a daemon."""
    return f"no daemon runs: {error}" if isinstance(error, NotRunningError) else str(error)


def _head(status: Mapping[str, Any], terminal: Terminal) -> list[str]:
    """Return the identity of the daemon, its load, and the outcome of its last reload."""
    state = status["state"]
    word = {"serving": "serves"}.get(state, f"is {state},")
    lines = [f"mcproxy {clean(status['version'])} {word} {clean(status['file'])}"]
    up = duration(status["uptimeSeconds"])
    build = clean(status.get("build", "pure"))  # an older daemon does not report it
    since, configuration = status["startedAt"], status["configHash"]
    lines.append(f"pid {status['pid']}, {build}, up {up} since {since}, configuration {configuration}")
    lines += _load(status, terminal)
    lines += _reload(status["lastReload"], terminal)
    first, *others = [terminal.cut(line, terminal.width) for line in lines]
    return [terminal.styled(first, "bold"), *others]


def _load(status: Mapping[str, Any], terminal: Terminal) -> list[str]:
    history, totals = status["history"], status["totals"]
    requests, errors = history["requestsPerSecond"][-_MINUTE:], history["errorsPerSecond"][-_MINUTE:]
    parts = [f"{status['open']} requests open", f"{totals['requests']} ended since the start"]
    if requests:
        rate, failed = sum(requests) / len(requests), sum(errors) / len(errors)
        sent = history["bytesPerSecond"][-_MINUTE:]
        share = f" ({failed / rate:.1%} errors)" if rate and failed else ""
        parts.append(f"{number(rate)}/s{share} in the last minute")
        parts.append(f"{size(sum(sent) / len(sent))}/s")
        slow = [each for each in history["p99Seconds"][-_MINUTE:] if each is not None]
        if slow:
            parts.append(f"p99 {duration(max(slow))}")
    lines = [", ".join(parts)]
    if any(history["requestsPerSecond"]):
        width = min(_CHART, (terminal.width or 80) - 20)
        chart = terminal.sparkline(history["requestsPerSecond"], width)
        minutes = len(history["requestsPerSecond"][-width:]) * history["stepSeconds"]
        lines.append(f"{chart}  requests, {duration(minutes)}")
    return lines


def _reload(reload: Mapping[str, Any] | None, terminal: Terminal) -> list[str]:
    if reload is None:
        return ["not reloaded since the start"]
    ago = duration(max(0.0, time.time() - seconds_of(reload["at"])))
    took = f"{plain_number(reload['seconds'])} s"
    if not reload["ok"]:
        lines = [f"last reload {ago} ago, at {reload['at']}: refused after {took}, the configuration before it stays"]
        return lines + [f"  {clean(each)}" for each in reload["errors"][:_CHANGES]]
    changes = reload["changes"]
    what = f"{len(changes)} changes" if len(changes) > 1 else "1 change" if changes else "no changes"
    lines = [f"last reload {ago} ago, at {reload['at']}: done in {took}, {what}"]
    lines += [f"  {clean(each)}" for each in changes[:_CHANGES]]
    if len(changes) > _CHANGES:
        lines.append(f"  and {len(changes) - _CHANGES} more (-o json has all)")
    return lines + [f"  warning: {clean(each)}" for each in reload["warnings"][:_CHANGES]]


def _problems(found: Sequence[StatusProblem], terminal: Terminal) -> list[str]:
    return [
        f"{terminal.styled('broken' if problem.broken else 'warning', 'bad' if problem.broken else 'warn')}: "
        f"{clean(problem.words)}"
        for problem in found
    ]
