"""Loads a configuration file into a `Config`: read, merge, build, check.

Each stage continues after errors as far as it can and skips what an earlier stage has reported, so that the operator
sees every error of the file at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from mcproxy.config.checks import server_exposure
from mcproxy.config.checks.admin_exposure import check_admin
from mcproxy.config.checks.aggregate_access import check_aggregates
from mcproxy.config.checks.api_service_warnings import check_api_services
from mcproxy.config.checks.ingress_conflicts import check_ingresses
from mcproxy.config.checks.listener_conflicts import check_coverage, check_listeners, check_servers
from mcproxy.config.checks.service_export_clusters import check_services
from mcproxy.config.loaded import Loaded, Location
from mcproxy.config.model import Config
from mcproxy.config.problem import ConfigErrors, Problems
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.include import read_documents
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.aggregates_section import build_aggregates
from mcproxy.config.sections.authentication_section import build_authentication, build_authorization
from mcproxy.config.sections.clusters_section import build_clusters
from mcproxy.config.sections.daemon_section import build_daemon, build_logging, check_shared, check_workers
from mcproxy.config.sections.entries import LIST_SECTIONS, SINGLE_SECTIONS, Merged, Named, merge
from mcproxy.config.sections.flow_controls_section import build_flow_controls, check_use
from mcproxy.config.sections.ingresses_section import build_ingresses, with_certificates
from mcproxy.config.sections.listeners_section import build_certificates, build_listeners
from mcproxy.config.sections.servers_section import build_servers
from mcproxy.config.sections.services_section import build_service_discovery, build_service_exports

T = TypeVar("T")


def load(
    path: str, *, environ: Mapping[str, str] | None = None, now: datetime | None = None, offline: bool = False
) -> Loaded:
    """Read, check and build the configuration of the file `path` and of all that it names.

    `path` may be "-", standard input. `environ` is what ${NAME} stands for (default: the process's); the dates of
    certificates are compared with `now` (with a time zone). With `offline` only YAML files are read: what other files
    hold and variables that are not set count as good, so the result can be shown, but not run.
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
    exports = build_service_exports(context, merged, clusters)
    discovery = build_service_discovery(context, merged, clusters, virtual)
    ingresses = build_ingresses(context, merged, listeners, clusters, certificates)
    listeners = with_certificates(listeners, _values(ingresses), {each.name: each for each in _values(certificates)})
    controls = build_flow_controls(context, merged)
    check_use(context, controls, clusters, virtual)
    check_shared(context, merged, controls)
    check_listeners(context, listeners, certificates, virtual, merged.setting("daemon", "controlSocket"))
    check_servers(context, virtual, listeners)
    server_exposure.check(context, virtual, listeners, clusters, sets, authorizers, aggregates)
    check_admin(context, listeners, virtual, sets, authorizers)
    check_aggregates(context, aggregates, clusters, virtual)
    check_api_services(context, virtual, clusters, aggregates)
    check_coverage(context, virtual, listeners, certificates)
    check_services(context, merged, exports, discovery, clusters)
    check_ingresses(context, ingresses, listeners, certificates, clusters)
    daemon = build_daemon(context, merged, path, listeners)
    has_services = discovery.enabled or any(exports) or any(ingresses)
    check_workers(context, daemon, clusters, virtual, has_services=has_services)
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
        service_exports=_values(exports),
        service_discovery=discovery,
        ingresses=_values(ingresses),
        logging=build_logging(context, merged),
        files=tuple(os.path.abspath(document.file) for document in merged.documents),
    )
    return Loaded(config, context.problems.warnings, context.problems.notes, _locations(merged))


def _locations(merged: Merged) -> dict[tuple[str, ...], Location]:
    places: dict[tuple[str, str], Place] = {}
    for section in LIST_SECTIONS:
        places.update({(section, place.text("name") or ""): place for place in merged.entries(section)})
    for section in SINGLE_SECTIONS:
        for key, place in merged.settings(section):
            places.setdefault((section, key), place)
    found: dict[tuple[str, ...], Location] = {}
    for path, place in places.items():
        found[path] = Location(place.mark, place.key)
        for key, value in place.entries():
            found[*path, key] = Location(value.mark, value.key)
        for service in place.children("apiServices"):
            key = f"apiServices[{service.text('group')}/{service.text('version')}]"
            found[*path, key] = Location(service.mark, service.key)
    return found


def _values(entries: Sequence[Named[T]]) -> tuple[T, ...]:
    return tuple(entry.value for entry in entries if entry.value is not None)
