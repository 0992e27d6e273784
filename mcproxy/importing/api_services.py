"""Translates APIService objects of Kubernetes to cluster entries and a server with `apiServices`.

Each Service that APIServices refer to is an API server, and becomes one cluster entry. APIServices without a Service
(`Local`) belong to the cluster's own API server, and are skipped.

Source: kube-aggregator `pkg/apis/apiregistration/v1/types.go`. A kube-aggregator verifies the server's certificate for
the name NAME.NAMESPACE.svc (`pkg/apiserver/handler_proxy.go`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cryptography import x509

from mcproxy.importing.fragment import STUBS, Complete, Fragment, Note, is_cluster_name
from mcproxy.importing.object_files import Object, UnusableError

SOURCE = ("apiregistration.k8s.io", "v1", "apiservices")
_KIND, _API_VERSION = "APIService", "apiregistration.k8s.io/v1"
_PORT = 443


@dataclass(frozen=True, slots=True)
class APIServiceOptions:
    """Options for settings that APIServices do not contain. The file that includes the output has to contain the
    cluster and the authentication.
    """

    server: str  # the name of the created server
    cluster: str  # the backend of the server
    authentication: str | None
    front_proxy: tuple[str, str]  # files with the certificate and the key


class _APIServer(NamedTuple):
    """An API server: its address, and the settings for the verification of its certificate."""

    namespace: str
    name: str
    port: int
    ca: bytes
    insecure: bool

    @property
    def host(self) -> str:
        return f"{self.name}.{self.namespace}.svc"


def translate_all(objects: Iterable[Object], options: APIServiceOptions) -> tuple[list[Fragment], list[Note], Complete]:
    """Return a fragment for each object, the notes on omissions, and a function that adds the server.

    Raises UnusableError if there is no APIService with a Service.
    """
    fragments: list[Fragment] = []
    left_out: list[Note] = []
    names: dict[_APIServer, str] = {}
    for each in objects:
        origin = f"{each.kind} {each.name}"
        if (each.kind, each.api_version) != (_KIND, _API_VERSION):
            left_out.append(Note(origin, "", f"left out: it is no {_KIND} of {_API_VERSION}"))
            continue
        try:
            made = _translate(each, origin, options, names)
        except UnusableError as error:
            left_out.append(Note(origin, "", f"left out: {error}"))
        else:
            if made is not None:
                fragments.append(made)
    if not fragments and not left_out:
        raise UnusableError(f"there is no {_KIND} ({_API_VERSION}) with a service in what was read")
    return fragments, left_out, lambda good: _complete(good, options)


def _translate(found: Object, origin: str, options: APIServiceOptions, names: dict[_APIServer, str]) -> Fragment | None:
    """Return the fragment of an APIService; None if it belongs to the cluster's own API. Raises UnusableError."""
    spec = found.fields.fields("spec")
    if not spec.has("service"):
        return None
    group, version = spec.text("group"), spec.text("version")
    if found.name != f"{version}.{group}":
        raise UnusableError(f"metadata.name: it is not {version}.{group}, so Kubernetes would refuse it")
    server = _api_server(spec)
    made = Fragment(origin)
    name = names.get(server)
    if name is None:
        same = sum(1 for known in names if known.host == server.host)
        name = f"{server.name}.{server.namespace}" + (f"-{same + 1}" if same else "")
        if not is_cluster_name(name):
            raise UnusableError(f"spec.service: {name} is no name of a Service and its namespace")
        names[server] = name
    # Each fragment has the whole entry of its API server, so that the omission of an object does not affect others.
    made.add("clusters", _entry(made, name, server, options))
    made.add("servers", _service(spec, group, version, name))
    for path in spec.others(
        "group", "version", "service", "caBundle", "insecureSkipTLSVerify", "groupPriorityMinimum", "versionPriority"
    ):
        made.note(path, "is not known, and left out")
    return made


def _api_server(spec: Any) -> _APIServer:
    service = spec.fields("service")
    name, namespace = service.text("name"), service.text("namespace")
    if not name or not namespace:
        raise UnusableError("spec.service: has no name or no namespace")
    port = service.integer("port") if service.has("port") else _PORT
    if not 1 <= port <= 65535:
        raise UnusableError("spec.service.port: is not a port from 1 to 65535")
    ca, insecure = spec.data("caBundle"), spec.boolean("insecureSkipTLSVerify")
    if ca and insecure:
        raise UnusableError("spec.caBundle: excludes insecureSkipTLSVerify")
    if ca:
        try:
            x509.load_pem_x509_certificates(ca)
        except ValueError:
            raise UnusableError(
                "spec.caBundle: holds no PEM certificate: kube-apiserver takes such an object, and then trusts nobody"
            ) from None
    return _APIServer(namespace, name, port, ca, insecure)


def _entry(made: Fragment, name: str, server: _APIServer, options: APIServiceOptions) -> dict[str, Any]:
    tls: dict[str, Any] = {"serverName": server.host}
    if server.insecure:
        tls["insecureSkipVerify"] = True
    elif server.ca:
        tls["caFile"] = made.file(name, "ca.crt", server.ca)
    certificate, key = map(os.path.abspath, options.front_proxy)
    return {
        "name": name,
        "endpoints": [{"url": f"https://{server.host}:{server.port}"}],
        "tls": tls,
        "identity": "RequestHeader",
        "frontProxy": {"certFile": certificate, "keyFile": key},
    }


def _service(spec: Any, group: str, version: str, cluster: str) -> dict[str, Any]:
    """Return the entry of `apiServices`."""
    entry: dict[str, Any] = {"group": group, "version": version, "cluster": cluster}
    for key in ("groupPriorityMinimum", "versionPriority"):
        if spec.has(key):
            entry[key] = spec.integer(key)
    return entry


def _complete(good: Sequence[Fragment], options: APIServiceOptions) -> Sequence[Fragment]:
    """Return the fragments, with each API server only once, and the server with all `apiServices`."""
    clusters: dict[str, dict[str, Any]] = {}
    services: list[dict[str, Any]] = []
    kept: list[Fragment] = []
    for each in good:
        entry = each.sections["clusters"][0]
        first = entry["name"] not in clusters
        clusters.setdefault(entry["name"], entry)
        services += each.sections["servers"]
        sections = {"clusters": [entry]} if first else {}
        kept.append(Fragment(each.origin, sections, each.files if first else {}, each.notes, each.place))
    server: dict[str, Any] = {"name": options.server, "serverNames": [f"{options.server}.invalid"]}
    server["backend"] = {"cluster": options.cluster}
    if options.authentication is not None:
        server["authentication"] = options.authentication
    server["apiServices"] = services
    made = Fragment(f"server {options.server}")
    if services:
        made.add("servers", server)
        made.note("apiServices", f"belong to the server of cluster {options.cluster}: move them there if it has one")
        inside = "the names NAME.NAMESPACE.svc are known inside the cluster alone; elsewhere write another url"
        made.note("clusters", f"{inside}, and keep tls.serverName")
        if options.authentication is None:
            made.note("authentication", "is missing, so API servers would be told that everybody is anonymous")
    stubs = Fragment(STUBS)
    stubs.add("listeners", {"name": "stub", "bind": "127.0.0.1:0"})
    stub = {"name": options.cluster, "endpoints": [{"url": "https://stub.invalid"}], "credentials": {"token": "t"}}
    stubs.add("clusters", stub)
    if options.authentication is not None:
        stubs.add("authentication", {"name": options.authentication, "anonymous": {"enabled": True}})
    return [*kept, made, stubs]
