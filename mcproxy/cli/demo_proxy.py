"""The proxy of `mcproxy demo`: loads the daemon while the clusters start, then runs it with the file named on stdin.

The clusters' ports stand in that file and are known only when they serve; importing the daemon takes as long as that.
"""

from __future__ import annotations

import sys

from mcproxy.config.load import load
from mcproxy.daemon.main import run
from mcproxy.daemon.service import Service


def main() -> int:
    path = sys.stdin.readline().rstrip("\n")
    if not path:  # whoever started this is gone
        return 1
    return run(path, load=load, make_service=Service)


if __name__ == "__main__":
    sys.exit(main())
