"""`mcproxy completion SHELL`: prints a script with which bash, zsh or fish completes mcproxy's command line.

The script is generated from the commands' parsers, so it has every option with its choices and the kind of its value.
For names from the configuration (clusters, servers) it calls `mcproxy completion --names`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import yaml

from mcproxy.cli import OK, USAGE, configuration
from mcproxy.cli.lenient_reader import MAX_EVENTS, included_files
from mcproxy.kube import yaml_nodes

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
    """Print the script, or the names (none if the configuration is unreadable); 2 if no shell is given."""
    if args.names is not None:
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


# -- the names in a section of a configuration file that may be invalid or incomplete ----------------------------------

_MAX_BYTES = 16 * 1024 * 1024
_UNSAFE = frozenset("\"'`$\\;|&<>()[]{}*?!#~ \t\n")


def section_names(path: str, section: str) -> list[str]:
    """Return the names in a section of `path` and of its included files; unreadable files have no names.

    Names with characters that are special in a shell are omitted; mcproxy refuses them, too.
    """
    names: dict[str, None] = {}
    for text in _texts(path):
        names.update(dict.fromkeys(_names_in(text, section)))
    return list(names)


def _texts(path: str) -> Iterator[str]:
    try:
        text = _read(path)
    except OSError:
        return
    yield text
    for included in included_files(text, path, os.environ):
        try:
            yield _read(included)
        except OSError:
            continue


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_MAX_BYTES)


def _names_in(text: str, section: str) -> Iterator[str]:
    try:
        document = yaml_nodes.compose(text, events=MAX_EVENTS, aliases=True)
    except yaml.YAMLError:
        return
    for name in _group_versions(document) if section == "apiServices" else _names(document, section):
        if name and name.isprintable() and not _UNSAFE.intersection(name):
            yield name


def _names(document: yaml.Node | None, section: str) -> Iterator[str | None]:
    for each in yaml_nodes.items(yaml_nodes.entry(document, section)):
        yield yaml_nodes.text_of(yaml_nodes.entry(each, "name"))


def _group_versions(document: yaml.Node | None) -> Iterator[str | None]:
    for server in yaml_nodes.items(yaml_nodes.entry(document, "servers")):
        for each in yaml_nodes.items(yaml_nodes.entry(server, "apiServices")):
            parts = [yaml_nodes.text_of(yaml_nodes.entry(each, key)) for key in ("group", "version")]
            yield "/".join(part for part in parts if part) if all(parts) else None
