"""The access log: one line for each request, in JSON or the combined format.

Values that clients choose (path, user agent) are escaped and limited in length, and credentials in the query are
masked. So a client cannot forge a log line, and no line contains a token.

Records are formatted in batches. msgspec encodes JSON in C: a line takes 0.25 µs, and its preparation 0.5 µs. It writes
UTF-8; a batch with non-ASCII characters is encoded again, with these characters escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring_ascii as quote

import msgspec
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.observe.access_line import TEXTS, AccessLine
from mcproxy.observe.batched_log import BatchedLog, OpenLogs
from mcproxy.observe.log_values import LONGEST, Seconds, bounded, masked
from mcproxy.observe.record import AccessRecord
from mcproxy.observe.writer import FileWriter

log = Logger(__name__)

Formatter = Callable[[Sequence[AccessRecord]], bytes]
_COMBINED_UNSAFE = re.compile(r"[^\x20\x21\x23-\x5b\x5d-\x7e]")
CLOSE_TIMEOUT = 2.0
"""Limit of the time to write the queue at the end of the process (seconds)."""
LONGEST_BACKLOG = 8 * 1024 * 1024
"""Limit of the queue for the file (bytes)."""


class AccessLog(BatchedLog[AccessRecord]):
    """One open access log: a `Recorder`."""

    def __init__(
        self,
        clock: IReactorTime,
        config: model.AccessLogConfig,
        *,
        process: str = "",
        successor: Callable[[], BatchedLog[AccessRecord] | None] = lambda: None,
    ) -> None:
        """Open the file. Raises OSError.

        `process` is the name of this process in each line, if several write to the file. `successor` returns the log
        that takes over after `close`, for requests that began before a reload.
        """
        self.config = config
        self._successor = successor
        writer = FileWriter(config.file, alone=not process)
        super().__init__(clock, writer, FORMATTERS[config.format](process), LONGEST_BACKLOG)

    def finished(self, record: AccessRecord) -> None:
        """Write the record of a request. Never blocks and never raises."""
        self.add(record)

    def next_log(self) -> BatchedLog[AccessRecord] | None:
        return self._successor()

    def report_lost(self, lines: int, cause: str) -> None:
        log.warn(
            "the access log has lost lines",
            event="access_log_incomplete",
            path=self.config.file,
            lines=lines,
            cause=cause,
            todo="free space or check the disk; SIGUSR1 reopens the file",
        )

    def report_error(self, cause: str) -> None:
        """Do nothing: failed writes lose their lines at once, which `report_lost` reports."""

    def report_not_reopened(self, cause: str) -> None:
        log.warn(
            "the access log was not reopened; the previous file stays in use",
            event="access_log_not_reopened",
            path=self.config.file,
            cause=cause,
            todo="let the daemon's user create the file (see the create line of logrotate), and send SIGUSR1 again",
        )

    def report_late(self) -> None:
        log.warn(
            "the access log is incomplete",
            event="access_log_incomplete",
            path=self.config.file,
            cause="the file stalls",
            todo="check the disk",
        )


class AccessLogs(OpenLogs[AccessRecord]):
    """Opens access logs and keeps track of them, for SIGUSR1 (reopen) and for the end of the process."""

    def __init__(self, clock: IReactorTime, process: str = "") -> None:
        """`process` is the name of this process in each line; "" in a daemon of one process."""
        super().__init__(CLOSE_TIMEOUT)
        self._clock = clock
        self._process = process

    def open(self, config: model.AccessLogConfig) -> AccessLog:
        """Open an access log; the caller closes it. Raises OSError."""
        opened = AccessLog(self._clock, config, process=self._process, successor=self.newest)
        self.opened(opened)
        return opened


def _rounded(seconds: float) -> float:
    """Round to microseconds. Times below 10 µs become zero, because JSON would write them like 1e-6."""
    return int(seconds * 1e6) / 1e6 if seconds >= 1e-5 else 0.0


def json_formatter(process: str = "") -> Formatter:
    """Return a function that formats records as JSON objects; the man page mcproxy.yaml(5) lists the keys.

    `process` is the name of this process if there are several.
    """
    written_by = process or None
    seconds = Seconds("%Y-%m-%dT%H:%M:%S")
    encode_lines = msgspec.json.Encoder().encode_lines

    def line(record: AccessRecord) -> AccessLine:
        when = record.time + 0.0005
        second = int(when)
        uri, agent, resource, user = record.uri, record.user_agent, record.resource, record.user
        first_byte, upstream, identifier = record.first_byte, record.upstream, record.request_id
        return AccessLine(
            f"{seconds(second)}.{int((when - second) * 1000):03d}Z",
            record.client,
            record.method,
            record.protocol,
            record.server or "-",
            record.cluster or "-",
            record.endpoint or "-",
            (user if len(user) <= LONGEST else bounded(user)) or "-",
            record.reason,
            masked(uri) if "?" in uri or len(uri) > LONGEST else uri,
            record.status,
            record.bytes_in,
            record.bytes_out,
            _rounded(record.total),
            record.upgraded,
            written_by,
            record.groups or None,
            bounded(record.impersonated) if record.impersonated else None,
            record.policy or None,
            record.verb or None,
            (resource if len(resource) <= LONGEST else bounded(resource)) or None,
            (agent if len(agent) <= LONGEST else bounded(agent)) or None,
            (identifier if len(identifier) <= LONGEST else bounded(identifier)) or None,
            record.trace_id or None,
            record.cached,
            record.api_service or None,
            None if first_byte is None else _rounded(first_byte),
            None if upstream is None else _rounded(upstream),
            record.upstream_status or None,
            record.attempts or None,
            record.ingress or None,
            record.rule or None,
            record.service or None,
            (bounded(record.host) if len(record.host) > LONGEST else record.host) or None,
        )

    def format_json(records: Sequence[AccessRecord]) -> bytes:
        lines = [line(record) for record in records]
        try:
            data = encode_lines(lines)
        except UnicodeEncodeError:  # a lone surrogate
            data = b"\xff"
        if data.isascii():
            return data
        for each in lines:
            _escape(each)
        return encode_lines(lines)

    return format_json


def _escape(line: AccessLine) -> None:
    """Escape the non-ASCII characters of a line."""
    for name in TEXTS:
        value = getattr(line, name)
        if value is not None and not value.isascii():
            setattr(line, name, msgspec.Raw(quote(value)))


def combined_formatter(process: str = "") -> Formatter:
    """Return a function that formats records in the combined format of Apache and nginx, with further fields.

    These are server (or ingress), cluster, endpoint, reason, total time and endpoint time in seconds, Audit-ID and,
    with several processes, the name `process` of this process. Tools for the combined format ignore these fields.
    """
    written_by = f" {process}" if process else ""
    seconds = Seconds("%d/%b/%Y:%H:%M:%S +0000")

    def escape(text: str) -> str:
        return _COMBINED_UNSAFE.sub(
            lambda match: "".join(f"\\x{byte:02x}" for byte in match[0].encode("utf-8", "replace")), text
        )

    def line(record: AccessRecord) -> str:
        agent = escape(bounded(record.user_agent)) or "-"
        uri = escape(masked(record.uri))
        user = escape(bounded(record.user)).replace(" ", "\\x20") or "-"
        request_id = escape(bounded(record.request_id)).replace(" ", "\\x20") or "-"
        upstream = "-" if record.upstream is None else f"{record.upstream:.3f}"
        return (
            f"{escape(record.client)} - {user} [{seconds(int(record.time))}] "
            f'"{escape(record.method)} {uri} {record.protocol}" {record.status} {record.bytes_out} "-" "{agent}" '
            f"{record.server or record.ingress or '-'} {record.cluster or '-'} {record.endpoint or '-'} "
            f"{record.reason} "
            f"{record.total:.3f} {upstream} {request_id}{written_by}\n"
        )

    def format_combined(records: Sequence[AccessRecord]) -> bytes:
        return "".join([line(record) for record in records]).encode("ascii")

    return format_combined


FORMATTERS: dict[str, Callable[[str], Formatter]] = {"json": json_formatter, "combined": combined_formatter}
"""Formatters by `logging.access.format`; the argument is the process name, "" in a daemon of one process."""
