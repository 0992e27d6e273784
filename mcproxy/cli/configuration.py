"""The option of commands that names the configuration file, and a reader that prints errors on standard error."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from mcproxy.cli import DEFAULT_FILE

if TYPE_CHECKING:
    from mcproxy.config import model


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add -c and --config."""
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        default=DEFAULT_FILE,
        help="configuration file, - for standard input (default: %(default)s)",
    )


def read(path: str, *, only_yaml: bool = False) -> model.Config | None:
    """Return the configuration; None if it has errors, which are printed. The command then exits with BAD_CONFIG.

    With `only_yaml`, unreadable files other than YAML count as valid.
    """
    from mcproxy.config.load import load
    from mcproxy.config.problem import ConfigErrors

    try:
        return load(path, offline=only_yaml and path == "-").config  # standard input cannot be read twice
    except ConfigErrors as found:
        if only_yaml and path != "-":
            with contextlib.suppress(ConfigErrors):
                return load(path, offline=True).config
        for line in found.lines:
            print(line, file=sys.stderr)
        return None
