"""TCP ports for servers that are started by other processes, or later, with a number that must be known before."""

from __future__ import annotations

import socket

_held: list[socket.socket] = []


def reserved_port() -> int:
    """Return a port of 127.0.0.1 that only who sets SO_REUSEADDR can bind, as servers do, until this process ends.

    A port that was merely free a moment ago may be given meanwhile to any connection on this machine. This one is held
    by a socket that is bound and does not listen: the kernel gives it to nobody else, and connections to it are refused
    until a server listens on it.
    """
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    # After bind: before it, the kernel might choose a port that another holder has.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _held.append(holder)
    return int(holder.getsockname()[1])
