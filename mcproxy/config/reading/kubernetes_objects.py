"""Recognizes Kubernetes objects that are given as a configuration file; `mcproxy import` reads some of them."""

from __future__ import annotations

import re

_KIND = re.compile(rb"""^[ \t]*["']?kind["']?[ \t]*:[ \t]*["']?([A-Za-z][A-Za-z0-9]*)["']?[ \t]*,?[ \t]*$""", re.M)
_API_VERSION = re.compile(rb"""^[ \t]{0,8}["']?apiVersion["']?[ \t]*:""", re.M)
_OWN = re.compile(rb"""^["']?version["']?[ \t]*:|^[ \t]*[{][ \t\n]*["']version["'][ \t]*:""", re.M)

_COMMANDS = {
    "UpstreamCluster": "upstreamcluster",
    "ResourceRegistry": "resourceregistry",
    "Cluster": "resourceregistry",
    "Config": "kubeconfig",
    "APIService": "apiservice",
}
"""The command of `mcproxy import`, by kind."""


def kubernetes_object(data: bytes) -> tuple[str, str] | None:
    """Return the kind of the Kubernetes object that a file holds, and the command of `mcproxy import` that reads it.

    None if the file holds no object; the command is "" for a kind that cannot be imported. In a file with several
    objects or lists, a kind that can be imported is preferred. The lines are scanned in linear time, without a YAML
    parser.
    """
    if _OWN.search(data) or not _API_VERSION.search(data):
        return None
    kinds = [match[1].decode() for match in _KIND.finditer(data)]
    if not kinds:
        return None
    kind = next((kind for kind in kinds if kind in _COMMANDS), kinds[0])
    return kind, _COMMANDS.get(kind, "")
