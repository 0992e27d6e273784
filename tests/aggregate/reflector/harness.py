"""Members in front of simulated clusters, in the reactor of the tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from twisted.internet.task import deferLater

from mcproxy.aggregate.cache.cached_object import Event
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.reflectors import Reflectors, StoreOptions
from mcproxy.config import model
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.upstream_context import UpstreamContext
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.upstream.fakes import real_pools

CHECK = model.HealthCheck(interval=0.1, timeout=20.0, unhealthy_after=2)
"""Of which none is late because the machine is busy."""
SHORT_CHECK = model.HealthCheck(interval=0.1, timeout=1.0, unhealthy_after=2)
"""For what hangs."""


def pem(path: str) -> model.PEMFile:
    return model.PEMFile(path, Path(path).read_bytes())


def endpoints_of(process: SimulatedClusterProcess) -> tuple[model.EndpointConfig, ...]:
    return tuple(
        model.EndpointConfig(name=f"{process.name}-{index}", scheme="https", host="127.0.0.1", port=port)
        for index, port in enumerate(process.ports)
    )


def cluster_config(
    process: SimulatedClusterProcess, *, name: str = "", user: str = "admin", **fields: Any
) -> model.ClusterConfig:
    """The configuration of a simulated cluster, with the rights of one of its users."""
    credentials = process.user(user)
    usual: dict[str, Any] = {
        "endpoints": endpoints_of(process),
        "tls": model.ClusterTLS(ca=pem(process.ca)),
        "credentials": model.Credentials(certificate=pem(credentials.certificate), key=pem(credentials.key)),
        "identity": model.UpstreamIdentity.PROXY,
        "health_check": CHECK,
    }
    return model.ClusterConfig(name=name or process.name, **{**usual, **fields})


class Site:
    """Live clusters and members of one test, ended with it."""

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self.shared = UpstreamContext.of(reactor, real_pools(reactor))
        self.clusters: list[Cluster] = []
        self.members: list[Member] = []
        self.reflectors = Reflectors(self.shared)

    def cluster(self, config: model.ClusterConfig, previous: Cluster | None = None) -> Cluster:
        """Start a cluster; as a reload does if there is a previous one, which ends with `stop(successor)`."""
        cluster = Cluster.build(config, self.shared, previous)
        cluster.start()
        self.clusters.append(cluster)
        return cluster

    def member(self, process: SimulatedClusterProcess, **fields: Any) -> Member:
        member = Member(self.cluster(cluster_config(process, **fields)), self.shared)
        self.members.append(member)
        return member

    def follow(
        self, process: SimulatedClusterProcess, resource: APIResource, namespace: str = "", **fields: Any
    ) -> Store:
        """Return the store of one resource of a cluster that is the only member."""
        cluster = self.cluster(cluster_config(process, **fields))
        self.reflectors.update({cluster.name: cluster})
        return self.reflectors.acquire(cluster.name, resource, namespace, StoreOptions())

    async def until(self, condition: Callable[[], Any], seconds: float = 60.0, why: str = "") -> None:
        """Wait for a condition, as the reactor's time goes on."""
        for _ in range(int(seconds / 0.01)):
            if condition():
                return
            await deferLater(self.reactor, 0.01)
        raise AssertionError(why or "the condition was not met in time")

    async def seen(self, store: Store, version: int) -> None:
        """Wait until a store has a version, without a request that would prove it."""
        await self.until(lambda: store.version >= version, why=f"version {version} did not come")

    async def wait(self, seconds: float) -> None:
        await deferLater(self.reactor, seconds)

    def close(self) -> None:
        self.reflectors.stop()
        for member in self.members:
            member.stop()
        for cluster in self.clusters:
            cluster.stop()


def reads(
    control: ControlClient, since: int, path: str, *, watch: bool | None = None, probes: bool = False
) -> list[str]:
    """Return the queries of lists and watches of a collection that reached the cluster after `since`.

    Probes (lists of one object) are left out; `watch` selects watches or lists.
    """
    found = []
    for record in control.audit(since, path=path):
        target, _, query = str(record["path"]).partition("?")
        if target != path or (not probes and "limit=1" in query.split("&")):
            continue
        if watch in (None, "watch=true" in query.split("&") or "watch=1" in query.split("&")):
            found.append(query)
    return found


def config_map(name: str, namespace: str = "default", **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }


def crd(plural: str = "widgets", kind: str = "Widget", group: str = "example.com") -> dict[str, Any]:
    """A minimal definition of a namespaced custom resource."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def send(
    process: SimulatedClusterProcess, method: str, path: str, body: Any = None, *, kind: str = "application/json"
) -> tuple[int, Any]:
    """Send a request as admin, blocking; return the status and the decoded answer."""
    import http.client
    import ssl

    context = ssl.create_default_context(cafile=process.ca)
    context.load_cert_chain(process.user("admin").certificate, process.user("admin").key)
    connection = http.client.HTTPSConnection("127.0.0.1", process.ports[0], context=context, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": kind})
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    try:
        return response.status, json.loads(answer)
    except ValueError:
        return response.status, answer


def options(*more: str) -> Sequence[str]:
    return ("--empty", "--no-controllers", *more)


CONFIG_MAPS = APIResource(
    GroupVersionResource("", "v1", "configmaps"), "ConfigMap", "configmap", True, frozenset({"get", "list", "watch"})
)
WIDGETS = APIResource(
    GroupVersionResource("example.com", "v1", "widgets"), "Widget", "widget", True, frozenset({"get", "list", "watch"})
)


class Listener:
    """Writes down what a store tells."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.events: list[tuple[str, str]] = []
        self.availability: list[bool] = []
        store.subscribe(self)

    def store_event(self, store: Store, event: Event) -> None:
        self.events.append((event.type.value, event.object.name))

    def store_progress(self, store: Store) -> None:
        available = store.unavailable_since is None
        if not self.availability or self.availability[-1] != available:
            self.availability.append(available)


def names(store: Store) -> list[str]:
    return [item.name for item in store.snapshot() if not item.name.startswith("kube-root-ca")]
