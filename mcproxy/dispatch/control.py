"""A flow control of the file, alive: its gates, its counts, and how it words a refusal.

Source of the sentence: the rules for flow control; the form of MaxRequestsInflight follows that of TokenBucket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.config.model import FlowControlType, Per
from mcproxy.dispatch.gate import BucketGate, Gate, InFlightGate
from mcproxy.kube.status import StatusError, retry_after

# What a client is asked to wait, whatever the limit: client-go waits exactly as long, and tries ten times.
_RETRY_AFTER = 1


class Control(ABC):
    """One limit of a name. It stays the same object across a reload unless its type or `per` changes."""

    def __init__(self, config: model.FlowControl, short: Gate, long: Gate) -> None:
        """`short` and `long` are for requests of either kind, and may be the same."""
        self.config = config  # what is in force
        self.short, self.long = short, long
        self._gates = {short, long}

    @property
    def in_use(self) -> int:
        """How many requests are under way that are not long-running; always 0 for a token bucket."""
        return self.short.in_use if isinstance(self.short, InFlightGate) else 0

    @property
    def in_use_long_running(self) -> int:
        """How many long-running requests are under way; always 0 for a token bucket."""
        return self.long.in_use if isinstance(self.long, InFlightGate) else 0

    @property
    def waiting(self) -> int:
        """How many requests wait in its queues."""
        return sum(gate.waiting for gate in self._gates)

    @property
    def refused(self) -> int:
        """How many requests it has refused since it was made."""
        return sum(gate.refused for gate in self._gates)

    @abstractmethod
    def change(self, config: model.FlowControl) -> None:
        """Take on another configuration of the same type and `per`, from the next request on."""

    def key(self, cluster_name: str) -> str | None:
        """Return whose limit a request to a cluster counts against; None: its user's."""
        per = self.config.per
        return None if per is Per.USER else cluster_name if per is Per.CLUSTER else ""

    def refusal(self, cluster_name: str, resource: str, waited: float | None = None) -> StatusError:
        """Return the 429. `waited`: for how many seconds it was in the queue, if it was.

        For events there is no Retry-After: recorders would try again instead of dropping the event.
        """
        message = (
            f'too many requests for cluster "{cluster_name}", limited by flow control "{self.config.name}"'
            f" ({', '.join(self._limits())})"
        )
        if waited is not None:
            message += f"; waited {_number(waited)} s in its queue"
        if resource == "events":
            return StatusError(429, message)
        return retry_after(429, message, _RETRY_AFTER)

    @abstractmethod
    def _limits(self) -> list[str]:
        """Say what the limit is, the type first, for the refusal's sentence."""


class InFlightControl(Control):
    """MaxRequestsInflight: long-running requests have a budget and queues of their own."""

    short: InFlightGate
    long: InFlightGate

    def __init__(self, config: model.FlowControl, clock: IReactorTime) -> None:
        super().__init__(
            config,
            InFlightGate(config.max, config.queue, clock),
            InFlightGate(config.max_long_running, config.queue, clock),
        )

    def change(self, config: model.FlowControl) -> None:
        self.config = config
        self.short.change(config.max, config.queue)
        self.long.change(config.max_long_running, config.queue)

    def _limits(self) -> list[str]:
        limits = [str(FlowControlType.MAX_REQUESTS_INFLIGHT)]
        if self.config.max is not None:
            limits.append(f"max {self.config.max}")
        if self.config.max_long_running is not None:
            limits.append(f"max long-running {self.config.max_long_running}")
        return limits


class BucketControl(Control):
    """TokenBucket: every request takes a token, however long it runs."""

    short: BucketGate

    def __init__(self, config: model.FlowControl, clock: IReactorTime) -> None:
        gate = BucketGate(config.qps, config.burst, config.queue, clock)
        super().__init__(config, gate, gate)

    def change(self, config: model.FlowControl) -> None:
        self.config = config
        self.short.change(config.qps, config.burst, config.queue)

    def _limits(self) -> list[str]:
        return [str(FlowControlType.TOKEN_BUCKET), f"qps {_number(self.config.qps)}", f"burst {self.config.burst}"]


def make(config: model.FlowControl, clock: IReactorTime) -> Control | None:
    """Return a new flow control; None for one that limits nothing."""
    if config.type is FlowControlType.EXEMPT:
        return None
    return (
        BucketControl(config, clock) if config.type is FlowControlType.TOKEN_BUCKET else InFlightControl(config, clock)
    )


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
