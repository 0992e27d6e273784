"""The rights for services across clusters: what is read is what the caches read, and nothing else is written."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config import model
from mcproxy.identity.required_rights import required_rights, rights_by_cluster
from mcproxy.services.cache_scopes import ALL, scopes_of

CLUSTERS = ("east", "west", "north")
_some = st.lists(st.sampled_from(CLUSTERS), min_size=1, max_size=3, unique=True).map(tuple)
_namespaces = st.sampled_from([f"n{number}" for number in range(14)])


def export(name: str, namespace: str, from_clusters: tuple[str, ...], to: tuple[str, ...]) -> model.ServiceExport:
    return model.ServiceExport(name=name, namespace=namespace, service="s", from_clusters=from_clusters, to=to)


def ingress(
    name: str, namespace: str, clusters: tuple[str, ...], via: model.Via = model.Via.ENDPOINTS
) -> model.Ingress:
    backend = model.IngressBackend(namespace=namespace, service="web", port=81, clusters=clusters, via=via)
    return model.Ingress(name=name, listeners=("l",), default_backend=backend)


def configuration(
    exports: tuple[model.ServiceExport, ...] = (),
    ingresses: tuple[model.Ingress, ...] = (),
    discovered: tuple[str, ...] = (),
) -> model.Config:
    return model.Config(
        clusters=tuple(model.ClusterConfig(name=name, endpoints=()) for name in CLUSTERS),
        service_exports=exports,
        ingresses=ingresses,
        service_discovery=model.ServiceDiscovery(enabled=bool(discovered), clusters=discovered),
    )


def rights(config: model.Config, cluster: str) -> list[str]:
    chosen = next(each for each in config.clusters if each.name == cluster)
    return [
        f"{each.verb} {each.path or each.resource}"
        + (f" of {each.namespace}" if each.namespace else "")
        + (f" named {each.name}" if each.name else "")
        for each in required_rights(config, chosen)
        if each.path not in ("/readyz", "/api", "/api/*", "/apis", "/apis/*")
    ]


UID = "get namespaces named kube-system"
READS = [f"{verb} {kind} of demo" for kind in ("endpointslices", "services") for verb in ("list", "watch")]
COMES = ["list namespaces", "watch namespaces"]
WRITES = [f"{verb} {kind} of demo" for kind in ("endpointslices", "services") for verb in ("create", "patch", "delete")]
LEASE = [
    "create leases of kube-system",
    "get leases of kube-system named mcproxy-services",
    "update leases of kube-system named mcproxy-services",
]


def test_an_exporter_is_read_and_an_importer_is_written_to() -> None:
    config = configuration((export("a", "demo", ("west",), ("east",)),))
    assert rights(config, "west") == [UID, *READS]
    assert rights(config, "east") == [UID, *COMES, *READS, *WRITES, *LEASE]
    assert rights(config, "north") == []


def test_a_cluster_that_exports_and_imports_is_written_to() -> None:
    config = configuration((export("a", "demo", ("west",), ("west", "east")),))
    assert rights(config, "west") == [UID, *COMES, *READS, *WRITES, *LEASE]


def test_the_lease_is_the_one_that_the_exports_name() -> None:
    one = replace(export("a", "demo", ("west",), ("east",)), lease=model.LeaseName(namespace="mcproxy", name="writers"))
    assert [each for each in rights(configuration((one,)), "east") if "leases" in each] == [
        "create leases of mcproxy",
        "get leases of mcproxy named writers",
        "update leases of mcproxy named writers",
    ]


def test_namespaces_are_created_only_where_an_export_says_so() -> None:
    one = replace(export("a", "demo", ("west",), ("east",)), create_namespaces=True)
    assert rights(configuration((one,)), "east") == [UID, *COMES, *READS, "create namespaces", *WRITES, *LEASE]
    assert rights(configuration((one,)), "west") == [UID, *READS]


def test_discovery_takes_all_namespaces_and_the_objects_of_the_standard() -> None:
    kinds = ("endpointslices", "services", "serviceexports", "serviceimports")
    assert rights(configuration(discovered=("east",)), "east") == [
        UID,
        *COMES,
        *(f"{verb} clusterproperties" for verb in ("list", "watch")),
        *(f"{verb} {kind}" for kind in kinds for verb in ("list", "watch")),
        *(f"{verb} {kind}" for kind in ("endpointslices", "services", "serviceimports")
          for verb in ("create", "patch", "delete")),
        "patch serviceexports/status",
        "patch serviceimports/status",
        *LEASE,
    ]  # fmt: skip


def test_an_ingress_reads_endpoints_and_goes_through_an_api_server_to_its_services_alone() -> None:
    assert rights(configuration(ingresses=(ingress("i", "demo", ("east",)),)), "east") == [UID, *READS]
    through = configuration(ingresses=(ingress("i", "demo", ("east",), model.Via.API_SERVER),))
    verbs = ("get", "create", "update", "patch", "delete")
    names = ("web:81", "https:web:81")  # the second where the Service says that its pods speak TLS
    proxied = [f"{verb} services/proxy of demo named {name}" for name in names for verb in verbs]
    assert rights(through, "east") == [UID, *READS, *proxied]


def test_an_ingress_that_forwards_connects_to_pods_of_its_namespace_and_no_more() -> None:
    """A WebSocket is a GET, for which API servers want `get`, and `create` too since Kubernetes 1.35."""
    through = configuration(ingresses=(ingress("i", "demo", ("east",), model.Via.PORT_FORWARD),))
    assert rights(through, "east") == [UID, *READS, "get pods/portforward of demo", "create pods/portforward of demo"]
    assert rights(through, "west") == []


def test_each_purpose_names_its_entries_and_is_bounded() -> None:
    config = configuration(tuple(export(f"e{number}", "demo", ("west",), ("east",)) for number in range(1000)))
    found = required_rights(config, config.clusters[1])
    assert found[-1].why == "knows the endpoints of services (serviceExports e0, e1, e2, e3 and 996 more)"


@given(
    st.lists(st.tuples(_namespaces, _some, _some), max_size=16),
    st.lists(st.tuples(_namespaces, _some, st.sampled_from(model.Via)), max_size=4),
    st.one_of(st.just(()), _some),
)
def test_what_is_read_is_what_the_caches_read(
    exports: list[tuple[str, tuple[str, ...], tuple[str, ...]]],
    ingresses: list[tuple[str, tuple[str, ...], model.Via]],
    discovered: tuple[str, ...],
) -> None:
    config = configuration(
        tuple(export(f"e{number}", *each) for number, each in enumerate(exports)),
        tuple(ingress(f"i{number}", *each) for number, each in enumerate(ingresses)),
        discovered,
    )
    scopes, at_once = scopes_of(config), rights_by_cluster(config)
    for cluster in config.clusters:
        found = required_rights(config, cluster)
        assert at_once[cluster.name] == found
        for verb in ("list", "watch"):
            read = {(each.group, each.resource, each.namespace) for each in found if each.verb == verb}
            assert read == {
                (kind.group, kind.resource, namespace)
                for kind, namespaces in scopes.get(cluster.name, {}).items()
                for namespace in namespaces
            }
            assert len(read) == len([each for each in found if each.verb == verb])
    assert ALL == ""
