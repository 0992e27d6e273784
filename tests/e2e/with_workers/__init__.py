"""`mcproxy run` with the number of workers that MCPROXY_TEST_WORKERS names, whatever the file has.

The end-to-end tests start it instead of mcproxy where that variable is set: `MCPROXY_TEST_WORKERS=2 pytest tests/e2e`
runs all of them with two workers. By hand, since that takes minutes.
"""

from __future__ import annotations

import dataclasses
import os
import sys

from mcproxy.cli.main import main as mcproxy
from mcproxy.config import load
from mcproxy.config.loaded import Loaded

VARIABLE = "MCPROXY_TEST_WORKERS"
#: What is started; its name is that by which `mcproxy reload` finds a daemon whose control socket has moved.
PROGRAM = os.path.join(os.path.dirname(__file__), "mcproxy")


def main() -> int:
    """Run a command line of mcproxy; daemons of one process get the number of workers instead."""
    read = load.load

    def load_with_workers(path: str) -> Loaded:
        loaded = read(path)
        if loaded.config.daemon.workers != 1:
            return loaded
        daemon = dataclasses.replace(loaded.config.daemon, workers=int(os.environ[VARIABLE]))
        return dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, daemon=daemon))

    load.load = load_with_workers  # type: ignore[assignment]
    return mcproxy(sys.argv[1:])
