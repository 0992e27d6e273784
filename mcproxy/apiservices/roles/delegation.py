"""What an API server needs of the cluster that it asks about users: two roles of Kubernetes' own, and to follow
what its admission and flow control are configured with. Pure.

Sources: the documentation of the aggregation layer, "Extension apiserver authorizes the request"; what a server made
with k8s.io/apiserver 1.36 lists when it starts (recorded: golden/aggregator, A28): without the policies its /readyz
stays red.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from mcproxy.apiservices.roles.template import RBAC, Part, cluster_role

DELEGATOR = "system:auth-delegator"
READER = "extension-apiserver-authentication-reader"
READER_NAMESPACE = "kube-system"
FOLLOWED: Mapping[str, tuple[str, ...]] = {
    "": ("namespaces",),
    "admissionregistration.k8s.io": (
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "mutatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "validatingwebhookconfigurations",
    ),
    "flowcontrol.apiserver.k8s.io": ("flowschemas", "prioritylevelconfigurations"),
}
"""What it lists and watches in the cluster, by API group."""
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
    """Return the role for what is followed and the three bindings of `user`, named after `name`.

    The bindings are examples where the user is not known.
    """
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
    informers = f"{name}:informers"
    rules = [{"apiGroups": [of], "resources": [*names], "verbs": ["list", "watch"]} for of, names in FOLLOWED.items()]
    following = _binding("ClusterRoleBinding", {"name": informers}, "ClusterRole", informers, subject)
    asks = "It asks who has a token and what a user may do (TokenReview, SubjectAccessReview), the cluster or mcproxy;"
    return (
        Part((asks, "not needed if it trusts the front proxy alone.", *whose),
             delegator, user is None),
        Part(("It reads there which front proxies to trust, unless it is told by its own options.",),
             reader, user is None),
        Part(("It follows these there, if it is made with k8s.io/apiserver.",),
             cluster_role(informers, rules), user is None),
        Part((), following, user is None),
    )  # fmt: skip


def _binding(kind: str, metadata: Mapping[str, str], role_kind: str, role: str, subject: Mapping[str, Any]) -> Any:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
        "subjects": [subject],
    }
