"""`mcproxy top`: shows live rates, latency, endpoints, limits and processes of the running daemon."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mcproxy.cli import FAILED, OK, USAGE
from mcproxy.cli.control_client import UnreachableError, send_command
from mcproxy.cli.status import add_options, ask, why_unreachable
from mcproxy.cli.status_text import MEASURES
from mcproxy.cli.terminal import Terminal
from mcproxy.cli.terminal_screen import Screen
from mcproxy.cli.top_rates import rates_of
from mcproxy.cli.top_screen import SORTS, TopView, plain, screen

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_SHORTEST = 0.2
_LONGEST_FILTER = 60


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "top",
        help="watch the running daemon: rates, latency, endpoints, processes",
        description="Watch the running daemon live: requests and errors in a second, latency, what is in flight, for "
        "each server and endpoint; limits and their use; caches; processes. Several processes are shown as one.",
        epilog="keys: ? help, q quit, t who sends most, s sort by the next column, / filter, space pause, arrows and "
        "page keys scroll, + and - change the interval.\n\n"
        "examples:\n"
        "  mcproxy top\n"
        "  mcproxy top -b 1                             # one sample as text\n"
        "  mcproxy top -b 3 -d 10 -o json | jq .p99Seconds",
    )
    add_options(parser)
    parser.add_argument(
        "-d",
        "--interval",
        metavar="SECONDS",
        type=_interval,
        default=2.0,
        help="between samples (default: %(default)g)",
    )
    parser.add_argument(
        "-b", "--batch", metavar="NUMBER", type=_count, help="print this many samples one after the other, and end"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json"),
        default="table",
        help="json: one object on each line, without end unless -b is given (default: %(default)s)",
    )
    parser.add_argument(
        "-s",
        "--sort",
        choices=[sort.replace(" ", "-") for sort in SORTS],
        default=SORTS[0],
        help="default: %(default)s",
    )


def _interval(text: str) -> float:
    value = float(text)
    if not _SHORTEST <= value <= 86400:
        raise argparse.ArgumentTypeError(f"at least {_SHORTEST:g} seconds, at most a day")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def run(args: argparse.Namespace) -> int:
    """Show samples until the user quits; 0, or 1 if no daemon answers, 2 without a terminal."""
    args.sort = args.sort.replace("-", " ")
    batch = args.batch is not None or args.output == "json"
    if not batch and not (sys.stdout.isatty() and sys.stdin.isatty()):
        print("mcproxy top: this is no terminal; -b NUMBER prints samples as text, -o json as JSON", file=sys.stderr)
        return USAGE
    try:
        first, path = ask(args.config, args.timeout)
    except UnreachableError as error:
        print(f"mcproxy top: {why_unreachable(error)}", file=sys.stderr)
        return FAILED
    source = _Source(args.config, path, args.timeout)
    begun = _Sample(first, time.monotonic())
    try:
        return _print_samples(args, source, begun) if batch else _show(args, source, begun)
    except EOFError:  # the terminal is gone
        return OK
    except KeyboardInterrupt:  # the user's usual way to quit
        return OK


class _Sample(NamedTuple):
    status: Mapping[str, Any]
    at: float
    """Seconds of a monotonic clock."""


class _Source:
    """Requests samples from the daemon. It finds a successor (after an upgrade or restart) by the file."""

    def __init__(self, config: str, path: str, timeout: float) -> None:
        self._config = config
        self._path = path
        self._timeout = timeout

    def sample(self) -> _Sample:
        """Return the current status document. Raises UnreachableError."""
        request = {"command": "status", "file": os.path.abspath(self._config)}
        try:
            status: Mapping[str, Any] = send_command(self._path, request, self._timeout)
        except UnreachableError:
            status = {}
        if status.get("ok") is not True:
            status, self._path = ask(self._config, self._timeout)
        return _Sample(status, time.monotonic())


# -- for scripts -------------------------------------------------------------------------------------------------------


def _print_samples(args: argparse.Namespace, source: _Source, begun: _Sample) -> int:
    """Print samples, each over an interval; the first comes after one interval."""
    terminal = Terminal.of(sys.stdout, os.environ)
    before = begun
    left = args.batch
    while left is None or left > 0:
        time.sleep(max(0.0, before.at + args.interval - time.monotonic()))
        try:
            sample = source.sample()
        except UnreachableError as error:
            print(f"mcproxy top: the daemon does not answer any more: {error}", file=sys.stderr)
            return FAILED
        rates = rates_of(sample.status, before.status, sample.at - before.at)
        if args.output == "json":
            print(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **rates}), flush=True)
        else:
            print("\n".join(plain(sample.status, rates, args.sort, terminal)), flush=True)
            if left is not None and left > 1:
                print(flush=True)
        before = sample
        left = None if left is None else left - 1
    return OK


# -- on a terminal -----------------------------------------------------------------------------------------------------


class _Sampler:
    """Takes samples in a thread, so that keys work while the daemon is slow. `ready` is readable when a sample is."""

    def __init__(self, source: _Source) -> None:
        self.ready, self._wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._source = source
        self._requested = threading.Event()
        self._result: _Sample | UnreachableError | None = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Start taking a sample, unless one is being taken."""
        self._requested.set()

    def result(self) -> _Sample | UnreachableError | None:
        """Return the new result since the last call, or None."""
        try:
            os.read(self.ready, 4096)
        except BlockingIOError:
            return None
        found, self._result = self._result, None
        return found

    def _run(self) -> None:
        while True:
            self._requested.wait()
            self._requested.clear()
            try:
                self._result = self._source.sample()
            except UnreachableError as error:
                self._result = error
            os.write(self._wakeup, b"s")


def _show(args: argparse.Namespace, source: _Source, begun: _Sample) -> int:
    view = TopView(sort=args.sort, interval=args.interval)
    sampler = _Sampler(source)
    newest, rates = begun, rates_of(begun.status, None, 0.0)
    due = begun.at + min(1.0, view.interval)  # so that the first rates come soon
    can_show = Terminal.of(sys.stdout, os.environ)
    with Screen() as display:
        while True:
            columns, lines = display.size
            terminal = Terminal(can_show.colours, can_show.unicode, columns)
            display.draw(screen(newest.status, rates, view, terminal, lines))
            wait = 3600.0 if view.paused else due - time.monotonic()
            if wait <= 0:
                sampler.ask()
                due = time.monotonic() + view.interval
                wait = view.interval
            for key in display.keys(wait, sampler.ready):
                if key in ("q", "Q", "\x03"):
                    return OK
                if _press(key, view, lines):
                    due = time.monotonic()
            found = sampler.result()
            if isinstance(found, UnreachableError):
                view.failure = f"the daemon does not answer, its last figures are shown: {found}"
            elif found is not None and not view.paused:
                view.failure = ""
                rates = rates_of(found.status, newest.status, found.at - newest.at)
                newest = found


def _press(key: str, view: TopView, lines: int) -> bool:
    """Handle a key; return whether to take a sample at once."""
    page = max(1, lines - 6)
    if view.typing:
        _type(key, view)
        return False
    steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page, "home": -(10**6), "end": 10**6}
    if key in steps:
        view.scroll = max(0, view.scroll + steps[key])
    elif key in ("s", "S"):
        _sort(view, 1 if key == "s" else -1)
    elif key == "t":
        view.senders, view.helps, view.scroll = not view.senders or view.helps, False, 0
    elif key in ("?", "h"):
        view.helps, view.scroll = not view.helps, 0
    elif key == "/":
        view.typing, view.wanted, view.helps = True, "", False
    elif key == "escape":
        view.wanted, view.helps = "", False
    elif key == "+":
        view.interval = next((each for each in _INTERVALS if each > view.interval), view.interval)
    elif key == "-":
        view.interval = next((each for each in reversed(_INTERVALS) if each < view.interval), view.interval)
    elif key in (" ", "p"):
        view.paused = not view.paused
        return not view.paused
    return key in ("r", "-")


def _sort(view: TopView, step: int) -> None:
    """Sort by the next or the previous column."""
    if view.senders:
        measures = tuple(MEASURES)
        view.measure = measures[(measures.index(view.measure) + step) % len(measures)]
    else:
        view.sort = SORTS[(SORTS.index(view.sort) + step) % len(SORTS)]


def _type(key: str, view: TopView) -> None:
    """Handle a key that is typed into the filter."""
    if key in ("\r", "\n", "escape"):
        view.typing = False
        if key == "escape":
            view.wanted = ""
    elif key in ("\x7f", "\b"):
        view.wanted = view.wanted[:-1]
    elif len(key) == 1 and key.isprintable() and len(view.wanted) < _LONGEST_FILTER:
        view.wanted += key
