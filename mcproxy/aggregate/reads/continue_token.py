"""Continue tokens of an aggregate's lists. Pure.

base64url without padding of compact JSON: the list's resource version (every member's version), the member that the
last page ended in, the last object's key, a digest of what was listed, one of the members in their order, and one of
the objects that the members have at these versions. A token is no secret and grants nothing: a client gets what its own
list would have from that place on. Source: apiserver `storage/continue.go`, whose messages these are.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from hashlib import sha256

import msgspec

from mcproxy.kube.status import StatusError

TOKEN_VERSION = "mcproxy.io/v1"
INCONSISTENT = "-1"
"""`rv` of a token that continues with the present state, as in Kubernetes."""
MAX_LENGTH = 128 * 1024
_INVALID = "invalid continue token: continue key is not valid"
_BAD = re.compile(r"[^A-Za-z0-9_-]")


class ContinueToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a list continues: after the object `key` (namespace/name) of `cluster`; `listed` is a `listed_digest`."""

    version: str = msgspec.field(name="v")
    resource_version: str = msgspec.field(name="rv")
    cluster: str
    key: str = msgspec.field(name="continue")
    listed: str = msgspec.field(name="of")
    stores: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """Versions by member and namespace, where a member's stores (one for each namespace in scope) differ."""
    order: str = ""
    """The `layout_digest` of the members whose order the pages go by; "" in tokens of earlier versions."""
    state: str = ""
    """The `state_digest` of what the pages come from; "" in tokens of earlier versions."""

    @property
    def last(self) -> tuple[str, str]:
        """Namespace and name of the last object of the page before."""
        namespace, _, name = self.key.partition("/")
        return namespace, name

    def encode(self) -> str:
        """Return it as clients send it."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).rstrip(b"=").decode()

    def inconsistent(self) -> ContinueToken:
        """Return the token that continues at the same place with the present state."""
        return msgspec.structs.replace(self, resource_version=INCONSISTENT, stores={}, state="")

    def at_start_of(self, cluster: str) -> ContinueToken:
        """Return the token that continues with the first object of a member."""
        return msgspec.structs.replace(self, cluster=cluster, key="/")


class _Version(msgspec.Struct):
    v: str = ""


def decode(text: str) -> ContinueToken:
    """Read a token. Raises StatusError 400."""
    if found := _BAD.search(text):
        raise StatusError(400, f"{_INVALID}: illegal base64 data at input byte {found.start()}")
    if len(text) > MAX_LENGTH:
        raise StatusError(400, f"{_INVALID}: it is too long")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise StatusError(400, f"{_INVALID}: illegal base64 data at input byte {len(text)}") from None
    try:
        version = msgspec.json.decode(data, type=_Version).v
        if version != TOKEN_VERSION:
            raise StatusError(400, f"{_INVALID}: server does not recognize this encoded version {version[:64]}")
        token = msgspec.json.decode(data, type=ContinueToken)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise StatusError(400, f"{_INVALID}: it does not hold what a token holds") from None
    if "/" not in token.key:
        raise StatusError(400, f"{_INVALID}: it names no object")
    return token


def layout_digest(names: Iterable[str]) -> str:
    """Return a short digest of members in their order."""
    return sha256(",".join(names).encode()).hexdigest()[:8]


def state_digest(stores: Iterable[tuple[str, str, int]]) -> str:
    """Return a short digest of states of stores: member, namespace, `ObjectSequence.fingerprint` of each.

    A version alone does not name a state: a member that was put back to a backup has the same versions again, with
    other objects. Every replica finds the same digest for the same objects, whatever its clock and its past.
    """
    lines = "\n".join(f"{member}\0{namespace}\0{fingerprint}" for member, namespace, fingerprint in stores)
    return sha256(lines.encode()).hexdigest()[:16]


def listed_digest(*parts: str) -> str:
    """Return a short digest of what a list is of: resource, namespace and selectors."""
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
