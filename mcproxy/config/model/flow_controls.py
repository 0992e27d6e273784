"""The section `flowControls`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mcproxy.config.model.keys import Seconds


class FlowControlType(enum.StrEnum):
    """How requests are limited."""

    EXEMPT = "Exempt"
    MAX_REQUESTS_INFLIGHT = "MaxRequestsInflight"
    TOKEN_BUCKET = "TokenBucket"


class Per(enum.StrEnum):
    """Whose requests share one limit."""

    ALL = "All"
    USER = "User"
    CLUSTER = "Cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    size: int
    timeout: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowControl:
    name: str
    type: FlowControlType
    shared: bool = False  # the limit holds over all replicas of the proxy together (`daemon.sharedState`)
    qps: float = 0.0  # TokenBucket
    burst: int = 0  # TokenBucket
    max: int | None = None  # MaxRequestsInflight: requests that are not long-running; 0 refuses all
    max_long_running: int | None = None  # MaxRequestsInflight; None: no limit
    per: Per = Per.ALL
    queue: Queue | None = None  # None: refused at once
