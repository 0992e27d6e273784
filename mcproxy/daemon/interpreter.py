"""New interpreters for the processes that the daemon starts: their command lines, and descriptions of exit statuses."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import sysconfig
from collections.abc import Iterator, Mapping

import mcproxy

#: Signals that a terminal sends to the whole process group, or `systemctl kill` to the unit; only the daemon handles
#: them.
GROUP_SIGNALS = frozenset({signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line of `module`, which is run as ``python -m`` does."""
    return [sys.executable, *_flags(), "-m", module, *arguments]


def single_file() -> str | None:
    """Return the single-file program from which this interpreter was unpacked (packaging/launcher.c), if any.

    Children of such a process run its interpreter directly, so for them it is unknown.
    """
    return str(sys._xoptions["mcproxy_program"]) if "mcproxy_program" in sys._xoptions else None


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ`; with the folder of this package in PYTHONPATH if it is not installed (run from its source)."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(mcproxy.__file__)))
    paths = environ.get("PYTHONPATH", "").split(os.pathsep) if environ.get("PYTHONPATH") else []
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *paths}
    if folder in installed:
        return dict(environ)
    return {**environ, "PYTHONPATH": os.pathsep.join([folder, *paths])}


def _flags() -> list[str]:
    """Return the options of this interpreter that affect imports; the working directory is never searched."""
    if sys.flags.isolated:
        return ["-I"]
    ignoring = [("-E", sys.flags.ignore_environment), ("-s", sys.flags.no_user_site)]
    return [option for option, on in ignoring if on] + ["-P"]


@contextlib.contextmanager
def group_signals_blocked() -> Iterator[None]:
    """A context in which to start a process: it inherits the mask, so none of these signals ends it before it handles
    them.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def describe_end(status: int) -> str:
    """Describe an exit status in the form of `subprocess`: negative for a signal."""
    if status >= 0:
        return f"it ended with status {status}"
    try:
        return f"{signal.Signals(-status).name} ended it"
    except ValueError:
        return f"signal {-status} ended it"


def remedy_of_end(status: int) -> str:
    """Return the remedy for a process that ended by itself with this status."""
    if status == -signal.SIGKILL:
        return "if nobody killed it, see whether the kernel did for want of memory: journalctl -k"
    return "report this bug, with its last lines in the log"
