"""Names the modules that the compiled build compiles (native.py), and why others are interpreted.

What a request passes is compiled, and so are an aggregate's loops over objects. A class of these modules cannot have
two native base classes, and an interpreted class that derives from one needs `allow_interpreted_subclasses` there, so a
family of classes is compiled as a whole. docs/architecture.md, "One source, two builds", says how a module stays
compilable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]

WHOLE: tuple[str, ...] = ("http", "http/h1", "http/h2", "http/h2/hpack", "requests")
"""Packages, as folders below mcproxy/, of which each module is compiled but those in INTERPRETED."""

NAMED: Mapping[str, str] = {
    "aggregate": "selection",
    "aggregate/cache": "decoder event_log object_splitter relist sequence store version_waiters",
    "aggregate/encoding": "columns encoder objects table",
    "aggregate/reads": "list_page list_state response_body",
    "aggregate/resource_version": "formats",
    "aggregate/watch": "bookmark_times catch_up changes fan_out group position scheduler watch_state watcher",
    "dispatch": "plan compiled_rules limiter request_limits",
    "dispatch/tables": "in_flight_counts token_buckets",
    "identity": (
        "client_identity_headers cross_site impersonation own_grants right singleflight upstream_identity_headers"
    ),
    "identity/authentication": (
        "authenticated_user authenticator request_header token_authenticator token_cache token_union"
    ),
    "identity/authorization": "access_review attributes authorizer",
    "kube": "constrained_impersonation media_types numbers query_parameters requestinfo user",
    "net": "alpn connect_errors failures plain_stream socket_options socket_stream tls_stream write_queue",
    "observe": "access_log batched_log log_values record recorders senders",
    "observe/audit": "event log values",
    "observe/metrics": "breakdown counts request_counts",
    "proxy": (
        "aggregate_filters aggregated_request api_requests audit_trail client_connection cluster_path "
        "cors filters forward forwarded_headers pipeline request request_records response_relay routes subrequest "
        "upstream_errors"
    ),
    "upstream": "credentials pending_requests",
    "upstream/balancing": "affinity_balancer balancer consistent_hash least_requests round_robin",
}
"""By package: those of its modules that are compiled."""

_MSGSPEC = "msgspec reads annotations at run time, and compiled code has none"

INTERPRETED: Mapping[str, str] = {
    "dispatch/flow_controller": "its futures are awaited by interpreted code at once: compiled, each wait costs more",
    "net/reactor": "Twisted's reactor calls and overrides it, method by method",
    "aggregate/cache/cached_object": _MSGSPEC,
    "aggregate/cache/wire_types": _MSGSPEC,
    "aggregate/encoding/column_definitions": _MSGSPEC,
    "aggregate/reads/continue_token": _MSGSPEC,
    "aggregate/resource_version/layout": _MSGSPEC,
    "upstream/endpoint": "a cluster has weak references to its former endpoints",
}
"""Modules that a request passes and that are not compiled, with the reason."""


def compiled_files() -> list[str]:
    """Return the paths of the modules to compile, relative to the checkout, sorted. Raises ValueError for a mistake."""
    found = sorted(_files())
    missing = [file for file in found if not (ROOT / file).is_file()]
    if missing:
        raise ValueError(f"packaging/native_modules.py names what does not exist: {', '.join(missing)}")
    return found


def _files() -> Iterator[str]:
    for folder in WHOLE:
        names = (path.stem for path in (ROOT / "mcproxy" / folder).glob("*.py"))
        yield from (
            _file(folder, name) for name in names if name != "__init__" and f"{folder}/{name}" not in INTERPRETED
        )
    for folder, listed in NAMED.items():
        yield from (_file(folder, name) for name in listed.split())


def _file(folder: str, name: str) -> str:
    return f"mcproxy/{folder}/{name}.py"
