"""The dependencies of a daemon, for its constructor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcproxy.config.model import Config
from mcproxy.daemon.daemon_log import LineObserver
from mcproxy.daemon.service_interface import LogFiles
from mcproxy.daemon.systemd import Notifier
from mcproxy.net.bind import SystemdSockets
from mcproxy.net.listening_sockets import HandedOver

if TYPE_CHECKING:
    from mcproxy.config.dump.config_changes import Change
    from mcproxy.config.loaded import Loaded
    from mcproxy.daemon.upgrade.handover import Takeover


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The dependencies of a daemon: each can be replaced in a test."""

    reactor: Any
    path: str
    """The configuration file, absolute."""
    load: Callable[[str], Awaitable[Loaded]]
    """Reads and checks a file and the files that it names, without blocking the reactor. Raises ConfigErrors."""
    compare: Callable[[Config, Config], Awaitable[tuple[Change, ...]]]
    """Returns the changes from the first configuration to the second, without blocking the reactor."""
    dump: Callable[[Config, str], Awaitable[str]]
    """Returns a configuration as text, masked, in a form of `config.dump.FORMS`, without blocking the reactor."""
    notifier: Notifier
    observer: LineObserver
    log_files: LogFiles
    systemd_sockets: SystemdSockets = field(default_factory=lambda: SystemdSockets({}))
    handed_over: HandedOver = field(default_factory=HandedOver)
    """Inherited listening sockets, which the service uses instead of opening its own."""
    takeover: Takeover | None = None
    """From the daemon that this one replaces; None: it replaces none."""
