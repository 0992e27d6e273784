"""The log files of a daemon of several processes, as `service_interface.LogFiles`."""

from __future__ import annotations

from mcproxy.daemon.processes.children import Children


class LogFilesOfChildren:
    """The log files of all processes (`service_interface.LogFiles`)."""

    def __init__(self, children: Children) -> None:
        self._children = children

    def reopen(self) -> None:
        self._children.tell_all("reopen_logs")

    def close(self) -> None:
        """Nothing: each process closes its own."""
