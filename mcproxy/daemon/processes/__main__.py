"""Starts a child (`processes.child`).

Its modules are imported with the garbage collector off: what they make lives as long as the process, and to search it
for cycles again and again would be a sixth of the start of a worker, whose clients wait for it if it replaces another.
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
