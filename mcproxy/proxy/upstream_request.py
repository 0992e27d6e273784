"""How long a cluster's response may take. Pure."""

from __future__ import annotations

from mcproxy.kube import duration
from mcproxy.kube.requestinfo import RequestInfo, timeout_parameter


def response_timeout(info: RequestInfo | None, target: bytes, usual: float) -> float:
    """Return how long the response's first byte may take, in seconds; 0: no limit, for long-running requests.

    That includes requests with an Upgrade header: they have the time of short requests until the cluster answers.

    `target` is the one sent to the cluster; `timeout` in its query takes precedence over `usual`.
    """
    if info is None or info.long_running:
        return 0.0
    if target.find(b"timeout=") < 0:  # `in` costs twice as much
        return usual
    asked = timeout_parameter(target)
    seconds = duration.parse(asked) if asked else None
    return seconds or usual
