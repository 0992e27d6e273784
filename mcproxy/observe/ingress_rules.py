"""Reads the rules of ingresses from a status document, with the endpoints of their services, for display. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Status = Mapping[str, Any]


class ShownCluster(NamedTuple):
    """The endpoints of a rule's service in one cluster."""

    name: str
    weight: int
    ready: int | None
    """The number of ready endpoints; None if no process reports it."""
    out: int
    """The number of ready endpoints that at least one process does not use."""
    known: bool
    stale: bool
    cause: str

    @property
    def words(self) -> str:
        """The text for the status page and `mcproxy status`: "east 3", "west 2 (1 out, stale)"."""
        notes = [
            *([f"{self.out} out"] if self.out else ()),
            *(["stale"] if self.stale else ()),
            *(["unknown"] if not self.known else ()),
            *(["weight 0"] if not self.weight else ()),
        ]
        return f"{self.name} {'?' if self.ready is None else self.ready}" + (f" ({', '.join(notes)})" if notes else "")


class ShownRule(NamedTuple):
    """A rule, and the clusters of its service."""

    ingress: str
    rule: str
    service: str
    """The service's name with its port."""
    clusters: tuple[ShownCluster, ...]
    requests: int
    errors: int

    @property
    def empty(self) -> bool:
        """Whether new requests get 503, because no cluster that gets requests has a ready endpoint."""
        return bool(self.clusters) and not any(
            each.ready is None or each.ready for each in self.clusters if each.weight
        )

    @property
    def impaired(self) -> bool:
        """Whether the rule needs attention, although requests are served."""
        return any(each.out or each.stale or not each.known for each in self.clusters if each.weight)

    @property
    def words(self) -> str:
        return ", ".join(each.words for each in self.clusters)

    @property
    def cause(self) -> str:
        """The reason why there are no endpoints; "" if unknown."""
        return next((each.cause for each in self.clusters if each.cause), "")


def service_of(entry: Status) -> str:
    """Return the reported name of a service with its port."""
    return ":".join(str(each) for each in (entry.get("service"), entry.get("port")) if each is not None)


def rules_of(status: Status) -> Iterator[ShownRule]:
    """Yield each rule of each ingress, in the order of the configuration."""
    services = {
        (each.get("service"), each.get("port"), each.get("cluster"), each.get("via")): each
        for each in status.get("ingressServices") or ()
    }
    for ingress in status.get("ingresses") or ():
        for rule in ingress.get("rules") or ():
            clusters = []
            for name, weight in (rule.get("weights") or {}).items():
                found = services.get((rule.get("service"), rule.get("port"), name, rule.get("via")), {})
                clusters.append(
                    ShownCluster(
                        name,
                        1 if weight is None else weight,
                        found.get("ready"),
                        len(found.get("outEndpoints") or ()),
                        found.get("known") is not False,
                        bool(found.get("stale")),
                        found.get("cause") or "",
                    )
                )
            yield ShownRule(
                ingress.get("name") or "",
                rule.get("rule") or "",
                service_of(rule),
                tuple(clusters),
                rule.get("requestsTotal") or 0,
                rule.get("errorsTotal") or 0,
            )
