"""`mcproxy completion SHELL`: a script by which bash, zsh or fish completes mcproxy's command line.

The script is made from the parsers of the commands, so it has every option with its choices and the kind of its value.
For names from the configuration (clusters, servers) the script calls `mcproxy completion --names`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from mcproxy.cli import OK, USAGE, configuration

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
examples:
  source <(mcproxy completion bash)         # in this shell only; zsh the same
  mcproxy completion fish | source

where a shell looks for it, for every session (a package has done this already):
  mcproxy completion bash > /usr/share/bash-completion/completions/mcproxy
  mcproxy completion zsh > /usr/local/share/zsh/site-functions/_mcproxy
  mcproxy completion fish > /usr/share/fish/vendor_completions.d/mcproxy.fish
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    from mcproxy.cli.completion.command_line import SECTIONS

    parser = subparsers.add_parser(
        "completion",
        help="print a script by which a shell completes mcproxy's commands",
        description="Print a script by which a shell completes mcproxy's commands, their options and values: files, "
        "choices, and the names of clusters and servers in the configuration.",
        epilog=_EPILOG,
    )
    parser.add_argument("shell", nargs="?", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
    configuration.add_option(parser)
    parser.add_argument(
        "--names",
        metavar="SECTION",
        choices=SECTIONS,
        help="instead, print the names in a section of the configuration (the scripts use this): %(choices)s",
    )


def run(args: argparse.Namespace) -> int:
    """Print the script, or the names; a configuration that cannot be read has none. 2 without a shell."""
    if args.names is not None:
        from mcproxy.cli.completion.section_names import section_names

        for name in section_names(args.config, args.names):
            print(name)
        return OK
    if args.shell is None:
        print("mcproxy completion: which shell? bash, zsh or fish", file=sys.stderr)
        return USAGE
    from mcproxy.cli.completion import bash, fish, zsh
    from mcproxy.cli.completion.command_line import command_line

    render = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}[args.shell]
    sys.stdout.write(render(command_line()))
    return OK
