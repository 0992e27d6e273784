"""The folder of `daemon.stateDir`: made if it is missing, and refused where others have access to it.

Its files have objects that not all users of the clusters may see, so only the daemon's user may read it; and only that
user may write it, since a restart trusts it.
"""

from __future__ import annotations

import os
import stat

from mcproxy.daemon.errors import DaemonError

_MAKES = "create it for the daemon's user, or let systemd do so with StateDirectory="


def prepare(path: str) -> None:
    """Make sure that `path` is a folder of this process's user alone. Raises DaemonError.

    It is made with mode 0700, but no folder above it: that is more likely a typing error. The mode of one that is
    there is not changed: it may be another folder than was meant.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        wrong = fault(path, os.geteuid())
        if wrong is not None:
            raise DaemonError(f"state directory {path}: {wrong[0]}", todo=wrong[1]) from None
    except OSError as error:
        raise DaemonError(f"state directory {path}: {error.strerror}", todo=_MAKES) from error
    else:
        os.chmod(path, 0o700)  # whatever the umask


def fault(path: str, owner: int | None) -> tuple[str, str] | None:
    """Return what is wrong with something that exists at `path`, and what to do; None: it can be used.

    `owner` is the id of the daemon's user, None where that is not known.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        return str(error.strerror), _MAKES
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder", "name a folder, or remove what is there"
    if owner is not None and found.st_uid != owner:
        return f"it belongs to another user (uid {found.st_uid})", "let the daemon's user own it"
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return f"others have access to it (mode {mode:04o})", f"chmod 700 {path}"
    if mode & 0o700 != 0o700:
        return f"its owner may not use it (mode {mode:04o})", f"chmod 700 {path}"
    return None
