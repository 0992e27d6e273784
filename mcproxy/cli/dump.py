"""`mcproxy dump`: prints the effective configuration, with defaults filled in and secrets masked.

With --running it prints the configuration of the running daemon, which can differ from its file until a reload.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mcproxy.cli import BAD_CONFIG, FAILED, OK, configuration

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_TIMEOUT = 60.0
_MAX_LINES = 50


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "dump",
        help="show the effective configuration, secrets masked",
        description="Show the effective configuration: included files merged, defaults filled in, file names "
        "absolute, secrets masked. In YAML comments show what kubeconfigs were resolved to.",
        epilog="examples:\n  mcproxy dump --format json | jq .clusters\n"
        "  mcproxy dump --running        # what the daemon has, and whether the file differs",
    )
    configuration.add_option(parser)
    parser.add_argument("--format", choices=("yaml", "json"), default="yaml", help="default: %(default)s")
    parser.add_argument(
        "--running",
        action="store_true",
        help="show that of the running daemon, and say where the file differs from it: a reload has not applied it yet",
    )


def run(args: argparse.Namespace) -> int:
    """Print the configuration. If the file has errors, print these on standard error and return 78.

    With --running, return 1 if the daemon is unreachable; differences from the file are no failure.
    """
    if args.running:
        return _run_running(args)
    from mcproxy.config.dump import as_text

    config = configuration.read(args.config)
    if config is None:
        return BAD_CONFIG
    sys.stdout.write(as_text(config, args.format))
    return OK


def _run_running(args: argparse.Namespace) -> int:
    from mcproxy.cli.control_client import UnreachableError, send_command, send_to_daemon
    from mcproxy.cli.progress import progress

    file = os.path.abspath(args.config)
    try:
        with progress(f"asking the daemon that runs {file}"):
            request = {"command": "dump", "format": args.format, "file": file}
            answer, path = send_to_daemon(args.config, request, _TIMEOUT, os.environ)
            difference = send_command(path, {"command": "diff"}, _TIMEOUT) if answer.get("ok") is True else {}
    except UnreachableError as error:
        return _failed(str(error))
    if answer.get("ok") is not True:
        return _failed("; ".join(str(problem) for problem in answer.get("errors") or ["the daemon refused"]))
    running = str(answer.get("file"))
    notes = _notes(running, difference)
    if args.format == "yaml":
        for line in (f"the configuration in force of the mcproxy that runs {running}", *notes):
            print(f"# {line}")
    for note in notes:
        print(f"mcproxy dump: {note}", file=sys.stderr)
    sys.stdout.write(str(answer.get("configuration")))
    return OK


def _notes(file: str, difference: Mapping[str, Any]) -> Sequence[str]:
    """Return a note if the running configuration differs from the file."""
    if difference.get("ok") is not True:
        problems = [str(problem) for problem in difference.get("errors") or ()]
        return _lines(f"the file {file} differs: it has errors now, so a reload would be refused", problems)
    changes = [str(change) for change in difference.get("changes") or ()]
    if not changes:
        return ()
    what = f"the file {file} differs: `mcproxy reload` would apply"
    return _lines(what, changes)


def _lines(heading: str, items: Sequence[str]) -> Sequence[str]:
    more = [f"  and {len(items) - _MAX_LINES} more"] if len(items) > _MAX_LINES else []
    lines = [heading, *(f"  {item}" for item in items[:_MAX_LINES]), *more]
    return [" ".join(line.splitlines()) if "\n" in line else line for line in lines]


def _failed(why: str) -> int:
    print(f"mcproxy dump: {why}", file=sys.stderr)
    return FAILED
