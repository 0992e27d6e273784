"""`mcproxy run`: runs the daemon in the foreground, under systemd or a shell."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from typing import TYPE_CHECKING

from mcproxy.cli import DEFAULT_FILE, USAGE, configuration, single_user

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "run",
        help="run the daemon",
        description="Run the daemon in the foreground. HUP reloads, TERM stops, USR1 reopens log files, USR2 replaces "
        "the program. With --single-user it needs no file, and adds an API server of your own to a cluster's API.",
        epilog="examples:\n  mcproxy run\n  mcproxy run -c site.yaml\n"
        "  mcproxy run --single-user --api-service garden.example.com/v1=https://127.0.0.1:8443 --api-service-insecure",
    )
    configuration.add_option(parser)
    single_user.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run until stopped. The imports are local so that `--help` does not load them.

    The garbage collector is off until `daemon.main` enters the reactor, because imported objects live as long as the
    process. Searches for cycles would take a tenth of the processor time of the start.
    """
    gc.disable()
    try:
        return _run(args)
    finally:
        gc.enable()


def _run(args: argparse.Namespace) -> int:
    if args.single_user:
        if args.config != DEFAULT_FILE:
            print("mcproxy run: --single-user reads no file; leave out -c", file=sys.stderr)
            return USAGE
        return single_user.run(args)
    if (option := single_user.misplaced(args)) is not None:
        print(f"mcproxy run: {option} goes with --single-user", file=sys.stderr)
        return USAGE
    if args.config == "-":
        print("mcproxy run: standard input cannot be read again at a reload; name a file", file=sys.stderr)
        return USAGE
    from mcproxy.daemon.config_process import ConfigReader

    reader = ConfigReader()
    if "MCPROXY_HANDOVER" not in os.environ:  # else this process forks, so it must have no threads (`upgrade.Takeover`)
        reader.start()  # the reader process imports its modules in parallel
    from mcproxy.daemon.main import run as run_daemon
    from mcproxy.daemon.service import SingleProcessService

    return run_daemon(args.config, load=reader.load, make_service=SingleProcessService)
