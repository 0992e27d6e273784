"""Checks of credentials, for the configuration file and for kubeconfigs."""

from __future__ import annotations

import os
import re
import shutil

from mcproxy.config.model import ClusterConfig, Credentials, PEMFile, Secret
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Mapping, Place

_TOKEN = re.compile(r"[!-~]+\Z")
_MAX_PASSWORD = 4096  # bytes


def is_token(token: str) -> bool:
    """Whether a header can carry a token."""
    return _TOKEN.match(token) is not None


def check_token(context: Context, place: Place, token: str) -> bool:
    """Check that a header can carry a token; messages do not show it."""
    if is_token(token):
        return True
    context.error(place, "the token has characters that no header can carry", "give it without spaces and line ends")
    return False


def token_file(context: Context, place: Place) -> str | None:
    """Return the absolute name of a token file, and check its contents. The daemon reads it again when it changes."""
    found = context.read(place)
    if found is None:
        return None
    path, data = found
    if context.offline:
        return path
    context.check_private(place, path)
    token = data.strip()
    if not token:
        context.error(place, f"{path} is empty", "put the token into it")
    elif not is_token(token.decode("latin-1")):
        context.error(place, f"{path} holds no token", "put the token into it, and nothing else")
    return path


def password_file(context: Context, place: Place) -> tuple[str, Secret] | None:
    """Return the absolute name and the contents of a password file, without the line end. Messages do not show it."""
    found = context.read(place)
    if found is None:
        return None
    path, data = found
    if context.offline:
        return path, Secret("")
    context.check_private(place, path)
    try:
        text = data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        text = "\n"
    if not text:
        context.error(place, f"{path} is empty", "put the password into it")
    elif len(data) > _MAX_PASSWORD or not text.isprintable():
        context.error(place, f"{path} holds no password", "put the password into it on one line, and nothing else")
    return path, Secret(text)


def command(context: Context, place: Place, hint: str) -> str | None:
    """Return the program to run: an absolute name if `place` names a file, else a name to look up on PATH.

    A missing file is an error. A name that is not on PATH is a warning, because the daemon's PATH can differ.
    """
    name = place.string
    right = hint or "install it"
    if not name or "/" not in name:
        if name and not context.offline and shutil.which(name, path=context.environ.get("PATH", "")) is None:
            context.warn(place, "program-not-found", f"the program {name} is not on PATH", right)
        return name
    path = context.path(place)
    if path is not None and not context.offline and not (os.path.isfile(path) and os.access(path, os.X_OK)):
        context.error(place, f"{path} is not a program that can be run", right)
    return path


def check_verification(
    context: Context,
    insecure: Place | None,
    ca: PEMFile | None,
    ca_key: str,
    whose: str = "the cluster's certificate is",
) -> None:
    """Warn of disabled certificate verification. Authorities in addition are an error, because they contradict it."""
    if insecure is None or insecure.value is not True:
        return
    if ca is not None:
        context.error(insecure, f"certificates are not to be verified, but {ca_key} is given", "keep one of the two")
    else:
        what = f"{whose} not verified: anyone on the network path can read and change everything"
        context.warn(insecure, "not-verified", what, f"give its authority in {ca_key} instead")


def has_any(credentials: Credentials) -> bool:
    return credentials != Credentials()


def is_anonymous(place: Place, cluster: ClusterConfig) -> bool:
    """Whether a cluster knows nobody in the proxy's own requests; at the end of a tunnel they are the hubUser's."""
    return are_missing(place, cluster.credentials) and not cluster.is_behind_tunnels


def are_missing(cluster: Place, credentials: Credentials) -> bool:
    """Whether a cluster has no credentials. Invalid credentials count as given, since they are reported."""
    written = cluster.get("credentials")
    empty = written is not None and isinstance(written.node, Mapping) and not written.node.entries
    return not has_any(credentials) and (empty or not cluster.has("credentials"))
