"""Configures tracing: OpenTelemetry's standard environment variables enable it if the extra `otel` is installed.

Without these variables OpenTelemetry is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from mcproxy.extras import INSTALL_EXTRAS

if TYPE_CHECKING:
    from mcproxy.observe.spans import Spans

log = Logger(__name__)

COMPLAIN_EVERY = 60.0
"""Seconds between two lines about spans that are not exported."""
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_USER_INFO = re.compile(r"//[^/?#]*@")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def configured(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for spans: it names a collector, and does not switch them off."""
    return (
        any(environ.get(name) for name in _ENDPOINTS)
        and environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
        and environ.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp"
    )


def start(reactor: Any, environ: Mapping[str, str], process: str = "") -> Spans | None:
    """Start tracing if the environment asks for it; what stands in the way is one line of the log."""
    if not configured(environ):
        return None
    endpoint = _USER_INFO.sub("//***@", next(environ[name] for name in _ENDPOINTS if environ.get(name)))
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        log.warn(
            "requests are not traced",
            event="tracing_unavailable",
            cause=f"the protocol {protocol} is not supported",
            todo="set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, and the collector's port for that, 4318",
        )
        return None
    try:
        from mcproxy.observe.spans import Spans

        spans = Spans(environ, process, _Complaints(reactor, endpoint))
    except ImportError as error:
        log.warn(
            "requests are not traced",
            event="tracing_unavailable",
            cause=f"OpenTelemetry is not installed: {error}",
            todo=f"{INSTALL_EXTRAS}; or unset OTEL_EXPORTER_OTLP_ENDPOINT",
        )
        return None
    except ValueError as error:
        log.warn(
            "requests are not traced",
            event="tracing_unavailable",
            cause=str(error),
            todo="correct the environment variables that begin with OTEL_",
        )
        return None
    log.info("requests are traced", event="tracing_started", endpoint=endpoint)
    return spans


class _Complaints:
    """Logs why spans are not exported, at most once in a minute."""

    def __init__(self, reactor: Any, endpoint: str) -> None:
        self._reactor = reactor
        self._endpoint = endpoint
        self._next = 0.0

    def __call__(self, cause: str) -> None:
        """Called in the exporter's thread."""
        self._reactor.callFromThread(self._log, cause)

    def _log(self, cause: str) -> None:
        now = self._reactor.seconds()
        if now < self._next:
            return
        self._next = now + COMPLAIN_EVERY
        log.warn(
            "spans are not exported, and are lost",
            event="spans_not_exported",
            endpoint=self._endpoint,
            cause=cause,
            todo="see that the collector runs and accepts OTLP over HTTP at this endpoint",
        )
