"""Impersonation requested by a client: parsing of its Impersonate-* headers, and authorization.

Source: k8s.io/apiserver `pkg/endpoints/filters/impersonation`: one review for each requested attribute, in Kubernetes'
order, with the verb of a mode (`modes`) or `impersonate`. An allowed request continues as the impersonated user; the
real one is only in the log.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.authorization.forbidden_message import forbidden
from mcproxy.identity.authorization.last_modes import LastModes
from mcproxy.identity.impersonation.modes import Asked, Step, impersonated, ways
from mcproxy.kube.constrained_impersonation import GROUP, VERB
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo, service_account, service_account_groups

if TYPE_CHECKING:
    from mcproxy.http.messages import Header
    from mcproxy.identity.authorization.access_review import Decision
    from mcproxy.identity.client_identity_headers import IdentityHeaders

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
    """Return the requested impersonation; None if there is none.

    Raises StatusError (400) for a group, uid or extra without a user, and for invalid text.
    """
    if not headers.impersonate:
        return None
    wanted = _read(headers.impersonate)
    if not wanted.name:
        if not wanted.groups and not wanted.extra and not wanted.uid:
            return None
        # recorded: the only 400 with this header
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

    `on` is what the request asks for, without which no mode is tried; `last_modes` say which one to try first in
    `cluster`. Raises StatusError: 403 for the first refusal of the verb `impersonate`, and as `decide` does.
    """
    by_verb = (Step(wanted.reviews),)
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


async def _refused(caller: UserInfo, steps: Iterable[Step], decide: _Decide) -> _Refusal | None:
    """Return the first refusal; None if all is allowed."""
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

    Ignoring the headers would run the request with more rights than requested.
    """
    return StatusError(403, "impersonation is not possible here: requests to the cluster have the proxy's own identity")


def _read(headers: Iterable[Header]) -> Asked:
    """Read the headers by their exact names. Raises StatusError (400) for an unknown one, and for invalid text."""
    name = uid = None
    groups: dict[str, None] = {}
    extra: dict[str, tuple[str, ...]] = {}
    for header, raw in headers:
        if header == _USER:
            name = _text(raw) if name is None else name  # the first of several, as Go's Header.Get
        elif header == _GROUP:
            groups[_text(raw)] = None
        elif header == _UID:
            uid = _text(raw) if uid is None else uid
        elif header.startswith(_EXTRA):
            key = _key(header[len(_EXTRA) :])
            extra[key] = (*extra.get(key, ()), _text(raw))
        else:  # with underscores, or of a later Kubernetes: dropping it could give more rights
            raise StatusError(400, f"the header {header[:100].decode('latin-1')} is not known here")
    return Asked(name or "", tuple(groups), extra, uid or "")


def _key(escaped: bytes) -> str:
    """Decode a key. As Go's PathUnescape, leave a key with a bad escape as it is; in client-go keys are lower case."""
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
    """Return the user of the verb `impersonate`: it gives service accounts their groups, and nodes none."""
    groups = wanted.groups
    account = service_account(wanted.name)
    if account is not None and not groups:
        groups = service_account_groups(account[0])
    return impersonated(wanted, groups)


def _as_go_prints(wanted: Asked) -> str:
    """Return the list of ObjectReferences in the form that %v gives it, as in the message of a kube-apiserver.

    Their fields: Kind, Namespace, Name, UID, APIVersion, ResourceVersion, FieldPath.
    """
    shown = [f"{{Group  {group}    }}" for group in wanted.groups]
    for key, values in wanted.extra.items():
        shown += [f"{{UserExtra  {value}  {GROUP}/{_VERSION}  {key}}}" for value in values]
    if wanted.uid:
        shown.append(f"{{UID  {wanted.uid}  {GROUP}/{_VERSION}  }}")
    return f"[{' '.join(shown)}]"
