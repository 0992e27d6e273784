"""Collects the status document and the metrics of the whole daemon; keeps the rates of the last minutes for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from mcproxy.config.model import Config
from mcproxy.daemon.service_interface import Service
from mcproxy.daemon.status.history import History
from mcproxy.daemon.status.recent_rates import Recent
from mcproxy.daemon.status.status_document import Counted, StatusDocument, only_process
from mcproxy.net.wall_time import wall_clock
from mcproxy.observe.metrics.families import FINE_BOUNDS


class DaemonStatus:
    """The status of a daemon; `start` is called when it serves."""

    def __init__(
        self, reactor: Any, service: Service, state: Callable[[], dict[str, Any]], config: Callable[[], Config]
    ) -> None:
        """`state` returns the members of the document that the daemon itself knows, `config` what is in force."""
        self._reactor = reactor
        self._service = service
        self._state = state
        self._config = config
        self._document = StatusDocument(wall_clock(reactor))
        self._history = History(reactor, lambda: service.metrics.totals(), FINE_BOUNDS)
        self._recent = Recent(reactor, lambda: service.metrics.totals(), lambda: service.metrics.breakdown())

    def start(self) -> None:
        """Take samples from now on."""
        self._history.start()
        self._recent.start()

    def stop(self) -> None:
        self._history.stop()
        self._recent.stop()

    async def collect(self) -> dict[str, Any]:
        """Return the status document (`daemon.status`)."""
        counting = Deferred.fromCoroutine(self._service.collect_metrics())  # both query all processes, at the same time
        figures = await self._service.collect_figures()
        metrics = await counting
        state, config = self._state(), self._config()  # read now: the figures bring the counts up to date
        if "processes" not in figures:
            used = figures.pop("process", {})
            figures["processes"] = [only_process(used, state["uptimeSeconds"], state["open"])]
        return {
            **state,
            **self._document.of_configuration(config),
            **self._document.complete(config, figures, Counted.of(metrics, self._recent.now())),
            "totals": {key: value for key, value in metrics.totals().items() if key != "refusals"}
            | {"durationBounds": FINE_BOUNDS},
            "history": self._history.figures(),
        }

    async def metrics_text(self, openmetrics: bool) -> list[bytes]:
        """Return the text of the metrics, in pieces."""
        from mcproxy.observe.metrics.exposition import metrics_text

        metrics = await self._service.collect_metrics()
        return await metrics_text(self._reactor, metrics, await self.collect(), openmetrics=openmetrics)
