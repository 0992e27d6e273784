"""`mcproxy reload`: makes the running daemon reload its configuration, waits, and prints the outcome."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mcproxy.cli import apply_command
from mcproxy.cli.changes import print_changes

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
    apply_command.add_options(parser, timeout=60.0)


def run(args: argparse.Namespace) -> int:
    """Reload; 0 done, 78 the configuration is wrong, 1 the daemon cannot be reached or cannot apply it."""
    return apply_command.run(args, "reload", _print_done)


def _print_done(answer: Mapping[str, Any]) -> None:
    print(f"reloaded {answer.get('file')} in {answer.get('seconds')} s")
    print_changes(answer)
