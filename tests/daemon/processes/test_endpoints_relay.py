"""Endpoints over several processes: the keeper tells, the supervisor keeps, the workers go on with what they know."""

from __future__ import annotations

import json
from ipaddress import ip_network
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config import model
from mcproxy.config.model import IPFamily
from mcproxy.daemon.lazy_parts import LazyMemberCaches
from mcproxy.daemon.processes import keeper_reports
from mcproxy.daemon.processes.children import Role
from mcproxy.daemon.processes.keeper_links import has_aggregates, keeper_config, needs_keeper
from mcproxy.daemon.processes.keeper_reports import EndpointRelay, KeeperServices, WorkerServices
from mcproxy.services.endpoint_table import (
    UNKNOWN,
    BackendKey,
    EndpointState,
    PodEndpoint,
    PortEndpoints,
    entry_of,
    read_entry,
)
from tests.daemon.processes.family import FakeChannel, FakeChildren
from tests.support.clock import Clock
from tests.upstream.fakes import cluster_config, make_upstream_context

WEB = BackendKey("east", "demo", "web", 80)
API = BackendKey("east", "demo", "api", "http")


def value(*addresses: str, stale: bool = False) -> PortEndpoints:
    return PortEndpoints(tuple(PodEndpoint(each, 8080) for each in addresses), known=True, stale=stale)


def config(*services: str) -> model.Config:
    rules = tuple(
        model.IngressRule(
            paths=(
                model.IngressPath(
                    path="/",
                    path_type=model.PathType.PREFIX,
                    backend=model.IngressBackend(
                        namespace="demo", service=name, port=80 if name == "web" else "http", clusters=("east",)
                    ),
                ),
            )
        )
        for name in services
    )
    ingress = model.Ingress(name="web", listeners=("l",), rules=rules)
    return model.Config(clusters=(cluster_config(),), ingresses=(ingress,) if services else ())


class Site:
    """A supervisor, with a keeper and workers that the test starts."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.children = FakeChildren()
        self.relay = EndpointRelay(cast(Any, self.children), cast(Any, self.clock))
        self.shared = make_upstream_context(self.clock)

    def start(self, role: Role) -> tuple[Any, FakeChannel, Any]:
        child, channel = self.children.add(role)
        child.role, child.retiring = role, False
        made: Any
        if role is Role.KEEPER:
            made = KeeperServices(self.shared, LazyMemberCaches(self.clock, self.shared), cast(Any, channel))
        else:
            made = WorkerServices(cast(Any, channel))
        self.children.started(child)
        return child, channel, made

    def settle(self) -> None:
        self.clock.pump([0.01] * 20)


def test_workers_know_what_the_keeper_knows() -> None:
    site = Site()
    _, _, worker = site.start(Role.WORKER)
    _, _, keeper = site.start(Role.KEEPER)
    keeper.endpoints.set(WEB, value("10.0.0.1"))
    site.settle()
    assert worker.endpoints.get(WEB) == value("10.0.0.1")


def test_what_changes_several_times_is_told_once() -> None:
    site = Site()
    _, _, worker = site.start(Role.WORKER)
    _, _channel, keeper = site.start(Role.KEEPER)
    told: list[BackendKey] = []
    worker.endpoints.subscribe_all(told.append)
    for number in range(1, 100):
        keeper.endpoints.set(WEB, value(f"10.0.0.{number}"))
    site.settle()
    assert told == [WEB]
    assert worker.endpoints.get(WEB) == value("10.0.0.99")


def test_a_worker_and_a_keeper_that_start_later_know_it_before_their_configuration() -> None:
    site = Site()
    child, _, keeper = site.start(Role.KEEPER)
    keeper.endpoints.set(WEB, value("10.0.0.1"))
    site.settle()
    site.children.all.remove(child)
    _, _, worker = site.start(Role.WORKER)
    _, _channel, successor = site.start(Role.KEEPER)
    assert worker.endpoints.get(WEB) == successor.endpoints.get(WEB) == value("10.0.0.1")
    told: list[BackendKey] = []
    worker.endpoints.subscribe_all(told.append)
    site.settle()
    assert not told  # it is not told again


def test_what_a_keeper_that_retires_says_is_not_heard() -> None:
    site = Site()
    _, _, worker = site.start(Role.WORKER)
    old, _, keeper = site.start(Role.KEEPER)
    keeper.endpoints.set(WEB, value("10.0.0.1"))
    site.settle()
    old.retiring = True
    keeper.endpoints.set(WEB, value())
    site.settle()
    assert worker.endpoints.get(WEB) == value("10.0.0.1")


def test_a_reload_forgets_what_the_configuration_has_no_longer() -> None:
    site = Site()
    _, _, worker = site.start(Role.WORKER)
    _, _, keeper = site.start(Role.KEEPER)
    for key in (WEB, API):
        keeper.endpoints.set(key, value("10.0.0.1"))
    site.settle()
    keeper.endpoints.keep([API])
    worker.activate(config("api"), {})
    site.relay.configured(config("api"))
    site.settle()
    assert worker.endpoints.get(WEB) is UNKNOWN
    assert worker.endpoints.get(API) == value("10.0.0.1")
    _, _, late = site.start(Role.WORKER)
    assert dict(late.endpoints.items()) == {API: value("10.0.0.1")}


def test_many_backends_are_told_in_short_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_reports, "_BATCH", 1000)
    site = Site()
    _, _, worker = site.start(Role.WORKER)
    _, channel, keeper = site.start(Role.KEEPER)
    sizes: list[int] = []
    tell = channel.tell

    def counted(kind: str, **fields: Any) -> None:
        sizes.append(len(fields["entries"]))
        tell(kind, **fields)

    monkeypatch.setattr(channel, "tell", counted)
    keys = [WEB._replace(service=f"web-{number}") for number in range(60)]
    for key in keys:
        keeper.endpoints.set(key, value("10.0.0.1"))
    site.settle()
    assert max(sizes) < 6
    assert len(list(worker.endpoints.items())) == 60
    _, _, late = site.start(Role.WORKER)
    assert dict(late.endpoints.items()) == dict(worker.endpoints.items())


def test_a_process_that_starts_is_told_much_in_turns_and_always_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_reports, "_BATCH", 1000)
    monkeypatch.setattr(keeper_reports, "_AT_ONCE", 5000)
    site = Site()
    _, _, keeper = site.start(Role.KEEPER)
    keys = [WEB._replace(service=f"web-{number}") for number in range(60)]
    for key in keys:
        keeper.endpoints.set(key, value("10.0.0.1"))
    site.settle()
    _, _, late = site.start(Role.WORKER)
    assert 20 < len(list(late.endpoints.items())) < 40
    keeper.endpoints.set(keys[-1], value("10.0.0.2"))
    site.settle()
    assert len(list(late.endpoints.items())) == 60
    assert late.endpoints.get(keys[-1]) == value("10.0.0.2")


def test_which_configurations_need_a_keeper() -> None:
    assert not needs_keeper(config())
    assert needs_keeper(config("web"))
    assert not has_aggregates(config("web"))
    assert keeper_config(config("web")).ingresses == config("web").ingresses
    assert needs_keeper(
        model.Config(
            service_exports=(
                model.ServiceExport(name="a", namespace="a", service="a", from_clusters=("east",), to=("west",)),
            )
        )
    )
    assert needs_keeper(model.Config(service_discovery=model.ServiceDiscovery(enabled=True)))


VALUES = st.builds(
    PortEndpoints,
    st.lists(
        st.builds(
            PodEndpoint,
            st.ip_addresses().map(str),
            st.integers(1, 65535),
            st.none() | st.just("eu-1a"),
            st.sampled_from(EndpointState),
            st.none() | st.just("web-0"),
        ),
        max_size=3,
    ).map(tuple),
    st.none() | st.text(),
    st.booleans(),
    st.booleans(),
    st.text(),
    missing=st.booleans(),
)
KEYS = st.builds(
    BackendKey,
    st.text(),
    st.text(),
    st.text(),
    st.integers(1, 65535) | st.text(),
    st.sampled_from([(), (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))]),
    st.sampled_from([None, *IPFamily]),
)


@given(KEYS, VALUES)
def test_messages_carry_every_value(key: BackendKey, found: PortEndpoints) -> None:
    entry = json.loads(json.dumps(entry_of(key, found)))
    assert read_entry(entry) == (key, found)
