"""What an API server needs of the cluster that it asks about users: two roles of Kubernetes' own. Pure.

Source: the documentation of the aggregation layer, "Extension apiserver authorizes the request".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from mcproxy.apiservices.roles.template import RBAC, Part

DELEGATOR = "system:auth-delegator"
READER = "extension-apiserver-authentication-reader"
READER_NAMESPACE = "kube-system"
_EXAMPLE = "system:serviceaccount:NAMESPACE:NAME"


def account_of(url: str) -> str | None:
    """Return the user name of the service account that an API server at `url` has by custom; None if no Service is it.

    That is the account with the name of its Service, in the Service's namespace.
    """
    labels = (urlsplit(url).hostname or "").split(".")
    if len(labels) < 3 or labels[2] != "svc" or not all(labels):
        return None
    return f"system:serviceaccount:{labels[1]}:{labels[0]}"


def bindings(name: str, user: str | None, because: str) -> tuple[Part, ...]:
    """Return the two bindings of `user`, named after `name`; as examples where the user is not known."""
    from mcproxy.kube.user import service_account

    account = service_account(user or _EXAMPLE)
    subject: Mapping[str, Any] = (
        {"kind": "User", "apiGroup": RBAC, "name": user}
        if account is None
        else {"kind": "ServiceAccount", "namespace": account[0], "name": account[1]}
    )
    if user is None:
        whose = ("Its user is not known: say which with --user, or complete this.",)
    else:
        whose = (f"The user is {because}.",)
    delegator = _binding("ClusterRoleBinding", {"name": f"{name}:{DELEGATOR}"}, "ClusterRole", DELEGATOR, subject)
    metadata = {"namespace": READER_NAMESPACE, "name": f"{name}:{READER}"}
    reader = _binding("RoleBinding", metadata, "Role", READER, subject)
    asks = "It asks the cluster who has a token and what a user may do (TokenReview, SubjectAccessReview);"
    return (
        Part((asks, "not needed if these are pointed at mcproxy, or if it trusts the front proxy alone.", *whose),
             delegator, user is None),
        Part(("It reads there which front proxies to trust, unless it is told by its own options.",),
             reader, user is None),
    )  # fmt: skip


def _binding(kind: str, metadata: Mapping[str, str], role_kind: str, role: str, subject: Mapping[str, Any]) -> Any:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
        "subjects": [subject],
    }
