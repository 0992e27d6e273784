"""Responses of /healthz, /livez and /readyz as in a kube-apiserver: named checks, `?verbose`, `?exclude=`. Pure.

Source: k8s.io/apiserver `pkg/server/healthz/healthz.go`; recordings in `golden/probes`. One addition: a check can be
optional. If an optional check fails, it is shown as failed, but the probe passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs

PROBES = ("healthz", "livez", "readyz")

_MAX_PARAMETERS = 100
_MAX_SHOWN = 10  # maximum of unknown names of `exclude` in the response
_MAX_NAME = 100


class Check(NamedTuple):
    """One check."""

    name: str
    cause: str
    """The reason of the failure, without confidential parts; "" if the check passed."""
    needed: bool = True
    """Whether the check's failure makes the probe fail."""


class ProbeQuery(NamedTuple):
    """The parameters of a probe."""

    verbose: bool = False
    excluded: frozenset[str] = frozenset()


_PLAIN = ProbeQuery()


def parse_query(query: bytes) -> ProbeQuery:
    """Return the parameters of the query string. Raises ValueError if there are too many."""
    parameters = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
    return ProbeQuery("verbose" in parameters, frozenset(parameters.get("exclude", ())))


def answer_one(name: str, checks: Sequence[Check]) -> tuple[int, str] | None:
    """Return status code and text for a check by its name; None (404) if there is no such check."""
    one = next((one for one in checks if one.name == name), None)
    if one is None:
        return None
    return (500, f"internal server error: {one.cause}\n") if one.cause else (200, "ok")


def answer(
    probe: str, checks: Sequence[Check], query: ProbeQuery = _PLAIN, *, withhold: bool = True
) -> tuple[int, str]:
    """Return status code and text of a whole probe. `withhold`: omit reasons of failures, as a kube-apiserver does."""
    failed = any(one.cause and one.needed and one.name not in query.excluded for one in checks)
    if not failed and not query.verbose:
        return 200, "ok"
    lines = [_line(one, query.excluded, withhold) for one in checks]
    lines += _unknown(query.excluded.difference(one.name for one in checks))
    lines.append(f"{probe} check {'failed' if failed else 'passed'}")
    return (500 if failed else 200), "\n".join(lines) + "\n"


def _line(check: Check, excluded: Collection[str], withhold: bool) -> str:
    if check.name in excluded:
        return f"[+]{check.name} excluded: ok"
    if not check.cause:
        return f"[+]{check.name} ok"
    cause = "reason withheld" if withhold else check.cause
    return f"[-]{check.name} {'failed' if check.needed else 'not needed'}: {cause}"


def _unknown(names: Collection[str]) -> Iterator[str]:
    if names:
        quoted = ",".join(f'"{_one_line(name)}"' for name in sorted(names)[:_MAX_SHOWN])
        yield f"warn: some health checks cannot be excluded: no matches for {quoted}"


def _one_line(text: str) -> str:
    """Return a client's text as one short line of printable characters, which cannot forge a line of the answer."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:_MAX_NAME]
