"""Loads and saves the state file with the clusters and namespaces to which this daemon has written exported services.

The file is in `daemon.stateDir`. If an export leaves the configuration while no daemon runs, the next daemon finds its
clusters and namespaces here and deletes its imports. Objects with mcproxy's label elsewhere are not this daemon's.
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
    """The namespaces of one cluster to which this daemon has written exported services."""

    namespaces: tuple[str, ...]
    """The namespaces; ("",) means all."""
    lease: tuple[str, str]
    """Namespace and name of the Lease."""
    multicluster: bool = False
    """Whether ServiceImports are written too."""

    @property
    def lease_name(self) -> LeaseName:
        """The Lease that a writer to the cluster has to hold."""
        return LeaseName(namespace=self.lease[0], name=self.lease[1])


Places = Mapping[str, Written]
"""The written namespaces by cluster."""


def kinds_of(written: Written) -> tuple[FollowedKind, ...]:
    """Return the kinds of managed objects that can exist in the written namespaces."""
    return MULTICLUSTER if written.multicluster else (FollowedKind.SLICES, FollowedKind.SERVICES)


_decoder = msgspec.json.Decoder(dict[str, Written])
_encode = msgspec.json.Encoder(order="deterministic").encode


def exists(state_dir: str | None) -> bool:
    """Whether there is a state file."""
    return state_dir is not None and (Path(state_dir) / _FILE).exists()


def load(state_dir: str | None) -> Places:
    """Return the saved content; an unusable file is renamed, and counts as empty."""
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
    """Save the content, or remove the file if it is empty. Errors are only logged, so that mcproxy can serve."""
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
