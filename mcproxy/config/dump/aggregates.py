"""Aggregates in the form of the file; see `config.dump`."""

from __future__ import annotations

from typing import Any

from mcproxy.config.model import Aggregate, CachedResource, CreateRule
from mcproxy.config.units import format_duration

Document = dict[str, Any]


def aggregate(given: Aggregate) -> Document:
    """Return the aggregate as a document; a clusterSelector appears as the clusters that it selects."""
    reads, cache = given.reads, given.cache
    return {
        "name": given.name,
        "clusters": list(given.clusters),
        "primary": given.primary,
        "resourceVersions": str(given.resource_versions),
        "unavailable": str(given.unavailable),
        "reads": {
            "authorize": str(reads.authorize),
            "cacheAllowed": format_duration(reads.cache_allowed),
            "cacheDenied": format_duration(reads.cache_denied),
            "staleDecisions": format_duration(reads.stale_decisions),
        },
        "cache": {
            "resources": [_resource(each) for each in cache.resources],
            "maxStaleness": format_duration(cache.max_staleness),
            "initialSyncTimeout": format_duration(cache.initial_sync_timeout),
            "dropManagedFields": cache.drop_managed_fields,
            "persistSecrets": cache.persist_secrets,
        },
        "create": [_create_rule(each) for each in given.create],
    }


def _resource(given: CachedResource) -> Document:
    return {
        "group": given.group,
        "version": given.version,
        "resource": given.resource,
        "namespaces": list(given.namespaces),
        "clusters": list(given.clusters),
    }


def _create_rule(given: CreateRule) -> Document:
    return {"apiGroups": list(given.api_groups), "resources": list(given.resources), "to": given.to}
