"""The differences between the running configuration and a file, for `mcproxy reload` and `mcproxy check --diff`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Any

from mcproxy.cli import BAD_CONFIG, FAILED, OK
from mcproxy.cli.control_client import UnreachableError, send_to_daemon
from mcproxy.cli.progress import progress

_TIMEOUT = 60.0
_SHORT_TIMEOUT = 5.0
_MAX_LINES = 200


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--diff`."""
    parser.add_argument(
        "--diff",
        action="store_true",
        help="print what a reload would change of the running daemon's configuration, which it compares itself",
    )


def run(file: str) -> int:
    """Print what a reload of `file` would change; 0, or 78 if the daemon finds errors.

    1 if it cannot be reached, or if the reload would be refused.
    """
    request = {"command": "diff", "file": os.path.abspath(file)}
    try:
        with progress("waiting for the daemon to compare the file"):
            answer, _ = send_to_daemon(file, request, _TIMEOUT, os.environ)
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
    """Return the members of the aggregates that the running daemon of `file` has in force, in order.

    Empty where none runs or it cannot be reached.
    """
    request = {"command": "layouts", "file": os.path.abspath(file)}
    try:
        answer, _ = send_to_daemon(file, request, _SHORT_TIMEOUT, os.environ)
    except UnreachableError:
        return {}
    layouts = answer.get("layouts")
    return layouts if answer.get("ok") is True and isinstance(layouts, dict) else {}


def print_changes(answer: Mapping[str, Any]) -> None:
    """Print the changes of a daemon's answer, one a line."""
    changes = [str(change) for change in answer.get("changes") or ()]
    for change in changes[:_MAX_LINES]:
        print(f"  {change}")
    if len(changes) > _MAX_LINES:
        print(f"  and {len(changes) - _MAX_LINES} more")
    if not changes:
        print("  no changes")
