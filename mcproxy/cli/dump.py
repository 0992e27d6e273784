"""`mcproxy dump`: the configuration as the daemon understands it, defaults filled in and secrets masked."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from mcproxy.cli import BAD_CONFIG, DEFAULT_FILE, OK

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "dump",
        help="show the effective configuration, secrets masked",
        description="Show the effective configuration: included files merged, defaults filled in, file names "
        "absolute, secrets masked.",
    )
    parser.add_argument(
        "-c", "--config", metavar="FILE", default=DEFAULT_FILE, help="configuration file (default: %(default)s)"
    )
    parser.add_argument("--format", choices=("yaml", "json"), default="yaml", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Show it on standard output; 78 and the errors on standard error where the file has faults."""
    from mcproxy.config.dump import effective, to_json, to_yaml
    from mcproxy.config.load import load
    from mcproxy.config.problem import ConfigErrors

    try:
        loaded = load(args.config)
    except ConfigErrors as found:
        for problem in found.problems:
            print(problem, file=sys.stderr)
        return BAD_CONFIG
    document = effective(loaded.config)
    sys.stdout.write(to_yaml(document) if args.format == "yaml" else to_json(document))
    return OK
