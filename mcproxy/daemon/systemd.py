"""What systemd hands to a daemon and wants to hear from it: sockets (sd_listen_fds) and notifications (sd_notify).

Both protocols are a few lines (systemd's man pages sd_listen_fds(3), sd_notify(3)), so there is no dependency. Their
environment variables are taken out of the environment, so that exec plugins don't inherit them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, MutableMapping

from twisted.logger import Logger

from mcproxy.daemon.errors import DaemonError

log = Logger()

FIRST_DESCRIPTOR = 3


def take_sockets(
    environ: MutableMapping[str, str], *, pid: int, first: int = FIRST_DESCRIPTOR
) -> dict[str, socket.socket]:
    """Return the sockets handed over by systemd, by FileDescriptorName, and remove the variables from `environ`.

    `first` is the first descriptor (3 by the protocol; tests cannot have it). Raises DaemonError for what is of no use.
    """
    count, names, owner = (environ.pop(f"LISTEN_{name}", "") for name in ("FDS", "FDNAMES", "PID"))
    if not count or owner != str(pid):
        return {}
    taken: dict[str, socket.socket] = {}
    listed = names.split(":") if names else []
    for index in range(int(count)):
        name = listed[index] if index < len(listed) else "unknown"
        taken_socket = _adopt(first + index, name)
        if name in taken:
            raise DaemonError(
                f"systemd handed over two sockets named {name!r}",
                todo="give each socket unit, and each address, its own FileDescriptorName=",
            )
        taken[name] = taken_socket
    return taken


def _adopt(descriptor: int, name: str) -> socket.socket:
    os.set_inheritable(descriptor, False)
    try:
        taken = socket.socket(fileno=descriptor)
        listening = taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise DaemonError(f"descriptor {descriptor} ({name}) from systemd is no socket: {error.strerror}") from error
    if taken.type != socket.SOCK_STREAM or not listening:
        raise DaemonError(
            f"socket {name!r} from systemd is no listening stream socket", todo="use ListenStream= with Accept=no"
        )
    taken.setblocking(False)
    return taken


class Notifier:
    """Tells systemd how the daemon does; does nothing when systemd doesn't listen."""

    def __init__(
        self, address: str, watchdog: float | None = None, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`address` as in NOTIFY_SOCKET, empty for none; `watchdog`: seconds after which systemd takes it for dead."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._clock = clock
        self.watchdog_interval = watchdog / 2 if watchdog and self._address else None
        """Seconds between two calls of `alive`, None when nobody asks for them."""

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str], *, pid: int) -> Notifier:
        """Make one of NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, which are removed."""
        address = environ.pop("NOTIFY_SOCKET", "")
        return cls(address, _watchdog(environ, pid))

    def ready(self, status: str) -> None:
        """The daemon serves; also ends a reload, whatever came of it."""
        self._send(READY="1", STATUS=status)

    def reloading(self) -> None:
        """A reload begins. systemd wants the time in the same datagram (systemd.service(5), Type=notify-reload)."""
        self._send(RELOADING="1", MONOTONIC_USEC=str(self._clock() // 1000), STATUS="reloading")

    def stopping(self, status: str) -> None:
        self._send(STOPPING="1", STATUS=status)

    def alive(self) -> None:
        self._send(WATCHDOG="1")

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
            log.warn("systemd was not told {state}", state=next(iter(variables)), cause=error.strerror)


def _watchdog(environ: MutableMapping[str, str], pid: int) -> float | None:
    microseconds, owner = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    if not microseconds.isdigit() or (owner and owner != str(pid)):
        return None
    return int(microseconds) / 1e6
