"""The tables of API services, aggregates, ingresses and exported services. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcproxy.observe.ingress_rules import rules_of, service_of
from mcproxy.observe.tables.table import (
    CAUSE,
    CLUSTER,
    ERRORS,
    IN_FLIGHT,
    REQUESTS,
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
)

# -- API services and aggregates ---------------------------------------------------------------------------------------


_AVAILABLE: Mapping[str, State] = {"True": "good", "False": "bad"}


def _available(service: Entry) -> State:
    return _AVAILABLE.get(str(service.get("available")), "warn")


API_SERVICES = Table(
    "api-services",
    "API services",
    (
        Column("API service", "name"),
        CLUSTER,
        Column("Servers", list_of("usedBy"), yields=True),
        Column("Available", "available", state=_available),
        Column("Since", "since", Form.SINCE, short="FOR"),
        Column("Reason", "reason"),
        Column("Cause", lambda each: "" if each.get("available") == "True" else each.get("message")),
    ),
    entries_of("apiServices"),
)

_CACHE_STATES: Mapping[str, State] = {"synced": "good", "stale": "warn", "unavailable": "bad"}


def _caches_of(aggregate: Entry) -> str:
    counts = aggregate.get("reflectorCounts") or {}
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"


def _worst_cache(aggregate: Entry) -> State:
    counts = aggregate.get("reflectorCounts") or {}
    return next((_CACHE_STATES[state] for state in ("unavailable", "stale", "synced") if counts.get(state)), "plain")


AGGREGATES = Table(
    "aggregates",
    "Aggregates",
    (
        Column("Aggregate", "name", at=At.ALL),
        Column("Caches", _caches_of, at=At.ALL, state=_worst_cache),
        Column("Objects", "objects", Form.COUNT, At.ALL),
        Column("Size", "bytes", Form.SIZE, At.ALL, yields=True),
        Column("Watchers", "watchers", Form.COUNT, At.ALL),
        Column("Queued", "queuedBytes", Form.SIZE, At.ALL, yields=True),
    ),
    entries_of("aggregates"),
)


def _caches(document: Document) -> list[Entry]:
    services = {"name": "(services)", **(document.get("serviceCaches") or {})}
    return [
        {**each, "aggregate": aggregate.get("name")}
        for aggregate in (*(document.get("aggregates") or ()), services)
        for each in aggregate.get("reflectors") or ()
    ]


CACHES = Table(
    "caches",
    "Caches",
    (
        Column("Aggregate", "aggregate", yields=True),
        CLUSTER,
        Column("Resource", "resource"),
        Column("Namespace", lambda each: each.get("namespace") or None, yields=True),
        Column("State", "state", state=states_of("state", _CACHE_STATES)),
        Column("Objects", "objects", Form.COUNT),
        Column("Size", "bytes", Form.SIZE),
        Column("Lag", "lagSeconds", Form.SPAN),
        Column("Last event", "lastEventSeconds", Form.SPAN, short="EVENT"),
        CAUSE,
    ),
    _caches,
    name=2,
    in_brief=lambda each: each.get("state") != "synced",
)
"""The caches of all aggregates, and of services."""

# -- ingresses and their services --------------------------------------------------------------------------------------


def _rules(document: Document) -> list[Entry]:
    return [
        {
            "ingress": each.ingress,
            "rule": each.rule,
            "service": each.service,
            "ready": each.words,
            "severity": 2 if each.empty else int(each.impaired),
            "requestsTotal": each.requests,
            "errorsTotal": each.errors,
            "cause": each.cause,
        }
        for each in rules_of(document)
    ]


_ENDPOINTS: tuple[State, ...] = ("good", "warn", "bad")

INGRESSES = Table(
    "ingresses",
    "Rules of ingresses",
    (
        Column("Ingress", "ingress", at=At.ALL),
        Column("Rule", "rule", at=At.ALL),
        Column("Service", "service", at=At.ALL),
        Column("Ready endpoints", "ready", at=At.ALL, short="READY", state=lambda each: _ENDPOINTS[each["severity"]]),
        Column("Requests/s", "requestsPerSecond", Form.RATE, At.TOP, "REQ/S"),
        Column("Errors/s", "errorsPerSecond", Form.RATE, At.TOP, "ERR/S", alarm="bad"),
        REQUESTS,
        ERRORS,
        Column("Cause", "cause", at=At.STATUS, yields=True),
    ),
    _rules,
)


def _known(service: Entry) -> str:
    return "stale" if service.get("stale") else "yes" if service.get("known") else "not yet"


def _out(service: Entry) -> str:
    return ", ".join(f"{one.get('endpoint')} ({one.get('cause')})" for one in service.get("outEndpoints") or ())


INGRESS_SERVICES = Table(
    "ingress-services",
    "Services of ingresses",
    (
        Column("Service", service_of),
        CLUSTER,
        Column("Via", "via"),
        Column("Ready", "ready", Form.COUNT, state=lambda each: "" if each.get("ready") else "bad"),
        Column("Terminating", "terminating", Form.COUNT),
        Column("Out", _out, state="warn"),
        IN_FLIGHT,
        Column("Known", _known, state=lambda each: "" if _known(each) == "yes" else "warn"),
        CAUSE,
    ),
    entries_of("ingressServices"),
)

SERVICE_ENDPOINTS = Table(
    "services",
    "Endpoints of ingresses",
    (
        CLUSTER,
        Column("Backends", "backends", Form.COUNT),
        Column("Ready", "ready", Form.COUNT),
        Column("Terminating", "terminating", Form.COUNT),
        Column("Stale", "stale", Form.COUNT, state="warn"),
        Column("Unknown", "unknown", Form.COUNT, state="bad"),
        Column("Problems", "problems", Form.COUNT, state="warn"),
        Column("Cause", lambda each: "; ".join(str(one.get("cause")) for one in each.get("problemBackends") or ())),
    ),
    entries_of("serviceEndpoints"),
)
"""Backends by cluster. A stale backend is served by its last known endpoints."""

# -- exported services -------------------------------------------------------------------------------------------------


def _exports(document: Document) -> list[Entry]:
    causes: dict[tuple[Any, Any], str] = {}
    for each in document.get("exportProblems") or ():
        of = (each.get("namespace"), each.get("service"))
        causes.setdefault(of, f"{each.get('cluster')}: {each.get('message')}")
    return [
        {**each, "cause": causes.get((each.get("namespace"), each.get("service"))) or _why_stale(each)}
        for each in document.get("exports") or ()
    ]


def _why_stale(export: Entry) -> str:
    causes, since = export.get("staleCauses") or {}, export.get("staleSince") or {}
    texts = [
        f"{name}{f' since {since[name]}' if since.get(name) else ''}: {causes.get(name) or 'not followed'}"
        for name in export.get("stale") or ()
    ]
    return f"imports stay as they are; {'; '.join(texts)}" if texts else ""


def _export_words(export: Entry) -> str:
    problems = export.get("problems")
    if problems:
        return f"{problems} problems" if problems != 1 else "problem"
    return "stale" if export.get("stale") else "exported"


def _export_state(export: Entry) -> State:
    return "bad" if export.get("problems") else "warn" if export.get("stale") else "good"


def _export_name(entry: Entry) -> str:
    return f"{entry.get('namespace')}/{entry.get('service')}"


EXPORTS = Table(
    "exports",
    "Exported services",
    (
        Column("Service", _export_name),
        Column("From", list_of("sources")),
        Column("Importers", list_of("importers")),
        Column("Slices", "slices", Form.COUNT),
        Column("State", _export_words, state=_export_state),
        CAUSE,
    ),
    _exports,
)


def _import_cause(target: Entry) -> str:
    refusals = (f"{each.get('object')}: {each.get('cause')}" for each in target.get("refusals") or ())
    return target.get("cause") or "; ".join(refusals)


IMPORTERS = Table(
    "importers",
    "Importing clusters",
    (
        CLUSTER,
        Column("Written by", lambda each: "this daemon" if each.get("leads") else each.get("holder") or "nobody"),
        Column("Waiting", "pending", Form.COUNT),
        Column("Refused", "refusedObjects", Form.COUNT, state="warn"),
        Column("Cause", _import_cause, state=lambda each: "bad" if each.get("cause") else ""),
    ),
    entries_of("exportTargets"),
)

EXPORT_PROBLEMS = Table(
    "export-problems",
    "Problems",
    (
        Column("Service", _export_name),
        CLUSTER,
        Column("Reason", "reason", state=lambda each: "warn"),
        Column("Cause", "message"),
    ),
    entries_of("exportProblems"),
)
