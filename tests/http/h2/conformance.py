"""Cases of conformance: what a client sends, and which outcomes RFC 9113 and RFC 7541 allow.

A case is run over a real socket with TLS (`play`), against a server with a trivial handler (`Origin`). Behind each of
its frames a PING is sent: what has not been answered when that is answered, or when the connection is closed, will not
be, since the handler answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.http.h2 import raw
from tests.http.h2.raw import Seen


@dataclass
class Result:
    seen: Seen
    closed: bool
    requests: int  # that reached the handler
    cancelled: int  # of these: told that their client has gone

    def __str__(self) -> str:
        seen = self.seen
        statuses = {stream: seen.status(stream) for stream in seen.heads}
        return f"closed: {self.closed}, GOAWAY: {seen.goaway}, resets: {seen.resets}, statuses: {statuses}"


Outcome = Callable[[Result], bool]


def goaway(*codes: int) -> Outcome:
    """A connection error: GOAWAY with one of these codes, then the connection's end (RFC 9113 5.4.1)."""

    def check(result: Result) -> bool:
        return result.closed and result.seen.goaway in codes

    return check


def reset(stream: int, *codes: int) -> Outcome:
    """A stream error: RST_STREAM with one of these codes, and the connection goes on (RFC 9113 5.4.2)."""

    def check(result: Result) -> bool:
        return not result.closed and result.seen.goaway is None and result.seen.resets.get(stream) in codes

    return check


def error(stream: int, *codes: int) -> tuple[Outcome, Outcome]:
    """A stream error, which may be treated as a connection error of the same code (RFC 9113 5.4.2)."""
    return reset(stream, *codes), goaway(*codes)


def answered(*streams: int, status: int = 200, body: bytes | None = None) -> Outcome:
    """These streams have their whole responses, no other frame is an error."""

    def check(result: Result) -> bool:
        seen = result.seen
        whole = all(seen.status(each) == status and seen.ended(each) for each in streams)
        bodies = body is None or all(seen.body(each) == body for each in streams)
        return whole and bodies and not seen.resets and seen.goaway is None and not result.closed

    return check


def served(stream: int, status: int = 200) -> Outcome:
    """As `answered`, perhaps before the request was complete, and then the rest was refused (RFC 9113 8.1)."""

    def check(result: Result) -> bool:
        seen = result.seen
        resets = seen.resets in ({}, {stream: raw.NO_ERROR})
        return seen.status(stream) == status and seen.ended(stream) and resets and not result.closed

    return check


def ignored(result: Result) -> bool:
    """No error of any kind; the connection goes on."""
    return not result.seen.resets and result.seen.goaway is None and not result.closed


def closed(result: Result) -> bool:
    """The connection is closed, without a GOAWAY: to a peer that may not speak HTTP/2 (RFC 9113 3.4)."""
    return result.closed


@dataclass(frozen=True)
class Case:
    """One case. `sends` is everything behind the client's preface and SETTINGS, in one piece."""

    section: str  # as h2spec numbers them
    title: str
    sends: bytes
    allowed: Outcome | tuple[Outcome, ...]
    requests: int | None = None  # that may reach the handler; None: whatever `allowed` follows from
    preface: bytes = raw.PREFACE + raw.settings()
    check: Callable[[Result], None] | None = field(default=None, compare=False)

    @property
    def id(self) -> str:
        return f"{self.section}: {self.title}"

    def judge(self, result: Result) -> None:
        allowed = self.allowed if isinstance(self.allowed, tuple) else (self.allowed,)
        assert any(outcome(result) for outcome in allowed), str(result)
        if self.requests is not None:
            assert result.requests == self.requests
        if self.check is not None:
            self.check(result)


def case_id(value: Any) -> str | None:
    return value.id if isinstance(value, Case) else None
