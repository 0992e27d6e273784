"""Checks this machine for problems that would prevent the daemon from starting: addresses, access log, folders.

The checks change nothing: they close each bound socket at once, and do not create files.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mcproxy.cli.control_client import runs_another_file
from mcproxy.cli.socket_owner import is_mcproxy, listener_of, name_of, owners, shows_its_sockets
from mcproxy.config.control_socket import RUNTIME_FOLDER, possible_places
from mcproxy.config.model import Bind, ListenerConfig, Mark, TCPBind
from mcproxy.config.problem import Problem

if TYPE_CHECKING:
    from mcproxy.config.loaded import Loaded
    from mcproxy.net.bind import BindError

_UNIT_MAKES = {
    "/run/mcproxy": "RuntimeDirectory",
    "/var/log/mcproxy": "LogsDirectory",
    "/var/lib/mcproxy": "StateDirectory",
}
_FIRST_FREE_PORT = "/proc/sys/net/ipv4/ip_unprivileged_port_start"


class MachineChecks:
    """The checks for one configuration. `errors` prevent the daemon from starting, `notes` possibly concern only this
    user or machine."""

    def __init__(self, file: str, loaded: Loaded) -> None:
        """`file` is the source of `loaded`; ``-`` is standard input."""
        self._file = file
        self._loaded = loaded
        self.errors: list[Problem] = []
        self.notes: list[Problem] = []

    def run(self) -> None:
        self._certificates()
        for listener in self._loaded.config.listeners:
            if listener.bind is not None:
                self._bind(listener, listener.bind)
        logging = self._loaded.config.logging
        self._log_file("access", None if logging.access is None else logging.access.file)
        self._log_file("audit", None if logging.audit is None else logging.audit.file)
        self._control_socket()
        self._state_directory()
        self._workers()

    def _problem(self, section: str, name: str, key: str, what: str, right: str) -> Problem:
        place = self._loaded.location(section, name, key)
        assert place is not None, (section, name)
        return Problem(place.mark, place.key, what, right)

    def _certificates(self) -> None:
        """Report well-formed certificates that OpenSSL refuses to use for a listener."""
        from mcproxy.net.certificate_store import CertificateStore
        from mcproxy.net.tls_contexts import PairError

        for certificate in self._loaded.config.certificates:
            try:
                CertificateStore.build([certificate])
            except PairError as error:
                right = "use a certificate and key that OpenSSL accepts"
                problem = self._problem("certificates", certificate.name, "certFile", str(error), right)
                self.errors.append(problem)

    def _bind(self, listener: ListenerConfig, bind: Bind) -> None:
        from mcproxy.net.bind import BindError, probe_bind

        try:
            probe_bind(bind)
        except BindError as error:
            if error.in_use:
                self._in_use(listener, bind)
            else:
                self._cannot_bind(listener, bind, error)

    def _cannot_bind(self, listener: ListenerConfig, bind: Bind, error: BindError) -> None:
        if isinstance(bind, TCPBind) and 0 < bind.port < _first_free_port() and "permission denied" in error.cause:
            what = f"port {bind.port} needs CAP_NET_BIND_SERVICE, which this user does not have"
            right = "the unit mcproxy.service gives it to the daemon"
            self.notes.append(self._problem("listeners", listener.name, "bind", what, right))
            return
        what = f"{bind} cannot be bound: {error.cause}"
        right = error.todo or "bind it to an address that this machine has and this user may take"
        self.errors.append(self._problem("listeners", listener.name, "bind", what, right))

    def _in_use(self, listener: ListenerConfig, bind: Bind) -> None:
        """Report an address that a process other than the running daemon uses."""
        pids, daemon = owners(bind), self._daemon()
        others = sorted(pids - {daemon})
        if daemon in pids:
            return
        if others and (daemon is not None or not any(self._may_be_for(pid) for pid in others)):
            what = f"{bind} is taken by another process: {name_of(others[0])} (pid {others[0]})"
            right = "stop it, or bind another address"
            self.errors.append(self._problem("listeners", listener.name, "bind", what, right))
        elif not pids and daemon is not None and shows_its_sockets(daemon):
            what = f"{bind} is taken by another process, and not by the running daemon (pid {daemon})"
            right = "stop it (`ss -lp` names it to root), or bind another address"
            self.errors.append(self._problem("listeners", listener.name, "bind", what, right))
        elif not pids:
            what = f"{bind} is in use, by a process that this user may not see"
            right = "if it is not mcproxy itself, stop it (`ss -lp` names it to root)"
            self.notes.append(self._problem("listeners", listener.name, "bind", what, right))

    def _may_be_for(self, pid: int) -> bool:
        """Whether a process without this control socket can be the file's daemon: the path can have changed."""
        if not is_mcproxy(pid):
            return False
        config = self._loaded.config
        return config.daemon.control_socket is None or not runs_another_file(self._file, pid)

    def _daemon(self) -> int | None:
        daemon = self._loaded.config.daemon
        if not daemon.control_socket_is_default:
            return None if daemon.control_socket is None else listener_of(daemon.control_socket)
        return next(filter(None, map(listener_of, possible_places(self._file, os.environ))), None)

    def _log_file(self, log: str, file: str | None) -> None:
        if file is None or file == "-":
            return
        folder = os.path.dirname(file)
        if os.path.lexists(file):
            try:
                os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                what = f"{file} cannot be opened: {error.strerror}"
                self._log_error(log, what, "name a file that the daemon's user may write")
        elif not os.path.isdir(folder):
            self._missing_folder("logging", log, "file", folder)
        elif not os.access(folder, os.W_OK | os.X_OK):
            self._log_error(log, f"{file} cannot be created in {folder}", "let the daemon's user write there")

    def _log_error(self, log: str, what: str, right: str) -> None:
        self.errors.append(self._problem("logging", log, "file", what, right))

    def _control_socket(self) -> None:
        daemon = self._loaded.config.daemon
        path = daemon.control_socket
        if path is None:
            self._no_control_socket()
        if path is None or daemon.control_socket_is_default:
            return
        folder = os.path.dirname(path)
        if os.path.isdir(folder):
            return
        above = os.path.dirname(folder)
        if not os.path.isdir(above) or not os.access(above, os.W_OK | os.X_OK):  # else the daemon creates `folder`
            self._missing_folder("daemon", "controlSocket", "", folder)

    def _no_control_socket(self) -> None:
        if self._file == "-" or os.path.isdir(RUNTIME_FOLDER):  # the daemon's user can have write access there
            return
        what = "there is no folder for a control socket in which this user may write, so `mcproxy reload` does not work"
        right = f"let the daemon's user write in {RUNTIME_FOLDER}, or name a daemon.controlSocket; SIGHUP reloads too"
        self.notes.append(Problem(Mark(self._file, 1, 1), "", what, right))

    def _state_directory(self) -> None:
        from mcproxy.daemon import process_setup

        path = self._loaded.config.daemon.state_dir
        if path is None:
            return
        above = os.path.dirname(path)
        if os.path.lexists(path):
            user = os.geteuid()
            wrong = process_setup.state_directory_fault(path, user or None)  # root checks for another user
            if wrong is not None:
                self.errors.append(self._problem("daemon", "stateDir", "", f"{path}: {wrong[0]}", wrong[1]))
        elif path in _UNIT_MAKES or not os.path.isdir(above):
            self._missing_folder("daemon", "stateDir", "", path if path in _UNIT_MAKES else above)
        elif not os.access(above, os.W_OK | os.X_OK):
            right = "let the daemon's user write there, or create the folder for it"
            self.errors.append(self._problem("daemon", "stateDir", "", f"{path} cannot be created in {above}", right))

    def _workers(self) -> None:
        workers, cores = self._loaded.config.daemon.workers, len(os.sched_getaffinity(0))
        place = self._loaded.location("daemon", "workers")
        if place is not None and isinstance(workers, int) and workers > max(1, cores):
            what = f"{workers} workers on a machine that has {cores} core{'s' if cores > 1 else ''} for them"
            self.notes.append(Problem(place.mark, place.key, what, "Auto is one for each core"))

    def _missing_folder(self, section: str, name: str, key: str, folder: str) -> None:
        setting = _UNIT_MAKES.get(folder)
        if setting is not None:
            what = f"there is no folder {folder}"
            right = f"the unit mcproxy.service makes it ({setting}); without systemd create it"
            self.notes.append(self._problem(section, name, key, what, right))
        else:
            what = f"there is no folder {folder}"
            self.errors.append(self._problem(section, name, key, what, "create it, for the daemon's user"))


def _first_free_port() -> int:
    try:
        with open(_FIRST_FREE_PORT, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 1024
