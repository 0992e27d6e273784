"""Reviews over real connections, by a cluster whose RBAC decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision, SubjectAccessReviewer
from mcproxy.identity.authorization.attributes import Attributes, attributes_of
from mcproxy.identity.client_identity_headers import split_identity_headers
from mcproxy.identity.impersonation import authorize_impersonation, requested_impersonation
from mcproxy.kube.requestinfo import parse
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import known, settled
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.upstream_context import UpstreamContext
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.upstream.conftest import reactor as reactor
from tests.upstream.fakes import real_pools

ALICE = UserInfo("alice", ("dev", "system:authenticated"))


@pytest.fixture(scope="module")
def process() -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("east", options=("--no-controllers",)) as running:
        yield running


@pytest.fixture
def cluster_as(process: SimulatedClusterProcess, reactor: Any, nothing_left_open: None) -> Iterator[Any]:
    clusters: list[Cluster] = []

    def make(user: str) -> SubjectAccessReviewer:
        with open(process.ca, "rb") as file:
            ca = model.PEMFile(process.ca, file.read())
        config = model.ClusterConfig(
            name="east",
            endpoints=(model.EndpointConfig(name="a", scheme="https", host="127.0.0.1", port=process.ports[0]),),
            tls=model.ClusterTLS(ca=ca),
            credentials=model.Credentials(token=model.Secret(process.tokens[user])),
        )
        cluster = Cluster(config, UpstreamContext.of(reactor, real_pools(reactor)))
        clusters.append(cluster)
        cluster.start()
        return SubjectAccessReviewer(lambda: cluster, model.SubjectAccessReview(), reactor)

    yield make
    for cluster in clusters:
        cluster.stop()


def ask(method: str, target: str) -> Attributes:
    return attributes_of(parse(method.encode(), target.encode()), target.encode())


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_decisions_are_those_of_the_clusters_rbac(cluster_as: Any) -> None:
    reviews = cluster_as("mcproxy")
    listing = ask("GET", "/api/v1/namespaces/demo/pods?labelSelector=app%3Dweb&fieldSelector=spec.nodeName%3Dx")
    assert await settled(reviews.decide(ALICE, listing)) == Decision(True)
    assert known(reviews.decide(ALICE, listing)) == Decision(True)
    assert await settled(reviews.decide(ALICE, ask("GET", "/api/v1/namespaces/demo/secrets"))) == Decision(False)
    assert await settled(reviews.decide(ALICE, ask("GET", "/metrics"))) == Decision(False)
    assert await settled(reviews.decide(ALICE, ask("GET", "/version"))) == Decision(True)
    masters = UserInfo("x", ("system:masters",), "uid", (("scopes", ("a",)),))
    assert await settled(reviews.decide(masters, ask("GET", "/metrics"))) == Decision(True)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_impersonation_is_authorized_by_the_clusters_rbac(cluster_as: Any) -> None:
    reviews = cluster_as("mcproxy")
    asked = requested_impersonation(
        split_identity_headers(b"Impersonate-User: bob\r\nImpersonate-Group: ops\r\nImpersonate-Extra-Scopes: a\r\n")
    )
    assert asked is not None
    assert (await authorize_impersonation(UserInfo("mcproxy", ("mcproxy",)), asked, reviews.decide)).name == "bob"
    with pytest.raises(StatusError) as caught:
        await authorize_impersonation(ALICE, asked, reviews.decide)
    assert caught.value.message.startswith('users "bob" is forbidden: User "alice" cannot impersonate resource "users"')


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_proxy_that_may_not_review_allows_nothing(cluster_as: Any) -> None:
    with pytest.raises(StatusError) as caught:
        await settled(cluster_as("alice").decide(ALICE, ask("GET", "/version")))
    assert caught.value.code == 503
