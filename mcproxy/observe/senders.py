"""The top senders: users, clients, resources and user agents of the last minutes, by several measures.

Requests with the same four values are summed for up to a second, so that a request costs one look-up. Then the sketches
get the sums. Names are not labels of metrics; only the status document shows them.

Measuring the processor time of each request would cost more than the request. As an estimate, the process's time is
divided among the requests that ended meanwhile, by their number and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest
from typing import Any

from mcproxy.observe.heavy_hitters import Amounts, Windows
from mcproxy.observe.record import AccessRecord

KINDS = ("users", "clients", "resources", "userAgents")
"""Keys of `figures`: the kinds of names that are ranked."""
MEASURES = ("requests", "bytes", "cpuSeconds", "refused")
"""Keys of an entry: the measures for ranking names. `refused` counts requests with a status in REFUSED."""
REFUSED = frozenset({401, 403, 429})
"""Status codes of refusals; 404 and 409 are normal for controllers."""
NO_RESOURCE = "(no resource)"
"""The resource name for non-resource paths."""
LONGEST = 100
"""Limit of the length of a name (characters)."""
SHOWN = 20
"""Number of shown names of a kind for each measure."""

_OF_PROCESS = 50  # reported names of a process per measure; the reports of several processes are added up
_MOST_COMBINATIONS = 1024  # limit of combinations that are summed before the sketches get them
_CHARACTERS = 1 << 18  # limit of characters in these combinations, because a user agent can be long
_BYTES = 65536  # number of bytes that cost about the processor time of a request


def _key(record: AccessRecord) -> tuple[str, str, str, str, str]:
    return record.client, record.user, record.impersonated, record.resource, record.user_agent


class Senders:
    """The senders of the requests of one process."""

    def __init__(self, clock: Callable[[], float], processor: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds, `processor` the processor time of this process (seconds)."""
        self._windows = Windows(len(KINDS), clock)
        self._processor = processor
        self._used = processor()
        self._combinations: dict[tuple[str, str, str, str, str], list[int]] = {}
        self._characters = 0  # in the keys of these combinations

    def count(self, records: Iterable[AccessRecord]) -> None:
        """Count ended requests."""
        combinations, refused = self._combinations, REFUSED
        for record in records:
            key = _key(record)
            found = combinations.get(key)
            if found is None:
                found = combinations[key] = [0, 0, 0]
                self._characters += sum(map(len, key))
            found[0] += 1
            found[1] += record.bytes_in + record.bytes_out
            if record.status in refused:
                found[2] += 1
        if len(combinations) >= _MOST_COMBINATIONS or self._characters >= _CHARACTERS:
            self.flush()

    def flush(self) -> None:
        """Pass the counts to the sketches. Call it at least every few seconds."""
        used = self._processor()
        spent, self._used = max(0.0, used - self._used), used
        combinations, self._combinations, self._characters = self._combinations, {}, 0
        if not combinations:
            return
        share = spent / sum([number + size / _BYTES for number, size, _ in combinations.values()])
        sketches = self._windows.current()
        users, clients, resources, agents = [sketch.add for sketch in sketches]
        requests = sent = kept_out = 0
        for (client, user, impersonated, resource, agent), (number, size, refused) in combinations.items():
            seconds = (number + size / _BYTES) * share
            requests += number
            sent += size
            kept_out += refused
            if name := impersonated or user:
                users(_printable(name), number, size, seconds, refused)
            if client:
                clients(client, number, size, seconds, refused)
            resources(_printable(resource or NO_RESOURCE), number, size, seconds, refused)
            if agent:
                agents(_printable(agent), number, size, seconds, refused)
        for sketch in sketches:
            sketch.totals = [
                before + amount for before, amount in zip(sketch.totals, (requests, sent, spent, kept_out), strict=True)
            ]

    def figures(self) -> dict[str, Any]:
        """Return the top names of each kind and measure, and the totals of the same time, for JSON."""
        self.flush()
        kinds: dict[str, Any] = {}
        totals: Amounts = []
        for index, kind in enumerate(KINDS):
            found, totals = self._windows.all_of(index)
            entries = [{"name": name, **_entry(amounts)} for name, amounts in found.items()]
            kinds[kind] = first_ones(entries, _OF_PROCESS)
        return {"windowSeconds": round(self._windows.span(), 1), "total": _entry(totals), **kinds}


def _entry(amounts: Amounts) -> dict[str, float]:
    requests, size, seconds, refused = amounts
    return {"requests": int(requests), "bytes": int(size), "cpuSeconds": round(seconds, 4), "refused": int(refused)}


def first_ones(entries: Iterable[dict[str, Any]], most: int = SHOWN) -> list[dict[str, Any]]:
    """Return the entries among the top `most` of any measure, by requests, then by name."""
    every = sorted(entries, key=lambda each: (-each["requests"], each["name"]))
    kept: dict[str, dict[str, Any]] = {}
    for measure in MEASURES:
        some = nlargest(most, [each for each in every if each[measure]], key=lambda each: each[measure])
        kept |= {each["name"]: each for each in some}
    return [each for each in every if each["name"] in kept]


def shortened(senders: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures (which can be sums over processes) with only the top SHOWN names of each measure."""
    return {**senders, **{kind: first_ones(senders.get(kind, ())) for kind in KINDS}}


def _printable(name: str) -> str:
    """Return a peer's name, shortened, with unprintable characters replaced."""
    if len(name) > LONGEST:
        name = name[: LONGEST - 1] + "…"
    return name if name.isprintable() else "".join([char if char.isprintable() else "?" for char in name])
