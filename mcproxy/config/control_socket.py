"""The default path of the control socket, which the daemon and the commands derive in the same way.

It is in the runtime folder that the service manager created, else in the folder of the configuration file. The name
contains a digest of the file's path, so that daemons with different files in one folder have different sockets. For
the file of the packaged unit, it is `control.sock`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping

MAIN_FILE = "/etc/mcproxy/mcproxy.yaml"
"""The configuration file of the packaged systemd unit."""
RUNTIME_FOLDER = "/run/mcproxy"
"""The directory that systemd creates for the packaged unit (RuntimeDirectory=)."""
MAX_PATH = 107
"""Greatest length of a unix socket's path in bytes (unix(7))."""

_DIGITS = 10
_STEM = 24  # limit of the part of the socket's name from the file's name (bytes)


def possible_places(file: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield possible paths of the control socket of a daemon that runs `file`, the best first.

    The first paths are in $RUNTIME_DIRECTORY (systemd.exec(5)) and /run/mcproxy. The last two are in the folder of the
    file, one of them with a short name. Paths longer than MAX_PATH are omitted. Without a folder of `file`, there are
    no paths.
    """
    import hashlib  # imported here, because most commands do not need it

    folder, name = os.path.split(os.path.abspath(file))
    folder = os.path.realpath(folder)  # not the file, which can be a link that changes with each version (ConfigMaps)
    if file == "-" or folder == "/dev" or folder.startswith("/proc/"):
        return
    path = os.path.join(folder, name)
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", os.path.splitext(name)[0])[:_STEM]
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:_DIGITS]
    own = "control.sock" if path == MAIN_FILE else f"{stem}-{digest}.sock"
    given = [each for each in environ.get("RUNTIME_DIRECTORY", "").split(":") if os.path.isabs(each)]
    places = [os.path.join(each, own) for each in dict.fromkeys((*given[:1], RUNTIME_FOLDER))]
    places += [os.path.join(folder, f"{name}.sock"), os.path.join(folder, f".{digest}.sock")]
    yield from (place for place in places if len(os.fsencode(place)) <= MAX_PATH)


def default_control_socket(file: str, environ: Mapping[str, str], taken: Collection[str] = ()) -> str | None:
    """Return the path at which a daemon of this user creates its control socket; None if no folder is writable.

    `taken` are paths on which another process listens.
    """
    for place in possible_places(file, environ):
        folder = os.path.dirname(place)
        if place not in taken and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return place
    return None
