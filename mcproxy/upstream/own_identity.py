"""The proxy's own identity towards a cluster: certificates of connections, header fields of its own requests.

The proxy's own requests are health checks, discovery and probes of API services. If X-Remote-* names users and the
cluster entry has no credentials, the proxy's only credential for the cluster is the front proxy's certificate. So the
proxy names itself in X-Remote-*, as kube-aggregator does, which has no other credential either. Source:
`pkg/controllers/status/remote/remote_available_controller.go`, `pkg/apiserver/handler_discovery.go`.
"""

from __future__ import annotations

from mcproxy.config import model
from mcproxy.upstream.tls import ClientCertificate

USER = "system:kube-aggregator"
GROUP = "system:masters"
"""API servers with delegated authorization allow this group without a review, so they answer without their cluster."""
_FIELDS = (b"X-Remote-User: %b\r\n" % USER.encode(), b"X-Remote-Group: %b\r\n" % GROUP.encode())


def uses_own_certificate(identity: model.UpstreamIdentity) -> bool:
    """Return whether connections for clients' requests present the certificate of the proxy's own credential."""
    return identity in (model.UpstreamIdentity.IMPERSONATE, model.UpstreamIdentity.PROXY)


def front_proxy_certificate(cluster: model.ClusterConfig) -> ClientCertificate | None:
    """Return the certificate of connections for clients' requests if the identity is RequestHeader, else None."""
    if cluster.identity is not model.UpstreamIdentity.REQUEST_HEADER or cluster.front_proxy is None:
        return None
    return ClientCertificate(cluster.front_proxy.certificate.data, cluster.front_proxy.key.data)


def is_front_proxy(cluster: model.ClusterConfig) -> bool:
    """Whether the proxy's own requests present the certificate of `frontProxy`, and name the proxy in X-Remote-*."""
    return (
        cluster.identity is model.UpstreamIdentity.REQUEST_HEADER
        and cluster.front_proxy is not None
        and cluster.credentials == model.Credentials()
    )


def own_fields(cluster: model.ClusterConfig) -> tuple[bytes, ...]:
    """Return the header fields that name the proxy in its own requests, each with its CRLF."""
    return _FIELDS if is_front_proxy(cluster) else ()
