"""Computes the desired state of all clusters purely from their present state and the configuration.

The owner of the caches computes a changed service (`desired_of`) and puts the result into `DesiredState`. The order in
which services are computed does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from mcproxy.services.api_types import IMPORTS, MCS_DERIVED_SERVICE, MCS_GROUP, SERVICE_NAME, SERVICES
from mcproxy.services.exports import configured_exports
from mcproxy.services.exports.clusterset import add_discovered
from mcproxy.services.exports.configured_exports import add_exports
from mcproxy.services.exports.desired_builder import DesiredBuilder
from mcproxy.services.exports.export_types import ClusterView, Desired, ExportProblem, Exports, ProblemKind
from mcproxy.services.exports.object_keys import CLUSTERSET, ObjectKey, ServiceKey, service_name, service_object


def derived_names(key: ServiceKey) -> tuple[tuple[str, str, str], ...]:
    """Return group, resource and name of the Services and the ServiceImport in `ClusterView.derived`."""
    return (
        ("", SERVICES, service_name(configured_exports.PREFIX, *key)),
        ("", SERVICES, service_name(CLUSTERSET, *key)),
        (MCS_GROUP, IMPORTS, key.service),
    )


def desired_of(key: ServiceKey, views: Mapping[str, ClusterView], exports: Exports) -> Desired:
    """Return the objects that one service requires."""
    work = DesiredBuilder(key, views, exports)
    add_exports(work)
    add_discovered(work)
    return work.done()


class DesiredState:
    """The desired state of all services, updated one service at a time.

    Two services can claim the same object in two cases: briefly, after an EndpointSlice has moved between them and only
    one has been recomputed; or when somebody has chosen a service name that gives the same 50-bit hash in the derived
    name. The service that has the object in the cluster already owns it, so that nobody can take it away. If no service
    has it, the first service by name owns it, whatever the order of events. The other service gets no object.
    """

    __slots__ = ("_claims", "_holder", "_parts")

    def __init__(self, holder: Callable[[ObjectKey], ServiceKey | None] = lambda place: None) -> None:
        """`holder` returns the service from which a managed object of a cluster is derived."""
        self._holder = holder
        self._parts: dict[ServiceKey, Desired] = {}
        self._claims: dict[ObjectKey, tuple[ServiceKey, ...]] = {}

    def update(self, key: ServiceKey, part: Desired | None) -> frozenset[ObjectKey]:
        """Replace the claims of one service (None: no claims); return the objects whose claims have changed."""
        before = self._parts.pop(key, _NOTHING)
        if part is not None and part != _NOTHING:
            self._parts[key] = part
        after = part or _NOTHING
        for gone in _claimed(before) - _claimed(after):
            claims = tuple(each for each in self._claims[gone] if each != key)
            if claims:
                self._claims[gone] = claims
            else:
                del self._claims[gone]
        for new in _claimed(after) - _claimed(before):
            self._claims[new] = tuple(sorted((*self._claims.get(new, ()), key)))
        changed = {
            each
            for each in _claimed(before) | _claimed(after)
            if before.objects.get(each) != after.objects.get(each) or (each in before.kept) != (each in after.kept)
        }
        statuses = before.statuses.keys() | after.statuses.keys()
        return frozenset(changed | {each for each in statuses if before.statuses.get(each) != after.statuses.get(each)})

    def owner(self, place: ObjectKey) -> ServiceKey | None:
        """Return the service that owns an object; None if no service claims it."""
        claims = self._claims.get(place)
        return None if claims is None else self._winner(place, claims)

    def is_for(self, place: ObjectKey, key: ServiceKey) -> bool:
        """Whether a service owns an object, and the derived Service that the object names is not another service's."""
        if self.owner(place) != key:
            return False
        metadata = self.part(key).objects[place]["metadata"] if place in self.part(key).objects else {}
        named = metadata.get("labels", {}).get(SERVICE_NAME) or metadata.get("annotations", {}).get(MCS_DERIVED_SERVICE)
        if not named:
            return True
        return self.owner(service_object(place.cluster, place.namespace, named)) in (None, key)

    def _winner(self, place: ObjectKey, claims: tuple[ServiceKey, ...]) -> ServiceKey:
        if len(claims) > 1:
            holder = self._holder(place)
            if holder in claims:
                return holder
        return claims[0]

    def part(self, key: ServiceKey) -> Desired:
        """Return the claims of one service, regardless of other services."""
        return self._parts.get(key, _NOTHING)

    def __iter__(self) -> Iterator[ServiceKey]:
        return iter(self._parts)

    def problems(self) -> tuple[ExportProblem, ...]:
        """Return the problems of all services, sorted."""
        found = [problem for key in sorted(self._parts) for problem in self._parts[key].problems]
        taken = [
            ExportProblem(
                loser,
                ProblemKind.NAME_TAKEN,
                place.cluster,
                "",
                f"{place.resource} {place.name} belongs to service {winner.service}, so this service does not get it",
            )
            # Nearly all of some ten thousand objects have one claim, so only multiple claims are sorted.
            for place, claims in sorted(each for each in self._claims.items() if len(each[1]) > 1)
            for winner in (self._winner(place, claims),)
            for loser in claims
            if loser != winner
        ]
        return (*found, *taken)


_NOTHING = Desired()


def _claimed(part: Desired) -> set[ObjectKey]:
    return {*part.objects, *part.kept}
