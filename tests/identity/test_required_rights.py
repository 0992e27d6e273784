"""The rights of all clusters at once are those of each alone; hundreds of clusters take milliseconds."""

from __future__ import annotations

import random
import time

from mcproxy.config import model
from mcproxy.identity.required_rights import required_rights, rights_by_cluster


def endpoints(number: int) -> tuple[model.Endpoint, ...]:
    return (model.Endpoint(name="a", scheme="https", host="127.0.0.1", port=20000 + number),)


def backend(chance: random.Random, names: list[str], fleet: model.Aggregate) -> model.Backend:
    kinds: list[model.Backend] = [
        model.ClusterBackend(chance.choice(names)),
        model.ClustersBackend(tuple(chance.sample(names, 2))),
        model.AggregateBackend("fleet", fleet.clusters),
    ]
    return chance.choice(kinds)


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
            model.Cluster(name=name, endpoints=endpoints(number), identity=chance.choice(list(model.Identity)))
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
                backend=backend(chance, names, fleet),
            )
            for number in range(servers)
        ),
    )


def test_all_at_once_are_those_of_each_alone() -> None:
    for seed in range(30):
        config = configuration(5, 8, seed)
        assert rights_by_cluster(config) == {one.name: required_rights(config, one) for one in config.clusters}


def test_many_clusters_take_little_time() -> None:
    config = configuration(300, 300, 1)
    begun = time.thread_time()
    rights_by_cluster(config)
    assert time.thread_time() - begun < 0.25, "it looks at all servers for each cluster"
