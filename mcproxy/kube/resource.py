"""Resources of the Kubernetes API: their names, paths, and properties in discovery.

Source: Kubernetes API concepts ("Resource URIs"); k8s.io/api `apidiscovery/v2` and `metav1.APIResource` for the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class GroupVersionResource(NamedTuple):
    """The name of a resource in one version; `group` is "" for the core group, `resource` the plural in lower case."""

    group: str
    version: str
    resource: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` of objects: "v1", "apps/v1"."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_version_path(self) -> str:
        """The path of the group-version: "/api/v1", "/apis/apps/v1"."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of the collection, or of the object `name`. The `namespace` "" means all namespaces, or a
        cluster-scoped resource.
        """
        path = f"{self.group_version_path}/namespaces/{namespace}" if namespace else self.group_version_path
        return f"{path}/{self.resource}/{name}" if name else f"{path}/{self.resource}"

    def __str__(self) -> str:
        """Return `pods` or `deployments.apps`, the form of a resource in a kube-apiserver's messages."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


@dataclass(frozen=True, slots=True)
class APISubresource:
    """A subresource; `group`, `version` and `kind` are those of its objects ("autoscaling", "v1", "Scale")."""

    name: str
    kind: str
    group: str
    version: str
    verbs: frozenset[str]


@dataclass(frozen=True, slots=True)
class APIResource:
    """A resource with its properties in discovery."""

    gvr: GroupVersionResource
    kind: str
    singular: str
    namespaced: bool
    verbs: frozenset[str]
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[APISubresource, ...] = ()

    @property
    def listable(self) -> bool:
        """Whether the resource's collection can be listed."""
        return "list" in self.verbs

    @property
    def watchable(self) -> bool:
        """Whether the resource's collection can be listed and watched, as a reflector requires."""
        return "list" in self.verbs and "watch" in self.verbs

    @property
    def list_kind(self) -> str:
        """The kind of a built-in resource's list. (The definition of a custom resource may set another.)"""
        return self.kind + "List"

    def subresource(self, name: str) -> APISubresource | None:
        """Return the subresource of that name, None if there is none."""
        return next((subresource for subresource in self.subresources if subresource.name == name), None)
