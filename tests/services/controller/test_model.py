"""Random changes of everything, by whoever may make them; in the end each cluster has what the pure function says.

And at no time has anything been written that is not ours, nor from what a cluster says about another one's objects.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mcproxy.config import model
from mcproxy.services.cache_scopes import FollowedKind
from mcproxy.services.exports.desired_state import derived_names
from mcproxy.services.exports.export_types import ClusterView, Exports
from mcproxy.services.exports.object_keys import ObjectKey, ServiceKey, is_ours, source_of
from mcproxy.services.writer.differences import _contains
from tests.services.controller_bench import Bench, Replica
from tests.services.exports.given import desired_state
from tests.services.fake_clusters import FakeAPIServer
from tests.services.objects import endpoint, service_of, slice_of

CLUSTERS = ("a", "a-b", "c")
SERVICES = ("api", "web")
NAMESPACE = "demo"
VERSION = FollowedKind.EXPORTS.versions[0]
Place = tuple[FollowedKind, str, str]

clusters = st.sampled_from(CLUSTERS)
services = st.sampled_from(SERVICES)
slice_names = st.sampled_from(("s", "b-s", "t"))
addresses = st.lists(st.sampled_from(("10.1.0.1", "10.1.0.2", "10.2.0.1", "127.0.0.1")), max_size=3, unique=True)
ports = st.sampled_from(([("http", 80)], [("http", 81)], [("http", 80), ("grpc", 90)], [("", 80)]))


def export(service: str, source: tuple[str, ...], to: tuple[str, ...], **more: Any) -> model.ServiceExport:
    return model.ServiceExport(
        name=f"{service}-{'-'.join(to)}", namespace=NAMESPACE, service=service, from_clusters=source, to=to, **more
    )


SAME = {"made_as": model.ExportAs.SAME_NAME}
AFTER = 6.0
REMOVE = {"unreachable": model.Unreachable.REMOVE, "after": AFTER}


NOTHING = model.ServiceDiscovery()
ALL = model.ServiceDiscovery(enabled=True, clusters=CLUSTERS)
CONFIGURATIONS: tuple[tuple[tuple[model.ServiceExport, ...], model.ServiceDiscovery], ...] = (
    ((export("web", ("a",), ("c",)),), NOTHING),
    ((export("web", ("a", "a-b"), ("a", "c")), export("api", ("c",), ("a-b",))), NOTHING),
    ((export("web", ("c",), ("a",)), export("web", ("a-b",), ("a", "c"))), ALL),
    ((), ALL),
    ((), NOTHING),
    ((export("web", ("a", "c"), ("c", "a-b"), **SAME), export("api", ("a",), ("c",), **SAME)), NOTHING),
    ((export("web", ("a", "a-b"), ("c",), **REMOVE), export("web", ("a",), ("a-b",), **SAME, **REMOVE)), NOTHING),
)


class Server(FakeAPIServer):
    """Gives Services addresses; shows nothing that follows on a list before there is one."""

    def _show(self, key: Place) -> None:
        stores = self.members.stores
        store = stores.get((self.name, key[0].resource, ""))
        if store is not None and store.synced:
            super()._show(key)

    def show(self) -> None:
        """Show in the caches what has changed, by version, as a watch does; at last deletions, which get theirs now."""

        def version(key: Place) -> float:
            live = self.objects.get(key)
            return float("inf") if live is None else int(live["metadata"]["resourceVersion"])

        self._unseen.sort(key=version)
        super().show()

    def list(self) -> None:
        """Fill the caches; what has changed before is not told again."""
        self._unseen.clear()
        super().list()

    def put(self, kind: FollowedKind, found: Mapping[str, Any]) -> dict[str, Any]:
        if kind is FollowedKind.SERVICES and "clusterIP" not in found["spec"]:
            live = self.objects.get((kind, found["metadata"]["namespace"], found["metadata"]["name"]))
            address = live["spec"]["clusterIP"] if live else f"10.96.0.{len(self.writes) % 250 + 1}"
            found = {**found, "spec": {**found["spec"], "clusterIP": address, "clusterIPs": [address]}}
        return super().put(kind, found)


class Model(RuleBasedStateMachine):
    """Clusters, those who change them, and replicas of the controller."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(*CLUSTERS, kinds=tuple(FollowedKind))
        self.bench.clusters = {name: Server(name, self.bench.members) for name in CLUSTERS}
        self.foreign: dict[tuple[str, Place], dict[str, Any]] = {}
        self.configuration = CONFIGURATIONS[0]
        self.created = 0
        self.unread: dict[str, int] = {}
        """Clusters that were not read since the restart, and how many requests they had got by then."""
        self.held: dict[tuple[str, Place], tuple[str, dict[str, Any]]] = {}
        """What other clusters have from these, which nobody else has touched since."""
        self.labels: dict[tuple[str, Place], tuple[str, str]] = {}
        """The label that another field manager has put on objects of ours, by uid."""
        self.seized: dict[tuple[str, Place], dict[str, Any]] = {}
        """Slices of ours of which another field manager has set the endpoints."""
        self.backups: dict[str, tuple[Callable[[], None], list[dict[tuple[str, Place], Any]]]] = {}
        """By cluster: what brings it back, and what others had there then."""

    @initialize(configuration=st.sampled_from(CONFIGURATIONS))
    def begin(self, configuration: tuple[tuple[model.ServiceExport, ...], model.ServiceDiscovery]) -> None:
        """All clusters have and export the service `web`, so that there is something to lose."""
        self.configuration = configuration
        for number, cluster in enumerate(CLUSTERS):
            self.put_service(cluster, "web", [("http", 80)], headless=False, imported=1)
            for name in ("s", "b-s"):
                self.put_slice(cluster, "web", name, [f"10.{number}.0.1"], [("http", 80)], six=False)
            self.put_export(cluster, "web", "1")
        self.start()
        self.bench.list()
        self.bench.run(3)

    def start(self) -> Replica:
        exports, discovery = self.configuration
        return self.bench.replica(*exports, discovery=discovery)

    @property
    def running(self) -> list[Replica]:
        return [each for each in self.bench.replicas if not each.stopped]

    def server(self, name: str) -> Server:
        return cast(Server, self.bench.clusters[name])

    def own(self, cluster: str, kind: FollowedKind, found: Mapping[str, Any]) -> None:
        """Somebody in the cluster creates or replaces an object that is not ours."""
        place = (kind, NAMESPACE, found["metadata"]["name"])
        self.labels.pop((cluster, place), None)
        self.seized.pop((cluster, place), None)
        self.foreign[cluster, place] = self.server(cluster).put(kind, found)

    def nothing_is_held(self, cluster: str) -> None:
        self.held = {place: held for place, held in self.held.items() if place[0] != cluster}

    # -- what happens in clusters -----------------------------------------------------------------------------------

    @rule(cluster=clusters, service=services, ports=ports, headless=st.booleans(), imported=st.integers(0, 9))
    def put_service(
        self, cluster: str, service: str, ports: list[tuple[str, int]], headless: bool, imported: int
    ) -> None:
        found = service_of(service, ports=[{"name": name, "port": port} for name, port in ports])
        found["spec"]["clusterIP"] = "None" if headless else "10.96.0.1"
        if not imported:
            found["spec"]["type"] = "ExternalName"
        self.own(cluster, FollowedKind.SERVICES, found)

    @rule(cluster=clusters, service=services, name=slice_names, addresses=addresses, ports=ports, six=st.booleans())
    def put_slice(
        self, cluster: str, service: str, name: str, addresses: list[str], ports: list[tuple[str, int]], six: bool
    ) -> None:
        endpoints = [endpoint(f"2001:db8::{each[-1]}" if six else each, ready=True) for each in addresses]
        found = slice_of(
            service,
            endpoints,
            name=name,
            ports=[{"name": port, "port": 8000 + number, "protocol": "TCP"} for port, number in ports],
            family="IPv6" if six else "IPv4",
        )
        self.own(cluster, FollowedKind.SLICES, found)

    @rule(cluster=clusters, service=services, label=st.sampled_from(("1", "2")))
    def put_export(self, cluster: str, service: str, label: str) -> None:
        place = (FollowedKind.EXPORTS, NAMESPACE, service)
        live = self.server(cluster).objects.get(place)
        self.created += 1
        created = live["metadata"]["creationTimestamp"] if live else f"2026-01-01T00:{self.created % 60:02}:00Z"
        metadata = {"name": service, "namespace": NAMESPACE, "creationTimestamp": created}
        found = {"metadata": metadata, "spec": {"exportedLabels": {"label": label}}}
        if live is not None and "status" in live:
            found["status"] = live["status"]
        self.server(cluster).put(FollowedKind.EXPORTS, found)

    @rule(cluster=clusters, service=services, kind=st.sampled_from((FollowedKind.SERVICES, FollowedKind.EXPORTS)))
    def remove(self, cluster: str, service: str, kind: FollowedKind) -> None:
        self.remove_object(cluster, (kind, NAMESPACE, service))

    @rule(cluster=clusters, name=slice_names)
    def remove_slice(self, cluster: str, name: str) -> None:
        self.remove_object(cluster, (FollowedKind.SLICES, NAMESPACE, name))

    def remove_object(self, cluster: str, place: Place) -> None:
        self.server(cluster).remove(*place)
        self.foreign.pop((cluster, place), None)

    @rule(
        cluster=clusters,
        kind_and_name=st.sampled_from(
            (
                (FollowedKind.SERVICES, "derived-web"),
                (FollowedKind.SERVICES, "clusterset-web"),
                (FollowedKind.IMPORTS, "web"),
                (FollowedKind.SLICES, "imported-a-s"),
                (FollowedKind.SLICES, "clusterset-a-b-s"),
            )
        ),
    )
    def put_in_the_way(self, cluster: str, kind_and_name: tuple[FollowedKind, str]) -> None:
        kind, name = kind_and_name
        self.nothing_is_held(cluster)
        found: dict[str, Any] = {"metadata": {"name": name, "namespace": NAMESPACE, "labels": {"theirs": "yes"}}}
        if kind is FollowedKind.SLICES:
            found |= {"addressType": "IPv4", "endpoints": []}
        else:
            found["spec"] = {"ports": []}
        self.own(cluster, kind, found)

    @rule(cluster=clusters)
    def clear_the_way(self, cluster: str) -> None:
        for name, place in list(self.foreign):
            if name == cluster and "-" in place[2] + "-" * (place[0] is FollowedKind.IMPORTS) and place[2] != "b-s":
                self.remove_object(cluster, place)

    @rule(cluster=clusters, which=st.integers(0, 20), how=st.sampled_from(("remove", "change", "take")))
    def meddle(self, cluster: str, which: int, how: str) -> None:
        """Somebody deletes, changes or takes over an object of ours."""
        server = self.server(cluster)
        ours = sorted((each for each in server.objects if self.is_ours(cluster, each)), key=str)
        if not ours:
            return
        place = ours[which % len(ours)]
        self.nothing_is_held(cluster)
        self.labels.pop((cluster, place), None)
        self.seized.pop((cluster, place), None)
        found = copy.deepcopy(server.objects[place])
        if how == "remove":
            server.remove(*place)
        elif how == "take":
            found["metadata"]["labels"] = {"theirs": "yes"}
            self.own(cluster, place[0], found)
        else:
            if place[0] is FollowedKind.SLICES:
                found.pop("endpoints", None)
            found["metadata"]["labels"].pop("mcproxy.io/source-cluster", None)
            server.put(place[0], found)

    @rule(cluster=clusters, which=st.integers(0, 20), value=st.sampled_from(("1", "2")))
    def label_ours(self, cluster: str, which: int, value: str) -> None:
        """Another field manager adds a label to an object of ours, which nobody may take away."""
        server = self.server(cluster)
        ours = sorted((each for each in server.objects if self.is_ours(cluster, each)), key=str)
        if ours:
            place = ours[which % len(ours)]
            self.nothing_is_held(cluster)
            server.label(place, "theirs", value)
            self.labels[cluster, place] = (server.objects[place]["metadata"]["uid"], value)

    @rule(cluster=clusters, which=st.integers(0, 20))
    def seize_endpoints(self, cluster: str, which: int) -> None:
        """Another field manager sets the endpoints of a slice of ours: they are its own from then on."""
        server = self.server(cluster)
        ours = [each for each in server.objects if each[0] is FollowedKind.SLICES and self.is_ours(cluster, each)]
        if ours:
            place = sorted(ours, key=str)[which % len(ours)]
            self.nothing_is_held(cluster)
            theirs = [{"addresses": ["192.0.2.1"], "conditions": {"ready": True}}]
            self.seized[cluster, place] = server.put(
                FollowedKind.SLICES, {**server.objects[place], "endpoints": theirs}
            )

    @rule(cluster=clusters)
    def back_up(self, cluster: str) -> None:
        then = [{each: mark for each, mark in marks.items() if each[0] == cluster} for marks in self.marks]
        self.backups[cluster] = (self.server(cluster).back_up(), then)

    @precondition(lambda self: bool(self.backups))
    @rule(which=st.integers(0, 2))
    def restore(self, which: int) -> None:
        """A cluster is back from a backup: its objects, with their uids and versions, are those of that time."""
        cluster = sorted(self.backups)[which % len(self.backups)]
        restore, then = self.backups[cluster]
        self.nothing_is_held(cluster)
        restore()
        for marks, before in zip(self.marks, then, strict=True):
            for each in [each for each in marks if each[0] == cluster]:
                del marks[each]
            marks.update(before)
        self.read(cluster)

    @property
    def marks(self) -> tuple[dict[tuple[str, Place], Any], ...]:
        """What others have in clusters: objects, labels and endpoints."""
        return (self.foreign, self.labels, self.seized)

    def is_ours(self, cluster: str, place: Place) -> bool:
        labels = self.server(cluster).objects[place]["metadata"].get("labels") or {}
        return is_ours(place[0].resource, labels)

    # -- what happens to members, replicas and the configuration -------------------------------------------------

    @rule(cluster=clusters, away=st.booleans())
    def reach(self, cluster: str, away: bool) -> None:
        self.server(cluster).away = away

    @rule(cluster=clusters)
    def lose(self, cluster: str) -> None:
        """The caches of a cluster are not followed any more, until it is read again."""
        for (name, _, _), store in self.bench.members.stores.items():
            if name == cluster:
                store.unavailable("away")

    @rule(cluster=clusters, slow=st.booleans())
    def delay_events(self, cluster: str, slow: bool) -> None:
        self.server(cluster).delay_events = slow
        if not slow:
            self.server(cluster).show()

    @rule(cluster=clusters)
    def refuse_for_a_while(self, cluster: str) -> None:
        self.server(cluster).refuse = lambda method, path: (500, {"kind": "Status", "message": "etcd"})
        self.bench.run(0.5)
        self.server(cluster).refuse = lambda method, path: None

    @rule(configuration=st.sampled_from(CONFIGURATIONS))
    def reload(self, configuration: tuple[tuple[model.ServiceExport, ...], model.ServiceDiscovery]) -> None:
        self.configuration = configuration
        self.held.clear()
        for replica in self.running:
            replica.use(*configuration[0], discovery=configuration[1])

    @precondition(lambda self: len(self.running) < 2)
    @rule()
    def start_replica(self) -> None:
        self.start()

    @precondition(lambda self: len(self.running) > 1)
    @rule(which=st.integers(0, 1))
    def stop_replica(self, which: int) -> None:
        self.running[which].stop()

    @rule(known=st.lists(clusters, unique=True))
    def restart_and_know_only(self, known: list[str]) -> None:
        """All processes are started anew, and some clusters cannot be read at first."""
        for replica in self.running:
            replica.stop()
        self.bench.members.stores.clear()
        unread = [name for name in CLUSTERS if name not in known]
        self.unread = {name: len(self.server(name).requests) for name in unread}
        self.held = {
            (name, place): (source, found)
            for name in CLUSTERS
            for place, found in self.server(name).objects.items()
            if place[0] is FollowedKind.SLICES and self.is_ours(name, place)
            if (source := found["metadata"]["labels"].get("mcproxy.io/source-cluster")) in unread
            and self.wants(name, source, found)
        }
        self.start()
        for name in known:
            self.bench.list(name)

    def wants(self, cluster: str, source: str, found: Mapping[str, Any]) -> bool:
        """Whether the configuration in force is one by which a cluster imports a slice from another one."""
        exports, discovery = self.configuration
        labels = found["metadata"]["labels"]
        if labels["kubernetes.io/service-name"].startswith("clusterset-"):
            return discovery.enabled
        if len(exports) != 1 or exports[0].service != labels.get("mcproxy.io/service-name"):
            return False
        return source in exports[0].from_clusters and cluster in exports[0].to

    @rule(cluster=clusters)
    def read(self, cluster: str) -> None:
        self.bench.list(cluster)
        self.unread.pop(cluster, None)
        self.held = {place: held for place, held in self.held.items() if held[0] != cluster}

    @rule(cluster=clusters, down=st.booleans())
    def reach_lease(self, cluster: str, down: bool) -> None:
        for replica in self.running[:1]:
            if cluster in replica.lease_apis:
                replica.lease_apis[cluster].down = down

    @rule(seconds=st.sampled_from((0.05, 0.5, 3.0, 20.0)))
    def run(self, seconds: float) -> None:
        self.bench.run(seconds)

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def nothing_foreign_is_touched(self) -> None:
        for (cluster, place), found in self.foreign.items():
            assert self.server(cluster).objects.get(place) is found, (cluster, place)

    @invariant()
    def fields_of_others_are_not_touched(self) -> None:
        for (cluster, place), (uid, value) in self.labels.items():
            found = self.server(cluster).objects.get(place)
            if found is not None and found["metadata"]["uid"] == uid:
                assert found["metadata"]["labels"].get("theirs") == value, (cluster, place)
        for (cluster, place), theirs in self.seized.items():
            found = self.server(cluster).objects.get(place)
            if found is not None and found["metadata"]["uid"] == theirs["metadata"]["uid"]:
                assert found["endpoints"] == theirs["endpoints"], (cluster, place)

    @invariant()
    def nothing_is_concluded_from_what_was_not_read(self) -> None:
        for cluster, requests in self.unread.items():
            assert len(self.server(cluster).requests) == requests
        for (cluster, place), (_, found) in self.held.items():
            assert self.server(cluster).objects.get(place) is found, (cluster, place)

    def teardown(self) -> None:
        try:
            if self.bench.replicas:
                self.settle()
        finally:
            for replica in self.running:
                replica.stop()

    def settle(self) -> None:
        """Everything can be reached again: each cluster gets what the pure function says, and then there is silence."""
        for name in CLUSTERS:
            server = self.server(name)
            server.away = server.delay_events = False
            server.show()
        for replica in self.running:
            for api in replica.lease_apis.values():
                api.down = False
        for name in CLUSTERS:
            self.read(name)
        self.bench.run(400)
        self.check()
        before = self.bench.requests
        self.bench.run(100)
        assert self.bench.requests == before
        self.nothing_foreign_is_touched()
        self.fields_of_others_are_not_touched()
        self.lose_each_source()

    def lose_each_source(self) -> None:
        """What is imported from a source that is away is there as long as `unreachable` says, and comes back."""
        for name in CLUSTERS:
            self.lose(name)
            self.bench.run(AFTER + 4)
            for export in self.configuration[0]:
                gone = export.unreachable is model.Unreachable.REMOVE and name in export.from_clusters
                for cluster in export.to if gone else ():
                    if cluster != name:
                        assert not self.imported(cluster, name, export.service), (cluster, name)
            self.read(name)
            self.bench.run(60)
            self.check()

    def imported(self, cluster: str, source: str, service: str) -> list[Place]:
        """Return the slices of ours in a cluster that come from another one."""
        return [
            place
            for place, found in self.server(cluster).objects.items()
            if place[0] is FollowedKind.SLICES
            and self.is_ours(cluster, place)
            and found["metadata"]["labels"].get("mcproxy.io/source-cluster") == source
            and found["metadata"]["labels"].get("mcproxy.io/service-name") == service
        ]

    def check(self) -> None:
        exports, discovery = self.configuration
        desired = desired_state(self.views(), Exports(exports, discovery, CLUSTERS))
        assert not desired.kept
        wanted = dict(desired.objects)
        written = {each for export in exports for each in export.to} | set(
            discovery.clusters if discovery.enabled else ()
        )
        for name in CLUSTERS:
            for place, found in self.server(name).objects.items():
                key = self.key(name, place)
                if not is_ours(place[0].resource, found["metadata"].get("labels") or {}):
                    wanted.pop(key, None)
                    continue
                if name in written:
                    assert key in wanted, key
                    theirs = self.seized.get((name, place))
                    expected = wanted.pop(key)
                    if theirs is not None and theirs["metadata"]["uid"] == found["metadata"]["uid"]:
                        continue  # `fields_of_others_are_not_touched`
                    assert _contains(found, expected), key
                    owner = desired.owners.get(key)
                    if owner is not None:
                        owned_by = (_KINDS[owner.resource], owner.namespace, owner.name)
                        (reference,) = found["metadata"]["ownerReferences"]
                        assert reference["uid"] == self.server(name).objects[owned_by]["metadata"]["uid"]
        assert not wanted
        for key, status in desired.statuses.items():
            live = self.server(key.cluster).objects[_KINDS[key.resource], key.namespace, key.name]
            assert _contains(live["status"], status)
            for condition in live["status"].get("conditions", ()):
                assert condition["lastTransitionTime"]

    def key(self, cluster: str, place: Place) -> ObjectKey:
        kind, namespace, name = place
        return ObjectKey(cluster, kind.group, kind.versions[0], kind.resource, namespace, name)

    def views(self) -> dict[ServiceKey, dict[str, ClusterView]]:
        return {
            ServiceKey(NAMESPACE, service): {name: self.view(name, ServiceKey(NAMESPACE, service)) for name in CLUSTERS}
            for service in SERVICES
        }

    def view(self, cluster: str, key: ServiceKey) -> ClusterView:
        objects = self.server(cluster).objects
        names = {(resource, name) for _, resource, name in derived_names(key)}
        return ClusterView(
            multicluster_version=VERSION if self.configuration[1].enabled else None,
            service=encoded(objects.get((FollowedKind.SERVICES, *key))),
            slices=tuple(
                data
                for (kind, _, _), each in objects.items()
                if kind is FollowedKind.SLICES
                and (each["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == key.service
                and (data := encoded(each)) is not None
            ),
            export=encoded(objects.get((FollowedKind.EXPORTS, *key))),
            derived={
                self.key(cluster, place): data
                for place, each in objects.items()
                if (
                    (place[0].resource, place[2]) in names
                    or source_of(place[0].resource, NAMESPACE, each["metadata"].get("labels") or {}) == key
                )
                and (data := encoded(each)) is not None
            },
        )


_KINDS = {kind.resource: kind for kind in FollowedKind}


def encoded(found: Mapping[str, Any] | None) -> bytes | None:
    return None if found is None else json.dumps(found).encode()


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=settings().max_examples // 2,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
