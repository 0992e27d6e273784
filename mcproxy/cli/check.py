"""`mcproxy check`: validates the configuration file, as `nginx -t` does, and checks that this machine can run it.

With --offline it reads only YAML files, so that CI can check a configuration without certificates and tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mcproxy.cli import BAD_CONFIG, DEFAULT_FILE, FAILED, OK, USAGE, configuration, explain
from mcproxy.cli.progress import progress
from mcproxy.cli.reload import add_diff_option, print_diff, running_layouts

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
        "  mcproxy check --connect\n"
        "  mcproxy check --explain GET '/api/v1/pods?watch=1' --server east --user alice --group dev\n"
        "  mcproxy check --explain GET https://web.example.com/path",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the same as -c FILE; - is standard input")
    configuration.add_option(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show errors only")
    parser.add_argument("--offline", action="store_true", help="read no file but YAML, and try nothing on this machine")
    parser.add_argument(
        "--connect",
        action="store_true",
        help="also reach every endpoint and hub, ask clusters for the proxy's rights, issuers for keys, and Redis, and "
        "try pods of ingresses; report faults in the order in which to repair them. Exit status: 1 for faults",
    )
    parser.add_argument("--strict", action="store_true", help="let warnings fail the check")
    add_diff_option(parser)
    explain.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check the configuration; return the exit status: 0 valid, 78 with errors, 3 with warnings under --strict.

    With --explain see `explain.run`.
    """
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
        return explain.run(args, loaded.config, file)
    errors, notes = ((), ()) if args.offline else _on_this_machine(file, loaded)
    if not args.offline and file != "-":
        loaded = _with_reload_warnings(file, loaded)
    if not args.quiet:
        for note in (*loaded.notes, *notes):
            print(f"note: {note}", file=sys.stderr)
    if errors:
        return _refuse(file, errors, loaded.warnings if show_warnings else ())
    if show_warnings:
        _show_warnings(loaded.warnings)
    if args.connect and (faults := _connect(args, file, loaded)):
        return faults
    if args.strict and loaded.warnings:
        _say(f"the configuration file {file} has {_count(loaded.warnings, 'warning')}")
        return WARNINGS
    if not args.quiet:
        reached = f"everything that {file} names can be reached and used"
        _say(reached if args.connect else f"the configuration file {file} is good")
    return print_diff(file) if args.diff else OK


def _misused(args: argparse.Namespace) -> str | None:
    if args.file is not None and args.config != DEFAULT_FILE:
        return f"two files: {args.file} and -c {args.config}"
    if args.connect and (args.offline or args.explain is not None):
        return "--connect tries what --offline and --explain leave alone"
    if args.diff and "-" in (args.file, args.config):
        return "--diff needs a file that the daemon can read, not standard input"
    return None


def _on_this_machine(file: str, loaded: Loaded) -> tuple[Sequence[Problem], Sequence[Problem]]:
    """Return errors, and notes about findings that can be correct on the daemon's machine."""
    from mcproxy.cli.machine_checks import MachineChecks

    checks = MachineChecks(file, loaded)
    with progress("trying the addresses and files on this machine"):
        checks.run()
    return checks.errors, checks.notes


def _connect(args: argparse.Namespace, file: str, loaded: Loaded) -> int:
    """Try to reach the remote systems of the configuration, and print the result; 1 if there are faults, else 0."""
    from mcproxy.cli import connect_checks

    with progress("trying endpoints, hubs, rights, issuers and Redis"):
        outcome = connect_checks.run(loaded)
    if not args.quiet:
        for line in sorted(outcome.good):
            print(line)
        sys.stdout.flush()
        for note in outcome.notes:
            print(f"note: {note}", file=sys.stderr)
        for warning in sorted(outcome.warnings):
            print(f"warning: {warning}", file=sys.stderr)
    if not outcome.faults:
        return OK
    print("to be mended, in this order: what comes later may be different then", file=sys.stderr)
    for number, problem in enumerate(outcome.ordered(), 1):
        print(f"{number}. {problem}", file=sys.stderr)
    _say(f"{_count(outcome.faults, 'fault')} in what {file} names")
    return FAILED


def _with_reload_warnings(file: str, loaded: Loaded) -> Loaded:
    """Add a warning for each aggregate whose positions in resource versions a reload of the running daemon changes."""
    from dataclasses import replace

    from mcproxy.config.config_changes import layout_warnings

    if not loaded.config.aggregates:
        return loaded
    return replace(loaded, warnings=(*loaded.warnings, *layout_warnings(running_layouts(file), loaded)))


def _refuse(file: str, errors: Sequence[Problem], warnings: Iterable[Problem]) -> int:
    from mcproxy.config.problem import lines_of

    _show_warnings(warnings)
    for line in lines_of(errors):
        print(line, file=sys.stderr)
    _say(f"the configuration file {file} has {_count(errors, 'error')}")
    return BAD_CONFIG


def _show_warnings(warnings: Iterable[Problem]) -> None:
    from mcproxy.config.problem import lines_of

    for line in lines_of(tuple(warnings)):
        print(f"warning: {line}", file=sys.stderr)


def _count(problems: Sequence[object], what: str) -> str:
    return f"1 {what}" if len(problems) == 1 else f"{len(problems)} {what}s"


def _say(text: str) -> None:
    print(f"mcproxy: {text}", file=sys.stderr)
