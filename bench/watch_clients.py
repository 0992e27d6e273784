"""Watches of `bench aggregate-watches`: reads many at once, and checks and times what comes.

All events have one length, with the sequence number and the time at the same place, so the events of a chunk are
checked by its size, its first and its last event.

usage: python -P watch_clients.py PORT AUTHORITY WATCHERS STALLED CHANGES PATIENCE

STALLED of the watchers read nothing after the head. Prints one line of JSON when every other one has got CHANGES
events, or after PATIENCE seconds.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PATH = "/api/v1/pods?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"
_NUMBER, _TIME = b'"n":"', b'"t":"'
_READ = 1 << 14  # a TLS record


class Watch:
    """One watch; `number` is that of the last event."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self.connection = connection
        self.number = 0
        self.wrong = 0
        self._rest = b""
        self._length = 0  # of an event
        self._places = 0, 0

    def begin(self) -> None:
        """Ask, and read the head of the response."""
        self.connection.sendall(f"GET {_PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        received = b""
        while b"\r\n\r\n" not in received:
            more = self.connection.recv(_READ)
            if not more:
                raise SystemExit(f"a watch ended at its beginning: {received!r}")
            received += more
        head, _, self._rest = received.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"a watch was refused: {received!r}")

    def read(self, buffer: bytearray, view: memoryview, delays: list[float]) -> None:
        """Read what there is; add the delay of the first event in each chunk."""
        try:
            while True:
                size = self.connection.recv_into(view)
                if not size:
                    raise SystemExit("a watch has ended")
                if not self._is_whole_chunk(buffer, size, delays):
                    self._take(bytes(view[:size]), delays)
                if size < _READ:
                    return
        except ssl.SSLWantReadError:
            pass

    def _is_whole_chunk(self, buffer: bytearray, size: int, delays: list[float]) -> bool:
        """Take a record that is one chunk of what comes next: the usual case, at the least cost."""
        if self._rest or not self._length or buffer[4:6] != b"\r\n":
            return False
        body = size - 8
        number, when = self._places
        count, odd = divmod(body, self._length)
        if odd or int(buffer[:4], 16) != body or int(buffer[6 + number : 15 + number]) != self.number + 1:
            return False
        self.number += count
        delays.append(time.time() - float(buffer[6 + when : 23 + when]))
        return True

    def _take(self, data: bytes, delays: list[float]) -> None:
        data = self._rest + data
        now, place = time.time(), 0
        while (end := data.find(b"\r\n", place, place + 16)) >= 0:
            size = int(data[place:end], 16)
            if len(data) < end + 2 + size + 2:
                break
            self._chunk(data, end + 2, size, now, delays)
            place = end + 2 + size + 2
        self._rest = data[place:]

    def _chunk(self, data: bytes, start: int, size: int, now: float, delays: list[float]) -> None:
        if not self._length:
            self._length = data.index(b"\n", start) + 1 - start
            number, when = data.index(_NUMBER, start), data.index(_TIME, start)
            self._places = number - start + len(_NUMBER), when - start + len(_TIME)
        count, odd = divmod(size, self._length)
        at_number, at_time = self._places
        first = int(data[start + at_number : start + at_number + 9])
        end = start + (count - 1) * self._length + at_number
        last = int(data[end : end + 9])
        if odd or first != self.number + 1 or last != self.number + count:
            self.wrong += 1
        self.number = last
        delays.append(now - float(data[start + at_time : start + at_time + 17]))


def run_delay() -> float:
    """Return the seconds that this process was ready to run but had no core (Linux, `sched-stats.rst`)."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


def main(arguments: Sequence[str]) -> None:
    port, authority, watchers, stalled, changes, patience = arguments
    context = ssl.create_default_context(cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    watches = []
    for _ in range(int(watchers)):
        plain = socket.create_connection(("127.0.0.1", int(port)), timeout=20)
        watch = Watch(context.wrap_socket(plain, server_hostname="localhost"))
        watch.begin()
        watch.connection.setblocking(False)
        watches.append(watch)
    reading = watches[int(stalled) :]
    poll = select.epoll()
    by_number = {watch.connection.fileno(): watch for watch in reading}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    delays: list[float] = []
    total, until = int(changes), time.monotonic() + float(patience)
    finished = 0
    buffer = bytearray(_READ)
    view = memoryview(buffer)
    began, waited = time.process_time(), run_delay()
    while finished < len(reading) and time.monotonic() < until:
        for number, _ in poll.poll(0.5, 4096):
            watch = by_number[number]
            before = watch.number
            watch.read(buffer, view, delays)
            finished += before < total <= watch.number
    delays.sort()
    found = {
        "reading": len(reading),
        "events": sum(watch.number for watch in reading),
        "complete": sum(watch.number == total for watch in reading),
        "wrong": sum(watch.wrong for watch in reading),
        "median": delays[len(delays) // 2] if delays else 0.0,
        "p99": delays[len(delays) * 99 // 100] if delays else 0.0,
        "longest": delays[-1] if delays else 0.0,
        "chunks": len(delays),
        "load": time.process_time() - began,
        "load_waited": run_delay() - waited,
    }
    print(json.dumps(found), flush=True)
    signal.pause()  # the stalled ones stay


if __name__ == "__main__":
    main(sys.argv[1:])
