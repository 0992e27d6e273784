"""Starts a child (`processes.child`).

It imports the child's modules with the garbage collector off, because their objects live as long as the process.
Searches for cycles would take a sixth of a worker's start. Clients wait for the start if it replaces another worker.
"""

from __future__ import annotations

import gc
import sys


def run() -> int:
    """Import and run the child."""
    gc.disable()
    from mcproxy.daemon.processes.child import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
