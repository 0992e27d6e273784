"""Describes mcproxy's command line as data, which it reads from the parsers of the commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from mcproxy.cli.docs import pages
from mcproxy.cli.files import installed_files

SECTIONS = ("aggregates", "apiServices", "clusters", "flowControls", "listeners", "servers")
"""The sections of the configuration whose names can be listed; apiServices covers all servers."""

_FILE_METAVARS = frozenset(("FILE", "OUTPUT", "SOCKET"))
_DIRECTORY_METAVARS = frozenset(("DIR", "DIRECTORY"))
_NAMES_OF = {
    "aggregate": "aggregates",
    "apiservice": "apiServices",
    "cluster": "clusters",
    "listener": "listeners",
    "server": "servers",
}


@dataclass(frozen=True, slots=True)
class Value:
    """The values of an option or argument. `kind` is file, directory, words, names (of a section) or any."""

    kind: str
    words: tuple[str, ...] = ()
    """The choices; for kind `names`, the section."""


@dataclass(frozen=True, slots=True)
class Option:
    names: tuple[str, ...]  # -c and --config
    help: str
    values: tuple[Value, ...]
    """The values that follow the option; empty for a flag."""


@dataclass(frozen=True, slots=True)
class Command:
    path: tuple[str, ...]  # () for mcproxy itself, ("import", "kubeconfig")
    help: str
    options: tuple[Option, ...]
    argument: Value | None
    """The command's arguments; None: it has no arguments."""
    commands: tuple[Command, ...] = ()


def command_line() -> Command:
    """Return mcproxy with its commands. Imports the module of each command."""
    from mcproxy.cli.main import COMMANDS, build_parser

    root = build_parser(None)
    commands = tuple(
        _command((name,), summary, _subparsers(build_parser(name))[name]) for name, summary in COMMANDS.items()
    )
    return Command((), root.description or "", tuple(_options(root)), None, commands)


def walk(command: Command) -> Iterator[Command]:
    """Yield a command and all its subcommands, recursively."""
    yield command
    for each in command.commands:
        yield from walk(each)


def _command(path: tuple[str, ...], summary: str, parser: argparse.ArgumentParser) -> Command:
    below = _subparsers(parser)
    helps = _summaries(parser)
    commands = tuple(_command((*path, name), helps.get(name, ""), each) for name, each in below.items())
    arguments = [action for action in parser._actions if not action.option_strings]
    plain = [action for action in arguments if not isinstance(action, argparse._SubParsersAction)]
    return Command(path, summary, tuple(_options(parser)), _value(plain[0]) if plain else None, commands)


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _summaries(parser: argparse.ArgumentParser) -> dict[str, str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {choice.dest: choice.help or "" for choice in action._choices_actions}
    return {}


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if not action.option_strings or action.help is argparse.SUPPRESS:
            continue
        count = action.nargs if isinstance(action.nargs, int) else 1
        values = (_value(action),) * count
        if isinstance(action.metavar, tuple):
            values = tuple(_of_metavar(action, metavar) for metavar in action.metavar)
        yield Option(tuple(action.option_strings), _help(parser, action), values if action.nargs != 0 else ())


def _value(action: argparse.Action) -> Value:
    if action.choices is not None:
        return Value("words", tuple(str(choice) for choice in action.choices))
    return _of_metavar(action, action.metavar if isinstance(action.metavar, str) else "")


def _of_metavar(action: argparse.Action, metavar: str) -> Value:
    if metavar in _FILE_METAVARS:
        return Value("file")
    if metavar in _DIRECTORY_METAVARS:
        return Value("directory")
    if metavar == "PAGE":
        return Value("words", tuple(pages(dict(installed_files()))))
    section = _NAMES_OF.get(action.dest)
    return Value("names", (section,)) if section is not None and metavar in ("NAME", "G/V") else Value("any")


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the text of --help without its default, in one line."""
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return " ".join(text.partition(" (default")[0].split())
