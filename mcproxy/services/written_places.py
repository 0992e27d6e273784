"""Where this daemon writes exported services, kept in `daemon.stateDir`: what is found there later is taken away.

An export that leaves the file while no daemon runs names its clusters and namespaces no more, so that nobody would look
for its imports. Only places that this file once had are looked at: objects with our label elsewhere are not ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from twisted.logger import Logger

from mcproxy.aggregate import state_file
from mcproxy.config.model import LeaseName
from mcproxy.services.cache_scopes import MULTICLUSTER, FollowedKind

log = Logger(__name__)

_FILE = "exports.state"
_KIND, _VERSION = "exports", 1


class Written(msgspec.Struct, frozen=True):
    """What is written to one cluster."""

    namespaces: tuple[str, ...]
    """"" alone: all."""
    lease: tuple[str, str]
    """Namespace and name."""
    multicluster: bool = False
    """ServiceImports too."""

    @property
    def lease_name(self) -> LeaseName:
        """The Lease by which it is written to."""
        return LeaseName(namespace=self.lease[0], name=self.lease[1])


Places = Mapping[str, Written]
"""By cluster."""


def kinds_of(written: Written) -> tuple[FollowedKind, ...]:
    """Return the kinds of objects of ours that may be there."""
    return MULTICLUSTER if written.multicluster else (FollowedKind.SLICES, FollowedKind.SERVICES)


_decoder = msgspec.json.Decoder(dict[str, Written])
_encode = msgspec.json.Encoder(order="deterministic").encode


def exists(state_dir: str | None) -> bool:
    """Whether something was written once."""
    return state_dir is not None and (Path(state_dir) / _FILE).exists()


def load(state_dir: str | None) -> Places:
    """Return what was saved; nothing of a file that cannot be used, which is put aside."""
    if state_dir is None:
        return {}
    path = Path(state_dir) / _FILE
    payload = state_file.read(path, _KIND, _VERSION)
    if payload is None:
        return {}
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        state_file.put_aside(path, f"its contents have another form: {error}")
        return {}


def save(state_dir: str | None, places: Places) -> None:
    """Save, or remove what is there if there is nothing. A disk that is full is no reason not to serve."""
    if state_dir is None:
        return
    path = Path(state_dir) / _FILE
    try:
        if places:
            state_file.write(path, _KIND, _VERSION, _encode(places))
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warn(
            "a state file cannot be written",
            event="state_not_saved",
            file=str(path),
            cause=error.strerror or str(error),
            todo="make daemon.stateDir writable, or free space there",
        )
