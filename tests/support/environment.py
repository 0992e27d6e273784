"""What the environments of many tests have in common: the listener of their daemons, and kubeconfigs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PUBLIC_LISTENER = """\
listeners:
  - {{name: public, bind: "127.0.0.1:{port}", tls: {{certificates: [proxy]}}}}
certificates:
  - {{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}
"""
"""A part of a configuration, for `str.format`: a listener with TLS, whose certificate is beside the configuration."""


Entries = Sequence[dict[str, Any]]


def kubeconfig_of(clusters: Entries, users: Entries, contexts: Entries, current: str) -> dict[str, Any]:
    """Return a kubeconfig of these entries; `current` is the name of the context in use."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": list(clusters),
        "users": list(users),
        "contexts": list(contexts),
        "current-context": current,
    }
