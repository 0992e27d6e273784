"""JSON types of EndpointSlices and Services that ingresses and exports share; names of groups, resources and labels.

Source: k8s.io/api `discovery/v1` and `core/v1`, its `discovery/v1/well_known_labels.go`; sigs.k8s.io/mcs-api
`well_known_labels.go`; about-api.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

MAX_SLICE_ENDPOINTS = 1000
"""Maximum of endpoints that kube-apiserver accepts in one EndpointSlice (`discovery.validation.maxEndpoints`)."""
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Pattern of a DNS label (RFC 1123), to be used with `fullmatch`."""
DNS_SUBDOMAIN = re.compile(rf"{DNS_LABEL.pattern}(\.{DNS_LABEL.pattern})*")
"""Pattern of a DNS subdomain, to be used with `fullmatch`. It does not check the length (253 characters for pods)."""

_T = TypeVar("_T")


class UnreadableObject(ValueError):
    """Raised for an object that does not match the schema of its kind; the message is one line."""


class PortJSON(msgspec.Struct, rename="camel"):
    """A port of a Service or an EndpointSlice."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None
    app_protocol: str | None = None


class ConditionsJSON(msgspec.Struct):
    """The conditions of an endpoint."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


def decode(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    """Return a decoded object. Raises UnreadableObject."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableObject(" ".join(str(error).split())[:200]) from None


# -- groups, resources and labels -----------------------------------------------------------------------------


SLICES = "endpointslices"
SERVICES = "services"
IMPORTS = "serviceimports"
EXPORTS = "serviceexports"
DISCOVERY_GROUP = "discovery.k8s.io"
MCS_GROUP = "multicluster.x-k8s.io"
PROPERTIES = "clusterproperties"
ABOUT_GROUP = "about.k8s.io"
ABOUT_VERSIONS = ("v1", "v1beta1", "v1alpha1")
"""The supported API versions, the preferred one first."""
CLUSTER_ID = "cluster.clusterset.k8s.io"
"""The ClusterProperty with the id of a cluster in its clusterset (KEP-2149)."""
CLUSTERSET_ID = "clusterset.k8s.io"
"""The ClusterProperty that names the clusterset that a cluster is a member of (KEP-2149)."""
MCS_VERSIONS = ("v1beta1", "v1alpha1")
"""The supported API versions, the preferred one first."""

SERVICE_NAME = "kubernetes.io/service-name"
"""The label of an EndpointSlice that names its Service."""
HEADLESS = "service.kubernetes.io/headless"
SLICE_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGED_BY = "app.kubernetes.io/managed-by"
MCS_SERVICE_NAME = "multicluster.kubernetes.io/service-name"
"""The label of an EndpointSlice that names its ServiceImport (KEP-1645)."""
MCS_SOURCE_CLUSTER = "multicluster.kubernetes.io/source-cluster"
MCS_DERIVED_SERVICE = "multicluster.kubernetes.io/derived-service"
"""The annotation of a ServiceImport that names the Service whose address clients use."""

MANAGER = "mcproxy.io"
"""The value of `MANAGED_BY` and `SLICE_MANAGED_BY` of the objects that mcproxy makes."""
SOURCE_CLUSTER = "mcproxy.io/source-cluster"
SOURCE_SERVICE = "mcproxy.io/service-name"
"""The label of every object that mcproxy creates; its value names the exported service."""
