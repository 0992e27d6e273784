"""`mcproxy reload`: makes the running daemon reload its configuration, waits, and prints the outcome.

The daemon reads its own file; the file named here only identifies the daemon.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from mcproxy.cli import BAD_CONFIG, DEFAULT_FILE, FAILED, OK
from mcproxy.cli.changes import print_changes
from mcproxy.cli.control_client import UnreachableError, send_to_daemon
from mcproxy.cli.control_socket import variables_of

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "reload",
        help="make the running daemon reload its configuration, and wait for the outcome",
        description="Make the running daemon reload its configuration, wait, and print what changed. "
        "A wrong configuration changes nothing.",
    )
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        default=DEFAULT_FILE,
        help="configuration file of the daemon (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=60.0, help="how long to wait (default: %(default)g)"
    )


def run(args: argparse.Namespace) -> int:
    """Reload; 0 done, 78 the configuration is wrong, 1 the daemon cannot be reached or cannot apply it."""
    from mcproxy.daemon.environment import digests

    request = {"command": "reload", "file": os.path.abspath(args.config)}
    try:
        variables = {name: os.environ[name] for name in variables_of(args.config) if name in os.environ}
        if variables:
            request |= digests(variables)
        answer, _ = send_to_daemon(args.config, request, args.timeout, os.environ)
    except UnreachableError as error:
        print(f"mcproxy reload: {error}", file=sys.stderr)
        return FAILED
    for warning in answer.get("warnings", ()):
        print(f"warning: {warning}", file=sys.stderr)
    if answer.get("ok") is True:
        print(f"reloaded {answer.get('file')} in {answer.get('seconds')} s")
        print_changes(answer)
        return OK
    invalid = answer.get("invalid") is True
    for problem in answer.get("errors", ()):
        print(problem if invalid else f"mcproxy reload: {problem}", file=sys.stderr)
    return BAD_CONFIG if invalid else FAILED
