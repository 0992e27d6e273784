"""The limit of open files.

The soft limit is 1024 nearly everywhere, for the sake of programs that use select(2); those that do not raise it to the
hard limit by themselves, as Go's programs and nginx (worker_rlimit_nofile) do. A proxy needs two descriptors for each
request in flight. Children inherit it; what an exec plugin does with more than 1024 files of its own is its own affair.
"""

from __future__ import annotations

import contextlib
import resource


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return what it is now; a refusal leaves it as it was."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a hard limit above what the kernel now allows (fs.nr_open)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
