"""The place in the configuration file of an error that was found only when the file was applied."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcproxy.daemon.errors import DaemonError
from mcproxy.net.bind import BindError
from mcproxy.net.tls_contexts import PairError

if TYPE_CHECKING:
    from mcproxy.config.loaded import Loaded, Location

_CERTIFICATE = re.compile(r"certificate (\S+): ")


def place_of(error: BaseException, loaded: Loaded) -> str:
    """Return ``file:line:column: key: ``, or "" if no place in the file is the cause."""
    place = _find(error, loaded)
    return f"{place.mark}: {place.key}: " if place is not None else ""


def _find(error: BaseException, loaded: Loaded) -> Location | None:
    if isinstance(error, BindError):
        names = [listener.name for listener in loaded.config.listeners if str(listener.bind) == str(error.bind)]
        return loaded.location("listeners", names[0], "bind") if names else None
    if isinstance(error, PairError):
        match = _CERTIFICATE.match(str(error))
        return loaded.location("certificates", match[1], "certFile") if match else None
    if isinstance(error, DaemonError) and str(error).startswith("control socket"):
        return loaded.location("daemon", "controlSocket")
    if isinstance(error, DaemonError) and str(error).startswith("state directory"):
        return loaded.location("daemon", "stateDir")
    logging = loaded.config.logging
    for name, log in (("access", logging.access), ("audit", logging.audit)):
        if isinstance(error, OSError) and log is not None and error.filename == log.file:
            return loaded.location("logging", name, "file")
    return None
