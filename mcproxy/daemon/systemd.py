"""systemd: notifications of the daemon's state (sd_notify), and the sockets that it passes (sd_listen_fds).

The notification protocol is simple (sd_notify(3)), so no library is used. The variables of both protocols are removed
from the environment, so that exec plugins do not inherit them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, MutableMapping

from twisted.logger import Logger

from mcproxy.net.bind import SystemdSockets

log = Logger(__name__)


def adopt_sockets(environ: MutableMapping[str, str], *, pid: int) -> SystemdSockets:
    """Return the sockets that systemd passed to process `pid`, and remove the variables that describe them."""
    sockets = SystemdSockets.from_environ(environ, pid)
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environ.pop(name, None)
    return sockets


class Notifier:
    """Sends notifications to systemd; does nothing without NOTIFY_SOCKET."""

    def __init__(
        self, address: str, watchdog: float | None = None, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`address` is the value of NOTIFY_SOCKET, or ""; `watchdog` is systemd's watchdog timeout in seconds."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._clock = clock
        self._watchdog = watchdog
        self.watchdog_interval = watchdog / 2 if watchdog and self._address else None
        """Seconds between two calls of `watchdog`; None without a watchdog."""

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str], *, pid: int) -> Notifier:
        """Make a Notifier from NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, which are removed from `environ`."""
        address = environ.pop("NOTIFY_SOCKET", "")
        return cls(address, _watchdog(environ, pid))

    def ready(self, status: str) -> None:
        """Notify that the daemon serves. This also ends a reload, after success or failure."""
        self._send(READY="1", STATUS=status)

    def reloading(self) -> None:
        """Notify of a reload, with the time in the same datagram (systemd.service(5), Type=notify-reload)."""
        self._send(RELOADING="1", MONOTONIC_USEC=str(self._clock() // 1000), STATUS="reloading")

    def stopping(self, status: str, seconds: float = 0.0) -> None:
        """Notify of a shutdown that can take `seconds`; systemd extends TimeoutStopSec to this time."""
        extend = {"EXTEND_TIMEOUT_USEC": str(int(seconds * 1e6))} if seconds else {}
        self._send(STOPPING="1", STATUS=status, **extend)

    def watchdog(self) -> None:
        self._send(WATCHDOG="1")

    def replaced(self, pid: int) -> None:
        """Notify that `pid` is now the main process. Send no later message: systemd would ascribe it to `pid`.

        systemd accepts messages of the main process only (NotifyAccess=main), so `pid` must send its messages after
        this one."""
        self._send(MAINPID=str(pid))
        self._address = ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables from which the replacing program makes its Notifier."""
        if not self._address:
            return {}
        address = "@" + self._address[1:] if self._address.startswith("\0") else self._address
        watchdog = {"WATCHDOG_USEC": str(int(self._watchdog * 1e6))} if self._watchdog else {}
        return {"NOTIFY_SOCKET": address, **watchdog}

    def _send(self, **variables: str) -> None:
        if not self._address:
            return
        text = "\n".join(f"{name}={' '.join(value.split())}" for name, value in variables.items())
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ) as channel:
                channel.sendto(text.encode()[:4096], self._address)
        except OSError as error:
            log.warn(
                "systemd was not notified",
                event="systemd_not_notified",
                state=next(iter(variables)),
                cause=(error.strerror or str(error)).lower(),
            )


def _watchdog(environ: MutableMapping[str, str], pid: int) -> float | None:
    microseconds, owner = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    if not microseconds.isdigit() or (owner and owner != str(pid)):
        return None
    return int(microseconds) / 1e6
