"""The argument of the simulated apiserver's handlers: a request with its user and resource, and its request info.

The request info is resolved from method and path as Kubernetes' RequestInfoFactory does; authorization, audit and the
handlers use it, and none of them parses the path again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web

from kubesim.apimachinery.resources import ResourceInfo
from kubesim.apimachinery.user import User
from kubesim.cluster import SimulatedCluster
from mcproxy.kube.query_parameters import boolean

VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


@dataclass(frozen=True)
class RequestInfo:
    """The attributes of a request. For a non-resource request only `verb` (lower-case method) and `path` are set."""

    is_resource: bool
    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    parts: tuple[str, ...] = ()
    """The segments after namespace: resource, name, subresource and what follows (the path of a proxy)."""
    deprecated_watch: bool = False
    """The path was a deprecated /watch/ path."""

    @property
    def path_name(self) -> str:
        """The name in the path, or "" (`name` may also come from a fieldSelector)."""
        return self.parts[1] if len(self.parts) > 1 else ""

    @property
    def scope(self) -> str:
        """The namespace of a collection request; "" for all."""
        return "" if self.resource == "namespaces" else self.namespace


def request_info(method: str, path: str, query: Mapping[str, str]) -> RequestInfo:
    """Parse a decoded path. An unknown method gives an empty verb, as in Kubernetes."""
    other = RequestInfo(False, method.lower(), path)
    segments = path.strip("/").split("/") if path.strip("/") else []
    if path.startswith("//") or len(segments) < 3 or segments[0] not in ("api", "apis"):
        return other
    group = ""
    rest = segments[1:]
    if segments[0] == "apis":
        if len(segments) < 4:
            return other
        group, rest = segments[1], segments[2:]
    version, rest = rest[0], rest[1:]
    verb = VERBS.get(method, "")
    deprecated_watch = rest[0] == "watch" and len(rest) > 1
    if deprecated_watch:
        rest = rest[1:]
        verb = "watch"
    return _resource(verb, path, group, version, rest, query, deprecated_watch=deprecated_watch)


def _resource(
    verb: str,
    path: str,
    group: str,
    version: str,
    parts: list[str],
    query: Mapping[str, str],
    *,
    deprecated_watch: bool,
) -> RequestInfo:
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 1:
        namespace = parts[1]
        if len(parts) > 2 and parts[2] not in NAMESPACE_SUBRESOURCES:
            parts = parts[2:]
    resource = parts[0]
    name = parts[1] if len(parts) > 1 else ""
    subresource = parts[2] if len(parts) > 2 else ""
    if not name and verb in ("get", "delete"):
        verb = _collection_verb(verb, query)
        name = _selected_name(query)
    return RequestInfo(
        True, verb, path, group, version, resource, subresource, namespace, name, tuple(parts), deprecated_watch
    )


def _collection_verb(verb: str, query: Mapping[str, str]) -> str:
    if verb == "delete":
        return "deletecollection"
    return "watch" if boolean(query.get("watch")) else "list"


def _selected_name(query: Mapping[str, str]) -> str:
    """Return the name of a fieldSelector metadata.name=x: such a list is authorized for that name."""
    selector = query.get("fieldSelector", "")
    if selector.startswith("metadata.name=") and "," not in selector:
        return selector.removeprefix("metadata.name=").removeprefix("=")
    return ""


@dataclass
class Call:
    """The argument of every handler: `async def handle(call: Call) -> web.StreamResponse`.

    Handlers raise `status.APIError` to refuse, read a body with `negotiation.read_object(call)` and answer with
    `negotiation.respond(call, obj, status=200)`. `resource` is None for a non-resource path.
    """

    cluster: SimulatedCluster
    request: web.Request
    info: RequestInfo
    user: User
    resource: ResourceInfo | None
    starting: bool = False
    """Whether the endpoint has not read the RBAC roles yet (`cluster.StartingEndpoints`)."""
    warnings: list[str] = field(default_factory=list)
    """Texts for Warning headers (code 299 and the quotes are added)."""

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query

    @property
    def target(self) -> ResourceInfo:
        """The resource, for handlers of resource requests."""
        assert self.resource is not None
        return self.resource
