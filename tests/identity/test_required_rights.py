"""The rights of all clusters at once are those of each alone; hundreds of clusters take milliseconds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.identity.required_rights import has_own_reviews, required_rights, rights_by_cluster
from tests.support.processor_time import processor_time


def endpoints(number: int) -> tuple[model.EndpointConfig, ...]:
    return (model.EndpointConfig(name="a", scheme="https", host="127.0.0.1", port=20000 + number),)


def backend(chance: random.Random, names: list[str], fleet: model.Aggregate) -> model.Backend:
    kinds: list[model.Backend] = [
        model.ClusterBackend(chance.choice(names)),
        model.ClustersBackend(tuple(chance.sample(names, 2))),
        model.AggregateBackendConfig("fleet", fleet.clusters),
    ]
    return chance.choice(kinds)


def services(chance: random.Random, names: list[str]) -> tuple[model.APIService, ...]:
    return tuple(
        model.APIService(
            group=f"g{number}.example.com", version="v1", cluster=chance.choice(names), authority=chance.choice(names)
        )
        for number in range(chance.choice([0, 0, 1, 2]))
    )


def configuration(clusters: int, servers: int, seed: int) -> model.Config:
    """Servers of all kinds, with authorizers and authenticators that ask any of the clusters."""
    chance = random.Random(seed)
    names = [f"c{number}" for number in range(clusters)]
    resources = (model.CachedResource(group="", version="v1", resource="pods"),)
    fleet = model.Aggregate(
        name="fleet",
        clusters=tuple(names[:3]),
        primary=names[0],
        cache=model.Cache(resources=resources),
    )
    reviewers = [None, *names]
    return model.Config(
        clusters=tuple(
            model.ClusterConfig(
                name=name, endpoints=endpoints(number), identity=chance.choice(list(model.UpstreamIdentity))
            )
            for number, name in enumerate(names)
        ),
        authentication=tuple(
            model.Authentication(name=f"a{number}", token_review=model.TokenReview(cluster=chance.choice(reviewers)))
            for number in range(3)
        ),
        authorization=tuple(
            model.Authorization(
                name=f"z{number}", subject_access_review=model.SubjectAccessReview(cluster=chance.choice(reviewers))
            )
            for number in range(3)
        ),
        aggregates=(fleet,),
        servers=tuple(
            model.Server(
                name=f"s{number}",
                listeners=("l",),
                authentication=chance.choice([None, "a0", "a1", "a2"]),
                authorization=chance.choice([None, "z0", "z1", "z2"]),
                backend=(served := backend(chance, names, fleet)),
                api_services=() if isinstance(served, model.ClustersBackend) else services(chance, names),
            )
            for number in range(servers)
        ),
    )


def test_all_at_once_are_those_of_each_alone() -> None:
    for seed in range(30):
        config = configuration(5, 8, seed)
        assert rights_by_cluster(config) == {one.name: required_rights(config, one) for one in config.clusters}


@pytest.mark.slow
def test_many_clusters_take_little_time() -> None:
    config = configuration(600, 600, 1)
    ratios = []
    for _ in range(3):  # another process may have used the same core's cache during one of the two
        with processor_time() as taken:
            rights_by_cluster(config)
        with processor_time() as alone:  # which looks at all servers: all clusters would take 20 times as long
            for one in config.clusters[:30]:
                required_rights(config, one)
        ratios.append(taken.seconds / alone.seconds)
    assert min(ratios) < 12, "it looks at all servers for each cluster"


@pytest.mark.parametrize(
    ("identity", "asked"), [(model.UpstreamIdentity.IMPERSONATE, True), (model.UpstreamIdentity.PROXY, False)]
)
@pytest.mark.parametrize("authorize", list(model.ReadAuthorization))
def test_a_primary_that_is_no_member_is_asked_who_may_discover_it(
    identity: model.UpstreamIdentity, asked: bool, authorize: model.ReadAuthorization
) -> None:
    hub = model.ClusterConfig(name="hub", endpoints=endpoints(0), identity=identity)
    east = model.ClusterConfig(name="east", endpoints=endpoints(1), identity=model.UpstreamIdentity.PROXY)
    fleet = model.Aggregate(
        name="fleet",
        clusters=("east",),
        primary="hub",
        cache=model.Cache(),
        reads=model.ReadsConfig(authorize=authorize),
    )
    server = model.Server(name="s", listeners=("l",), backend=model.AggregateBackendConfig("fleet", ("east",), "hub"))
    config = model.Config(clusters=(hub, east), aggregates=(fleet,), servers=(server,))
    reviews = [right.why for right in required_rights(config, hub) if right.resource == "subjectaccessreviews"]
    wanted = asked and authorize is model.ReadAuthorization.MEMBERS
    assert any("reviews who may read its discovery (primary of aggregate fleet)" in why for why in reviews) is wanted


@pytest.mark.parametrize(
    ("identity", "asked"), [(model.UpstreamIdentity.IMPERSONATE, True), (model.UpstreamIdentity.PROXY, False)]
)
@pytest.mark.parametrize("authorize", list(model.ReadAuthorization))
def test_members_are_asked_who_may_write_whoever_authorizes_reads(
    identity: model.UpstreamIdentity, asked: bool, authorize: model.ReadAuthorization
) -> None:
    east = model.ClusterConfig(name="east", endpoints=endpoints(0), identity=identity)
    reads = model.ReadsConfig(authorize=authorize)
    fleet = model.Aggregate(name="fleet", clusters=("east",), cache=model.Cache(), reads=reads)
    server = model.Server(name="s", listeners=("l",), backend=model.AggregateBackendConfig("fleet", ("east",), None))
    config = model.Config(clusters=(east,), aggregates=(fleet,), servers=(server,))
    reviews = [right.why for right in required_rights(config, east) if right.resource == "subjectaccessreviews"]
    assert any("(aggregate fleet)" in why for why in reviews) is asked


def beside_east(**owner: Any) -> model.Config:
    metrics = model.ClusterConfig(
        name="metrics", endpoints=endpoints(1), identity=model.UpstreamIdentity.REQUEST_HEADER
    )
    service = model.APIService(group="metrics.k8s.io", version="v1", cluster="metrics", authority="east")
    return model.Config(
        clusters=(model.ClusterConfig(name="east", endpoints=endpoints(0)), metrics),
        authorization=(model.Authorization(name="z", subject_access_review=model.SubjectAccessReview()),),
        servers=(
            model.Server(
                name="s",
                listeners=("l",),
                authorization="z",
                backend=model.ClusterBackend("east"),
                api_services=(replace(service, **owner),),
            ),
        ),
    )


def test_an_api_server_that_extends_a_cluster_has_no_reviews_of_its_own() -> None:
    config = beside_east()
    east, metrics = config.clusters
    paths = [right.path for right in required_rights(config, metrics)]
    assert paths == ["/readyz", "/apis/metrics.k8s.io/v1", "/openapi/v2", "/openapi/v3", "/openapi/v3/*"]
    (review,) = [right.why for right in required_rights(config, east) if right.resource == "subjectaccessreviews"]
    assert "reviews requests (authorization z)" in review
    assert "reviews who may discover API services (server s)" in review
    assert (has_own_reviews(config, east), has_own_reviews(config, metrics)) == (True, False)


def test_the_backend_is_asked_for_what_it_serves_beside_api_services() -> None:
    config = beside_east()
    assert "/apis/*" in [right.path for right in required_rights(config, config.clusters[0])]
    without = replace(config, servers=(replace(config.servers[0], api_services=()),))
    assert "/apis/*" not in [right.path for right in required_rights(without, without.clusters[0])]


def test_an_owner_that_decides_itself_reviews() -> None:
    config = beside_east(authority="metrics")
    metrics = config.clusters[1]
    assert has_own_reviews(config, metrics)
    assert any(right.resource == "subjectaccessreviews" for right in required_rights(config, metrics))


def test_a_cluster_that_a_server_serves_too_has_reviews_of_its_own() -> None:
    config = beside_east()
    second = model.Server(name="t", listeners=("l",), backend=model.ClustersBackend(("metrics",)))
    config = replace(config, servers=(*config.servers, second))
    assert has_own_reviews(config, config.clusters[1])


@pytest.mark.parametrize("identity", list(model.UpstreamIdentity))
@pytest.mark.parametrize("of_aggregate", [False, True])
def test_reviews_that_api_servers_ask_need_the_right_to_review_who_asks(
    identity: model.UpstreamIdentity, of_aggregate: bool
) -> None:
    names = ("east", "west", "things")
    clusters = [
        model.ClusterConfig(name=each, endpoints=endpoints(at), identity=identity) for at, each in enumerate(names)
    ]
    service = model.APIService(group="things.example.com", version="v1", cluster="things", authority="east")
    backend: model.Backend = model.ClusterBackend("east")
    if of_aggregate:
        backend = model.AggregateBackendConfig("fleet", ("west", "east"), "east")
    rules = model.Authorization(name="rules", rules=())
    server = model.Server(
        name="main",
        listeners=(),
        backend=backend,
        authentication="corp",
        authorization="rules",
        api_services=(service,),
    )
    sets = (model.Authentication(name="corp"),)
    config = model.Config(clusters=tuple(clusters), servers=(server,), authentication=sets, authorization=(rules,))
    for cluster in clusters:
        reviews = [right.why for right in required_rights(config, cluster) if right.resource == "subjectaccessreviews"]
        wanted = cluster.name == "east" and identity is not model.UpstreamIdentity.PROXY
        assert any("reviews who may ask for reviews (apiServices of server main)" in why for why in reviews) is wanted
