"""Command lines and environments of the Python processes that the daemon starts, and texts for exit statuses."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import sysconfig
from collections.abc import Iterator, Mapping

import mcproxy

#: Signals that a terminal sends to the whole process group, or `systemctl kill` to the whole unit.
#: Only the daemon handles them.
GROUP_SIGNALS = frozenset({signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs `module` as ``python -m`` does."""
    return [sys.executable, *_flags(), "-m", module, *arguments]


def single_file() -> str | None:
    """Return the single-file program from which this interpreter was unpacked (packaging/launcher.c), if any.

    None in children of such a process, which run its interpreter directly.
    """
    return str(sys._xoptions["mcproxy_program"]) if "mcproxy_program" in sys._xoptions else None


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ`. If this package runs from its source, PYTHONPATH then contains the package's folder."""
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
    """Block `GROUP_SIGNALS` in this context, for starting a process.

    The process inherits the mask, so none of these signals ends it before it handles them."""
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
