"""Translates HTTP/2 fields to an HTTP/1.1 request head, and the bytes of an HTTP/1.1 response to fields and content."""

from __future__ import annotations

import re
from collections.abc import Iterable

import httptools

__all__ = ["MalformedError", "RequestHead", "ResponseReader"]

Field = tuple[bytes, bytes]
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OF_HTTP1 = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})


class MalformedError(ValueError):
    """A message that cannot be translated; the text has the reason."""


class RequestHead:
    """The head of a request, whose fields the `h2` package has checked."""

    def __init__(self, fields: Iterable[Field], *, end_stream: bool) -> None:
        """Raise MalformedError for fields that would not give one request line."""
        pseudo: dict[bytes, bytes] = {}
        lines: list[bytes] = []
        host, length = b"", False
        for name, value in fields:
            if name.startswith(b":"):
                pseudo[name] = value
            elif name == b"host":
                host = value
            else:
                length = length or name == b"content-length"
                lines.append(name + b": " + value)
        self.method = pseudo.get(b":method", b"")
        self.target = pseudo.get(b":path", b"")
        if not _METHOD.fullmatch(self.method) or not _TARGET.fullmatch(self.target):
            raise MalformedError("a method or path that is none")
        self.chunked = not end_stream and not length
        """Whether the content is to be framed as chunks, since its length is not announced."""
        if self.chunked:
            lines.append(b"transfer-encoding: chunked")
        first = self.method + b" " + self.target + b" HTTP/1.1"
        self.data = b"\r\n".join([first, b"host: " + pseudo.get(b":authority", host), *lines, b"", b""])


class ResponseReader:
    """Reads one response and the interim ones before it.

    The result is in `heads`, `content` and `complete`; the caller removes it from there.
    """

    def __init__(self, *, head_only: bool) -> None:
        self.heads: list[tuple[int, list[Field]]] = []
        self.content: list[bytes] = []
        self.complete = False
        self.until_close = False
        """Whether the content ends with the connection."""
        self._head_only = head_only
        self._fields: list[Field] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Raise MalformedError for bytes that are no response; bytes after a complete response are ignored."""
        if self.complete:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.complete:
                raise MalformedError(str(error)) from None

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        names = {name for name, _ in self._fields}
        self.heads.append((status, [field for field in self._fields if field[0] not in _OF_HTTP1]))
        self._fields = []
        if status == 101:
            raise ValueError("HTTP/2 has no upgrades")
        if status >= 200:
            self.complete = self._head_only
            self.until_close = status not in (204, 304) and not names & {b"content-length", b"transfer-encoding"}

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self.content.append(data)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self.complete = True
