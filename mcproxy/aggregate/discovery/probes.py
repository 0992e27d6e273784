"""/healthz, /livez and /readyz of an aggregate: the proxy's own view of what it needs, cluster by cluster. Pure.

The forms are those of a kube-apiserver (k8s.io/apiserver `pkg/server/healthz`). An aggregate lives as long as the proxy
does; it is ready while it can serve what it is configured to serve. A cluster that is away and not needed for that is
shown as failed by `?verbose`, and the check passes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from mcproxy.aggregate.discovery.source import Source
from mcproxy.config.model.aggregates import Unavailable

PROBES = ("healthz", "livez", "readyz")
_CLUSTER = "cluster/"


class Check(NamedTuple):
    """One check; `cause` is "" if it is passed, `needed` whether the whole fails with it."""

    name: str
    cause: str
    needed: bool


def checks(probe: str, sources: Sequence[Source], members: Sequence[Source], unavailable: Unavailable) -> list[Check]:
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


def _is_up(source: Source) -> bool:
    return _is_known(source) and source.unavailable_since is None


def _is_known(source: Source) -> bool:
    return source.discovery.known


def _cause(source: Source) -> str:
    if source.unavailable_since is not None:
        return "it cannot be reached"  # not why: probes are open to everybody, and a cause has addresses
    return "" if _is_known(source) else "its discovery has not been read yet"


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def answer(
    probe: str, found: Sequence[Check], *, check: str = "", excluded: Collection[str] = (), verbose: bool = False
) -> tuple[int, str] | None:
    """Return status and text; None (404) for a `check` that does not exist."""
    if check:
        one = next((one for one in found if one.name == check), None)
        if one is None:
            return None
        return (500, f"internal server error: {one.cause}\n") if one.cause else (200, "ok")
    names = {one.name for one in found}
    failed = any(one.cause and one.needed and one.name not in excluded for one in found)
    if not failed and not verbose:
        return 200, "ok"
    lines = [_line(one, excluded) for one in found]
    unknown = sorted(set(excluded) - names)
    if unknown:
        quoted = ",".join(f'"{_one_line(name)[:100]}"' for name in unknown[:10])
        lines.append(f"warn: some health checks cannot be excluded: no matches for {quoted}")
    lines.append(f"{probe} check {'failed' if failed else 'passed'}")
    return (500 if failed else 200), "\n".join(lines) + "\n"


def _line(check: Check, excluded: Collection[str]) -> str:
    if check.name in excluded:
        return f"[+]{check.name} excluded: ok"
    if not check.cause:
        return f"[+]{check.name} ok"
    return f"[-]{check.name} failed: {check.cause}" if check.needed else f"[-]{check.name} not needed: {check.cause}"
