"""Views follow the configuration and the members' discovery; what is not affected keeps its stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from mcproxy.aggregate.reflector.reflectors import StoreOptions
from mcproxy.aggregate.resource_version.formats import LongFormat, PackedFormat
from mcproxy.aggregate.resource_version.layout import LayoutHistory
from mcproxy.aggregate.resource_version.reader import Expired
from mcproxy.aggregate.view.aggregate_views import AggregateViews
from mcproxy.aggregate.view.view import View, ViewState
from mcproxy.config.model.aggregates import Aggregate, Cache, CachedResource, ResourceVersions
from mcproxy.kube.resource import APIResource
from mcproxy.observe.events import EVENTS
from tests.aggregate.resource_version.comparison import compare
from tests.aggregate.view.test_scope import NODES, PODS, SECRETS, entry, resource
from tests.support.clock import DATE
from tests.support.fake_members import FakeDiscovery, FakeMember, FakeStores, as_member, as_members
from tests.support.logged import captured_logs

WIDGETS = resource("widgets", "example.com")
METRICS = replace(resource("nodes", "metrics.k8s.io"), verbs=frozenset({"get", "list"}))
EVERYTHING = (entry("*"), entry("*", group="example.com"), entry("*", group="metrics.k8s.io"))


class Listener:
    def __init__(self, stores: FakeStores) -> None:
        self.stores = stores
        self.seen: list[Any] = []

    def view_updated(self, view: View, before: ViewState) -> None:
        alive = all(store in self.stores.uses for member in before.members for store in member.stores)
        self.seen.append(([member.name for member in before.members], [member.name for member in view.members], alive))

    def view_closed(self, view: View, *, gone: bool) -> None:
        alive = all(store in self.stores.uses for member in view.members for store in member.stores)
        self.seen.append((gone, alive))


class Room:
    def __init__(self, *members: FakeMember, scope: tuple[CachedResource, ...] = EVERYTHING) -> None:
        self.stores = FakeStores()
        self.members = list(members)
        self.aggregate = Aggregate(
            name="fleet", clusters=tuple(member.name for member in members), cache=Cache(resources=scope)
        )
        self.views = AggregateViews(self.aggregate, as_members(self.members), cast(Any, self.stores))

    def view(self, resource: APIResource) -> View:
        view = self.views.view(resource.gvr)
        assert view is not None
        return view

    def names(self, resource: APIResource) -> list[str]:
        return [member.name for member in self.view(resource).members]


def member(name: str, *resources: APIResource) -> FakeMember:
    return FakeMember(name, FakeDiscovery(*resources))


def test_a_view_has_the_members_that_have_the_resource_in_their_order() -> None:
    room = Room(member("west", PODS, WIDGETS), member("east", PODS), member("far"))
    assert room.names(PODS) == ["west", "east"]
    assert room.names(WIDGETS) == ["west"]
    assert [part.index for part in room.view(PODS).members] == [0, 1]
    assert [lost.name for lost in room.view(PODS).undiscovered] == ["far"]
    assert [lost.name for lost in room.views.undiscovered] == ["far"]


def test_outside_the_scope_there_is_no_view() -> None:
    room = Room(member("east", PODS, SECRETS), scope=(entry("*"),))
    assert room.views.view(SECRETS.gvr) is None
    assert room.views.view(resource("pods", version="v2").gvr) is None
    assert not any(call[2] == "secrets" for call in room.stores.log)


def test_a_resource_that_cannot_be_watched_is_none_of_the_views() -> None:
    room = Room(member("east", METRICS, PODS))
    assert room.views.view(METRICS.gvr) is None
    assert room.views.unwatchable(METRICS.gvr) == METRICS
    assert room.views.unwatchable(PODS.gvr) is None


def test_what_one_member_can_watch_is_a_view_of_that_member() -> None:
    room = Room(member("east", replace(WIDGETS, verbs=frozenset({"list"}))), member("west", WIDGETS))
    assert room.names(WIDGETS) == ["west"]
    assert room.views.unwatchable(WIDGETS.gvr) is None


def test_a_member_that_disagrees_on_kind_or_scope_is_left_out() -> None:
    room = Room(member("east", WIDGETS), member("west", replace(WIDGETS, namespaced=False)))
    assert room.names(WIDGETS) == ["east"]


def test_a_resource_that_is_named_and_that_no_member_has_is_logged_once_all_members_are_known() -> None:
    east, west = member("east", PODS), FakeMember("west", FakeDiscovery())
    with captured_logs() as logs:
        room = Room(east, west, scope=(entry("pods"), entry("pod"), entry("*", group="example.com")))
        assert room.views.undiscovered == (as_member(west),)
        assert logs == []
        west.discovery.set(PODS)
        east.discovery.set(PODS, WIDGETS)  # nothing more is said of what is known
    (line,) = logs
    assert (line["resource"], line["version"], line["aggregate"]) == ("pod", "v1", "fleet")
    assert line["cause"]
    assert line["event"] == "resource_unknown"
    assert EVENTS["resource_unknown"].line_todo


def test_a_definition_that_comes_and_goes() -> None:
    east, west = member("east", PODS), member("west", PODS)
    room = Room(east, west)
    pods = room.view(PODS)
    assert room.views.view(WIDGETS.gvr) is None
    east.discovery.set(PODS, WIDGETS)
    widgets, listener = room.view(WIDGETS), Listener(room.stores)
    widgets.subscribe(listener)
    west.discovery.set(PODS, WIDGETS)
    assert room.view(WIDGETS) is widgets
    east.discovery.set(PODS)
    west.discovery.set(PODS)
    assert room.views.view(WIDGETS.gvr) is None
    assert widgets.closed
    # The stores were still there when the listener was told.
    assert listener.seen == [(["east"], ["east", "west"], True), (["east", "west"], ["west"], True), (True, True)]
    assert {store.resource for store in room.stores.uses} == {PODS}
    assert room.view(PODS) is pods
    assert [call for call in room.stores.log if call[2] == "pods"] == [
        ("acquire", "east", "pods", ""),
        ("acquire", "west", "pods", ""),
    ]


def test_a_definition_that_was_made_anew_with_another_kind_gets_another_store() -> None:
    east = member("east", WIDGETS)
    room = Room(east)
    east.discovery.set(replace(WIDGETS, kind="Gadget"))
    assert ("release", "east", "widgets", "") in room.stores.log


def test_a_description_that_changes_only_in_its_short_names_keeps_its_store() -> None:
    east = member("east", WIDGETS)
    room = Room(east)
    east.discovery.set(replace(WIDGETS, short_names=("wg",)))
    assert room.stores.log == [("acquire", "east", "widgets", "")]
    assert room.view(WIDGETS).resource.short_names == ("wg",)


def test_a_reload_keeps_every_store_that_is_not_affected() -> None:
    east, west, north = member("east", PODS, NODES), member("west", PODS), member("north", PODS)
    room = Room(east, west)
    pods, listener = room.view(PODS), Listener(room.stores)
    pods.subscribe(listener)
    room.stores.log.clear()
    clusters = ("east", "north")
    room.views.update(replace(room.aggregate, clusters=clusters), as_members([east, north]))
    assert room.stores.log == [("acquire", "north", "pods", ""), ("release", "west", "pods", "")]
    assert room.view(PODS) is pods
    assert listener.seen == [(["east", "west"], ["east", "north"], True)]
    west.discovery.set()  # of no concern any more
    assert not west.discovery.callbacks
    assert room.names(PODS) == ["east", "north"]


def test_a_reload_without_a_change_touches_nothing() -> None:
    room = Room(member("east", PODS), member("west", PODS))
    listener = Listener(room.stores)
    room.view(PODS).subscribe(listener)
    room.stores.log.clear()
    room.views.update(room.aggregate, as_members(room.members))
    assert room.stores.log == []
    assert listener.seen == []


def test_namespaces_have_a_store_each() -> None:
    scope = (entry("pods", namespaces=("a", "b")), entry("pods", namespaces=("c",), clusters=("west",)))
    room = Room(member("east", PODS), member("west", PODS), scope=scope)
    view = room.view(PODS)
    assert [[store.namespace for store in part.stores] for part in view.members] == [["a", "b"], ["a", "b", "c"]]
    assert view.covers("a")
    assert view.covers("c")
    assert view.covers("")
    assert not view.covers("d")
    assert not view.members[0].covers("c")


def test_versions_are_the_least_of_a_members_stores_and_0_for_what_is_left_out() -> None:
    scope = (entry("pods", namespaces=("a", "b")),)
    room = Room(member("east", PODS), member("far"), member("west", PODS), scope=scope)
    view = room.view(PODS)
    for name, namespace, version in (("east", "a", 7), ("east", "b", 5), ("west", "a", 9)):
        store = room.stores.find(name, "pods", namespace)
        store.version, store.synced = version, True
    assert view.versions == (5, 0, 0)  # west has a namespace that was never filled
    west_b = room.stores.find("west", "pods", "b")
    west_b.version, west_b.synced = 11, True
    assert view.versions == (5, 0, 9)
    assert view.versions_of(["west"]) == (0, 0, 9)
    assert view.versions_of(None, "a") == (7, 0, 9)
    assert view.versions_of(["east"], "b") == (5, 0, 0)
    assert view.versions_of(None, "c") == (0, 0, 0)


def test_a_member_is_unavailable_since_the_first_of_its_stores_was() -> None:
    room = Room(member("east", PODS), scope=(entry("pods", namespaces=("a", "b")),))
    (part,) = room.view(PODS).members
    assert part.unavailable_cause == ""
    store = room.stores.find("east", "pods", "b")
    store.unavailable_since, store.unavailable_cause = DATE, "refused"
    assert (part.unavailable_since, part.unavailable_cause) == (DATE, "refused")


def test_earlier_layouts_stay_readable() -> None:
    east, west, north = member("east", PODS), member("west", PODS), member("north", PODS)
    room = Room(east, west)
    view = room.view(PODS)
    written = view.format.list_version((3, 4))
    room.views.update(replace(room.aggregate, clusters=("west", "north", "east")), as_members([west, north, east]))
    assert view.reader.read(written) == {"east": 3, "west": 4}
    assert room.views.history.earlier[0].names == ("east", "west")
    assert view.members[0].index == 0
    again = AggregateViews(
        room.views.aggregate,
        as_members([west, north, east]),
        cast(Any, room.stores),
        type(room.views.history).from_json(room.views.history.to_json()),
    )
    found = again.view(PODS.gvr)
    assert found is not None
    assert found.reader.read(written) == {"east": 3, "west": 4}


def test_a_former_member_keeps_its_place_and_nothing_is_read_of_it() -> None:
    east, west = member("east", PODS), member("west", PODS)
    room = Room(west, east)
    view, before = room.view(PODS), room.view(PODS).format.list_version((3, 4))
    room.views.update(replace(room.aggregate, clusters=("east",), listed=("west", "east")), as_members([east]))
    assert room.names(PODS) == ["east"]
    assert view.members[0].index == 1
    assert (view.versions, view.layout.names) == ((0, 0), ("west", "east"))
    assert room.views.history.earlier == ()
    assert view.reader.read(view.format.list_version((0, 4))) == {"east": 4}
    with pytest.raises(Expired):
        view.reader.read(before)
    assert compare(view.format.event((0, 4), 1, 4), view.format.event((3, 5), 1, 5)) == -1
    room.views.update(room.aggregate, as_members([west, east]))
    assert view.reader.read(before) == {"west": 3, "east": 4}


def test_the_form_of_versions_follows_the_configuration() -> None:
    east, west = member("east", PODS), member("west", PODS)
    room = Room(east, west)
    assert room.view(PODS).format.list_version((1, 2)).isdigit()
    room.views.update(replace(room.aggregate, resource_versions=ResourceVersions.KARMADA), as_members([east, west]))
    assert not room.view(PODS).format.list_version((1, 2)).isdigit()


@pytest.mark.parametrize(("members", "bits"), [(2, 54), (3, 36), (1, 60), (4, 60)])
def test_a_version_that_does_not_fit_makes_all_versions_long_for_good(members: int, bits: int) -> None:
    names = ["east", "west", "north", "far"][:members]
    room = Room(*[member(name, PODS, WIDGETS) for name in names])
    form = type(room.view(PODS).format)
    store = room.stores.find(names[-1], "pods")
    store.see(2**bits - 1)
    assert type(room.view(PODS).format) is form
    updates = Listener(room.stores)
    room.view(PODS).subscribe(cast(Any, updates))
    store.see(2**bits)
    short = members in (1, 4)
    assert type(room.view(PODS).format) is (form if short else LongFormat)
    assert type(room.view(WIDGETS).format) is (form if short else LongFormat)
    assert len(updates.seen) == 1
    store.see(0)
    history = LayoutHistory.from_json(room.views.history.to_json())
    again = AggregateViews(room.aggregate, as_members(room.members), cast(Any, FakeStores()), history)
    view = again.view(PODS.gvr)
    assert view is not None
    assert type(view.format) is (form if short else LongFormat)


def test_a_store_that_is_at_such_a_version_already_counts() -> None:
    stores = FakeStores()
    members = [member("east", WIDGETS, PODS), member("west", PODS, WIDGETS)]
    aggregate = Aggregate(name="fleet", clusters=("east", "west"), cache=Cache(resources=EVERYTHING))
    other = AggregateViews(aggregate, as_members(members), cast(Any, stores))
    stores.find("west", "pods").see(2**60)
    views = AggregateViews(aggregate, as_members(members), cast(Any, stores))
    assert {type(view.format) for view in views.views.values()} == {LongFormat}
    assert {view.state.history.bits for view in views.views.values()} == {61}
    other.close()
    views.close()
    assert stores.uses == {}


def test_members_with_several_namespaces_have_the_long_form() -> None:
    room = Room(member("east", PODS), member("west", PODS), scope=(entry("pods", namespaces=("demo", "shop")),))
    assert type(room.view(PODS).format) is LongFormat
    room = Room(member("east", PODS), member("west", PODS), scope=(entry("pods", namespaces=("demo",)),))
    assert type(room.view(PODS).format) is PackedFormat


def test_options_of_stores() -> None:
    scope = (entry("*"), entry("secrets"))
    room = Room(member("east", PODS, SECRETS), scope=scope)
    assert room.stores.find("east", "pods").options == StoreOptions(False, True)
    assert room.stores.find("east", "secrets").options == StoreOptions(False, False)
    cache = Cache(resources=scope, drop_managed_fields=True, persist_secrets=True)
    room.views.update(replace(room.aggregate, cache=cache), as_members(room.members))
    assert room.stores.find("east", "pods").options == StoreOptions(True, True)
    assert room.stores.find("east", "secrets").options == StoreOptions(True, True)
    assert len(room.stores.uses) == 2


def test_the_end_releases_everything() -> None:
    east = member("east", PODS, NODES)
    room = Room(east, member("west", PODS))
    view, listener = room.view(PODS), Listener(room.stores)
    view.subscribe(listener)
    room.views.close()
    assert room.stores.uses == {}
    assert listener.seen == [(False, True)]
    assert not east.discovery.callbacks
    assert room.views.view(PODS.gvr) is None


def test_listeners_of_the_aggregate_are_told_after_a_change() -> None:
    east = member("east", PODS)
    room = Room(east)
    told: list[int] = []
    unsubscribe = room.views.subscribe(lambda: told.append(len(room.views.views)))
    east.discovery.set(PODS, WIDGETS)
    unsubscribe()
    east.discovery.set()
    assert told == [2]


def test_what_members_have_otherwise() -> None:
    """In another version, or as another kind or scope: left out, and said."""
    beta = resource("widgets", "example.com", version="v1beta1")
    alpha = resource("widgets", "example.com", version="v1alpha1")
    wide = replace(WIDGETS, namespaced=False)
    members = [
        FakeMember("east", FakeDiscovery(WIDGETS)),
        FakeMember("west", FakeDiscovery(alpha, beta)),
        FakeMember("north", FakeDiscovery(wide)),
        FakeMember("south", FakeDiscovery(PODS)),
        FakeMember("away", FakeDiscovery(beta)),
    ]
    members[-1].discovery.fresh = False
    room = Room(*members, scope=(entry("*"), entry("*", group="example.com")))
    assert room.names(WIDGETS) == ["east"]
    found = dict(room.view(WIDGETS).differing("demo"))
    assert {name: one.why for name, one in found.items()} == {
        "west": "it serves widgets.example.com in version v1beta1, not in v1",
        "north": "there widgets.example.com is a cluster-scoped Widgets, not a namespaced Widgets",
    }
    assert (found["west"].other_version, found["north"].other_version) == (beta.gvr, None)
    assert [(each.gvr, each.member) for each in room.views.left_out] == [
        (WIDGETS.gvr, "west"),
        (WIDGETS.gvr, "north"),
    ]
    members[1].discovery.set(beta, WIDGETS)
    assert room.names(WIDGETS) == ["east", "west"]
    assert [name for name, _ in room.view(WIDGETS).differing()] == ["north"]
