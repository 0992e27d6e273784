"""Makes the responses of `/bootstrap/GROUP` on an Admin listener: the roles that API servers of a group need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mcproxy.config import model
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.proxy.admin.cached_call import CachedCall

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.daemon.runtime import Runtime

_LASTS = 5.0
"""Seconds for which a response is reused, because each response costs requests to API servers."""
_Owners = tuple[tuple[str, str, str], ...]


class RoleTemplates:
    """Makes the templates, with the clusters in force."""

    def __init__(self, runtime: Callable[[], Runtime | None], clock: IReactorTime) -> None:
        self._runtime = runtime
        self._clock = clock
        self._recent: dict[str, tuple[_Owners, CachedCall[str]]] = {}

    async def text(self, group: str) -> str | None:
        """Return the templates of all registered versions of `group` as YAML; None if the group is not registered.

        For "", return the paths of all groups with templates. Raises StatusError (503) if an API server cannot be
        queried."""
        runtime = self._runtime()
        if runtime is None:
            raise retry_after(503, "the daemon is starting", 1)
        registered: dict[str, dict[tuple[str, str, str], None]] = {}
        for service in _services(runtime.config):
            owner = (service.version, service.cluster, service.group)
            registered.setdefault(service.group, {})[owner] = None
        self._recent = {name: known for name, known in self._recent.items() if name in registered}
        if not group:
            return "".join(f"/bootstrap/{name}\n" for name in sorted(registered))
        if group not in registered:
            return None
        owners = tuple(registered[group])
        known = self._recent.get(group)
        if known is None or known[0] != owners:
            known = owners, CachedCall(lambda: self._made(owners), self._clock, _LASTS)
            self._recent[group] = known
        return await known[1].get()

    async def _made(self, owners: _Owners) -> str:
        from mcproxy.apiservices.role_template import AskError, RefusedError, asker, template

        runtime = self._runtime()
        texts = []
        for version, name, group in owners:
            cluster = None if runtime is None else runtime.clusters.get(name)
            if cluster is None:
                raise retry_after(503, "the configuration is being reloaded", 1)
            urls = [endpoint.url for endpoint in cluster.config.endpoints]
            try:
                found = await template(asker(cluster), group, version, urls=urls)
            except AskError as error:
                raise retry_after(503, f"API service {version}.{group}: {error}", 5) from None
            except RefusedError as error:
                raise StatusError(502, f"API service {version}.{group}: {error}") from None
            texts.append(found.text)
        return "".join(texts)


def _services(config: model.Config) -> Iterable[model.APIService]:
    return (service for server in config.servers for service in server.api_services)
