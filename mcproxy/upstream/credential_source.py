"""Factory of credential sources: the live credential of a cluster, by its configuration."""

from __future__ import annotations

from mcproxy.config import model
from mcproxy.upstream.credentials import (
    CredentialSource,
    StaticCredentials,
    basic,
    bearer,
    configured_certificate,
)
from mcproxy.upstream.exec_plugin import ExecCredentials
from mcproxy.upstream.shared import Shared
from mcproxy.upstream.token_file import TokenFile


def credential_source(cluster: model.Cluster, shared: Shared) -> CredentialSource:
    """Return the source for `cluster.credentials`; raises `CredentialError` for a fixed one that cannot be sent."""
    credentials = cluster.credentials
    certificate = configured_certificate(credentials)
    if credentials.exec is not None:
        return ExecCredentials(credentials.exec, cluster, certificate, clock=shared.reactor, runner=shared.plugins)
    if credentials.token_file is not None:
        return TokenFile(credentials.token_file, certificate, clock=shared.reactor, cluster=cluster.name)
    if credentials.token is not None:
        return StaticCredentials(bearer(credentials.token.reveal(), "the configuration"), certificate)
    if credentials.basic is not None:
        return StaticCredentials(basic(*credentials.basic), certificate)
    return StaticCredentials(None, certificate)
