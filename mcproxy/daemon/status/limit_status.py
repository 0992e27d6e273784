"""Flow controls: the use of each limit, waiting and refused requests. And limits over replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from mcproxy.config import model
from mcproxy.config.model import FlowControlType, Per
from mcproxy.daemon.status import Figures

if TYPE_CHECKING:
    from mcproxy.dispatch.flow_control_set import FlowControls


def of_flow_controls(flow_controls: FlowControls) -> list[Figures]:
    """Return the figures of the flow controls that limit anything, of this process's requests alone."""
    return [
        {
            "name": name,
            "inUse": control.in_use,
            "inUseLongRunning": control.in_use_long_running,
            "waiting": control.waiting,
            "refusedTotal": control.refused,
            "tokens": control.tokens,
        }
        for name, control in flow_controls.controls.items()
    ]


def with_limits(config: Iterable[model.FlowControl], live: Iterable[Mapping[str, Any]]) -> list[Figures]:
    """Return an entry for each flow control of the configuration, from the sums over all processes.

    `use` is the part of the limit that is in use, 0 to 1; None where the limit is for each user or cluster, of which no
    single one is counted here.
    """
    by_name = {entry["name"]: entry for entry in live}
    return [_with_limit(item, by_name.get(item.name, {})) for item in config]


def _with_limit(item: model.FlowControl, live: Mapping[str, Any]) -> Figures:
    in_use, long_running = live.get("inUse", 0), live.get("inUseLongRunning", 0)
    tokens = live.get("tokens")
    limit: Figures = {}
    use: float | None = None
    if item.type is FlowControlType.TOKEN_BUCKET:
        limit = {"qps": item.qps, "burst": item.burst}
        use = None if tokens is None else _part(item.burst - tokens, item.burst)
    elif item.type is FlowControlType.MAX_REQUESTS_INFLIGHT:
        limit = {"max": item.max, "maxLongRunning": item.max_long_running}
        parts = [_part(in_use, item.max), _part(long_running, item.max_long_running)]
        use = max((part for part in parts if part is not None), default=None) if item.per is Per.ALL else None
    if item.queue is not None:
        limit["queue"] = item.queue.size
    return {
        "name": item.name,
        "schema": str(item.type),
        "per": str(item.per),
        "shared": item.shared,
        "limit": limit,
        "inUse": in_use,
        "inUseLongRunning": long_running,
        "waiting": live.get("waiting", 0),
        "refusedTotal": live.get("refusedTotal", 0),
        "use": use,
    }


def _part(used: float, maximum: int | None) -> float | None:
    if maximum is None:
        return None
    return round(min(1.0, max(0.0, used / maximum)), 3) if maximum else 1.0


class SharedState(Protocol):
    """Limits over replicas (`lazy_shared_limits.SharedLimits`)."""

    @property
    def figures(self) -> dict[str, Any] | None:
        """The shared state; None where nothing is shared."""


def of_shared_limits(shared: SharedState | None) -> Figures:
    """Return the state of limits over replicas, under the key `sharedState`; nothing where there are none."""
    found = None if shared is None else shared.figures
    return {} if found is None else {"sharedState": found}
