"""systemd as a daemon sees it: it passes sockets, hears notifications of the main process, and wants the watchdog fed.

As with `NotifyAccess=main`, what another process says is ignored; `MAINPID=` names the next one (sd_notify(3)).
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.workers.site import WorkersDaemon

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Notification:
    """One datagram of the main process."""

    at: float
    pid: int
    fields: dict[str, str]


class FakeSystemd:
    """Starts one daemon. A context manager."""

    def __init__(self, directory: Path, *, watchdog: float = 10.0) -> None:
        """`watchdog`: seconds."""
        self.heard: list[Notification] = []
        self.ignored: list[Notification] = []
        self.main = 0
        self.watchdog = watchdog
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        self.environ = {"NOTIFY_SOCKET": str(directory / "notify"), "WATCHDOG_USEC": str(int(watchdog * 1e6))}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(directory / "notify"))
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def start(self, daemon: WorkersDaemon) -> None:
        """Start the daemon with the socket `api`; it listens where it says `systemd:api`."""
        hand_over = (
            f"import os, sys; os.dup2({self.listening.fileno()}, 3); pid = str(os.getpid()); "
            "os.environ.update(LISTEN_PID=pid, LISTEN_FDS='1', LISTEN_FDNAMES='api', WATCHDOG_PID=pid); "
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        self._thread.start()
        daemon.spawn([sys.executable, "-c", hand_over, *daemon.command], pass_fds=(self.listening.fileno(),))
        self.main = daemon.process.pid

    def said(self, name: str, value: str = "1") -> list[Notification]:
        """What the main process said, oldest first."""
        return [each for each in list(self.heard) if each.fields.get(name) == value]

    def longest_silence(self) -> float:
        """The longest time, until now, in which the watchdog was not fed once it had been, in seconds."""
        times = [each.at for each in self.said("WATCHDOG")] + [time.monotonic()]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def _listen(self) -> None:
        while True:
            data, ancillary, _, _ = self._socket.recvmsg(65536, socket.CMSG_SPACE(_CREDENTIALS.size))
            if not data:
                return
            pid = _CREDENTIALS.unpack(ancillary[0][2][: _CREDENTIALS.size])[0] if ancillary else 0
            fields = dict(line.split("=", 1) for line in data.decode().splitlines() if "=" in line)
            notification = Notification(time.monotonic(), pid, fields)
            if pid != self.main:
                self.ignored.append(notification)
                continue
            self.heard.append(notification)
            if "MAINPID" in fields:
                self.main = int(fields["MAINPID"])

    def __enter__(self) -> FakeSystemd:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"", self.environ["NOTIFY_SOCKET"])
            self._thread.join(10)
        self._socket.close()
        self.listening.close()
        os.unlink(self.environ["NOTIFY_SOCKET"])
