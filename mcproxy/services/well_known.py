"""Groups, versions, resources and labels of the API objects that connect services of several clusters.

Sources: k8s.io/api `discovery/v1/well_known_labels.go`, sigs.k8s.io/mcs-api `well_known_labels.go`; about-api.
"""

from __future__ import annotations

SLICES = "endpointslices"
SERVICES = "services"
IMPORTS = "serviceimports"
EXPORTS = "serviceexports"
DISCOVERY_GROUP = "discovery.k8s.io"
MCS_GROUP = "multicluster.x-k8s.io"
PROPERTIES = "clusterproperties"
ABOUT_GROUP = "about.k8s.io"
ABOUT_VERSIONS = ("v1", "v1beta1", "v1alpha1")
"""The preferred one first."""
CLUSTER_ID = "cluster.clusterset.k8s.io"
"""The ClusterProperty with the id of a cluster in its clusterset (KEP-2149)."""
CLUSTERSET_ID = "clusterset.k8s.io"
"""The ClusterProperty that names the clusterset that a cluster is a member of (KEP-2149)."""
MCS_VERSIONS = ("v1beta1", "v1alpha1")
"""The preferred one first."""

SERVICE_NAME = "kubernetes.io/service-name"
"""The label of an EndpointSlice that names its Service."""
HEADLESS = "service.kubernetes.io/headless"
SLICE_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGED_BY = "app.kubernetes.io/managed-by"
MCS_SERVICE_NAME = "multicluster.kubernetes.io/service-name"
"""The label of an EndpointSlice that names its ServiceImport (KEP-1645)."""
MCS_SOURCE_CLUSTER = "multicluster.kubernetes.io/source-cluster"
MCS_DERIVED_SERVICE = "multicluster.kubernetes.io/derived-service"
"""The annotation of a ServiceImport that names the Service through which it is reached."""

MANAGER = "mcproxy.io"
"""The value of `MANAGED_BY` and `SLICE_MANAGED_BY` of the objects that mcproxy makes."""
SOURCE_CLUSTER = "mcproxy.io/source-cluster"
SOURCE_SERVICE = "mcproxy.io/service-name"
"""The label of every object that mcproxy makes: the exported service that it is derived from."""
