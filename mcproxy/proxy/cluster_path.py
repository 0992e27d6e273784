"""Splits a request target into the cluster that its prefix names and the target on that cluster. Pure."""

from __future__ import annotations

from collections.abc import Container

from mcproxy.kube.status import StatusError

# The prefixes of this proxy, KubeAdmiral and Karmada; the path on the cluster's own API follows the name.
_PREFIXES = (
    (b"/clusters/", b""),
    (b"/apis/aggregated.kubeadmiral.io/v1alpha1/aggregations/", b"/proxy"),
    (b"/apis/cluster.karmada.io/v1alpha1/clusters/", b"/proxy"),
)


# Karmada's paths for all its clusters together; the first one is the documented path.
_AGGREGATE_PREFIXES = (
    b"/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy",
    b"/apis/search.karmada.io/v1alpha1/proxying",
)


def split(target: bytes, server: str, names: Container[bytes]) -> tuple[bytes, bytes]:
    """Return the name of a target's cluster, and the target to send to it.

    Raises StatusError (404) if the cluster is not in `names`; `server` is the server's name, for the message.
    """
    for prefix, suffix in _PREFIXES:
        if target.startswith(prefix):
            return _below(target[len(prefix) :], suffix, names)
    raise StatusError(
        404, f'server "{server}" has no API of its own; its clusters are under /clusters/NAME/', details={}
    )


def split_aggregate(target: bytes, names: Container[bytes]) -> tuple[bytes, bytes]:
    """Return the member of an aggregate that a target names (b"": the aggregate's own API), and the member's target.

    Compute the request info from the returned target, since authorization must see the inner path. Raises StatusError
    (404) for a member's path if the member is not in `names`.
    """
    for prefix in _AGGREGATE_PREFIXES:
        if target.startswith(prefix) and target[len(prefix) : len(prefix) + 1] in (b"/", b"?", b""):
            path, question, query = target[len(prefix) :].partition(b"?")
            target = (path or b"/") + question + query
            break
    for prefix, suffix in _PREFIXES:
        if not target.startswith(prefix):
            continue
        rest = target[len(prefix) :]
        segments = rest.partition(b"?")[0].split(b"/")
        # Without the suffix, the path is an object of that system's own API, which a member can serve.
        if not suffix or segments[1:2] == [suffix[1:]]:
            return _below(rest, suffix, names)
    return b"", target


def prefix_of(target: bytes, below: bytes) -> bytes:
    """Return the path that `split` removed from a target."""
    path, below = target.partition(b"?")[0], below.partition(b"?")[0]
    return path[: -len(below)] if path.endswith(below) else path  # "/clusters/west" became "/"


def _below(rest: bytes, suffix: bytes, names: Container[bytes]) -> tuple[bytes, bytes]:
    path, question, query = rest.partition(b"?")
    name, slash, below = path.partition(b"/")
    if name not in names:
        shown = name.decode("ascii", "replace")[:253]
        raise StatusError(404, f'clusters "{shown}" not found', details={"name": shown, "kind": "clusters"})
    below = slash + below
    if suffix:
        if below != suffix and not below.startswith(suffix + b"/"):
            raise StatusError(404, "the server could not find the requested resource", details={})
        below = below[len(suffix) :]
    return name, (below or b"/") + question + query
