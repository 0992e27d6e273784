"""`mcproxy check`: validates the configuration file, as `nginx -t` does, and what the daemon needs of this machine.

With --offline it reads YAML files only, so that CI can check a file without certificates and tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mcproxy.cli import BAD_CONFIG, DEFAULT_FILE, OK, USAGE, changes, configuration, explain
from mcproxy.cli.progress import progress

if TYPE_CHECKING:
    from mcproxy.config.loaded import Loaded
    from mcproxy.config.problem import Problem

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

WARNINGS = 3
"""Exit status under --strict if there are only warnings."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "check",
        help="check a configuration file, as the daemon would read it",
        description="Check a configuration file with all that it names, and try whether its addresses can be bound and "
        "its log opened. Exit status: 0 good, 78 errors, 3 warnings under --strict.",
        epilog="examples:\n  mcproxy check\n"
        "  mcproxy check --offline --strict site.yaml\n"
        "  mcproxy check --diff\n"
        "  mcproxy check --explain GET '/api/v1/pods?watch=1' --server east --user alice --group dev",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the same as -c FILE; - is standard input")
    configuration.add_option(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show errors only")
    parser.add_argument("--offline", action="store_true", help="read no file but YAML, and try nothing on this machine")
    parser.add_argument("--strict", action="store_true", help="let warnings fail the check")
    changes.add_option(parser)
    explain.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check; 0 good, 78 errors, 3 warnings under --strict. With --explain see `explain.run`."""
    from mcproxy.config.load import load
    from mcproxy.config.problem import ConfigErrors

    if wrong := _misused(args) or explain.misused(args):
        _say(wrong)
        return USAGE
    file = args.file or args.config
    show_warnings = args.strict or not args.quiet
    try:
        with progress(f"reading {file} and what it names" if file != "-" else "reading standard input"):
            loaded = load(file, offline=args.offline or args.explain is not None)
    except ConfigErrors as found:
        return _refuse(file, found.problems, found.warnings if show_warnings else ())
    if args.explain is not None:
        return explain.run(args, loaded.config)
    errors, notes = ((), ()) if args.offline else _on_this_machine(file, loaded)
    if not args.quiet:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
    if errors:
        return _refuse(file, errors, loaded.warnings if show_warnings else ())
    if show_warnings:
        _show_warnings(loaded.warnings)
    if args.strict and loaded.warnings:
        _say(f"the configuration file {file} has {_count(loaded.warnings, 'warning')}")
        return WARNINGS
    if not args.quiet:
        _say(f"the configuration file {file} is good")
    return changes.run(file) if args.diff else OK


def _misused(args: argparse.Namespace) -> str | None:
    if args.file is not None and args.config != DEFAULT_FILE:
        return f"two files: {args.file} and -c {args.config}"
    if args.diff and "-" in (args.file, args.config):
        return "--diff needs a file that the daemon can read, not standard input"
    return None


def _on_this_machine(file: str, loaded: Loaded) -> tuple[Sequence[Problem], Sequence[Problem]]:
    """Return errors, and notes about what may be correct where the daemon runs."""
    from mcproxy.cli.machine_checks import MachineChecks

    checks = MachineChecks(file, loaded)
    with progress("trying the addresses and files on this machine"):
        checks.run()
    return checks.errors, checks.notes


def _refuse(file: str, errors: Sequence[Problem], warnings: Iterable[Problem]) -> int:
    _show_warnings(warnings)
    for problem in errors:
        print(problem, file=sys.stderr)
    _say(f"the configuration file {file} has {_count(errors, 'error')}")
    return BAD_CONFIG


def _show_warnings(warnings: Iterable[Problem]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _count(problems: Sequence[Problem], what: str) -> str:
    return f"1 {what}" if len(problems) == 1 else f"{len(problems)} {what}s"


def _say(text: str) -> None:
    print(f"mcproxy: {text}", file=sys.stderr)
