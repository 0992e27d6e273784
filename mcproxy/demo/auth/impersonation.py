"""Impersonation: parses Impersonate-* headers and authorizes them.

Two sets of rules and messages: the one before Kubernetes 1.36 (verb `impersonate` on users, groups, serviceaccounts,
uids and userextras), and constrained impersonation (KEP-5284), where `impersonate-on:…` on the target with
`impersonate:…` on the identity suffice as well, and the refusal names these unless the caller has some of the old
rights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aiohttp import web

from mcproxy.demo.apimachinery.status import APIError, bad_request
from mcproxy.demo.apimachinery.user import User
from mcproxy.demo.auth.authentication import AUTHENTICATED, UNAUTHENTICATED, extra_headers
from mcproxy.demo.auth.rbac import Attributes, check
from mcproxy.demo.auth.service_account_tokens import service_account_groups
from mcproxy.demo.cluster import SimulatedCluster
from mcproxy.demo.diagnostics.audit import note_user
from mcproxy.demo.request.request_info import RequestInfo

__all__ = ["impersonate"]

AUTHENTICATION = "authentication.k8s.io"
SERVICE_ACCOUNT, NODE = "system:serviceaccount:", "system:node:"


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

    @property
    def service_account(self) -> tuple[str, str] | None:
        """(namespace, name) if the user name is a ServiceAccount's, else None."""
        parts = self.user.removeprefix(SERVICE_ACCOUNT).split(":")
        return (parts[0], parts[1]) if self.user.startswith(SERVICE_ACCOUNT) and len(parts) == 2 else None


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
    rights = list(_rights(requested))
    for index, right in enumerate(rights):
        try:
            check(cluster, user, replace(right, verb="impersonate"), starting=starting)
        except APIError:
            if not constrained or index > 0:
                raise
            _check_constrained(cluster, user, info, requested, starting=starting)
            break
    target = _impersonated(requested)
    note_user(request, target, impersonated=True)
    return target


def _rights(requested: RequestedUser) -> Iterator[Attributes]:
    account = requested.service_account
    if account is not None:
        yield Attributes("", "", "serviceaccounts", "", account[0], account[1])
    else:
        yield Attributes("", "", "users", name=requested.user)
    for group in requested.groups:
        yield Attributes("", "", "groups", name=group)
    for key, values in requested.extra.items():
        for value in values:
            yield Attributes("", AUTHENTICATION, "userextras", key, name=value)
    if requested.uid:
        yield Attributes("", AUTHENTICATION, "uids", name=requested.uid)


def _check_constrained(
    cluster: SimulatedCluster, user: User, info: RequestInfo, requested: RequestedUser, *, starting: bool
) -> None:
    mode = "user-info"
    if requested.service_account is not None:
        mode = "serviceaccount"
    elif requested.user.startswith(NODE):
        mode = "arbitrary-node"
    on = Attributes.of(info)
    check(cluster, user, replace(on, verb=f"impersonate-on:{mode}:{on.verb}"), starting=starting)
    for right in _rights(requested):
        named = right
        if right.resource == "users" and mode == "arbitrary-node":
            named = replace(right, resource="nodes", name=requested.user.removeprefix(NODE))
        check(cluster, user, replace(named, verb=f"impersonate:{mode}", group=AUTHENTICATION), starting=starting)


def _impersonated(requested: RequestedUser) -> User:
    groups = requested.groups
    account = requested.service_account
    if account is not None and not groups:
        groups = service_account_groups(account[0])
    if requested.user == "system:anonymous":
        groups = groups if UNAUTHENTICATED in groups else (*groups, UNAUTHENTICATED)
    elif AUTHENTICATED not in groups and UNAUTHENTICATED not in groups:
        groups = (*groups, AUTHENTICATED)
    return User(requested.user, requested.uid, groups, requested.extra)


def _without_user(requested: RequestedUser, *, constrained: bool) -> APIError:
    asked = _go_user(requested) if constrained else _go_references(requested)
    error = bad_request(f"requested {asked} without impersonating a user{' name' if constrained else ''}")
    error.headers = (("X-Content-Type-Options", "nosniff"),)
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
