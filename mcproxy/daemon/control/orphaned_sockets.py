"""Listening sockets of processes whose supervisor has died, which the next daemon takes over.

Such a process (`processes.orphan`) continues to accept, so the next daemon finds its addresses in use. The next daemon
then announces in the status of its control socket that it wants sockets, and the orphans, which poll it, send their
descriptors: no client is refused, and no queued connection is lost when they close theirs.

    {"command": "orphan", "addresses": ["127.0.0.1:443"]}      and the descriptors by SCM_RIGHTS with this line
"""

from __future__ import annotations

import array
import contextlib
import errno
import ipaddress
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from mcproxy.daemon.control.control_socket import is_permitted, peer_uid
from mcproxy.net.bind import BindError, may_be_shared
from mcproxy.net.listening_sockets import HandedOver, duplicates

log = Logger(__name__)

POLL = 0.5
"""Seconds between two polls of the control socket by an orphan."""
_FIRST_WITHIN = 2.5
"""Seconds for the first orphan to send its sockets, if there is one."""
_NEXT_WITHIN = 2 * POLL
"""Seconds after an orphan's sockets for those of the next."""
_STEP = 0.1
_MAX_AT_ONCE = 200
"""Descriptors of one message; Linux allows 253."""
_SEND_TIMEOUT = 5.0


class OrphanedSockets:
    """The next daemon's side."""

    def __init__(self, reactor: Any, handed_over: HandedOver) -> None:
        """`handed_over` gets the sockets."""
        self._reactor = reactor
        self._handed_over = handed_over
        self._known: set[int] = set()
        self._came = False
        self.wanted = False
        """Whether orphans are to send theirs now."""

    async def collect(self, error: BindError) -> bool:
        """Wait for the sockets of orphans if they may be why an address is in use; return whether any came."""
        if not error.in_use or not may_be_shared(error.bind):
            return False
        log.info(
            "waiting for the sockets of processes whose supervisor has died",
            event="orphan_sockets_awaited",
            cause=str(error),
        )
        self.wanted = True
        try:
            until = self._reactor.seconds() + _FIRST_WITHIN
            while self._reactor.seconds() < until:
                await deferLater(self._reactor, _STEP)
                if self._came:
                    self._came = False
                    until = self._reactor.seconds() + _NEXT_WITHIN
        finally:
            self.wanted = False
        return bool(self._known)

    def offered(self, addresses: Sequence[str], descriptors: list[int]) -> bool:
        """An orphan has sent its sockets, which are this object's from now on; return whether it uses them."""
        if not self.wanted or len(addresses) != len(descriptors):
            for descriptor in descriptors:
                os.close(descriptor)
            return False
        self._came = True
        for address, descriptor in zip(addresses, descriptors, strict=True):
            sock = _listening_socket(address, descriptor)
            if sock is None:
                log.warn(
                    "a process offered a socket that does not listen on its address",
                    event="orphan_socket_refused",
                    address=address,
                )
            elif (inode := os.fstat(sock.fileno()).st_ino) in self._known:
                sock.close()  # a unix socket, which several processes share
            else:
                self._known.add(inode)
                self._handed_over.add(address, sock)
        return True


def _listening_socket(address: str, descriptor: int) -> socket.socket | None:
    """Return the socket of a descriptor if it listens on `address`, else close it."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return None
    with contextlib.suppress(OSError):
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and _listens_on(sock, address):
            sock.set_inheritable(False)
            sock.setblocking(False)
            return sock
    sock.close()
    return None


def _listens_on(sock: socket.socket, address: str) -> bool:
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return address == f"unix:{name}"
    host, _, port = address.rpartition(":")
    try:
        same_host = ipaddress.ip_address(host.strip("[]")) == ipaddress.ip_address(name[0])
    except ValueError:
        same_host = True  # a name
    return sock.family in (socket.AF_INET, socket.AF_INET6) and same_host and port in ("0", str(name[1]))


def offer(
    reactor: Any,
    path: str,
    listening: Sequence[tuple[str, int]],
    uid_of: Callable[[socket.socket], int] = peer_uid,
) -> Deferred[bool]:
    """An orphan's side: send addresses and descriptors to the daemon at the control socket `path`.

    Returns whether it uses them; errbacks with OSError if it cannot be asked, or is another user's.
    """
    copies = duplicates(descriptor for _, descriptor in listening)
    own = [(address, copy) for (address, _), copy in zip(listening, copies, strict=True)]

    def send() -> bool:
        try:
            groups = [own[start : start + _MAX_AT_ONCE] for start in range(0, len(own), _MAX_AT_ONCE)]
            return all(_send(path, group, uid_of) for group in groups)
        finally:
            for _, descriptor in own:
                os.close(descriptor)

    return deferToThreadPool(reactor, reactor.getThreadPool(), send)


def _send(path: str, listening: Sequence[tuple[str, int]], uid_of: Callable[[socket.socket], int]) -> bool:
    request = {"command": "orphan", "addresses": [address for address, _ in listening]}
    rights = array.array("i", [descriptor for _, descriptor in listening])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SEND_TIMEOUT)
        connection.connect(path)
        uid = uid_of(connection)  # for each connection: the path may be another process's by now
        if not is_permitted(uid, os.geteuid()):
            raise PermissionError(errno.EPERM, f"a process of user {uid} listens there", path)
        line = json.dumps(request).encode() + b"\n"
        sent = connection.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        connection.sendall(line[sent:])
        with connection.makefile("rb") as answers:
            answer = json.loads(answers.readline() or b"{}")
    return isinstance(answer, dict) and answer.get("ok") is True
