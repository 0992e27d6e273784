"""`mcproxy upgrade`: replaces the running daemon by the installed program, waits until it serves, prints the result."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mcproxy.cli.reload import add_daemon_options, apply

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "upgrade",
        help="replace the program of the running daemon, without refusing a connection",
        description="Make the running daemon start its program again, as it is installed now, and wait until that one "
        "serves. The old one then ends what it has. If the new one does not serve, nothing has changed.",
        epilog="examples:\n  mcproxy upgrade",
    )
    add_daemon_options(parser, timeout=120.0)


def run(args: argparse.Namespace) -> int:
    """Upgrade; 0 done, 78 if the configuration is invalid for the new program, 1 any other failure."""
    return apply(args, "upgrade", _print_done)


def _print_done(answer: Mapping[str, Any]) -> None:
    print(f"mcproxy {answer.get('version')} serves {answer.get('file')}, pid {answer.get('pid')}")
