"""/healthz, /livez and /readyz of an aggregate: the proxy's own view of the clusters that it needs. Pure.

The forms are in `kube.healthz`. An aggregate lives as long as the proxy does; it is ready while it can serve what it is
configured to serve. An unavailable cluster that is not needed for that is shown as failed by `?verbose`, and the check
passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.aggregate.reflector.member import Member
from mcproxy.config.model.aggregates import Unavailable
from mcproxy.kube.healthz import Check

_CLUSTER = "cluster/"


def checks(probe: str, sources: Sequence[Member], members: Sequence[Member], unavailable: Unavailable) -> list[Check]:
    """Return the checks of a probe: "ping", and one for each cluster.

    With `Fail` every member is needed. With `Partial` one that can be reached, with `Stale` one whose objects are
    known. Liveness needs no cluster: a restart brings none back.
    """
    found = [Check("ping", "", needed=True)]
    usable = [
        source for source in members if _is_up(source) or (unavailable is Unavailable.STALE and _is_known(source))
    ]
    for source in sources:
        needed = source in members and (unavailable is Unavailable.FAIL or not usable)
        found.append(Check(_CLUSTER + source.name, _cause(source), needed=needed and probe != "livez"))
    return found


def _is_up(source: Member) -> bool:
    return _is_known(source) and source.unavailable_since is None


def _is_known(source: Member) -> bool:
    return source.discovery.known


def _cause(source: Member) -> str:
    if source.unavailable_since is not None:
        return "it cannot be reached"  # without the cause, which has addresses: probes are open to everybody
    return "" if _is_known(source) else "its discovery has not been read yet"
