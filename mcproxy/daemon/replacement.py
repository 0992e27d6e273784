"""Replaces this daemon's program (`mcproxy upgrade`): checks whether it is possible, and undoes a failed attempt.

An attempt is an `upgrade.Upgrade`, during which no configuration is applied.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import DeferredLock
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mcproxy.daemon.dependencies import DaemonService
from mcproxy.daemon.errors import DaemonError, log_error
from mcproxy.daemon.systemd import Notifier
from mcproxy.net.bind import SystemdSockets

if TYPE_CHECKING:
    from mcproxy.daemon.upgrade import Successor, Upgrade

log = Logger(__name__)

_REOPEN_DELAY, _REOPEN_TRIES = 0.5, 20
"""Seconds between two attempts to reopen the control socket after a failed upgrade, and the number of attempts."""


class ReplaceableDaemon(Protocol):
    """The interface of the daemon (`lifecycle.Daemon`) for a replacement."""

    @property
    def state(self) -> str: ...

    @property
    def serving(self) -> bool: ...

    def free_control_socket(self) -> Awaitable[None]:
        """Close the control socket; return when another daemon can open it."""

    def open_control_socket(self) -> None:
        """Open the control socket again, unless it is open or there is none. Raises DaemonError."""

    def stop_watchdog(self) -> None:
        """Stop the watchdog notifications to systemd, because the new daemon sends them."""


class Replacement:
    """Attempts to replace the program, one at a time. It is the `upgrade.Upgradable` of each attempt."""

    def __init__(
        self,
        daemon: ReplaceableDaemon,
        service: DaemonService,
        applying: DeferredLock,
        *,
        reactor: Any,
        notifier: Notifier,
        systemd_sockets: SystemdSockets,
    ) -> None:
        """`applying` is the lock held while a configuration is applied."""
        self.successor: Successor | None = None
        """The daemon that has replaced this one, which retires."""
        self._daemon = daemon
        self._service = service
        self._reactor = reactor
        self._notifier = notifier
        self._systemd_sockets = systemd_sockets
        self._applying = applying
        self._begun = False
        self._upgrade: Upgrade | None = None

    async def run(self) -> Successor:
        """Start the new program; return the daemon that has replaced this one, and keep `applying` locked.

        On an error nothing has changed; the error is logged and raised as DaemonError.
        """
        if self._begun:
            error = DaemonError("mcproxy is being replaced already", todo="wait for the outcome of that upgrade")
            log_error(log, "another request to replace the program is refused", error, event="upgrade_refused")
            raise error
        try:
            if not self._daemon.serving:
                raise DaemonError(f"mcproxy is {self._daemon.state}")
            self._begun = True
            try:
                self.successor = await self._attempt()
            finally:
                self._begun, self._upgrade = False, None
        except DaemonError as error:
            log_error(log, "the program was not replaced; this one continues", error, event="upgrade_failed")
            raise
        return self.successor

    def abort(self, why: str) -> None:
        """Abort the running attempt, unless its outcome is decided."""
        if self._upgrade is not None:
            self._upgrade.abort(why)

    async def _attempt(self) -> Successor:
        """Make one attempt. On return, the lock is held. Raises DaemonError."""
        from mcproxy.daemon.upgrade import Upgrade, command_line

        await self._applying.acquire()
        try:
            self._check_serving()
            log.info("upgrade: the new program is being started", event="upgrade_started")
            await self._service.save()
            self._check_serving()
            self._upgrade = Upgrade(self._reactor, self, command_line())
            return await self._upgrade.run()
        except BaseException:
            await self._undo_attempt()
            self._applying.release()
            raise

    def _check_serving(self) -> None:
        """Raise DaemonError if a stop was requested meanwhile."""
        if not self._daemon.serving:
            raise DaemonError("mcproxy is stopping")

    async def _undo_attempt(self) -> None:
        """Undo the changes of a failed upgrade."""
        if not self._daemon.serving:
            return
        try:
            self._service.restore_sockets()
        except Exception as error:
            log_error(
                log, "the settings of a listening socket could not be restored", error, event="socket_not_restored"
            )
        for tries in itertools.count():  # retry until the process that has the control socket has ended
            if not bool(self._daemon.serving):  # the daemon can stop meanwhile; bool() resets mypy's narrowing
                return
            try:
                self._daemon.open_control_socket()
                return
            except DaemonError as error:
                if tries == _REOPEN_TRIES:
                    log_error(
                        log, "the control socket could not be reopened", error, event="control_socket_not_restored"
                    )
                    return
            await deferLater(self._reactor, _REOPEN_DELAY)

    # -- called by an upgrade (`upgrade.Upgradable`) ---------------------------------------------------

    def sockets_to_hand_over(self) -> tuple[list[tuple[str, int]], Mapping[str, int]]:
        return self._service.listening, self._systemd_sockets.descriptors

    def environment_of_successor(self) -> dict[str, str]:
        return {**os.environ, **self._notifier.environment}

    def free_control_socket(self) -> Awaitable[None]:
        return self._daemon.free_control_socket()

    def name_successor(self, pid: int) -> None:
        self._daemon.stop_watchdog()
        self._notifier.replaced(pid)
