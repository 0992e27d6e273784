"""`mcproxy dump`: the effective configuration, with defaults filled in and secrets masked."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from mcproxy.cli import BAD_CONFIG, OK, configuration

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "dump",
        help="show the effective configuration, secrets masked",
        description="Show the effective configuration: included files merged, defaults filled in, file names "
        "absolute, secrets masked. In YAML comments show what kubeconfigs were resolved to.",
    )
    configuration.add_option(parser)
    parser.add_argument("--format", choices=("yaml", "json"), default="yaml", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Show it on standard output; 78 and the errors on standard error if the file has errors."""
    from mcproxy.config.dump import effective, resolved, to_json, to_yaml

    config = configuration.read(args.config)
    if config is None:
        return BAD_CONFIG
    document = effective(config)
    sys.stdout.write(to_yaml(document, resolved(config)) if args.format == "yaml" else to_json(document))
    return OK
