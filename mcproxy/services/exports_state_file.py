"""The state file with the places to which this daemon has written exported services, in `daemon.stateDir`.

An export may leave the configuration while no daemon runs: the next daemon finds its clusters and namespaces here, and
deletes its imports there. Objects with our label in other places are not ours.
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
    """The places in one cluster."""

    namespaces: tuple[str, ...]
    """All namespaces: only ""."""
    lease: tuple[str, str]
    """Namespace and name of the Lease."""
    multicluster: bool = False
    """Whether ServiceImports are written too."""

    @property
    def lease_name(self) -> LeaseName:
        """The Lease that writers of the cluster need."""
        return LeaseName(namespace=self.lease[0], name=self.lease[1])


Places = Mapping[str, Written]
"""By cluster."""


def kinds_of(written: Written) -> tuple[FollowedKind, ...]:
    """Return the kinds of objects of ours that may exist in the places."""
    return MULTICLUSTER if written.multicluster else (FollowedKind.SLICES, FollowedKind.SERVICES)


_decoder = msgspec.json.Decoder(dict[str, Written])
_encode = msgspec.json.Encoder(order="deterministic").encode


def exists(state_dir: str | None) -> bool:
    """Whether there is a state file."""
    return state_dir is not None and (Path(state_dir) / _FILE).exists()


def load(state_dir: str | None) -> Places:
    """Return the saved places; an unusable file is put aside, and counts as empty."""
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
    """Save the places, or remove the file if there are none. An error is only logged, so that mcproxy serves."""
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
