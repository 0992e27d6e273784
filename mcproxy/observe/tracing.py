"""Configures tracing, which OpenTelemetry's standard environment variables enable (with the extra `otel`).

Without these variables OpenTelemetry is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from mcproxy.extras import INSTALL_EXTRAS
from mcproxy.log_once import LogOnce

if TYPE_CHECKING:
    from mcproxy.observe.spans import Spans

log = Logger(__name__)

_RUN_COLLECTOR = "see that the collector runs and accepts OTLP over HTTP at this endpoint"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_USER_INFO = re.compile(r"//[^/?#]*@")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def configured(environ: Mapping[str, str]) -> bool:
    """Whether the environment enables spans: it names a collector and does not disable tracing."""
    return (
        any(environ.get(name) for name in _ENDPOINTS)
        and environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
        and environ.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp"
    )


class TracingUnavailable(Exception):
    """Spans cannot be exported, with `cause` and remedy."""

    def __init__(self, cause: str, todo: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.todo = todo


def endpoint_of(environ: Mapping[str, str]) -> str:
    """Return the URL of the collector for messages, without user and password."""
    return _USER_INFO.sub("//***@", next(environ[name] for name in _ENDPOINTS if environ.get(name)))


def start(reactor: Any, environ: Mapping[str, str], process: str = "") -> Spans | None:
    """Start tracing if the environment enables it; log an error that prevents it."""
    if not configured(environ):
        return None
    endpoint = endpoint_of(environ)
    try:
        with _check_environment(environ):
            from mcproxy.observe.spans import Spans

            spans = Spans(environ, process, _ExportLog(reactor, endpoint))
    except TracingUnavailable as error:
        log.warn("requests are not traced", event="tracing_unavailable", cause=error.cause, todo=error.todo)
        return None
    log.info("requests are traced", event="tracing_started", endpoint=endpoint)
    return spans


def try_collector(environ: Mapping[str, str]) -> None:
    """Export an empty list of spans, to which the collector responds as to spans.

    Blocks for up to 10 s. Raises TracingUnavailable.
    """
    causes: list[str] = []
    with _check_environment(environ):
        from mcproxy.observe.spans import export_nothing

        if not export_nothing(environ, causes.append):
            raise TracingUnavailable(causes[-1] if causes else "the export failed", _RUN_COLLECTOR)


@contextmanager
def _check_environment(environ: Mapping[str, str]) -> Iterator[None]:
    """Raise TracingUnavailable for an invalid environment or a missing SDK."""
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        raise TracingUnavailable(
            f"the protocol {protocol} is not supported",
            "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, and the collector's port for that, 4318",
        )
    try:
        yield
    except ImportError as error:
        todo = f"{INSTALL_EXTRAS}; or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        raise TracingUnavailable(f"OpenTelemetry is not installed: {error}", todo) from None
    except ValueError as error:
        raise TracingUnavailable(str(error), "correct the environment variables that begin with OTEL_") from None


class _ExportLog:
    """Logs why spans are not exported, at most once a minute."""

    def __init__(self, reactor: Any, endpoint: str) -> None:
        self._reactor = reactor
        self._endpoint = endpoint
        self._once = LogOnce()

    def __call__(self, cause: str) -> None:
        """Log the reason; called in the exporter's thread."""
        self._reactor.callFromThread(self._log, cause)

    def _log(self, cause: str) -> None:
        if not self._once.allows(now=self._reactor.seconds()):
            return
        log.warn(
            "spans are not exported, and are lost",
            event="spans_not_exported",
            endpoint=self._endpoint,
            cause=cause,
            todo=_RUN_COLLECTOR,
        )
