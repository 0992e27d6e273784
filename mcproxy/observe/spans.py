"""Spans for OpenTelemetry, exported by OTLP over HTTP.

This module imports the SDK (the extra `otel`), so it is imported only if `tracing.configured`. The SDK's processor has
a limited queue and a thread, so requests never wait for a collector. The SDK's environment variables configure
destination and sampling.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any

import requests
from cryptography.hazmat.primitives.serialization import Encoding
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from requests.adapters import HTTPAdapter

from mcproxy import __version__
from mcproxy.certificate_blocks import load_certificates, one_of_each_name

_CERTIFICATE_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE")
Attributes = Mapping[str, str | int | bool]
_CLOSE_TIMEOUT = 2.0  # limit of the time to export queued spans at the end of the process (seconds)


class Spans:
    """The server spans of one process."""

    def __init__(self, environ: Mapping[str, str], process: str, complain: Callable[[str], None]) -> None:
        """Start exporting, as the SDK's variables configure.

        Raises ValueError for an invalid variable. `process` is the name of this process if there are several.
        `complain` is called, in any thread, with the reason why spans are not exported.
        """
        _SDKLogHandler.take(complain)
        attributes = {"service.version": __version__}
        if "OTEL_SERVICE_NAME" not in environ and "service.name=" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
            attributes["service.name"] = "mcproxy"
        if process:
            attributes["mcproxy.process"] = process
        exporter = OTLPSpanExporter(session=session_to_collector(environ))
        self._provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("mcproxy", __version__)

    def start(
        self, name: str, when: float, parent: tuple[bytes, bytes, int, bytes] | None, attributes: Attributes
    ) -> Span:
        """Return a new span of a request that arrived at `when` (seconds since the epoch).

        `parent` is the client's trace context: trace id and span id in hexadecimal, flags, trace state.
        """
        context = Context()
        if parent is not None:
            trace_id, span_id, flags, state = parent
            known = SpanContext(
                int(trace_id, 16),
                int(span_id, 16),
                is_remote=True,
                trace_flags=TraceFlags(flags & 0xFF),
                trace_state=TraceState.from_header([state.decode("ascii")]) if state else None,
            )
            context = set_span_in_context(NonRecordingSpan(known), context)
        return self._tracer.start_span(
            name, context, SpanKind.SERVER, attributes, start_time=int(when * 1e9), record_exception=False
        )

    def end(self, span: Span, when: float, attributes: Attributes, *, failed: bool) -> None:
        """End a span; `failed` is whether the proxy or the cluster, not the client, caused a failure."""
        if span.is_recording():
            span.set_attributes(attributes)
            if failed:
                span.set_status(Status(StatusCode.ERROR))
            span.end(end_time=int(when * 1e9))

    def close(self) -> None:
        """Export queued spans, within two seconds."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT)


def export_nothing(environ: Mapping[str, str], complain: Callable[[str], None]) -> bool:
    """Send a request without spans, as the SDK's variables configure; return whether the collector accepted it.

    Otherwise `complain` gets the reason. Raises ValueError as `Spans` does.
    """
    _SDKLogHandler.take(complain)
    exporter = OTLPSpanExporter(session=session_to_collector(environ))
    try:
        return exporter.export(()) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()


def header_of(span: Span) -> bytes:
    """Return the trace context of a span as header fields."""
    context = span.get_span_context()
    block = b"Traceparent: 00-%032x-%016x-%02x\r\n" % (context.trace_id, context.span_id, context.trace_flags)
    state = context.trace_state.to_header()
    return block + b"Tracestate: %b\r\n" % state.encode("ascii") if state else block


def trace_id_of(span: Span) -> str:
    """Return the id of a span's trace in hexadecimal; "" if it is not sampled."""
    context = span.get_span_context()
    return f"{context.trace_id:032x}" if context.trace_flags.sampled else ""


class _SDKLogHandler(logging.Handler):
    """Handles the log records of the SDK, which would go to stderr with tracebacks.

    Records of the API are about input of clients, such as an invalid `tracestate`. They are ignored, so that clients
    cannot cause a line about lost spans, or use up the one line per minute.
    """

    def __init__(self, complain: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._complain = complain

    @classmethod
    def take(cls, complain: Callable[[str], None]) -> None:
        """Start passing the SDK's warnings to `complain`."""
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False
        logger.handlers = [cls(complain)]

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(("opentelemetry.sdk.", "opentelemetry.exporter.")):
            self._complain(record.getMessage())


def session_to_collector(environ: Mapping[str, str]) -> requests.Session | None:
    """Return a session with the certificate authorities that the SDK's variables name; None if they name none.

    If the file has no authorities, raises ValueError with the file and the reason.
    """
    file = next((environ[name] for name in _CERTIFICATE_VARIABLES if environ.get(name)), None)
    if file is None:
        return None
    try:
        with open(file, "rb") as bundle:
            choices = one_of_each_name(load_certificates(bundle.read()))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    session = requests.Session()
    pems = ["".join(one.public_bytes(Encoding.PEM).decode() for one in choice) for choice in choices]
    session.mount("https://", _AnyOf([_Anchored(pem) for pem in pems]))
    return session


class _Anchored(HTTPAdapter):
    """Trusts only the certificates of a PEM text, each as a trust anchor."""

    def __init__(self, pem: str) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        self._context.load_verify_locations(cadata=pem)
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._context, **options)

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        super().cert_verify(conn, url, verify, cert)
        conn.ca_certs = conn.ca_cert_dir = None  # else the CA bundle of requests would also be trusted


class _AnyOf(HTTPAdapter):
    """Uses the first of several adapters that can verify the collector. Requests are sent only after verification."""

    def __init__(self, adapters: list[_Anchored]) -> None:
        super().__init__()
        self._adapters = adapters

    def send(self, *args: Any, **options: Any) -> requests.Response:
        """Send one request. Raises as `HTTPAdapter.send` does."""
        options["verify"] = True
        for _ in self._adapters[1:]:
            try:
                return self._adapters[0].send(*args, **options)
            except requests.exceptions.SSLError:
                self._adapters.append(self._adapters.pop(0))
        return self._adapters[0].send(*args, **options)

    def close(self) -> None:
        """Close the connections."""
        for adapter in self._adapters:
            adapter.close()
