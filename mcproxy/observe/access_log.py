"""The access log: one line for each request, in JSON or the combined format.

Values that clients choose (path, user agent) are escaped and limited in length, and credentials in the query are
masked. So a client cannot forge a log line, and no line contains a token.

A line in JSON is put together from texts that many requests share, which are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.observe.batched_log import BatchedLog, OpenLogs
from mcproxy.observe.log_values import (
    LONGEST,
    THREE_DIGITS,
    Seconds,
    bounded,
    json_id,
    json_members,
    json_seconds,
    json_string,
    masked,
)
from mcproxy.observe.record import AccessRecord
from mcproxy.observe.writer import FileWriter

log = Logger(__name__)

Formatter = Callable[[AccessRecord], str]
_COMBINED_UNSAFE = re.compile(r"[^\x20\x21\x23-\x5b\x5d-\x7e]")
CLOSE_TIMEOUT = 2.0
"""Limit of the time to write the queue at the end of the process (seconds)."""
_MOST_SHARED: Final = 1024  # texts of one kind
_LONGEST_SHARED: Final = 1024  # characters; a longer text is made for each line
LONGEST_BACKLOG = 8 * 1024 * 1024
"""Limit of the queue for the file (bytes)."""


class AccessLog(BatchedLog):
    """One open access log: a `Recorder`."""

    def __init__(
        self,
        clock: IReactorTime,
        config: model.AccessLogConfig,
        *,
        process: str = "",
        successor: Callable[[], BatchedLog | None] = lambda: None,
    ) -> None:
        """Open the file. Raises OSError.

        `process` is the name of this process in each line, if several write to the file. `successor` returns the log
        that takes over after `close`, for requests that began before a reload.
        """
        self.config = config
        self._successor = successor
        writer = FileWriter(config.file, alone=not process)
        self._line = FORMATTERS[config.format](process)
        super().__init__(clock, writer, LONGEST_BACKLOG)

    def finished(self, record: AccessRecord) -> None:
        """Write the record of a request. Never blocks."""
        self.add(self._line(record))

    def next_log(self) -> BatchedLog | None:
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


class AccessLogs(OpenLogs):
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


class _Shared:
    """Texts of members that have the same values in many records: where a request came from, and where it was sent."""

    __slots__ = ("_names", "_texts")

    def __init__(self, names: str) -> None:
        self._names = names.split()
        self._texts: dict[tuple[object, ...], str] = {}

    def text(self, values: tuple[object, ...]) -> str:
        """Return the members with these values, as `json_members` does."""
        text = self._texts.get(values)
        if text is None:
            text = json_members(self._names, values)
            if len(self._texts) >= _MOST_SHARED:
                self._texts.clear()
            if len(text) < _LONGEST_SHARED:
                self._texts[values] = text
        return text


def json_formatter(process: str = "") -> Formatter:
    """Return a function that formats a record as a JSON object; the man page mcproxy.yaml(5) lists the keys.

    `process` is the name of this process if there are several.
    """
    written_by = json_members(["process"], [process])
    seconds = Seconds("%Y-%m-%dT%H:%M:%S")
    sources = _Shared("client method protocol server cluster endpoint user reason")
    requests = _Shared("groups impersonatedUser policy verb resource userAgent")
    answers = _Shared("cached apiService upstreamStatus attempts ingress rule service host")

    def line(record: AccessRecord) -> str:
        when = record.time + 0.0005
        second = int(when)
        source = sources.text((
            record.client,
            record.method,
            record.protocol,
            record.server or "-",
            record.cluster or "-",
            record.endpoint or "-",
            record.user or "-",
            record.reason,
        ))  # fmt: skip
        request = requests.text((
            record.groups or None,
            record.impersonated,
            record.policy,
            record.verb,
            record.resource,
            record.user_agent,
        ))  # fmt: skip
        answer = answers.text((
            record.cached,
            record.api_service,
            record.upstream_status or None,
            record.attempts or None,
            record.ingress,
            record.rule,
            record.service,
            record.host,
        ))  # fmt: skip
        uri, first_byte, upstream = record.uri, record.first_byte, record.upstream
        uri = json_string(masked(uri) if "?" in uri or len(uri) > LONGEST else uri)
        identifier = f',"requestId":{json_id(record.request_id)}' if record.request_id else ""
        trace = f',"traceId":"{record.trace_id}"' if record.trace_id else ""
        first = "" if first_byte is None else f',"firstByteSeconds":{json_seconds(first_byte)}'
        served = "" if upstream is None else f',"upstreamSeconds":{json_seconds(upstream)}'
        return (
            f'{{"ts":"{seconds.text(second)}.{THREE_DIGITS[int((when - second) * 1000)]}Z"{source},"uri":{uri},'
            f'"status":{record.status},"bytesIn":{record.bytes_in},"bytesOut":{record.bytes_out},'
            f'"totalSeconds":{json_seconds(record.total)},"upgraded":{"true" if record.upgraded else "false"}'
            f"{written_by}{request}{identifier}{trace}{first}{served}{answer}}}\n"
        )

    return line


def combined_formatter(process: str = "") -> Formatter:
    """Return a function that formats a record in the combined format of Apache and nginx, with further fields.

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
            f"{escape(record.client)} - {user} [{seconds.text(int(record.time))}] "
            f'"{escape(record.method)} {uri} {record.protocol}" {record.status} {record.bytes_out} "-" "{agent}" '
            f"{record.server or record.ingress or '-'} {record.cluster or '-'} {record.endpoint or '-'} "
            f"{record.reason} "
            f"{record.total:.3f} {upstream} {request_id}{written_by}\n"
        )

    return line


FORMATTERS: dict[str, Callable[[str], Formatter]] = {"json": json_formatter, "combined": combined_formatter}
"""Formatters by `logging.access.format`; the argument is the process name, "" in a daemon of one process."""
