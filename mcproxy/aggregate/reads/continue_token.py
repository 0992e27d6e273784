"""Continue tokens of an aggregate's lists. Pure.

A token is compact JSON in base64url without padding. It has the list's resource version (every member's version), the
member and the key of the last page's last object, and digests of the list's subject, of the members in their order
and of the members' objects at these versions. A token is no secret and grants nothing: a client gets only objects
that its own list would have after this object. Source, also of the messages: apiserver `storage/continue.go`.
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
MAX_TOKEN_LENGTH = 128 * 1024
_INVALID_TOKEN = "invalid continue token: continue key is not valid"
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9_-]")


class ContinueToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A list continues after the object `key` (namespace/name) of `cluster`; `listed` is a `listed_digest`."""

    version: str = msgspec.field(name="v")
    resource_version: str = msgspec.field(name="rv")
    cluster: str
    key: str = msgspec.field(name="continue")
    listed: str = msgspec.field(name="of")
    stores: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """Versions by member and namespace, for members whose stores (one for each namespace in scope) differ in version.
    """
    order: str = ""
    """The `layout_digest` of the members in the order of the pages; "" in tokens of earlier program versions."""
    state: str = ""
    """The `state_digest` of the states from which the pages come; "" in tokens of earlier program versions."""

    @property
    def last(self) -> tuple[str, str]:
        """Namespace and name of the previous page's last object."""
        namespace, _, name = self.key.partition("/")
        return namespace, name

    def encode(self) -> str:
        """Return the token in the form that clients send."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).rstrip(b"=").decode()

    def inconsistent(self) -> ContinueToken:
        """Return a token that continues after the same object, but with the present state."""
        return msgspec.structs.replace(self, resource_version=INCONSISTENT, stores={}, state="")

    def at_start_of(self, cluster: str) -> ContinueToken:
        """Return a token that continues with the first object of a member."""
        return msgspec.structs.replace(self, cluster=cluster, key="/")


class _TokenVersion(msgspec.Struct):
    v: str = ""


def decode_token(text: str) -> ContinueToken:
    """Read a token. Raises StatusError 400."""
    if found := _NOT_BASE64.search(text):
        raise StatusError(400, f"{_INVALID_TOKEN}: illegal base64 data at input byte {found.start()}")
    if len(text) > MAX_TOKEN_LENGTH:
        raise StatusError(400, f"{_INVALID_TOKEN}: it is too long")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise StatusError(400, f"{_INVALID_TOKEN}: illegal base64 data at input byte {len(text)}") from None
    try:
        version = msgspec.json.decode(data, type=_TokenVersion).v
        if version != TOKEN_VERSION:
            raise StatusError(400, f"{_INVALID_TOKEN}: server does not recognize this encoded version {version[:64]}")
        token = msgspec.json.decode(data, type=ContinueToken)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise StatusError(400, f"{_INVALID_TOKEN}: it does not hold what a token holds") from None
    if "/" not in token.key:
        raise StatusError(400, f"{_INVALID_TOKEN}: it names no object")
    return token


def layout_digest(names: Iterable[str]) -> str:
    """Return a short digest of members in their order."""
    return sha256(",".join(names).encode()).hexdigest()[:8]


def state_digest(stores: Iterable[tuple[str, str, int]]) -> str:
    """Return a short digest of states of stores: member, namespace, `ObjectSequence.fingerprint` of each.

    A version alone does not identify a state: a member that was restored from a backup has the same versions again with
    other objects. Every replica computes the same digest for the same objects.
    """
    lines = "\n".join(f"{member}\0{namespace}\0{fingerprint}" for member, namespace, fingerprint in stores)
    return sha256(lines.encode()).hexdigest()[:16]


def listed_digest(*parts: str) -> str:
    """Return a short digest of a list's subject: resource, namespace and selectors."""
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
