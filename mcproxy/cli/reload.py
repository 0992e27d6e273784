"""`mcproxy reload`: makes the running daemon reload its configuration, waits, and prints the outcome.

This module also sends the requests of `mcproxy upgrade` and `mcproxy check --diff` to the running daemon.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mcproxy.cli import BAD_CONFIG, DEFAULT_FILE, FAILED, OK
from mcproxy.cli.control_client import UnreachableError, send_to_daemon
from mcproxy.cli.lenient_reader import variables_of
from mcproxy.cli.progress import progress

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "reload",
        help="make the running daemon reload its configuration, and wait for the outcome",
        description="Make the running daemon reload its configuration, wait, and print what changed. "
        "A wrong configuration changes nothing.",
        epilog="examples:\n  mcproxy reload\n  mcproxy reload -c site.yaml --timeout 10",
    )
    add_daemon_options(parser, timeout=60.0)


def run(args: argparse.Namespace) -> int:
    """Reload; 0 done, 78 invalid configuration, 1 if the daemon is unreachable or cannot apply it."""
    return apply(args, "reload", _print_done)


def _print_done(answer: Mapping[str, Any]) -> None:
    print(f"reloaded {answer.get('file')} in {answer.get('seconds')} s")
    print_changes(answer)


# -- `reload` and `upgrade`: the running daemon executes the command, and this process prints the result --------------
# The daemon reads its own file; the file on the command line only identifies the daemon.


def add_daemon_options(parser: argparse.ArgumentParser, *, timeout: float) -> None:
    """Add the options; `timeout` is the default of --timeout, in seconds."""
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        default=DEFAULT_FILE,
        help="configuration file of the daemon (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=timeout, help="how long to wait (default: %(default)g)"
    )


def apply(args: argparse.Namespace, command: str, print_done: Callable[[Mapping[str, Any]], None]) -> int:
    """Send `command` and return the exit status: 0 done, 78 invalid configuration, 1 any other failure.

    `print_done` gets the answer to a successful command.
    """
    from mcproxy.daemon.control.environment_digests import digests

    request = {"command": command, "file": os.path.abspath(args.config)}
    try:
        variables = {name: os.environ[name] for name in variables_of(args.config) if name in os.environ}
        if variables:
            request |= digests(variables)
        with progress(f"{command}: waiting for the daemon"):
            answer, _ = send_to_daemon(args.config, request, args.timeout, os.environ)
    except UnreachableError as error:
        print(f"mcproxy {command}: {error}", file=sys.stderr)
        return FAILED
    for warning in answer.get("warnings", ()):
        print(f"warning: {warning}", file=sys.stderr)
    if answer.get("ok") is True:
        print_done(answer)
        return OK
    invalid = answer.get("invalid") is True
    for problem in answer.get("errors", ()):
        print(problem if invalid else f"mcproxy {command}: {problem}", file=sys.stderr)
    return BAD_CONFIG if invalid else FAILED


# -- the differences between the running configuration and a file, for `mcproxy reload` and `mcproxy check --diff` -----

_DIFF_TIMEOUT = 60.0
_LAYOUTS_TIMEOUT = 5.0
_MAX_LINES = 200


def add_diff_option(parser: argparse.ArgumentParser) -> None:
    """Add `--diff`."""
    parser.add_argument(
        "--diff",
        action="store_true",
        help="print what a reload would change of the running daemon's configuration, which it compares itself",
    )


def print_diff(file: str) -> int:
    """Print what a reload of `file` would change; 0, or 78 if the daemon finds errors.

    1 if the daemon is unreachable or would refuse the reload.
    """
    request = {"command": "diff", "file": os.path.abspath(file)}
    try:
        with progress("waiting for the daemon to compare the file"):
            answer, _ = send_to_daemon(file, request, _DIFF_TIMEOUT, os.environ)
    except UnreachableError as error:
        print(f"mcproxy check --diff: {error}", file=sys.stderr)
        return FAILED
    if answer.get("ok") is not True:
        for problem in answer.get("errors", ()):
            print(f"as the daemon reads it: {problem}", file=sys.stderr)
        return BAD_CONFIG if answer.get("invalid") is True else FAILED
    print_changes(answer)
    return OK


def running_layouts(file: str) -> dict[str, list[str]]:
    """Return the members, in order, of the aggregates in force in the running daemon of `file`.

    Empty if no daemon runs or it is unreachable.
    """
    request = {"command": "layouts", "file": os.path.abspath(file)}
    try:
        answer, _ = send_to_daemon(file, request, _LAYOUTS_TIMEOUT, os.environ)
    except UnreachableError:
        return {}
    layouts = answer.get("layouts")
    return layouts if answer.get("ok") is True and isinstance(layouts, dict) else {}


def print_changes(answer: Mapping[str, Any]) -> None:
    """Print the changes in a daemon's answer, one per line."""
    changes = [str(change) for change in answer.get("changes") or ()]
    for change in changes[:_MAX_LINES]:
        print(f"  {change}")
    if len(changes) > _MAX_LINES:
        print(f"  and {len(changes) - _MAX_LINES} more")
    if not changes:
        print("  no changes")
