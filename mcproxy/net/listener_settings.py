"""What a reload may change of a listener: certificates, limits, the PROXY protocol."""

from __future__ import annotations

from dataclasses import dataclass, field

from mcproxy.config.model import IPNetwork, Limits
from mcproxy.net.certificate_store import CertificateStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Settings of new connections.

    `certificates` None: no TLS. `proxy_protocol_from` None: no PROXY protocol; else a header is required from peers in
    these networks, and is a protocol error from others.
    """

    name: str = ""
    certificates: CertificateStore | None = None
    limits: Limits = field(default_factory=Limits)
    proxy_protocol_from: tuple[IPNetwork, ...] | None = None
