"""`mcproxy run`: the daemon, in the foreground; systemd or a shell keeps it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from mcproxy.cli import USAGE, configuration

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "run",
        help="run the daemon",
        description="Run the daemon in the foreground. HUP reloads, TERM stops, USR1 opens log files anew.",
    )
    configuration.add_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run until stopped. The imports stand here so that asking for help costs nothing."""
    if args.config == "-":
        print("mcproxy run: standard input cannot be read again at a reload; name a file", file=sys.stderr)
        return USAGE
    from mcproxy.config.load import load
    from mcproxy.daemon.main import run as run_daemon
    from mcproxy.daemon.service import Service

    return run_daemon(args.config, load=load, make_service=Service)
