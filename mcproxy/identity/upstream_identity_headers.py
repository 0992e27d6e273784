"""The headers that carry a user to a cluster: Impersonate-* with the proxy's own credential, or X-Remote-*.

Source: Kubernetes "User impersonation" and "Authenticating proxy". The encoding is that of client-go
(`transport/round_trippers.go`): values are sent as UTF-8, and keys of extras are percent-encoded where necessary in a
header name. A user name that would not arrive unchanged is refused, since a changed name can be another user's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mcproxy.config import model
from mcproxy.identity.authorization.attributes import go_quote
from mcproxy.kube.constrained_impersonation import implied_groups
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import NODE_PREFIX, SERVICE_ACCOUNT_PREFIX, UserInfo

if TYPE_CHECKING:
    from mcproxy.identity.own_grants import ConstrainedGrant

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
#: The characters that client-go does not encode in a header name (RFC 9110 token, without the percent sign).
_PLAIN_KEY_BYTES = frozenset(b"!#$&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_WITH_MODES = (SERVICE_ACCOUNT_PREFIX, NODE_PREFIX)
_OF_CREDENTIALS = "authentication.kubernetes.io/"
"""The prefix of extras that describe a credential, which no authorizer of a cluster evaluates."""
_CACHED_USERS = 1024
_CACHED_BYTES = 4096  # longer blocks are not cached, so that no cluster keeps more than 4 MiB


class UpstreamIdentityHeaders:
    """The identity headers of one cluster; caches the blocks of users."""

    __slots__ = ("_alone", "_blocks", "_cluster", "_sends_no_user", "grant")

    def __init__(
        self,
        cluster: model.ClusterConfig,
        grant: ConstrainedGrant | None = None,
        previous: UpstreamIdentityHeaders | None = None,
    ) -> None:
        """`grant` decides whether the cluster gets only the names of service accounts and nodes; None: it does not.

        `previous` are the headers of an equal cluster before a reload; their cached blocks are taken over.
        """
        self._cluster = cluster
        self.grant = grant if cluster.identity is model.UpstreamIdentity.IMPERSONATE else None
        self._blocks: dict[UserInfo, bytes] = {} if previous is None else previous._blocks
        self._alone: dict[UserInfo, UserInfo] = {} if previous is None else previous._alone
        self._sends_no_user = cluster.identity in (model.UpstreamIdentity.PROXY, model.UpstreamIdentity.PASSTHROUGH)

    def alone(self, user: UserInfo) -> UserInfo | None:
        """Return `named_alone` if `grant` has to be asked about the user, else None."""
        if self.grant is None or not user.name.startswith(_WITH_MODES):
            return None
        found = self._alone.get(user)
        if found is None:
            found = named_alone(self._cluster, user)
            if found is not None and sum(len(value) for _, values in user.extra for value in values) <= _CACHED_BYTES:
                if len(self._alone) >= _CACHED_USERS:
                    self._alone.clear()
                self._alone[user] = found
        return found

    def headers_for(self, user: UserInfo) -> bytes:
        """Return the header lines to add to a request's fields, each with its CRLF; b"" if the cluster gets no user.

        Raises StatusError (403) for a user that cannot be written in headers.
        """
        if self._sends_no_user:
            return b""
        block = self._blocks.get(user)
        if block is None:
            block = upstream_fields_for(self._cluster, user)
            if len(block) > _CACHED_BYTES:
                return block
            if len(self._blocks) >= _CACHED_USERS:
                del self._blocks[next(iter(self._blocks))]  # the oldest block; an active user gets a new one
            self._blocks[user] = block
        return block


def named_alone(cluster: model.ClusterConfig, user: UserInfo) -> UserInfo | None:
    """Return a service account or node in the form for constrained impersonation: with only its name.

    Returns None for other users, and for a user with groups that its name does not imply or with extras that are sent:
    without them the cluster would see another user. The uid is not sent.
    """
    if not user.name.startswith(_WITH_MODES):
        return None
    implied = implied_groups(user.name)
    if implied is None or set(implied) != set(user.groups):
        return None
    if any(_sends_extra(cluster, key) and not key.startswith(_OF_CREDENTIALS) for key, _ in user.extra):
        return None
    return UserInfo(user.name)


def upstream_fields_for(cluster: model.ClusterConfig, user: UserInfo) -> bytes:
    """Return the headers that carry `user` to `cluster`; raises StatusError (403) as `headers_for`."""
    if cluster.identity is model.UpstreamIdentity.IMPERSONATE:
        extra = (item for item in user.extra if _sends_extra(cluster, item[0]))
        return b"".join(_lines(b"Impersonate-", user, extra))
    if cluster.identity is model.UpstreamIdentity.REQUEST_HEADER:
        return b"".join(_lines(b"X-Remote-", user, user.extra))
    return b""


def check_extras_are_sent(cluster: model.ClusterConfig, user: UserInfo) -> None:
    """Raise StatusError (403) if a client requests a user with an extra key that would not be sent.

    Without the key the request would run as another user, perhaps with more rights: extras can restrict (`scopes`).
    """
    if cluster.identity is not model.UpstreamIdentity.IMPERSONATE:
        return
    for key, _ in user.extra:
        if not _sends_extra(cluster, key):
            message = f"forbidden: the extra {go_quote(key)} is not passed on to cluster {go_quote(cluster.name)}"
            raise StatusError(403, message, details={})


def _sends_extra(cluster: model.ClusterConfig, key: str) -> bool:
    return key in cluster.impersonate_extras or cluster.impersonate_extras == ("*",)


def _lines(prefix: bytes, user: UserInfo, extra: Iterable[tuple[str, tuple[str, ...]]]) -> Iterable[bytes]:
    if not user.name:
        raise _refusal("user name", "it is empty")
    yield b"%bUser: %b\r\n" % (prefix, _value(user.name, "user name"))
    for group in dict.fromkeys(user.groups):
        yield b"%bGroup: %b\r\n" % (prefix, _value(group, "group"))
    if user.uid:
        yield b"%bUid: %b\r\n" % (prefix, _value(user.uid, "uid"))
    for key, values in extra:
        name = _key(key)
        for value in values:
            yield b"%bExtra-%b: %b\r\n" % (prefix, name, _value(value, "extra"))


def _value(text: str, what: str) -> bytes:
    if _CONTROL.search(text):
        raise _refusal(what, "it holds a control character")
    if text != text.strip():
        raise _refusal(what, "it begins or ends with a blank")
    return _encoded(text, what)


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise _refusal(what, "it is not Unicode text") from None


def _key(key: str) -> bytes:
    """Percent-encode a key of an extra. Control characters are an error, although they would be harmless here."""
    if not key:
        raise _refusal("extra key", "it is empty")
    if _CONTROL.search(key):
        raise _refusal("extra key", "it holds a control character")
    encoded = _encoded(key, "extra key")
    return b"".join(b"%c" % byte if byte in _PLAIN_KEY_BYTES else b"%%%02X" % byte for byte in encoded)


def _refusal(what: str, why: str) -> StatusError:
    return StatusError(403, f"forbidden: the user cannot be sent to the cluster: {what}: {why}", details={})
