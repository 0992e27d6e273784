"""Finds the process that listens on an address, from /proc and the kernel, for `mcproxy check`."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

from mcproxy.config.model import Bind, TCPBind, UnixBind

_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp
_ACCEPTS = 0x10000  # __SO_ACCEPTCON in the column Flags of /proc/net/unix
_READ_ATTEMPTS = 4
"""Number of reads of the kernel's table. A read has several steps and misses entries that move between them."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def owners(bind: Bind) -> frozenset[int]:
    """Return the processes that listen on the address of `bind` and are visible to this user."""
    if not isinstance(bind, TCPBind | UnixBind):
        return frozenset()
    inodes = next(filter(None, (frozenset(_inodes(bind)) for _ in range(_READ_ATTEMPTS))), frozenset[str]())
    found = frozenset(pid for pid, inode in _sockets() if inode in inodes)
    if found or isinstance(bind, TCPBind):
        return found
    pid = listener_of(bind.path)  # a process of another user, or the process that handed the socket over
    return frozenset() if pid is None or not os.path.isdir(f"/proc/{pid}") else frozenset((pid,))


def listener_of(path: str) -> int | None:
    """Return the process that called listen(2) on a unix socket; None if none did, or for another PID namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
            pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            return None
    return pid or None


def name_of(pid: int) -> str:
    """Return the program name of a process, without arguments, which can be secret; "?" if unreadable."""
    return _read(pid, "comm").decode(errors="replace").strip() or "?"


def is_mcproxy(pid: int) -> bool:
    return b"mcproxy" in _read(pid, "cmdline")


def _read(pid: int, file: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{file}", "rb") as opened:
            return opened.read(4096)
    except OSError:
        return b""


def shows_its_sockets(pid: int) -> bool:
    """Return whether this user may see the sockets of a process."""
    return os.access(f"/proc/{pid}/fd", os.R_OK | os.X_OK)


def unix_listeners(table: str) -> Iterator[tuple[str, str]]:
    """Yield inode and path of each listening unix socket in the table /proc/net/unix or /proc/PID/net/unix."""
    with open(table, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split(None, 7)
            if len(fields) == 8 and fields[7].startswith("/") and int(fields[3], 16) & _ACCEPTS:
                yield fields[6], fields[7].rstrip("\n")


def _inodes(bind: TCPBind | UnixBind) -> Iterator[str]:
    if isinstance(bind, UnixBind):
        yield from (inode for inode, path in unix_listeners("/proc/net/unix") if path == bind.path)
        return
    wanted = set(_addresses(bind.host))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            host, _, port = row[1].partition(":")
            if row[3] == _LISTEN and int(port, 16) == bind.port and any(_meet(_decoded(host), own) for own in wanted):
                yield row[9]


def _addresses(host: str) -> Iterator[Address]:
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return
    for _, _, _, _, name in found:
        yield ipaddress.ip_address(str(name[0]).partition("%")[0])


def _decoded(host: str) -> Address:
    """Decode an address in /proc, which has 32-bit words in the machine's byte order."""
    words = struct.unpack(f">{len(host) // 8}I", bytes.fromhex(host))
    return ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))


def _meet(one: Address, other: Address) -> bool:
    """Whether two listeners on one port conflict; [::] can also accept IPv4."""
    if one.version != other.version:
        return (one.version == 6 and one.is_unspecified) or (other.version == 6 and other.is_unspecified)
    return one == other or one.is_unspecified or other.is_unspecified


def _sockets() -> Iterator[tuple[int, str]]:
    """Yield process and inode of every visible socket."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            descriptors = os.listdir(f"/proc/{name}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                target = os.readlink(f"/proc/{name}/fd/{descriptor}")
            except OSError:
                continue
            if target.startswith("socket:["):
                yield int(name), target[8:-1]
