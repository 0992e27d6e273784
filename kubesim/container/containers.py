"""The containers of pods: finding the one of a request, and its files and environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubesim.apimachinery.status import APIError, bad_request, not_found
from kubesim.cluster import SimulatedCluster
from kubesim.container.filesystem import FileSystem

__all__ = ["Container", "find_container", "find_pod"]

JSONDict = dict[str, Any]
LIST_KINDS = ("containers", "initContainers", "ephemeralContainers")
MAX_FILE_SYSTEMS = 1000


@dataclass(frozen=True)
class Container:
    """A container of an existing pod."""

    cluster: SimulatedCluster
    pod: Mapping[str, Any]
    name: str
    spec: Mapping[str, Any]

    @property
    def namespace(self) -> str:
        return str(self.pod["metadata"]["namespace"])

    @property
    def pod_name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def node_name(self) -> str:
        return str((self.pod.get("spec") or {}).get("nodeName") or "")

    @property
    def files(self) -> FileSystem:
        """The container's file system, created on first use and kept for the pod's uid."""
        systems = self.cluster.state.setdefault("containers", {})
        key = (self.pod["metadata"].get("uid", ""), self.name)
        if key not in systems:
            if len(systems) >= MAX_FILE_SYSTEMS:
                systems.pop(next(iter(systems)))
            systems[key] = self._new_files()
        found = systems[key]
        assert isinstance(found, FileSystem)
        return found

    def _new_files(self) -> FileSystem:
        files = FileSystem(now=int(self.cluster.now().timestamp()))
        texts = {
            "/etc/hostname": f"{self.pod_name}\n",
            "/etc/hosts": f"127.0.0.1\tlocalhost\n{self.pod_ip}\t{self.pod_name}\n",
            "/etc/cluster": f"{self.cluster.name}\n",
            "/etc/os-release": 'NAME="Simulated"\nID=simulated\n',
        }
        for path, text in texts.items():
            files.open_for_writing(path)[:] = text.encode()
        return files

    @property
    def pod_ip(self) -> str:
        return str((self.pod.get("status") or {}).get("podIP") or "10.0.0.1")

    @property
    def environment(self) -> dict[str, str]:
        values = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOSTNAME": self.pod_name,
            "HOME": "/root",
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "KUBERNETES_SERVICE_PORT": "443",
        }
        for entry in self.spec.get("env") or ():
            values[entry["name"]] = str(entry.get("value", ""))
        return values


def find_pod(cluster: SimulatedCluster, namespace: str, name: str) -> JSONDict:
    """Return a pod. Raises APIError 404."""
    pod = cluster.store.get(("", "pods"), namespace, name)
    if pod is None:
        raise not_found("", "pods", name)
    return pod


def find_container(cluster: SimulatedCluster, namespace: str, pod_name: str, wanted: str) -> Container:
    """Return the named container, or the pod's only one. Raises APIError 404 (pod), 400 (container)."""
    pod = find_pod(cluster, namespace, pod_name)
    specs = {item["name"]: item for kind in LIST_KINDS for item in (pod.get("spec") or {}).get(kind) or ()}
    if wanted:
        if wanted not in specs:
            raise bad_request(f"container {wanted} is not valid for pod {pod_name}")
        return Container(cluster, pod, wanted, specs[wanted])
    names = [item["name"] for item in (pod.get("spec") or {}).get("containers") or ()]
    if len(names) != 1:
        raise _must_choose(pod, pod_name, names)
    return Container(cluster, pod, names[0], specs[names[0]])


def _must_choose(pod: Mapping[str, Any], pod_name: str, names: list[str]) -> APIError:
    text = f"a container name must be specified for pod {pod_name}"
    if names:
        text += f", choose one of: [{' '.join(names)}]"
    init = [item["name"] for item in (pod.get("spec") or {}).get("initContainers") or ()]
    if init:
        text += f" or one of the init containers: [{' '.join(init)}]"
    return bad_request(text)
