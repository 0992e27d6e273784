"""The tables of clusters, endpoints, servers and listeners, of refused requests and senders. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mcproxy.observe.problems import BY, NEARLY_FULL
from mcproxy.observe.senders import KINDS, REFUSED
from mcproxy.observe.tables.table import (
    CAUSE,
    CLUSTER,
    IN_FLIGHT,
    RATES,
    TOTALS,
    At,
    Column,
    Document,
    Entry,
    Form,
    State,
    Table,
    entries_of,
    list_of,
    states_of,
    sum_of,
    total_of,
)

# -- clusters ----------------------------------------------------------------------------------------------------------

_ENDPOINT_STATES: Mapping[str, State] = {"ready": "good", "out": "bad"}


def endpoint_counts(cluster: Entry) -> tuple[int, int, int]:
    """Return the numbers of ready, enabled and disabled endpoints of a cluster."""
    every = cluster.get("endpoints") or ()
    disabled = sum(each.get("state") == "disabled" for each in every)
    return sum(bool(each.get("ready")) for each in every), len(every) - disabled, disabled


def _ready(cluster: Entry) -> str:
    ready, enabled, disabled = endpoint_counts(cluster)
    if not enabled and not disabled:
        return "none"
    return f"{ready} of {enabled} ready" + (f", {disabled} disabled" if disabled else "")


def _readiness(cluster: Entry) -> State:
    ready, enabled, disabled = endpoint_counts(cluster)
    if not enabled:
        return "good" if disabled else "plain"
    return "good" if ready == enabled else "warn" if ready else "bad"


def _credential(cluster: Entry) -> str | None:
    credentials = cluster.get("credentials") or {}
    if not credentials.get("kind"):
        return None
    words = f"{credentials['kind']}, {credentials.get('identity')}"
    if credentials.get("ready") is False:
        return f"{words}: not there"
    return f"{words}: refused (401)" if credentials.get("refused") else words


def _credential_state(cluster: Entry) -> State:
    credentials = cluster.get("credentials") or {}
    return "bad" if credentials.get("ready") is False or credentials.get("refused") else ""


def _missing_rights(cluster: Entry) -> str | None:
    missing = cluster.get("rightsMissing")
    if not missing:
        return None if missing is None else "none"
    return f"{missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")


def _rights_state(cluster: Entry) -> State:
    return "warn" if cluster.get("rightsMissing") else ""


CLUSTERS = Table(
    "clusters",
    "Clusters",
    (
        Column("Cluster", "name", at=At.BRIEF),
        Column("Endpoints", _ready, at=At.BRIEF, state=_readiness),
        Column("In flight", sum_of("requests"), Form.COUNT, At.BRIEF),
        *RATES,
        *TOTALS,
        Column("Credential", _credential, at=At.PAGE, state=_credential_state),
        Column("Connections", sum_of("connections"), Form.COUNT, At.PAGE),
        Column("Missing rights", _missing_rights, at=At.PAGE, state=_rights_state),
    ),
    entries_of("clusters"),
)


def _endpoints(document: Document) -> list[Entry]:
    return [
        {**(cluster.get("credentials") or {}), **each, "cluster": cluster.get("name")}
        for cluster in document.get("clusters") or ()
        for each in cluster.get("endpoints") or ()
    ]


def _endpoint(entry: Entry) -> str | None:
    """Return the name of an endpoint, or the host of its URL."""
    name = entry.get("name")
    return None if name is None else str(name).removeprefix("https://")


ENDPOINTS = Table(
    "endpoints",
    "Endpoints",
    (
        CLUSTER,
        Column("Endpoint", _endpoint, at=At.ALL, detail="url"),
        Column("State", "state", at=At.ALL, state=states_of("state", _ENDPOINT_STATES)),
        Column("Since", "since", Form.SINCE, short="FOR"),
        Column("Requests/s", "requestsPerSecond", Form.RATE, At.TOP | At.PAGE, "REQ/S"),
        Column("Mean", "meanSeconds", Form.TIME, At.TOP, yields=True),
        Column("p50", "p50Seconds", Form.TIME, At.PAGE),
        Column("p99", "p99Seconds", Form.TIME, At.TOP | At.PAGE),
        IN_FLIGHT,
        Column("Requests", "requestsTotal", Form.COUNT, At.PAGE),
        Column("Connections", "connections", Form.COUNT, At.ALL, "CONNS", yields=True),
        Column("Idle", "idle", Form.COUNT, At.WIDE, yields=True),
        Column("Waiting", "waiting", Form.COUNT, At.WIDE, yields=True),
        Column("Check", "latencySeconds", Form.TIME, At.ALL, yields=True),
        CAUSE,
        Column("Credential", "kind", at=At.WIDE, yields=True),
        Column("Identity", "identity", at=At.WIDE, yields=True),
        Column("URL", "url", at=At.WIDE, yields=True),
    ),
    _endpoints,
    name=1,
)

# -- servers and listeners ---------------------------------------------------------------------------------------------


def _backend(server: Entry) -> str | None:
    """Return "cluster east", "clusters east, west", "aggregate fleet"."""
    kind, value = next(iter((server.get("backend") or {}).items()), ("", None))
    return f"{kind} {', '.join(value) if isinstance(value, list) else value}" if kind else None


def _server_names(server: Entry) -> str:
    return ", ".join([*(server.get("serverNames") or ()), *(["(default)"] if server.get("default") else ())])


SERVERS = Table(
    "servers",
    "Servers",
    (
        Column("Server", "name", at=At.ALL),
        Column("Backend", _backend),
        *RATES,
        IN_FLIGHT,
        *TOTALS,
        Column("Server names", _server_names, yields=True),
        Column("Listeners", list_of("listeners"), at=At.WIDE | At.PAGE, yields=True),
    ),
    entries_of("servers"),
)


def _connection_limit(listener: Entry) -> int | None:
    return (listener.get("limits") or {}).get("connections") or None


def _nearly_full(listener: Entry) -> State:
    limit = _connection_limit(listener)
    return "warn" if limit and total_of(listener.get("connections")) >= NEARLY_FULL * limit else ""


def _protection(listener: Entry) -> str | None:
    return ", ".join(f"{key} {number}" for key, number in (listener.get("protection") or {}).items()) or None


def _version(name: str) -> Callable[[Entry], int]:
    return lambda listener: (listener.get("connections") or {}).get(name) or 0


LISTENERS = Table(
    "listeners",
    "Listeners",
    (
        Column("Listener", "name"),
        Column("Address", lambda each: each.get("address") or each.get("bind")),
        Column("Serves", "serves"),
        Column(
            "State",
            lambda each: "accepting" if each.get("accepting") else "not accepting",
            state=lambda each: "good" if each.get("accepting") else "bad",
        ),
        Column("Connections", sum_of("connections"), Form.COUNT, state=_nearly_full),
        Column("Limit", _connection_limit, Form.COUNT),
        Column("In flight", sum_of("requests"), Form.COUNT),
        Column("HTTP/1.1", _version("HTTP/1.1"), Form.COUNT, At.WIDE, yields=True),
        Column("HTTP/2", _version("HTTP/2.0"), Form.COUNT, At.WIDE, yields=True),
        Column("Handshakes", "handshakes", Form.COUNT, At.WIDE | At.PAGE, yields=True),
        Column("Protection", _protection, at=At.WIDE | At.PAGE, yields=True),
    ),
    entries_of("listeners"),
)

# -- refused requests, and top senders ---------------------------------------------------------------------------------

_REFUSED = frozenset(map(str, REFUSED))


def _refusals(document: Document) -> list[Entry]:
    found = document.get("refusals") or {}
    every = found.get("requests")
    return [
        {**each, "share": (each.get("requests") or 0) / every if every else None} for each in found.get("kinds") or ()
    ]


def _refused_now(kind: Entry) -> State:
    return "warn" if kind.get("code") in _REFUSED and kind.get("requests") else ""


REFUSALS = Table(
    "refusals",
    "Refusals",
    (
        Column("Code", "code", at=At.ALL, state=_refused_now),
        Column("Refused by", lambda each: BY.get(str(each.get("by")), each.get("by")), at=At.ALL),
        Column("Requests/s", "requestsPerSecond", Form.RATE, At.TOP, "REQ/S"),
        Column("Last minute", "requests", Form.COUNT),
        Column("Share", "share", Form.SHARE),
        Column("Since start", "requestsTotal", Form.COUNT, At.ALL, yields=True),
    ),
    _refusals,
    ordered=True,
    in_brief=lambda each: each.get("requests"),
)
"""Refused requests by code and origin (4xx)."""

_SENDER_KINDS = dict(zip(KINDS, ("User", "Client", "Resource", "User agent"), strict=True))


def senders(kind: str, measure: str) -> Table:
    """Return the table of the top senders of a kind by a measure (`observe.senders`), the largest first."""

    def entries(document: Document) -> list[Entry]:
        found = document.get("senders") or {}
        every = (found.get("total") or {}).get(measure)
        some = [{"name": "", **each} for each in found.get(kind) or () if each.get(measure)]
        some.sort(key=lambda each: (-each[measure], each["name"]))
        return [{**each, "share": each[measure] / every if every else None} for each in some]

    columns = (
        Column(_SENDER_KINDS[kind], "name"),
        Column("Requests", "requests", Form.COUNT),
        Column("Share", "share", Form.SHARE),
        Column("Bytes", "bytes", Form.SIZE),
        Column("CPU (est.)", "cpuSeconds", Form.TIME),
        Column("Refused", "refused", Form.COUNT, state="warn"),
    )
    return Table(f"senders-{kind.lower()}", f"{_SENDER_KINDS[kind]}s", columns, entries, ordered=True)
