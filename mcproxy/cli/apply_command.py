"""Commands that the running daemon carries out, with their outcome printed: `reload`, `upgrade`.

The daemon reads its own file; the file named here only identifies the daemon.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from mcproxy.cli import BAD_CONFIG, DEFAULT_FILE, FAILED, OK
from mcproxy.cli.control_client import UnreachableError, send_to_daemon
from mcproxy.cli.control_socket import variables_of
from mcproxy.cli.progress import progress


def add_options(parser: argparse.ArgumentParser, *, timeout: float) -> None:
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


def run(args: argparse.Namespace, command: str, print_done: Callable[[Mapping[str, Any]], None]) -> int:
    """Send `command` and return the exit status: 0 done, 78 the configuration is wrong, 1 any other failure.

    `print_done` gets the answer of a command that succeeded.
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
