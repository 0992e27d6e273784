"""HTTP clients of Python, each made to speak one version, behind one small interface."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import niquests

__all__ = ["CLIENTS", "Client", "Got", "open_client"]

CLIENTS = ("httpx-1", "httpx-2", "niquests-1", "niquests-2")
"""Each with the version that it speaks."""
TIMEOUT = 60.0
AT_ONCE = 20
LEFT_OUT = ("audit-id", "date", "transfer-encoding", "connection", "content-length")
"""Headers that differ each time, or are about framing."""


@dataclass(frozen=True)
class Got:
    """A response; the names of headers are in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


class Client:
    """Requests to the API as one user. `versions` are those of the responses so far."""

    def __init__(self) -> None:
        self.versions: set[str] = set()

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Got:
        raise NotImplementedError

    def lines(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """Yield the lines of a response as they come; the generator's end closes it."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def many(self, paths: list[str]) -> list[bytes]:
        """Return the bodies of GETs, many of them at a time."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(lambda path: self.ask("GET", path).body, paths))

    def _got(self, version: str, status: int, headers: Any, body: bytes) -> Got:
        self.versions.add(version)
        fields = {name.lower(): value for name, value in headers.items()}
        if body and "content-length" in fields:
            assert int(fields["content-length"]) == len(body)
        return Got(status, tuple(sorted(each for each in fields.items() if each[0] not in LEFT_OUT)), body)


class _Httpx(Client):
    """With HTTP/2 on one connection."""

    def __init__(self, base: str, token: str, ca: Path, *, http2: bool) -> None:
        super().__init__()
        self._options: dict[str, Any] = {
            "base_url": base,
            "headers": {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
            "verify": ssl.create_default_context(cafile=str(ca)),
            "http2": http2,
            "timeout": TIMEOUT,
            "limits": httpx.Limits(max_connections=1 if http2 else AT_ONCE),
        }
        self._client = httpx.Client(**self._options)

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Got:
        with self._client.stream(method, path, headers=dict(headers or {}), content=body or None) as response:
            version = response.http_version.removeprefix("HTTP/")[0]
            return self._got(version, response.status_code, response.headers, b"".join(response.iter_raw()))

    def lines(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[bytes]:
        with self._client.stream("GET", path, headers=dict(headers or {})) as response:
            self.versions.add(response.http_version.removeprefix("HTTP/")[0])
            yield from _lines(response.iter_raw())

    def many(self, paths: list[str]) -> list[bytes]:
        """Threads would send HEADERS of one HTTP/2 connection out of order (httpcore 1.0)."""

        async def all_at_once() -> list[httpx.Response]:
            async with httpx.AsyncClient(**self._options) as client:
                return await asyncio.gather(*(client.get(path) for path in paths))

        found = asyncio.run(all_at_once())
        return [self._got(each.http_version[5], each.status_code, each.headers, each.content).body for each in found]

    def close(self) -> None:
        self._client.close()


class _Niquests(Client):
    def __init__(self, base: str, token: str, ca: Path, *, http2: bool) -> None:
        super().__init__()
        self._base = base
        self._client = niquests.Session(disable_http1=http2, disable_http2=not http2, disable_http3=True)
        self._client.trust_env = False  # the environment may name another CA
        self._client.verify = str(ca)
        self._client.headers.update({"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"})

    def _ask(self, method: str, path: str, headers: Mapping[str, str] | None, body: bytes) -> niquests.Response:
        return self._client.request(
            method, self._base + path, headers=dict(headers or {}), data=body or None, stream=True, timeout=TIMEOUT
        )

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Got:
        with closing(self._ask(method, path, headers, body)) as response:
            content = b"".join(response.iter_raw(1 << 16))
            return self._got(str(response.http_version)[0], response.status_code or 0, response.headers, content)

    def lines(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[bytes]:
        with closing(self._ask("GET", path, headers, b"")) as response:
            self.versions.add(str(response.http_version)[0])
            yield from _lines(response.iter_raw(-1))  # as it comes

    def close(self) -> None:
        self._client.close()


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without their ends (the clients' own iter_lines are quadratic in a line's length)."""
    begun: list[bytes] = []
    for part in parts:
        *ended, rest = part.split(b"\n")
        for line in ended:
            yield b"".join([*begun, line])
            begun.clear()
        begun.append(rest)


def open_client(name: str, base: str, token: str, ca: Path) -> Client:
    """Open one of CLIENTS to a listener that offers both versions; `base` is an URL without a slash at its end."""
    library, version = name.split("-")
    kind = _Httpx if library == "httpx" else _Niquests
    return kind(base, token, ca, http2=version == "2")
