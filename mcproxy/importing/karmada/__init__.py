"""Karmada's Cluster and ResourceRegistry objects. Source of their behaviour: its code, pkg/search and pkg/util."""

CLUSTER = ("cluster.karmada.io", "v1alpha1", "clusters")
REGISTRY = ("search.karmada.io", "v1alpha1", "resourceregistries")
SOURCES = (CLUSTER, REGISTRY)
"""Group, version and plural of the kinds that are read."""
