"""The whole desired state: no order matters, a part at a time gives the same, and what hostile objects cannot do."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.config import model
from mcproxy.services.api_types import MANAGER
from mcproxy.services.exports.desired_state import DesiredState, derived_names, desired_of
from mcproxy.services.exports.export_types import ClusterView, Desired, Exports, ProblemKind
from mcproxy.services.exports.object_keys import ObjectKey, ServiceKey, managed_by_label, slice_object, source_of
from tests.services.exports.given import (
    CLUSTERS,
    applied,
    desired_state,
    encoded,
    entry,
    everything,
    export_object,
    service,
    slice_of,
)

KEYS = (ServiceKey("demo", "serve"), ServiceKey("demo", "web"), ServiceKey("other", "serve"))
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")

TEXTS = (
    "",
    "http",
    "serve",
    "kube-system",
    "kubernetes",
    MANAGER,
    "TCP",
    "None",
    "IPv4",
    "a/b",
    "A",
    "\u00e4",
    "x" * 70,
)
ADDRESSES = (
    "10.2.0.1",
    "10.2.0.2",
    "10.3.0.9",
    "127.0.0.1",
    "2001:db8::1",
    "::1",
    "::ffff:1.2.3.4",
    "x",
    "\u0661.2.3.4",
)
NAMES = ("serve", "serve-1", "b-x", "x", "..", "Z")
LABELS = (
    "kubernetes.io/service-name",
    "endpointslice.kubernetes.io/managed-by",
    "app.kubernetes.io/managed-by",
    "mcproxy.io/source-cluster",
    "mcproxy.io/service-name",
    "multicluster.kubernetes.io/source-cluster",
    "x",
    "A b",
)
GARBAGE = (b"", b"null", b"[]", b'{"metadata":[]}', b'{"spec":1}', b'{"metadata":{"labels":{"a":1}}}', b"\xff")


class Cluster:
    """What a hostile cluster may send, by chance; fast, where a strategy for each field would be slow."""

    def __init__(self, source: random.Random) -> None:
        self.source = source

    def some(self, *values: Any) -> Any:
        return self.source.choice(values)

    def text(self) -> str:
        return self.source.choice(TEXTS)

    def fields(self, **values: Callable[[], Any]) -> dict[str, Any]:
        return {name: make() for name, make in values.items() if self.source.random() < 0.7}

    def several(self, make: Callable[[], Any], most: int = 3) -> list[Any]:
        return [make() for _ in range(self.source.randrange(most + 1))]

    def labels(self) -> dict[str, str]:
        return {self.source.choice(LABELS): self.text() for _ in range(self.source.randrange(3))}

    def metadata(self) -> dict[str, Any]:
        return {
            "name": self.source.choice(NAMES),
            "labels": self.labels(),
            **self.fields(
                namespace=self.text,
                annotations=self.labels,
                creationTimestamp=lambda: self.some("2026-01-01T00:00:00Z", "2025-01-01T00:00:00Z", "never"),
            ),
        }

    def ports(self) -> list[Any]:
        return self.several(
            lambda: self.fields(
                name=lambda: self.some("", "http", "grpc", "Bad name", "x" * 64),
                port=lambda: self.some(80, 443, 8080, 0, -1, 65536, None),
                protocol=lambda: self.some("TCP", "TCP", "UDP", "SCTP", "ICMP"),
                appProtocol=self.text,
            )
        )

    def endpoint(self) -> dict[str, Any]:
        return self.fields(
            addresses=lambda: self.several(lambda: self.source.choice(ADDRESSES), 2),
            conditions=lambda: self.fields(ready=lambda: self.some(True, False), serving=lambda: True),
            hostname=self.text,
            nodeName=self.text,
            zone=self.text,
            hints=lambda: {"forZones": self.several(lambda: {"name": self.text()}, 2)},
            targetRef=lambda: {"name": self.text()},
        )

    def slice(self, name: str) -> bytes:
        made = {
            "metadata": {**self.metadata(), "name": name},
            "addressType": self.some("IPv4", "IPv4", "IPv6", "FQDN"),
            **self.fields(endpoints=lambda: self.several(self.endpoint), ports=self.ports),
        }
        return self.or_garbage(encoded(made))

    def service(self) -> bytes:
        spec = self.fields(
            type=lambda: self.some("ClusterIP", "LoadBalancer", "ExternalName"),
            clusterIP=lambda: self.some("None", "10.96.0.1", ""),
            ports=self.ports,
            sessionAffinity=lambda: self.some("ClientIP", "x"),
            ipFamilies=lambda: self.several(lambda: self.some("IPv4", "IPv6", "x"), 2),
            trafficDistribution=self.text,
            internalTrafficPolicy=self.text,
            externalIPs=lambda: ["8.8.8.8"],
        )
        return self.or_garbage(encoded({"metadata": self.metadata(), "spec": spec}))

    def export(self) -> bytes:
        spec = self.fields(exportedLabels=self.labels, exportedAnnotations=self.labels)
        return self.or_garbage(encoded({"metadata": self.metadata(), "spec": spec}))

    def or_garbage(self, data: bytes) -> bytes:
        return self.source.choice(GARBAGE) if self.source.random() < 0.1 else data

    def view(self, cluster: str, key: ServiceKey) -> ClusterView:
        return ClusterView(
            known=self.source.random() < 0.9,
            namespace_exists=self.some(True, True, None, False),
            multicluster_version=self.some("v1beta1", "v1beta1", "v1alpha1", None),
            service=self.some(self.service(), self.service(), None),
            slices=tuple(map(self.slice, self.source.sample(NAMES, self.source.randrange(4)))),
            export=self.some(self.export(), self.export(), None),
            derived={
                ObjectKey(cluster, group, "v1beta1" if group else "v1", resource, key.namespace, name): self.service()
                for group, resource, name in derived_names(key)
                if self.source.random() < 0.3
            },
        )


State = dict[ServiceKey, dict[str, ClusterView]]


def random_state(source: random.Random) -> State:
    made = Cluster(source)
    return {key: {cluster: made.view(cluster, key) for cluster in CLUSTERS if source.random() < 0.9} for key in KEYS}


states = st.integers(0, 2**64).map(lambda seed: random_state(random.Random(seed)))


def entries(key: ServiceKey) -> list[model.ServiceExport]:
    both = entry("b", from_clusters=("north", "west", "east"), to=("north", "west"))
    return [replace(each, namespace=key.namespace, service=key.service) for each in (entry("a"), both)]


EXPORTS = Exports(
    tuple(each for key in KEYS for each in entries(key)),
    model.ServiceDiscovery(enabled=True, clusters=CLUSTERS),
    CLUSTERS,
)


def shuffled(value: Any, source: random.Random) -> Any:
    """Return a value whose dictionaries, and sequences without meaning, are in another order."""
    if isinstance(value, ClusterView):
        slices = [*value.slices]
        source.shuffle(slices)
        return replace(value, slices=tuple(map(reordered, slices)), derived=shuffled(value.derived, source))
    if isinstance(value, Mapping):
        pairs = [*value.items()]
        source.shuffle(pairs)
        return {key: shuffled(each, source) for key, each in pairs}
    return value


def reordered(data: bytes) -> bytes:
    """Return a slice with its endpoints and ports the other way round."""
    try:
        obj = json.loads(data)
    except ValueError:
        return data
    if not isinstance(obj, dict):
        return data
    names = [each.get("name", "") for each in obj.get("ports", [])]
    if len(set(names)) == len(names):
        obj["ports"] = obj.get("ports", [])[::-1]
    obj["endpoints"] = obj.get("endpoints", [])[::-1]
    return encoded(dict(reversed(obj.items())))


@settings(max_examples=60, deadline=None)
@given(states, st.randoms(use_true_random=False))
def test_no_order_of_anything_matters(state: State, source: random.Random) -> None:
    assert desired_state(shuffled(state, source), EXPORTS) == desired_state(state, EXPORTS)


@settings(max_examples=60, deadline=None)
@given(states, states, st.permutations(KEYS))
def test_one_service_at_a_time_gives_the_same_as_all_at_once(
    before: State,
    after: State,
    order: list[ServiceKey],
) -> None:
    state = DesiredState()
    for each in (before, after):
        was = everything(state)
        changed: set[ObjectKey] = set()
        for key in order:
            changed |= state.update(key, desired_of(key, each[key], EXPORTS))
        now = everything(state)
        assert now == desired_state(each, EXPORTS)
        places = (
            was.objects.keys() | now.objects.keys() | was.kept | now.kept | was.statuses.keys() | now.statuses.keys()
        )
        for place in places:
            if place not in changed:
                assert was.objects.get(place) == now.objects.get(place)
                assert was.statuses.get(place) == now.statuses.get(place)
                assert (place in was.kept) == (place in now.kept)
    for key in order:
        state.update(key, None)
    assert everything(state) == Desired()


@settings(max_examples=150, deadline=None)
@given(states)
def test_whatever_a_cluster_sends_other_clusters_get_only_what_may_be_there(
    state: State,
) -> None:
    desired = desired_state(state, EXPORTS)
    wanted = {(key.namespace, name) for key in KEYS for _, _, name in derived_names(key)}
    for place, obj in desired.objects.items():
        meta = obj["metadata"]
        assert (meta["name"], meta["namespace"]) == (place.name, place.namespace)
        assert meta["labels"][managed_by_label(place.resource)] == MANAGER
        key = source_of(place.resource, place.namespace, meta["labels"])
        assert key in KEYS
        assert place.cluster in CLUSTERS
        assert NAME.match(place.name)
        view = state[key][place.cluster]
        assert view.known
        assert view.namespace_exists is not False
        if place.resource == "endpointslices":
            assert place.name.startswith(("imported-", "clusterset-"))
            names = {name for _, _, name in derived_names(key)}
            assert meta["labels"]["kubernetes.io/service-name"] in names
            assert meta["labels"]["mcproxy.io/source-cluster"] in CLUSTERS
            for endpoint in obj["endpoints"]:
                assert endpoint["addresses"]
                for text in endpoint["addresses"]:
                    address = ip_address(text)
                    assert f"IPv{address.version}" == obj["addressType"]
                    assert not any((address.is_loopback, address.is_link_local, address.is_multicast))
                    assert not address.is_unspecified
                    assert getattr(address, "ipv4_mapped", None) is None
            assert all(1 <= port["port"] <= 65535 for port in obj["ports"])
        else:
            assert (place.namespace, place.name) in wanted
            assert "selector" not in obj["spec"]
            assert "externalIPs" not in obj["spec"]
            used = [port.get("name", "") for port in obj["spec"]["ports"]]
            assert len(set(used)) == len(used)
            assert len(used) < 2 or "" not in used
        data = view.derived.get(place)
        if data is not None:
            # Nothing that is not ours is written to.
            assert source_of(place.resource, place.namespace, labels_of(data)) is not None or is_managed(place, data)
    assert not desired.kept & desired.objects.keys()
    for problem in desired.problems:
        assert problem.message.isascii()
        assert problem.message.isprintable()
        assert len(problem.message) < 600


def labels_of(data: bytes) -> dict[str, str]:
    found = json.loads(data).get("metadata", {}).get("labels", {})
    assert isinstance(found, dict)
    return found


def is_managed(place: ObjectKey, data: bytes) -> bool:
    return labels_of(data).get(managed_by_label(place.resource)) == MANAGER


@settings(max_examples=60, deadline=None)
@given(states)
def test_what_was_applied_is_what_is_wanted(state: State) -> None:
    """Applying the desired state again and again ends: nothing depends on itself in a circle."""
    for key in KEYS:
        found: list[Desired] = []
        views = state[key]
        for _ in range(5):
            found.append(desired_of(key, views, EXPORTS))
            views = {name: after_applying(name, view, found[-1]) for name, view in views.items()}
        assert found[-1] == found[-2]


def after_applying(name: str, view: ClusterView, desired: Desired) -> ClusterView:
    if not view.known:
        return view
    foreign = {place: data for place, data in view.derived.items() if not is_ours(place, data)}
    kept = {place: data for place, data in view.derived.items() if place in desired.kept}
    return replace(view, derived={**foreign, **kept, **applied(desired, name)})


def is_ours(place: ObjectKey, data: bytes) -> bool:
    try:
        return is_managed(place, data)
    except (ValueError, AttributeError, AssertionError):
        return False


def test_a_slice_that_two_services_show_is_the_first_ones_and_reported() -> None:
    first, second = KEYS[:2]
    exports = Exports(tuple(entries(first)[:1] + entries(second)[:1]), model.ServiceDiscovery(), CLUSTERS)
    views = {"west": ClusterView(service=service(), slices=(slice_of(),)), "east": ClusterView()}
    place = slice_object("east", "demo", "imported-west-serve-abc")
    for order in ((first, second), (second, first)):
        state = DesiredState()
        for key in order:
            state.update(key, desired_of(key, views, exports))
        found = everything(state).objects.get(place)
        assert found is not None
        assert found["metadata"]["labels"]["mcproxy.io/service-name"] == "serve"
        assert state.owner(place) == first
        (problem,) = state.problems()
        assert (problem.kind, problem.key, problem.cluster) == (ProblemKind.NAME_TAKEN, second, "east")
        state.update(first, None)
        found = everything(state).objects.get(place)
        assert found is not None
        assert found["metadata"]["labels"]["mcproxy.io/service-name"] == "web"


def test_problems_sort_only_objects_that_several_services_want() -> None:
    """Of 40,000 objects, at each scrape of metrics, nearly all have one claim."""
    compared = 0

    class Counted(ObjectKey):
        def __lt__(self, other: Any) -> bool:
            nonlocal compared
            compared += 1
            return tuple(self) < tuple(other)

    def place(name: str) -> Counted:
        return Counted("east", "", "v1", "services", "demo", name)

    state = DesiredState()
    for number in range(200):
        state.update(ServiceKey("demo", f"s{number:03}"), Desired({place(f"own-{number:03}"): {}}))
    for name in ("b", "a"):
        for number in (1, 2):
            key = ServiceKey("demo", f"s{number:03}")
            state.update(key, Desired({**state.part(key).objects, place(name): {}}))
    found = [(each.key.service, each.message) for each in state.problems()]
    assert [(service, message.split(" belongs to ")[0]) for service, message in found] == [
        ("s002", "services a"),
        ("s002", "services b"),
    ]
    assert compared <= 4


def test_services_are_iterated_and_known_by_themselves() -> None:
    state = DesiredState()
    part = desired_of(KEYS[0], {"west": ClusterView(service=service()), "east": ClusterView()}, EXPORTS)
    state.update(KEYS[0], part)
    assert list(state) == [KEYS[0]]
    assert state.part(KEYS[0]) == part
    assert state.part(KEYS[1]) == Desired()
    assert list(EXPORTS) == list(KEYS)


def test_a_cluster_that_is_not_known_at_all_exports_nothing_by_the_api() -> None:
    views = {
        "west": ClusterView(known=False, service=service(), export=export_object(), multicluster_version="v1beta1")
    }
    assert desired_of(KEYS[0], views, EXPORTS).objects == {}
