"""Sends a command to a running daemon over its control socket."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mcproxy.cli import DEFAULT_FILE
from mcproxy.cli.lenient_reader import places_of_control_socket
from mcproxy.cli.socket_owner import unix_listeners
from mcproxy.config.control_socket import possible_places

_MAX_ANSWER = 16 * 1024 * 1024
_PROBE_TIMEOUT = 2.0
_FILES = 4  # limit of the running daemons that a message names


class UnreachableError(Exception):
    """The daemon is not reachable; str() has the remedy."""


class NotRunningError(UnreachableError):
    """Nothing listens on the control socket."""


def send_to_daemon(
    config: str, request: dict[str, Any], timeout: float, environ: Mapping[str, str]
) -> tuple[dict[str, Any], str]:
    """Send `request` to the daemon that runs the configuration file `config`.

    Returns its answer and the path of its control socket. If the configured path, or every default path, does not lead
    to that daemon, the daemon is searched among the running processes. The file can be missing, or have a changed path
    that comes into force at the next reload. Raises `UnreachableError`.
    """
    missing = False
    try:
        places = places_of_control_socket(config, environ)
    except FileNotFoundError:
        missing, places = True, tuple(possible_places(config, environ))
    except OSError as error:
        raise UnreachableError(f"{config}: {error.strerror or error}") from error
    of_another: tuple[dict[str, Any], str] | None = None
    failures: list[UnreachableError] = []
    for path in places:
        try:
            answer = send_command(path, request, timeout)
        except UnreachableError as error:
            failures.append(error)
            continue
        if not _runs_another_file(answer, config):
            return answer, path
        of_another = answer, path
    running = _socket_of_running_daemon(config, places)
    if running is not None:
        return send_command(running, request, timeout), running
    if of_another is not None:
        return of_another
    if missing and all(isinstance(error, NotRunningError) for error in failures):
        raise NotRunningError(_no_file(config, places))
    silent = [error for error in failures if not isinstance(error, NotRunningError)]
    if silent or len(places) == 1:
        raise (silent or failures)[0]
    raise NotRunningError(
        f"no control socket of a daemon that runs {config} (looked for {', '.join(places) or 'none'}); "
        "is the daemon running? see `systemctl status mcproxy`"
    )


def _no_file(config: str, places: Sequence[str]) -> str:
    """Return the message for a missing file that no daemon runs."""
    what = f"there is no file {config}, and no daemon that runs it (looked for {', '.join(places) or 'none'}); "
    others = running_files(_trusted_users(places))
    if not others:
        return what + "is the daemon running? name its file with -c FILE, or see `systemctl status mcproxy`"
    more = f" and {len(others) - _FILES} more" if len(others) > _FILES else ""
    return (
        f"{what}name the file of the daemon with -c FILE: those that run here have {', '.join(others[:_FILES])}{more}"
    )


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


def _socket_of_running_daemon(config: str, known: Sequence[str]) -> str | None:
    for path in listening_sockets(config, _trusted_users(known)):
        if path in known:
            continue
        try:
            status = send_command(path, {"command": "status", "brief": True}, _PROBE_TIMEOUT)
        except UnreachableError:  # this is another unix socket of the daemon, not its control socket
            continue
        file = status.get("file")
        if status.get("ok") is True and isinstance(file, str) and os.path.realpath(file) == os.path.realpath(config):
            return path
    return None


def _trusted_users(control_sockets: Sequence[str]) -> set[int]:
    """Return the ids of root, the caller, and the owners of possible directories of the control socket."""
    users = {0, os.geteuid()}
    for path in control_sockets:
        with suppress(OSError):
            users.add(os.stat(os.path.dirname(path)).st_uid)
    return users


def _advice(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "run this as root or as the daemon's user"
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return "is the daemon running? see `systemctl status mcproxy`"
    return "see the daemon's log"


# -- finds the unix sockets of a running daemon by its configuration file (proc(5)) -----------------------------------
# This is needed if the file has changed `daemon.controlSocket`, since the daemon still listens on the old path. Any
# user can start a process that looks like a daemon, receives commands and forges responses. So only processes of
# trusted users are considered.


def listening_sockets(config: str, users: Collection[int], proc: str = "/proc") -> list[str]:
    """Return the paths of the unix sockets on which daemons of `users` (ids) that run the file `config` listen."""
    found: list[str] = []
    for pid in sorted(filter(str.isdigit, os.listdir(proc)), key=int):
        process = os.path.join(proc, pid)
        try:
            file = _configuration_of(process) if os.stat(process).st_uid in users else None
            if file is not None and os.path.realpath(file) == os.path.realpath(config):
                found += _sockets_of(process)
        except OSError:  # it has ended, or may not be read
            continue
    return found


def running_files(users: Collection[int], proc: str = "/proc") -> list[str]:
    """Return the configuration files that daemons of `users` (ids) run, sorted."""
    found = set()
    for pid in filter(str.isdigit, os.listdir(proc)):
        process = os.path.join(proc, pid)
        try:
            file = _configuration_of(process) if os.stat(process).st_uid in users else None
        except OSError:  # it has ended, or may not be read
            continue
        if file is not None and os.path.basename(file) != "-":  # standard input
            found.add(os.path.normpath(file))
    return sorted(found)


def runs_another_file(config: str, pid: int, proc: str = "/proc") -> bool:
    """Return whether a process certainly does not run the file `config`; ``-``, standard input, can be any file."""
    try:
        file = _configuration_of(os.path.join(proc, str(pid)))
    except OSError:  # it has ended, or may not be read
        return False
    return file is None or (config != "-" and os.path.realpath(file) != os.path.realpath(config))


def _configuration_of(process: str) -> str | None:
    """Return the configuration file of a daemon; None for any other process."""
    with open(os.path.join(process, "cmdline"), "rb") as file:
        argv = os.fsdecode(file.read()).split("\0")
    start = next((i for i, word in enumerate(argv[:4]) if os.path.basename(word) == "mcproxy"), None)
    if start is None or argv[start + 1 : start + 2] != ["run"]:
        return None
    named = _config_option(argv[start + 2 :])
    return os.path.join(os.readlink(os.path.join(process, "cwd")), named)


def _config_option(words: Sequence[str]) -> str:
    for index, word in enumerate(words):
        if word in ("-c", "--config") and index + 1 < len(words):
            return words[index + 1]
        if word.startswith("--config="):
            return word.partition("=")[2]
        if word.startswith("-c") and len(word) > 2:
            return word[2:]
    return DEFAULT_FILE


def _sockets_of(process: str) -> Iterator[str]:
    own = set()
    descriptors = os.path.join(process, "fd")
    for descriptor in os.listdir(descriptors):
        try:
            target = os.readlink(os.path.join(descriptors, descriptor))
        except OSError:  # the descriptor was closed meanwhile
            continue
        if target.startswith("socket:["):
            own.add(target[8:-1])
    for inode, path in unix_listeners(os.path.join(process, "net", "unix")):
        if inode in own:
            yield path
