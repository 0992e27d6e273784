"""The request pipeline of the simulated apiserver, as an aiohttp application.

audit -> faults -> error responses -> request info -> authentication -> impersonation -> authorization -> handler.
Plain functions instead of aiohttp's middlewares, which cost more for each request.
"""

from __future__ import annotations

import logging
import traceback
import uuid

from aiohttp import hdrs, web

from kubesim.apimachinery import status
from kubesim.auth import authentication, impersonation, rbac
from kubesim.cluster import SimulatedCluster
from kubesim.handlers import nonresource, openapi, rest
from kubesim.request import fault_injection, negotiation
from kubesim.request.call import Call, request_info
from kubesim.request.upgrade import KubeletAnswer

log = logging.getLogger(__name__)

FLOW_HEADERS = {
    "X-Kubernetes-Pf-Flowschema-Uid": "9cc23b06-dd8e-4a70-8268-ab0e8e57b4e1",
    "X-Kubernetes-Pf-Prioritylevel-Uid": "7690ab02-12b5-4db1-90b2-3270eb1c93db",
}
AUDIT_ID = "Audit-Id"
CALL = web.RequestKey("call", Call)


class Server:
    """One endpoint of a cluster."""

    def __init__(self, cluster: SimulatedCluster, endpoint: int) -> None:
        self.cluster = cluster
        self.endpoint = endpoint

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve a request, with its audit record and faults."""
        audit = self.cluster.audit
        record = audit.begin(request, self.endpoint, self.cluster.now().timestamp())
        code = 0
        try:
            response = await fault_injection.apply(
                self.cluster.faults, request, self.endpoint, self.guarded, lambda kind: setattr(record, "fault", kind)
            )
            code = response.status
            return response
        finally:
            await audit.finish(record, request, code)

    async def guarded(self, request: web.Request) -> web.StreamResponse:
        """Serve a request; StatusErrors become responses, any other exception a 500 and a log line."""
        try:
            return await self.serve(request)
        except status.StatusError as error:
            return negotiation.error_response(request, error)
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            log.error("panic serving %s %s\n%s", request.method, request.raw_path, traceback.format_exc())
            failure = status.internal_error(f"{type(error).__name__}: {error}")
            return negotiation.error_response(request, failure)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Authenticate, impersonate, authorize, then call the handler."""
        cluster = self.cluster
        info = request_info(request.method, request.path, request.query)
        starting = cluster.starting.includes(self.endpoint, cluster.now().timestamp())
        caller = authentication.authenticate(cluster, request)
        user = impersonation.impersonate(cluster, request, caller, info, starting=starting)
        rbac.authorize(cluster, user, info, starting=starting)
        call = Call(cluster, request, info, user, None, starting)
        request[CALL] = call
        return await route(call)


async def route(call: Call) -> web.StreamResponse:
    """Call the handler of the path."""
    path = call.info.path
    if path.startswith("//"):
        raise status.page_not_found()
    if call.info.is_resource:
        return await rest.handle(call)
    if path.startswith("/openapi/"):
        return openapi.handle(call)
    if path == "/.well-known/openid-configuration":
        return await rest.load("kubesim.auth.reviews:openid_configuration")(call)
    if path == "/openid/v1/jwks":
        return await rest.load("kubesim.auth.reviews:openid_keys")(call)
    found = nonresource.handle(call)
    if found is None:
        raise status.page_not_found()
    return found


async def decorate(request: web.Request, response: web.StreamResponse) -> None:
    """Set the headers that every response has, just before it is sent."""
    headers = response.headers
    headers.popall(hdrs.SERVER, None)
    if isinstance(response, KubeletAnswer):
        return
    headers.setdefault(AUDIT_ID, request.headers.get(AUDIT_ID) or str(uuid.uuid4()))
    call: Call | None = request.get(CALL)
    if call is None:
        return
    for name, value in FLOW_HEADERS.items():
        headers[name] = value
    if hdrs.WARNING not in headers:
        for text in dict.fromkeys(call.warnings):
            headers.add(hdrs.WARNING, f'299 - "{_quoted(text)}"')


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def build(cluster: SimulatedCluster, *, endpoint: int = 0) -> web.Application:
    """Return the application of one endpoint of a cluster."""
    server = Server(cluster, endpoint)
    app = web.Application(client_max_size=negotiation.BODY_LIMIT)
    app.router.add_route("*", "/{path:.*}", server.handle)
    app.on_response_prepare.append(decorate)
    return app
