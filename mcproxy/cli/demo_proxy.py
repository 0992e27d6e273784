"""The proxy of `mcproxy demo`: imports the daemon while the clusters start, then runs it with the file named on stdin.

That file contains the clusters' ports, which are known only when the clusters serve. Stdin is open while the demo runs,
so that the proxy ends whenever the demo ends.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading


def main() -> int:
    gc.disable()  # until `run` enters the reactor, as in `cli.run`
    from mcproxy.daemon.config_process import ConfigReader
    from mcproxy.daemon.main import run
    from mcproxy.daemon.service import SingleProcessService
    from mcproxy.daemon.upgrade import Takeover

    takeover = Takeover.from_environ(os.environ)
    if takeover is not None:  # refuse `mcproxy upgrade`, since the demo exits when its own proxy does
        takeover.failed(["the proxy of a demo ends with the demo; start the demo anew"])
        return 1
    reader = ConfigReader()
    reader.start()
    path = sys.stdin.readline().rstrip("\n")
    if not path:
        return 1
    threading.Thread(target=_end_with_the_demo, name="end-with-demo", daemon=True).start()
    return run(path, load=reader.load, make_service=SingleProcessService)


def _end_with_the_demo() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
