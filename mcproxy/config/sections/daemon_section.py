"""Reads the sections `daemon` and `logging`, and checks limits that processes and replicas share."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mcproxy.config import credential_checks
from mcproxy.config.control_socket import MAX_PATH, default_control_socket
from mcproxy.config.files import pem
from mcproxy.config.model import (
    AUTO,
    AccessLogConfig,
    AuditLogConfig,
    DaemonConfig,
    FlowControl,
    FlowControlType,
    ListenerConfig,
    Logging,
    PEMFile,
    RedisConfig,
    SharedState,
    UnixBind,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import Merged, Named, Sections
from mcproxy.config.sections.model_reader import read
from mcproxy.config.urls import AddressError, RedisAddress, is_loopback, parse_redis_url

# -- `daemon.sharedState`: the store in which the replicas of the proxy count for flow controls with `shared: true` ----

_TLS_KEYS = ("caFile", "certFile", "keyFile")


def _shared_state(context: Context, place: Place | None) -> SharedState | None:
    redis = place.get("redis") if place is not None else None
    found = _redis(context, redis) if redis is not None else None
    return SharedState(redis=found) if found is not None else None


def check_shared(context: Context, sections: Sections) -> None:
    """Check that shared flow controls have `daemon.sharedState`, and that it is used."""
    state = sections.merged.setting("daemon", "sharedState")
    shared = [place for control in sections.flow_controls if (place := _shared(control)) is not None]
    if state is None:
        for place in shared:
            right = 'add daemon: {sharedState: {redis: {url: "rediss://HOST:6379/0", caFile: FILE}}}, or write false'
            context.error(place, "there is no daemon.sharedState that replicas could count in together", right)
    elif not shared:
        what = "no flow control has shared: true, so nothing is kept there"
        context.warn(state, "no-effect", what, "write shared: true to the limits of all replicas, or take it out")


def _shared(control: Named[FlowControl]) -> Place | None:
    """Return the place of `shared: true` in a flow control that limits something."""
    place = control.place.get("shared")
    exempt = control.place.text("type") == FlowControlType.EXEMPT
    return place if place is not None and place.value is True and not exempt else None


def _redis(context: Context, place: Place) -> RedisConfig | None:
    url = place.get("url")
    if url is None or url.string is None:
        return None
    try:
        address = parse_redis_url(url.string)
    except AddressError as error:
        context.error(url, error.what, error.right)
        return None
    ca, certificate, key = _redis_tls(context, place, url, address)
    password = place.get("passwordFile")
    found = credential_checks.password_file(context, password) if password is not None else None
    if not address.tls and address.socket is None and not is_loopback(address.host):
        if password is not None:
            context.error(url, f"the password would go to {address.host} in clear", "use rediss:// and caFile")
        else:
            what = f"is reached at {address.host} in clear: anyone on the network path can change the limits"
            context.warn(url, "in-clear", what, "use rediss:// and caFile")
    return read(
        context,
        place,
        RedisConfig,
        host=address.host,
        port=address.port,
        socket=address.socket,
        database=address.database,
        ca=ca,
        certificate=certificate,
        key=key,
        password=found[1] if found is not None else None,
        password_file=found[0] if found is not None else None,
    )


def _redis_tls(
    context: Context, place: Place, url: Place, address: RedisAddress
) -> tuple[PEMFile | None, PEMFile | None, PEMFile | None]:
    """Return authorities, client certificate and its key."""
    if not address.tls:
        for key in _TLS_KEYS:
            written = place.get(key)
            if written is not None:
                context.error(written, "means nothing without TLS", "write rediss:// in url, or take it out")
        return None, None, None
    ca = place.get("caFile")
    if ca is None and not place.has("caFile"):
        what = "is rediss, but there is no caFile to check the server's certificate with"
        context.error(url, what, "add caFile: the authority of Redis' certificate")
    found = pem.read_authorities(context, ca) if ca is not None else None
    pair = pem.read_pair(context, place)
    return found[0] if found is not None else None, *(pair if pair is not None else (None, None))


# -- the section `daemon` ---------------------------------------------------------------------------------------------


def build_daemon(context: Context, file: str, sections: Sections) -> DaemonConfig:
    """Return the section. The default path of the control socket depends on `file`, the main file."""
    settings = sections.merged.section("daemon")
    socket, state = settings.get("controlSocket"), settings.get("stateDir")
    return read(
        context,
        settings,
        DaemonConfig,
        control_socket=_control_socket(context, socket, file, sections.listeners.values),
        control_socket_is_default=socket is None,
        state_dir=context.path(state) if state is not None else None,
        shared_state=_shared_state(context, settings.get("sharedState")),
    )


def _control_socket(
    context: Context, place: Place | None, file: str, listeners: Sequence[ListenerConfig]
) -> str | None:
    if place is None:
        taken = {listener.bind.path for listener in listeners if isinstance(listener.bind, UnixBind)}
        return None if context.offline else default_control_socket(file, context.environ, taken)
    path = context.path(place)
    if path is not None and len(os.fsencode(path)) > MAX_PATH:
        what = f"is longer than the {MAX_PATH} bytes of a unix socket's path"
        context.error(place, what, "use a shorter path")
    return path


# -- the section `logging` ---------------------------------------------------------------------------------------------


def build_logging(context: Context, merged: Merged) -> Logging:
    settings = merged.section("logging")
    access, audit = settings.get("access"), settings.get("audit")
    access_log = audit_log = None
    if access is not None:
        access_log = read(context, access, AccessLogConfig, file=_log_file(context, access))
    if audit is not None:
        audit_log = read(context, audit, AuditLogConfig, file=_log_file(context, audit))
        if access_log is not None and access_log.file == audit_log.file != "-":
            what = f"{audit_log.file} is the file of logging.access, too"
            context.error(audit.get("file") or audit, what, "name another file: each has its own form and readers")
    return read(context, settings, Logging, access=access_log, audit=audit_log)


def _log_file(context: Context, section: Place) -> str:
    """Return the file of a log, "-" for stdout."""
    file = section.get("file")
    path = "-" if file is None or file.string == "-" else context.path(file)
    return path or "-"


# -- limits that workers divide among themselves (`daemon.processes.child`) -------------------------------------------


def check_workers(context: Context, daemon: DaemonConfig, sections: Sections, *, has_services: bool) -> None:
    """Warn of a `maxConnections` below the number of processes, because each process may open one anyway.

    The number for Auto is unknown, because the file can be for another machine. The keeper counts as a process if the
    file has aggregates, API services, or services across clusters (`has_services`).
    """
    if daemon.workers in (1, AUTO):
        return
    keeper = has_services or any(server.merges_documents for server in sections.servers.values)
    processes = int(daemon.workers) + keeper
    for entry, cluster in sections.clusters.valid:
        connections = entry.get("connections")
        place = connections.get("maxConnections") if connections is not None else None
        if place is None or not 0 < cluster.connections.max_connections < processes:
            continue
        what = (
            f"is divided among {processes} processes, and each may have one connection: so up to {processes} are open"
        )
        context.warn(place, "divided-limit", what, f"write at least {processes}, or fewer daemon.workers")
