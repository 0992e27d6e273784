"""Impersonation: parses Impersonate-* headers and authorizes them.

Two sets of rules and messages: the one before Kubernetes 1.36 (verb `impersonate` on users, groups, serviceaccounts,
uids and userextras), and constrained impersonation (KEP-5284), whose modes are tried before the old rules. A
kube-apiserver's refusal names the first mode that applies, unless another mode allowed the caller's last impersonation.
There is no such memory here: a caller with the first of the old rights counts as one who has used them. Source:
k8s.io/apiserver `pkg/endpoints/filters/impersonation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from aiohttp import web

from kubesim.apimachinery.status import StatusError, bad_request
from kubesim.apimachinery.user import User
from kubesim.audit import note_user
from kubesim.auth.authentication import extra_headers
from kubesim.auth.rbac import Attributes, check, decide, forbidden_error
from kubesim.cluster import SimulatedCluster
from kubesim.request.call import RequestInfo
from mcproxy.kube import constrained_impersonation as modes
from mcproxy.kube.user import AUTHENTICATED, UNAUTHENTICATED, service_account, service_account_groups

AUTHENTICATION = "authentication.k8s.io"
ASSOCIATED_KEYS = "authentication.kubernetes.io/associated-node-keys"


@dataclass(frozen=True)
class RequestedUser:
    """The requested user. Of several Impersonate-User headers the first is used; an empty one counts as absent."""

    user: str
    uid: str
    groups: tuple[str, ...]
    extra: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, headers: Sequence[tuple[str, str]]) -> RequestedUser | None:
        def values(name: str) -> tuple[str, ...]:
            return tuple(value for other, value in headers if other.lower() == name)

        user, uid = next(iter(values("impersonate-user")), ""), next(iter(values("impersonate-uid")), "")
        requested = cls(user, uid, values("impersonate-group"), extra_headers(headers, "impersonate-extra-"))
        return requested if requested.user or requested.uid or requested.groups or requested.extra else None


def impersonate(
    cluster: SimulatedCluster, request: web.BaseRequest, user: User, info: RequestInfo, *, starting: bool = False
) -> User:
    """Return the impersonated user, or `user` without Impersonate headers. Raises APIError 400, 403."""
    requested = RequestedUser.of(list(request.headers.items()))
    if requested is None:
        return user
    constrained = cluster.options.constrained_impersonation
    if not requested.user:
        raise _without_user(requested, constrained=constrained)
    target = impersonated(cluster, user, Attributes.of(info), requested, starting=starting)
    note_user(request, target, impersonated=True)
    return target


def impersonated(
    cluster: SimulatedCluster, caller: User, on: Attributes, requested: RequestedUser, *, starting: bool = False
) -> User:
    """Return the requested user if `caller` may impersonate that user for the request (`on`).

    Raises APIError 403, that of the first mode or that of the old rules.
    """
    refusals: list[StatusError] = []
    named_alone = not (requested.groups or requested.uid or requested.extra)
    tried: tuple[str, ...] = ()
    if cluster.options.constrained_impersonation:
        associated = service_account(caller.name) is not None and caller.extra.get(modes.NODE_NAME_KEY) == (
            modes.node_name(requested.user),
        )
        tried = modes.modes_for(requested.user, by_name_alone=named_alone, associated=associated)
    for mode in tried:
        asking = caller
        if mode == modes.ASSOCIATED_NODE:  # only the keys of extras are visible to it, not the name of the node
            asking = replace(caller, extra={ASSOCIATED_KEYS: tuple(sorted(caller.extra))})
        try:
            check(cluster, asking, replace(on, verb=modes.verb_on(mode, on.verb)), starting=starting)
            _check_mode(cluster, asking, requested, mode, starting=starting)
        except StatusError as error:
            refusals.append(error)
        else:
            return _impersonated(requested, modes.implied_groups(requested.user))
    for index, right in enumerate(_rights(requested, uid_first=cluster.options.constrained_impersonation)):
        try:
            check(cluster, caller, replace(right, verb="impersonate"), starting=starting)
        except StatusError as error:
            raise (refusals[0] if refusals and index == 0 else error) from None
    account = service_account(requested.user)
    return _impersonated(requested, None if account is None else service_account_groups(account[0]))


def _check_mode(
    cluster: SimulatedCluster, caller: User, requested: RequestedUser, mode: str, *, starting: bool
) -> None:
    groups = Attributes(modes.verb_of(mode), AUTHENTICATION, "groups")
    extras = replace(groups, resource="userextras")
    for right in _rights(requested, uid_first=True):
        wanted = replace(right, verb=modes.verb_of(mode), group=AUTHENTICATION)
        if right.resource == "users" and (node := modes.node_name(requested.user)):
            wanted = replace(wanted, resource="nodes", name="*" if mode == modes.ASSOCIATED_NODE else node)
        elif right.resource == "groups":
            refused = modes.refused_group(requested.groups)
            if refused is not None:
                raise forbidden_error(caller, replace(groups, name=refused[0]), refused[1])
            if len(requested.groups) >= modes.MANY and _allows(cluster, caller, replace(groups, name="*"), starting):
                continue
        elif right.resource == "userextras":
            if reason := modes.refused_extra(requested.extra):
                raise forbidden_error(caller, extras, reason)
            many = max(len(requested.extra), sum(map(len, requested.extra.values()))) >= modes.MANY
            if many and _allows(cluster, caller, replace(extras, subresource="*", name="*"), starting):
                continue
        check(cluster, caller, wanted, starting=starting)


def _allows(cluster: SimulatedCluster, caller: User, wanted: Attributes, starting: bool) -> bool:
    return decide(cluster, caller, wanted, starting=starting).allowed


def _rights(requested: RequestedUser, *, uid_first: bool) -> Iterator[Attributes]:
    """Yield the attributes that the old rules check, without the verb; from 1.36 on the uid comes before the groups."""
    account = service_account(requested.user)
    if account is not None:
        yield Attributes("", "", "serviceaccounts", "", account[0], account[1])
    else:
        yield Attributes("", "", "users", name=requested.user)
    uid = [Attributes("", AUTHENTICATION, "uids", name=requested.uid)] if requested.uid else []
    if uid_first:
        yield from uid
    for group in requested.groups:
        yield Attributes("", "", "groups", name=group)
    for key, values in requested.extra.items():
        for value in values:
            yield Attributes("", AUTHENTICATION, "userextras", key, name=value)
    if not uid_first:
        yield from uid


def _impersonated(requested: RequestedUser, implied: Iterable[str] | None) -> User:
    """Return the user with the requested groups, or with those `implied` by the name if none are requested."""
    groups = requested.groups or tuple(implied or ())
    if requested.user == "system:anonymous":
        groups = groups if UNAUTHENTICATED in groups else (*groups, UNAUTHENTICATED)
    elif AUTHENTICATED not in groups and UNAUTHENTICATED not in groups:
        groups = (*groups, AUTHENTICATED)
    return User(requested.user, requested.uid, groups, requested.extra)


def _without_user(requested: RequestedUser, *, constrained: bool) -> StatusError:
    asked = _go_user(requested) if constrained else _go_references(requested)
    error = bad_request(f"requested {asked} without impersonating a user{' name' if constrained else ''}")
    error.headers = ((b"X-Content-Type-Options", b"nosniff"),)
    return error


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _go_strings(values: Sequence[str]) -> str:
    return f"[]string{{{', '.join(map(_quote, values))}}}" if values else "[]string(nil)"


def _go_user(requested: RequestedUser) -> str:
    """Return Go's %#v of the user, which the real message contains."""
    extra = ", ".join(f"{_quote(key)}:{_go_strings(values)}" for key, values in sorted(requested.extra.items()))
    shown = f"map[string][]string{{{extra}}}" if extra else "map[string][]string(nil)"
    groups = _go_strings(requested.groups)
    return f'&user.DefaultInfo{{Name:"", UID:{_quote(requested.uid)}, Groups:{groups}, Extra:{shown}}}'


def _go_references(requested: RequestedUser) -> str:
    """Format Go's %v of ObjectReferences: Kind, Namespace, Name, UID, APIVersion, ResourceVersion, FieldPath."""
    shown = [f"{{Group  {group}    }}" for group in requested.groups]
    for key, values in requested.extra.items():
        shown += [f"{{UserExtra  {value}  {AUTHENTICATION}/v1  {key}}}" for value in values]
    if requested.uid:
        shown.append(f"{{UID  {requested.uid}  {AUTHENTICATION}/v1  }}")
    return f"[{' '.join(shown)}]"
