"""The plural of a kind, as it is in URLs.

Those of Kubernetes' own kinds are listed here and not taken from a member cluster's status: otherwise a member could
have its secrets cached as if they were pods. Those of other groups come from the members' status.apiEnablements.
"""

from __future__ import annotations

import re

_PLURAL = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?\Z")

_BUILT_IN = {
    "": "bindings componentstatuses configmaps endpoints events limitranges namespaces nodes persistentvolumeclaims "
    "persistentvolumes pods podtemplates replicationcontrollers resourcequotas secrets serviceaccounts services",
    "admissionregistration.k8s.io": "mutatingwebhookconfigurations validatingadmissionpolicies "
    "validatingadmissionpolicybindings validatingwebhookconfigurations",
    "apiextensions.k8s.io": "customresourcedefinitions",
    "apiregistration.k8s.io": "apiservices",
    "apps": "controllerrevisions daemonsets deployments replicasets statefulsets",
    "autoscaling": "horizontalpodautoscalers",
    "batch": "cronjobs jobs",
    "certificates.k8s.io": "certificatesigningrequests",
    "coordination.k8s.io": "leases",
    "discovery.k8s.io": "endpointslices",
    "events.k8s.io": "events",
    "flowcontrol.apiserver.k8s.io": "flowschemas prioritylevelconfigurations",
    "networking.k8s.io": "ingressclasses ingresses networkpolicies",
    "node.k8s.io": "runtimeclasses",
    "policy": "poddisruptionbudgets",
    "rbac.authorization.k8s.io": "clusterrolebindings clusterroles rolebindings roles",
    "scheduling.k8s.io": "priorityclasses",
    "storage.k8s.io": "csidrivers csinodes csistoragecapacities storageclasses volumeattachments",
}


def built_in(group: str, kind: str) -> str | None:
    """Return the plural of a kind of Kubernetes' own, or None."""
    lower = kind.lower()
    forms = (lower, f"{lower}s", f"{lower}es", f"{lower[:-1]}ies")
    known = _BUILT_IN.get(group, "").split()
    singular_is_plural = lower == "endpoints"
    return next((form for form in forms[0 if singular_is_plural else 1 :] if form in known), None)


def is_own_group(group: str) -> bool:
    """Return whether `built_in` alone decides which kinds a group has."""
    return group in _BUILT_IN


def is_plural(name: str) -> bool:
    return _PLURAL.match(name) is not None
