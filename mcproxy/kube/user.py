"""The user info of Kubernetes, which authentication determines and impersonation replaces.

Source: k8s.io/apiserver `pkg/authentication/user`.
"""

from __future__ import annotations

from dataclasses import dataclass

ANONYMOUS_NAME = "system:anonymous"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
NODE_PREFIX = "system:node:"

Extra = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user. `groups` has no duplicates. `extra` consists of pairs of key (lower case) and values, sorted by key."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Extra = ()

    def __hash__(self) -> int:
        # Written out, because the function that `dataclass` makes is interpreted; each request needs some hashes.
        return hash((self.name, self.groups, self.uid, self.extra))


#: The user of requests without a credential.
ANONYMOUS = UserInfo(ANONYMOUS_NAME, (UNAUTHENTICATED,))


def service_account_groups(namespace: str) -> tuple[str, str]:
    """Return the groups of the service accounts of a namespace."""
    return "system:serviceaccounts", f"system:serviceaccounts:{namespace}"


def service_account(name: str) -> tuple[str, str] | None:
    """Return (namespace, name) of a service account's user name; None for any other user."""
    namespace, separator, account = name.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
    if not name.startswith(SERVICE_ACCOUNT_PREFIX) or not separator or not namespace or not account or ":" in account:
        return None
    return namespace, account
