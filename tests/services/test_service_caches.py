"""The caches of services: the index by Service, who is told of what, and what stays while a cluster is away."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from mcproxy.services.cache_scopes import FollowedKind
from mcproxy.services.endpoint_table import ClusterServiceKey
from mcproxy.services.service_caches import ServiceCaches, object_json
from tests.services.fake_members import FakeMembers, resource_of
from tests.services.objects import endpoint, service_of, slice_of
from tests.support.clock import Clock

BOTH = {FollowedKind.SLICES: frozenset({"demo"}), FollowedKind.SERVICES: frozenset({"demo"})}
WEB = ClusterServiceKey("east", "demo", "web")
API = ClusterServiceKey("east", "demo", "api")


class Reader:
    def __init__(self) -> None:
        self.services: list[ClusterServiceKey] = []
        self.clusters: list[str] = []

    def services_changed(self, keys: Collection[ClusterServiceKey]) -> None:
        self.services += sorted(keys)

    def cluster_changed(self, cluster: str) -> None:
        self.clusters.append(cluster)

    def take(self) -> tuple[list[ClusterServiceKey], list[str]]:
        told = self.services, self.clusters
        self.services, self.clusters = [], []
        return told


class Site:
    def __init__(self, *names: str, scopes: Any = None) -> None:
        self.clock = Clock()
        self.members = FakeMembers(self.clock, *(names or ("east",)))
        self.caches = ServiceCaches(self.members, cast(Any, self.clock))
        self.reader = Reader()
        self.caches.subscribe(self.reader)
        self.caches.update(scopes or dict.fromkeys(names or ("east",), BOTH))

    def told(self) -> tuple[list[ClusterServiceKey], list[str]]:
        self.clock.advance(0)
        return self.reader.take()

    def synced(self) -> Site:
        self.members.serve()
        for name in self.members.members:
            self.members.list(name, FollowedKind.SLICES, slice_of("web", [endpoint("10.0.0.1")], name="web-1"))
            self.members.list(name, FollowedKind.SERVICES, service_of())
        self.told()
        return self


def test_nothing_is_known_of_a_cluster_that_was_never_reached() -> None:
    site = Site()
    assert site.caches.state("east", FollowedKind.SLICES, "demo").served is None
    assert not site.caches.state("east", FollowedKind.SLICES, "demo").replaced
    assert not site.members.stores


def test_what_is_listed_is_told_once() -> None:
    site = Site()
    site.members.serve()
    site.members.list("east", FollowedKind.SLICES, slice_of("web", [], name="b"), slice_of("web", [], name="a"))
    site.members.list("east", FollowedKind.SERVICES, service_of("api"))
    assert site.told() == ([API, WEB], ["east"])
    assert site.told() == ([], [])
    assert sorted(site.caches.slices(WEB)) == ["a", "b"]
    found = site.caches.get(FollowedKind.SERVICES, API)
    assert found is not None
    assert b'"clusterIP"' in object_json(found)
    state = site.caches.state("east", FollowedKind.SLICES, "demo")
    assert (state.served, state.synced, state.followed) == (True, True, True)
    assert [item.name for item in site.caches.objects("east", FollowedKind.SERVICES)] == ["api"]


def test_a_change_tells_of_one_service() -> None:
    site = Site().synced()
    site.members.put("east", FollowedKind.SLICES, slice_of("web", [endpoint("10.0.0.2")], name="web-1"))
    assert site.told() == ([WEB], [])
    site.members.put("east", FollowedKind.SLICES, slice_of("api", [], name="web-1"))  # another label: both
    assert site.told() == ([API, WEB], [])
    assert not site.caches.slices(WEB)
    site.members.delete("east", FollowedKind.SLICES, "web-1")
    assert site.told() == ([API], [])
    site.members.delete("east", FollowedKind.SERVICES, "web")
    assert site.told() == ([WEB], [])
    assert site.caches.get(FollowedKind.SERVICES, WEB) is None


def test_slices_of_an_import_have_their_own_index() -> None:
    site = Site().synced()
    found = slice_of("derived-web", [], name="imported")
    found["metadata"]["labels"]["multicluster.kubernetes.io/service-name"] = "web"
    site.members.put("east", FollowedKind.SLICES, found)
    assert site.told()[0] == [ClusterServiceKey("east", "demo", "derived-web"), WEB]
    assert list(site.caches.import_slices(WEB)) == ["imported"]
    assert list(site.caches.slices(WEB)) == ["web-1"]


def test_a_slice_without_labels_is_in_no_index_but_by_its_name() -> None:
    site = Site().synced()
    found = slice_of("web", [], name="other")
    del found["metadata"]["labels"]
    site.members.put("east", FollowedKind.SLICES, found)
    assert site.told() == ([], [])
    assert site.caches.get(FollowedKind.SLICES, ClusterServiceKey("east", "demo", "other")) is not None


def test_what_is_known_stays_while_a_cluster_is_away() -> None:
    site = Site().synced()
    site.members.store("east", FollowedKind.SLICES).unavailable("it is down")
    assert site.told() == ([], ["east"])
    state = site.caches.state("east", FollowedKind.SLICES, "demo")
    assert (state.synced, state.followed, state.cause, state.replaced) == (True, False, "it is down", False)
    assert site.caches.slices(WEB)
    site.members.store("east", FollowedKind.SLICES).available()
    assert site.told() == ([], ["east"])
    assert site.caches.state("east", FollowedKind.SLICES, "demo").followed


def test_bookmarks_tell_nobody() -> None:
    site = Site().synced()
    site.members.store("east", FollowedKind.SLICES).progress(10_000)
    assert site.told() == ([], [])


def test_what_is_restored_is_not_followed_yet() -> None:
    site = Site().synced()
    before = site.members.store("east", FollowedKind.SLICES)
    other = Site()
    other.members.serve()
    store = other.members.store("east", FollowedKind.SLICES)
    store.restore(before.snapshot().objects, before.version, None)
    assert other.told() == ([WEB], ["east"])
    state = other.caches.state("east", FollowedKind.SLICES, "demo")
    assert (state.synced, state.followed) == (True, False)
    store.available()
    assert other.told() == ([], ["east"])
    assert other.caches.state("east", FollowedKind.SLICES, "demo").followed


def test_another_cluster_in_its_place_has_nothing_of_the_first() -> None:
    site = Site().synced()
    site.members.store("east", FollowedKind.SLICES).clear()
    assert site.told() == ([WEB], ["east"])
    state = site.caches.state("east", FollowedKind.SLICES, "demo")
    assert (state.synced, state.replaced) == (False, True)
    site.members.list("east", FollowedKind.SLICES, slice_of("api", [], name="api-1"))
    assert site.told() == ([API], ["east"])
    assert not site.caches.state("east", FollowedKind.SLICES, "demo").replaced


def test_a_cluster_that_was_put_back_keeps_what_was_known_until_it_is_listed() -> None:
    site = Site().synced()
    site.members.store("east", FollowedKind.SLICES).put_back()
    assert site.told() == ([], ["east"])
    assert site.caches.slices(WEB)
    assert not site.caches.state("east", FollowedKind.SLICES, "demo").replaced
    site.members.list("east", FollowedKind.SLICES, slice_of("api", [], name="api-1"))
    assert site.told() == ([API, WEB], ["east"])
    assert not site.caches.slices(WEB)


def test_a_kind_may_come_and_go_at_run_time() -> None:
    scopes = {"east": {kind: frozenset({""}) for kind in FollowedKind}}
    site = Site(scopes=scopes)
    site.members.serve()
    assert site.caches.state("east", FollowedKind.EXPORTS).served is False
    assert site.caches.resource("east", FollowedKind.EXPORTS) is None
    site.told()
    site.members.serve(kinds=tuple(FollowedKind))
    site.members.list("east", FollowedKind.EXPORTS, {"metadata": {"name": "web", "namespace": "demo"}}, namespace="")
    assert site.told() == ([WEB], ["east"])
    assert site.caches.get(FollowedKind.EXPORTS, WEB) is not None
    assert site.caches.state("east", FollowedKind.EXPORTS, "demo").synced
    site.members.serve()
    assert site.told() == ([WEB], ["east"])
    assert site.caches.get(FollowedKind.EXPORTS, WEB) is None
    state = site.caches.state("east", FollowedKind.EXPORTS)
    assert (state.served, state.replaced) == (False, True)


def test_of_two_versions_the_first_is_read_and_another_takes_its_place() -> None:
    site = Site(scopes={"east": {FollowedKind.EXPORTS: frozenset({""})}})
    old, new = (resource_of(FollowedKind.EXPORTS, version) for version in ("v1alpha1", "v1beta1"))
    discovery = site.members.members["east"].discovery
    discovery.serve(old)
    gvr = site.caches.resource("east", FollowedKind.EXPORTS)
    assert gvr is not None
    assert gvr.version == "v1alpha1"
    discovery.serve(old, new)
    gvr = site.caches.resource("east", FollowedKind.EXPORTS)
    assert gvr is not None
    assert gvr.version == "v1beta1"


def test_a_reload_keeps_what_stays() -> None:
    site = Site("east", "west").synced()
    east = site.members.store("east", FollowedKind.SLICES)
    site.caches.update({"east": BOTH})
    assert {key[0] for key in site.members.stores} == {"east"}
    assert site.members.store("east", FollowedKind.SLICES) is east
    assert not site.caches.slices(ClusterServiceKey("west", "demo", "web"))
    assert site.told() == ([], ["west", "east"])


def test_from_one_namespace_to_all() -> None:
    site = Site().synced()
    site.caches.update({"east": {FollowedKind.SLICES: frozenset({""})}})
    site.members.list(
        "east",
        FollowedKind.SLICES,
        slice_of("web", [], name="web-1"),
        slice_of("x", [], namespace="other"),
        namespace="",
    )
    assert site.told()[0] == [WEB, ClusterServiceKey("east", "other", "x")]
    site.caches.update({"east": BOTH})
    site.told()
    assert not site.caches.slices(ClusterServiceKey("east", "other", "x"))


def test_one_namespace_of_a_store_of_all() -> None:
    clock_site = Site(scopes={"east": {FollowedKind.SLICES: frozenset({""})}})
    clock_site.members.serve()
    clock_site.members.list(
        "east", FollowedKind.SLICES, slice_of("x", [], namespace="other"), slice_of("web", []), namespace=""
    )
    reader = ServiceCaches(clock_site.members, cast(Any, clock_site.clock))
    reader.update({"east": {FollowedKind.SLICES: frozenset({"demo"})}})
    assert [item.namespace for item in reader.objects("east", FollowedKind.SLICES)] == ["demo"]
    clock_site.members.put("east", FollowedKind.SLICES, slice_of("y", [], namespace="other", name="y"), namespace="")
    assert [item.namespace for item in reader.objects("east", FollowedKind.SLICES)] == ["demo"]
    assert len(clock_site.members.stores) == 1  # listed and watched once
    reader.stop()
    assert len(clock_site.members.stores) == 1
    clock_site.caches.stop()
    assert not clock_site.members.stores


def test_a_reader_that_fails_stops_no_other() -> None:
    site = Site()

    class Failing(Reader):
        def services_changed(self, keys: Collection[ClusterServiceKey]) -> None:
            raise RuntimeError

    late = Reader()
    site.caches.subscribe(Failing())
    unsubscribe = site.caches.subscribe(late)
    site.synced()
    assert late.services == [WEB]
    unsubscribe()
    unsubscribe()
