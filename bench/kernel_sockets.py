"""Which process has which connection, and which sockets listen, as the kernel knows it (proc_pid_net(5))."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_ESTABLISHED, _LISTEN = "01", "0A"


def owners(pids: Sequence[int], port: int) -> dict[int, int]:
    """Return the accepted connections to `port`: the client's port to that one of `pids` which has it."""
    remotes = {inode: remote for local, remote, state, inode in _table() if (local, state) == (port, _ESTABLISHED)}
    return {remotes[inode]: pid for pid in pids for inode in _inodes(pid) & remotes.keys()}


def listening(pids: Sequence[int], port: int) -> dict[int, set[int]]:
    """Return the inodes of the sockets that listen on `port`, for each of `pids`."""
    found = {inode for local, _, state, inode in _table() if (local, state) == (port, _LISTEN)}
    return {pid: _inodes(pid) & found for pid in pids}


def _table() -> Iterator[tuple[int, int, str, int]]:
    """Give local port, remote port, state and inode of each socket; the inode is 0 until it is accepted."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = (int(fields[place].rpartition(":")[2], 16) for place in (1, 2))
        yield local, remote, fields[3], int(fields[9])


def _inodes(pid: int) -> set[int]:
    found = set()
    with contextlib.suppress(OSError):  # it has ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found
