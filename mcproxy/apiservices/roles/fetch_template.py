"""Fetches the template of a group-version from its API server: what it publishes, else made of its discovery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from mcproxy.apiservices.roles import delegation, discovered, published
from mcproxy.apiservices.roles.role_rules import RefusedError
from mcproxy.apiservices.roles.template import Part, Template, quoted
from mcproxy.identity.strict_json import json_object
from mcproxy.net.connect_errors import ConnectError
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint

MAX_DISCOVERY = 1024 * 1024
"""Bytes of a discovery document."""
TIMEOUT = 5.0
"""Seconds for one request to one endpoint."""
_MAX_ENDPOINTS = 3
YAML_OR_JSON = "application/json, application/yaml;q=0.9"


class Answer(NamedTuple):
    """What an API server has answered."""

    status: int
    body: bytes


Ask = Callable[[str, str, int], Awaitable[Answer]]
"""``(path, accept, most)``: GET by the proxy itself, with at most so many bytes. Raises AskError."""


class AskError(Exception):
    """An API server cannot be asked, or has not answered what it should; str() says why."""


async def template(
    ask: Ask, group: str, version: str, *, user: str | None = None, because: str = "", urls: Sequence[str] = ()
) -> Template:
    """Return the template. `user` is that of the API server in the cluster, else guessed by its `urls`.

    Raises AskError; RefusedError where nothing of it can be taken.
    """
    if user is None:
        user = next((found for url in urls if (found := delegation.account_of(url)) is not None), None)
        because = "that of its Service by custom: correct it if it runs as another"
    name = f"{version}.{group}"
    remarks: list[str] = []
    for path in (f"/bootstrap/{group}", "/bootstrap/rbac"):
        status, body = await ask(path, YAML_OR_JSON, published.MAX_BYTES)
        objects = published.read(body) if status == 200 else None
        if status == 200 and objects is None:
            remarks.append(f"What it answers at {path} is no list of Kubernetes objects.")
        elif status in (401, 403):
            remarks.append(f"It does not let mcproxy read {path} ({status}).")
        if objects:
            parts, refused = published.roles(objects, group)
            more = () if published.has_delegation(parts) else delegation.bindings(name, user, because)
            title = f"API service {name}: what its API server publishes at {path}."
            return Template(title, (*parts, *more), refused)
    parts, refused = discovered.roles(await _discovery(ask, group, version), group, version)
    title = f"API service {name}: made of its discovery, since its API server publishes no roles."
    about = (Part(tuple(remarks)),) if remarks else ()
    return Template(title, (*about, *parts, *delegation.bindings(name, user, because)), refused)


async def _discovery(ask: Ask, group: str, version: str) -> dict[str, object]:
    path = f"/apis/{group}/{version}"
    status, body = await ask(path, "application/json", MAX_DISCOVERY)
    if status != 200:
        raise AskError(f"its API server answered {status} on {quoted(path)}")
    try:
        return json_object(body)
    except ValueError as error:
        raise AskError(f"what its API server answered on {quoted(path)} {error}") from None


__all__ = ["Answer", "Ask", "AskError", "RefusedError", "template"]


def asker(cluster: Cluster) -> Ask:
    """Return what asks the API server behind `cluster`, with the proxy's own requests to any endpoint."""

    async def ask(path: str, accept: str, most: int) -> Answer:
        tried: list[Endpoint] = []
        cause = ""
        while len(tried) < _MAX_ENDPOINTS and (endpoint := cluster.pick(tried)) is not None:
            tried.append(endpoint)
            try:
                response = await cluster.control.request(
                    endpoint, "GET", path, headers=(("accept", accept),), timeout=TIMEOUT, max_body=most
                )
            except CredentialError as error:
                raise AskError(
                    f"the proxy has no usable credential for cluster {cluster.name}: {error.cause}"
                ) from None
            except (ConnectError, ControlError) as error:
                cause = error.cause
                continue
            return Answer(response.status, response.body)
        raise AskError(cause or cluster.unavailable_message())

    return ask
