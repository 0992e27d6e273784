"""The checks of hubs by `check --connect`: would each accept the tunnel of a listener that dials?

The request is that of the edge without its instance, so a hub answers 400 when connection, credential and user are
good. It opens no tunnel, and does not take the place of the running daemon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcproxy.config import model

if TYPE_CHECKING:
    from mcproxy.upstream.upstream_context import UpstreamContext

_MAX_BODY = 64 * 1024


@dataclass(frozen=True, slots=True)
class HubAnswer:
    """The answer of a hub; `todo` is "" if it would accept the tunnel."""

    status: int
    what: str
    todo: str = ""


async def ask(url: str, dial: model.Dial, context: UpstreamContext, within: float) -> HubAnswer:
    """Ask a hub, within so many seconds. Raises ConnectError, ControlError and CredentialError."""
    from mcproxy.kube.status import read_status
    from mcproxy.tunnels import protocol
    from mcproxy.tunnels.hub_link import hub_server

    server = hub_server(url, dial, context)
    try:
        response = await server.upgrade(protocol.PATH + dial.tunnel, protocol.UPGRADE, timeout=within)
        if response.side is not None:
            response.close()
            return HubAnswer(101, "it switches protocols at once", "see what answers there: this is no hub of mcproxy")
        status, body = response.status, await response.read_all(_MAX_BODY)
    finally:
        server.close()
    found = read_status(body)
    return judged(status, protocol.printable(found.message) if found is not None else "", dial)


def judged(status: int, message: str, dial: model.Dial) -> HubAnswer:
    """Return what an answer means; `message` is that of its Status, "" if it has none. Pure."""
    from mcproxy.tunnels import protocol

    tunnel, what = dial.tunnel, f"answers {status}" + (f": {message}" if message else "")
    if status == 400 and message == protocol.NO_INSTANCE:
        return HubAnswer(status, f"would accept tunnel {tunnel}")
    if status == 400 and protocol.UPGRADE.decode() in message:
        todo = "let what is between here and the hub pass the field Upgrade, or only TCP"
        return HubAnswer(status, f"does not get the field Upgrade ({what})", todo)
    if status == 401:
        key = "tls.certFile" if dial.credentials is None else "credentials.tokenFile"
        todo = f"put a credential into `dial.{key}` that the authentication of the hub's server of tunnels accepts"
    elif status == 403:
        todo = f"add this user to `users` of tunnel {tunnel} at the hub, and the tunnel to the `backend` of its server"
    elif status in (429, 503):
        todo = "see the hub's log; the daemon tries again by itself"
    else:
        todo = "let `dial.serverName` and the URL lead to the hub's server with the backend `tunnels`"
    return HubAnswer(status, what, todo)
