"""Sends a command to a running daemon over its control socket."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mcproxy.cli.control_socket import find_control_socket
from mcproxy.cli.running_daemon import listening_sockets

_MAX_ANSWER = 16 * 1024 * 1024
_PROBE_TIMEOUT = 2.0


class UnreachableError(Exception):
    """The daemon is not reachable; str() has the remedy."""


class NotRunningError(UnreachableError):
    """Nothing listens on the control socket."""


def send_to_daemon(
    config: str, request: dict[str, Any], timeout: float, environ: Mapping[str, str]
) -> tuple[dict[str, Any], str]:
    """Send `request` to the daemon that runs the configuration file `config`.

    Returns its answer and the path of its control socket. If the socket that the file names is not that daemon's (the
    file may have moved it, for the next reload), the daemon is found among the running processes. Raises
    `UnreachableError`.
    """
    try:
        path = find_control_socket(config, environ)
    except OSError as error:
        raise UnreachableError(f"{config}: {error.strerror or error}") from error
    try:
        if path is None:
            raise UnreachableError(
                f"{config} names no daemon.controlSocket; send the daemon SIGHUP and look at its log, "
                "or add one and restart it"
            )
        answer = send_command(path, request, timeout)
        if not _runs_another_file(answer, config):
            return answer, path
        running = _socket_of_running_daemon(config, path)
        return (answer, path) if running is None else (send_command(running, request, timeout), running)
    except UnreachableError:
        running = _socket_of_running_daemon(config, path)
        if running is None:
            raise
    return send_command(running, request, timeout), running


def send_command(path: str, request: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Send a request to the control socket `path` and return the answer. Raises `UnreachableError`."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            line = connection.makefile("rb").readline(_MAX_ANSWER)
    except TimeoutError as error:
        raise UnreachableError(f"the daemon at {path} did not answer within {timeout:g} s; see its log") from error
    except OSError as error:
        kind = NotRunningError if isinstance(error, FileNotFoundError | ConnectionRefusedError) else UnreachableError
        raise kind(f"{path}: {error.strerror or error}; {_advice(error)}") from error
    if not line.endswith(b"\n"):
        raise UnreachableError(
            f"the daemon at {path} closed the connection; only root and the daemon's user are permitted, see its log"
        )
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise UnreachableError(f"what listens at {path} is no mcproxy") from error
    if not isinstance(answer, dict):
        raise UnreachableError(f"what listens at {path} is no mcproxy")
    return answer


def _runs_another_file(answer: dict[str, Any], config: str) -> bool:
    file = answer.get("file")
    return answer.get("ok") is not True and isinstance(file, str) and os.path.realpath(file) != os.path.realpath(config)


def _socket_of_running_daemon(config: str, known: str | None) -> str | None:
    for path in listening_sockets(config, _trusted_users(known)):
        if path == known:
            continue
        try:
            status = send_command(path, {"command": "status", "brief": True}, _PROBE_TIMEOUT)
        except UnreachableError:  # another listener of the daemon's
            continue
        file = status.get("file")
        if status.get("ok") is True and isinstance(file, str) and os.path.realpath(file) == os.path.realpath(config):
            return path
    return None


def _trusted_users(control_socket: str | None) -> set[int]:
    """Return root, the caller, and who owns the directory that the file gives the control socket."""
    users = {0, os.geteuid()}
    with suppress(OSError):
        if control_socket is not None:
            users.add(os.stat(os.path.dirname(control_socket)).st_uid)
    return users


def _advice(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "run this as root or as the daemon's user"
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return "is the daemon running? see `systemctl status mcproxy`"
    return "see the daemon's log"
