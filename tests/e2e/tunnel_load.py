"""Reads through a tunnel in several threads, which note each failure: what "no failed read" is judged by."""

from __future__ import annotations

import http.client
import threading
import time
from types import TracebackType

from tests.e2e.processes import wait_until
from tests.e2e.tunnel_site import TunnelSite


class Reads:
    """A context manager: GETs from its beginning to its end, each on a connection of its own."""

    def __init__(self, site: TunnelSite, *, threads: int = 3, target: str = "/api/v1/namespaces/demo/pods") -> None:
        self._site = site
        self._target = target
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._read, daemon=True) for _ in range(threads)]
        self.succeeded: list[float] = []
        """When each one that succeeded began (`time.monotonic`)."""
        self.failures: list[tuple[float, float, str]] = []
        """When each one that failed began, the seconds that it took, and what it got."""

    def _read(self) -> None:
        while not self._ended.is_set():
            begun = time.monotonic()
            try:
                answer = self._site.ask(self._target)
                got = "" if answer.status == 200 else f"{answer.status} {answer.body[:300]!r}"
            except (OSError, http.client.HTTPException) as error:
                got = f"{type(error).__name__}: {error}"
            if got:
                self.failures.append((begun, time.monotonic() - begun, got))
                self._ended.wait(0.05)
            else:
                self.succeeded.append(begun)

    def goes_on(self, count: int = 20) -> None:
        """Wait for so many more reads that began after now and succeed."""
        now = time.monotonic()
        wait_until(f"{count} reads: {self.failures[-1:]}", lambda: sum(at > now for at in self.succeeded) >= count)

    def resumed_after(self, since: float) -> float:
        """Wait for a read that began after `since`, and after all failures; return the seconds until then."""
        self.goes_on(10)
        last = max((at for at, _, _ in self.failures if at > since), default=since)
        return min(at for at in self.succeeded if at >= last) - since

    def __enter__(self) -> Reads:
        for thread in self._threads:
            thread.start()
        self.goes_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(90)
