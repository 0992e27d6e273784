"""Simulated clusters whose services are exported, and replicas of the daemon that do it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.aggregate.reflector.harness import send
from tests.e2e.processes import Daemon, wait_until
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess

_CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 2s{more}}}
listeners: [{{name: public, bind: "unix:{directory}/listener.sock"}}]
clusters:
{clusters}
servers:
  - {{name: all, default: true, backend: {{cluster: {first}}}, authentication: none}}
serviceExports: {exports}
"""
_CLUSTER = """\
  - name: {name}
    endpoints: [{{name: a, url: "{url}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
    healthCheck: {{interval: 1s, timeout: 3s}}
    identity: Proxy
"""
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/mcproxy-services"


class Clusters:
    """Simulated clusters by name; each has what a cluster begins with, and a namespace `demo`."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self.directory = directory
        options = ("--empty", "--no-controllers")
        self.processes = {
            name: SimulatedClusterProcess(name, options=options, directory=directory / name) for name in names
        }

    def __enter__(self) -> Clusters:
        for process in self.processes.values():
            process.spawn()
        for process in self.processes.values():
            process.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.cleanup()

    def control(self, name: str) -> ControlClient:
        return ControlClient(self.processes[name].control_url)

    def create(self, name: str, *items: Mapping[str, Any]) -> None:
        self.control(name).create(items)

    def send(self, name: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request as admin."""
        return send(self.processes[name], method, path, body)

    def put_slice(self, name: str, service: str, addresses: Sequence[str], slice_name: str = "") -> None:
        """Create or replace an EndpointSlice, as a controller of the cluster would."""
        path = "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices"
        body = slice_of(service, addresses, slice_name)
        where = f"{path}/{body['metadata']['name']}"
        if self.send(name, "GET", where)[0] == 404:
            assert self.send(name, "POST", path, body)[0] == 201
        else:
            assert self.send(name, "PUT", where, body)[0] == 200

    def addresses(self, name: str, slice_name: str) -> list[str] | None:
        """Return the addresses of an EndpointSlice; None: it is not there."""
        status, found = self.send(name, "GET", f"/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices/{slice_name}")
        if status == 404:
            return None
        assert status == 200, found
        return [each for one in found["endpoints"] or () for each in one["addresses"]]

    def names(self, name: str, resource: str) -> list[str]:
        """Return the names of objects in `demo`."""
        root = "/api/v1" if resource == "services" else "/apis/discovery.k8s.io/v1"
        found = self.send(name, "GET", f"{root}/namespaces/demo/{resource}")[1]
        return sorted(each["metadata"]["name"] for each in found["items"])

    def holder(self, name: str) -> str:
        """Return who has the Lease of a cluster."""
        status, found = self.send(name, "GET", LEASE)
        return found["spec"]["holderIdentity"] if status == 200 else ""

    def writes(self, name: str, since: int = 0) -> list[dict[str, Any]]:
        """Return what was written of services to a cluster by the daemons."""
        return [
            record
            for record in self.control(name).audit(since)
            if record["method"] in ("PATCH", "DELETE") and "timeout=" in record["path"]
        ]

    def daemon(self, name: str, exports: Sequence[Mapping[str, Any]], **more: str) -> Daemon:
        """Return a replica in a folder of its own, not started."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        return Daemon(directory, self.config(directory, exports, **more))

    def config(self, directory: Path, exports: Sequence[Mapping[str, Any]], **more: str) -> str:
        clusters = "".join(
            _CLUSTER.format(name=name, url=process.urls[0], ca=process.ca) for name, process in self.processes.items()
        )
        settings = "".join(f", {key}: {value}" for key, value in more.items())
        return _CONFIG.format(
            directory=directory,
            clusters=clusters,
            first=next(iter(self.processes)),
            exports=json.dumps(list(exports)),
            more=settings,
        )


def service_of(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "demo"},
        "spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP"}], "clusterIP": "10.96.1.1", **spec},
    }


def slice_of(service: str, addresses: Sequence[str], name: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name or f"{service}-1",
            "namespace": "demo",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [each], "conditions": {"ready": True}} for each in addresses],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def export_of(service: str, sources: Sequence[str], to: Sequence[str]) -> dict[str, Any]:
    return {"name": service, "namespace": "demo", "service": service, "from": list(sources), "to": list(to)}


__all__ = ["LEASE", "Clusters", "export_of", "service_of", "slice_of", "wait_until"]
