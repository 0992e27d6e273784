"""Rules of dispatch policies and authorizers in the form of the file; see `config.dump`."""

from __future__ import annotations

from typing import Any

from mcproxy.config.model import Rule


def rule(given: Rule) -> dict[str, Any]:
    """Return the rule as a document; empty lists are left out, which means the same."""
    document: dict[str, Any] = {
        "verbs": list(given.verbs),
        "users": list(given.users),
        "serviceAccounts": [{"namespace": namespace, "name": name} for namespace, name in given.service_accounts],
        "userGroups": list(given.user_groups),
        "apiGroups": list(given.api_groups),
        "resources": list(given.resources),
        "resourceNames": list(given.resource_names),
        "namespaces": list(given.namespaces),
        "clusters": list(given.clusters),
        "nonResourceURLs": list(given.non_resource_urls),
    }
    return {key: value for key, value in document.items() if value}
