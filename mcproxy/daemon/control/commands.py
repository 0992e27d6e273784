"""The commands of the control socket: reload, diff, layouts, dump, status. Each returns a JSON object as its answer."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mcproxy.config.config_changes import layout_warnings
from mcproxy.config.problem import ConfigErrors
from mcproxy.daemon.control.control_socket import Answer, Command
from mcproxy.daemon.control.environment_digests import differing_variables
from mcproxy.daemon.errors import DaemonError
from mcproxy.daemon.reload import ReloadResult

if TYPE_CHECKING:
    from mcproxy.config.config_changes import ConfigChange
    from mcproxy.config.loaded import Loaded
    from mcproxy.daemon.upgrade import Successor


class CommandTarget(Protocol):
    """The interface of the daemon (`daemon.lifecycle.Daemon`) that commands use."""

    @property
    def path(self) -> str:
        """The configuration file, absolute."""

    @property
    def serving(self) -> bool:
        """Whether a reload is possible."""

    @property
    def status(self) -> dict[str, Any]:
        """The daemon's state, for JSON."""

    async def collect_status(self) -> dict[str, Any]:
        """Return the full status document (`daemon.status`), for JSON."""

    def reload(self) -> Awaitable[ReloadResult]:
        """Request a reload; return the result of the first reload that starts after this call."""

    def upgrade(self) -> Awaitable[Successor]:
        """Start the new program, and end this one once the new one serves. After a DaemonError nothing has changed."""

    async def compare(self, path: str) -> tuple[Loaded, tuple[ConfigChange, ...]]:
        """Load the file `path`; return it with its changes to the configuration in force. Raises ConfigErrors."""

    @property
    def layouts(self) -> Mapping[str, Sequence[str]]:
        """The members in the order of their positions in resource versions, by the aggregate's name."""

    async def effective_configuration(self, form: str) -> str:
        """Return the configuration in force as text, secrets masked, in a form of `config.dump.FORMS`."""


def commands_of(daemon: CommandTarget) -> dict[str, Command]:
    """Return the commands by name."""
    return {
        "reload": lambda request: _reload(daemon, request),
        "diff": lambda request: _diff(daemon, request),
        "dump": lambda request: _dump(daemon, request),
        "layouts": lambda request: _layouts(daemon, request),
        "upgrade": lambda request: _upgrade(daemon, request),
        "status": lambda request: _status(daemon, request),
    }


async def _reload(daemon: CommandTarget, request: Mapping[str, Any]) -> Answer:
    """Reload if `file` is absent or is the daemon's file. For `salt` and `environ` see `environment_digests`."""
    refused = _refusal(daemon, request)
    if refused is not None:
        return refused
    outcome = await daemon.reload()
    return {
        "ok": outcome.ok,
        "invalid": outcome.invalid,
        "errors": list(outcome.errors),
        "warnings": [*outcome.warnings, *_stale_variables(request)],
        "changes": [str(change) for change in outcome.changes] if outcome.ok else [],
        "seconds": round(outcome.seconds, 3),
        "file": daemon.path,
    }


async def _upgrade(daemon: CommandTarget, request: Mapping[str, Any]) -> Answer:
    """Replace the running program by the installed one. The request has the fields of a reload."""
    refused = _refusal(daemon, request)
    if refused is not None:
        return refused
    try:
        successor = await daemon.upgrade()
    except DaemonError as error:
        errors = getattr(error, "errors", (error.cause,))
        todo = f"; {error.todo}" if error.todo else ""
        invalid = bool(getattr(error, "invalid", False))
        return {**_failed(""), "invalid": invalid, "errors": [f"{each}{todo}" for each in errors], "file": daemon.path}
    return {
        "ok": True,
        "pid": successor.pid,
        "version": successor.version,
        "warnings": _stale_variables(request),
        "file": daemon.path,
    }


def _refusal(daemon: CommandTarget, request: Mapping[str, Any]) -> Answer | None:
    """Return an error if the daemon runs another file than the request names, or does not serve; else None."""
    refused = _file_mismatch(daemon, request)
    if refused is not None:
        return refused
    if not daemon.serving:
        return _failed(f"mcproxy is {daemon.status['state']}; ask again when it serves")
    return None


def _file_mismatch(daemon: CommandTarget, request: Mapping[str, Any]) -> Answer | None:
    file = request.get("file")
    if isinstance(file, str) and os.path.realpath(file) != os.path.realpath(daemon.path):
        refused = _failed(f"this daemon runs {daemon.path}, not {file}; name that file with -c")
        return {**refused, "file": daemon.path}
    return None


def _stale_variables(request: Mapping[str, Any]) -> list[str]:
    """Return a warning for each environment variable whose value differs between the caller and the daemon."""
    return [
        f"the environment variable {name} has another value here than in the daemon, which keeps the environment "
        "of its start: restart it to use this value"
        for name in differing_variables(request, os.environ)
    ]


async def _diff(daemon: CommandTarget, request: Mapping[str, Any]) -> Answer:
    """Return what a reload of `file` (default: the daemon's own) would change, without applying it."""
    file = request.get("file")
    try:
        loaded, changes = await daemon.compare(os.path.abspath(file) if isinstance(file, str) else daemon.path)
    except ConfigErrors as error:
        problems = list(error.lines)
        return {"ok": False, "invalid": True, "errors": problems, "warnings": [], "changes": []}
    return {
        "ok": True,
        "warnings": [str(warning) for warning in (*loaded.warnings, *layout_warnings(daemon.layouts, loaded))],
        "changes": [str(change) for change in changes],
        "file": daemon.path,
    }


async def _layouts(daemon: CommandTarget, request: Mapping[str, Any]) -> Answer:
    """Return the positions of members in the resource versions of each aggregate in force."""
    refused = _refusal(daemon, request)
    if refused is not None:
        return refused
    layouts = {name: list(members) for name, members in daemon.layouts.items()}
    return {"ok": True, "layouts": layouts, "file": daemon.path}


async def _dump(daemon: CommandTarget, request: Mapping[str, Any]) -> Answer:
    """Return the configuration in force, secrets masked: `format` is yaml (default) or json."""
    from mcproxy.config.dump import FORMS  # imported here, so that an idle daemon needs less memory

    refused = _refusal(daemon, request)
    if refused is not None:
        return refused
    form = request.get("format", "yaml")
    if form not in FORMS:
        return _failed(f"unknown format; known are: {', '.join(FORMS)}")
    return {"ok": True, "configuration": await daemon.effective_configuration(form), "file": daemon.path}


async def _status(daemon: CommandTarget, request: Mapping[str, Any]) -> Answer:
    """Return the status document, without the figures of the service if `brief` is true.

    The answer is an error if the request names another `file` than the daemon's.
    """
    refused = _file_mismatch(daemon, request)
    if refused is not None:
        return refused
    return {"ok": True, **(daemon.status if request.get("brief") is True else await daemon.collect_status())}


def _failed(why: str) -> Answer:
    return {"ok": False, "invalid": False, "errors": [why], "warnings": []}
