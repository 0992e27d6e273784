"""The processes of a daemon, as the kernel knows them: which there are, which has a connection, what each has open.

Nothing here asks the daemon, so that it holds while a supervisor is stopped or dead. The processes are found by a
variable of their environment, which children inherit, also those of a daemon that an upgrade has started.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

VARIABLE = "MCPROXY_TEST_FAMILY"
CONFIG_PROCESS = b"mcproxy.daemon.config_process"
_ESTABLISHED, _LISTEN = "01", "0A"


class Family:
    """All processes that were started with `environ`, and their descendants."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)
        self.known: set[int] = set()
        """The processes when they were last looked for, which takes milliseconds."""

    @property
    def environ(self) -> dict[str, str]:
        """What the first process needs in its environment."""
        return {VARIABLE: self.mark}

    def pids(self) -> set[int]:
        """Return the living processes: none that has ended and waits for its parent, nor that which reads files."""
        wanted = f"{VARIABLE}={self.mark}".encode()
        found = set()
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):  # it ended, or is somebody else's
                    ours = wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                    if ours and CONFIG_PROCESS not in Path(f"/proc/{entry}/cmdline").read_bytes():
                        found.add(int(entry))
        self.known = found
        return found

    def owner(self, port: int, client_port: int, *, within: float = 2.0) -> int:
        """Return the process that has accepted the connection from 127.0.0.1:`client_port` to `port`.

        It is 0 where none has accepted it `within` so many seconds.
        """
        until = time.monotonic() + within
        while True:
            inode = _inode(port, client_port)
            if inode:
                for pid in itertools.chain(tuple(self.known), self._unknown()):
                    if inode in socket_inodes(pid):
                        return pid
            if time.monotonic() > until:
                return 0
            time.sleep(0.002)

    def _unknown(self) -> Iterator[int]:
        """Look for the processes again; give those that are new."""
        known = self.known
        yield from self.pids() - known

    def connections(self, port: int) -> dict[tuple[str, int], int]:
        """Return the accepted connections to `port`: the client's address and port to the process that has it.

        A port alone does not say which connection it is: those of two addresses may have the same one.
        """
        by_inode = {inode: remote for remote, inode in _accepted(port) if inode}
        return {by_inode[inode]: pid for pid in self.pids() for inode in socket_inodes(pid) & by_inode.keys()}

    def listeners(self, port: int) -> dict[int, set[int]]:
        """Return the inodes of the sockets that listen on `port`, by process."""
        listening = {inode for local, _, state, inode in _table() if state == _LISTEN and local == port}
        by_pid = {pid: socket_inodes(pid) & listening for pid in self.pids()}
        return {pid: inodes for pid, inodes in by_pid.items() if inodes}

    def kill_all(self) -> None:
        """Leave nothing running."""
        for _ in range(3):  # a supervisor may just be starting another child
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def socket_inodes(pid: int) -> set[int]:
    """Return the inodes of all sockets that a process has open."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes, without what it shares with others."""
    size = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value, *_ = line.split()
        size[name] = int(value) * 1024
    return size["Private_Clean:"] + size["Private_Dirty:"]


def state(pid: int) -> str:
    """Return the state of a process as proc_stat(5) writes it: R, S, T, Z, ...; "" when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def living(pids: Iterable[int]) -> set[int]:
    """Return those that have not ended; one that nobody has waited for has ended."""
    return {pid for pid in pids if state(pid) not in ("", "Z")}


def zombies(parents: set[int]) -> set[int]:
    """Return the children of `parents` that have ended and were not waited for."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if fields[0] == "Z" and int(fields[1]) in parents:
                    found.add(int(entry))
    return found


def _table() -> list[tuple[int, tuple[str, int], str, int]]:
    """Return local port, remote address, state and inode of each IPv4 socket; the inode is 0 until it is accepted."""
    rows = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        remote, _, remote_port = fields[2].rpartition(":")
        address = socket.inet_ntoa(struct.pack("=I", int(remote, 16)))  # proc(5): in the byte order of the machine
        rows.append((int(fields[1].rpartition(":")[2], 16), (address, int(remote_port, 16)), fields[3], int(fields[9])))
    return rows


def _accepted(port: int) -> list[tuple[tuple[str, int], int]]:
    return [(remote, inode) for local, remote, state, inode in _table() if local == port and state == _ESTABLISHED]


def _inode(port: int, client_port: int) -> int:
    client = ("127.0.0.1", client_port)
    return next((inode for remote, inode in _accepted(port) if remote == client), 0)
