"""A right that the proxy needs in a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Right:
    """One right in RBAC's terms: a verb on a resource of a group, or (with `path`) on a non-resource path.

    `namespace` "" means all namespaces, `name` "" all objects.
    """

    why: str
    verb: str
    resource: str = ""
    group: str = ""
    path: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def rule(self) -> dict[str, list[str]]:
        """The RBAC PolicyRule for this right."""
        if self.path:
            return {"nonResourceURLs": [self.path], "verbs": [self.verb]}
        rule = {"apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb]}
        return {**rule, "resourceNames": [self.name]} if self.name else rule
