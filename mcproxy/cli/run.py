"""`mcproxy run`: the daemon, in the foreground, under systemd or a shell."""

from __future__ import annotations

import argparse
import os
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
        description="Run the daemon in the foreground. HUP reloads, TERM stops, USR1 reopens log files, USR2 replaces "
        "the program.",
        epilog="examples:\n  mcproxy run\n  mcproxy run -c site.yaml",
    )
    configuration.add_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run until stopped. The imports are local so that `--help` does not load them."""
    if args.config == "-":
        print("mcproxy run: standard input cannot be read again at a reload; name a file", file=sys.stderr)
        return USAGE
    from mcproxy.daemon.config_process import ConfigReader

    reader = ConfigReader()
    if "MCPROXY_HANDOVER" not in os.environ:  # else this process forks, and may have no thread yet (daemon.handover)
        reader.start()  # it imports what it needs while this process imports the rest
    from mcproxy.daemon.main import run as run_daemon
    from mcproxy.daemon.service import Service

    return run_daemon(args.config, load=reader.load, make_service=Service)
