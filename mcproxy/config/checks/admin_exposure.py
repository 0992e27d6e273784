"""Checks of listeners that serve Admin: which clients may read which paths, and over which network.

On other addresses than loopback and unix sockets, paths that show users, request paths or parts of the file need
authentication, and authentication needs TLS. The paths in `HARMLESS_PATHS` need neither, because metrics scrapers and
load balancers request them.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcproxy.config.checks.server_exposure import leaves_out_cluster
from mcproxy.config.model import (
    HARMLESS_PATHS,
    Authentication,
    Authorization,
    ListenerConfig,
    Server,
    Serves,
    SystemdBind,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.authentication_section import NONE, TOKEN_AUTHENTICATORS
from mcproxy.config.sections.entries import ListSection, Named, Sections
from mcproxy.config.suggestions import suggest
from mcproxy.config.urls import is_open

_HARMLESS = ", ".join(sorted(HARMLESS_PATHS))


def check_admin(context: Context, sections: Sections) -> None:
    """Report every error and warning of the Admin listeners."""
    sets, authorizers = sections.authentication.by_name, sections.authorization.by_name
    for place, listener in sections.listeners.valid:
        if listener.serves is Serves.ADMIN:
            _exposure(context, place, listener)
            _authentication(context, place, listener, sets)
            _authorization(context, place, authorizers)
            _users_of_servers(context, place, listener, sections.servers)


def _exposure(context: Context, place: Place, listener: ListenerConfig) -> None:
    if not is_open(listener.bind):
        return
    sensitive = [path for path in listener.paths if path not in HARMLESS_PATHS]
    may = "may be" if isinstance(listener.bind, SystemdBind) else "is"
    where = place.get("paths") or place
    if sensitive and not place.has("authentication"):
        what = f"shows {', '.join(sensitive)} to everybody: {listener.bind} {may} open beyond this machine"
        right = f"name a set in authentication, or write paths: [{_HARMLESS}], or bind it to 127.0.0.1"
        context.error(where, f"{what}, and it has no authentication", right)
    if (
        (sensitive or place.has("authentication"))
        and not place.has("tls")
        and not isinstance(listener.bind, SystemdBind)
    ):
        what = f"listens on {listener.bind} without tls, open beyond this machine"
        right = f"add tls: {{certificates: [NAME]}}, or write paths: [{_HARMLESS}] without authentication"
        context.error(place, what, f"{right}, or bind it to 127.0.0.1")


def _authentication(
    context: Context, place: Place, listener: ListenerConfig, sets: Mapping[str, Named[Authentication]]
) -> None:
    written = place.get("authentication")
    if written is None:
        return
    entry = sets.get(written.string or "")
    if entry is None:
        right = "leave it out: whoever can connect may see it" if written.string == NONE else _other(written, sets)
        context.error(written, f"there is no set of authenticators {written.shown}", right)
        return
    found = entry.value
    if found is None:
        return
    if leaves_out_cluster(entry, "tokenReview"):
        what = f"{entry.name} has a tokenReview without cluster, and a listener has none"
        context.error(written, what, "name the cluster in the tokenReview, or use another set here")
    others = (found.anonymous.enabled, *(entry.place.has(key) for key in TOKEN_AUTHENTICATORS))
    if listener.tls is None and not any(others):
        what = f"{entry.name} accepts client certificates alone, and without tls no client can send one"
        context.warn(written, "unreachable-set", what, "add tls to the listener, or use another set")
    if found.anonymous.enabled and not place.has("authorization") and is_open(listener.bind):
        shown = [
            path
            for path in listener.paths
            if path not in HARMLESS_PATHS and (not found.anonymous.paths or path in found.anonymous.paths)
        ]
        if shown:
            what = f"{entry.name} accepts anonymous requests, so everybody sees {', '.join(shown)}"
            right = "use a set whose anonymous has paths without these, or name an authorizer in authorization"
            context.error(written, what, right)


def _authorization(context: Context, place: Place, authorizers: Mapping[str, Named[Authorization]]) -> None:
    written = place.get("authorization")
    if written is None:
        return
    entry = authorizers.get(written.string or "")
    if entry is None or entry.name == NONE:
        right = "leave it out" if written.string == NONE else _other(written, authorizers)
        context.error(written, f"there is no authorizer {written.shown}", right)
    elif not place.has("authentication"):
        what = "decides about users, and this listener has no authentication: every user is system:anonymous"
        context.error(written, what, "name a set in authentication, or take it out")
    elif leaves_out_cluster(entry, "subjectAccessReview"):
        what = f"{entry.name} has a subjectAccessReview without cluster, and a listener has none"
        context.error(written, what, "name the cluster in the subjectAccessReview, or use another authorizer here")


def _users_of_servers(context: Context, place: Place, listener: ListenerConfig, servers: ListSection[Server]) -> None:
    """Warn if all users that a set of authenticators for clusters accepts can see the requests of other users."""
    written = place.get("authentication")
    sensitive = [path for path in listener.paths if path not in HARMLESS_PATHS]
    if written is None or place.has("authorization") or not sensitive:
        return
    shared = [server.name for server in servers if server.place.text("authentication") == written.string]
    if shared:
        what = f"every user of server {shared[0]} sees {', '.join(sensitive)}: both have the set {written.string}"
        right = "name an authorizer in authorization, or use a separate set"
        context.warn(written, "shared-set", what, right)


def _other(written: Place, known: Mapping[str, object]) -> str:
    return suggest(written.string or "", known) if known else "define it in its section"
