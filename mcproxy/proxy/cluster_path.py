"""Which of a server's several clusters a target names, and what is left of the target below it. Pure."""

from __future__ import annotations

from collections.abc import Container

from mcproxy.kube.status import StatusError

# Where other systems' clients look for a member cluster; all mean the cluster's own API below the name.
_PREFIXES = (
    (b"/clusters/", b""),
    (b"/apis/aggregated.kubeadmiral.io/v1alpha1/aggregations/", b"/proxy"),
    (b"/apis/cluster.karmada.io/v1alpha1/clusters/", b"/proxy"),
)


def split(target: bytes, server: str, names: Container[bytes]) -> tuple[bytes, bytes]:
    """Return the name of the cluster that a target is for, and the target as that cluster is asked.

    Raises StatusError (404) for what names none of `names`; `server` is the name that a client is told.
    """
    for prefix, suffix in _PREFIXES:
        if target.startswith(prefix):
            return _below(target[len(prefix) :], suffix, names)
    raise StatusError(
        404, f'server "{server}" has no API of its own; its clusters are under /clusters/NAME/', details={}
    )


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
