"""Replacement of the program: the messages between the running daemon (`daemon.upgrade`) and the new one.

The new daemon is started with one end of a socket pair, whose descriptor is in the environment. Messages are those of
`channel`. Another version of the program may be at the other end: fields may be added, none may change.

    old > new   sockets    protocol, addresses, systemd (names); the descriptors of both with it, in this order
    old < new   started    pid, version
    old < new   prepared   addresses: all that it will listen on; answered when the control socket is free
    old < new   serving    answered when the old one retires
    old < new   failed     errors, invalid (the file is wrong); instead of any of the above, and it ends
    old > new   abort      why; it ends at once

If the new one ends before it serves, nothing has changed. If the old one ends meanwhile, the new one continues alone.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from twisted.logger import Logger

from mcproxy import __version__
from mcproxy.daemon.channel import HEAD, MAX_DESCRIPTORS, MAX_MESSAGE, Channel, Message
from mcproxy.daemon.channel_errors import ProcessError, ProcessLost
from mcproxy.daemon.errors import DaemonError
from mcproxy.net.bind import SystemdSockets
from mcproxy.net.listening_sockets import HandedOver

log = Logger(__name__)

VARIABLE = "MCPROXY_HANDOVER"
"""The environment variable with the descriptor of the new daemon's end."""
PROTOCOL = 1
_SOCKETS_TIMEOUT = 10.0
"""Seconds for the first message, which was sent before the program was started."""


class Takeover:
    """The new daemon's end: the sockets that it takes over, and the steps of taking over."""

    def __init__(self, connection: socket.socket, sockets: HandedOver, systemd: SystemdSockets) -> None:
        self.sockets = sockets
        """The listening sockets of the old daemon."""
        self.systemd = systemd
        """All that systemd had passed to it."""
        self._connection = connection
        self._channel: Channel | None = None

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> Takeover | None:
        """Take the sockets of the daemon that started this program to replace it; None if none did.

        Call it before there are threads: this process ends here, and its child continues. So the new daemon is not a
        child of the old one but of systemd, which would not wait at a stop for one that is not its own
        (systemd's service.c, main_pid_alien). Raises DaemonError.
        """
        descriptor = environ.pop(VARIABLE, "")
        if not descriptor:
            return None
        try:
            connection = socket.socket(fileno=int(descriptor))
            connection.set_inheritable(False)
            connection.settimeout(_SOCKETS_TIMEOUT)
            if os.fork():
                os._exit(0)
            _send(connection, "started", pid=os.getpid(), version=__version__)
            fields, descriptors = _receive(connection)
        except (OSError, ValueError) as error:
            raise DaemonError(
                f"the sockets of the daemon that is replaced were not passed: {error}",
                todo=f"unset {VARIABLE}, which only `mcproxy upgrade` sets",
            ) from None
        if fields.get("kind") != "sockets" or fields.get("protocol") != PROTOCOL:
            raise DaemonError(
                "the daemon that is replaced hands over in a way that this version does not know",
                todo="restart mcproxy instead",
            )
        addresses: dict[str, list[socket.socket]] = {}
        for address in fields["addresses"]:
            addresses.setdefault(address, []).append(socket.socket(fileno=descriptors.pop(0)))
        systemd = dict(zip(fields["systemd"], descriptors, strict=True))
        return cls(connection, HandedOver(addresses), SystemdSockets(systemd))

    def begin(self, reactor: Any, abort: Callable[[str], None]) -> None:
        """Let messages go through the reactor from now on. `abort` gets the reason if the old daemon gives up."""

        def aborted(message: Message) -> None:
            abort(message["why"])

        self._connection.setblocking(False)
        self._channel = Channel(reactor, self._connection)
        self._channel.on("abort", aborted)

    def failed(self, errors: Sequence[str], *, invalid: bool = False) -> None:
        """Tell why this daemon does not start, before it ends. `invalid`: the file is wrong."""
        if self._channel is not None:
            self._channel.tell("failed", errors=list(errors), invalid=invalid)
            return
        try:
            _send(self._connection, "failed", errors=list(errors), invalid=invalid)
        except OSError:  # the old daemon has given up or ended
            return

    async def prepared(self, addresses: Sequence[str]) -> None:
        """Everything can serve, on `addresses`. Returns when the control socket is free, if it is the same."""
        await self._ask("prepared", addresses=list(addresses))

    async def serving(self) -> None:
        """This daemon serves. Returns when the old one has told systemd of it and retires. Raises DaemonError."""
        self.sockets.close_rest()
        await self._ask("serving")
        self.sockets.complete()
        assert self._channel is not None
        self._channel.close()

    async def _ask(self, kind: str, **fields: Any) -> None:
        assert self._channel is not None
        try:
            await self._channel.ask(kind, timeout=None, **fields)
        except ProcessLost:
            log.warn(
                "the previous daemon ended during the upgrade; this one continues", event="predecessor_ended", step=kind
            )
        except ProcessError as error:
            raise DaemonError(f"the daemon that was to be replaced failed: {error}", todo="see its log") from error


def _send(connection: socket.socket, kind: str, **fields: Any) -> None:
    body = json.dumps({"kind": kind, **fields}).encode()
    connection.sendall(HEAD.pack(len(body), 0) + body)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one message, blocking, and not a byte more. Raises OSError, ValueError."""
    descriptors: array.array[int] = array.array("i")
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * descriptors.itemsize)

    def exactly(count: int, at_once: int) -> bytes:
        received = b""
        while len(received) < count:
            most = min(at_once, count - len(received))
            data, controls, flags, _ = connection.recvmsg(most, space, socket.MSG_CMSG_CLOEXEC)
            for level, kind, content in controls:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
            if not data or flags & socket.MSG_CTRUNC:
                raise ValueError("it was broken off" if not data else "too many open files")
            received += data
        return received

    # Each byte of the head may have descriptors, and the bytes of one recvmsg(2) may not have those of two sends.
    length, count = HEAD.unpack(exactly(HEAD.size, 1))
    if length > MAX_MESSAGE:
        raise ValueError("it is too long")
    fields = json.loads(exactly(length, MAX_MESSAGE))
    if not isinstance(fields, dict) or len(descriptors) != count:
        raise ValueError("it is not complete")
    return fields, list(descriptors)
