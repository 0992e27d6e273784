"""The top senders: users, clients, resources and user agents of the last minutes, by several measures.

Requests with the same four values are added up first, for a second at most, so a request costs one look-up; the
sketches get the sums. Names are no labels of metrics and are shown only with the status document.

The processor time of one request is not measured: that would cost more than the request. The process's time is divided
among the requests that ended meanwhile, by their number and bytes; it is an estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest
from operator import attrgetter
from typing import Any

from mcproxy.observe.heavy_hitters import Amounts, Windows
from mcproxy.observe.record import AccessRecord

KINDS = ("users", "clients", "resources", "userAgents")
"""Keys of `figures`: the kinds of names that are ranked."""
MEASURES = ("requests", "bytes", "cpuSeconds", "refused")
"""Keys of an entry: the measures that names are ranked by. `refused` are the requests with a status of REFUSED."""
REFUSED = frozenset({401, 403, 429})
"""Status codes of refusals; a 404 or 409 is everyday work of controllers."""
NO_RESOURCE = "(no resource)"
"""The resource of a non-resource path."""
LONGEST = 100
"""The most characters of a name that are kept."""
SHOWN = 20
"""Names of a kind that are shown for each measure."""

_OF_PROCESS = 50  # names that a process reports for each measure: those of several processes are added up
_MOST_COMBINATIONS = 1024  # combinations that are added up before the sketches get them
_CHARACTERS = 1 << 18  # characters of these combinations: a user agent may be as long as a head
_BYTES = 65536  # bytes that cost about as much processor time as a request
_key: Callable[[AccessRecord], tuple[str, str, str, str, str]] = attrgetter(
    "client", "user", "impersonated", "resource", "user_agent"
)


class Senders:
    """The senders of the requests of one process."""

    def __init__(self, clock: Callable[[], float], processor: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds, `processor` the seconds of processor time that this process has used."""
        self._windows = Windows(len(KINDS), clock)
        self._processor = processor
        self._used = processor()
        self._combinations: dict[tuple[str, str, str, str, str], list[int]] = {}
        self._characters = 0  # of the keys of these combinations

    def count(self, records: Iterable[AccessRecord]) -> None:
        """Count requests that have ended."""
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
        """Pass the counts to the sketches; call it every few seconds at least."""
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
        """Return the top names of each kind and measure, for JSON, and the totals of the same time."""
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
    """Return figures, possibly sums over several processes, with the top SHOWN names of each measure."""
    return {**senders, **{kind: first_ones(senders.get(kind, ())) for kind in KINDS}}


def _printable(name: str) -> str:
    """Return a name that a peer chose, shortened, with unprintable characters replaced."""
    if len(name) > LONGEST:
        name = name[: LONGEST - 1] + "…"
    return name if name.isprintable() else "".join([char if char.isprintable() else "?" for char in name])
