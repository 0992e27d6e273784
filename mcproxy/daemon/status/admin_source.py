"""The data of Admin listeners, in the process with the whole daemon's state: the supervisor or a single process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred

from mcproxy.kube.healthz import Check
from mcproxy.kube.status import retry_after

if TYPE_CHECKING:
    from mcproxy.http.exchange import Exchange

_GZIP_FROM = 2048  # bytes; clients request metrics or pages every few seconds, often over a slow network
_SLICE = 16 * 1024  # bytes of a piece, so that one reactor iteration sends little


class AdminTarget(Protocol):
    """The interface of the daemon (`daemon.lifecycle.Daemon`) for Admin listeners."""

    async def collect_status(self) -> dict[str, Any]:
        """Return the status document."""

    async def collect_metrics(self, openmetrics: bool) -> list[bytes]:
        """Return the text of the metrics, in pieces."""

    async def collect_requests(self) -> dict[str, Any]:
        """Return the requests in flight (`proxy.admin.request_list.merged`)."""

    async def collect_checks(self) -> Sequence[Check]:
        """Return the checks that concern the whole daemon."""

    async def effective_configuration(self, form: str) -> str:
        """Return the configuration in force as text, secrets masked, in a form of `config.dump.FORMS`."""


class DaemonAdmin:
    """The source of Admin listeners (`proxy.admin.admin_interface.AdminSource`) in the daemon's main process."""

    def __init__(self) -> None:
        self._daemon: AdminTarget | None = None

    def attach(self, daemon: AdminTarget) -> None:
        """Set the daemon, which is created after the listeners."""
        self._daemon = daemon

    @property
    def _target(self) -> AdminTarget:
        if self._daemon is None:
            raise retry_after(503, "the daemon is starting", 1)
        return self._daemon

    async def status(self) -> dict[str, Any]:
        return await self._target.collect_status()

    async def metrics(self, openmetrics: bool) -> list[bytes]:
        return await self._target.collect_metrics(openmetrics)

    async def requests(self) -> dict[str, Any]:
        return await self._target.collect_requests()

    async def config(self) -> str:
        return await self._target.effective_configuration("yaml")

    async def checks(self) -> Sequence[Check]:
        return await self._target.collect_checks()


def body_sender(reactor: Any) -> Callable[[Exchange, bytes, Iterator[bytes], bool], Any]:
    """Return a function that sends a long body: in slices, under back-pressure, compressed in a thread."""

    def send(exchange: Exchange, fields: bytes, pieces: Iterator[bytes], gzip: bool) -> Any:
        from twisted.internet.threads import deferToThreadPool

        from mcproxy.aggregate.reads.response_body import Pieces, ResponseBody

        def in_thread(function: Callable[[bytes], bytes], data: bytes) -> Deferred[bytes]:
            return deferToThreadPool(reactor, reactor.getThreadPool(), function, data)

        source = (Pieces([piece], len(piece)) for whole in pieces for piece in _sliced(whole))
        return ResponseBody(reactor, exchange, in_thread).send(fields, source, gzip=gzip, gzip_from=_GZIP_FROM)

    return send


def _sliced(data: bytes) -> Iterator[bytes]:
    return (data[start : start + _SLICE] for start in range(0, len(data), _SLICE))
