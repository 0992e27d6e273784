"""`mcproxy upgrade`: makes the running daemon start its program anew, waits until it serves, and prints the outcome."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from mcproxy.cli import BAD_CONFIG, DEFAULT_FILE, FAILED, OK
from mcproxy.cli.control_client import UnreachableError, send_to_daemon
from mcproxy.cli.control_socket import variables_of

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "upgrade",
        help="replace the program of the running daemon, without refusing a connection",
        description="Make the running daemon start its program anew, as it is installed now, and wait until that one "
        "serves. The old one then ends what it has. If the new one does not serve, nothing has changed.",
    )
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        default=DEFAULT_FILE,
        help="configuration file of the daemon (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=120.0, help="how long to wait (default: %(default)g)"
    )


def run(args: argparse.Namespace) -> int:
    """Upgrade; 0 done, 78 the new program finds the configuration to be wrong, 1 any other failure."""
    from mcproxy.daemon.environment import digests

    request = {"command": "upgrade", "file": os.path.abspath(args.config)}
    try:
        variables = {name: os.environ[name] for name in variables_of(args.config) if name in os.environ}
        if variables:
            request |= digests(variables)
        answer, _ = send_to_daemon(args.config, request, args.timeout, os.environ)
    except UnreachableError as error:
        print(f"mcproxy upgrade: {error}", file=sys.stderr)
        return FAILED
    for warning in answer.get("warnings", ()):
        print(f"warning: {warning}", file=sys.stderr)
    if answer.get("ok") is True:
        print(f"mcproxy {answer.get('version')} serves {answer.get('file')}, pid {answer.get('pid')}")
        return OK
    invalid = answer.get("invalid") is True
    for problem in answer.get("errors", ()):
        print(problem if invalid else f"mcproxy upgrade: {problem}", file=sys.stderr)
    return BAD_CONFIG if invalid else FAILED
