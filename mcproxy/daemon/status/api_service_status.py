"""API services: the Available condition of each, and its servers."""

from __future__ import annotations

from mcproxy.apiservices.availability import Availability, Registration
from mcproxy.daemon.status import Figures
from mcproxy.daemon.status.times import rfc3339


def of_api_services(known: Availability) -> list[Figures]:
    """Return the figures of each, in the order of the configuration; `usedBy` are servers."""
    return [
        {
            "name": registration.name,
            "group": registration.group,
            "version": registration.version,
            "cluster": registration.cluster,
            "usedBy": [
                name
                for name, services in known.servers.items()
                if any(Registration.of(each) == registration for each in services)
            ],
            "available": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "since": rfc3339(condition.since),
        }
        for registration, condition in known.all()
    ]
