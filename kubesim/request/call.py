"""The argument of the simulated apiserver's handlers: a request with its user and resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web

from kubesim.apimachinery.resources import ResourceInfo
from kubesim.apimachinery.user import User
from kubesim.cluster import SimulatedCluster
from kubesim.request.request_info import RequestInfo


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
    """Whether the endpoint has not read the RBAC roles yet (`diagnostics.starting`)."""
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
