"""The containers of pods: finding the one of a request, its environment, and its file system in memory."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kubesim.apimachinery.resources import JSONDict
from kubesim.apimachinery.status import StatusError, bad_request, not_found
from kubesim.cluster import SimulatedCluster

LIST_KINDS = ("containers", "initContainers", "ephemeralContainers")
MAX_FILE_SYSTEMS = 1000
MAX_BYTES = 1 << 28  # bytes in one file


class FileSystemError(Exception):
    """An operation failed; the message is the path and the C library's, such as "No such file or directory"."""


@dataclass
class Entry:
    """A file (`data` is its content), or a directory (`data` is None)."""

    data: bytes | None
    mode: int
    mtime: int


@dataclass
class FileSystem:
    """Files and directories by absolute, normal path, in memory: nothing leads out of it."""

    now: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in ("/", "/bin", "/dev", "/etc", "/tmp", "/var", "/var/log"):
            self.entries[path] = Entry(None, 0o755, self.now)

    @staticmethod
    def resolve(directory: str, path: str) -> str:
        """Return an absolute, normal path."""
        return "/" + posixpath.normpath(posixpath.join(directory, path)).lstrip("/")

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileSystemError."""
        entry = self.entries.get(self.resolve("/", path))
        if entry is None or entry.data is None:
            raise FileSystemError(f"{path}: {'Is a directory' if entry else 'No such file or directory'}")
        return entry.data

    def below(self, path: str) -> list[tuple[str, Entry]]:
        """Return a path and everything below it, parents first. Raises FileSystemError if it does not exist."""
        if path not in self.entries:
            raise FileSystemError(f"{path}: No such file or directory")
        prefix = path.rstrip("/") + "/"
        return sorted((other, entry) for other, entry in self.entries.items() if (other + "/").startswith(prefix))

    def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Replace a file, with the directories above it. Raises FileSystemError."""
        if len(data) > MAX_BYTES:
            raise FileSystemError(f"{path}: No space left on device")
        if path in self.entries and self.entries[path].data is None:
            raise FileSystemError(f"{path}: Is a directory")
        self.make_directory(posixpath.dirname(path))
        self.entries[path] = Entry(data, mode, self.now)

    def make_directory(self, path: str, *, mode: int = 0o755) -> None:
        """Make a directory and those above it, unless they exist. Raises FileSystemError where a file is in the way."""
        if path not in self.entries:
            self.make_directory(posixpath.dirname(path))
            self.entries[path] = Entry(None, mode, self.now)
        elif self.entries[path].data is not None:
            raise FileSystemError(f"{path}: Not a directory")

    def remove(self, path: str) -> None:
        """Remove a path and everything below it."""
        for other, _ in self.below(self.resolve("/", path)):
            del self.entries[other]


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
            files.write(path, text.encode())
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


def _must_choose(pod: Mapping[str, Any], pod_name: str, names: list[str]) -> StatusError:
    text = f"a container name must be specified for pod {pod_name}"
    if names:
        text += f", choose one of: [{' '.join(names)}]"
    init = [item["name"] for item in (pod.get("spec") or {}).get("initContainers") or ()]
    if init:
        text += f" or one of the init containers: [{' '.join(init)}]"
    return bad_request(text)
