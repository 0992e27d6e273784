"""Opens listening sockets: TCP, unix, or passed by systemd. Errors have a cause and a remedy."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import grp
import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mcproxy.config.model import Bind, SystemdBind, TCPBind, UnixBind

BACKLOG = 1024
_CREATION_MODE = 0o600  # mode of a unix socket until it listens
_IP_FREEBIND = 15  # linux/in.h
_IPV6_FREEBIND = 78  # linux/in6.h
_SO_ATTACH_REUSEPORT_CBPF = 51  # asm-generic/socket.h
_FIRST_FD = 3  # SD_LISTEN_FDS_START

_ADVICE = {
    errno.EADDRNOTAVAIL: "bind an address that this machine has (`ip addr` shows them), or set freeBind: true for one "
    "that a failover brings",
    errno.EACCES: "bind a port from 1024 on, or give the daemon CAP_NET_BIND_SERVICE",
    errno.ENOENT: "create the directory of the unix socket, or let systemd do so (RuntimeDirectory=)",
}


def _advice(bind: Bind, error: OSError) -> str:
    if error.errno == errno.EACCES and isinstance(bind, UnixBind):
        return "make the daemon's user the owner of the directory of the unix socket"
    return _ADVICE.get(error.errno or 0, "")


class BindError(Exception):
    """A listening socket cannot be opened. `in_use`: another socket has the address. `todo`: the remedy."""

    def __init__(self, bind: Bind, cause: str, *, in_use: bool = False, todo: str = "") -> None:
        super().__init__(f"cannot listen on {bind}: {cause}")
        self.bind = bind
        self.cause = cause
        self.in_use = in_use
        self.todo = "stop what listens there (`ss -lp` names it), or bind another address" if in_use else todo


class SystemdSockets:
    """Listening sockets by FileDescriptorName (sd_listen_fds_with_names(3)).

    They stay open during the life of the process, so that a reload can add a listener that an earlier reload removed.
    """

    def __init__(self, descriptors: Mapping[str, int]) -> None:
        self._descriptors = dict(descriptors)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], pid: int) -> SystemdSockets:
        """Read LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES; empty if they are malformed or for another process."""
        try:
            count = int(environ.get("LISTEN_FDS", "0"))
            for_this_process = int(environ.get("LISTEN_PID", "-1")) == pid
        except ValueError:
            for_this_process, count = False, 0
        if not for_this_process:
            return cls({})
        names = environ.get("LISTEN_FDNAMES", "").split(":") if environ.get("LISTEN_FDNAMES") else []
        descriptors: dict[str, int] = {}
        for index in range(count):
            os.set_inheritable(_FIRST_FD + index, False)
            name = names[index] if index < len(names) else "unknown"
            descriptors.setdefault(name, _FIRST_FD + index)
        return cls(descriptors)

    @property
    def names(self) -> list[str]:
        return sorted(self._descriptors)

    @property
    def descriptors(self) -> Mapping[str, int]:
        """The descriptors by name, which this object still owns."""
        return self._descriptors

    def take(self, bind: SystemdBind) -> socket.socket:
        """Return a new socket for a duplicate of the descriptor with the bind's name. Raises BindError."""
        descriptor = self._descriptors.get(bind.name)
        if descriptor is None:
            known = ", ".join(self.names) or "none"
            raise BindError(bind, f"systemd passed no socket of that name (it passed: {known})")
        try:
            sock = socket.socket(fileno=os.dup(descriptor))
            accepts = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise BindError(bind, f"the descriptor is not a socket: {error.strerror}") from None
        if not accepts or sock.type != socket.SOCK_STREAM:
            sock.close()
            raise BindError(bind, "the socket is not a listening stream socket")
        sock.setblocking(False)
        return sock


def open_socket(
    bind: Bind, systemd: SystemdSockets | None = None, *, overlapping: Sequence[socket.socket] = ()
) -> socket.socket:
    """Return a listening, non-blocking socket. Raises BindError.

    `overlapping` are listening sockets of this process that will be closed soon. The new socket can have the same port
    and an overlapping address (a wildcard and one of its addresses). Until they are closed, they get its connections.
    """
    if isinstance(bind, SystemdBind):
        return (systemd or SystemdSockets({})).take(bind)
    if isinstance(bind, UnixBind):
        sock = _bind_unix(bind)
    else:
        with _sharing_port(overlapping):
            sock = _bind_tcp(bind, listening=True, share_port=bool(overlapping))
        if overlapping:
            _set_share_port(sock, False)
        return sock
    listen(bind, sock)
    return sock


def listen(bind: Bind, sock: socket.socket) -> None:
    """Let a bound socket listen. If it raises BindError, the socket is closed."""
    try:
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _bind_error(bind, error) from None


@contextlib.contextmanager
def _sharing_port(sockets: Sequence[socket.socket]) -> Iterator[None]:
    """Set SO_REUSEPORT on sockets only while another socket is bound, because it lets other processes bind the port."""
    before = [(sock, bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT))) for sock in sockets]
    for sock in sockets:
        _set_share_port(sock, True)
    try:
        yield
    finally:
        for sock, value in before:
            _set_share_port(sock, value)


def keep_port(sock: socket.socket) -> None:
    """Prevent other processes from listening on the port of a TCP socket (SO_REUSEPORT off)."""
    _set_share_port(sock, False)


def _set_share_port(sock: socket.socket, share: bool) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, share)


def open_spread(bind: TCPBind, number: int, *, overlapping: Sequence[socket.socket] = ()) -> list[socket.socket]:
    """Return `number` listening, non-blocking sockets, over which the kernel spreads new connections. Raises BindError.

    `overlapping` has the same meaning as in `open_socket`.
    """
    sockets: list[socket.socket] = []
    with _sharing_port(overlapping):
        try:
            sockets.append(_bind_tcp(bind, listening=True, share_port=bool(overlapping)))
            while len(sockets) < number:
                sockets.append(bind_beside(bind, sockets[0]))
                listen(bind, sockets[-1])
        except BindError:
            for sock in sockets:
                sock.close()
            raise
    return sockets


def bind_beside(bind: TCPBind, listening: socket.socket) -> socket.socket:
    """Return a bound socket with the address of `listening`, a socket of `bind`; `listen` must follow.

    After that the kernel spreads new connections over both (SO_REUSEPORT). The first socket of an address is bound
    without that option, so that a daemon detects another daemon on the address. Raises BindError.
    """
    _set_share_port(listening, True)
    return _bind_name(bind, listening.family, listening.getsockname(), share_port=True)


def spread_over_first(sock: socket.socket, number: int) -> None:
    """Have the kernel choose randomly among the first `number` sockets that listened on the address of `sock`.

    The other sockets stay open for their queued connections. A kernel without support still chooses among all sockets.
    """
    # Classic BPF (linux/filter.h): A = random (SKF_AD_OFF + SKF_AD_RANDOM); A %= number; return A
    instructions = ((0x20, 0xFFFFF000 + 56), (0x94, number), (0x16, 0))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", op, 0, 0, k) for op, k in instructions))
    program = struct.pack("HP", len(instructions), ctypes.addressof(code))
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program)


def set_permissions(bind: UnixBind) -> None:
    """Give an existing socket file the mode and group of `bind`. Raises BindError."""
    try:
        if bind.group is not None:
            os.chown(bind.path, -1, grp.getgrnam(bind.group).gr_gid)
        os.chmod(bind.path, bind.mode)
    except KeyError:
        raise BindError(bind, f"there is no group {bind.group}", todo="create the group, or name another") from None
    except PermissionError:
        raise BindError(
            bind,
            f"the socket cannot be given to group {bind.group}",
            todo="add the daemon's user to the group (SupplementaryGroups=)",
        ) from None
    except OSError as error:
        raise _bind_error(bind, error) from None


def probe_bind(bind: Bind, systemd: SystemdSockets | None = None) -> None:
    """Check whether `bind` can be opened, without a lasting effect.

    Raises BindError, with `in_use` also for the sockets of a running daemon. A systemd socket is checked only if
    `systemd` is given.
    """
    if isinstance(bind, SystemdBind):
        if systemd is not None:
            systemd.take(bind).close()
    elif isinstance(bind, UnixBind):
        _probe_unix(bind)
    else:
        _bind_tcp(bind, listening=True).close()


def _bind_error(bind: Bind, error: OSError) -> BindError:
    in_use = error.errno == errno.EADDRINUSE
    cause = "the address is in use" if in_use else (error.strerror or str(error)).lower()
    return BindError(bind, cause, in_use=in_use, todo=_advice(bind, error))


def _bind_tcp(bind: TCPBind, *, listening: bool = False, share_port: bool = False) -> socket.socket:
    try:
        family, _, _, _, name = socket.getaddrinfo(
            bind.host or None, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise _bind_error(bind, error) from None
    sock = _bind_name(bind, family, name, share_port=share_port)
    if listening:  # with SO_REUSEADDR, only listen(2) detects another socket that is bound but does not listen yet
        listen(bind, sock)
    return sock


def _bind_name(bind: TCPBind, family: int, name: Any, *, share_port: bool) -> socket.socket:
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _bind_error(bind, error) from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as in nginx: [::] does not include 0.0.0.0
        if bind.free_bind:
            v6 = family == socket.AF_INET6
            sock.setsockopt(*((socket.IPPROTO_IPV6, _IPV6_FREEBIND) if v6 else (socket.IPPROTO_IP, _IP_FREEBIND)), 1)
        if share_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, True)
        sock.bind(name)
    except OSError as error:
        sock.close()
        raise _bind_error(bind, error) from None
    return sock


def _bind_unix(bind: UnixBind) -> socket.socket:
    """Bind a unix socket, and set mode and group before it listens, so before clients can connect.

    A socket file without a listening process is a remnant of a killed process, and is replaced.
    """
    _remove_stale(bind)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), _CREATION_MODE)  # Linux creates the file with the mode of the socket minus the umask
        sock.bind(bind.path)
    except OSError as error:
        sock.close()
        raise _bind_error(bind, error) from None
    try:
        set_permissions(bind)
    except BindError:
        sock.close()
        os.unlink(bind.path)
        raise
    return sock


def _remove_stale(bind: UnixBind) -> None:
    try:
        mode = os.lstat(bind.path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _bind_error(bind, error) from None
    if not stat.S_ISSOCK(mode):
        raise BindError(bind, "a file that is not a socket is in the way")
    if _is_listening(bind):
        raise BindError(bind, "the address is in use", in_use=True)
    try:
        os.unlink(bind.path)
    except OSError as error:
        raise _bind_error(bind, error) from None


def _is_listening(bind: UnixBind) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(bind.path) != errno.ECONNREFUSED


def _probe_unix(bind: UnixBind) -> None:
    existed = os.path.lexists(bind.path)
    if existed:
        if not stat.S_ISSOCK(os.lstat(bind.path).st_mode):
            raise BindError(bind, "a file that is not a socket is in the way")
        if _is_listening(bind):
            raise BindError(bind, "the address is in use", in_use=True)
        return
    _bind_unix(bind).close()
    os.unlink(bind.path)
