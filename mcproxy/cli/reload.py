"""`mcproxy reload`: asks the running daemon to read its configuration anew, waits, and tells what came of it.

The daemon reads its own file; the file named here only says where its control socket is.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

from mcproxy.cli import BAD_CONFIG, DEFAULT_FILE, FAILED, OK
from mcproxy.cli.control_socket import find_control_socket

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

LONGEST_ANSWER = 16 * 1024 * 1024


class Unreachable(Exception):
    """The daemon cannot be asked; the text says what to do."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "reload",
        help="have the running daemon read its configuration anew, and wait for the outcome",
        description="Have the running daemon read its configuration anew, wait, and tell the outcome. "
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
    """Reload; 0 done, 78 the configuration is wrong, 1 the daemon cannot be reached or cannot put it into force."""
    try:
        path = find_control_socket(args.config, os.environ)
        if path is None:
            raise Unreachable(
                f"{args.config} names no daemon.controlSocket; send the daemon SIGHUP and look at its log, "
                "or add one and restart it"
            )
        answer = ask(path, {"command": "reload", "file": os.path.abspath(args.config)}, args.timeout)
    except Unreachable as error:
        print(f"mcproxy reload: {error}", file=sys.stderr)
        return FAILED
    for warning in answer.get("warnings", ()):
        print(f"warning: {warning}", file=sys.stderr)
    if answer.get("ok") is True:
        print(f"reloaded {answer.get('file')} in {answer.get('seconds')} s")
        return OK
    invalid = answer.get("invalid") is True
    for problem in answer.get("errors", ()):
        print(problem if invalid else f"mcproxy reload: {problem}", file=sys.stderr)
    return BAD_CONFIG if invalid else FAILED


def ask(path: str, request: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Send a request to a control socket and return the answer. Raises Unreachable."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            line = connection.makefile("rb").readline(LONGEST_ANSWER)
    except TimeoutError as error:
        raise Unreachable(f"the daemon at {path} gave no answer within {timeout:g} s; its log tells more") from error
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror or error}; {_advice(error)}") from error
    if not line.endswith(b"\n"):
        raise Unreachable(
            f"the daemon at {path} hung up; only root and the daemon's own user may ask, its log tells more"
        )
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise Unreachable(f"what listens at {path} is no mcproxy") from error
    if not isinstance(answer, dict):
        raise Unreachable(f"what listens at {path} is no mcproxy")
    return answer


def _advice(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "run this as root or as the daemon's user"
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return "is the daemon running? see `systemctl status mcproxy`"
    return "see the daemon's log"
