"""The entry point of this package: answers the discovery paths of an aggregate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.discovery import group_discovery, openapi_handler, probes
from mcproxy.aggregate.discovery.merge_cache import NOTHING, AggregateMerges, Shown
from mcproxy.aggregate.discovery.openapi import InThread, OpenAPI
from mcproxy.aggregate.discovery.responses import send, send_page_not_found, send_text
from mcproxy.aggregate.discovery.service_sources import Services
from mcproxy.aggregate.discovery.service_visibility import ServiceVisibility
from mcproxy.aggregate.discovery.version import Versions
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.view.scope import Scope
from mcproxy.config.model.aggregates import Aggregate, Unavailable
from mcproxy.kube import healthz
from mcproxy.kube.status import method_not_allowed

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.kube.resource import APIResource


_OF_SERVICES = frozenset({"", "apis", "openapi"})


class AggregateDiscovery:
    """Discovery of one aggregate. Integration owns it, updates it after reloads, and stops it."""

    def __init__(self, clock: IReactorTime, in_thread: InThread) -> None:
        """Big documents are made by `in_thread`."""
        self._in_thread = in_thread
        self._visibility: ServiceVisibility | None = None
        self._merges = AggregateMerges(clock)
        self._openapi = OpenAPI(clock, in_thread)
        self._versions = Versions(clock)
        self._unavailable = Unavailable.STALE

    def update(
        self,
        config: Aggregate,
        sources: Mapping[str, Member],
        scope: Scope,
        services: Services | None = None,
        visibility: ServiceVisibility | None = None,
    ) -> None:
        """Follow the configuration; `sources` has the members and the primary by name (`reflector.Member`).

        `services` are the API services of the server that this is for, `visibility` says who may discover them.
        """
        self._unavailable = config.unavailable
        self._visibility = visibility
        self._merges.update(config, sources, scope, services)

    def stop(self) -> None:
        """The aggregate is gone."""
        self._merges.stop()

    async def serve(self, request: AggregatedRequest, shown: Shown = NOTHING) -> bool:
        """Answer the request if its path is one of this package, else return False.

        `shown` are the clusters that the user may discover at this path; probes and /version are for everybody.
        These are /api, /apis, groups and group-versions, /openapi, /version, the probes and `/`. Raises StatusError
        404, 405, 406, and 503 if no cluster has been reached since the start, or none gives the document.
        """
        segments = request.info.path.removeprefix("/").removesuffix("/").split("/")
        services = self._merges.services
        if services is not None and self._visibility is not None and segments[0] in _OF_SERVICES:
            may, undecided = await self._visibility.of(request, services.registered)
            shown = replace(shown, services=may, undecided_services=undecided)
        if group_discovery.is_discovery(segments):
            await self._merges.ready()
            merge = self._merges.of(shown)
            if services is not None:
                await merge.prepare(self._in_thread)
            group_discovery.serve(request, merge, segments, shown)
        elif segments[0] == "openapi" and len(segments) > 1:
            await openapi_handler.serve(request, self._openapi, self._merges, segments, shown)
        elif segments == ["version"]:
            if request.head.method != b"GET":
                raise method_not_allowed()
            send(request, await self._versions.current(self._merges.primary, self._merges.members))
        elif segments[0] in healthz.PROBES:
            self._serve_probe(request, segments[0], "/".join(segments[1:]))
        elif segments == [""]:
            await self._serve_paths(request, shown)
        else:
            return False
        return True

    async def known_field(
        self, request: AggregatedRequest, resource: APIResource
    ) -> Callable[[str], bool | None] | None:
        """Return which dotted paths of fields the published schema has; None where it is not known.

        For a request with a field selector (`selection.KnownField`); of any other it returns None at once.
        """
        if b"fieldSelector" not in request.target:
            return None
        schema = await self._openapi.schema(self._merges, Shown(request.members), resource)
        return None if schema is None else schema.has

    def _serve_probe(self, request: AggregatedRequest, probe: str, check: str) -> None:
        """Answer a probe, or one check of it."""
        try:
            query = healthz.parse_query(request.target.partition(b"?")[2])
        except ValueError:
            query = healthz.Query()
        found = probes.checks(probe, self._merges.sources, self._merges.members, self._unavailable)
        answer = healthz.answer_one(check, found) if check else healthz.answer(probe, found, query, withhold=False)
        if answer is None:
            send_page_not_found(request)
        else:
            send_text(request, answer[1], status=answer[0])

    async def _serve_paths(self, request: AggregatedRequest, shown: Shown) -> None:
        """Answer `/` with the paths that are served."""
        await self._merges.ready()
        merge = self._merges.of(shown)
        paths = {*merge.documents.paths(), "/openapi/v2", "/openapi/v3", "/version"}
        for probe in healthz.PROBES:
            found = probes.checks(probe, self._merges.sources, self._merges.members, self._unavailable)
            paths |= {f"/{probe}", *(f"/{probe}/{check.name}" for check in found)}
        lines = ",\n".join(f'    "{path}"' for path in sorted(paths))
        send(request, f'{{\n  "paths": [\n{lines}\n  ]\n}}'.encode())
