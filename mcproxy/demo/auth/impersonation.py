"""Impersonate-* headers: who a request shall count as, and whether its sender may do that.

Two sets of rules and words: the one before Kubernetes 1.36 (verb `impersonate` on users, groups, serviceaccounts,
uids and userextras), and constrained impersonation (KEP-5284), where `impersonate-on:…` on the target and
`impersonate:…` on the identity do as well, and the refusal speaks of them unless the sender has some of the old
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
class Wanted:
    """What the headers ask for. Of several Impersonate-User headers the first counts, an empty one counts as absent."""

    user: str
    uid: str
    groups: tuple[str, ...]
    extra: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, headers: Sequence[tuple[str, str]]) -> Wanted | None:
        def values(name: str) -> tuple[str, ...]:
            return tuple(value for other, value in headers if other.lower() == name)

        user, uid = next(iter(values("impersonate-user")), ""), next(iter(values("impersonate-uid")), "")
        wanted = cls(user, uid, values("impersonate-group"), extra_headers(headers, "impersonate-extra-"))
        return wanted if wanted.user or wanted.uid or wanted.groups or wanted.extra else None

    @property
    def service_account(self) -> tuple[str, str] | None:
        """(namespace, name) of a ServiceAccount's user name."""
        parts = self.user.removeprefix(SERVICE_ACCOUNT).split(":")
        return (parts[0], parts[1]) if self.user.startswith(SERVICE_ACCOUNT) and len(parts) == 2 else None


def impersonate(
    cluster: SimulatedCluster, request: web.BaseRequest, user: User, info: RequestInfo, *, starting: bool = False
) -> User:
    """The user to go on with: `user` itself without Impersonate headers. Raises 400 and 403."""
    wanted = Wanted.of(list(request.headers.items()))
    if wanted is None:
        return user
    constrained = cluster.options.constrained_impersonation
    if not wanted.user:
        raise _without_user(wanted, constrained=constrained)
    rights = list(_rights(wanted))
    for index, right in enumerate(rights):
        try:
            check(cluster, user, replace(right, verb="impersonate"), starting=starting)
        except APIError:
            if not constrained or index > 0:
                raise
            _check_constrained(cluster, user, info, wanted, starting=starting)
            break
    target = _impersonated(wanted)
    note_user(request, target, impersonated=True)
    return target


def _rights(wanted: Wanted) -> Iterator[Attributes]:
    account = wanted.service_account
    if account is not None:
        yield Attributes("", "", "serviceaccounts", "", account[0], account[1])
    else:
        yield Attributes("", "", "users", name=wanted.user)
    for group in wanted.groups:
        yield Attributes("", "", "groups", name=group)
    for key, values in wanted.extra.items():
        for value in values:
            yield Attributes("", AUTHENTICATION, "userextras", key, name=value)
    if wanted.uid:
        yield Attributes("", AUTHENTICATION, "uids", name=wanted.uid)


def _check_constrained(
    cluster: SimulatedCluster, user: User, info: RequestInfo, wanted: Wanted, *, starting: bool
) -> None:
    mode = "user-info"
    if wanted.service_account is not None:
        mode = "serviceaccount"
    elif wanted.user.startswith(NODE):
        mode = "arbitrary-node"
    on = Attributes.of(info)
    check(cluster, user, replace(on, verb=f"impersonate-on:{mode}:{on.verb}"), starting=starting)
    for right in _rights(wanted):
        named = right
        if right.resource == "users" and mode == "arbitrary-node":
            named = replace(right, resource="nodes", name=wanted.user.removeprefix(NODE))
        check(cluster, user, replace(named, verb=f"impersonate:{mode}", group=AUTHENTICATION), starting=starting)


def _impersonated(wanted: Wanted) -> User:
    groups = wanted.groups
    account = wanted.service_account
    if account is not None and not groups:
        groups = service_account_groups(account[0])
    if wanted.user == "system:anonymous":
        groups = groups if UNAUTHENTICATED in groups else (*groups, UNAUTHENTICATED)
    elif AUTHENTICATED not in groups and UNAUTHENTICATED not in groups:
        groups = (*groups, AUTHENTICATED)
    return User(wanted.user, wanted.uid, groups, wanted.extra)


def _without_user(wanted: Wanted, *, constrained: bool) -> APIError:
    asked = _go_user(wanted) if constrained else _go_references(wanted)
    error = bad_request(f"requested {asked} without impersonating a user{' name' if constrained else ''}")
    error.headers = (("X-Content-Type-Options", "nosniff"),)
    return error


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _go_strings(values: Sequence[str]) -> str:
    return f"[]string{{{', '.join(map(_quote, values))}}}" if values else "[]string(nil)"


def _go_user(wanted: Wanted) -> str:
    """Go's %#v of the user, which the real message really contains."""
    extra = ", ".join(f"{_quote(key)}:{_go_strings(values)}" for key, values in sorted(wanted.extra.items()))
    shown = f"map[string][]string{{{extra}}}" if extra else "map[string][]string(nil)"
    return f'&user.DefaultInfo{{Name:"", UID:{_quote(wanted.uid)}, Groups:{_go_strings(wanted.groups)}, Extra:{shown}}}'


def _go_references(wanted: Wanted) -> str:
    """Go's %v of the list of ObjectReferences: Kind, Namespace, Name, UID, APIVersion, ResourceVersion, FieldPath."""
    shown = [f"{{Group  {group}    }}" for group in wanted.groups]
    for key, values in wanted.extra.items():
        shown += [f"{{UserExtra  {value}  {AUTHENTICATION}/v1  {key}}}" for value in values]
    if wanted.uid:
        shown.append(f"{{UID  {wanted.uid}  {AUTHENTICATION}/v1  }}")
    return f"[{' '.join(shown)}]"
