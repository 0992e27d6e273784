"""The processes of a daemon, as the command `status` shows them."""

from __future__ import annotations

import os
from typing import Any

from mcproxy.daemon.processes.children import Children
from mcproxy.daemon.processes.slots import Slots


def process_list(children: Children, slots: Slots, now: float, started_at: float) -> list[dict[str, Any]]:
    """Return a JSON object for each process: this one, the supervisor, first; those that retire are among them.

    `started_at` is the supervisor's start, by the clock of `now`.
    """
    supervisor = {
        "name": "supervisor",
        "pid": os.getpid(),
        "role": "supervisor",
        "uptimeSeconds": round(now - started_at, 1),
        "restarts": 0,
        "leader": False,
        "open": 0,
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
        }
        for child in sorted(children, key=lambda child: (child.role, child.index, child.started_at))
    ]
    return [supervisor, *others]
