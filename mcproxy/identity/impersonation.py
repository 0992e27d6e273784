"""Impersonation requested by a client: parsing of its Impersonate-* headers, and authorization.

Each requested attribute needs one review, in Kubernetes' order, with the verb of a mode (`ways`) or `impersonate`. An
allowed request continues as the impersonated user; the real user is only in the log. Source: k8s.io/apiserver
`pkg/endpoints/filters/impersonation`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

from mcproxy.identity.authorization.attributes import Attributes, forbidden
from mcproxy.identity.authorization.authorizer import LastModes
from mcproxy.kube.constrained_impersonation import (
    ASSOCIATED_NODE,
    GROUP,
    MANY,
    NODE_NAME_KEY,
    UNKNOWN,
    VERB,
    implied_groups,
    modes_for,
    node_name,
    refused_extra,
    refused_group,
    verb_of,
    verb_on,
)
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import (
    ANONYMOUS_NAME,
    AUTHENTICATED,
    UNAUTHENTICATED,
    UserInfo,
    service_account,
    service_account_groups,
)

if TYPE_CHECKING:
    from mcproxy.http.messages import Header
    from mcproxy.identity.authorization.access_review import Decision
    from mcproxy.identity.client_identity_headers import IdentityHeaders

# The ways in which a client can be allowed to impersonate a user: the modes of KEP-5284, then the verb `impersonate`.
#
# Source: k8s.io/apiserver `pkg/endpoints/filters/impersonation` (mode.go, constrained_impersonation.go, cache.go). A
# cluster before Kubernetes 1.36 has no modes, and the proxy cannot ask whether it has them. So a mode counts only if a
# role lists its rights explicitly. A `*` also includes a verb that no cluster has (`UNKNOWN`), so it proves nothing; a
# user with a `*` has the verb `impersonate`, too.

_ASSOCIATED_KEYS = "authentication.kubernetes.io/associated-node-keys"


class Asked(NamedTuple):
    """The decoded Impersonate-* headers; `extra` is in header order, with keys in lower case."""

    name: str
    groups: tuple[str, ...]
    extra: dict[str, tuple[str, ...]]
    uid: str


class ImpersonationStep(NamedTuple):
    """Attributes to review: either `together`, which is reviewed first, or all of `each` must be allowed."""

    each: tuple[Attributes, ...]
    together: Attributes | None = None


class Way(NamedTuple):
    """One way to impersonate: the rights that `caller` needs, and the user as whom the request then runs."""

    mode: str
    caller: UserInfo
    steps: tuple[ImpersonationStep, ...]
    user: UserInfo
    unknown: Attributes
    """A right with a verb that no mode uses (`UNKNOWN`): a caller who has it has a `*`, which does not count."""


def ways(caller: UserInfo, asked: Asked, on: Attributes) -> Iterator[Way]:
    """Yield in order the modes by which `caller` could become the requested user in the request `on`."""
    if refused_group(asked.groups) is not None or refused_extra(asked.extra):
        return
    node = node_name(asked.name)
    associated = (
        bool(node) and service_account(caller.name) is not None and dict(caller.extra).get(NODE_NAME_KEY) == (node,)
    )
    alone = not (asked.groups or asked.extra or asked.uid)
    for mode in modes_for(asked.name, by_name_alone=alone, associated=associated):
        who = caller
        if mode == ASSOCIATED_NODE:  # this mode checks only the keys of extras, not the node's name
            keys = tuple(sorted(key for key, _ in caller.extra))
            who = replace(caller, extra=((_ASSOCIATED_KEYS, keys),))
        named = _named(mode, asked.name, node)
        steps = (
            ImpersonationStep((on._replace(verb=verb_on(mode, on.verb)),)),
            ImpersonationStep((named,)),
            *_others(mode, asked),
        )
        groups = asked.groups or implied_groups(asked.name) or ()
        user = impersonated(asked, groups)
        yield Way(mode, who, steps, user, named._replace(verb=UNKNOWN))


def impersonated(asked: Asked, groups: tuple[str, ...]) -> UserInfo:
    """Return the impersonated user, with the additional groups that every user has."""
    if asked.name == ANONYMOUS_NAME:
        if UNAUTHENTICATED not in groups:
            groups = (*groups, UNAUTHENTICATED)
    elif AUTHENTICATED not in groups and UNAUTHENTICATED not in groups:
        groups = (*groups, AUTHENTICATED)
    return UserInfo(asked.name, groups, asked.uid, tuple(sorted(asked.extra.items())))


def _named(mode: str, name: str, node: str) -> Attributes:
    account = service_account(name)
    if account is not None:
        return _of(mode, "serviceaccounts", account[1])._replace(namespace=account[0])
    if node:
        return _of(mode, "nodes", "*" if mode == ASSOCIATED_NODE else node)
    return _of(mode, "users", name)


def _others(mode: str, asked: Asked) -> Iterator[ImpersonationStep]:
    if asked.uid:
        yield ImpersonationStep((_of(mode, "uids", asked.uid),))
    if asked.groups:
        together = _of(mode, "groups", "*") if len(asked.groups) >= MANY else None
        yield ImpersonationStep(tuple(_of(mode, "groups", group) for group in asked.groups), together)
    if asked.extra:
        together = _of(mode, "userextras", "*")._replace(subresource="*") if _is_large(asked.extra) else None
        each = (
            _of(mode, "userextras", value)._replace(subresource=key)
            for key, values in asked.extra.items()
            for value in values
        )
        yield ImpersonationStep(tuple(each), together)


def _is_large(extra: Mapping[str, tuple[str, ...]]) -> bool:
    return max(len(extra), sum(map(len, extra.values()))) >= MANY


def _of(mode: str, resource: str, name: str) -> Attributes:
    return Attributes(verb_of(mode), GROUP, "v1", resource, name=name)


_USER = b"impersonate-user"
_GROUP = b"impersonate-group"
_UID = b"impersonate-uid"
_EXTRA = b"impersonate-extra-"

_VERSION = "v1"
_Decide = Callable[[UserInfo, Attributes], Awaitable["Decision"]]
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class ImpersonationRequest(NamedTuple):
    """The requested user, and the reviews with the verb `impersonate` that must all allow it."""

    user: UserInfo
    reviews: tuple[Attributes, ...]
    asked: Asked


class _Refusal(NamedTuple):
    review: Attributes
    reason: str


_NOT_ASKED = _Refusal(Attributes(""), "")


def requested_impersonation(headers: IdentityHeaders) -> ImpersonationRequest | None:
    """Return the requested impersonation; None without Impersonate-* headers.

    Raises StatusError (400) for a group, uid or extra without a user, and for invalid text.
    """
    if not headers.impersonate:
        return None
    wanted = _read(headers.impersonate)
    if not wanted.name:
        if not wanted.groups and not wanted.extra and not wanted.uid:
            return None
        # As recorded from a kube-apiserver, this is the only 400 with the header X-Content-Type-Options.
        nosniff = ((b"X-Content-Type-Options", b"nosniff"),)
        raise StatusError(400, f"requested {_as_go_prints(wanted)} without impersonating a user", headers=nosniff)
    return ImpersonationRequest(_user(wanted), tuple(_reviews(wanted)), wanted)


async def authorize_impersonation(
    caller: UserInfo,
    wanted: ImpersonationRequest,
    decide: _Decide,
    on: Attributes | None = None,
    last_modes: LastModes | None = None,
    cluster: str = "",
) -> UserInfo:
    """Return the impersonated user, which may depend on the mode that allows it.

    `on` are the attributes of the request; without them no mode is tried. `last_modes` has the mode to try first in
    `cluster`. Raises StatusError: 403 for the first refusal of the verb `impersonate`, and the errors of `decide`.
    """
    by_verb = (ImpersonationStep(wanted.reviews),)
    last = "" if last_modes is None else last_modes.get(cluster, caller.name)
    refusal = await _refused(caller, by_verb, decide) if last == VERB or on is None else _NOT_ASKED
    if refusal is not None and on is not None:
        for way in sorted(ways(caller, wanted.asked, on), key=lambda way: way.mode != last):
            if (
                await _refused(way.caller, way.steps, decide) is None
                and not (await decide(way.caller, way.unknown)).allowed
            ):
                if last_modes is not None:
                    last_modes.note(cluster, caller.name, way.mode)
                return way.user
    if refusal is _NOT_ASKED:
        refusal = await _refused(caller, by_verb, decide)
    if refusal is not None:
        raise forbidden(caller, refusal.review, refusal.reason)
    if last_modes is not None:
        last_modes.note(cluster, caller.name, VERB)
    return wanted.user


async def _refused(caller: UserInfo, steps: Iterable[ImpersonationStep], decide: _Decide) -> _Refusal | None:
    """Return the first refusal; None if everything is allowed."""
    for step in steps:
        if step.together is not None and (await decide(caller, step.together)).allowed:
            continue
        for review in step.each:
            decision = await decide(caller, review)
            if not decision.allowed:
                return _Refusal(review, decision.reason)
    return None


def impersonation_unsupported() -> StatusError:
    """Return the refusal of impersonation for a cluster with `identity: Proxy`.

    If the headers were ignored, the request would run with more rights than requested.
    """
    return StatusError(403, "impersonation is not possible here: requests to the cluster have the proxy's own identity")


def _read(headers: Iterable[Header]) -> Asked:
    """Parse the headers by their exact names. Raises StatusError (400) for an unknown header and for invalid text."""
    name = uid = None
    groups: dict[str, None] = {}
    extra: dict[str, tuple[str, ...]] = {}
    for header, raw in headers:
        if header == _USER:
            name = _text(raw) if name is None else name  # the first of several headers, as Go's Header.Get
        elif header == _GROUP:
            groups[_text(raw)] = None
        elif header == _UID:
            uid = _text(raw) if uid is None else uid
        elif header.startswith(_EXTRA):
            key = _key(header[len(_EXTRA) :])
            extra[key] = (*extra.get(key, ()), _text(raw))
        else:  # with underscores, or of a newer Kubernetes: without it the request could have more rights
            raise StatusError(400, f"the header {header[:100].decode('latin-1')} is not known here")
    return Asked(name or "", tuple(groups), extra, uid or "")


def _key(escaped: bytes) -> str:
    """Decode a key, in lower case as in client-go; an invalid escape leaves the key encoded (Go's PathUnescape)."""
    raw = escaped if _BAD_ESCAPE.search(escaped) else unquote_to_bytes(escaped)
    return _text(raw).lower()


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise StatusError(400, "a name in an Impersonate header is not UTF-8") from None


def _reviews(wanted: Asked) -> Iterable[Attributes]:
    account = service_account(wanted.name)
    if account is not None:
        yield _review("serviceaccounts", account[1], namespace=account[0])
    else:
        yield _review("users", wanted.name)
    for group in wanted.groups:
        yield _review("groups", group)
    for key, values in wanted.extra.items():
        for value in values:
            yield _review("userextras", value, group=GROUP, subresource=key)
    if wanted.uid:
        yield _review("uids", wanted.uid, group=GROUP)


def _review(resource: str, name: str, *, group: str = "", namespace: str = "", subresource: str = "") -> Attributes:
    return Attributes(VERB, group, _VERSION, resource, subresource, namespace, name)


def _user(wanted: Asked) -> UserInfo:
    """Return the user for the verb `impersonate`, which gives service accounts their groups, and nodes none."""
    groups = wanted.groups
    account = service_account(wanted.name)
    if account is not None and not groups:
        groups = service_account_groups(account[0])
    return impersonated(wanted, groups)


def _as_go_prints(wanted: Asked) -> str:
    """Return the list of ObjectReferences in Go's %v form, as in a kube-apiserver's message.

    The fields are Kind, Namespace, Name, UID, APIVersion, ResourceVersion, FieldPath.
    """
    shown = [f"{{Group  {group}    }}" for group in wanted.groups]
    for key, values in wanted.extra.items():
        shown += [f"{{UserExtra  {value}  {GROUP}/{_VERSION}  {key}}}" for value in values]
    if wanted.uid:
        shown.append(f"{{UID  {wanted.uid}  {GROUP}/{_VERSION}  }}")
    return f"[{' '.join(shown)}]"
