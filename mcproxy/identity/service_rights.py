"""Computes the proxy's rights for services across clusters: to read, to write, and to elect one of several daemons.

It is a part of `identity.required_rights`. The read rights match `services.cache_scopes`: tests compare them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mcproxy.config import model
from mcproxy.identity.right import Right

_SLICES = ("discovery.k8s.io", "endpointslices")
_SERVICES = ("", "services")
_MULTICLUSTER = "multicluster.x-k8s.io"
_EXPORTS, _IMPORTS = (_MULTICLUSTER, "serviceexports"), (_MULTICLUSTER, "serviceimports")
_NAMESPACES = ("", "namespaces")
_PROPERTIES = ("about.k8s.io", "clusterproperties")
#: Server-side apply is a PATCH; for a missing object it also needs the right to create the object.
_APPLY = ("create", "patch", "delete")
#: The documents that list a cluster's versions.
_DISCOVERY = ("/api", "/api/*", "/apis", "/apis/*")
#: The verbs of the HTTP methods that API servers authorize; OPTIONS has no verb.
_PROXY_VERBS = ("get", "create", "update", "patch", "delete")


def service_rights(config: model.Config, cluster: model.ClusterConfig) -> Iterator[Right]:
    """Yield the rights that exports, discovery and ingresses need in a cluster."""
    readers = [
        *_named(
            "serviceExports", (e.name for e in config.service_exports if cluster.name in (*e.from_clusters, *e.to))
        ),
        *_named("ingresses", (each.name for each in config.ingresses if _endpoints_of(each, cluster.name))),
        *(["serviceDiscovery"] if _is_discovered(config, cluster.name) else []),
    ]
    if readers:
        whose = f"({'; '.join(readers)})"
        for path in _DISCOVERY:
            yield Right(f"finds its resources {whose}", "get", path=path)
        # The namespace's uid identifies the cluster, since the same address can lead to another cluster.
        yield Right(f"recognizes the cluster {whose}", "get", "namespaces", name="kube-system")
        yield from _reads(config, cluster.name, whose)
    yield from _writes(config, cluster.name)
    yield from _proxies(config, cluster.name)
    yield from _forwards(config, cluster.name)


def _named(section: str, names: Iterable[str], most: int = 4) -> Iterator[str]:
    """Yield the section with its first names, if it has names."""
    found = list(names)
    if found:
        yield f"{section} {', '.join(found[:most])}" + (f" and {len(found) - most} more" if len(found) > most else "")


def _is_discovered(config: model.Config, cluster: str) -> bool:
    return config.service_discovery.enabled and cluster in config.service_discovery.clusters


def _endpoints_of(ingress: model.Ingress, cluster: str) -> list[model.IngressBackend]:
    return [each for each in ingress.backends if cluster in each.clusters]


def _reads(config: model.Config, cluster: str, whose: str) -> Iterator[Right]:
    kinds = [_SLICES, _SERVICES]
    if _is_discovered(config, cluster):
        kinds += [_EXPORTS, _IMPORTS]
        namespaces = [""]
    else:
        exports = [each for each in config.service_exports if cluster in (*each.from_clusters, *each.to)]
        backends = [backend for ingress in config.ingresses for backend in _endpoints_of(ingress, cluster)]
        named = dict.fromkeys((*(each.namespace for each in exports), *(each.namespace for each in backends)))
        namespaces = list(named) if len(named) <= model.MAX_SERVICE_NAMESPACES else [""]
    importing = [each.name for each in config.service_exports if cluster in each.to]
    discovering = ["serviceDiscovery"] if _is_discovered(config, cluster) else []
    cluster_wide = []
    if importing or discovering:
        importers = "; ".join((*_named("serviceExports", importing), *discovering))
        cluster_wide.append((f"imports services when their namespace comes ({importers})", _NAMESPACES))
    if discovering:
        cluster_wide.append(("knows the cluster's id in its clusterset (serviceDiscovery)", _PROPERTIES))
    for why, (group, resource) in cluster_wide:
        for verb in ("list", "watch"):
            yield Right(why, verb, resource, group)
    for namespace in namespaces:
        for group, resource in kinds:
            for verb in ("list", "watch"):
                yield Right(f"knows the endpoints of services {whose}", verb, resource, group, namespace=namespace)


def _writes(config: model.Config, cluster: str) -> Iterator[Right]:
    imported: dict[str, list[str]] = {}
    for export in config.service_exports:
        if cluster in export.to:
            imported.setdefault(export.namespace, []).append(export.name)
    creating = [each.name for each in config.service_exports if each.create_namespaces and cluster in each.to]
    if creating:
        [whose] = _named("serviceExports", creating)
        yield Right(f"creates namespaces ({whose})", "create", "namespaces")
    discovered = _is_discovered(config, cluster)
    for namespace, names in imported.items() if not discovered else ():
        [whose] = _named("serviceExports", names)
        yield from _applies(f"imports services ({whose})", (_SLICES, _SERVICES), namespace)
    if discovered:
        listed = [
            *_named("serviceExports", (name for names in imported.values() for name in names)),
            "serviceDiscovery",
        ]
        yield from _applies(f"imports services ({'; '.join(listed)})", (_SLICES, _SERVICES, _IMPORTS), "")
        for group, resource in (_EXPORTS, _IMPORTS):
            yield Right("says what became of exports (serviceDiscovery)", "patch", f"{resource}/status", group)
    if imported or discovered:
        why = "lets one of several daemons write (the Lease)"
        lease = model.lease_of(config.service_exports, cluster)
        where = {"resource": "leases", "group": "coordination.k8s.io", "namespace": lease.namespace}
        yield Right(why, "create", **where)
        for verb in ("get", "update"):
            yield Right(why, verb, name=lease.name, **where)


def _applies(why: str, kinds: Iterable[tuple[str, str]], namespace: str) -> Iterator[Right]:
    for group, resource in kinds:
        for verb in _APPLY:
            yield Right(why, verb, resource, group, namespace=namespace)


def _proxies(config: model.Config, cluster: str) -> Iterator[Right]:
    """Yield the rights for requests through the API server, only to the service ports that rules name.

    The name of a service can begin with `https:`, depending on its port's appProtocol.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for ingress in config.ingresses:
        for backend in ingress.backends:
            if backend.via is model.Via.API_SERVER and cluster in backend.clusters:
                names = found.setdefault((backend.namespace, f"{backend.service}:{backend.port}"), [])
                names += [ingress.name] if ingress.name not in names else []
    for (namespace, name), ingresses in found.items():
        [whose] = _named("ingresses", ingresses)
        why = f"sends requests to the service {name} (via: APIServer; {whose})"
        for named in (name, f"https:{name}"):
            for verb in _PROXY_VERBS:
                yield Right(why, verb, "services/proxy", namespace=namespace, name=named)


def _forwards(config: model.Config, cluster: str) -> Iterator[Right]:
    """Yield the rights for connections to pods through the API server.

    The upgrade is a GET, for which API servers require `get`, and since Kubernetes 1.35 also `create`.
    """
    found: dict[str, list[str]] = {}
    for ingress in config.ingresses:
        for backend in ingress.backends:
            if backend.via is model.Via.PORT_FORWARD and cluster in backend.clusters:
                names = found.setdefault(backend.namespace, [])
                names += [ingress.name] if ingress.name not in names else []
    for namespace, ingresses in found.items():
        [whose] = _named("ingresses", ingresses)
        for verb in ("get", "create"):
            why = f"connects to pods through the cluster (via: PortForward; {whose})"
            yield Right(why, verb, "pods/portforward", namespace=namespace)
