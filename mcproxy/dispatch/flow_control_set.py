"""The flow controls of one configuration, and their behaviour at a reload.

A reload keeps each controller whose type, `per` and `shared` stay the same, with its buckets, its requests in flight
and its queues. `build` does not change it, because the new configuration can still fail to come into force. `activate`
then sets the new parameters, which apply to new requests of any Runtime, and to queued ones.

A controller that is removed or changes its type keeps its old parameters for the requests that began with it. Requests
in flight continue until they end, and queued ones are admitted or refused within the queue's timeout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.config.model import FlowControlType
from mcproxy.dispatch.flow_controller import FlowController, make_controller
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.request_limits import RequestLimits, make_limits
from mcproxy.observe.metrics.metrics import Metrics


class FlowControls:
    """All flow controls, by name."""

    __slots__ = ("_config", "controls")

    def __init__(self, config: Mapping[str, model.FlowControl], controls: Mapping[str, FlowController]) -> None:
        self._config = config
        self.controls = MappingProxyType(controls)  #: controllers by name, without those that have no limit

    @classmethod
    def build(
        cls,
        config: Sequence[model.FlowControl],
        clock: IReactorTime,
        previous: FlowControls | None = None,
        tables: LimitTables | None = None,
        metrics: Metrics | None = None,
    ) -> FlowControls:
        """Make the flow controls of `config`; keep those of `previous` that differ only in their parameters.

        `tables`: the tables in which flow controls count; None: private tables. `metrics` records refusals and waits.
        """
        metrics = Metrics() if metrics is None else metrics
        tables = LimitTables.of_one_process(clock) if tables is None else tables
        live: dict[str, FlowController] = {}
        for item in config:
            old = None if previous is None else previous.controls.get(item.name)
            if old is not None and _counts_alike(old.config, item):
                live[item.name] = old
                continue
            new = make_controller(item, clock, tables, metrics)
            if new is not None:
                live[item.name] = new
        return cls({item.name: item for item in config}, live)

    def activate(self) -> None:
        """Apply the parameters of the configuration. Call this when its Runtime begins to serve.

        New controllers are included: their table, in which several processes count, can still have older parameters.
        """
        for name, control in self.controls.items():
            control.change(self._config[name])

    def per(self, name: str) -> model.Per:
        """Return the `per` of a flow control. Raises KeyError for a name that is not in the configuration."""
        return self._config[name].per

    def limits_for(self, names: Sequence[str], cluster_name: str) -> RequestLimits:
        """Return the limits on requests to a cluster. `names`: the flow control of the policy, then of the cluster.

        A repeated name counts once. Raises KeyError for a name that is not in the configuration.
        """
        limiting = [name for name in dict.fromkeys(names) if self._config[name].type is not FlowControlType.EXEMPT]
        return make_limits([self.controls[name] for name in limiting], cluster_name)


def _counts_alike(one: model.FlowControl, other: model.FlowControl) -> bool:
    """Whether two flow controls count the same requests in the same tables, and differ only in their parameters."""
    return (one.type, one.per, one.shared) == (other.type, other.per, other.shared)
