"""Listening sockets: fresh, left over, taken, or passed by systemd."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mcproxy.config.model import Bind, SystemdBind, TCPBind, UnixBind
from mcproxy.net import bind
from mcproxy.net.bind import BindError, SystemdSockets, open_socket, probe_bind
from tests.support.ports import reserved_port


def test_a_taken_port_is_in_use() -> None:
    with open_socket(TCPBind("127.0.0.1", 0)) as first:
        bind = TCPBind("127.0.0.1", first.getsockname()[1])
        for attempt in (open_socket, probe_bind):
            with pytest.raises(BindError, match="the address is in use") as caught:
                attempt(bind)
            assert caught.value.in_use
            assert caught.value.bind == bind


def test_a_port_with_connections_still_closing_can_be_bound_again() -> None:
    with open_socket(TCPBind("127.0.0.1", reserved_port())) as first:
        name = first.getsockname()
        first.setblocking(True)
        client = socket.create_connection(name)
        accepted, _ = first.accept()
        accepted.close()  # the server closes first, so its side stays in TIME_WAIT
        client.close()
    open_socket(TCPBind(*name)).close()


@pytest.mark.parametrize(
    "bind", [TCPBind("192.0.2.1", 0), TCPBind("no-such-host.invalid", 0), UnixBind("/no/such/dir/x")]
)
def test_other_bind_errors_are_distinguished_from_address_in_use(bind: Bind) -> None:
    for attempt in (open_socket, probe_bind):
        with pytest.raises(BindError) as caught:
            attempt(bind)
        assert not caught.value.in_use
        assert str(bind) in str(caught.value)


def test_a_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    port = reserved_port()
    probe_bind(TCPBind("127.0.0.1", port))
    open_socket(TCPBind("127.0.0.1", port)).close()
    path = tmp_path / "x.sock"
    probe_bind(UnixBind(str(path)))
    assert not path.exists()


def test_v6_does_not_take_the_v4_port() -> None:
    for attempt in range(20):  # another process may have the port of a connection over IPv4
        with open_socket(TCPBind("::", 0)) as six:
            assert six.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            with contextlib.suppress(*([BindError] if attempt < 19 else [])):
                open_socket(TCPBind("0.0.0.0", six.getsockname()[1])).close()
                break


def test_a_stale_unix_socket_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "x.sock")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(path)
    stale.close()
    probe_bind(UnixBind(path))
    with open_socket(UnixBind(path)) as sock, socket.socket(socket.AF_UNIX) as client:
        assert sock.getsockname() == path
        client.connect(path)


def test_a_live_unix_socket_is_in_use(tmp_path: Path) -> None:
    bind = UnixBind(str(tmp_path / "x.sock"))
    with open_socket(bind), socket.socket(socket.AF_UNIX) as client:
        for attempt in (open_socket, probe_bind):
            with pytest.raises(BindError) as caught:
                attempt(bind)
            assert caught.value.in_use
        client.connect(bind.path)


def test_a_file_that_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    for attempt in (open_socket, probe_bind):
        with pytest.raises(BindError, match="not a socket"):
            attempt(UnixBind(str(path)))
    assert path.read_text() == "data"


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_unix_socket_has_its_mode_whatever_the_umask(tmp_path: Path, mode: int, umask: int) -> None:
    bind = UnixBind(str(tmp_path / "x.sock"), mode=mode)
    before = os.umask(umask)
    try:
        with open_socket(bind):
            assert stat.S_IMODE(os.stat(bind.path).st_mode) == mode
    finally:
        os.umask(before)


def test_no_connection_before_the_socket_has_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bind = UnixBind(str(tmp_path / "x.sock"), mode=0o640)
    seen: list[tuple[int, int]] = []
    chmod = os.chmod

    def look(path: str, mode: int) -> None:
        with socket.socket(socket.AF_UNIX) as early:
            seen.append((stat.S_IMODE(os.stat(path).st_mode), early.connect_ex(path)))
        chmod(path, mode)

    monkeypatch.setattr(os, "chmod", look)
    before = os.umask(0)
    try:
        open_socket(bind).close()
    finally:
        os.umask(before)
    assert seen == [(0o600, errno.ECONNREFUSED)]


def test_unix_socket_is_given_to_its_group(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgroups()[-1] if os.getgroups() else os.getgid())
    with open_socket(UnixBind(str(tmp_path / "x.sock"), mode=0o660, group=group.gr_name)):
        assert os.stat(tmp_path / "x.sock").st_gid == group.gr_gid


def test_unknown_group_leaves_no_socket(tmp_path: Path) -> None:
    with pytest.raises(BindError, match="there is no group no-such-group"):
        open_socket(UnixBind(str(tmp_path / "x.sock"), group="no-such-group"))
    assert list(tmp_path.iterdir()) == []


def test_group_that_may_not_be_given_leaves_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    group = grp.getgrgid(os.getgid()).gr_name
    with pytest.raises(BindError, match="cannot be given to group") as caught:
        open_socket(UnixBind(str(tmp_path / "x.sock"), group=group))
    assert "to the group" in caught.value.todo
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_free_bind_takes_an_address_that_this_machine_has_not(host: str) -> None:
    with pytest.raises(BindError) as caught:
        open_socket(TCPBind(host, 0))
    assert "freeBind" in caught.value.todo
    with open_socket(TCPBind(host, 0, free_bind=True)) as sock:
        assert sock.getsockname()[0] == host
    probe_bind(TCPBind(host, 0, free_bind=True))


@pytest.mark.parametrize(
    ("before", "after"),
    [("127.0.0.1", "0.0.0.0"), ("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::1", "::")],
)
def test_new_address_may_overlap_with_one_that_goes(before: str, after: str) -> None:
    with open_socket(TCPBind(before, 0)) as old:
        port = old.getsockname()[1]
        with pytest.raises(BindError):
            open_socket(TCPBind(after, port))
        with open_socket(TCPBind(after, port), overlapping=[old]) as new:
            old.close()
            name = ("127.0.0.1" if new.family == socket.AF_INET else "::1", port)
            new.settimeout(60)
            with socket.create_connection(name, timeout=60):
                new.accept()[0].close()
            with pytest.raises(BindError):
                open_socket(TCPBind(before, port))


def test_overlapping_socket_that_cannot_be_had_leaves_the_old_one_alone() -> None:
    with open_socket(TCPBind("127.0.0.1", 0)) as old:
        with pytest.raises(BindError):
            open_socket(TCPBind("192.0.2.1", old.getsockname()[1]), overlapping=[old])
        assert not old.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)


# -- systemd -------------------------------------------------------------------------------------------------


def test_sockets_for_another_process_are_not_ours() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "api"}
    assert SystemdSockets.from_environ(environ, 2).names == []


@pytest.mark.parametrize("environ", [{}, {"LISTEN_FDS": "x", "LISTEN_PID": "5"}, {"LISTEN_FDS": "1", "LISTEN_PID": ""}])
def test_a_malformed_environment_hands_over_nothing(environ: dict[str, str]) -> None:
    assert SystemdSockets.from_environ(environ, 5).names == []


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(BindError, match="it passed: none"):
        open_socket(SystemdBind("api"))
    with pytest.raises(BindError, match="it passed: web"):
        open_socket(SystemdBind("api"), SystemdSockets({"web": 7}))


def test_a_descriptor_that_does_not_listen_is_refused(tmp_path: Path) -> None:
    with socket.socket() as idle, open(tmp_path / "file", "w") as file:
        sockets = SystemdSockets({"idle": idle.fileno(), "file": file.fileno()})
        with pytest.raises(BindError, match="not a listening stream socket"):
            sockets.take(SystemdBind("idle"))
        with pytest.raises(BindError, match="not a socket"):
            sockets.take(SystemdBind("file"))


def test_a_name_can_be_taken_again_after_its_listener_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as given:
        sockets = SystemdSockets({"api": given.fileno()})
        for _ in range(2):
            with open_socket(SystemdBind("api"), sockets) as taken:
                assert taken.getsockname() == given.getsockname()
                assert not taken.getblocking()
        probe_bind(SystemdBind("api"), sockets)
    probe_bind(SystemdBind("api"))


_CHILD = """
import os, socket
from mcproxy.config.model import SystemdBind
from mcproxy.net.bind import SystemdSockets, open_socket
environ = dict(os.environ, LISTEN_PID=str(os.getpid()))
sockets = SystemdSockets.from_environ(environ, os.getpid())
names = [open_socket(SystemdBind(name), sockets).getsockname() for name in sockets.names]
print(sockets.names, names, os.get_inheritable(3))
"""


def test_a_started_process_finds_its_sockets_by_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        path = str(tmp_path / "x.sock")
        unix.bind(path)
        unix.listen()
        script = f'exec 3<&{tcp.fileno()} 4<&{unix.fileno()}; exec "$0" -c "$1"'
        done = subprocess.run(
            ["bash", "-c", script, sys.executable, _CHILD],
            env={"LISTEN_FDS": "2", "LISTEN_FDNAMES": "tcp:local", "PATH": os.environ["PATH"]},
            pass_fds=[tcp.fileno(), unix.fileno()],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == f"['local', 'tcp'] ['{path}', {tcp.getsockname()}] False"


def test_what_to_do_about_a_missing_permission_depends_on_the_kind_of_address() -> None:
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert "CAP_NET_BIND_SERVICE" in bind._bind_error(TCPBind("127.0.0.1", 80), refused).todo
    assert (
        bind._bind_error(UnixBind("/run/a.sock"), refused).todo
        == "make the daemon's user the owner of the directory of the unix socket"
    )
