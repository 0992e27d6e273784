"""The resources of the core group, v1, that can be listed; they are the same in every cluster."""

from __future__ import annotations

SECRETS = "secrets"

CORE_RESOURCES = (
    "componentstatuses", "configmaps", "endpoints", "events", "limitranges", "namespaces", "nodes",
    "persistentvolumeclaims", "persistentvolumes", "pods", "podtemplates", "replicationcontrollers", "resourcequotas",
    SECRETS, "serviceaccounts", "services",
)  # fmt: skip
"""In the plural, as in URLs."""

UNWATCHABLE = frozenset({"componentstatuses"})
"""Resources that cannot be watched, so no cache holds them."""
