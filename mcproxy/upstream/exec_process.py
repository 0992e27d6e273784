"""Runs exec credential plugins as processes, a few at a time, with bounded time and output.

A thread waits for each plugin. `reactor.spawnProcess` is not used: it forks the whole daemon in the reactor thread and
depends on the owner of SIGCHLD, while `subprocess` starts the child with vfork and a thread can simply wait. The
threads are not from the reactor's pool, so that slow plugins never delay DNS lookups.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.interfaces import IReactorFromThreads
from twisted.python.failure import Failure

from mcproxy.net.daemon_thread import in_daemon_thread

_MAX_OUTPUT = 1024 * 1024
_MAX_COMPLAINT = 2000  # maximum of characters


class PluginProblem(Exception):
    """A plugin could not be run to its end; the message is a sentence without secrets."""


class PluginNotFound(PluginProblem):
    """The command does not exist."""


@dataclass(frozen=True, slots=True)
class PluginResult:
    """The output of a plugin. `complaint`: its last line on stderr, which may contain secrets."""

    exit_status: int
    output: bytes = field(repr=False)
    complaint: str = field(repr=False)


class PluginRunner:
    """Runs at most `parallel` plugins at the same time; further plugins wait."""

    def __init__(self, reactor: IReactorFromThreads, *, parallel: int = 4) -> None:
        self._reactor = reactor
        self._slots = DeferredSemaphore(parallel)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = threading.Event()

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, timeout: float
    ) -> Deferred[PluginResult]:
        """Run `argv` with the daemon's environment, overridden by `env`; `timeout` is in seconds.

        Fails with `PluginProblem`. The child's stdin is empty, and it and its children are killed at the timeout.
        """
        return self._slots.run(self._in_thread, list(argv), dict(env), cwd, timeout)

    def close(self) -> None:
        """Kill running plugins when the daemon ends; they have separate sessions, which Ctrl-C does not reach."""
        self._closed.set()  # first, because a thread checks it after it has added a started plugin to the set
        for process in list(self._running):
            _kill(process)

    def _in_thread(
        self, argv: list[str], env: dict[str, str], cwd: str | None, timeout: float
    ) -> Deferred[PluginResult]:
        arguments = argv, env, cwd, timeout, self._running, self._closed
        return in_daemon_thread(self._reactor, "exec-plugin", _run, *arguments).addErrback(_as_problem, argv[0])


def _as_problem(failure: Failure, command: str) -> NoReturn:
    if isinstance(failure.value, PluginProblem):
        raise failure.value
    raise PluginProblem(f"{command}: {type(failure.value).__name__}")


def _run(
    argv: list[str],
    env: dict[str, str],
    cwd: str | None,
    timeout: float,
    running: set[subprocess.Popen[bytes]],
    closed: threading.Event,
) -> PluginResult:
    deadline = time.monotonic() + timeout
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **env},
            cwd=cwd,
            start_new_session=True,  # so that the plugin's children can be killed together with it
        )
    except FileNotFoundError:
        raise PluginNotFound(f"the command {argv[0]} was not found") from None
    except OSError as error:
        raise PluginProblem(f"the command {argv[0]} cannot be run: {error.strerror}") from None
    running.add(process)
    if closed.is_set():
        _kill(process)
    with process:
        try:
            output, complaint = _read(process, deadline)
            status = process.wait(max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, TimeoutError):
            _kill(process)
            raise PluginProblem(f"the command {argv[0]} did not end within {timeout:g} s") from None
        except BaseException:
            _kill(process)
            raise
        finally:
            running.discard(process)
    return PluginResult(status, output, _last_line(complaint))


def _read(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """Read both streams to their end. Raises `TimeoutError`, and `PluginProblem` for too much output."""
    assert process.stdout is not None
    assert process.stderr is not None
    kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for number in kept:
            selector.register(number, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                chunk = os.read(key.fd, 65536)
                kept[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
            if any(len(data) > _MAX_OUTPUT for data in kept.values()):
                raise PluginProblem(f"a plugin wrote more than {_MAX_OUTPUT} bytes")
    output, complaint = kept.values()
    return bytes(output), bytes(complaint)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children, unless it was reaped, because then its id can belong to another process."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return "".join(c for c in lines[-1] if c.isprintable())[:_MAX_COMPLAINT] if lines else ""
