"""Takes from one limit, for one key, as fast as it can: ``limit_takers.py bucket|permit SECONDS [DESCRIPTORS]``.

Says `ready`, waits for a line, and prints what it took, and in which time. With the descriptors of shared memory, as
JSON, it counts there. The limits are so wide that they refuse nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

from twisted.internet import reactor

from mcproxy.config import model
from mcproxy.dispatch.flow_control_set import FlowControls
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.request_limits import Permit

_AT_ONCE = 1000
_USER = "system:serviceaccount:kube-system:deployment-controller"


def main(arguments: list[str]) -> int:
    what, seconds = arguments[0], float(arguments[1])
    tables: LimitTables = LimitTables.of_one_process(reactor)
    if len(arguments) > 2:
        column = os.getpid() % 63  # no two of four that were started together have the same
        tables = LimitTables.of_process(json.loads(arguments[2]), column, reactor)
    use = {"bucket": bucket, "permit": permit}[what](tables)
    use(_AT_ONCE)
    print("ready", flush=True)
    sys.stdin.readline()
    began, processor, taken = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() < began + seconds:
        use(_AT_ONCE)
        taken += _AT_ONCE
    took, processor = time.perf_counter() - began, time.process_time() - processor
    print(json.dumps({"taken": taken, "seconds": took, "processor": processor}))
    return 0


def bucket(tables: LimitTables) -> Callable[[int], None]:
    """Return what takes so many tokens, as requests of one policy do."""
    control = model.FlowControl(
        name="bulk", type=model.FlowControlType.TOKEN_BUCKET, qps=1e9, burst=10**9, per=model.Per.USER
    )
    limits = FlowControls.build((control,), reactor, tables=tables).limits_for(("bulk",), "east")
    take = limits.acquire

    def use(times: int) -> None:
        for _ in range(times):
            take(_USER, False)

    return use


def permit(tables: LimitTables) -> Callable[[int], None]:
    """Return what takes so many permits and gives them back, as requests of one policy do."""
    control = model.FlowControl(
        name="few", type=model.FlowControlType.MAX_REQUESTS_INFLIGHT, max=1000, per=model.Per.USER
    )
    limits = FlowControls.build((control,), reactor, tables=tables).limits_for(("few",), "east")
    take = limits.acquire

    def use(times: int) -> None:
        for _ in range(times):
            taken = take(_USER, False)
            assert isinstance(taken, Permit)
            taken.release()

    return use


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
