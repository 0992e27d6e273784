"""Tables of the built-in resources of Kubernetes 1.36 by group (plurals, singulars, short names), and of the verbs.

Custom resources are never in these groups: a CustomResourceDefinition's group has a dot, and *.k8s.io is reserved.
Source: the discovery documents of a kube-apiserver (recorded), and RBAC's names for resources that exist only for
authorization.
"""

from __future__ import annotations

from collections.abc import Mapping

BUILT_IN_RESOURCES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "": {
        "bindings": (),
        "componentstatuses": ("cs",),
        "configmaps": ("cm",),
        "endpoints": ("ep",),
        "events": ("ev",),
        "limitranges": ("limits",),
        "namespaces": ("ns",),
        "nodes": ("no",),
        "persistentvolumeclaims": ("pvc",),
        "persistentvolumes": ("pv",),
        "pods": ("po",),
        "podtemplates": (),
        "replicationcontrollers": ("rc",),
        "resourcequotas": ("quota",),
        "secrets": (),
        "serviceaccounts": ("sa",),
        "services": ("svc",),
        # These resources exist only for the authorization of impersonation.
        "groups": (),
        "users": (),
    },
    "admissionregistration.k8s.io": {
        "mutatingadmissionpolicies": (),
        "mutatingadmissionpolicybindings": (),
        "mutatingwebhookconfigurations": (),
        "validatingadmissionpolicies": (),
        "validatingadmissionpolicybindings": (),
        "validatingwebhookconfigurations": (),
    },
    "apiextensions.k8s.io": {"customresourcedefinitions": ("crd", "crds")},
    "apiregistration.k8s.io": {"apiservices": ()},
    "apps": {
        "controllerrevisions": (),
        "daemonsets": ("ds",),
        "deployments": ("deploy",),
        "replicasets": ("rs",),
        "statefulsets": ("sts",),
    },
    "authentication.k8s.io": {"selfsubjectreviews": (), "tokenreviews": (), "uids": (), "userextras": ()},
    "authorization.k8s.io": {
        "localsubjectaccessreviews": (),
        "selfsubjectaccessreviews": (),
        "selfsubjectrulesreviews": (),
        "subjectaccessreviews": (),
    },
    "autoscaling": {"horizontalpodautoscalers": ("hpa",)},
    "batch": {"cronjobs": ("cj",), "jobs": ()},
    "certificates.k8s.io": {
        "certificatesigningrequests": ("csr",),
        "clustertrustbundles": (),
        "podcertificaterequests": (),
        "signers": (),
    },
    "coordination.k8s.io": {"leasecandidates": (), "leases": ()},
    "discovery.k8s.io": {"endpointslices": ()},
    "events.k8s.io": {"events": ("ev",)},
    "flowcontrol.apiserver.k8s.io": {"flowschemas": (), "prioritylevelconfigurations": ()},
    "internal.apiserver.k8s.io": {"storageversions": ()},
    "networking.k8s.io": {
        "ingressclasses": (),
        "ingresses": ("ing",),
        "ipaddresses": ("ip",),
        "networkpolicies": ("netpol",),
        "servicecidrs": (),
    },
    "node.k8s.io": {"runtimeclasses": ()},
    "policy": {"poddisruptionbudgets": ("pdb",)},
    "rbac.authorization.k8s.io": {"clusterrolebindings": (), "clusterroles": (), "rolebindings": (), "roles": ()},
    "resource.k8s.io": {
        "deviceclasses": (),
        "devicetaintrules": (),
        "resourceclaims": (),
        "resourceclaimtemplates": (),
        "resourceslices": (),
    },
    "scheduling.k8s.io": {"podgroups": (), "priorityclasses": ("pc",), "workloads": ()},
    "storage.k8s.io": {
        "csidrivers": (),
        "csinodes": (),
        "csistoragecapacities": (),
        "storageclasses": ("sc",),
        "volumeattachments": (),
        "volumeattributesclasses": ("vac",),
    },
    "storagemigration.k8s.io": {"storageversionmigrations": ()},
}
"""Group -> plural -> the short names for kubectl."""

SUBRESOURCES: Mapping[str, tuple[str, ...]] = {
    "approval": ("certificatesigningrequests",),
    "attach": ("pods",),
    "binding": ("pods", "resourceclaims"),
    "driver": ("resourceclaims",),
    "ephemeralcontainers": ("pods",),
    "eviction": ("pods",),
    "exec": ("pods",),
    "finalize": ("namespaces",),
    "log": ("pods", "nodes"),
    "portforward": ("pods",),
    "proxy": ("pods", "nodes", "services"),
    "resize": ("pods",),
    "scale": ("deployments", "replicasets", "replicationcontrollers", "statefulsets"),
    "status": (),
    "token": ("serviceaccounts",),
    # These subresources of nodes exist only for authorization by the kubelet.
    "checkpoint": ("nodes",),
    "configz": ("nodes",),
    "healthz": ("nodes",),
    "metrics": ("nodes",),
    "pods": ("nodes",),
    "spec": ("nodes",),
    "stats": ("nodes",),
}
"""Subresource -> the built-in resources that have it; any resource can have `status`."""


def subresources_of(plural: str) -> tuple[str, ...]:
    """Return the subresources of a built-in resource."""
    return tuple(name for name, resources in SUBRESOURCES.items() if plural in resources or name == "status")


def singular(plural: str) -> str:
    """Return the singular of a resource of `BUILT_IN_RESOURCES`. For `endpoints`, which has no singular, it is
    `endpoint`, a likely misspelling.
    """
    if plural.endswith("ies"):
        return plural[:-3] + "y"
    return plural[:-2] if plural.endswith(("sses", "uses")) else plural[:-1]


def groups_of(plural: str) -> tuple[str, ...]:
    """Return the groups that have a resource."""
    return tuple(group for group, resources in BUILT_IN_RESOURCES.items() if plural in resources)


# The listable resources of the core group, v1, which are the same in every cluster.

SECRETS = "secrets"

CORE_RESOURCES = (
    "componentstatuses", "configmaps", "endpoints", "events", "limitranges", "namespaces", "nodes",
    "persistentvolumeclaims", "persistentvolumes", "pods", "podtemplates", "replicationcontrollers", "resourcequotas",
    SECRETS, "serviceaccounts", "services",
)  # fmt: skip
"""The plurals, as in URLs."""

UNWATCHABLE = frozenset({"componentstatuses"})
"""Resources that cannot be watched, so that no cache contains them."""


# The verbs of requests, as authorizers see them. Source: k8s.io/apiserver `pkg/endpoints/request/requestinfo.go`.
#
#: Verbs of requests for resources.
RESOURCE_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy")
#: Verbs of all other requests: HTTP methods in lower case. CONNECT and TRACE are refused before rules are checked.
METHODS = ("get", "post", "put", "patch", "delete", "head", "options")
