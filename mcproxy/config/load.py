"""Loads a configuration file into a `Config`: read, merge, build, check.

Each stage continues after errors as far as it can and skips what an earlier stage has reported, so that the operator
sees every error of the file at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from mcproxy.config.checks import exposure
from mcproxy.config.checks.admin import check_admin
from mcproxy.config.checks.aggregates import check_aggregates
from mcproxy.config.checks.listeners import check_coverage, check_listeners, check_servers
from mcproxy.config.checks.workers import check_workers
from mcproxy.config.context import Context
from mcproxy.config.loaded import Loaded, Location
from mcproxy.config.model import Config
from mcproxy.config.problem import ConfigErrors, Problems
from mcproxy.config.reading.include import read_documents
from mcproxy.config.reading.merge import merge
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.aggregates import build_aggregates
from mcproxy.config.sections.authentication import build_authentication
from mcproxy.config.sections.authorization import build_authorization
from mcproxy.config.sections.certificates import build_certificates
from mcproxy.config.sections.clusters import build_clusters
from mcproxy.config.sections.daemon import build_daemon
from mcproxy.config.sections.flow_controls import build_flow_controls, check_use
from mcproxy.config.sections.listeners import build_listeners
from mcproxy.config.sections.logging import build_logging
from mcproxy.config.sections.section import Named
from mcproxy.config.sections.servers import build_servers
from mcproxy.config.sections.shared_state import check_shared

T = TypeVar("T")

_SETTINGS_WITH_PLACES = (
    ("daemon", "controlSocket"),
    ("daemon", "stateDir"),
    ("daemon", "sharedState"),
    ("daemon", "workers"),
    ("logging", "access"),
)


def load(
    path: str, *, environ: Mapping[str, str] | None = None, now: datetime | None = None, offline: bool = False
) -> Loaded:
    """Read, check and build the configuration of the file `path` and of all that it names.

    `path` may be "-", standard input. `environ` is what ${NAME} stands for (default: the process's); the dates of
    certificates are compared with `now` (with a time zone). With `offline` only YAML files are read: what other files
    hold and variables that are not set count as good, so the result is for looking at, not for running.
    Raises ConfigErrors with every error of the file. Opens files, but no sockets.
    """
    problems = Problems()
    context = Context(
        problems=problems,
        environ=os.environ if environ is None else environ,
        now=now if now is not None else datetime.now(UTC),
        offline=offline,
    )
    loaded = _load(context, path)
    if problems.errors:
        raise ConfigErrors(problems.errors, problems.warnings)
    return loaded


def _load(context: Context, path: str) -> Loaded:
    merged = merge(context, read_documents(context, path))
    certificates = build_certificates(context, merged)
    listeners = build_listeners(context, merged)
    clusters = build_clusters(context, merged)
    sets = build_authentication(context, merged)
    authorizers = build_authorization(context, merged)
    keeps_state = merged.setting("daemon", "stateDir") is not None
    aggregates = build_aggregates(context, merged, clusters, keeps_state=keeps_state)
    virtual = build_servers(context, merged, listeners, clusters, aggregates)
    controls = build_flow_controls(context, merged)
    check_use(context, controls, clusters, virtual)
    check_shared(context, merged, controls)
    check_listeners(context, listeners, certificates, virtual, merged.setting("daemon", "controlSocket"))
    check_servers(context, virtual, listeners)
    exposure.check(context, virtual, listeners, clusters, sets, authorizers, aggregates)
    check_admin(context, listeners, virtual, sets, authorizers)
    check_aggregates(context, aggregates, clusters, virtual)
    check_coverage(context, virtual, listeners, certificates)
    daemon = build_daemon(context, merged)
    check_workers(context, daemon, clusters, virtual)
    if not (context.problems.errors or listeners or clusters or virtual):
        what = "has no listeners, clusters and servers, so it serves nothing"
        right = "add listeners:, clusters: and servers:; mcproxy.yaml(5) has examples"
        context.problems.warn(merged.documents[0].root.mark, "empty-configuration", "", what, right)
    config = Config(
        daemon=daemon,
        listeners=_values(listeners),
        certificates=_values(certificates),
        clusters=_values(clusters),
        authentication=_values(sets),
        authorization=_values(authorizers),
        flow_controls=_values(controls),
        aggregates=_values(aggregates),
        servers=_values(virtual),
        logging=build_logging(context, merged),
        files=tuple(os.path.abspath(document.file) for document in merged.documents),
    )
    sections = (
        ("listeners", listeners),
        ("certificates", certificates),
        ("clusters", clusters),
        ("authentication", sets),
        ("authorization", authorizers),
        ("flowControls", controls),
        ("aggregates", aggregates),
        ("servers", virtual),
    )
    places = {(section, entry.name): entry.place for section, entries in sections for entry in entries if entry.name}
    for section, key in _SETTINGS_WITH_PLACES:
        place = merged.setting(section, key)
        if place is not None:
            places[section, key] = place
    return Loaded(config, context.problems.warnings, _locations(places))


def _locations(places: Mapping[tuple[str, str], Place]) -> dict[tuple[str, ...], Location]:
    found: dict[tuple[str, ...], Location] = {}
    for path, place in places.items():
        found[path] = Location(place.mark, place.key)
        for key, value in place.entries():
            found[*path, key] = Location(value.mark, value.key)
    return found


def _values(entries: Sequence[Named[T]]) -> tuple[T, ...]:
    return tuple(entry.value for entry in entries if entry.value is not None)
