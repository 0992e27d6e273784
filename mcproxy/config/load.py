"""Loads a configuration file into a `Config`: read, merge, build, check.

Each stage continues after errors and skips values that an earlier stage has reported, so that the operator sees every
error of the file at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime

from mcproxy.config.checks import server_exposure
from mcproxy.config.checks.admin_exposure import check_admin
from mcproxy.config.checks.aggregate_access import check_aggregates
from mcproxy.config.checks.api_service_warnings import check_api_services
from mcproxy.config.checks.ingress_conflicts import check_ingresses
from mcproxy.config.checks.listener_conflicts import check_coverage, check_listeners, check_servers
from mcproxy.config.checks.service_export_clusters import check_services
from mcproxy.config.checks.tunnel_use import check_tunnels
from mcproxy.config.loaded import Loaded, Location
from mcproxy.config.model import Config
from mcproxy.config.problem import ConfigErrors, Problems
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.include import read_documents
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.aggregates_section import aggregate
from mcproxy.config.sections.authentication_section import authentication, authorizer
from mcproxy.config.sections.clusters_section import cluster
from mcproxy.config.sections.daemon_section import build_daemon, build_logging, check_shared, check_workers
from mcproxy.config.sections.entries import LIST_SECTIONS, SINGLE_SECTIONS, Merged, Sections, merge
from mcproxy.config.sections.flow_controls_section import check_use, flow_control
from mcproxy.config.sections.ingresses_section import ingress, with_certificates
from mcproxy.config.sections.listeners_section import certificate, listener
from mcproxy.config.sections.servers_section import server
from mcproxy.config.sections.services_section import build_service_discovery, check_exports, export
from mcproxy.config.sections.tunnels_section import tunnel


def load(
    path: str, *, environ: Mapping[str, str] | None = None, now: datetime | None = None, offline: bool = False
) -> Loaded:
    """Read, check and build the configuration of the file `path` and of all files that it names.

    `path` "-" is standard input. `environ` has the values of ${NAME} (default: the process's environment). The dates of
    certificates are compared with `now` (with a time zone). With `offline` only YAML files are read: contents of other
    files and unset variables count as valid, so the result can be shown, but not run.
    Raises ConfigErrors with all errors of the file. Opens no sockets.
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
    sections = Sections(merged)
    sections.tunnels = sections.build(context, "tunnels", tunnel)
    sections.certificates = sections.build(context, "certificates", certificate)
    sections.listeners = sections.build(context, "listeners", listener)
    sections.clusters = sections.build(context, "clusters", cluster)
    sections.authentication = sections.build(context, "authentication", authentication)
    sections.authorization = sections.build(context, "authorization", authorizer)
    sections.aggregates = sections.build(context, "aggregates", aggregate)
    sections.servers = sections.build(context, "servers", server)
    sections.exports = sections.build(context, "serviceExports", export)
    discovery = build_service_discovery(context, sections)
    sections.ingresses = sections.build(context, "ingresses", ingress)
    sections.listeners = with_certificates(sections)
    sections.flow_controls = sections.build(context, "flowControls", flow_control)
    check_exports(context, sections.exports)
    check_use(context, sections)
    check_shared(context, sections)
    check_listeners(context, sections)
    check_servers(context, sections)
    server_exposure.check(context, sections)
    check_tunnels(context, sections)
    check_admin(context, sections)
    check_aggregates(context, sections)
    check_api_services(context, sections)
    check_coverage(context, sections)
    check_services(context, sections, discovery)
    check_ingresses(context, sections)
    daemon = build_daemon(context, path, sections)
    has_services = discovery.enabled or any(sections.exports) or any(sections.ingresses)
    check_workers(context, daemon, sections, has_services=has_services)
    if not (context.problems.errors or sections.listeners or sections.clusters or sections.servers):
        what = "has no listeners, clusters and servers, so it serves nothing"
        right = "add listeners:, clusters: and servers:; mcproxy.yaml(5) has examples"
        context.problems.warn(merged.documents[0].root.mark, "empty-configuration", "", what, right)
    config = Config(
        daemon=daemon,
        listeners=sections.listeners.values,
        certificates=sections.certificates.values,
        clusters=sections.clusters.values,
        authentication=sections.authentication.values,
        authorization=sections.authorization.values,
        flow_controls=sections.flow_controls.values,
        aggregates=sections.aggregates.values,
        servers=sections.servers.values,
        service_exports=sections.exports.values,
        service_discovery=discovery,
        ingresses=sections.ingresses.values,
        tunnels=sections.tunnels.values,
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
