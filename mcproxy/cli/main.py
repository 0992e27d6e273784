"""`mcproxy COMMAND`: finds the command, imports only its module, runs it, and returns the exit status.

Importing all commands would load Twisted, which delays `mcproxy check` and `--help`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from mcproxy import __version__
from mcproxy.cli import FAILED, OK, USAGE

COMMANDS = {
    "run": "run the daemon",
    "check": "check a configuration file, as the daemon would read it",
    "dump": "show the effective configuration, secrets masked",
    "reload": "make the running daemon reload its configuration, and wait for the outcome",
    "status": "show what the running daemon is and does",
    "top": "watch the running daemon: rates, latency, endpoints, processes",
    "upgrade": "replace the program of the running daemon, without refusing a connection",
    "rbac": "print the minimal rights that clusters must grant the proxy",
    "kubeconfig": "print a kubeconfig for clients of a server",
    "import": "make a configuration from kubeconfigs, KubeGateway's or Karmada's objects",
    "schema": "print the JSON Schema of the configuration file",
    "docs": "read the manual that comes with the program",
    "files": "find or copy the manual, the systemd unit and the examples that come with the program",
    "completion": "print a script by which a shell completes mcproxy's commands",
    "version": "print the versions of mcproxy, Python, OpenSSL and the libraries",
    "demo": "start two simulated clusters and a proxy in front of them",
}
"""The commands in the order of `--help`; each is the module of that name in this package."""
_MODULES = {"import": "importing"}
"""The modules of commands whose name cannot be the name of a module."""

_MEANT = {"validate": "check", "test": "check", "start": "run", "serve": "run", "man": "docs", "manual": "docs"}
"""Other names of commands."""

INTERRUPTED = 130


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps texts of one line, and leaves texts of several lines, such as examples, unchanged."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text.strip():
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def load_command(name: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(f"mcproxy.cli.{_MODULES.get(name, name)}")


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser with the options of `command` only; it knows other commands by their names."""
    parser = argparse.ArgumentParser(
        prog="mcproxy",
        description="An nginx for Kubernetes: one daemon, one YAML file, in front of one or many kube-apiservers.",
        epilog="Manual pages: mcproxy(8), mcproxy.yaml(5); the manual: mcproxy docs.",
    )
    parser.add_argument("--version", action="version", version=f"mcproxy {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if name == command:
            load_command(name).add_parser(subparsers)
            _set_formatter(subparsers.choices[name])
        else:
            subparsers.add_parser(name, help=summary)
    return parser


def _set_formatter(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = HelpFormatter
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _set_formatter(below)


def _refuse_unknown(arguments: Sequence[str], command: str | None) -> None:
    """Exit with the list of commands if none is given, and with a suggestion for an unknown command."""
    parser = build_parser(None)
    if not arguments:
        parser.print_help(sys.stderr)
        parser.exit(USAGE)
    named = next((argument for argument in arguments if argument in COMMANDS), None)
    if named is not None and arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version"):
        parser.error(f"options follow the command: mcproxy {named} {arguments[0]} ...")
    if command is not None and command not in COMMANDS:
        from mcproxy.config.suggestions import nearest

        meant = _MEANT.get(command) or nearest(command, COMMANDS)
        parser.error(f"there is no command {command}; " + (f"did you mean {meant}?" if meant else "see mcproxy --help"))


def _refuse_rest(parser: argparse.ArgumentParser, arguments: Sequence[str], unknown: str) -> NoReturn:
    """Exit with the message of the given command about an unknown argument."""
    from mcproxy.config.suggestions import nearest

    for argument in arguments:
        below = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
        if below is not None and argument in below.choices:
            parser = below.choices[argument]
    options = parser._option_string_actions
    if unknown.startswith("-"):
        meant = nearest(unknown.partition("=")[0], options)
        parser.error(f"there is no option {unknown}; " + (f"did you mean {meant}?" if meant else "see --help"))
    right = f"name the file with -c {unknown}" if "--config" in options else "see --help"
    parser.error(f"there is no argument {unknown}; {right}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit status. An expected error is one sentence on standard error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    _refuse_unknown(arguments, command)
    if command == "run":
        from mcproxy.daemon.signals import ignore_until_ready

        ignore_until_ready()
    parser = build_parser(command)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        _refuse_rest(parser, arguments, unknown[0])
    try:
        status = int(load_command(args.command).run(args))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # as with `mcproxy dump | head`: the reader has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python prints an error when it flushes at exit
        return OK
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"mcproxy {args.command}: {where}{error.strerror or error}", file=sys.stderr)
        return FAILED
    return status
