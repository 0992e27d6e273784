"""The processes of a daemon, as the command `status` shows them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mcproxy.daemon.processes.children import Children
from mcproxy.daemon.processes.slots import Slots
from mcproxy.daemon.status import Figures
from mcproxy.daemon.status.process_status import KEYS, of_process

#: For a process that has not reported its usage.
_UNKNOWN: Mapping[str, None] = dict.fromkeys(KEYS)


def process_list(
    children: Children,
    slots: Slots,
    now: float,
    started_at: float,
    used: Mapping[int, Figures],
    loop_lag: float | None = None,
) -> list[Figures]:
    """Return a JSON object for each process: this one, the supervisor, first; those that retire are among them.

    `started_at` is the supervisor's start, by the clock of `now`. `used` is what the others use of the machine, by pid,
    as far as they have answered in time: `answered`. `loop_lag` is the supervisor's.
    """
    supervisor = {
        "name": "supervisor",
        "pid": os.getpid(),
        "role": "supervisor",
        "uptimeSeconds": round(now - started_at, 1),
        "restarts": 0,
        "leader": False,
        "open": 0,
        "answered": True,
        **of_process(loop_lag),
    }
    others = [
        {
            "name": child.name,
            "pid": child.pid,
            "role": str(child.role),
            "uptimeSeconds": round(now - child.started_at, 1),
            "restarts": slots.restarts(child),
            "leader": child is children.leader,
            "open": child.open,
            "answered": child.pid in used,
            **_UNKNOWN,
            **used.get(child.pid, {}),
        }
        for child in sorted(children, key=lambda child: (child.role, child.index, child.started_at))
    ]
    return [supervisor, *others]
