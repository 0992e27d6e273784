"""`mcproxy check`: is the configuration file good? As `nginx -t`: certificates are loaded and the binds are tried."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mcproxy.cli import BAD_CONFIG, OK, USAGE, configuration, explain

if TYPE_CHECKING:
    from mcproxy.config.load import Loaded
    from mcproxy.config.problem import Problem
    from mcproxy.config.reading.nodes import Place

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

WARNINGS = 3
"""Exit status under --strict when all that there is are warnings."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "check",
        help="check a configuration file, as the daemon would read it",
        description="Check a configuration file with all that it names, and try whether its addresses can be bound. "
        "Exit status: 0 good, 78 errors, 3 warnings under --strict.",
    )
    configuration.add_option(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="show errors only")
    parser.add_argument("--offline", action="store_true", help="do not try the binds")
    parser.add_argument("--strict", action="store_true", help="let warnings fail the check")
    explain.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check; 0 good, 78 errors, 3 warnings under --strict. With --explain see `explain.run`."""
    from mcproxy.config.load import load
    from mcproxy.config.problem import ConfigErrors

    if wrong := explain.misused(args):
        _say(wrong)
        return USAGE
    show_warnings = args.strict or not args.quiet
    try:
        loaded = load(args.config)
    except ConfigErrors as found:
        return _refuse(args.config, found.problems, found.warnings if show_warnings else ())
    if args.explain is not None:
        return explain.run(args, loaded.config)
    errors = [*_try_certificates(loaded), *(() if args.offline else _try_binds(loaded))]
    if errors:
        return _refuse(args.config, errors, loaded.warnings if show_warnings else ())
    if show_warnings:
        _show_warnings(loaded.warnings)
    if args.strict and loaded.warnings:
        _say(f"the configuration file {args.config} has {_count(loaded.warnings, 'warning')}")
        return WARNINGS
    if not args.quiet:
        _say(f"the configuration file {args.config} is good")
    return OK


def _try_certificates(loaded: Loaded) -> Iterable[Problem]:
    """Yield what OpenSSL, as the listeners use it, has against certificates that are well-formed."""
    from mcproxy.net.certificates import CertificateStore
    from mcproxy.net.contexts import PairError

    for certificate in loaded.config.certificates:
        try:
            CertificateStore.build([certificate])
        except PairError as error:
            right = "use a certificate and key that OpenSSL accepts"
            yield _problem(loaded.places["certificates", certificate.name], "certFile", str(error), right)


def _try_binds(loaded: Loaded) -> Iterable[Problem]:
    """Yield what keeps listeners from their addresses. One in use is fine: it may be the running daemon that has it."""
    from mcproxy.net.bind import BindError, probe_bind

    for listener in loaded.config.listeners:
        try:
            probe_bind(listener.bind)
        except BindError as error:
            if not error.in_use:
                what = f"{listener.bind} cannot be bound: {error.cause}"
                right = "bind it to an address that this machine has and this user may take"
                yield _problem(loaded.places["listeners", listener.name], "bind", what, right)


def _problem(entry: Place, key: str, what: str, right: str) -> Problem:
    from mcproxy.config.problem import Problem

    place = entry.get(key) or entry
    return Problem(place.mark, place.key, what, right)


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
