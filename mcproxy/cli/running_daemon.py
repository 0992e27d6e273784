"""Finds the unix sockets on which a running daemon listens, by its configuration file (proc(5)).

It is needed when a file has changed `daemon.controlSocket`: the daemon still listens on the old path. Any user can
start a process that looks like a daemon, which would get its commands and could forge responses; so only processes of
trusted users are used.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence

from mcproxy.cli import DEFAULT_FILE
from mcproxy.cli.socket_owner import unix_listeners


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
    """Return whether a process is certainly not a daemon that runs the file `config` (``-``, standard input: any)."""
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
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            own.add(target[8:-1])
    for inode, path in unix_listeners(os.path.join(process, "net", "unix")):
        if inode in own:
            yield path
